// Amounts as text, and what the texts of columns, layouts and meshes mean. The texts are those of the command line.

function short(value, digits) {
  return String(parseFloat(value.toPrecision(digits)));
}

function memoryText(bytes) {
  if (bytes === null || bytes === undefined) return "not known";
  const sign = bytes < 0 ? "-" : "";
  const size = Math.abs(bytes);
  for (const [unit, scale] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (size >= scale) return sign + (size < 999.5 * scale ? short(size / scale, 3) : Math.round(size / scale)) + " " + unit;
  }
  return sign + size + " B";
}

function timeText(us) {
  if (us === null || us === undefined) return "not known";
  for (const [unit, scale] of [["s", 1e6], ["ms", 1e3]]) {
    if (Math.abs(us) >= scale) return short(us / scale, 4) + " " + unit;
  }
  return short(us, 4) + " us";
}

function percentText(share) {
  return (100 * share).toFixed(1) + "%";
}

function signedPercent(change) {
  return (change >= 0 ? "+" : "") + percentText(change);
}

// The bytes that a text such as "16 GB" or "15GiB" names; null if it is none.
function parseMemory(text) {
  const match = /^\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(i?)b?\s*$/i.exec(text);
  if (!match) return null;
  const power = " kmgt".indexOf(match[2].toLowerCase() || " ");
  if (match[3] && !power) return null;
  return Math.round(parseFloat(match[1]) * (match[3] ? 1024 : 1000) ** power);
}

// The choice of one point in a column of runs: "0x8 1" are eight points with choice 0 and one with choice 1.
function choicesAt(columns, point) {
  return columns.map((text) => {
    let before = 0;
    for (const run of text.split(" ")) {
      const [choice, count] = run.split("x");
      before += count === undefined ? 1 : Number(count);
      if (point < before) return Number(choice);
    }
    return 0;
  });
}

// The tasks of a timeline as [class of devices, lane, start, duration, operator, kind]; in the text a start counts from the one before.
function tasksOf(timeline) {
  let start = 0;
  return timeline.tasks.split(";").filter(Boolean).map((text) => {
    const row = text.split(",").map(Number);
    start += row[2];
    row[2] = start;
    return row;
  });
}

// A layout's text as the axes of each dimension and those that are partial: "[ab, -] +c".
function parseLayout(text) {
  const [dims, partial] = text.slice(1).split("]");
  const splits = dims.trim() ? dims.split(",").map((dim) => dim.trim().replace("-", "").split("").filter(Boolean)) : [];
  return {splits, partial: partial.replace(" +", "").trim().split("").filter(Boolean)};
}

// The index of a rank along some axes; the innermost axis of the mesh runs fastest.
function indexAlong(axes, names, rank) {
  const place = {};
  let rest = rank;
  for (const axis of [...axes].reverse()) {
    place[axis.name] = rest % axis.size;
    rest = Math.floor(rest / axis.size);
  }
  const size = Object.fromEntries(axes.map((axis) => [axis.name, axis.size]));
  return names.reduce((index, name) => index * size[name] + place[name], 0);
}

function blocksOf(axes, names) {
  const size = Object.fromEntries(axes.map((axis) => [axis.name, axis.size]));
  return names.reduce((count, name) => count * size[name], 1);
}

// What a rank holds of a tensor: first and last element of each dimension. Block i of n runs from i*d/n to (i+1)*d/n.
function heldBy(axes, layout, shape, rank) {
  return shape.map((extent, dim) => {
    const names = layout.splits[dim] || [];
    const blocks = blocksOf(axes, names);
    const index = indexAlong(axes, names, rank);
    return [Math.floor(index * extent / blocks), Math.floor((index + 1) * extent / blocks)];
  });
}
