"use strict";
// Text from data only ever becomes text nodes.
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

// A click on a column's name sorts the rows: numbers by value, what is missing last.
const sortable = (table) => {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const key = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = parseFloat(text.replace("\u2212", "-").replace("\u221e", "Infinity"));
    return [text === "" || text === "\u2013", Number.isNaN(number) ? text : number];
  };
  const compare = ([noA, a], [noB, b], sign) => {
    if (noA || noB) return noA - noB;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return sign * (typeof a === "number" ? (a > b) - (a < b) : a.localeCompare(b));
  };
  heads.forEach((head, column) => {
    const sort = () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [row, key(row, column)]);
      rows.sort((a, b) => compare(a[1], b[1], sign));
      body.append(...rows.map(([row]) => row));
    };
    head.append(make("button", { type: "button", class: "sort", onclick: sort }, ...head.childNodes));
  });
};
for (const table of document.querySelectorAll("table.sortable")) {
  if (table.tBodies[0].rows.length > 1) sortable(table);
}

// Shows the N-best lists, a page of them at a time.
(() => {
  const browser = document.getElementById("nbest-browser");
  if (!browser) return;

  const STEPS = { s: "another word", d: "missing", i: "added" };
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const texts = read("nbest-texts");
  const count = document.querySelectorAll("[id^=nbest-view-]").length;
  const views = [];
  const controls = browser.querySelector("form");
  // what the page has no control for is not chosen
  const chosen = (name) => (controls.elements[name] || { value: "" }).value;
  const rows = document.getElementById("nbest-rows");
  const pagers = [...browser.querySelectorAll(".pager")];
  let first = 0;

  const split = (text) => (text ? text.split(" ") : []);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const plural = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
  const minus = (text) => text.replace("-", "\u2212");
  const shown = (value) => minus(String(Number(value.toPrecision(3))));
  const wrong = (place) => texts[place][1].replaceAll(".", "").length;
  const scroll = (label, table) =>
    make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, table);

  // A view with what filters and orders need; made when it is first looked at.
  const view = (number) => {
    if (views[number]) return views[number];
    const found = read(`nbest-view-${number}`);
    found.number = number;
    found.places = new Map(found.lists.map((list, place) => [list.utt, place]));
    found.lists.forEach((list, place) => {
      list.place = place;
      list.named = new Set(list.biased);
      list.first = wrong(list.hyps[0]);
      list.errors = wrong(list.hyps[list.best]);
      list.change = list.errors - list.first;
      list.changed = list.hyps[0] !== list.hyps[list.best];
    });
    found.ranges = {};
    for (const measure of Object.keys(found.measures)) {
      const words = found.lists.flatMap((list) => Object.values(list.words));
      const values = words.flatMap((item) => item[measure] || []).sort((a, b) => a - b);
      // few words have far smaller or larger values than all others
      const at = (part) => values[Math.floor(part * (values.length - 1))];
      const [low, high] = [at(0.05), at(0.95)];
      found.ranges[measure] = { low, span: high - low || 1 };
    }
    views[number] = found;
    return found;
  };
  const current = () => view(Number(chosen("system")));

  // 1. Which lists are shown, in which order
  const FILTERS = {
    all: () => true,
    changed: (list) => list.changed,
    worse: (list) => list.change > 0,
    better: (list) => list.change < 0,
    wrong: (list) => list.errors > 0,
  };
  const ORDERS = {
    worse: (list) => -list.change,
    better: (list) => list.change,
    errors: (list) => -list.errors,
  };
  const uncertain = (list, name) => {
    const values = (list.words[list.best] || {})[name];
    return values && values.length ? -mean(values) : Infinity;
  };
  const selected = () => {
    const [id, text] = ["utt", "words"].map((name) => chosen(name).trim().toLowerCase());
    const found = current().lists.filter((list) => {
      if (!FILTERS[chosen("filter")](list) || !list.utt.toLowerCase().includes(id)) return false;
      if (!text) return true;
      const lines = [list.ref, texts[list.hyps[0]][0], texts[list.hyps[list.best]][0]];
      return lines.some((line) => line.toLowerCase().includes(text));
    });
    const name = chosen("order");
    const rank = name.startsWith("mean:") ? (list) => uncertain(list, name.slice(5)) : ORDERS[name];
    if (rank) found.sort((a, b) => rank(a) - rank(b) || a.place - b.place);
    return found;
  };

  // 2. Words beside the reference
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
  // Classes of a word: its step, and whether it is in the bias list.
  const kindOf = (step, word, list) =>
    [step === "." ? "" : step, list.named.has(word) ? "b" : ""].join(" ").trim();
  const coloured = ([text, steps], list) => {
    const words = split(text)[Symbol.iterator]();
    const nodes = [...steps].flatMap((step) => {
      const word = step === "d" ? "\u2014" : words.next().value;
      return [" ", make("span", { class: kindOf(step, word, list) }, word)];
    });
    return nodes.length ? nodes.slice(1) : [make("span", { class: "gap" }, "(no words)")];
  };
  const cell = (entry, line, list) => {
    if (!entry) return make("span", { class: "gap" }, "\u00b7");
    const node = make("span", { class: kindOf(entry.step, entry.word, list) }, entry.word);
    const notes = entry.step in STEPS ? [STEPS[entry.step]] : [];
    if (line.values && entry.n !== undefined) {
      for (const [name, label] of Object.entries(line.view.measures)) {
        if (line.values[name]) notes.push(`${label} ${shown(line.values[name][entry.n])}`);
      }
      const given = line.values[chosen("measure")];
      if (given) {
        const { low, span } = line.view.ranges[chosen("measure")];
        const share = Math.max(0, Math.min(1, (given[entry.n] - low) / span));
        node.style.backgroundColor = `rgba(var(--heat), ${(0.45 * share).toFixed(3)})`;
      }
    }
    if (notes.length) node.title = notes.join("; ");
    return node;
  };
  // The first pass and the systems that are looked at; one line where they agree.
  const outputs = (list) => {
    const lines = [];
    const add = (label, item, rank, from) => {
      const [place, values] = [item.hyps[rank], item.words[rank]];
      const same = lines.find((line) =>
        line.place === place && (line.view === from || !(values && line.values)));
      if (same) same.label += `, ${label}`;
      else lines.push({ label, place, values, view: from, ...slots(texts[place]) });
    };
    const own = current();
    if (own.references) add("first pass", list, 0, own);
    const beside = chosen("beside") === "all";
    for (let n = 0; n < count; n++) {
      const from = beside || n === own.number ? view(n) : null;
      const item = from && from.lists[from.places.get(list.utt)];
      if (item) add(beside ? from.name : "rescored", item, item.best, from);
    }
    return lines;
  };
  const alignment = (list) => {
    const lines = outputs(list);
    const column = (head, entries, kind = "") => make("div", { class: `column ${kind}` }, head,
      ...entries.map((entry, n) => cell(entry, lines[n], list)));
    const labels = [current().references ? "reference" : "first pass",
      ...lines.map((line) => line.label)];
    const node = make("div", { class: "alignment" },
      make("div", { class: "column names" }, ...labels.map((text) => make("span", {}, text))));
    const ref = split(list.ref);
    for (let n = 0; n <= ref.length; n++) {
      const added = Math.max(...lines.map((line) => line.before[n].length));
      for (let k = 0; k < added; k++) {
        node.append(column(cell(), lines.map((line) => line.before[n][k])));
      }
      if (n === ref.length) break;
      const head = make("span", { class: kindOf(".", ref[n], list) }, ref[n]);
      node.append(column(head, lines.map((line) => line.at[n])));
    }
    if (chosen("measure") && lines.some((line) => line.values)) {
      const end = (line) => ({ step: ".", word: "</s>", n: line.length });
      node.append(column(make("span", {}, " "), lines.map(end), "end"));
    }
    return node;
  };

  // 3. What is shown of one list, and more of it on demand
  const grid = (label, kind, heads, lines) => {
    const head = heads.map(([text, type]) => make("th", { scope: "col", class: type || "" }, text));
    const body = lines.map(([type, ...cells]) => make("tr", { class: type }, ...cells));
    return scroll(label, make("table", { class: kind },
      make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
  };
  const hypotheses = (list) => {
    const { references } = current();
    const scores = Object.entries(list.scores);
    const fewest = Math.min(...list.hyps.map(wrong));
    const heads = [["rank"], ...(references ? [["errors"]] : []), ["hypothesis", "words"],
      ...scores.map(([name]) => [name])];
    const lines = list.hyps.map((place, n) => {
      const marks = [n === 0 && "first pass", n === list.best && "rescored",
        references && wrong(place) === fewest && "fewest errors"].filter(Boolean);
      return [n === 0 || n === list.best ? "chosen" : "",
        make("th", { scope: "row" }, String(n + 1)),
        ...(references ? [make("td", {}, String(wrong(place)))] : []),
        make("td", { class: "words" }, ...coloured(texts[place], list), " ",
          make("small", { class: "gap" }, marks.length ? `(${marks.join(", ")})` : "")),
        ...scores.map(([, values]) => make("td", {}, minus(values[n].toFixed(2))))];
    });
    return grid(`Hypotheses of ${list.utt}`, "hyps", heads, lines);
  };
  const uncertainties = (list) => {
    const values = list.words[list.best];
    if (!values) return [];
    const given = Object.keys(values);
    const heads = [["rescored", "words"], ...given.map((name) => [current().measures[name]])];
    const lines = [...split(texts[list.hyps[list.best]][0]), "</s>"].map((word, n) =>
      ["", make("th", { scope: "row" }, word),
        ...given.map((name) => make("td", {}, shown(values[name][n])))]);
    return [grid(`Uncertainty of the words of ${list.utt}`, "values", heads, lines)];
  };
  const article = (list) => {
    const notes = [];
    if (current().references) {
      const worse = list.change > 0;
      if (list.change) {
        notes.push(make("span", { class: worse ? "worse" : "better" },
          `${worse ? "+" : "\u2212"}${plural(Math.abs(list.change), "error")}`));
      }
      const both = list.changed ? `${list.first} \u2192 ${list.errors}` : `${list.errors}`;
      notes.push(make("span", {}, `${both} of ${plural(split(list.ref).length, "word")} wrong`));
    } else if (list.changed) notes.push(make("span", {}, "changed"));
    const number = list.hyps.length;
    const more = make("details", {},
      make("summary", {}, number === 1 ? "1 hypothesis" : `${number} hypotheses`));
    more.addEventListener("toggle", () => {
      if (more.open && more.children.length === 1) {
        more.append(hypotheses(list), ...uncertainties(list));
      }
    });
    const link = make("a", { class: "link", href: `#utt=${encodeURIComponent(list.utt)}`,
      "aria-label": `Link to ${list.utt}` }, "#");
    return make("article", { class: "utt" }, make("h3", {}, list.utt, ...notes, link),
      alignment(list), more);
  };
  const show = () => {
    const found = selected();
    const step = Number(chosen("size"));
    first = Math.max(0, Math.min(first, step * Math.floor((found.length - 1) / step)));
    const part = found.slice(first, first + step);
    rows.replaceChildren(...part.map(article));
    const all = current().lists.length;
    const range = found.length ? `${first + 1}\u2013${first + part.length} of ${found.length}` : "none";
    for (const [back, next, status] of pagers.map((pager) => pager.children)) {
      back.disabled = first === 0;
      next.disabled = first + step >= found.length;
      status.textContent = found.length === all ? range : `${range} (of ${plural(all, "utterance")})`;
    }
    pagers[1].hidden = part.length < 10;
  };

  // 4. A link to one utterance shows it among all others, opened
  const follow = () => {
    const match = /^#utt=(.*)$/.exec(location.hash);
    if (!match) return;
    const utt = decodeURIComponent(match[1].replace(/%(?![0-9a-f]{2})/gi, "%25"));
    const systems = [...Array(count).keys()].sort((a) => (a === current().number ? -1 : 0));
    const system = systems.find((n) => view(n).places.has(utt));
    if (system === undefined) return;
    const beside = chosen("beside");
    controls.reset();
    if (count > 1) [controls.elements.system.value, controls.elements.beside.value] = [system, beside];
    const place = current().places.get(utt);
    first = place - (place % Number(chosen("size")));
    show();
    const node = rows.children[place - first];
    node.classList.add("target");
    node.querySelector("details").open = true;
    node.scrollIntoView();
  };
  const restart = () => {
    first = 0;
    show();
  };

  pagers.forEach((pager, bottom) => [-1, 1].forEach((direction, n) => {
    pager.children[n].addEventListener("click", () => {
      first += direction * Number(chosen("size"));
      show();
      if (bottom) controls.scrollIntoView();
    });
  }));
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("input", restart);
  addEventListener("hashchange", follow);
  browser.hidden = false;
  show();
  follow();
})();
