// The table of operators: folded by layer, sortable, searchable; and the panel of one operator.

const COLUMNS = [
  ["name", "operator", false], ["type", "type", false], ["words", "config", false], ["memory", "memory", true],
  ["time", "compute", true], ["network", "network", true], ["ways", "collectives", false],
];
const MOST_FOUND = 400;

function element(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  Object.assign(made, attributes || {});
  return made;
}

// The rows of a point: what each operator has there, with the reshardings of what it takes.
function rowsOf(data, point) {
  const choices = choicesAt(data.columns, point);
  const rows = new Map();
  const row = (name, layer) => {
    if (!rows.has(name)) rows.set(name, {name, layer, type: "training step", words: "", memory: 0, time: 0, network: 0, ways: [], moved: []});
    return rows.get(name);
  };
  for (const operator of data.operators) {
    const chosen = operator.choices[choices[operator.column]];
    Object.assign(row(operator.name, operator.layer), {
      type: operator.type, words: chosen.words + (chosen.is_rematerialized ? ", computed again" : ""), config: chosen.config,
      memory: chosen.sum_bytes, time: chosen.time_us, results: chosen.results, source: operator.source, shape: operator.shape,
    });
  }
  for (const part of data.reshardings) {
    for (const number of part.choices[choices[part.column]]) {
      const moved = part.pool[number];
      const consumer = row(moved.consumer, moved.layer);
      consumer.network += moved.time_us;
      consumer.memory += moved.accumulator_bytes + (moved.is_regathered ? 0 : moved.copy_bytes);
      consumer.ways.push(...moved.ways);
      consumer.moved.push(moved);
    }
  }
  return [...rows.values()];
}

function countedText(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${count} ` : "") + name.replaceAll("_", "-")).join(", ");
}

function sorted(rows, state) {
  const {key, down} = state.sort;
  const of = (row) => key === "ways" ? row.ways.length : row[key];
  const order = (a, b) => of(a) < of(b) ? -1 : of(a) > of(b) ? 1 : 0;
  return [...rows].sort((a, b) => (down ? -1 : 1) * order(a, b));
}

function layersOf(rows) {
  const layers = new Map();
  for (const row of rows) {
    const layer = layers.get(row.layer) || {name: row.layer, type: "", words: "", memory: 0, time: 0, network: 0, ways: [], rows: []};
    layers.set(row.layer, layer);
    layer.rows.push(row);
    for (const key of ["memory", "time", "network"]) layer[key] += row[key];
    layer.ways = layer.ways.concat(row.ways);
  }
  for (const layer of layers.values()) {
    layer.type = `${layer.rows.length} operator${layer.rows.length > 1 ? "s" : ""}`;
    const said = new Map();
    for (const row of layer.rows) if (row.time && row.words) said.set(row.words, (said.get(row.words) || 0) + row.time);
    const most = [...said].sort((a, b) => b[1] - a[1]);
    layer.words = most.length ? most[0][0] + (most.length > 1 ? ` and ${most.length - 1} other${most.length > 2 ? "s" : ""}` : "") : "";
  }
  return [...layers.values()];
}

function tableRow(row, isLayer, isOpen, onClick) {
  const line = element("tr", null, {className: isLayer ? "layer" : "inner"});
  const name = element("td");
  const button = element("button", (isLayer ? (isOpen ? "▾ " : "▸ ") : "") + row.name, {type: "button"});
  if (isLayer) button.setAttribute("aria-expanded", String(isOpen));
  button.addEventListener("click", onClick);
  name.append(button);
  line.append(name, element("td", row.type), element("td", row.words));
  line.append(element("td", row.memory ? memoryText(row.memory) : "", {className: "number"}));
  line.append(element("td", row.time ? timeText(row.time) : "", {className: "number"}));
  line.append(element("td", row.network ? timeText(row.network) : "", {className: "number"}));
  line.append(element("td", isLayer ? (row.ways.length ? String(row.ways.length) : "") : countedText(row.ways)));
  return line;
}

function drawTable(data, state) {
  const body = document.getElementById("rows");
  const wanted = state.search.toLowerCase();
  const found = state.rows.filter((row) => !wanted ||
    [row.name, row.type, row.words, row.source || ""].some((text) => text.toLowerCase().includes(wanted)));
  const lines = [];
  let shown = 0;
  for (const layer of sorted(layersOf(found), state)) {
    const isOpen = Boolean(wanted) || state.open.has(layer.name) || state.allOpen;
    lines.push(tableRow(layer, true, isOpen, () => {
      state.allOpen = false;
      if (state.open.has(layer.name)) state.open.delete(layer.name); else state.open.add(layer.name);
      drawTable(data, state);
      [...body.querySelectorAll(".layer button")].find((each) => each.textContent.slice(2) === layer.name)?.focus();
    }));
    if (!isOpen) continue;
    for (const row of sorted(layer.rows, state)) {
      if (shown++ >= MOST_FOUND) break;
      lines.push(tableRow(row, false, false, () => drawOperator(data, state, row)));
    }
  }
  body.replaceChildren(...lines);
  const more = shown > MOST_FOUND ? `, of which ${MOST_FOUND} are shown` : "";
  document.getElementById("found").textContent = wanted ? `${found.length} of ${state.rows.length} operators${more}` : "";
}

function drawHeadings(data, state) {
  const line = document.getElementById("headings");
  line.replaceChildren(...COLUMNS.map(([key, title, isNumber]) => {
    const heading = element("th", null, {scope: "col", className: isNumber ? "number" : ""});
    const isSorted = state.sort.key === key;
    heading.setAttribute("aria-sort", isSorted ? (state.sort.down ? "descending" : "ascending") : "none");
    const button = element("button", title + (isSorted ? (state.sort.down ? " ↓" : " ↑") : ""), {type: "button"});
    button.addEventListener("click", () => {
      state.sort = {key, down: isSorted ? !state.sort.down : isNumber};
      drawHeadings(data, state);
      drawTable(data, state);
      [...line.querySelectorAll("button")][COLUMNS.findIndex((each) => each[0] === key)].focus();
    });
    heading.append(button);
    return heading;
  }));
}

// A layout as a small grid of shards: one cell for each block of the two dimensions that are split into the most blocks.
function gridOf(data, layout, rank) {
  const counts = layout.splits.map((names) => blocksOf(data.axes, names));
  const split = counts.map((count, dim) => [count, dim]).filter(([count]) => count > 1).sort((a, b) => b[0] - a[0]).slice(0, 2);
  const [down, across] = split.map((each) => each[1]).sort((a, b) => a - b);
  const table = element("table", null, {className: "grid"});
  const cells = new Map();
  const own = (of) => [down, across].map((dim) => dim === undefined ? 0 : indexAlong(data.axes, layout.splits[dim], of - data.first_rank)).join("/");
  for (let each = data.first_rank; each < data.first_rank + data.devices; each++) cells.set(own(each), [...(cells.get(own(each)) || []), each]);
  const rows = down === undefined ? 1 : counts[down];
  const columns = across === undefined ? 1 : counts[across];
  for (let r = 0; r < Math.min(rows, 16); r++) {
    const line = element("tr");
    for (let c = 0; c < Math.min(columns, 16); c++) {
      const ranks = cells.get(`${r}/${c}`) || [];
      const text = ranks.length > 4 ? `${ranks[0]}, ${ranks[1]} .. ${ranks[ranks.length - 1]}` : ranks.join(", ");
      line.append(element("td", text, {className: ranks.includes(rank) ? "mine" : ""}));
    }
    table.append(line);
  }
  const named = [down, across].filter((dim) => dim !== undefined).map((dim, i) => `${i ? "across" : "down"}: dimension ${dim}`);
  return [table, named.length ? `each cell a block with the ranks that hold it; ${named.join(", ")}` : "every rank holds all of it"];
}

function drawOperator(data, state, row) {
  const panel = document.getElementById("operator");
  state.shown = row.name;
  panel.hidden = false;
  const parts = [element("h4", `${row.name} (${row.type})`)];
  parts.push(element("p", `${row.words}${row.config && row.config !== "-" ? ` [${row.config}]` : ""}` + (row.source ? `, from ${row.source}` : ""), {className: "note"}));
  if (row.results && row.results.length) {
    const layout = parseLayout(row.results[0]);
    const grids = element("div", null, {className: "grids"});
    const left = element("div");
    const [grid, told] = gridOf(data, layout, state.rank);
    left.append(element("div", `layout ${row.results[0]}` + (row.shape ? ` of shape ${row.shape.join(" x ")}` : "")), grid, element("div", told, {className: "note"}));
    if (layout.partial.length) left.append(element("div", `a sum over ${layout.partial.join("")} is still to be added up`, {className: "note"}));
    const right = element("div");
    const label = element("label", "rank ", {htmlFor: "rank"});
    const choose = element("input", null, {id: "rank", type: "number", min: data.first_rank, max: data.first_rank + data.devices - 1, value: state.rank});
    const held = element("div", null, {id: "held"});
    const tell = () => {
      held.textContent = row.shape
        ? `rank ${state.rank} holds [${heldBy(data.axes, layout, row.shape, state.rank - data.first_rank).map(([from, to]) => `${from}:${to}`).join(", ")}]`
        : "this file doesn't tell the shape; the report of a frontier does";
    };
    choose.addEventListener("input", () => {
      const rank = Math.trunc(Number(choose.value));
      if (choose.value === "" || rank < data.first_rank || rank >= data.first_rank + data.devices) return;
      state.rank = rank;
      grid.replaceChildren(...gridOf(data, layout, rank)[0].children);
      tell();
    });
    tell();
    right.append(label, choose, held);
    grids.append(left, right);
    parts.push(grids);
  }
  if (row.moved.length) {
    parts.push(element("h4", "what is brought to it"));
    const list = element("ul");
    for (const moved of row.moved) {
      list.append(element("li", `${moved.tensor} from ${moved.forward[0]} to ${moved.forward[1]}: ${moved.words}, ${timeText(moved.time_us)}` +
        (moved.copy_bytes ? `, a copy of ${memoryText(moved.copy_bytes)}${moved.is_regathered ? " gathered again" : ""}` : "")));
    }
    parts.push(list);
  }
  panel.replaceChildren(...parts);
  panel.scrollIntoView({block: "nearest"});
}
