// How much was cut and why, and what solving the weights anew did.

const MOST_ROWS = 40;

function searched() {
  const tried = run.tried;
  if (tried.length < 2) return null;
  const share = tried.map((row) => row[0]), lost = tried.map((row) => row[1]), chosen = run.left;
  const change = (v) => `${v > 0 ? "−" : v < 0 ? "+" : "±"}${num(Math.abs(v))}`, best = Math.min(...lost), worst = Math.max(...lost);
  return figure({
    title: "Sizes that were tried, before any training", wide: true,
    text: `No limit said how much to cut: ${tried.length} sizes between ${percent(share[0], 0)} and ${percent(share[share.length - 1], 0)} of the MACs were cut and rebuilt, and changed the accuracy by ${change(best)} to ${change(worst)} points. The network that was made has ${percent(chosen, 0)}.`,
    draw: (width) => {
      const height = 240, margin = { left: 52, right: 16, top: 28, bottom: 40 }, [low, high] = padded(extent([0, ...lost])), [from, to] = padded(extent([chosen, ...share]));
      const x = scale(from, to, margin.left + 8, width - margin.right), y = scale(low, high, height - margin.bottom, margin.top), right = x(chosen) > width / 2;
      const svg = s("svg", { width, height }, axes({ width, height, margin, x, y, xTicks: ticks(from, to, width / 90), yTicks: ticks(low, high, 4), xName: "share of the MACs left", yName: "points lost", xText: (t) => percent(t, 0) }),
        s("line", { class: "knee", x1: x(chosen), x2: x(chosen), y1: margin.top, y2: height - margin.bottom }),
        s("text", { class: "mark", x: x(chosen) + (right ? -6 : 6), y: margin.top + 10, "text-anchor": right ? "end" : "start" }, "chosen"),
        s("path", { class: "curve", d: path(share, lost, x, y) }), share.map((at, i) => s("circle", { class: "dot", cx: x(at), cy: y(lost[i]), r: 3.5 })));
      nearest(svg, share.map((at, i) => [x(at), y(lost[i])]), (i) => `${percent(share[i])} of the MACs\n${num(lost[i])} points lost`);
      return svg;
    },
    rows: () => table([["share of the MACs", false], ["points lost", false]], tried.map((row) => [percent(row[0]), row[1]])),
  });
}

function harmed() {
  if (!run.damage.length) return null;
  const [name, , , most] = run.damage[0], least = run.damage[run.damage.length - 1], shown = run.damage.slice(0, MOST_ROWS);
  const some = shown.length < run.damage.length ? ` Drawn are the ${MOST_ROWS} largest.` : "";
  return figure({
    title: `Damage of each group alone, at half of its ${mixed ? "width" : run.units[0][0] + "s"}`, wide: true,
    text: `How far the outputs move (KL, temperature 4) when one group alone keeps half of its ${mixed ? "width" : run.units[0][0] + "s"} and the layers that read it are re-solved: from ${num(least[3])} (${named(clipped(least[0], 60))}) to ${num(most)} (${named(clipped(name, 60))}). Groups keep more where the damage is large and ${mixed ? "a head or channel" : "a " + run.units[0][0]} cheap. ${mixed ? "Heads and channels" : run.units[0][0][0].toUpperCase() + run.units[0][0].slice(1) + "s"} that give the same for every image go for nothing and do not count.` + some,
    draw: (width) => {
      const step = 24, longest = Math.max(...shown.map((row) => [...row[0]].length)), margin = { left: Math.min(longest * 7 + 16, 200, width * 0.4), right: width < 500 ? 60 : 130, top: 6, bottom: 40 }, height = margin.top + margin.bottom + shown.length * step;
      const [, high] = padded([0, most || 1], 0.04), x = scale(0, high, margin.left, width - margin.right), letters = Math.floor((margin.left - 14) / 7);
      const svg = s("svg", { width, height }, axes({ width, height, margin, x, y: () => 0, xTicks: ticks(0, high, width / 130), yTicks: [], xName: "damage at half of its width" }),
        shown.map(([group, channels, kept, harm], i) => {
          const y = margin.top + i * step;
          return [s("text", { x: margin.left - 6, y: y + step / 2 + 4, "text-anchor": "end" }, named(clipped(group, letters))),
            s("rect", { class: "kept", x: margin.left, y: y + 5, width: Math.max(x(harm) - margin.left, 1), height: step - 10, rx: 2 }),
            s("text", { x: x(harm) + 6, y: y + step / 2 + 4 }, width < 500 ? `${kept}/${channels}` : `${kept} of ${channels} ${unitOf(group) === "head" ? "heads " : ""}kept`)];
        }));
      nearest(svg, shown.map((row, i) => [(margin.left + x(row[3])) / 2, margin.top + (i + 0.5) * step]), (i) => `${named(shown[i][0])}\ndamage ${num(shown[i][3])}\n${shown[i][2]} of ${shown[i][1]} ${unitOf(shown[i][0])}s kept`, 160);
      return svg;
    },
    rows: () => table([["group", true], [mixed ? "width" : run.units[0][0] + "s", false], ["kept", false], ["damage at half width", false]], run.damage.map(([group, width, kept, harm]) => [group, mixed && unitOf(group) === "head" ? `${width} heads` : width, kept, harm])),
  });
}

function solved() {
  const made = run.rebuild;
  if (!made) return null;
  const measured = made.layers.filter((row) => row[2] !== null && row[3] !== null);
  const shown = measured.length > MOST_ROWS ? [...measured].sort((a, b) => b[2] - a[2]).slice(0, MOST_ROWS) : measured;
  const some = shown.length < measured.length ? [`Drawn are the ${MOST_ROWS} layers with the largest error.`] : [];
  return figure({
    title: "Layers solved anew", text: [...made.words, ...some], wide: true,
    draw: (width) => shown.length ? dumbbells(width, shown.map((row) => [row[0], row[2], row[3], row]), { name: width < 500 ? "squared error, share of the variance" : "squared error against the uncut network, relative to its variance", text: num, low: 0, about: (row) => `${named(row[0])}\ncut: error ${num(row[1])}\nrebuilt: ${num(row[2])}\ntowards ${row[3][1]}; ${row[3][6]}` }) : h("span", {}),
    legend: () => shown.length ? [key(s("circle", { class: "gone", r: 4.5 }), "only cut"), key(s("circle", { class: "dot", r: 4.5 }), "rebuilt")] : [],
    rows: made.layers.length ? () => table([["layer", true], ["towards", true], ["relative error, cut", false], ["rebuilt", false], ["rows", false], ["columns", false], ["what became of it", true]], made.layers) : null,
  });
}
