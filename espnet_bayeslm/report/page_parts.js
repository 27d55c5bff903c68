"use strict";
// What the page's program is made of: elements, and words beside the reference.
// Text from data only ever becomes text nodes.
const STEPS = { s: "another word", d: "missing", i: "added" };

const make = (name, properties = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") node.className = value;
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
};
const split = (text) => (text ? text.split(" ") : []);
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const shown = (value) => String(Number(value.toPrecision(3))).replace("-", "\u2212");

// What stands before, and at, each word of the reference.
const slots = ([text, steps]) => {
  const hyp = split(text);
  const before = [[]];
  const at = [];
  let n = 0;
  for (const step of steps) {
    if (step === "i") before[before.length - 1].push({ step, word: hyp[n], n: n++ });
    else {
      at.push(step === "d" ? { step, word: "\u2014" } : { step, word: hyp[n], n: n++ });
      before.push([]);
    }
  }
  return { before, at, length: n };
};

// A hypothesis in one line.
const coloured = ([text, steps]) => {
  const hyp = split(text);
  const nodes = [];
  let n = 0;
  for (const step of steps) {
    if (nodes.length) nodes.push(" ");
    const word = step === "d" ? "\u2014" : hyp[n++];
    nodes.push(make("span", { class: step === "." ? "" : step }, word));
  }
  return nodes.length ? nodes : [make("span", { class: "gap" }, "(no words)")];
};

const scroll = (label, table) =>
  make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, table);
