"use strict";
// Shows what the page holds: the documents, unpacked, as HTML, and what may be pressed in it.

function rendered({ documents, isPart }) {
  return (isPart ? reportTop(documents[0]) : reports(documents)).text;
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

async function show() {
  const main = document.getElementById("main");
  const data = await unpack(document.getElementById("documents").textContent);
  main.innerHTML = rendered(data);
  if (data.isPart) {
    main.querySelectorAll("button").forEach((button) => button.replaceWith(make("code", button.textContent)));
  } else {
    main.querySelectorAll("article[id]").forEach((element, at) => listen(element, data.documents[at]));
  }
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

function tell(error) {
  console.error(error);
  document.getElementById("main").textContent = `This page cannot be shown here (${error.message}); the JSON file has it all.`;
}

if (typeof document !== "undefined") show().catch(tell);
