"use strict";
// What may be pressed in a report: the search for nodes, the way of a node's decision, and the nodes of a layer.

const MOST_FOUND = 50, MOST_LISTED = 200;

function make(tag, text, parent) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function listen(article, run) {
  const input = article.querySelector("input[type=search]");
  const found = article.querySelector(".found");
  const nodes = run.graphs.flatMap((graph) => graph.nodes.map(([name, op, isF16, reason, cause, work, layer]) =>
    ({ name, op, reason, cause, work: work ?? -1, layer, graph, precision: isF16 ? graph.precision : "float32" })));

  const describe = ({ name, op, precision, reason }) => `${name} (${op}), ${precision}: ${reason}`;

  function showPath(node) {
    found.replaceChildren();
    const box = make("div", undefined, found);
    box.className = "path";
    box.tabIndex = -1;
    make("b", node.name, box);
    if (node.graph.function) make("small", `in function ${node.graph.function}`, box);
    const steps = make("ol", undefined, box);
    const byName = new Map(nodes.filter((other) => other.graph === node.graph).map((other) => [other.name, other]));
    const seen = new Set();
    for (let at = node; at && !seen.has(at); at = byName.get(at.cause)) {
      seen.add(at);
      make("li", describe(at), steps);
    }
    box.focus();
    box.scrollIntoView({ block: "nearest" });
  }

  function list(shown, parent, more) {
    const items = make("ol", undefined, parent);
    for (const node of shown) {
      const item = make("li", undefined, items);
      const button = make("button", node.name, item);
      button.type = "button";
      button.addEventListener("click", () => showPath(node));
      make("small", `${node.op}, ${node.precision}`, item);
    }
    if (more > 0) make("p", `and ${count(more)} more`, parent);
  }

  function search() {
    const wanted = input.value.trim().toLowerCase();
    found.replaceChildren();
    if (!wanted) return;
    const hits = nodes.filter(({ name, op }) => name.toLowerCase().includes(wanted) || op.toLowerCase() === wanted);
    make("p", hits.length === 1 ? "1 node" : `${count(hits.length)} nodes`, found);
    list(hits.slice(0, MOST_FOUND), found, hits.length - MOST_FOUND);
  }

  function fill(details) {
    if (!details.open || details.dataset.filled) return;
    details.dataset.filled = "yes";
    const members = nodes.filter((node) => node.layer === details.dataset.layer).sort((a, b) => b.work - a.work);
    list(members.slice(0, MOST_LISTED), details, members.length - MOST_LISTED);
  }

  input.addEventListener("input", search);
  article.querySelector("form.search").addEventListener("submit", (event) => event.preventDefault());
  article.querySelectorAll("details[data-layer]").forEach((details) => details.addEventListener("toggle", () => fill(details)));
  article.querySelectorAll("button.node").forEach((button) => {
    button.addEventListener("click", () => {
      input.value = button.dataset.node;
      const node = nodes.find(({ name }) => name === button.dataset.node);
      if (node) showPath(node);
      else search();
    });
  });
}
