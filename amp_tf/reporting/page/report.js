"use strict";
// The report of a rewrite or a process, as amp_tf.reporting.document makes it. Of each node html.py leaves a row:
// name, op, whether it is 16 bit, reason, cause, operations of all runs (null where unknown), layer.

const MOST_ROWS = 15, MOST_LAYERS = 250;
const MOST_MEASURED = 3, WORTH_TELLING = 0.02; // kinds of steps; of the time of the longest
const NO_FIGURES = "There are no figures: this report was not asked for before the graphs were rewritten. " +
  "Set AMP_TF_REPORT=folder, or make it with amp-tf report.";
const NO_GRAPHS = "No graph came to amp_tf, so there is nothing to show; the line below says why.";
const LEGEND = html`<p class="legend"><span class="f16"></span> 16 bit <span class="float32"></span> float32</p>`;
const SEARCH = html`<form class="search" role="search"><label>Find a node and the way its decision came <input ${
  ""}type="search" autocomplete="off" spellcheck="false" placeholder="a part of its name, or an op"></label></form>${
  ""}<div class="found" aria-live="polite"></div>`;

// The end of a long name, by which people know it.
const short = (name) => (name.length <= 60 ? name : `…${name.slice(-58)}`);
const nodeLink = (name) => html`<button type="button" class="node" data-node="${name}">${short(name)}</button>`;
const inLayer = (layer) => path(layer || "(no layer)");
const row = (head, ...cells) => html`<tr><th scope="row">${head}</th>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>`;

function origin({ process }) {
  const seconds = "seconds" in process ? `${count(process.seconds)} s` : null;
  const versions = ["tensorflow", "keras", "python", "amp_tf"].filter((name) => process[name]);
  const parts = [process.made, process.host, seconds, ...versions.map((name) => `${name} ${process[name]}`)].filter(Boolean);
  const ended = process.ended ? ` Ended ${process.ended}.` : "";
  return parts.length ? html`<p class="origin">${parts.join(" · ")}.${ended}</p>` : "";
}

function hero({ figures, graphs, precisions, hooks }) {
  if (!figures) return html`<p class="note">${graphs.length ? NO_FIGURES : NO_GRAPHS}</p>`;
  const part = figures.products_share_f16, { f16, float32 } = figures.products;
  if (part === null) {
    const words = "no matrix product or convolution of known size was seen";
    return html`<section class="hero"><p class="big">–</p><p>${words}</p></section>`;
  }
  const unknown = figures.products_unknown;
  const own = figures.products_own ?? 0; // under a Keras policy, or where the program casts
  const whose = own ? ` The program itself has ${share(own / (f16 + float32))} in 16 bit${
    hooks.policy ? ` (Keras policy ${hooks.policy})` : ""}; amp_tf converted ${share((f16 - own) / (f16 + float32))}.` : "";
  const more = unknown ? ` The sizes of ${count(unknown)} more products are unknown before they run.` : "";
  return html`<section class="hero"><p class="big">${share(part)}</p><p>of the products’ ${
    unknown ? "work of known size" : "work"} runs in ${precisions.join(" and ") || "16 bit"}: ${operations(f16)} of ${
    operations(f16 + float32)} (matrix products and convolutions, one run of each graph).${whose}${more}</p>${
    bar(f16, float32, f16 + float32, `${share(part)} in 16 bit`)}</section>`;
}

// Name, value and small print of each count.
function counts(run) {
  const times = run.figures?.estimated_ms;
  const found = [
    ["nodes converted", `${count(run.converted)} of ${count(run.total)}`, ""],
    ["casts inserted", count(run.casts), times ? `about ${milliseconds(times.casts)}` : ""],
  ];
  if (times) {
    const costs = run.devices.filter((device) => device.costs).map((device) => `by costs ${device.costs}`);
    found.push(["estimated, with casts", milliseconds(times.now), [`${milliseconds(times.float32)} in float32`, ...costs].join(", ")]);
  }
  const peak = run.figures?.estimated_peak;
  if (peak) {
    const why = peak.now > peak.float32 ? "; 16-bit copies of weights and other float32 tensors lie beside these" : "";
    found.push(["estimated peak", number(peak.now, "B"), `tensors of one run, ${number(peak.float32, "B")} in float32${why}`]);
  }
  for (const { what, median_ms, steps } of measured(run)) {
    found.push([`measured, ${what}`, milliseconds(median_ms), `a step, the median of ${count(steps)}`]);
  }
  const hoisted = `${count(sum(run.graphs.map((graph) => graph.hoisted ?? 0)))} reads moved out of loops`;
  found.push(["normalizations folded", count(sum(run.graphs.map((graph) => graph.folded))), hoisted]);
  for (const { label, scale, skipped } of run.loss_scales) {
    found.push([`loss scale, ${label}`, scale >= 1 ? count(scale) : general(scale, 4), `${count(skipped)} skipped`]);
  }
  return found;
}

function tiles(run) {
  const cells = counts(run).map(([name, value, more]) => html`<div><dt>${name}</dt><dd>${value}<small>${more}</small></dd></div>`);
  const missing = run.left_out ? html`<p class="note">Of this process, ${run.left_out}.</p>` : "";
  return html`<dl class="tiles">${cells}</dl><p class="summary">${run.summary || run.why_nothing || ""}</p>${missing}`;
}

// The kinds of steps that took long; reports of before have none.
function measured({ steps = [] }) {
  const longest = largest(steps.map((step) => step.seconds));
  return steps.filter((step) => step.steps > 1 && step.seconds >= WORTH_TELLING * longest).slice(0, MOST_MEASURED);
}

function blockers({ blockers: rows, together }) {
  if (!rows.length) return "";
  const gaining = rows.filter((blocker) => blocker.gain > 0), others = rows.filter((blocker) => !(blocker.gain > 0));
  const whole = largest(gaining.map((blocker) => blocker.gain));
  const shown = gaining.slice(0, MOST_ROWS).map((blocker) => blockerRow(blocker, whole));
  const listed = others.map((blocker) => html`<li>${blockerName(blocker)}: ${count(blocker.nodes)} nodes, ${
    operations(blocker.operations)}, such as ${nodeLink(blocker.example)}${blocker.gain === null ? "; not tried" : ""}</li>`);
  const names = together?.roots.map((root) => root.what || root.kind).join(", ");
  return html`<p>Found by deciding again without each, alone. 16 bit is no aim in itself: what is kept for accuracy is kept ${
    ""}for a reason.</p>${
    shown.length ? table(["Blocker", "Would become 16 bit", "What takes it away"], shown, "wide") : nothingGained(rows)}${
    together ? html`<p><b>Together</b> ${names}: ${operations(together.gain)} would become 16 bit.</p>` : ""}${
    listed.length ? html`<details><summary>${listed.length} more that gain nothing alone, or were not tried</summary><ul>${
      listed}</ul></details>` : ""}`;
}

function nothingGained(rows) {
  const tried = rows.filter((blocker) => blocker.gain !== null).length;
  if (!tried) return "";
  const which = tried === rows.length ? "one of them" : "one of those that were tried";
  return html`<p>Nothing becomes 16 bit if ${which} alone is taken away.</p>`;
}

const blockerName = ({ what, kind }) => html`<b>${what || kind}</b>${what ? ` (${kind})` : ""}`;

function blockerRow(blocker, whole) {
  const gain = operations(blocker.gain);
  const products = blocker.gain_products ? `, ${operations(blocker.gain_products)} of it products` : "";
  return html`<tr><td>${blockerName(blocker)}<small>such as ${nodeLink(blocker.example)}</small></td><td class="graph">${gain}${
    bar(blocker.gain, 0, whole, gain)}<small>${count(blocker.gain_nodes)} nodes${products}</small></td><td>${
    blocker.remedy}</td></tr>`;
}

function ops(run) {
  const worked = run.ops.filter((op) => op.operations.f16 + op.operations.float32);
  const [rows, key] = worked.length ? [worked, "operations"] : [run.ops.filter((op) => op.nodes.f16), "nodes"];
  if (!rows.length) return "";
  const whole = largest(rows.map((op) => op[key].f16 + op[key].float32));
  const shown = rows.slice(0, MOST_ROWS).map((op) => {
    const { f16, float32 } = op[key], words = (key === "nodes" ? count : operations)(f16 + float32);
    return html`<tr><th scope="row">${op.op}</th><td class="graph">${words}${
      bar(f16, float32, whole, `${share(f16 / (f16 + float32))} of ${words} in 16 bit`)}</td><td>${
      count(op.nodes.f16)} of ${count(op.nodes.f16 + op.nodes.float32)}</td></tr>`;
  });
  const heads = ["Op", key === "nodes" ? "Nodes" : "Work", "Nodes in 16 bit"];
  return html`${LEGEND}${table(heads, shown)}${left(rows.length - MOST_ROWS, "ops")}`;
}

// Items by what a function says of each, as a list of [key, items].
function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    if (!groups.has(key(item))) groups.set(key(item), []);
    groups.get(key(item)).push(item);
  }
  return [...groups];
}

function casts({ graphs }) {
  const layers = grouped(graphs.flatMap((graph) => graph.inserted_casts), (cast) => cast.layer).map(([layer, found]) => ({
    layer,
    down: found.filter((cast) => cast.from === "float32").length,
    total: found.length,
    moved: sum(found.map((cast) => (cast.bytes ?? 0) * cast.runs)),
    taken: sum(found.map((cast) => cast.estimated_ms ?? 0)),
    isKnown: found.some((cast) => cast.estimated_ms !== null),
  }));
  if (!layers.length) return "";
  layers.sort((a, b) => b.taken - a.taken || b.moved - a.moved);
  const whole = largest(layers.map((layer) => layer.moved));
  const rows = layers.slice(0, MOST_ROWS).map(({ layer, down, total, moved, taken, isKnown }) => {
    const bytes = number(moved, "B");
    return html`<tr><th scope="row">${inLayer(layer)}</th><td>${down} to 16 bit, ${total - down} back</td><td class="graph">${
      bytes}${bar(moved, 0, whole, bytes)}</td><td>${isKnown ? milliseconds(taken) : "unknown"}</td></tr>`;
  });
  const heads = ["Layer", "Casts", "Bytes moved", "Estimated"];
  return html`${table(heads, rows)}${left(layers.length - MOST_ROWS, "layers with casts")}`;
}

const lossScale = (run) => run.loss_scales.filter((curve) => curve.points.length).map(curve);

// The loss scale over steps, on a logarithmic axis, and a mark for each look that saw new skipped steps.
function curve({ points, label }) {
  const width = 1000, height = 200;
  const steps = points.map((point) => point[0]), scales = points.map((point) => Math.log2(Math.max(point[1], 2 ** -126)));
  let low = Math.floor(Math.min(...scales)), high = Math.ceil(Math.max(...scales));
  if (low === high) [low, high] = [low - 1, high + 1];
  const first = steps[0], last = Math.max(steps.at(-1), first + 1);
  const places = points.map((_, at) => {
    const x = (width * (steps[at] - first)) / (last - first), y = (height * (high - scales[at])) / (high - low);
    return [x.toFixed(1), y.toFixed(1)];
  });
  const line = places.map(([x, y], at) => (at ? `H${x}V${y}` : `M${x} ${y}`)).join("");
  const skips = places.filter((_, at) => points[at][2] > (at ? points[at - 1][2] : 0));
  const exponents = [scales[0], scales.at(-1)].map((scale) => `2^${Math.round(scale)}`);
  const words = `Loss scale of ${label}: from ${exponents.join(" to ")} over ${count(last)} steps`;
  return html`<figure class="curve"><figcaption>${words}; ${count(points.at(-1)[2])} skipped</figcaption><div class="axes">${
    ""}<span class="y high">2<sup>${high}</sup></span><span class="y low">2<sup>${low}</sup></span><svg viewBox="0 0 ${
    width} ${height}" preserveAspectRatio="none" role="img" aria-label="${words}"><path class="line" d="${line}"/>${
    skips.map(([x]) => html`<path class="skip" d="M${x} ${height}.0v-14"/>`)}</svg><span class="x first">step ${
    count(first)}</span><span class="x last">${count(last)}</span></div></figure>`;
}

// A search for nodes, and the layers, whose nodes nodes.js lists once they are opened.
function layers({ graphs }) {
  const nodes = graphs.flatMap((graph) => graph.nodes);
  const ranked = grouped(nodes, (node) => node[6]).map(([layer, members]) => {
    const converted = members.filter((node) => node[2]);
    const f16 = sum(converted.map((node) => node[5] ?? 0)), work = sum(members.map((node) => node[5] ?? 0));
    return { layer, f16, work, converted: converted.length, total: members.length };
  });
  ranked.sort((a, b) => b.work - a.work || b.total - a.total);
  const whole = largest(ranked.map((layer) => layer.work));
  const items = ranked.slice(0, MOST_LAYERS).map(({ layer, f16, work, converted, total }) => {
    const words = `${operations(work)}, ${count(converted)} of ${count(total)} nodes in 16 bit`;
    return html`<details data-layer="${layer}"><summary><span>${inLayer(layer)}</span>${
      bar(f16, work - f16, whole, words)}<small>${words}</small></summary></details>`;
  });
  const more = ranked.length - MOST_LAYERS;
  return html`${SEARCH}${LEGEND}<div class="layers">${items}</div>${
    more > 0 ? html`<p>${count(more)} more layers: search for their nodes.</p>` : ""}`;
}

function graphs({ graphs: all }) {
  const rows = all.slice(0, MOST_LAYERS).map((graph, at) => row(
    short(graph.function) || `graph ${at + 1}`, graph.way, `${count(graph.converted)} of ${count(graph.total)}`,
    count(graph.casts), graph.why_nothing || graph.precision || "",
  ));
  const heads = ["Graph", "Came by", "Converted", "Casts", "Precision, or why none"];
  return html`${table(heads, rows)}${left(all.length - MOST_LAYERS, "graphs")}`;
}

function settings({ settings: all, devices, hooks }) {
  const plain = (value) => (value === null ? "none" : Array.isArray(value) ? value.join(", ") : value);
  const changed = all.filter((setting) => setting.from !== "default");
  const rows = changed.map((setting) => row(setting.field, plain(setting.value), setting.from));
  const known = (facts) => Object.entries(facts).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`);
  const { not_installed: missing = {}, ...others } = hooks;
  const notes = [
    ...devices.map((device) => known(device).join(", ")),
    ...Object.entries(others).filter(([, value]) => value).map(([name, value]) => `${name}: ${value}`),
    ...Object.entries(missing).map(([home, why]) => `not installed: ${home} (${why})`),
  ];
  const heads = ["Setting", "Value", "From"];
  return html`${rows.length ? table(heads, rows) : html`<p>All settings have their defaults.</p>`}<ul>${
    notes.map((note) => html`<li>${note}</li>`)}</ul>`;
}

// What follows the counts: key, heading, and a function that gives nothing where there is nothing to show.
const PARTS = [
  ["blockers", "What keeps work in float32", blockers],
  ["ops", "By op", ops],
  ["casts", "Casts", casts],
  ["loss-scale", "Loss scale", lossScale],
  ["nodes", "Layers and nodes", layers],
  ["graphs", "Graphs", graphs],
  ["settings", "Settings and devices", settings],
];

function section(run, [key, heading, make], level, prefix) {
  const inside = escaped(make(run));
  const title = new Html(`<h${level} id="${prefix}${key}">${heading}</h${level}>`);
  return inside ? html`<section>${title}${new Html(inside)}</section>` : "";
}

function article(run, number, runs) {
  const [level, prefix] = runs.length === 1 ? [1, ""] : [2, `run${number}-`];
  const title = new Html(`<h${level} class="title">${escaped(run.title)}</h${level}>`);
  return html`<article id="run${number}"><header><p class="brand">amp_tf report</p>${title}${origin(run)}</header>${hero(run)}${
    tiles(run)}${PARTS.map((part) => section(run, part, level + 1, prefix))}</article>`;
}

function sideBySide(runs) {
  const times = runs.map((run) => run.figures?.estimated_ms);
  const steps = runs.map((run) => new Map(measured(run).map((step) => [step.what, milliseconds(step.median_ms)])));
  const names = [...new Set(steps.flatMap((found) => [...found.keys()]))];
  const best = runs.map((run) => run.blockers.find((blocker) => blocker.gain));
  const rows = [
    ...names.map((name) => [`measured, a step of ${name}`, ...steps.map((found) => found.get(name) ?? "–")]),
    ["products’ work in 16 bit", ...runs.map((run) => share(run.figures?.products_share_f16))],
    ["nodes converted", ...runs.map((run) => `${count(run.converted)} of ${count(run.total)}`)],
    ["casts", ...runs.map((run) => count(run.casts))],
    ["estimated, in float32", ...times.map((time) => milliseconds(time?.float32))],
    ["estimated, with casts", ...times.map((time) => milliseconds(time?.now))],
    ["estimated peak of tensors", ...runs.map(({ figures }) => number(figures?.estimated_peak?.now, "B"))],
    ["skipped steps", ...runs.map((run) => count(sum(run.loss_scales.map((scale) => scale.skipped))))],
    ["largest blocker", ...best.map((first) => (first ? `${first.what || first.kind} (${operations(first.gain)})` : "none"))],
  ];
  const links = runs.map((run, at) => html`<a href="#run${at}">${run.title}</a>`);
  return html`<header><p class="brand">amp_tf report</p><h1>${runs.length} runs side by side</h1></header>${
    table(["", ...links], rows.map((cells) => row(...cells)))}`;
}

const reports = (runs) => html`${runs.length > 1 ? sideBySide(runs) : ""}${runs.map(article)}`;

// The top of a report, for a notebook: the one number, the counts, and what keeps work in float32.
const reportTop = (run) => html`<article>${hero(run)}${tiles(run)}${section(run, PARTS[0], 3, "")}</article>`;
