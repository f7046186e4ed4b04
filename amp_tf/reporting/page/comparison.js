"use strict";
// A comparison, or the ranges of float16, as amp_tf.tools.comparing makes them; text is what the terminal shows.

const MOST_NODES = 100; // the JSON has them all
const NO_TRUTH = 0.01; // that of amp_tf.tools.comparing.verdicts

// A number of a document, in which what JSON has no number for is a text.
const real = (value) => ({ inf: Infinity, "-inf": -Infinity, nan: NaN })[value] ?? value;
const per = (value) => `${(100 * real(value)).toFixed(2)}%`;

// A relative error.
function figure(value) {
  const error = real(value);
  if (!Number.isFinite(error)) return Number.isNaN(error) ? "nan" : "inf";
  return error >= 1e-4 || !error ? per(error) : general(error, 1);
}

function labelled(heading, heads, rows) {
  if (!rows.length) return "";
  const cell = (value, at) =>
    html`<td data-head="${heads[at]}">${heads[at] === "line" ? html`<code>${value}</code>` : path(value)}</td>`;
  return headed(heading, table(heads, rows.map((cells) => html`<tr>${cells.map(cell)}</tr>`), "wide labelled"));
}

const headed = (heading, inside) => html`<section><h2>${heading}</h2>${inside}</section>`;

function advice({ line, worth, text }) {
  if (line) return headed("What to write", html`<p>It ${worth}.</p><pre>${line}</pre>`);
  const said = text.split("\n").find((words) => words.startsWith("No setting") || words.startsWith("What would"));
  return headed("What to write", html`<p>${said}</p>`);
}

const hasNoTruth = (output) => !(real(output.noise) <= NO_TRUTH);

function compared(found) {
  const outputs = [...found.outputs].sort((a, b) => a.is_good - b.is_good || real(b.ratio) - real(a.ratio));
  const nodes = found.nodes.filter((node) => node.local !== null && node.has_truth);
  nodes.sort((a, b) => (a.local === b.local ? 0 : real(b.local) - real(a.local)));
  const first = found.first_divergence;
  const findings = found.findings.map((finding) => [
    `${finding.kind}: ${finding.node} (${finding.op})`, finding.why, figure(finding.local_error),
    figure(finding.accumulated_error), finding.worth, finding.line,
  ]);
  const judged = outputs.map((output) => [
    output.kind === output.name ? output.name : `${output.kind} ${output.name}`, figure(output.error), figure(output.ideal),
    figure(output.noise), hasNoTruth(output) ? "–" : general(real(output.ratio), 3),
    !output.is_good ? "no" : hasNoTruth(output) ? "float32 itself has no two digits of it" : "yes",
  ]);
  const measured = nodes.slice(0, MOST_NODES).map((node) => [
    node.name, node.op, node.is_f16 ? "16 bit" : "float32", figure(node.local), figure(node.accumulated),
  ]);
  return html`${found.is_healthy ? "" : advice(found)}${
    first ? headed("First divergence", html`<p>${path(first.name)} (${first.op}), error ${figure(first.accumulated)} in the run</p>`) : ""}${
    labelled("Findings", ["where", "why", "own error", "with its inputs’", "alone", "line"], findings)}${
    labelled("Outputs", ["output", "error", "products", "noise", "ratio", "good"], judged)}${
    labelled("Nodes, by their own errors", ["node", "op", "result", "own error", "with its inputs’"], measured)}`;
}

function ranges({ nodes }) {
  const rows = nodes.map((node) => [
    node.name, node.op, node.is_f16 ? "float16" : "float32", per(node.over), per(node.under), general(real(node.largest), 3),
    general(real(node.smallest), 1),
  ]);
  const heads = ["tensor", "op", "would be", "above 65,504", "becomes zero", "largest", "smallest"];
  return labelled("Tensors that leave float16's range", heads, rows);
}

const comparison = (found) => html`<article><header><p class="brand">amp_tf comparison</p><h1 class="title">${
  found.text.split("\n")[0]}</h1>${found.headline ? html`<p>${found.text.split("\n")[1]}</p>` : ""}</header>${found.schema === "amp_tf.ranges" ? ranges(found) : compared(found)}${
  found.notes.map((note) => html`<p class="note">${note}</p>`)}</article>`;
