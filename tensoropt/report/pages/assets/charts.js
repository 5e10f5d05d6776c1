// The charts, drawn by Plotly.

const KIND_COLOURS = {
  before: "#7a8899", branches: "#7fb2ea", forward: "#4c8bd6", backward: "#3f9e84", parameters: "#8cc5a5", update: "#8f79c9", sent_on: "#d9822b", sent_back: "#c94f7c", all_gather: "#d9822b", reduce_scatter: "#c94f7c",
  all_reduce: "#b3423a", all_to_all: "#a98a1d", halo: "#7a7a7a", halo_sum: "#7a7a7a",
};
const USE_COLOURS = ["#4c8bd6", "#d9822b", "#3f9e84", "#8f79c9", "#c94f7c", "#a98a1d", "#7a8899", "#b3423a"];
const BASELINE_MARKS = {
  "data-parallel": ["square", "#c94f7c"], optcnn: ["diamond", "#3f9e84"], tofu: ["triangle-up", "#8f79c9"],
  "mesh-tensorflow": ["cross", "#a98a1d"], mcmc: ["x", "#b3423a"],
};

const GLYPHS = {
  "circle-open": "\u25cb", star: "\u2605", square: "\u25a0", diamond: "\u25c6", "triangle-up": "\u25b2", cross: "\u271a", x: "\u2716", hexagon: "\u2b22",
};

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function chartLayout(x, y, more) {
  const axis = {gridcolor: ink("line"), zerolinecolor: ink("line"), linecolor: ink("line"), automargin: true};
  return {
    margin: {l: 60, r: 12, t: 12, b: 44},
    paper_bgcolor: ink("card"), plot_bgcolor: ink("card"),
    font: {family: "system-ui, sans-serif", size: 12, color: ink("ink")},
    xaxis: {...axis, title: {text: x}},
    yaxis: {...axis, title: {text: y}},
    showlegend: false,
    hoverlabel: {align: "left", bgcolor: ink("card"), bordercolor: ink("soft"), font: {color: ink("ink")}},
    ...more,
  };
}

// Draw a chart, and under it what its colours mean: a list in the page, which wraps as the page does.
function drawChart(id, traces, layout) {
  const legend = document.getElementById(id + "-legend");
  legend.replaceChildren(...traces.filter((trace) => trace.showlegend !== false).map((trace) => {
    const entry = document.createElement("li"), swatch = document.createElement("span");
    const marker = trace.marker || {}, line = trace.line || {};
    const isMark = trace.mode === "markers";
    const colour = isMark ? marker.color : line.color;
    swatch.className = isMark ? "mark" : line.dash ? "swatch dash" : "swatch";
    if (isMark) swatch.textContent = GLYPHS[marker.symbol] || "\u25cf";
    swatch.setAttribute("aria-hidden", "true");
    swatch.style.color = colour;
    entry.append(swatch, trace.title || trace.name);
    return entry;
  }));
  return Plotly.react(id, traces, layout, CHART_OPTIONS);
}

const CHART_OPTIONS = {displayModeBar: false, responsive: true, scrollZoom: false};

// Names come from users' models: Plotly takes some HTML in texts, so none is let through.
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function timeScale(us) {
  return us >= 1e6 ? [1e6, "s"] : us >= 1e3 ? [1e3, "ms"] : [1, "us"];
}

function memoryScale(bytes) {
  return bytes >= 1e9 ? [1e9, "GB"] : bytes >= 1e6 ? [1e6, "MB"] : bytes >= 1e3 ? [1e3, "kB"] : [1, "B"];
}

function baselineTraces(baselines, held, bytes, scale) {
  return baselines.map((baseline) => {
    const mark = BASELINE_MARKS[baseline.name] || ["hexagon", "#7a8899"];
    return {
      x: baseline.points.map((point) => held(point) / bytes),
      y: baseline.points.map((point) => point.time_us / scale),
      text: baseline.points.map((p) => `${plain(baseline.name)}<br>${memoryText(p.sum_bytes)} per device` +
        (p.peak_bytes === undefined ? "" : `, peak ${memoryText(p.peak_bytes)}`) + `<br>${timeText(p.time_us)} per step`),
      mode: "markers", name: plain(baseline.name), hoverinfo: "text",
      title: baseline.name,
      marker: {size: 10, symbol: mark[0], color: mark[1], line: {width: 1, color: ink("card")}},
    };
  });
}

// Baselines that are far from the frontier would press it into a corner: those within half its span are shown. Return a
// sentence on the others.
function reachNear(layout, x, y, all) {
  const [spanX, spanY] = [x, y].map((each) => Math.max(...each) - Math.min(...each) || each[0] || 1);
  const near = all.filter(([m, t]) => m < Math.max(...x) + 0.5 * spanX && t < Math.max(...y) + 0.5 * spanY);
  const far = all.length - near.length;
  const [reachX, reachY] = [[...x, ...near.map((p) => p[0])], [...y, ...near.map((p) => p[1])]];
  layout.xaxis.range = [Math.max(0, Math.min(...reachX) - 0.04 * spanX), Math.max(...reachX) + 0.06 * spanX];
  layout.yaxis.range = [Math.max(0, Math.min(...reachY) - 0.08 * spanY), Math.max(...reachY) + 0.08 * spanY];
  return far ? `${far} of the baselines' points are beyond the picture.` : "";
}

function drawFrontier(data, state) {
  const points = data.points;
  const [scale, unit] = timeScale(Math.max(...points.time_us));
  const byPeak = state.axis === "peak";
  const needed = byPeak ? points.peak_bytes : points.sum_bytes;
  const [bytes, size] = memoryScale(Math.max(...needed));
  const x = needed.map((each) => each / bytes);
  const y = points.time_us.map((each) => each / scale);
  const told = points.time_us.map((time, i) =>
    `point ${i + 1}<br>${memoryText(points.sum_bytes[i])} per device` +
    (points.peak_bytes[i] === null ? "" : `, peak ${memoryText(points.peak_bytes[i])}`) +
    `<br>${timeText(time)} per step: ${timeText(points.compute_time_us[i])} compute, ${timeText(points.network_time_us[i])} network`);
  const traces = [];
  const bySize = data.objectives[0] === "memory" && data.objectives[1] === "time";
  // Points ascend in the memory that the search counts; their peaks needn't.
  const order = x.map((_, i) => i).sort((a, b) => x[a] - x[b] || y[b] - y[a]);
  // What is proven is proven of that sum.
  if (data.bound && bySize && !byPeak) {
    const reach = data.bound.mem_bytes.map((each) => each / bytes);
    const least = data.bound.time_ns.map((each) => each / 1e3 / scale);
    const last = Math.max(x[x.length - 1], reach[reach.length - 1]);
    traces.push({
      x: [...reach, last], y: [...least, least[least.length - 1]], mode: "lines", name: "no plan is below (certified)",
      line: {shape: "hv", width: 1, color: ink("soft"), dash: "dot"}, hoverinfo: "skip",
    });
    traces.push({
      x: [...x, last], y: [...y, y[y.length - 1]], mode: "lines", fill: "tonexty", showlegend: false, hoverinfo: "skip",
      line: {shape: "hv", width: 0}, fillcolor: "rgba(127,140,160,.22)",
    });
  }
  if (data.peak_bound && byPeak) {
    const corner = [data.peak_bound.mem_bytes / bytes, data.peak_bound.time_ns / 1e3 / scale];
    traces.push({
      x: [corner[0], corner[0], Math.max(...x)], y: [Math.max(...y), corner[1], corner[1]], mode: "lines", hoverinfo: "skip",
      name: "no plan is left of it or below (certified)", line: {width: 1, color: ink("soft"), dash: "dot"},
    });
  }
  traces.push({
    x: order.map((i) => x[i]), y: order.map((i) => y[i]), text: order.map((i) => told[i]), mode: x.length > 400 ? "lines" : "lines+markers",
    name: "frontier", hoverinfo: "text", customdata: order, line: {shape: bySize ? "hv" : "linear", color: "#4c8bd6", width: 2}, marker: {size: 5},
  });
  const one = (at, name, marker) => ({
    x: [x[at]], y: [y[at]], text: [`${name}<br>${told[at]}`], mode: "markers", name, hoverinfo: "text", customdata: [at], marker,
  });
  traces.push(one(data.turning_point, "turning point", {size: 13, symbol: "circle-open", color: ink("ink"), line: {width: 2}}));
  const held = (point) => (byPeak ? point.peak_bytes : point.sum_bytes);
  const baselines = data.baselines.map((each) => ({name: each.name, points: each.points.filter((point) => held(point) !== undefined)}));
  traces.push(...baselineTraces(baselines, held, bytes, scale));
  traces.push(one(data.chosen, "chosen", {size: 14, symbol: "star", color: "#d9822b", line: {width: 1, color: ink("card")}}));
  traces.push(one(state.point, "selected", {size: 17, symbol: "circle-open", color: ink("mark"), line: {width: 3}}));
  const shapes = state.limit === null ? [] : [{
    type: "line", x0: state.limit / bytes, x1: state.limit / bytes, y0: 0, y1: 1, yref: "paper",
    line: {color: ink("mark"), width: 1.5, dash: "dash"},
  }];
  const layout = chartLayout(`${byPeak ? "peak of a step" : "memory"} per device (${size})`, `time per step (${unit})`, {shapes, hovermode: "closest"});
  document.getElementById("far").textContent = reachNear(layout, x, y, baselines.flatMap((each) => each.points)
    .map((point) => [held(point) / bytes, point.time_us / scale]));
  state.frontierTraces = {selected: traces.length - 1, x, y, told, bytes};
  return drawChart("frontier-chart", traces, layout);
}

// Move what a selection moves, without drawing the rest again.
function moveSelection(state) {
  const {selected, x, y, told, bytes} = state.frontierTraces;
  const at = state.point;
  const line = state.limit === null ? [] : [{
    type: "line", x0: state.limit / bytes, x1: state.limit / bytes, y0: 0, y1: 1, yref: "paper",
    line: {color: ink("mark"), width: 1.5, dash: "dash"},
  }];
  Plotly.update("frontier-chart",
    {x: [[x[at]]], y: [[y[at]]], text: [[`selected<br>${told[at]}`]], customdata: [[at]]}, {shapes: line}, [selected]);
}

function drawCurve(data) {
  if (!data.curve) return;
  document.getElementById("curve").hidden = false;
  const fitting = data.curve.filter((point) => point.time_us !== null);
  const [scale, unit] = timeScale(Math.max(...fitting.map((point) => point.time_us), 0));
  const isWhole = new Set(fitting.map((point) => point.batch)).size <= 1;
  const lines = new Map(), colors = ["#4c8bd6", "#d9822b", "#2e8b57", "#8e5bb5", "#7a8899"];
  for (const point of fitting) {
    const kind = (point.cluster || "").replace(/-[0-9]+x[0-9]+$/, "");
    const name = isWhole ? kind : `${kind}, ${point.batch / point.parallelism} per device`;
    lines.set(name, [...(lines.get(name) || []), point]);
  }
  const told = (p) => `${p.parallelism} devices<br>${timeText(p.time_us)}, ${memoryText(p.peak_bytes)}`;
  const traces = [...lines].map(([name, line], i) => ({
    x: line.map((p) => p.parallelism), y: line.map((p) => p.time_us / scale), mode: "lines+markers",
    name: lines.size > 1 ? plain(name) : "least time", line: {color: colors[i % colors.length]}, text: line.map(told), hoverinfo: "text",
  }));
  if (lines.size === 1) traces.push({
    x: fitting.map((p) => p.parallelism), y: fitting.map((p) => fitting[0].time_us * fitting[0].parallelism / p.parallelism / scale),
    mode: "lines", name: "perfect scaling", line: {dash: "dot", color: ink("soft")}, hoverinfo: "skip",
  });
  const best = (data.unbeaten || []).map((at) => data.curve[at]);
  if (best.length) traces.push({
    x: best.map((p) => p.parallelism), y: best.map((p) => p.time_us / scale), mode: "markers", name: "none is both faster and cheaper",
    text: best.map((p) => `${told(p)}<br>${(p.price_per_hour / 3600 * 1e6 / p.samples_per_s).toPrecision(3)} for 10^6 samples`),
    hoverinfo: "text", marker: {size: 13, symbol: "circle-open", color: ink("ink"), line: {width: 2}},
  });
  const layout = chartLayout("devices", `time per step (${unit})`, {});
  Object.assign(layout.xaxis, {type: "log", tickvals: fitting.map((p) => p.parallelism)});
  layout.yaxis.type = "log";
  drawChart("curve-chart", traces, layout);
}

// Draw a timeline as far as a step of some nanoseconds reaches, so that one above the other can be compared.
function drawTimeline(id, timeline, reach) {
  const [scale, unit] = timeScale(reach / 1e3);
  const ns = scale * 1e3;
  const lanes = [];
  const tasks = tasksOf(timeline);
  timeline.devices.forEach((ranks, device) => {
    const who = rangeText(ranks);
    for (const [lane, what] of [[0, "compute"], [1, "network"]]) {
      if (tasks.some((task) => task[0] === device && task[1] === lane)) lanes.push([device, lane, `${what} ${who}`]);
    }
  });
  const place = new Map(lanes.map(([device, lane], i) => [`${device}/${lane}`, lanes.length - 1 - i]));
  const thick = Math.max(6, Math.min(40, 130 / lanes.length));
  const byKind = timeline.kinds.map(() => []);
  for (const task of tasks) byKind[task[5]].push(task);
  const traces = timeline.kinds.map((kind, number) => {
    const x = [], y = [], text = [];
    for (const [device, lane, start, duration, operator] of byKind[number]) {
      const at = place.get(`${device}/${lane}`);
      const told = `${plain(kind.replaceAll("_", "-"))} ${plain(timeline.operators[operator])}<br>${timeText(duration / 1e3)} from ${timeText(start / 1e3)}`;
      x.push(start / ns, (start + duration / 2) / ns, (start + duration) / ns, null);
      y.push(at, at, at, null);
      text.push(told, told, told, null);
    }
    return {
      x, y, text, mode: "lines", name: plain(kind.replaceAll("_", "-")), title: kind.replaceAll("_", "-"), hoverinfo: "text", connectgaps: false,
      // Simplified lines would leave out what is shorter than a pixel, however much of it there is.
      line: {width: thick, color: KIND_COLOURS[kind] || "#7a8899", simplify: false},
    };
  });
  const layout = chartLayout(`time since the step began (${unit})`, "", {hovermode: "closest"});
  Object.assign(layout.yaxis, {tickvals: lanes.map((_, i) => lanes.length - 1 - i), ticktext: lanes.map((each) => each[2]),
    range: [-0.7, lanes.length - 0.3], fixedrange: true, zeroline: false});
  layout.xaxis.range = [0, reach / ns];
  document.getElementById(id).style.height = `${Math.max(200, 110 + 46 * lanes.length)}px`;
  drawChart(id, traces, layout);
}

function drawMemory(memory) {
  const [bytes, size] = memoryScale(memory.peak_bytes);
  const uses = Object.keys(memory.by_use);
  const x = memory.instants.map((each) => each + 1);
  const traces = uses.map((use, i) => ({
    x, y: memory.by_use[use].map((each) => each / bytes), stackgroup: "one", mode: "lines", name: plain(use),
    title: use, line: {width: 0.5, shape: "hv", color: USE_COLOURS[i % USE_COLOURS.length]},
    text: memory.runs.map((runs, at) => `instruction ${x[at]}, ${plain(runs)}<br>${plain(use)}: ${memoryText(memory.by_use[use][at])}`),
    hoverinfo: "text",
  }));
  const layout = chartLayout("instruction, in order of execution", `alive (${size})`, {
    shapes: [{type: "line", x0: memory.peak_instruction + 1, x1: memory.peak_instruction + 1, y0: 0, y1: 1, yref: "paper",
      line: {color: ink("mark"), dash: "dash", width: 1.5}}],
    annotations: [{x: memory.peak_instruction + 1, y: 1, yref: "paper", text: `peak ${memoryText(memory.peak_bytes)}`, showarrow: false,
      xanchor: memory.peak_instruction > memory.instructions / 2 ? "right" : "left", font: {color: ink("mark")}}],
  });
  layout.yaxis.rangemode = "tozero";
  drawChart("memory-chart", traces, layout);
}
