// The page of one run.

const run = read("run");
const loaded = new Map();
const group = (index) => {
  if (!loaded.has(index)) loaded.set(index, read("group-" + index));
  return loaded.get(index);
};
const className = (label) => run.classes[label] ?? "class " + label;
const pairName = (a, b) => named(className(a)) + " – " + named(className(b));
const shortPair = (a, b, most) => named(clipped(className(a), most)) + " – " + named(clipped(className(b), most));
let current = 0;

// ---- the network at a glance

const total = (g) => `${g.kept} of ${g.width} ${g.unit}s kept (${percent(g.kept / g.width)})`;
// Heads and channels in one picture: three heads beside hundreds of channels would not be seen, so that shares are drawn.
const mixed = run.units.length > 1;
const unitOf = (name) => (run.groups.find((g) => g.name === name) || { unit: "channel" }).unit;
const labelled = (g, letters) => clipped(g.name, letters) + (g.unit === "head" ? " (heads)" : "");

function retention() {
  const groups = run.groups;
  const kept = run.units.map(([unit, before, after]) => `${after.toLocaleString("en")} of ${before.toLocaleString("en")} ${unit}s kept (${percent(after / Math.max(before, 1))})`).join(", ");
  const text = `${kept}. Choose a group here, with the list below, or with the arrow keys ← and →.`;
  return figure({
    title: `${run.units.map(([unit]) => unit + "s").join(" and ").replace(/^./, (letter) => letter.toUpperCase())} kept and removed in each group`, text, role: null, wide: true, draw: drawRetention,
    legend: () => [key(s("rect", { class: "kept", x: -6, y: -6, width: 12, height: 12 }), "kept"), key(s("rect", { class: "removed", x: -6, y: -6, width: 12, height: 12 }), "removed")],
    rows: () => table([["group", true], [mixed ? "width" : run.units[0][0] + "s", false], ["kept", false], ["share", false], ["reason", true], ["held-out accuracy after", false], ["MACs left", false], ["parameters left", false]],
      groups.map((g) => [g.name, mixed && g.unit === "head" ? `${g.width} heads` : g.width, g.kept, percent(g.kept / g.width), g.reason, percent(g.accuracy, 2), percent(g.macs === null ? null : g.macs / run.before.macs), percent(g.parameters === null ? null : g.parameters / run.before.parameters)])),
  });
}

function drawRetention(space) {
  const groups = run.groups, count = groups.length;
  const letters = Math.max(...groups.map((g) => [...labelled(g, 22)].length));
  const flat = (space - 52) / count > letters * 7 + 8;
  // Tilted names reach down, and to the left of their bars.
  const margin = { left: flat ? 44 : Math.max(44, letters * 4.2 - 4), right: 8, top: 40 };
  const width = Math.max(space, margin.left + margin.right + count * 15);
  const band = Math.min((width - margin.left - margin.right) / Math.max(count, 1), 300);
  const below = flat ? 26 : 22 + letters * 5.6;
  const height = 220 + below, bottom = height - below;
  const full = (g) => (mixed ? 1 : g.width), stays = (g) => (mixed ? g.kept / g.width : g.kept);
  const [, most] = extent(groups.map(full));
  const y = scale(0, most, bottom, margin.top);
  const svg = s("svg", { width, height, role: "radiogroup", "aria-label": "Groups; the arrow keys choose one" });
  for (const t of mixed ? [0, 0.25, 0.5, 0.75, 1] : whole(ticks(0, most, 4))) svg.append(s("line", { class: "gridline", x1: margin.left, x2: margin.left + band * count, y1: y(t), y2: y(t) }), s("text", { x: margin.left - 6, y: y(t) + 4, "text-anchor": "end", "aria-hidden": "true" }, mixed ? percent(t, 0) : num(t)));
  svg.append(s("text", { x: 4, y: 12, "aria-hidden": "true" }, mixed ? "share kept" : run.units[0][0] + "s"));
  groups.forEach((g, i) => {
    const left = margin.left + i * band, middle = left + band / 2, thick = Math.min(band * 0.72, 72), x = middle - thick / 2;
    const label = labelled(g, 22);
    svg.append(s("g", { class: "choice", role: "radio", "aria-checked": String(i === current), tabindex: i === current ? 0 : -1, "aria-label": `${g.name}: ${total(g)}`, "data-group": i,
      onclick: () => choose(i, true), onpointermove: (event) => tell(event, `${named(g.name)}\n${total(g)}\n${g.reason}`), onpointerleave: leave },
      s("rect", { class: "hit", x: left + 1, y: margin.top - 20, width: band - 2, height: height - margin.top + 18, rx: 4 }),
      g.kept < g.width && s("rect", { class: "removed", x: x + 0.5, y: y(full(g)), width: thick - 1, height: Math.max(y(stays(g)) - y(full(g)), 0) }),
      s("rect", { class: "kept", x, y: y(stays(g)), width: thick, height: Math.max(bottom - y(stays(g)), 1) }),
      band > 40 && s("text", { x: middle, y: y(full(g)) - 5, "text-anchor": "middle", "aria-hidden": "true" }, `${g.kept}/${g.width}`),
      flat ? s("text", { class: "label", x: middle, y: bottom + 16, "text-anchor": "middle", "aria-hidden": "true" }, named(label))
        : s("text", { class: "label", "text-anchor": "end", transform: `translate(${middle + 4} ${bottom + 12}) rotate(-55)`, "aria-hidden": "true", "font-size": 11 }, named(label))));
  });
  svg.append(s("line", { class: "axis", x1: margin.left, x2: margin.left + band * count, y1: bottom, y2: bottom }));
  return width > space ? h("div", { class: "scroll" }, svg) : svg;
}

// ---- a chosen group

function curveFigure(g) {
  const c = g.curve;
  if (!c) return absent(`Curve over the number of ${g.unit}s`, `No curve was recorded: the ${g.unit}s of this group were chosen by other means, or it has too few of them.`);
  const at = c.knee ?? c.given ?? c.stays, word = c.knee !== null ? "knee" : c.given !== null ? "given" : "stay";
  const place = at === null ? -1 : c.k.indexOf(at), reach = `k from ${c.k[0]} to ${c.k[c.k.length - 1]}; the ${c.word} goes from ${num(c.score[0])} to ${num(c.score[c.score.length - 1])}.`;
  const fitted = c.fit.length ? `, fit of degree ${c.degree ?? "?"} ${num(c.fit[place])}` : "";
  const text = word === "stay" ? reach + (c.silhouette ? " No knee was found inside that range." : "") + (place < 0 ? "" : ` At the ${at} that stay it is ${num(c.score[place])}.`)
    : `${c.knee !== null ? "Knee" : "Width given"} at k = ${at}, of k = ${c.k[0]} to ${c.k[c.k.length - 1]}. ${c.word[0].toUpperCase()}${c.word.slice(1)} there ${num(c.score[place])}${fitted}.`;
  return figure({
    title: c.title, text: c.about ? [text, c.about] : text,
    draw: (width) => {
      const height = 340, margin = { left: 48, right: 14, top: 24, bottom: 40 };
      const x = scale(c.k[0], c.k[c.k.length - 1], margin.left + 6, width - margin.right);
      const [low, high] = padded(extent([...c.score, ...c.fit]));
      const y = scale(low, high, height - margin.bottom, margin.top), right = x(at) > width * 0.75;
      const svg = s("svg", { width, height },
        axes({ width, height, margin, x, y, xTicks: whole(ticks(c.k[0], c.k[c.k.length - 1], width / 80)), yTicks: ticks(low, high, 5), xName: c.silhouette ? "clusters, k" : `${g.unit}s kept, k`, yName: c.word }),
        c.k.map((k, i) => s("circle", { class: "dot", cx: x(k).toFixed(1), cy: y(c.score[i]).toFixed(1), r: c.k.length > 150 ? 1.8 : 3 })),
        c.fit.length > 0 && s("path", { class: "fit", d: path(c.k, c.fit, x, y) }),
        place >= 0 && [s("line", { class: "knee", x1: x(at), x2: x(at), y1: margin.top, y2: height - margin.bottom }),
          s("text", { class: "mark", x: x(at) + (right ? -6 : 6), y: height - margin.bottom - 8, "text-anchor": right ? "end" : "start" }, `${word}: k = ${at}`)]);
      nearest(svg, c.k.map((k, i) => [x(k), y(c.score[i])]), (i) => `k = ${c.k[i]}\n${c.word} ${num(c.score[i])}` + (c.fit.length ? `\nfit ${num(c.fit[i])}` : "") + (c.loss.length ? `\n${c.lossWord} ${num(c.loss[i])}` : ""));
      return svg;
    },
    legend: () => [key(s("circle", { class: "dot", r: 3.5 }), c.word), c.fit.length > 0 && key(s("line", { class: "fit", x1: -7, x2: 7 }), `fit of degree ${c.degree ?? "?"}`), place >= 0 && key(s("line", { class: "knee", y1: -7, y2: 7 }), { knee: "knee", given: "given width", stay: "what stays" }[word])].filter(Boolean),
    rows: () => table([["k", false], [c.word, false], ...(c.fit.length ? [["fit", false]] : []), ...(c.loss.length ? [[c.lossWord, false]] : [])], c.k.map((k, i) => [k, c.score[i], ...(c.fit.length ? [c.fit[i]] : []), ...(c.loss.length ? [c.loss[i]] : [])]), c.k.length < c.total ? `${c.k.length} of ${c.total} values of k` : null),
  });
}

function roles(g) {
  const kept = new Set(g.kept), medoids = new Set(g.medoids), chosen = new Set(g.representatives);
  return { kept, medoids, chosen, words: (c) => [kept.has(c) ? "kept" : "removed", chosen.has(c) && "representative", medoids.has(c) && "medoid"].filter(Boolean).join(", ") };
}

function spaceFigure(g) {
  const space = g.space;
  if (!space && !run.separates) return null; // no channel was described by the classes that it separates
  if (!space) return absent("Separability space", `No evidence of this group was recorded: its ${g.unit}s were chosen by other means, or the result was saved without a run folder.`);
  const { kept, medoids, words } = roles(g), clustered = g.clusters.length > 0;
  const [lightest, heaviest] = extent(space.weight);
  const about = (c) => `${g.unit} ${c}: ${words(c)}\n${clustered ? `cluster ${g.clusters[c]}, medoid ${g.medoids[g.clusters[c]]}\n` : ""}weight ${num(space.weight[c])}\nmean separability ${num(space.separability[c])}`;
  return figure({
    title: "Separability space in two dimensions",
    text: `${space.x.length} ${g.unit}s${clustered ? ` in ${g.medoids.length} clusters` : ""}; near ${g.unit}s separate the same classes. The two axes hold ${percent(space.shares[0] + space.shares[1], 0)} of the spread. Weights (${g.unit === "head" ? "norms of the projections" : "filter norms"}) from ${num(lightest)} to ${num(heaviest)}.`,
    label: `Map of ${space.x.length} ${g.unit}s; the table below names each`,
    draw: (width) => {
      const height = 340, margin = 20, color = ramp();
      const [x0, x1] = extent(space.x), [y0, y1] = extent(space.y);
      // The same unit on both axes: distances are what this picture is about.
      const unit = Math.min((width - 2 * margin) / (x1 - x0 || 1), (height - 2 * margin) / (y1 - y0 || 1));
      const px = space.x.map((v) => width / 2 + (v - (x0 + x1) / 2) * unit), py = space.y.map((v) => height / 2 - (v - (y0 + y1) / 2) * unit);
      const many = space.x.length > 120, r = space.x.length > 250 ? 2.6 : many ? 3.6 : 5, thin = many ? 0.55 : 1;
      const share = scale(lightest, heaviest, 0, 1);
      const svg = s("svg", { width, height });
      if (clustered) for (let c = 0; c < px.length; c++) {
        const m = g.medoids[g.clusters[c]];
        if (m !== c) svg.append(s("line", { class: "spoke", x1: px[c].toFixed(1), y1: py[c].toFixed(1), x2: px[m].toFixed(1), y2: py[m].toFixed(1) }));
      }
      const order = [...px.keys()].sort((a, b) => kept.has(a) - kept.has(b));
      for (const c of order) {
        const fill = css(color(share(space.weight[c])));
        svg.append(kept.has(c) ? s("path", { class: "stays", d: diamond(px[c], py[c], r + 2.5 * thin), fill, "stroke-width": 2 * thin }) : s("circle", { class: "point", cx: px[c].toFixed(1), cy: py[c].toFixed(1), r, fill }));
        if (medoids.has(c)) svg.append(s("path", { class: "medoid", d: triangle(px[c], py[c], r + 5 * thin), "stroke-width": 1.4 * thin }));
      }
      nearest(svg, px.map((v, c) => [v, py[c]]), about);
      return svg;
    },
    legend: () => [key(s("path", { class: "stays", "stroke-width": 2, d: diamond(0, 0, 5.5), fill: style("--ramp2") }), clustered ? "kept (representative)" : "kept"), ...(kept.size < space.x.length ? [key(s("circle", { class: "point", r: 4.5, fill: style("--ramp2") }), "removed")] : []),
      ...(clustered ? [key(s("path", { class: "medoid", d: triangle(0, 1, 6) }), "medoid"), key(s("line", { class: "spoke", x1: -7, x2: 7 }), "member to medoid")] : []), rampKey("weight", num(lightest), num(heaviest))],
    rows: () => table([[g.unit, false], ["what became of it", true], ["cluster", false], ["weight", false], ["mean separability", false], ["first axis", false], ["second axis", false]],
      space.x.map((_, c) => [c, words(c), clustered ? g.clusters[c] : null, space.weight[c], space.separability[c], space.x[c], space.y[c]])),
  });
}

function unpacked(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

function matrixFigure(g) {
  const m = g.matrix;
  if (!m) return null;
  const { words, kept } = roles(g), rows = m.rows.length, columns = m.pairs.length, values = unpacked(m.data);
  const value = (row, column) => (values[row * columns + column] / 255) * m.high;
  let sum = 0;
  for (const v of values) sum += v;
  const some = columns < m.total ? `, of which the ${columns} in which ${g.unit}s differ most are shown` : "";
  const limited = m.classes < m.spanning ? ` Only pairs among ${m.classes} of the ${m.spanning} classes that span the space are recorded.` : "";
  return figure({
    title: `Profile matrix: ${g.unit}s × class pairs, ordered by cluster`, wide: true,
    text: `${rows} ${g.unit}s × ${m.total.toLocaleString("en")} pairs of classes${some}. ${m.metric}, mean ${num((sum / values.length / 255) * m.high)}, between 0 and ${num(m.high)}.${limited} Rows of a cluster lie together; the strip on the left marks the ${g.unit}s that stay.`,
    label: `Matrix of ${rows} ${g.unit}s by ${columns} class pairs; the table below holds its rows`,
    draw: (width) => {
      const strip = 14, step = (width - strip) / columns, letters = Math.min(24, Math.max(...m.pairs.map((pair) => [...shortPair(...pair, 10)].length)) - 4);
      const foot = step >= 13 ? letters * 6 + 14 : 0, high = Math.max(160, Math.min(rows * 9, 460)), ratio = window.devicePixelRatio || 1, color = ramp();
      const inner = h("canvas", { width: columns, height: rows }), pen = inner.getContext("2d"), image = pen.createImageData(columns, rows);
      const shades = Array.from({ length: 256 }, (_, v) => color(v / 255));
      values.forEach((v, i) => { const rgb = shades[v]; image.data[4 * i] = rgb[0]; image.data[4 * i + 1] = rgb[1]; image.data[4 * i + 2] = rgb[2]; image.data[4 * i + 3] = 255; });
      pen.putImageData(image, 0, 0);
      const canvas = h("canvas", { width: Math.round(width * ratio), height: Math.round((high + foot) * ratio) });
      canvas.style.width = width + "px";
      canvas.style.height = high + foot + "px";
      const draw = canvas.getContext("2d");
      draw.scale(ratio, ratio);
      draw.imageSmoothingEnabled = false;
      draw.drawImage(inner, strip, 0, width - strip, high);
      m.rows.forEach((channel, row) => {
        draw.fillStyle = style(kept.has(channel) ? "--mark" : "--surface");
        draw.fillRect(0, (row * high) / rows, strip - 5, Math.ceil(high / rows));
      });
      if (g.clusters.length && g.medoids.length < high / 4) {
        draw.fillStyle = style("--surface");
        for (let row = 1; row < rows; row++) if (g.clusters[m.rows[row]] !== g.clusters[m.rows[row - 1]]) draw.fillRect(0, (row * high) / rows - 0.75, width, 1.5);
      }
      if (foot) m.pairs.forEach((pair, column) => {
        draw.save();
        draw.translate(strip + (column + 0.5) * step, high + 6);
        draw.rotate(-Math.PI / 2);
        draw.fillStyle = style("--soft");
        draw.font = "11px system-ui, sans-serif";
        draw.textAlign = "right";
        draw.textBaseline = "middle";
        draw.fillText(shortPair(...pair, 10), 0, 0);
        draw.restore();
      });
      const look = (event) => {
        const box = canvas.getBoundingClientRect();
        const row = Math.floor(((event.clientY - box.top) / high) * rows), column = Math.floor(((event.clientX - box.left - strip) / (width - strip)) * columns);
        if (row < 0 || row >= rows || column >= columns) { hush(); return; }
        const channel = m.rows[row], cluster = g.clusters.length ? `, cluster ${g.clusters[channel]}` : "";
        tell(event, `${g.unit} ${channel}: ${words(channel)}${cluster}` + (column < 0 ? "" : `\n${shortPair(...m.pairs[column], 40)}: ${num(value(row, column))}`));
      };
      canvas.addEventListener("pointermove", look);
      canvas.addEventListener("pointerdown", look);
      canvas.addEventListener("pointerleave", leave);
      return canvas;
    },
    legend: () => [rampKey(m.metric, "0", num(m.high)), key(s("rect", { x: -4, y: -6, width: 8, height: 12, fill: style("--mark") }), "kept")],
    rows: () => {
      const shown = m.pairs.slice(0, 40);
      return table([[g.unit, false], ["what became of it", true], ["cluster", false], ...shown.map(([a, b]) => [shortPair(a, b, 16), false])],
        m.rows.map((channel, row) => [channel, words(channel), g.clusters.length ? g.clusters[channel] : null, ...shown.map((_, column) => value(row, column).toFixed(2))]),
        shown.length < columns ? `the first ${shown.length} of ${columns} pairs that are drawn` : null);
    },
  });
}

function lostFigure(g) {
  const lost = g.lost;
  if (!lost) return null;
  const title = "Class pairs that lost their best separator";
  const start = `${lost.count.toLocaleString("en")} of ${lost.total.toLocaleString("en")} pairs of classes lost the ${g.unit} that told them apart best. `;
  const means = `Mean over all pairs of the best ${g.unit}'s ${lost.metric}: ${num(lost.before)} before, ${num(lost.after)} after.`;
  if (!lost.count) return figure({ title, text: [`No pair of classes lost the ${g.unit} that tells it apart best. ` + means], draw: () => h("span", {}), role: null });
  const top = lost.rows.slice(0, 12), [a, b, , before, , after] = top[0];
  return figure({
    title, text: start + means + ` Most: ${pairName(a, b)}, ${num(before)} before, ${num(after)} after.`,
    draw: (width) => {
      const step = 22, margin = { left: Math.min(180, width * 0.42), right: 20, top: 8, bottom: 40 }, height = margin.top + margin.bottom + top.length * step;
      const [low, high] = padded(extent(top.flatMap((row) => [row[3], row[5]])), 0.08), x = scale(low, high, margin.left + 8, width - margin.right);
      const letters = Math.max(4, Math.floor((margin.left - 30) / 14));
      const svg = s("svg", { width, height },
        axes({ width, height, margin, x, y: () => 0, xTicks: ticks(low, high, width / 110), yTicks: [], xName: "best " + lost.metric + " of any " + g.unit }),
        top.map((row, i) => {
          const y = margin.top + step * (i + 0.5);
          return [s("line", { class: "gridline", x1: margin.left, x2: width - margin.right, y1: y, y2: y }), s("text", { x: margin.left - 6, y: y + 4, "text-anchor": "end" }, shortPair(row[0], row[1], letters)),
            s("line", { class: "link", x1: x(row[3]), x2: x(row[5]), y1: y, y2: y }), s("circle", { class: "gone", cx: x(row[3]), cy: y, r: 5 }), s("circle", { class: "dot", cx: x(row[5]), cy: y, r: 5 })];
        }));
      nearest(svg, top.map((row, i) => [(x(row[3]) + x(row[5])) / 2, margin.top + step * (i + 0.5)]), (i) => `${pairName(top[i][0], top[i][1])}\nbefore: ${g.unit} ${top[i][2]}, ${num(top[i][3])}\nafter: ${g.unit} ${top[i][4]}, ${num(top[i][5])}`, 140);
      return svg;
    },
    legend: () => [key(s("circle", { class: "gone", r: 4.5 }), `best ${g.unit} before, removed`), key(s("circle", { class: "dot", r: 4.5 }), `best ${g.unit} that stays`)],
    rows: () => table([["first class", true], ["second class", true], ["best before", false], ["its value", false], ["best of those kept", false], ["its value", false]], lost.rows.map((row) => [className(row[0]), className(row[1]), row[2], row[3], row[4], row[5]]), lost.rows.length < lost.count ? `the ${lost.rows.length} pairs that lost most, of ${lost.count}` : null),
  });
}

function recoveryFigure(g) {
  const own = g.recovery, found = own || run.recovery, title = "Recovery";
  if (!found) return absent(title, run.groups[current].kept < run.groups[current].width ? "The network was not trained after the cut." : "This group was not cut, so there was nothing to recover from.");
  const where = own ? "Trained after this group was cut" : "The network was trained once, after all groups were cut";
  const losses = found.losses, known = losses.filter((loss) => loss !== null);
  const text = `${where}: ${found.updates.toLocaleString("en")} updates, ${found.outcome}.` + (known.length ? ` Loss from ${num(known[0])} to ${num(known[known.length - 1])}, lowest ${num(Math.min(...known))}.` : "") + (found.accuracy !== null ? ` Held-out accuracy then ${percent(found.accuracy, 2)}.` : "");
  if (known.length < 2) return figure({ title, text, draw: () => h("span", {}), role: null });
  const at = losses.map((_, i) => Math.round(((i + 1) * found.updates) / losses.length));
  return figure({
    title, text,
    draw: (width) => {
      const height = 304, margin = { left: 52, right: 14, top: 24, bottom: 40 }, [low, high] = padded(extent(losses));
      const x = scale(0, found.updates, margin.left + 4, width - margin.right), y = scale(Math.max(low, 0), high, height - margin.bottom, margin.top);
      const svg = s("svg", { width, height }, axes({ width, height, margin, x, y, xTicks: whole(ticks(0, found.updates, width / 90)), yTicks: ticks(Math.max(low, 0), high, 5), xName: "updates", yName: "loss" }), s("path", { class: "curve", d: path(at, losses, x, y) }));
      nearest(svg, at.map((u, i) => [x(u), losses[i] === null ? -99 : y(losses[i])]), (i) => `update ${at[i]}\nloss ${num(losses[i])}`);
      return svg;
    },
    rows: () => table([["update", false], ["loss", false]], at.map((u, i) => [u, losses[i]])),
  });
}

const absent = (title, text) => h("div", { class: "card" }, h("h3", {}, title), h("p", { class: "soft" }, text));

const picker = h("select", { id: "picker", onchange: (event) => choose(Number(event.target.value), false) }, run.groups.map((g, i) => h("option", { value: i }, `${clipped(g.name, 60)}: ${g.kept} of ${g.width}${g.unit === "head" ? " heads" : ""}`)));
const place = h("span", { class: "place" });
const said = h("p", { class: "hidden", "aria-live": "polite" });
const detail = h("div", { id: "detail" });

function choose(index, focus) {
  if (index < 0 || index >= run.groups.length) return;
  current = index;
  const entry = run.groups[index], g = group(index);
  picker.value = String(index);
  place.textContent = `${index + 1} of ${run.groups.length}`;
  for (const choice of document.querySelectorAll(".choice")) {
    const mine = Number(choice.dataset.group) === index;
    choice.setAttribute("aria-checked", String(mine));
    choice.setAttribute("tabindex", mine ? 0 : -1);
    if (mine && focus) choice.focus({ preventScroll: true });
    if (mine) inView(choice);
  }
  hush();
  detail.replaceChildren(
    h("div", { class: "card" }, h("h3", { class: "name" }, h("bdi", {}, entry.name)),
      h("ul", { class: "words" }, g.words.map((line) => h("li", {}, line))),
      h("dl", { class: "facts" }, g.facts.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))))),
    h("div", { class: "grid" }, curveFigure(g), spaceFigure(g), matrixFigure(g), lostFigure(g), recoveryFigure(g)));
  said.textContent = `${entry.name}: ${total(entry)}`;
  paintAll(false);
  try { history.replaceState(null, "", "#group-" + (index + 1)); } catch { /* a page inside another has no address */ }
}
// A chart that is wider than the screen scrolls sideways to the chosen bar; the page itself stays where it is.
function inView(choice) {
  const box = choice.closest(".scroll");
  if (!box) return;
  const inside = choice.getBoundingClientRect(), frame = box.getBoundingClientRect();
  if (inside.left < frame.left || inside.right > frame.right) box.scrollLeft += inside.left - frame.left - frame.width / 2;
}

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || !run.groups.length) return;
  const choice = event.target.closest && event.target.closest(".choice");
  if (!choice && event.target.closest && event.target.closest("select, input, textarea, .scroll")) return;
  const step = { ArrowLeft: -1, ArrowRight: 1, ...(choice ? { ArrowUp: -1, ArrowDown: 1 } : {}) }[event.key];
  const end = choice && { Home: 0, End: run.groups.length - 1 }[event.key];
  if (step === undefined && end === undefined) return;
  if (step === undefined && end === null) return;
  event.preventDefault();
  choose(step === undefined ? end : Math.min(Math.max(current + step, 0), run.groups.length - 1), Boolean(choice));
});

// ---- the page

function section(title, ...children) {
  const id = "section-" + title.toLowerCase().replace(/\W+/g, "-");
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), children);
}

function show() {
  const seconds = run.seconds.reduce((sum, [, value]) => sum + value, 0);
  document.getElementById("page").replaceChildren(
    h("header", {}, h("p", { class: "soft small" }, "cosep report · run ", h("bdi", { class: "name" }, run.name)), h("h1", {}, h("bdi", {}, run.title)), h("p", { class: "lead" }, run.summary.replace(/ (%|points)/g, "\u00a0$1")),
      h("ul", { class: "tiles" }, run.headline.map(tile)), run.warnings.length > 0 && h("div", { class: "warning", role: "note", "aria-label": "Warnings" }, run.warnings.map((line) => h("p", {}, line.replace(/ (%|points)/g, "\u00a0$1")))), run.limits.length > 0 && h("ul", { class: "notes" }, run.limits.map((note) => h("li", {}, note)))),
    section("The network at a glance", network(), run.groups.length ? retention() : h("p", {}, "No group was pruned."), course(), classes()),
    run.rebuild || run.damage.length || run.tried.length > 1 ? section("The rebuild", searched(), harmed(), solved()) : "",
    run.groups.length ? section("One group", h("div", { class: "chooser" }, h("label", { for: "picker" }, "Group"), h("button", { type: "button", id: "previous", "aria-label": "Previous group", onclick: () => choose(current - 1, false) }, "←"), picker, h("button", { type: "button", id: "next", "aria-label": "Next group", onclick: () => choose(current + 1, false) }, "→"), place), said, detail) : "",
    section("Next steps", h("dl", { class: "steps card" }, run.next.map(([what, how]) => h("div", {}, h("dt", {}, what), h("dd", {}, h("code", {}, how)))))),
    section("About this run", h("div", { class: "grid" },
      run.made.length > 0 && h("div", { class: "card" }, h("h3", {}, "Made"), table([["what", true], ["value", true]], run.made)),
      run.not_pruned.length > 0 && h("div", { class: "card" }, h("h3", {}, `Not prunable here: ${run.not_pruned.length} ${run.not_pruned.length === 1 ? "group" : "groups"}`), scrolled("Table: not prunable", table([["group", true], ["width", false], ["why", true]], run.not_pruned))),
      seconds > 0 && h("div", { class: "card" }, h("h3", {}, "Where the time went"), table([["stage", true], ["seconds", false], ["share", false]], [...run.seconds].sort((a, b) => b[1] - a[1]).map(([stage, value]) => [stage, value.toFixed(2), percent(value / seconds)]))),
      h("div", { class: "card wide screen" }, h("h3", {}, "Settings"), behind("settings", () => table([["section", true], ["setting", true], ["value", true]], run.settings), `All ${run.settings.length} settings`), run.about.length > 0 && behind("about", () => table([["what", true], ["value", true]], run.about), "What the run is of")))));
  keepPainted();
  const asked = Number((location.hash.match(/^#group-(\d+)$/) || [])[1]);
  if (run.groups.length) choose(asked >= 1 && asked <= run.groups.length ? asked - 1 : 0, false);
  paintAll(true);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}
show();
