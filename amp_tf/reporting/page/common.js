"use strict";
// What all pages are made of: safe HTML, numbers as people read them, tables, bars and sections.

class Html {
  constructor(text) { this.text = text; }
}

function escaped(value) {
  if (value instanceof Html) return value.text;
  if (Array.isArray(value)) return value.map(escaped).join("");
  return String(value ?? "").replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

// html`<b>${name}</b>`: HTML in which every value is escaped, unless it is HTML itself.
const html = (texts, ...values) => new Html(texts.map((text, at) => text + escaped(values[at])).join(""));

// A name with scopes, which breaks between them first.
const path = (name) => new Html(escaped(name).replaceAll("/", "/<wbr>"));

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const largest = (numbers) => numbers.reduce((most, number) => Math.max(most, number), 0); // of any count
const count = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });

// A number of so many digits at most, as Python's format "g" has it.
function general(value, digits) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value < 0 ? "-inf" : "inf";
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  if (exponent >= -4 && exponent < digits) return String(Number(value.toPrecision(digits)));
  return `${Number(mantissa)}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

// Three digits and a unit, such as 907 MFLOP.
function number(value, unit) {
  if (value == null) return "unknown";
  const rounded = Number(value.toPrecision(3)); // so that what is rounded up to a thousand gets the next prefix
  const prefixes = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [scale, prefix] = prefixes.find(([size]) => Math.abs(rounded) >= size) ?? [1, ""];
  return `${general(rounded / scale, 3)} ${prefix}${unit}`;
}

const operations = (value) => number(value, "FLOP");

// A share in per cent; one that is not all, or not nothing, is not rounded to it.
function share(part) {
  if (part == null) return "unknown";
  if (part >= 0.999 && part < 1) return part < 0.9999 ? "99.9 %" : ">99.9 %";
  if (part > 0 && part < 0.001) return "<0.1 %";
  return part < 1 ? `${general(100 * part, 3)} %` : "100 %";
}

function milliseconds(value) {
  if (value == null) return "unknown";
  return `${value < 999.5 ? general(value, 3) : count(value)} ms`;
}

const table = (heads, rows, kind) => html`<div class="scroll"><table${kind ? html` class="${kind}"` : ""}><thead><tr>${
  heads.map((head) => html`<th>${head}</th>`)}</tr></thead><tbody>${rows}</tbody></table></div>`;

const left = (more, what) => (more > 0 ? html`<p>${count(more)} more ${what} are in the JSON file.</p>` : "");

// A bar of two parts, 16 bit first; words say the same to those who do not see it.
function bar(f16, float32, whole, words) {
  const [first, second] = [f16, float32].map((part) => (whole ? (100 * part) / whole : 0).toFixed(3));
  return html`<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="${words}">${
    ""}<rect class="rest" width="100" height="10"/><rect class="f16" width="${first}" height="10"/>${
    ""}<rect class="float32" x="${first}" width="${second}" height="10"/></svg>`;
}
