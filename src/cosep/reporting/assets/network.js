// The network from input to output: every layer with its width, its cost and its time, before and after.

const arrow = (pair, text = num) => (pair[0] === pair[1] ? text(pair[0]) : `${text(pair[0])} → ${text(pair[1])}`);
// Three digits and a unit: 589,824 -> 590 k.
function brief(value) {
  for (const [least, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) if (value >= least) return String(Number((value / least).toPrecision(3))) + unit;
  return String(value);
}
const ms = (value) => (value < 10 ? value.toFixed(value < 1 ? 3 : 2) : value.toFixed(1));

function network() {
  const parts = run.layers, layers = parts.filter((p) => p.layer);
  if (!layers.length) return null;
  const cut = layers.filter((p) => p.outputs[1] < p.outputs[0]).length;
  const fed = layers.filter((p) => p.outputs[1] === p.outputs[0] && p.inputs[1] < p.inputs[0]).length;
  const sum = (of) => [0, 1].map((i) => layers.reduce((total, p) => total + p[of][i], 0));
  const time = sum("milliseconds"), slow = layers.reduce((a, b) => (b.milliseconds[1] > a.milliseconds[1] ? b : a));
  const heads = (p) => run.groups.filter((g) => g.unit === "head" && p.groups.includes(g.name)).map((g) => `${g.kept} of ${g.width} heads`);
  const told = (p) => [...heads(p), p.why].filter(Boolean).join("; ");
  const about = (p) => `${named(p.layer)} (${p.kind})\nmakes ${arrow(p.outputs)} channels from ${arrow(p.inputs)}\nMACs ${arrow(p.macs, brief)}\n${arrow(p.milliseconds, ms)} ms` + (told(p) ? `\n${told(p)}` : "");
  return figure({
    title: "The network from input to output", wide: true, role: null,
    text: [`${layers.length} layers in the order in which they run: ${cut} make fewer channels than before, ${fed} more only read fewer. ` +
      `Together they take ${ms(time[0])} ms before and ${ms(time[1])} ms after; most of that, ${ms(slow.milliseconds[1])} ms, goes to ${named(clipped(slow.layer, 60))}.`,
      "A layer's time lasts until the next one begins, with the normalisation, activation and addition behind it; the median of a few rounds in turn, batch size 1."],
    draw: (width) => drawNetwork(width, parts, about, told),
    legend: () => [key(s("rect", { class: "kept", x: -6, y: -6, width: 12, height: 12 }), "after"), key(s("rect", { class: "removed", x: -6, y: -6, width: 12, height: 12 }), "removed or saved"), parts.some((p) => p.sources) && key(s("path", { class: "wire", d: "M-7 0L7 0" }), "what reads what")].filter(Boolean),
    rows: () => table([["layer", true], ["kind", true], ["channels in", false], ["channels out", false], ["MACs", false], ["ms before", false], ["ms after", false], ["why", true]],
      parts.map((p) => p.layer ? [p.layer, p.kind, arrow(p.inputs), arrow(p.outputs), arrow(p.macs, brief), ms(p.milliseconds[0]), ms(p.milliseconds[1]), told(p)] : ["", p.kind, "", "", "", "", "", ""])),
  });
}

function drawNetwork(width, parts, about, told) {
  const narrow = width < 760, tall = narrow ? 62 : 28, head = 46, gutter = narrow ? 34 : 64, spine = gutter - 10;
  const tops = [];
  let height = head;
  for (const p of parts) { tops.push(height); height += p.layer ? tall : narrow ? 20 : 16; }
  const middle = (i) => (i < 0 ? (narrow ? 12 : head - 12) : tops[i] + (parts[i].layer ? tall / 2 : narrow ? 10 : 8)), bottom = height + 12;
  height += 26;
  const most = (of) => Math.max(1e-9, ...parts.map((p) => p[of][0]), ...parts.map((p) => p[of][1]));
  const room = width - gutter - 6;
  // Wide: name | channels | MACs | time | why, one line. Narrow: the name, then three bars beside one another.
  const share = narrow ? [0, 0.28, 0.35, 0.37] : [0.2, 0.15, 0.18, 0.17], at = share.map((_, i) => gutter + 4 + room * share.slice(0, i).reduce((a, b) => a + b, 0));
  const why = narrow ? 0 : at[3] + room * share[3] + 8, letters = (pixels) => Math.max(4, Math.floor(pixels / 6.6));
  const columns = [["outputs", "channels out", num], ["macs", "MACs", brief], ["milliseconds", "time, ms", ms]];
  const svg = s("svg", { width, height });
  const shape = run.input.length ? ` ${run.input.join(" × ")}` : "";
  svg.append(s("text", { class: "strong", x: gutter + 4, y: middle(-1) + 4 }, `input${shape}`));
  columns.forEach(([, label], i) => svg.append(s("text", { x: at[i + 1], y: narrow ? 36 : middle(-1) + 4 }, label)));
  if (!narrow) svg.append(s("text", { x: why, y: middle(-1) + 4 }, "why this width"));
  wires(svg, parts, spine, gutter, middle, bottom);
  svg.append(s("text", { class: "strong", x: gutter + 4, y: bottom + 4 }, "output"));
  parts.forEach((p, i) => {
    const y = tops[i], centre = middle(i), index = run.groups.findIndex((g) => p.groups.includes(g.name));
    if (!p.layer) {
      svg.append(s("circle", { class: "join", cx: spine, cy: centre, r: 4 }), s("text", { x: gutter + 4, y: centre + 4 }, p.kind));
      return;
    }
    const row = s("g", { class: index >= 0 ? "row open" : "row", onpointermove: (event) => tell(event, about(p)), onpointerdown: (event) => tell(event, about(p)), onpointerleave: leave, onclick: index >= 0 ? () => { choose(index, false); document.getElementById("picker").scrollIntoView({ block: "center" }); } : null },
      s("rect", { class: "hit", x: gutter, y: y + 1, width: width - gutter - 2, height: tall - 2, rx: 4 }),
      s("text", { class: p.outputs[1] < p.outputs[0] ? "strong" : "", x: gutter + 4, y: narrow ? y + 18 : centre + 4 }, named(clipped(p.layer, letters(narrow ? room - 80 : room * share[0] - 8)))));
    if (narrow) row.append(s("text", { x: width - 8, y: y + 18, "text-anchor": "end" }, p.kind));
    columns.forEach(([of, , text], c) => {
      const full = room * share[c + 1] - 14, reach = (narrow ? full : full * 0.36), top = narrow ? y + 25 : centre - 6, thick = narrow ? 9 : 12;
      const before = (p[of][0] / most(of)) * reach, after = (p[of][1] / most(of)) * reach;
      row.append(after < before && s("rect", { class: "removed", x: at[c + 1] + 0.5, y: top + 0.5, width: Math.max(before - 1, 0.5), height: thick - 1 }) || "", s("rect", { class: "kept", x: at[c + 1], y: top, width: Math.max(after, 1), height: thick }),
        s("text", narrow ? { class: "tiny", x: at[c + 1], y: y + 49 } : { x: at[c + 1] + reach + 6, y: centre + 4 }, arrow(p[of], text)));
    });
    if (!narrow) row.append(s("text", { x: why, y: centre + 4 }, named(clipped(told(p), letters(width - why)))));
    svg.append(row, s("circle", { class: p.outputs[1] < p.outputs[0] ? "dot" : "gone", cx: spine, cy: centre, r: 4.5 }));
  });
  return height > 1000 ? h("div", { class: "scroll tall long", tabindex: 0, role: "region", "aria-label": "The network, layer by layer" }, svg) : svg;
}

// Lines from what is read to what reads it; those that pass others by bend to the left.
function wires(svg, parts, spine, gutter, middle, bottom) {
  if (!parts.every((p) => p.sources)) {
    svg.append(s("path", { class: "wire", d: `M${spine} ${middle(-1)}L${spine} ${bottom}` }));
    return;
  }
  parts.forEach((p, i) => p.sources.forEach((from) => {
    const [a, b] = [middle(from), middle(i)], bend = Math.min(spine - 6, 8 + 5 * Math.sqrt(i - from));
    svg.append(s("path", { class: "wire", d: i - from === 1 ? `M${spine} ${a}L${spine} ${b}` : `M${spine} ${a}C${spine - bend * 1.3} ${a + 10} ${spine - bend * 1.3} ${b - 10} ${spine} ${b}` }));
  }));
  svg.append(s("path", { class: "wire", d: `M${spine} ${middle(parts.length - 1)}L${spine} ${bottom}` }));
}
