// One network at several sizes.

const data = read("sweep");
const tested = data.accuracy !== null, measured = tested ? "test accuracy" : "held-out accuracy";
const score = (size) => (tested ? size.accuracy : size.holdout_accuracy), base = tested ? data.accuracy : data.holdout_accuracy;
const groups = Object.keys(data.widths);
const points = (size) => (base === null || score(size) === null ? "–" : `${score(size) < base ? "−" : "+"}${Math.abs(100 * (score(size) - base)).toFixed(2)}`);
const trained = data.sizes.some((size) => size.untrained !== null && size.untrained !== undefined), how = trained ? "cut to that size, rebuilt and trained" : "cut to that size and rebuilt, without training";
const asked = (size) => (size.target === null ? num(size.target_ms) + " ms" : percent(size.target, 0));
const before = (size) => (size.untrained === null || size.untrained === undefined ? "–" : percent(size.untrained, 2));
const anchor = (i) => "size-" + i;

function curve(title, name, of, text) {
  const sizes = data.sizes.filter((size) => score(size) !== null).sort((a, b) => of(b) - of(a)), early = sizes.filter((size) => size.untrained !== null && size.untrained !== undefined);
  if (!sizes.length || base === null) return null;
  return figure({
    title, wide: true,
    text: `Each point is the network ${how}${trained ? "; hollow points are before the training" : ""}. Uncut: ${percent(base, 2)}, the dashed line. A click on a point leads to its layers.`,
    draw: (width) => {
      const height = 340, margin = { left: 60, right: 18, top: 26, bottom: 42 };
      const [x0, x1] = padded(extent(sizes.map(of)), 0.1), [y0, y1] = padded(extent([...sizes.map(score), ...early.map((size) => size.untrained), base]), 0.1);
      const x = scale(Math.max(x0, 0), x1, margin.left + 8, width - margin.right), y = scale(y0, y1, height - margin.bottom, margin.top);
      const svg = s("svg", { width, height },
        axes({ width, height, margin, x, y, xTicks: ticks(Math.max(x0, 0), x1, width / 110), yTicks: ticks(y0, Math.min(y1, 1), 6), xName: name, yName: measured, xText: text, yText: (t) => percent(t, 1) }),
        s("line", { class: "knee", x1: margin.left, x2: width - margin.right, y1: y(base), y2: y(base) }),
        s("path", { d: path(sizes.map(of), sizes.map(score), x, y), fill: "none", stroke: style("--series0"), "stroke-width": 1.8 }),
        early.map((size) => s("path", { d: diamond(x(of(size)), y(size.untrained), 4), fill: style("--surface"), stroke: style("--series0"), "stroke-width": 1.2 })),
        sizes.map((size) => s("a", { href: "#" + anchor(data.sizes.indexOf(size)), "aria-label": `${percent(size.macs)} of the MACs` },
          s("path", { d: diamond(x(of(size)), y(score(size)), 6), fill: style("--series0"), stroke: style("--surface"), "stroke-width": 1.2 }))));
      nearest(svg, sizes.map((size) => [x(of(size)), y(score(size))]), (i) => `${percent(sizes[i].macs)} of the MACs\n${measured} ${percent(score(sizes[i]), 2)} (${points(sizes[i])} points)\n${num(sizes[i].milliseconds)} ms, ${sizes[i].speedup.toFixed(2)}× as fast`);
      return svg;
    },
    role: null,
    rows: () => table([["MACs left", false], [measured, false], ["points", false], ["ms", false]], sizes.map((size) => [percent(size.macs), percent(score(size), 2), points(size), num(size.milliseconds)])),
  });
}

// Sweeps of before heads were recorded name none.
const heads = new Set(data.heads || []);

function show() {
  document.getElementById("page").replaceChildren(
    h("header", {}, h("p", { class: "soft small" }, "cosep sweep"), h("h1", {}, named(data.title) + " at several sizes"),
      h("p", { class: "lead" }, `${data.sizes.length} sizes, each cut and rebuilt from one look at the network, ${trained ? "then trained" : "without training"}.`)),
    h("div", { class: "card" }, h("h2", {}, "Figures"), scrolled("Table: figures of every size",
      table([["asked for", false], ["MACs left", false], ["parameters left", false], [measured, false], ["points", false], ["ms for one input", false], ["as fast", false], ...(trained ? [["before training", false]] : []), ["remark", true]],
        data.sizes.map((size) => [asked(size), percent(size.macs), percent(size.parameters), percent(score(size), 2), points(size), num(size.milliseconds), size.speedup.toFixed(2) + "×", ...(trained ? [before(size)] : []), size.note])))),
    curve("Accuracy against multiply-accumulates", "MACs left, of the uncut network's", (size) => size.macs, (t) => percent(t, 0)) ?? "",
    curve("Accuracy against measured time", "milliseconds for one input", (size) => size.milliseconds, num) ?? "",
    h("div", { class: "grid" }, data.sizes.map((size, i) => h("div", { class: "card", id: anchor(i) }, h("h2", {}, `${percent(size.macs)} of the MACs`), scrolled(`Table: layers at ${percent(size.macs)} of the MACs`,
      table([["group", true], [heads.size ? "width" : "channels", false], ["kept", false], ["share", false]], groups.map((name) => [name, heads.has(name) ? `${data.widths[name]} heads` : data.widths[name], size.widths[name], percent(size.widths[name] / data.widths[name], 0)])))))));
  keepPainted();
  paintAll(true);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}
show();
