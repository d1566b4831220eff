// What the network can do, before and after: its accuracy step by step, and in each class.

// All groups at once: the uncut network, the cut and rebuilt one, the trained one. One by one: a step for each group.
function steps() {
  const last = run.groups[run.groups.length - 1], together = run.groups.length > 1 && run.groups.slice(0, -1).every((g) => g.accuracy === null);
  const found = [{ name: "uncut", accuracy: run.before.accuracy, macs: run.before.macs }];
  if (together) found.push({ ...last, name: run.rebuild ? "cut and rebuilt" : "cut" });
  else found.push(...run.groups);
  if (run.recovery) found.push({ name: run.recovery.kept ? "after the recovery" : "recovery (taken back)", recovery: true, trained: true, accuracy: run.recovery.accuracy, macs: last ? last.macs : null });
  return { found, together };
}

function course() {
  const { found, together } = steps(), known = found.filter((step) => step.accuracy !== null);
  if (known.length < 2) return null;
  const xs = found.map((_, i) => i), accuracy = found.map((step) => step.accuracy), end = found.length - 1;
  const lowest = known.reduce((a, b) => (b.accuracy < a.accuracy ? b : a), known[0]);
  const where = (step) => (together || step.recovery ? step.name : `after ${named(clipped(step.name, 60))}`);
  const told = together ? known.map((step) => `${step.name} ${percent(step.accuracy, 2)}`).join(", ") + "." : `From ${percent(known[0].accuracy, 2)} to ${percent(known[known.length - 1].accuracy, 2)}` + (lowest === known[0] ? "." : `; lowest ${percent(lowest.accuracy, 2)} ${where(lowest)}.`);
  const trained = run.recovery && run.recovery.accuracy !== null;
  return figure({
    title: (together ? "Held-out accuracy, uncut, cut and rebuilt" : "Held-out accuracy, group after group") + (run.recovery ? ", and after the recovery" : ""),
    text: told[0].toUpperCase() + told.slice(1), wide: true,
    draw: (width) => {
      const height = 220, margin = { left: 56, right: together ? 80 : 16, top: 32, bottom: 40 };
      const x = scale(0, end, margin.left + (together ? 40 : 8), width - margin.right), [low, high] = padded(extent(accuracy), 0.1);
      const y = scale(low, Math.min(high, 1.002), height - margin.bottom, margin.top);
      const svg = s("svg", { width, height },
        axes({ width, height, margin, x, y, xTicks: together ? xs : whole(ticks(0, run.groups.length, Math.min(10, width / 60))), yTicks: ticks(low, Math.min(high, 1), 4), xName: together ? "" : "groups done", yName: "accuracy", xText: (t) => (together ? width >= 500 || !t ? found[t].name : found[t].recovery ? "recovered" : run.rebuild ? "rebuilt" : "cut" : num(t)), yText: (t) => percent(t, 1) }),
        trained && [s("line", { class: "knee", x1: x(end), x2: x(end), y1: margin.top, y2: height - margin.bottom }),
          !together && s("text", { class: "mark", x: x(end) - 6, y: height - margin.bottom - 8, "text-anchor": "end" }, "recovery")],
        s("path", { class: "curve", d: path(xs, accuracy, x, y) }),
        found.length < 90 && found.map((step, i) => step.accuracy !== null && (step.trained ? s("path", { class: "stays", "stroke-width": 2, d: diamond(x(i), y(step.accuracy), 5.5), fill: style("--ramp2") }) : s("circle", { class: "dot", cx: x(i), cy: y(step.accuracy), r: 3.5 }))));
      nearest(svg, xs.map((i) => [x(i), accuracy[i] === null ? -99 : y(accuracy[i])]), (i) => `${named(found[i].name)}\naccuracy ${percent(accuracy[i], 2)}\nMACs left ${percent(found[i].macs === null ? null : found[i].macs / run.before.macs)}`);
      return svg;
    },
    legend: () => found.some((step) => step.trained) ? [key(s("circle", { class: "dot", r: 3.5 }), "not trained in this step"), key(s("path", { class: "stays", "stroke-width": 2, d: diamond(0, 0, 5.5), fill: style("--ramp2") }), "after training")] : [],
    rows: () => table([["after", true], ["held-out accuracy", false], ["MACs left", false]], found.map((step) => [step.name, percent(step.accuracy, 2), percent(step.macs === null ? null : step.macs / run.before.macs)])),
  });
}

function classes() {
  const rows = run.by_class, most = 20;
  if (!rows.length) return null;
  const gap = (row) => row[2] - row[1], points = (value) => `${value > 0 ? "+" : value < 0 ? "−" : "±"}${(100 * Math.abs(value)).toFixed(2)}`;
  const worse = rows.filter((row) => gap(row) < 0), first = rows[0], shown = rows.slice(0, most);
  const some = rows.length > most ? ` Drawn are the ${most} that lost most.` : "";
  const text = worse.length ? `${worse.length} of ${rows.length} classes lost accuracy; ${named(clipped(first[0], 60))} lost most, from ${percent(first[1], 2)} to ${percent(first[2], 2)}.` : `None of the ${rows.length} classes lost accuracy.`;
  return figure({
    title: "Test accuracy by class", text: text + some, wide: true,
    draw: (width) => dumbbells(width, shown, { name: "test accuracy", text: (t) => percent(t, 0), high: 1, about: (row) => `${named(row[0])}\nbefore ${percent(row[1], 2)}\nafter ${percent(row[2], 2)} (${points(gap(row))} points)` }),
    legend: () => [key(s("circle", { class: "gone", r: 4.5 }), "before"), key(s("circle", { class: "dot", r: 4.5 }), "after")],
    rows: () => table([["class", true], ["before", false], ["after", false], ["points", false]], rows.map((row) => [row[0], percent(row[1], 2), percent(row[2], 2), points(gap(row))])),
  });
}
