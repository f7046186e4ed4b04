"use strict";
(() => {
  const MOST = 50, LONGEST = 200;

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).json();
  }

  function make(tag, text, parent) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }

  function run(article) {
    const packed = article.querySelector("script.nodes").textContent;
    const input = article.querySelector("input[type=search]");
    const found = article.querySelector(".found");
    let loading;
    const nodes = () => (loading = loading || unpack(packed));

    function precision(data, node) {
      return data.f16[node] ? data.graphs[data.graph[node]].precision : "float32";
    }

    function describe(data, node) {
      const cause = data.cause[node];
      const reason = data.reasons[data.reason[node]].replace("{cause}", cause < 0 ? "" : `'${data.name[cause]}'`);
      return `${data.name[node]} (${data.ops[data.op[node]]}), ${precision(data, node)}: ${reason}`;
    }

    function path(data, node) {
      found.replaceChildren();
      const box = make("div", undefined, found);
      box.className = "path";
      box.tabIndex = -1;
      const home = data.graphs[data.graph[node]].function;
      make("b", data.name[node], box);
      if (home) make("small", `in function ${home}`, box);
      const list = make("ol", undefined, box);
      const seen = new Set();
      for (let at = node; at >= 0 && !seen.has(at); at = data.cause[at]) {
        seen.add(at);
        make("li", describe(data, at), list);
      }
      box.focus();
      box.scrollIntoView({ block: "nearest" });
    }

    function list(data, numbers, parent, more) {
      const items = make("ol", undefined, parent);
      for (const node of numbers) {
        const item = make("li", undefined, items);
        const button = make("button", data.name[node], item);
        button.type = "button";
        button.addEventListener("click", () => path(data, node));
        make("small", `${data.ops[data.op[node]]}, ${precision(data, node)}`, item);
      }
      if (more > 0) make("p", `and ${more.toLocaleString("en")} more`, parent);
    }

    async function search(exact) {
      const wanted = (exact || input.value).trim().toLowerCase();
      if (!wanted) return found.replaceChildren();
      const data = await nodes();
      const hits = [];
      let count = 0;
      for (let node = 0; node < data.name.length; node++) {
        const name = data.name[node].toLowerCase();
        const matches = exact
          ? name === wanted
          : name.includes(wanted) || data.ops[data.op[node]].toLowerCase() === wanted;
        if (matches && ++count <= MOST) hits.push(node);
      }
      if (exact && hits.length) return path(data, hits[0]);
      found.replaceChildren();
      make("p", count === 1 ? "1 node" : `${count.toLocaleString("en")} nodes`, found);
      list(data, hits, found, count - hits.length);
    }

    async function fill(details) {
      if (!details.open || details.dataset.filled) return;
      details.dataset.filled = "yes";
      const data = await nodes();
      const layer = data.layers.indexOf(details.dataset.layer);
      const all = [];
      data.layer.forEach((number, node) => number === layer && all.push(node));
      all.sort((a, b) => data.work[b] - data.work[a]);
      list(data, all.slice(0, LONGEST), details, all.length - LONGEST);
    }

    function tell() {
      found.replaceChildren();
      make("p", "This browser cannot unpack the nodes; the JSON file has them all.", found);
    }

    input.addEventListener("input", () => search().catch(tell));
    article.querySelector("form.search").addEventListener("submit", (event) => event.preventDefault());
    article.querySelectorAll("details[data-layer]").forEach((details) => {
      details.addEventListener("toggle", () => fill(details).catch(tell));
    });
    article.querySelectorAll("button.node").forEach((button) => {
      button.addEventListener("click", () => {
        input.value = button.dataset.node;
        search(button.dataset.node).catch(tell);
      });
    });
  }

  document.querySelectorAll("article").forEach(run);
})();
