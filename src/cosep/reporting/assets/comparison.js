// Several runs side by side.

const data = read("comparison");
// Eight colours, and another shape for each eight further configurations: colour is never the only sign.
const shapes = [(x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`, (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`, diamond, triangle];
const shape = (i, x, y, r) => shapes[i % 4](x, y, r);
const label = (i) => data.configurations[i].label;
const letter = (i) => label(i).split(" ")[0];
const plusMinus = (spread, write) => (spread.mean === null ? "–" : write(spread.mean) + (spread.sd === null ? "" : " ± " + write(spread.sd)));
const pp = (value) => (value === null ? "–" : `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(100 * value).toFixed(2)}`);
const keys = () => data.configurations.map((c, i) => key(s("path", { d: shape(i, 0, 0, 5), fill: style("--series" + (i % 8)) }), h("bdi", {}, c.label + (c.runs > 1 ? ` (${c.runs} runs)` : ""))));

function tradeoff() {
  const runs = data.runs.filter((run) => run.after !== null && run.macs !== null);
  if (!runs.length || (data.paired && new Set(runs.map((run) => run.macs)).size < 2)) return null; // at one size there is nothing to trade
  const best = runs.reduce((a, b) => (b.after > a.after ? b : a)), least = runs.reduce((a, b) => (b.macs < a.macs ? b : a));
  const bases = [...new Set(runs.map((run) => run.before).filter((b) => b !== null))];
  return figure({
    title: "Accuracy against multiply-accumulates", wide: true,
    text: `Highest ${data.accuracy}: ${named(clipped(best.name, 60))}, ${percent(best.after, 2)} with ${percent(best.macs)} of the MACs. Fewest MACs: ${named(clipped(least.name, 60))}, ${percent(least.macs)} with ${percent(least.after, 2)}.` + (bases.length === 1 ? ` Unpruned: ${percent(bases[0], 2)}, the dashed line.` : ""),
    draw: (width) => {
      const height = 360, margin = { left: 60, right: 18, top: 26, bottom: 42 };
      const [x0, x1] = padded(extent(runs.map((run) => run.macs)), 0.15), [y0, y1] = padded(extent([...runs.map((run) => run.after), ...bases]), 0.15);
      const x = scale(Math.max(x0, 0), x1, margin.left + 8, width - margin.right), y = scale(y0, y1, height - margin.bottom, margin.top);
      const svg = s("svg", { width, height },
        axes({ width, height, margin, x, y, xTicks: ticks(Math.max(x0, 0), x1, width / 110), yTicks: ticks(y0, Math.min(y1, 1), 6), xName: "MACs left, of the unpruned network's", yName: data.accuracy, xText: (t) => percent(t, 1), yText: (t) => percent(t, 1) }),
        bases.length === 1 && s("line", { class: "knee", x1: margin.left, x2: width - margin.right, y1: y(bases[0]), y2: y(bases[0]) }),
        data.configurations.map((c, i) => {
          const a = c.spread.after, m = c.spread.macs;
          if (a.sd === null || m.mean === null) return null;
          return [s("line", { stroke: style("--series" + (i % 8)), "stroke-width": 2, x1: x(m.mean), x2: x(m.mean), y1: y(a.mean - a.sd), y2: y(a.mean + a.sd) }),
            s("line", { stroke: style("--series" + (i % 8)), "stroke-width": 2, x1: x(m.mean) - 7, x2: x(m.mean) + 7, y1: y(a.mean), y2: y(a.mean) })];
        }),
        runs.map((run) => s("path", { d: shape(run.configuration, x(run.macs), y(run.after), 5.5), fill: style("--series" + (run.configuration % 8)), stroke: style("--surface"), "stroke-width": 1.2 })));
      nearest(svg, runs.map((run) => [x(run.macs), y(run.after)]), (i) => `${named(runs[i].name)} (${letter(runs[i].configuration)})\n${data.accuracy} ${percent(runs[i].after, 2)} (${pp(runs[i].change)} points)\nMACs left ${percent(runs[i].macs)}`);
      return svg;
    },
    legend: keys,
    rows: () => table([["run", true], ["configuration", true], ["seed", false], ["before", false], ["after", false], ["points", false], ["MACs left", false], ["parameters left", false]], data.runs.map((run) => [run.name, letter(run.configuration), run.seed, percent(run.before, 2), percent(run.after, 2), pp(run.change), percent(run.macs), percent(run.parameters)])),
  });
}

function widths() {
  if (!data.groups.length) return null;
  if (data.paired && data.configurations.every((c) => JSON.stringify(c.widths) === JSON.stringify(data.configurations[0].widths))) return null; // the same for all
  const xs = data.groups.map((_, i) => i);
  const means = data.configurations.map((c) => c.widths.map((w) => w.mean));
  const apart = data.groups.map((_, i) => { const found = means.map((m) => m[i]).filter((v) => v !== null); return Math.max(...found) - Math.min(...found); });
  const most = apart.reduce((best, value, i) => (value > apart[best] ? i : best), 0);
  return figure({
    title: data.runs.some((run) => Object.values(run.groups).some((g) => g[2] === "head")) ? "Heads and channels kept in each group" : "Channels kept in each group", wide: true,
    text: data.configurations.length < 2 || apart[most] === 0 ? `${data.groups.length} groups; share kept of each, the mean of a configuration's runs.` : `${data.groups.length} groups. The configurations differ most at ${named(clipped(data.groups[most], 60))}, by ${percent(apart[most])} of its width.`,
    draw: (space) => {
      const letters = Math.min(22, Math.max(...data.groups.map((name) => [...name].length))), tilted = 16 + letters * 5;
      const margin = { left: 56, right: 18, top: 26, bottom: tilted }, height = 240 + tilted, width = Math.max(space, data.groups.length * 14 + 80);
      const x = scale(0, Math.max(data.groups.length - 1, 1), margin.left + 24, width - margin.right - 8), y = scale(0, 1, height - margin.bottom, margin.top);
      const svg = s("svg", { width, height },
        axes({ width, height, margin, x, y, xTicks: [], yTicks: [0, 0.25, 0.5, 0.75, 1], yName: "share kept", yText: (t) => percent(t, 0) }),
        data.groups.map((name, i) => s("text", { "text-anchor": "end", "font-size": 11, transform: `translate(${x(i) + 4} ${height - margin.bottom + 12}) rotate(-55)` }, named(clipped(name, 22)))),
        data.configurations.map((c, i) => {
          const stroke = style("--series" + (i % 8));
          return [c.widths.map((w, g) => w.n > 1 && w.high > w.low && s("line", { stroke, "stroke-width": 6, opacity: 0.35, x1: x(g), x2: x(g), y1: y(w.low), y2: y(w.high) })),
            s("path", { d: path(xs, means[i], x, y), fill: "none", stroke, "stroke-width": 1.8, "stroke-dasharray": ["", "6 3", "2 3", "8 3 2 3"][i % 4] }),
            means[i].map((v, g) => v !== null && s("path", { d: shape(i, x(g), y(v), 4), fill: stroke }))];
        }));
      nearest(svg, xs.flatMap((g) => data.configurations.map((_, i) => [x(g), means[i][g] === null ? -99 : y(means[i][g])])), (at) => {
        const g = Math.floor(at / data.configurations.length), i = at % data.configurations.length, w = data.configurations[i].widths[g];
        return `${named(data.groups[g])}\n${named(label(i))}\nkept ${percent(w.mean)}${w.n > 1 ? ` (${percent(w.low)} to ${percent(w.high)})` : ""}`;
      });
      return width > space ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Chart: share kept of each group" }, svg) : svg;
    },
    role: null, legend: keys,
    rows: () => table([["group", true], ["width", false], ...data.runs.map((run) => [clipped(run.name, 24), false])], data.groups.map((name) => [name, (data.runs.find((run) => run.groups[name]) || { groups: { [name]: [] } }).groups[name].slice(1).map((part) => (part === "channel" ? "" : part === "head" ? "heads" : part)).join(" ").trim(), ...data.runs.map((run) => (run.groups[name] ? run.groups[name][0] : null))])),
  });
}

function seeds() {
  const shown = data.configurations.map((c, i) => ({ ...c, i })).filter((c) => c.spread.after.mean !== null);
  if (!shown.some((c) => c.spread.after.n > 1)) return null;
  const runs = data.runs.filter((run) => run.after !== null);
  return figure({
    title: "Seeds and their spread", wide: true,
    text: shown.map((c) => `${letter(c.i)}: ${plusMinus(c.spread.after, (v) => (100 * v).toFixed(2))} % (${c.spread.after.n} ${c.spread.after.n > 1 ? "runs" : "run"}).`).join(" ") + " The bar is the mean ± one standard deviation of the runs.",
    draw: (width) => {
      const step = 40, margin = { left: Math.min(190, width * 0.34), right: 18, top: 10, bottom: 42 }, height = margin.top + margin.bottom + shown.length * step;
      const [low, high] = padded(extent(shown.flatMap((c) => [c.spread.after.low, c.spread.after.high, c.spread.after.mean - (c.spread.after.sd || 0), c.spread.after.mean + (c.spread.after.sd || 0)])), 0.1);
      const x = scale(low, high, margin.left + 8, width - margin.right), places = [], who = [];
      const svg = s("svg", { width, height },
        axes({ width, height, margin, x, y: () => 0, xTicks: ticks(low, Math.min(high, 1), width / 130), yTicks: [], xName: data.accuracy, xText: (t) => percent(t, 2) }),
        shown.map((c, row) => {
          const y = margin.top + step * (row + 0.5), a = c.spread.after, fill = style("--series" + (c.i % 8));
          const mine = runs.filter((run) => run.configuration === c.i);
          mine.forEach((run) => { places.push([x(run.after), y]); who.push(run); });
          return [s("text", { x: margin.left - 6, y: y + 4, "text-anchor": "end" }, named(clipped(c.label, Math.floor(margin.left / 7.5)))),
            s("line", { class: "gridline", x1: margin.left, x2: width - margin.right, y1: y, y2: y }),
            a.sd !== null && s("line", { stroke: fill, "stroke-width": 10, opacity: 0.3, x1: x(a.mean - a.sd), x2: x(a.mean + a.sd), y1: y, y2: y }),
            s("line", { stroke: fill, "stroke-width": 2.5, x1: x(a.mean), x2: x(a.mean), y1: y - 10, y2: y + 10 }),
            mine.map((run) => s("path", { d: shape(c.i, x(run.after), y, 4.5), fill, stroke: style("--surface"), "stroke-width": 1 }))];
        }));
      nearest(svg, places, (i) => `${named(who[i].name)}, seed ${who[i].seed}\n${data.accuracy} ${percent(who[i].after, 2)}`);
      return svg;
    },
    rows: () => table([["configuration", true], ["runs", false], ["mean", false], ["standard deviation", false], ["lowest", false], ["highest", false]], shown.map((c) => [c.label, c.spread.after.n, percent(c.spread.after.mean, 2), percent(c.spread.after.sd, 2), percent(c.spread.after.low, 2), percent(c.spread.after.high, 2)])),
  });
}

function classes() {
  const shown = data.configurations.map((c, i) => ({ ...c, i })).filter((c) => c.max_classes && c.spread.after.mean !== null).sort((a, b) => a.max_classes - b.max_classes);
  if (new Set(shown.map((c) => c.max_classes)).size < 2) return null;
  return figure({
    title: "Accuracy against M, the number of classes that span the space",
    text: shown.map((c) => `M = ${c.max_classes} (${letter(c.i)}): ${percent(c.spread.after.mean, 2)}`).join("; ") + ".", wide: true,
    draw: (width) => {
      const height = 260, margin = { left: 60, right: 18, top: 26, bottom: 42 }, [y0, y1] = padded(extent(shown.map((c) => c.spread.after.mean)), 0.2);
      const logs = shown.map((c) => Math.log10(c.max_classes)), [x0, x1] = padded(extent(logs), 0.08);
      const x = scale(x0, x1, margin.left + 8, width - margin.right), y = scale(y0, y1, height - margin.bottom, margin.top);
      const svg = s("svg", { width, height }, axes({ width, height, margin, x: (m) => x(Math.log10(m)), y, xTicks: [...new Set(shown.map((c) => c.max_classes))], yTicks: ticks(y0, Math.min(y1, 1), 5), xName: "M (logarithmic)", yName: data.accuracy, yText: (t) => percent(t, 2) }),
        shown.map((c, i) => s("path", { d: shape(c.i, x(logs[i]), y(c.spread.after.mean), 5), fill: style("--series" + (c.i % 8)) })));
      nearest(svg, shown.map((c, i) => [x(logs[i]), y(c.spread.after.mean)]), (i) => `M = ${shown[i].max_classes}\n${named(shown[i].label)}\n${percent(shown[i].spread.after.mean, 2)}`);
      return svg;
    },
    legend: keys,
    rows: () => table([["configuration", true], ["M", false], ["class pairs", false], ["mean accuracy", false], ["runs", false]], shown.map((c) => [c.label, c.max_classes, (c.max_classes * (c.max_classes - 1)) / 2, percent(c.spread.after.mean, 2), c.spread.after.n])),
  });
}

// How far the first method is ahead of each other one, with its interval.
function intervals() {
  const rows = (data.paired || []).filter((p) => !p.ours && p.low !== null);
  if (!rows.length) return null;
  const first = data.paired[0].method, sure = rows.filter((p) => p.beyond_noise);
  const told = sure.length ? sure.map((p) => `${first} is ${p.difference > 0 ? "ahead of" : "behind"} ${named(p.method)}`).join(", ") + ", beyond noise." : "None of the differences is beyond noise: every interval holds 0.";
  return figure({
    title: "Paired differences with their 95 % intervals", text: told, wide: true,
    draw: (width) => {
      const step = 34, longest = Math.max(...rows.map((p) => [...p.method].length)), margin = { left: Math.min(longest * 7 + 24, 220, width * 0.4), right: 22, top: 10, bottom: 42 }, height = margin.top + margin.bottom + rows.length * step;
      const [low, high] = padded(extent([0, ...rows.flatMap((p) => [p.low, p.high])])), x = scale(low, high, margin.left, width - margin.right), y = (i) => margin.top + step * (i + 0.5);
      const svg = s("svg", { width, height }, axes({ width, height, margin, x, y: () => 0, xTicks: ticks(low, high, width / 110), yTicks: [], xName: width < 500 ? `points, ${clipped(first, 16)} ahead →` : `points of accuracy by which ${first} is ahead` }),
        s("line", { class: "knee", x1: x(0), x2: x(0), y1: margin.top, y2: height - margin.bottom }),
        rows.map((p, i) => [s("text", { x: margin.left - 8, y: y(i) + 4, "text-anchor": "end" }, named(clipped(p.method, Math.floor((margin.left - 14) / 7)))),
          s("line", { class: "link", x1: x(p.low), x2: x(p.high), y1: y(i), y2: y(i) }), [p.low, p.high].map((end) => s("line", { class: "link", x1: x(end), x2: x(end), y1: y(i) - 6, y2: y(i) + 6 })), s("circle", { class: "dot", cx: x(p.difference), cy: y(i), r: 5 })]));
      nearest(svg, rows.map((p, i) => [x(p.difference), y(i)]), (i) => `${named(rows[i].method)}\n${first} is ahead by ${rows[i].difference.toFixed(2)} points\n95 % interval ${rows[i].low.toFixed(2)} to ${rows[i].high.toFixed(2)}`, 160);
      return svg;
    },
    rows: () => table([["method", true], ["ahead by", false], ["from", false], ["to", false]], rows.map((p) => [p.method, p.difference.toFixed(2), p.low.toFixed(2), p.high.toFixed(2)])),
  });
}

// How far the first method is ahead of each other one, seed by seed.
function paired() {
  if (!data.paired) return null;
  const signed = (v) => (v === null ? "–" : `${v > 0 ? "+" : v < 0 ? "−" : "±"}${Math.abs(v).toFixed(2)}`);
  return h("div", { class: "card" }, h("h2", {}, "Differences, paired by seed"), scrolled("Table: paired differences",
    table([["method", true], ["seeds", false], ["accuracy, %", false], ["standard deviation", false], [`${data.paired[0].method} is ahead by`, false], ["95 % interval", false], ["beyond noise", true]],
      data.paired.map((p) => [p.method, p.seeds, p.mean.toFixed(2), p.std === null ? "–" : p.std.toFixed(2), p.ours ? "" : signed(p.difference), p.ours || p.low === null ? "" : `${signed(p.low)} to ${signed(p.high)}`, p.ours || p.beyond_noise === null ? "" : p.beyond_noise ? "yes" : "no"]), "points of accuracy; Student's t over the seeds")));
}

function show() {
  const two = (v) => (100 * v).toFixed(2), one = (v) => (100 * v).toFixed(1);
  document.getElementById("page").replaceChildren(
    h("header", {}, h("p", { class: "soft small" }, "cosep report"), h("h1", {}, data.paired ? `${data.configurations.length} methods compared` : `${data.runs.length} runs compared`),
      h("p", { class: "lead" }, data.paired ? "The same widths, cuts, training and seeds for every method." : `${data.configurations.length} ${data.configurations.length === 1 ? "configuration" : "configurations"}; runs that differ only by their seed belong to the same one.`)),
    h("div", { class: "card" }, h("h2", {}, "Figures"), scrolled("Table: figures of every configuration",
      table([["configuration", true], ["runs", false], ["before, %", false], [data.accuracy + ", %", false], ["points", false], ["MACs left, %", false], ["parameters left, %", false], ["speed-up", false], ["seconds", false]],
        data.configurations.map((c) => [c.label, c.runs, plusMinus(c.spread.before, two), plusMinus(c.spread.after, two), plusMinus(c.spread.change, two), plusMinus(c.spread.macs, one), plusMinus(c.spread.parameters, one), plusMinus(c.spread.speedup, (v) => v.toFixed(2)), plusMinus(c.spread.seconds, (v) => v.toFixed(0))]), "mean ± standard deviation over the runs of a configuration"))),
    paired() ?? "", intervals() ?? "", seeds() ?? "", tradeoff() ?? "", classes() ?? "", widths() ?? "",
    data.differences.length ? h("div", { class: "card" }, h("h2", {}, "Settings that differ"), scrolled("Table: settings that differ", table([["setting", true], ...data.configurations.map((c) => [c.label, true])], data.differences))) : "");
  keepPainted();
  paintAll(true);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}
show();
