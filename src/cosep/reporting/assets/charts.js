"use strict";
// Small parts that all pages draw with. Whatever a user named goes through text nodes only, never through markup.

const SVG = "http://www.w3.org/2000/svg";

function node(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(child));
  }
  return element;
}
const h = (tag, attributes, ...children) => node(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => node(document.createElementNS(SVG, tag), attributes, children);
const read = (id) => JSON.parse(document.getElementById(id).textContent);

// A name inside a sentence: isolated, so that right-to-left text does not turn the sentence around.
const named = (text) => "\u2068" + text + "\u2069";
const clipped = (text, most) => {
  const letters = [...text.replace(/\s+/g, " ")];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
};
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1e5 || (size < 1e-3 && size > 0)) return value.toExponential(digits - 1);
  return String(Number(value.toPrecision(digits + (size >= 1 ? 1 : 0))));
}
const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : (100 * value).toFixed(digits) + " %");
function large(value) {
  if (value === null || value === undefined) return "–";
  for (const [least, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) if (value >= least) return (value / least).toFixed(2) + unit;
  return String(value);
}

const scale = (low, high, from, to) => (value) => (high === low ? (from + to) / 2 : from + ((value - low) / (high - low)) * (to - from));
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value !== null && value !== undefined) { if (value < low) low = value; if (value > high) high = value; }
  return low > high ? [0, 1] : [low, high];
}
function padded([low, high], share = 0.06) {
  const room = (high - low) * share || Math.abs(high) * share || 1;
  return [low - room, high + room];
}
function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= rough) || 10);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) found.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  return found;
}
const whole = (values) => values.filter(Number.isInteger);

// Axes of a plot: ticks with faint lines across, and a name for each.
function axes({ width, height, margin, x, y, xTicks, yTicks, xName, yName, xText = num, yText = num }) {
  const bottom = height - margin.bottom, right = width - margin.right;
  return s("g", {},
    yTicks.map((t) => [s("line", { class: "gridline", x1: margin.left, x2: right, y1: y(t), y2: y(t) }), s("text", { x: margin.left - 6, y: y(t) + 4, "text-anchor": "end" }, yText(t))]),
    xTicks.map((t) => s("text", { x: x(t), y: bottom + 17, "text-anchor": "middle" }, xText(t))),
    s("line", { class: "axis", x1: margin.left, x2: right, y1: bottom, y2: bottom }),
    xName && s("text", { x: (margin.left + right) / 2, y: height - 5, "text-anchor": "middle" }, xName),
    yName && s("text", { x: margin.left - 40, y: 12 }, yName));
}
function path(xs, ys, x, y) {
  let d = "", pen = "M";
  xs.forEach((value, i) => {
    if (ys[i] === null || ys[i] === undefined) { pen = "M"; return; }
    d += `${pen}${x(value).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
    pen = "L";
  });
  return d || "M0 0";
}

// A line for each row [name, before, after]: how far it went.
function dumbbells(width, rows, { name, text, low, high, about }) {
  const step = 20, longest = Math.max(...rows.map((row) => [...row[0]].length));
  const margin = { left: Math.min(longest * 7 + 16, 200, width * 0.4), right: 22, top: 8, bottom: 40 }, height = margin.top + margin.bottom + rows.length * step;
  let [from, to] = padded(extent([...rows.flatMap((row) => [row[1], row[2]]), ...(low === undefined ? [] : [low])]), 0.06);
  if (low !== undefined) from = low;
  if (high !== undefined) to = Math.min(to, high);
  const x = scale(from, to, margin.left + 8, width - margin.right), letters = Math.max(4, Math.floor((margin.left - 14) / 7)), y = (i) => margin.top + step * (i + 0.5);
  const svg = s("svg", { width, height },
    axes({ width, height, margin, x, y: () => 0, xTicks: ticks(from, to, width / 110), yTicks: [], xName: width < 500 ? clipped(name, 44) : name, xText: text }),
    rows.map((row, i) => [s("line", { class: "gridline", x1: margin.left, x2: width - margin.right, y1: y(i), y2: y(i) }), s("text", { x: margin.left - 6, y: y(i) + 4, "text-anchor": "end" }, named(clipped(row[0], letters))),
      s("line", { class: "link", x1: x(row[1]), x2: x(row[2]), y1: y(i), y2: y(i) }), s("circle", { class: "gone", cx: x(row[1]), cy: y(i), r: 4.5 }), s("circle", { class: "dot", cx: x(row[2]), cy: y(i), r: 4.5 })]));
  nearest(svg, rows.map((row, i) => [(x(row[1]) + x(row[2])) / 2, y(i)]), (i) => about(rows[i]), 160);
  return svg;
}

// Colours of a quantity between 0 and 1, from the page's own ramp (which differs between light, dark and paper).
function ramp() {
  const stops = [0, 1, 2, 3, 4].map((i) => style("--ramp" + i)).map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return (share) => {
    const place = Math.min(Math.max(share, 0), 1) * 4, low = Math.min(Math.floor(place), 3), part = place - low;
    return stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * part));
  };
}
const css = (rgb) => `rgb(${rgb.join(" ")})`;
function rampKey(label, low, high) {
  const id = "ramp-" + label.replace(/\W+/g, "-");
  const stops = [0, 1, 2, 3, 4].map((i) => s("stop", { offset: i * 25 + "%", "stop-color": style("--ramp" + i) }));
  return h("li", {}, label + " " + low, s("svg", { width: 70, height: 10, "aria-hidden": "true" }, s("defs", {}, s("linearGradient", { id }, stops)), s("rect", { width: 70, height: 10, rx: 2, fill: `url(#${id})` })), high);
}
const key = (shape, text) => h("li", {}, s("svg", { width: 16, height: 14, viewBox: "-8 -7 16 14", "aria-hidden": "true" }, shape), text);
const diamond = (cx, cy, r) => `M${cx} ${cy - r}L${cx + r} ${cy}L${cx} ${cy + r}L${cx - r} ${cy}Z`;
const triangle = (cx, cy, r) => `M${cx} ${cy - r}L${cx + r * 0.95} ${cy + r * 0.75}L${cx - r * 0.95} ${cy + r * 0.75}Z`;

// One note that follows the pointer. What it says is also in the table behind the chart.
const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
function tell(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const wide = document.documentElement.clientWidth;
  const left = Math.max(8, Math.min(event.clientX + 14, wide - tip.offsetWidth - 8));
  const below = event.clientY + 18 + tip.offsetHeight < window.innerHeight;
  tip.style.left = left + window.scrollX + "px";
  tip.style.top = (below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10) + window.scrollY + "px";
}
const hush = () => { tip.hidden = true; };
// A finger leaves when it is lifted, and what it pointed at should still be named then: until the next touch.
const away = (event) => event.pointerType !== "touch";
const leave = (event) => { if (away(event)) hush(); };

// Name the nearest of some places under the pointer, and ring it.
function nearest(svg, places, text, reach = 26) {
  const halo = s("circle", { class: "halo", r: 9, visibility: "hidden" });
  svg.append(halo);
  const quiet = (event) => {
    if (away(event)) { hush(); halo.setAttribute("visibility", "hidden"); }
  };
  const look = (event) => {
    const box = svg.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    let best = -1, least = reach * reach;
    places.forEach(([cx, cy], i) => {
      const far = (cx - px) ** 2 + (cy - py) ** 2;
      if (far < least) { least = far; best = i; }
    });
    if (best < 0) { hush(); halo.setAttribute("visibility", "hidden"); return; }
    halo.setAttribute("cx", places[best][0]);
    halo.setAttribute("cy", places[best][1]);
    halo.setAttribute("visibility", "visible");
    tell(event, text(best));
  };
  svg.addEventListener("pointermove", look);
  svg.addEventListener("pointerdown", look);
  svg.addEventListener("pointerleave", quiet);
}

// A table; made when it is first opened, because some have thousands of rows. Columns: [name, is it text?].
function table(columns, rows, caption) {
  return h("table", {}, caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map(([name, text]) => h("th", { scope: "col", class: text && "text" }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", { class: columns[i][1] && "text" }, columns[i][1] ? h("bdi", {}, String(cell)) : typeof cell === "number" ? num(cell) : cell ?? "–"))))));
}
const scrolled = (label, ...children) => h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": label }, children);
function behind(title, make, summary) {
  const box = h("details", {}, h("summary", {}, summary || "Numbers as a table"));
  box.addEventListener("toggle", () => {
    if (box.open && box.children.length === 1) box.append(scrolled("Table: " + title, make()));
  });
  return box;
}

// A figure: title, numbers in words, the drawing (again at every width and colour scheme), the table behind it.
let figures = [];
function figure({ title, text, draw, label, rows, wide, legend, role = "img" }) {
  const id = "figure-" + title.toLowerCase().replace(/\W+/g, "-");
  const plot = h("div", { class: "plot", role: role || null, "aria-label": role ? label || title : null });
  const keys = legend && h("ul", { class: "legend" });
  const box = h("figure", { class: wide ? "card wide" : "card", "aria-labelledby": id },
    h("figcaption", {}, h("h3", { id }, title), [text].flat().map((line) => line && h("p", {}, line))),
    plot, keys, rows && behind(title, rows));
  const paint = () => {
    const width = plot.clientWidth;
    if (!width) return;
    plot.replaceChildren(draw(width));
    const svg = plot.querySelector("svg");
    if (svg) svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`); // paper scales it
    if (keys) keys.replaceChildren(...legend());
  };
  figures.push({ box, plot, paint, width: 0 });
  return box;
}
function paintAll(force) {
  figures = figures.filter((f) => f.box.isConnected);
  for (const f of figures) {
    const width = f.plot.clientWidth;
    if (width && (force || width !== f.width)) { f.width = width; f.paint(); }
  }
}
function keepPainted() {
  let waiting = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => paintAll(false)); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paintAll(true));
  // On paper everything is drawn in the light colours, whatever the screen has.
  window.addEventListener("beforeprint", () => { document.documentElement.classList.add("paper"); paintAll(true); });
  window.addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); paintAll(true); });
  document.addEventListener("pointerdown", hush, true);
  document.body.append(tip);
}
const tile = (t) => h("li", { class: "tile" }, h("p", { class: "label" }, t.label), h("div", { class: "after" }, t.after),
  t.before && h("div", { class: "before" }, "before: " + t.before),
  t.change && h("div", { class: "change" }, t.change),
  t.share !== null && t.share !== undefined && bar(t.share),
  t.note && h("div", { class: "note" }, t.note));
function bar(share) {
  const fill = h("i", {});
  fill.style.width = Math.min(100, Math.max(0, 100 * share)) + "%";
  return h("div", { class: "bar", "aria-hidden": "true" }, fill);
}
