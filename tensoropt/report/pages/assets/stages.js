// The points of a frontier with stages, and the stages of a plan that has some: which of them the sections below show. When
// each stage runs is drawn by drawTimeline.

// The point in the page's address, which counts from 1, if its plan is in the page; else the one that was chosen.
function pointOfAddress(root) {
  const number = Number(new URLSearchParams(location.search).get("point")) - 1;
  return root.plans[number] ? number : root.chosen;
}

function nameOfStages(count) {
  return count > 1 ? `${count} stages` : "without stages";
}

function drawPoints(root, shown) {
  for (const id of ["points", "to-points"]) document.getElementById(id).hidden = false;
  document.getElementById("points-lead").textContent = `Point ${shown + 1} of ${root.frontier.length} is shown below; choose another one here.`;
  document.getElementById("points-summary").textContent = root.summary;
  const withPlans = root.frontier.map((_, number) => number).filter((number) => root.plans[number]);
  document.getElementById("points-note").textContent = withPlans.length < root.frontier.length
    ? `The plans of ${withPlans.length} points are in this page; the frontier's file has all of them.` : "";
  const head = element("thead"), line = element("tr"), body = element("tbody");
  for (const [title, isNumber] of [["point", 0], ["stages", 1], ["micro-batches", 1], ["peak per device", 1], ["time per step", 1], ["waits", 1], ["gap", 1]]) {
    line.append(element("th", title, {scope: "col", className: isNumber ? "number" : ""}));
  }
  head.append(line);
  for (const number of withPlans) {
    const point = root.frontier[number], row = element("tr"), name = element("td");
    const link = element("a", `point ${number + 1}` + (number === root.chosen ? ", chosen" : ""), {href: `?point=${number + 1}`});
    if (number === shown) link.setAttribute("aria-current", "true");
    name.append(link);
    row.append(name, ...[point.stages > 1 ? point.stages : "none", point.micro_batches, memoryText(point.peak_bytes), timeText(point.time_us),
      point.stages > 1 ? percentText(point.idle_share) : "", percentText(point.gap)].map((text) => element("td", String(text), {className: "number"})));
    body.append(row);
  }
  document.getElementById("points-table").replaceChildren(head, body);
}

function drawPointsChart(root, shown) {
  const points = root.frontier;
  const [scale, unit] = timeScale(Math.max(...points.map((point) => point.time_us)));
  const [bytes, size] = memoryScale(Math.max(...points.map((point) => point.peak_bytes)));
  const x = points.map((point) => point.peak_bytes / bytes), y = points.map((point) => point.time_us / scale);
  const told = points.map((point, i) => `point ${i + 1}: ${nameOfStages(point.stages)}, ${point.micro_batches} micro-batch${point.micro_batches > 1 ? "es" : ""}` +
    `<br>peak ${memoryText(point.peak_bytes)} per device<br>${timeText(point.time_us)} per step`);
  const traces = [{x, y, mode: "lines", showlegend: false, hoverinfo: "skip", line: {shape: "hv", color: ink("soft"), width: 1}}];
  const of = (numbers, name, marker) => ({
    x: numbers.map((i) => x[i]), y: numbers.map((i) => y[i]), text: numbers.map((i) => told[i]), customdata: numbers,
    mode: "markers", name, hoverinfo: "text", marker,
  });
  [...new Set(points.map((point) => point.stages))].sort((a, b) => a - b).forEach((count, number) => {
    const numbers = points.map((_, i) => i).filter((i) => points[i].stages === count);
    traces.push(of(numbers, nameOfStages(count), {size: 8, color: USE_COLOURS[number % USE_COLOURS.length]}));
  });
  traces.push(...baselineTraces(root.baselines, (point) => point.peak_bytes, bytes, scale));
  traces.push(of([root.chosen], "chosen", {size: 13, symbol: "star", color: ink("ink")}));
  traces.push(of([shown], "shown below", {size: 16, symbol: "circle-open", color: ink("ink"), line: {width: 2}}));
  const layout = chartLayout(`peak memory per device (${size})`, `time per step (${unit})`, {hovermode: "closest"});
  const far = reachNear(layout, x, y, root.baselines.flatMap((each) => each.points).map((point) => [point.peak_bytes / bytes, point.time_us / scale]));
  document.getElementById("points-far").textContent = far;
  drawChart("points-chart", traces, layout);
  const chart = document.getElementById("points-chart");
  chart.removeAllListeners("plotly_click");
  chart.on("plotly_click", (event) => {
    const found = event.points.find((point) => root.plans[point.customdata]);
    if (found) location.search = `?point=${Number(found.customdata) + 1}`;
  });
}

function drawStages(whole, shown, onSelect) {
  for (const id of ["stages", "to-stages"]) document.getElementById(id).hidden = false;
  document.getElementById("stages-lead").textContent = whole.summary;
  const head = element("thead"), line = element("tr"), body = element("tbody");
  for (const [title, isNumber] of [["stage", 0], ["devices", 0], ["ends with", 0], ["micro-batches in flight", 1], ["deferred", 1], ["memory per device", 1], ["time by itself", 1], ["waits", 1]]) {
    line.append(element("th", title, {scope: "col", className: isNumber ? "number" : ""}));
  }
  head.append(line);
  const buttons = whole.stages.map((stage, number) => {
    const row = element("tr"), name = element("td"), button = element("button", `stage ${number}`, {type: "button"});
    button.setAttribute("aria-pressed", String(number === shown));
    button.addEventListener("click", () => onSelect(number));
    name.append(button);
    row.append(name, element("td", rangeText(stage.devices)), element("td", stage.last_operator || "(the end)"),
      ...[stage.in_flight, stage.deferred, memoryText(stage.peak_bytes), timeText(stage.report.points.time_us[0]), percentText(stage.idle_share)]
        .map((text) => element("td", String(text), {className: "number"})));
    body.append(row);
    return button;
  });
  const table = document.getElementById("stages-table"), hadFocus = table.contains(document.activeElement);
  table.replaceChildren(head, body);
  if (hadFocus) buttons[shown].focus();
}

// Ranks of one stage, which follow each other, as text.
function rangeText(ranks) {
  return ranks.length > 1 ? `${ranks[0]}..${ranks[ranks.length - 1]}` : String(ranks[0]);
}
