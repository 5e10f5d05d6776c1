// The stages of a plan that has some: which one the sections below show. When each runs is drawn by drawTimeline.

function drawStages(whole, shown, onSelect) {
  for (const id of ["stages", "to-stages"]) document.getElementById(id).hidden = false;
  document.getElementById("stages-lead").textContent = whole.summary;
  const head = element("thead"), line = element("tr"), body = element("tbody");
  for (const [title, isNumber] of [["stage", 0], ["devices", 0], ["ends with", 0], ["micro-batches in flight", 1], ["memory per device", 1], ["time by itself", 1], ["waits", 1]]) {
    line.append(element("th", title, {scope: "col", className: isNumber ? "number" : ""}));
  }
  head.append(line);
  const buttons = whole.stages.map((stage, number) => {
    const row = element("tr"), name = element("td"), button = element("button", `stage ${number}`, {type: "button"});
    button.setAttribute("aria-pressed", String(number === shown));
    button.addEventListener("click", () => onSelect(number));
    name.append(button);
    row.append(name, element("td", rangeText(stage.devices)), element("td", stage.last_operator || "(the end)"),
      ...[stage.in_flight, memoryText(stage.memory_bytes), timeText(stage.report.points.time_us[0]), percentText(stage.idle_share)]
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
