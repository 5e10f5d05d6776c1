// The page: what is selected, and what is drawn of it. Everything comes from the JSON in the page.

const root = JSON.parse(document.getElementById("tensoropt-data").textContent);
// Of a frontier with stages the page shows one plan: that of the point in its address, or of the one that was chosen.
const shownPoint = root.plans ? pointOfAddress(root) : null;
const whole = root.plans ? root.plans[shownPoint] : root;
// Of a plan with stages the sections show one stage, each a plan of its own.
let data = whole.stages ? whole.stages[0].report : whole;
const state = {
  point: data.chosen, limit: null, search: "", sort: {key: "time", down: true}, open: new Set(), allOpen: false, rank: data.first_rank, rows: [],
};
const byId = (id) => document.getElementById(id);
const count = data.points.time_us.length;
const hasPeaks = data.objectives[0] === "memory" && data.points.peak_bytes.every((each) => each !== null);
state.axis = hasPeaks ? "peak" : "sum";

function bars(id, rows, total, text, totalName) {
  const most = Math.max(...rows.map((row) => Math.abs(row.amount)), 1e-12);
  const table = element("table", null, {className: "bars"});
  const shown = rows.filter((row) => row.amount).sort((a, b) => b.amount - a.amount);
  const kept = shown.length > 12 ? shown.slice(0, 11) : shown;
  const rest = shown.slice(kept.length);
  if (rest.length) kept.push({name: `${rest.length} others`, amount: rest.reduce((sum, row) => sum + row.amount, 0), part: ""});
  for (const row of kept) {
    const line = element("tr", null, {className: row.part || ""});
    const bar = element("span", null, {className: "bar"});
    bar.style.width = `${100 * Math.min(1, Math.abs(row.amount) / most)}%`;
    const cell = element("td");
    cell.append(bar);
    line.append(element("td", row.name), cell, element("td", text(row.amount), {className: "number"}),
      element("td", total ? percentText(row.amount / total) : "", {className: "number"}));
    table.append(line);
  }
  const line = element("tr", null, {className: "total"});
  line.append(element("td", totalName), element("td"), element("td", text(total), {className: "number"}), element("td", "", {className: "number"}));
  table.append(line);
  byId(id).replaceChildren(table);
}

function neededBytes(point) {
  const peak = data.points.peak_bytes[point];
  return peak === null ? data.points.sum_bytes[point] : peak;
}

const comparable = (() => {
  const known = [...Array(count).keys()].filter((i) => data.points.peak_bytes[i] !== null);
  return (known.length ? known : [...Array(count).keys()])
    .sort((a, b) => data.points.time_us[a] - data.points.time_us[b] || data.points.sum_bytes[a] - data.points.sum_bytes[b]);
})();
const least = Math.min(...comparable.map(neededBytes));
const highest = Math.max(...comparable.map(neededBytes)) * 1.05;

function fastestWithin(limit) {
  const found = comparable.find((point) => neededBytes(point) <= limit);
  return found === undefined ? null : found;
}

function drawCards() {
  const points = data.points, at = state.point;
  const cards = [
    ["point", `${at + 1} of ${count}`], ["memory per device", memoryText(points.peak_bytes[at])], ["paper's sum", memoryText(points.sum_bytes[at])],
    ["time per step", timeText(points.time_us[at])], ["compute", timeText(points.compute_time_us[at])], ["network", timeText(points.network_time_us[at])],
  ];
  if (points.overlap_time_us[at]) cards.push(["overlap", timeText(points.overlap_time_us[at])]);
  if (points.gap[at] !== null) cards.push(["gap", percentText(points.gap[at])]);
  byId("cards").replaceChildren(...cards.map(([name, text]) => {
    const card = element("div");
    card.append(element("dt", name), element("dd", text, {id: "card-" + name.replaceAll("'", "").replaceAll(" ", "-")}));
    return card;
  }));
  const beside = (time, bytes) => `${signedPercent(time / points.time_us[at] - 1)} time, ${signedPercent(bytes / neededBytes(at) - 1)} memory`;
  const marks = [];
  const has = data.device_memory_bytes;
  if (has && neededBytes(at) > has) {
    const fitting = fastestWithin(data.default_limit_bytes);
    marks.push(`This plan needs ${memoryText(neededBytes(at))} per device, but ${data.assumed.device} has ${memoryText(has)}: it won't run there. ` +
      (fitting === null ? "None of these plans fits: search within less (--memory), which tries micro-batches, too, or on more devices."
        : `Point ${fitting + 1} fits, with ${memoryText(neededBytes(fitting))} and ${timeText(points.time_us[fitting])} per step.`));
  }
  if (at === data.chosen) marks.push("This is the plan that was chosen.");
  if (at === data.turning_point) marks.push("The turning point: up to here memory buys much time, beyond it little.");
  if (at === fastestWithin(Infinity)) marks.push("No plan of this frontier is faster.");
  else if (at + 1 < count) marks.push(`The next faster plan, point ${at + 2}: ${beside(points.time_us[at + 1], neededBytes(at + 1))}.`);
  const smaller = fastestWithin(0.9 * neededBytes(at)), slower = slowerBy(0.1);
  if (smaller !== null) marks.push(`10% less memory: ${beside(points.time_us[smaller], neededBytes(smaller))} (point ${smaller + 1}).`);
  else marks.push(at === comparable.find((i) => neededBytes(i) === least) ? "None needs less memory." : `None needs 10% less memory: the least is ${memoryText(least)}.`);
  if (slower !== null) marks.push(`10% more time would save ${memoryText(neededBytes(at) - neededBytes(slower))} (point ${slower + 1}).`);
  const parallel = data.baselines.find((each) => each.name === "data-parallel");
  if (parallel && parallel.points[0].peak_bytes !== undefined) {
    const {time_us: time, peak_bytes: peak} = parallel.points[0];
    marks.push(`Data parallelism: ${timeText(time)}, peak ${memoryText(peak)}: ${beside(time, peak)}.`);
  }
  if (count < 2) marks.splice(has && neededBytes(at) > has ? 1 : 0, marks.length, whole.stages
    ? "This is one stage by itself, its micro-batches one after the other: its time has no waiting, and its peak is that of one micro-batch. What those in flight need together is in the table above."
    : root.plans ? "This plan has no stages." : "This report is of one plan; a frontier's has all plans to choose from.");
  if (data.views[at]) marks.push(data.views[at].sentences[0]);
  byId("around").replaceChildren(...marks.map((text) => element("li", text)));
}

// The point that needs the least memory of those that take at most some share more time; null if none needs less.
function slowerBy(share) {
  const most = data.points.time_us[state.point] * (1 + share);
  let best = state.point;
  for (const point of comparable) if (data.points.time_us[point] <= most && neededBytes(point) < neededBytes(best)) best = point;
  return best === state.point ? null : best;
}

function drawPlan() {
  const at = state.point;
  bars("time-bars", data.time_parts.map((part) => ({name: part.name, part: part.part, amount: part.time_us[at]})),
    data.points.time_us[at], timeText, "time per step");
  bars("memory-bars", data.memory_parts.map((part) => ({name: part.name, amount: part.bytes[at]})),
    data.points.sum_bytes[at], memoryText, "the paper's sum, per device");
  drawPeakUse(at);
  state.rows = rowsOf(data, at);
  drawTable(data, state);
  const shown = state.shown && state.rows.find((row) => row.name === state.shown);
  if (shown) drawOperator(data, state, shown);
}

// What is alive at the peak, by use: known where the step is stored, and of a plan's own file.
function drawPeakUse(at) {
  const peak = data.views[at] ? data.views[at].memory : data.peaks[at];
  byId("peak-use").hidden = !peak;
  byId("no-peak-use").hidden = Boolean(peak);
  if (!peak) {
    byId("no-peak-use").textContent = Object.keys(data.views).length
      ? `What is alive at the peak of ${memoryText(data.points.peak_bytes[at])} isn't stored for this point; the section on the step leads to those for which it is.`
      : "What is alive at the peak isn't in this file.";
    return;
  }
  bars("peak-use-bars", Object.entries(peak.peak_by_use).map(([name, amount]) => ({name, amount})), peak.peak_bytes, memoryText, "peak of a step");
}

function viewButtons(id, what) {
  const stored = Object.keys(data.views).map(Number).sort((a, b) => a - b);
  const place = byId(id);
  place.replaceChildren(element("p", stored.length
    ? `${what} stored for ${stored.length} of ${count} points; the nearest are:`
    : `${what} not in this file; search ${whole.stages ? "--stages N --report OUT.html shows it" : "--frontier stores it"}, and plan.report of a plan that was just found.`, {className: "lead"}));
  const near = [...stored].sort((a, b) => Math.abs(a - state.point) - Math.abs(b - state.point)).slice(0, 4).sort((a, b) => a - b);
  for (const point of near) {
    const button = element("button", `point ${point + 1}: ${memoryText(data.points.sum_bytes[point])}, ${timeText(data.points.time_us[point])}`, {type: "button"});
    button.addEventListener("click", () => select(point));
    place.append(button, " ");
  }
}

function drawStep() {
  const view = data.views[state.point], measured = measuredTimeline();
  const reach = Math.max(...[view && view.timeline, measured].filter(Boolean).map((each) => each.makespan_ns));
  drawMeasured();
  byId("measured-step").hidden = byId("predicted-caption").hidden = !measured;
  if (measured) drawTimeline("measured-chart", measured, reach);
  for (const [id, is] of [["with-step", Boolean(view)], ["with-why", Boolean(view)], ["no-step", !view], ["no-why", !view]]) byId(id).hidden = !is;
  if (!view) {
    viewButtons("no-step", "The step is");
    viewButtons("no-why", "The reasons are");
    return;
  }
  const memory = view.memory;
  byId("timeline-chart").parentElement.hidden = !view.timeline;
  byId("step-lead").textContent = (view.timeline
    ? `${whole.stages ? "This stage by itself, simulated" : "Simulated"} on ${data.hardware}: ${timeText(view.timeline.makespan_ns / 1e3)} from begin to end. `
    : whole.stages ? "When the stage runs is drawn above, with all others. " : "A model with several passes isn't simulated. ") +
    `Most memory is alive at instruction ${memory.peak_instruction + 1} of ${memory.instructions}` + (memory.peak_runs ? `, ${memory.peak_runs}.` : ".");
  // The two large charts are drawn after the rest is on the screen, so that a click is answered at once.
  delete document.documentElement.dataset.step;
  requestAnimationFrame(() => setTimeout(() => {
    if (data.views[state.point] !== view) return;
    if (view.timeline) drawTimeline("timeline-chart", view.timeline, reach);
    drawMemory(memory);
    document.documentElement.dataset.step = state.point;
  }));
  const tensors = Object.entries(memory.peak_by_tensor).map(([name, amount]) => ({name, amount}));
  const named = tensors.reduce((sum, row) => sum + row.amount, 0);
  if (memory.peak_bytes > named) tensors.push({name: "all else", amount: memory.peak_bytes - named});
  bars("peak-bars", tensors, memory.peak_bytes, memoryText, "peak");
  byId("sentences").replaceChildren(...view.sentences.map((text) => element("li", text)));
  drawDecisions(view.decisions);
}

function drawDecisions(decisions) {
  const head = element("thead"), line = element("tr"), body = element("tbody");
  for (const [title, isNumber] of [["operator", 0], ["chosen", 0], ["costs", 1], ["cheapest other choice", 0], ["time", 1], ["memory", 1]]) {
    line.append(element("th", title, {scope: "col", className: isNumber ? "number" : ""}));
  }
  head.append(line);
  for (const each of decisions) {
    const row = element("tr"), other = each.other;
    row.append(element("td", `${each.operator} (${each.type})` + (each.source ? `, ${each.source}` : "") + (each.alike ? `, and ${each.alike} alike` : "")), element("td", each.words),
      element("td", timeText(each.time_us), {className: "number"}));
    row.append(element("td", other ? other.words + (other.is_rematerialized ? ", computed again" : "") : "there is none"));
    row.append(element("td", other ? (other.time_us >= 0 ? "+" : "") + timeText(other.time_us) : "", {className: "number"}));
    row.append(element("td", other ? (other.sum_bytes >= 0 ? "+" : "") + memoryText(other.sum_bytes) : "", {className: "number"}));
    body.append(row);
  }
  byId("decisions").replaceChildren(head, body);
}

// The measured step, if it is one of the selected point.
function measuredTimeline() {
  return data.measured && data.measured.point === state.point ? data.measured.timeline : null;
}

function drawMeasured() {
  const measured = data.measured;
  if (!measured) return;
  const table = element("table"), head = element("thead"), body = element("tbody"), line = element("tr");
  for (const title of ["what", "predicted", "measured", "ratio"]) line.append(element("th", title, {scope: "col", className: title === "what" ? "" : "number"}));
  head.append(line);
  for (const [key, text] of [["step_us", timeText], ["compute_us", timeText], ["network_us", timeText], ["memory_bytes", memoryText]]) {
    const row = measured[key], seen = key !== "memory_bytes" || row.measured, cells = element("tr");
    cells.append(element("td", row.name), ...[text(row.predicted), seen ? text(row.measured) : "not measured", seen && row.predicted ? (row.measured / row.predicted).toFixed(2) : ""]
      .map((cell) => element("td", cell, {className: "number"})));
    body.append(cells);
  }
  table.append(head, body);
  byId("measured").replaceChildren(element("h3", "Measured by tensoropt check" + (count > 1 ? `, of point ${measured.point + 1}` : "")), table);
  if (count > 1 && measured.point !== state.point) {
    const button = element("button", `show point ${measured.point + 1}`, {type: "button"});
    button.addEventListener("click", () => select(measured.point));
    byId("measured").append(button);
  }
}

function drawLimit(note) {
  byId("limit-amount").textContent = state.limit === null ? "none" : memoryText(state.limit);
  byId("limit").setAttribute("aria-valuetext", byId("limit-amount").textContent);
  byId("limit-note").textContent = note || "";
}

function select(point) {
  state.point = point;
  byId("point").value = point;
  byId("point-number").textContent = `${point + 1} of ${count}`;
  byId("point").setAttribute("aria-valuetext", `${point + 1} of ${count}`);
  if (count > 1) moveSelection(state);
  drawCards();
  drawPlan();
  drawStep();
}

function limitTo(limit) {
  state.limit = limit;
  const point = fastestWithin(limit);
  drawLimit(point === null ? `no plan fits: the least is ${memoryText(least)}` : "");
  byId("limit").value = Math.round(1000 * Math.min(1, Math.max(0, (limit - least) / (highest - least || 1))));
  if (point === null) moveSelection(state); else select(point);
}

function drawNames() {
  byId("title").textContent = data.model || data.title;
  byId("subtitle").textContent = (whole.stages ? `stage ${whole.stages.findIndex((stage) => stage.report === data)}, one of ${whole.stages.length}, on ` : "") +
    `${data.devices} device${data.devices > 1 ? "s" : ""} ${data.mesh} of ${data.hardware}` +
    (data.micro_batches > 1 ? `, ${data.micro_batches} micro-batches` : "") + `; ${data.title}`;
  byId("frontier-lead").textContent = data.summary;
  if (whole.stages) byId("frontier-title").textContent = "The chosen stage";
  const assumed = Object.entries(data.assumed).flatMap(([key, value]) => typeof value === "object" && value !== null && key === "provenance"
    ? Object.entries(value) : [[key, typeof value === "object" ? JSON.stringify(value) : String(value)]]);
  byId("assumptions").replaceChildren(...assumed.flatMap(([key, value]) => [element("dt", key.replaceAll("_", " ")), element("dd", String(value))]));
}

function showStage(number) {
  data = whole.stages[number].report;
  Object.assign(state, {point: data.chosen, rank: data.first_rank, shown: null, open: new Set()});
  byId("operator").hidden = true;
  drawStages(whole, number, showStage);
  drawNames();
  select(state.point);
}

function start() {
  drawNames();
  if (root.plans) drawPoints(root, shownPoint);
  if (whole.stages) drawStages(whole, 0, showStage);
  byId("controls").hidden = count < 2;
  byId("frontier-chart").parentElement.hidden = count < 2;
  byId("point").max = count - 1;
  byId("point").addEventListener("input", () => select(Number(byId("point").value)));
  byId("limit").addEventListener("input", () => limitTo(least + (highest - least) * Number(byId("limit").value) / 1000));
  byId("limit-text").addEventListener("change", () => {
    const limit = parseMemory(byId("limit-text").value);
    if (limit === null) drawLimit("write an amount such as 16 GB or 15 GiB"); else limitTo(limit);
  });
  byId("axis").hidden = !hasPeaks || count < 2;
  for (const one of document.getElementsByName("axis")) one.addEventListener("change", () => {
    state.axis = one.value;
    drawFrontier(data, state);
  });
  byId("search").addEventListener("input", () => { state.search = byId("search").value.trim(); drawTable(data, state); });
  byId("unfold").addEventListener("click", () => {
    state.allOpen = !state.allOpen;
    state.open.clear();
    byId("unfold").textContent = state.allOpen ? "Fold all layers" : "Unfold all layers";
    drawTable(data, state);
  });
  byId("scheme").addEventListener("click", () => setScheme(document.documentElement.dataset.scheme === "dark" ? "light" : "dark"));
  drawHeadings(data, state);
  drawLimit();
  setScheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  if (count > 1) byId("frontier-chart").on("plotly_click", (event) => {
    const chosen = event.points.find((point) => point.customdata !== undefined);
    if (chosen) select(Number(chosen.customdata));
  });
}

function setScheme(scheme) {
  document.documentElement.dataset.scheme = scheme;
  byId("scheme").textContent = scheme === "dark" ? "Light" : "Dark";
  if (count > 1) drawFrontier(data, state);
  if (root.plans) drawPointsChart(root, shownPoint);
  if (whole.stages) drawTimeline("stages-chart", whole.timeline, whole.timeline.makespan_ns);
  drawCurve(data);
  select(state.point);
  document.documentElement.dataset.drawn = "yes";
}

start();
