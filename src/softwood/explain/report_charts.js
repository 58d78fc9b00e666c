// Charts as SVG, and the elements that they are made of; they know nothing of the report.

const byId = (id) => document.getElementById(id);

function add(parent, name, attributes = {}, text = "") {
  const isDrawn = name === "svg" || parent instanceof SVGElement;
  const element = isDrawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== "") element.textContent = text;
  return parent.appendChild(element);
}

const percent = (share) => (100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0) + "%";
const signed = (value) => (value >= 0 ? "+" : "") + Number(value).toPrecision(3);
const minus = (text) => String(text).replace("-", "−");
const thousands = (value) => Math.round(value).toLocaleString("en");
const day = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 10);

// At most five digits, without an exponent where the number is short.
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e5 && size < 1e15) return minus(value.toLocaleString("en", {notation: "compact", maximumSignificantDigits: 3}));
  return minus(Number(value.toPrecision(4)));
}

function colours(n) {
  return Array.from({length: n}, (_, i) => n === 1 ? "var(--split)" : `hsl(${Math.round(360 * i / n)} 60% var(--lightness))`);
}

// Round numbers from low to high, about five of them; whole ones if asked for.
function ticks(low, high, whole) {
  const rough = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// Low and high of some numbers, with a little room; never empty.
function rangeOf(values, room = 0) {
  const low = Math.min(...values), high = Math.max(...values), extra = (high - low || Math.abs(high) || 1) * room;
  return [low - extra, high + extra];
}

// Lines, dots and bars over two axes. A series is {label, points: [[x, y]], colour, and dots, line, hollow or dashed};
// a point of an interval has [x, y, low, high]. `histogram` is {edges, rows}, drawn along the bottom. Returns the place
// of a point, for what is added later.
function chart(parent, series, {xLabel, yLabel, xRange, yRange, diagonal, zero, whole, histogram, xText}) {
  const all = series.flatMap((one) => one.points);
  const ys = all.flatMap((p) => p.slice(1).filter((y) => y !== null));
  const [x0, x1] = xRange || rangeOf(all.map((p) => p[0]));
  let [y0, y1] = yRange || rangeOf(ys);
  if (y1 <= y0) y1 = y0 + 1;
  const width = 360, height = 230, left = 60, bottom = 38, top = 8, right = 14;
  const px = (x) => left + (width - left - right) * (x - x0) / ((x1 - x0) || 1);
  const py = (y) => height - bottom - (height - bottom - top) * (y - y0) / (y1 - y0);
  const svg = add(parent, "svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yLabel} by ${xLabel}`});
  if (histogram) {
    const most = Math.max(...histogram.rows) || 1;
    histogram.rows.forEach((rows, i) => {
      const from = px(histogram.edges[i]), to = px(histogram.edges[i + 1]), tall = 0.3 * (height - bottom - top) * rows / most;
      add(add(svg, "rect", {x: from, y: height - bottom - tall, width: Math.max(0, to - from - 0.6), height: tall, fill: "var(--bar)"}), "title", {}, `${thousands(rows)} rows`);
    });
  }
  for (const y of ticks(y0, y1, false)) {
    add(svg, "line", {x1: left, x2: width - right, y1: py(y), y2: py(y), class: "axis"});
    add(svg, "text", {x: left - 4, y: py(y) + 4, "text-anchor": "end"}, short(y));
  }
  for (const x of xText ? [x0, (x0 + x1) / 2, x1] : ticks(x0, x1, whole)) {
    add(svg, "line", {x1: px(x), x2: px(x), y1: height - bottom, y2: height - bottom + 3, class: "axis"});
    add(svg, "text", {x: px(x), y: height - bottom + 14, "text-anchor": xText && x === x1 ? "end" : xText && x === x0 ? "start" : "middle"}, xText ? xText(x) : short(x));
  }
  add(svg, "text", {x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle", class: "quiet"}, xLabel);
  const middle = (height - bottom + top) / 2;
  add(svg, "text", {x: 11, y: middle, transform: `rotate(-90 11 ${middle})`, "text-anchor": "middle", class: "quiet"}, yLabel);
  if (diagonal) {
    const from = Math.max(x0, y0), to = Math.min(x1, y1);
    add(svg, "line", {x1: px(from), y1: py(from), x2: px(to), y2: py(to), class: "guide"});
  }
  if (zero) add(svg, "line", {x1: px(x0), y1: py(0), x2: px(x1), y2: py(0), class: "guide"});
  for (const one of series) drawSeries(svg, one, px, py);
  addLegend(parent, series);
  return {svg, px, py};
}

function drawSeries(svg, one, px, py) {
  if (!one.dots || one.line) {
    const points = one.points.map((p) => `${px(p[0]).toFixed(1)},${py(p[1]).toFixed(1)}`).join(" ");
    add(svg, "polyline", {points, fill: "none", stroke: one.colour, "stroke-width": 1.8, "stroke-dasharray": one.dashed ? "2 4" : "none"});
  }
  if (!one.dots) return;
  for (const p of one.points) {
    if (p.length > 3) add(svg, "line", {x1: px(p[0]), x2: px(p[0]), y1: py(p[2]), y2: py(p[3]), stroke: one.colour, "stroke-width": 1.4});
    add(svg, "circle", {cx: px(p[0]), cy: py(p[1]), r: one.line || one.hollow ? 3.2 : 2.5, fill: one.hollow ? "var(--card)" : one.colour,
      stroke: one.hollow ? one.colour : "none", "stroke-width": 1.4, "fill-opacity": one.line || one.hollow ? 1 : 0.55});
  }
}

function addLegend(parent, series) {
  const named = series.filter((one) => one.label);
  if (!named.length) return;
  const legend = add(parent, "p", {class: "soft"});
  for (const one of named) {
    add(legend, "span", {style: `color:${one.colour}`, "aria-hidden": "true"}, one.hollow ? "○ " : one.dots ? "● " : "━ ");
    add(legend, "span", {}, one.label + "\u2003");
  }
}

const clipped = (text, n) => text.length > n ? text.slice(0, n - 1) + "…" : text;

// One line per level: rows as a grey bar, values as dots on one axis. A series is {label, points: [[level, value]], colour, hollow}.
function levelChart(parent, levels, rows, series, {xLabel, xRange}) {
  const width = 360, left = 110, right = 14, step = 20, height = step * levels.length + 44;
  const [x0, x1] = xRange, most = Math.max(...rows) || 1;
  const px = (x) => left + (width - left - right) * (x - x0) / ((x1 - x0) || 1);
  const svg = add(parent, "svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${xLabel} by level`});
  for (const x of ticks(x0, x1, false)) {
    add(svg, "line", {x1: px(x), x2: px(x), y1: 4, y2: height - 38, class: "axis"});
    add(svg, "text", {x: px(x), y: height - 25, "text-anchor": "middle"}, short(x));
  }
  levels.forEach((level, i) => {
    const y = step * i + 16;
    const bar = add(svg, "rect", {x: left, y: y - 7, width: 0.4 * (width - left - right) * rows[i] / most, height: 14, fill: "var(--bar)"});
    add(bar, "title", {}, `${thousands(rows[i])} rows`);
    add(add(svg, "text", {x: left - 6, y: y + 4, "text-anchor": "end"}, clipped(level, 17)), "title", {}, level);
  });
  for (const one of series) {
    for (const [level, value] of one.points) {
      add(svg, "circle", {cx: px(value), cy: step * level + 16, r: one.hollow ? 3.4 : 4.2, fill: one.hollow ? "var(--card)" : one.colour, stroke: one.colour, "stroke-width": 1.4});
    }
  }
  add(svg, "text", {x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle", class: "quiet"}, xLabel);
  addLegend(parent, series.map((one) => ({...one, dots: true})));
}

// Horizontal bars of [name, value, text].
function bars(parent, entries, label) {
  const height = 22 * entries.length + 4, width = 390, start = 190;
  const largest = Math.max(...entries.map((entry) => Math.abs(entry[1]))) || 1;
  const svg = add(parent, "svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, style: "max-width: 32rem"});
  entries.forEach(([name, value, text], i) => {
    const place = {x: start - 6, y: 22 * i + 15, "text-anchor": "end"};
    add(add(svg, "text", place, clipped(name, 27)), "title", {}, name);
    add(svg, "rect", {x: start, y: 22 * i + 4, width: 130 * Math.abs(value) / largest, height: 14, fill: value >= 0 ? "var(--up)" : "var(--down)"});
    add(svg, "text", {x: start + 4 + 130 * Math.abs(value) / largest, y: 22 * i + 15}, text);
  });
}

// A table below a chart, for those who want the numbers, or cannot see the chart.
function numbersOf(parent, heads, lines) {
  const details = add(parent, "details");
  add(details, "summary", {}, "The numbers");
  const table = add(add(details, "div", {class: "scroll"}), "table");
  const head = add(add(table, "thead"), "tr");
  for (const name of heads) add(head, "th", {scope: "col", class: "number"}, name);
  const body = add(table, "tbody");
  for (const line of lines) {
    const row = add(body, "tr");
    for (const value of line) add(row, "td", {class: "number"}, value);
  }
}

