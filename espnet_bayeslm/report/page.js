// Shows the N-best lists, a page of them at a time.
(() => {
  const browser = document.getElementById("nbest-browser");
  if (!browser) return;

  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const texts = read("nbest-texts");
  const names = read("nbest-names");
  const views = [];
  const SIZES = [20, 50, 100, 200];

  const wrong = (place) => texts[place][1].replaceAll(".", "").length;

  // A view with what filters and orders need; made when it is first looked at.
  const view = (number) => {
    if (views[number]) return views[number];
    const found = read(`nbest-view-${number}`);
    found.lists.forEach((list, place) => {
      list.place = place;
      list.first = wrong(list.hyps[0]);
      list.errors = wrong(list.hyps[list.best]);
      list.change = list.errors - list.first;
      list.changed = list.hyps[0] !== list.hyps[list.best];
    });
    found.ranges = {};
    for (const measure of Object.keys(found.measures)) {
      const values = [];
      for (const list of found.lists) {
        for (const words of Object.values(list.words)) values.push(...(words[measure] || []));
      }
      values.sort((a, b) => a - b);
      // few words have far smaller or larger values than all others
      const at = (part) => values[Math.floor(part * (values.length - 1))];
      const [low, high] = [at(0.05), at(0.95)];
      found.ranges[measure] = { low, span: high - low || 1 };
    }
    views[number] = found;
    return found;
  };

  // 1. The controls
  const select = (name, options) =>
    make("select", { name }, ...options.map(([value, text]) => make("option", { value }, text)));
  const labelled = (text, control) => make("label", {}, text, control);
  const system = select("system", names.map((name, n) => [String(n), name]));
  const utt = make("input", { type: "search", name: "utt", autocomplete: "off" });
  const words = make("input", { type: "search", name: "words", autocomplete: "off" });
  const filter = make("select", { name: "filter" });
  const order = make("select", { name: "order" });
  const measure = make("select", { name: "measure" });
  const size = select("size", SIZES.map((n) => [String(n), String(n)]));
  const measures = labelled("Shade words by", measure);
  const controls = make(
    "form",
    { class: "controls" },
    ...(names.length > 1 ? [labelled("System", system)] : []),
    labelled("Utterance id contains", utt),
    labelled("Words contain", words),
    labelled("Show", filter),
    labelled("Order", order),
    measures,
    labelled("Per page", size),
  );
  const legend = make("p", { class: "legend" });
  const rows = make("div", { id: "nbest-rows" });
  const pagers = [true, false].map((top) => {
    const back = make("button", { type: "button" }, "\u2039 Previous");
    const next = make("button", { type: "button" }, "Next \u203a");
    // one of the two is enough for those who listen
    const status = make("span", top ? { role: "status" } : {});
    const node = make("div", { class: "pager" }, back, next, status);
    back.addEventListener("click", () => turn(-1, top));
    next.addEventListener("click", () => turn(1, top));
    return { node, back, next, status };
  });
  browser.append(legend, controls, pagers[0].node, rows, pagers[1].node);
  let first = 0;

  const turn = (direction, top) => {
    first += direction * Number(size.value);
    show();
    if (!top) controls.scrollIntoView();
  };
  const restart = () => {
    first = 0;
    show();
  };
  const fill = (control, options) => {
    const before = control.value;
    control.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
    if (options.some(([value]) => value === before)) control.value = before;
  };
  const choices = () => {
    const chosen = view(Number(system.value));
    const errors = chosen.references;
    fill(filter, [
      ["all", "all"],
      ["changed", "only changed"],
      ...(errors
        ? [["worse", "only worse"], ["better", "only better"], ["wrong", "only with errors"]]
        : []),
    ]);
    fill(order, [
      ["file", "as in the file"],
      ...(errors
        ? [
            ["worse", "change in errors, worst first"],
            ["better", "change in errors, best first"],
            ["errors", "most errors first"],
          ]
        : []),
      ...Object.entries(chosen.measures).map(([key, text]) =>
        [`mean:${key}`, `largest mean ${text} first`]),
    ]);
    fill(measure, [["", "nothing"], ...Object.entries(chosen.measures)]);
    measures.hidden = !Object.keys(chosen.measures).length;
    legend.replaceChildren(
      ...(errors ? ["Compared with the reference: "] : ["Compared with the first pass: "]),
      make("span", { class: "s" }, "another word"), ", ",
      make("span", { class: "d" }, "\u2014"), " a missing word, ",
      make("span", { class: "i" }, "added"), ".",
    );
  };

  // 2. Which lists are shown, in which order
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
  const chosen = () => {
    const [id, text] = [utt, words].map((input) => input.value.trim().toLowerCase());
    const found = view(Number(system.value)).lists.filter((list) => {
      if (!FILTERS[filter.value](list) || !list.utt.toLowerCase().includes(id)) return false;
      if (!text) return true;
      const shownTexts = [list.ref, texts[list.hyps[0]][0], texts[list.hyps[list.best]][0]];
      return shownTexts.some((line) => line.toLowerCase().includes(text));
    });
    const name = order.value;
    const rank = name.startsWith("mean:") ? (list) => uncertain(list, name.slice(5)) : ORDERS[name];
    if (rank) found.sort((a, b) => rank(a) - rank(b) || a.place - b.place);
    return found;
  };

  // 3. Alignment with the reference
  const cell = (entry, values, current) => {
    if (!entry) return make("span", { class: "gap" }, "\u00b7");
    const node = make("span", { class: entry.step === "." ? "" : entry.step }, entry.word);
    const notes = entry.step in STEPS ? [STEPS[entry.step]] : [];
    if (values && entry.n !== undefined) {
      for (const [name, label] of Object.entries(current.measures)) {
        if (values[name]) notes.push(`${label} ${shown(values[name][entry.n])}`);
      }
      const given = values[measure.value];
      if (given) {
        const { low, span } = current.ranges[measure.value];
        const share = Math.max(0, Math.min(1, (given[entry.n] - low) / span));
        node.style.backgroundColor = `rgba(var(--heat), ${(0.45 * share).toFixed(3)})`;
      }
    }
    if (notes.length) node.title = notes.join("; ");
    return node;
  };
  const alignment = (list, current) => {
    const places = [[list.hyps[0], 0, "first pass"], [list.hyps[list.best], list.best, "rescored"]];
    const labels = current.references ? ["reference"] : ["first pass"];
    if (!current.references) places.shift();
    else if (!list.changed) places.splice(0, 2, [places[1][0], list.best, "both"]);
    const lines = places.map(([place, rank]) =>
      ({ ...slots(texts[place]), values: list.words[rank] }));
    labels.push(...places.map((entry) => entry[2]));
    const column = (head, entries, kind = "") =>
      make("div", { class: `column ${kind}` }, head,
        ...entries.map((entry, n) => cell(entry, lines[n].values, current)));
    const node = make("div", { class: "alignment" },
      make("div", { class: "column names" }, ...labels.map((text) => make("span", {}, text))));
    const ref = split(list.ref);
    for (let n = 0; n <= ref.length; n++) {
      const added = Math.max(...lines.map((line) => line.before[n].length));
      for (let k = 0; k < added; k++) {
        node.append(column(cell(), lines.map((line) => line.before[n][k])));
      }
      if (n === ref.length) break;
      node.append(column(make("span", {}, ref[n]), lines.map((line) => line.at[n])));
    }
    if (measure.value && lines.some((line) => line.values)) {
      const end = (line) => ({ step: ".", word: "</s>", n: line.length });
      node.append(column(make("span", {}, " "), lines.map(end), "end"));
    }
    return node;
  };

  // 4. What is shown of one list, and more of it on demand
  const hypotheses = (list, current) => {
    const scores = Object.entries(list.scores);
    const fewest = Math.min(...list.hyps.map(wrong));
    const heads = ["rank", ...(current.references ? ["errors"] : []), "hypothesis",
      ...scores.map(([name]) => name)];
    const head = make("tr", {}, ...heads.map((text) =>
      make("th", { scope: "col", class: text === "hypothesis" ? "words" : "" }, text)));
    const body = list.hyps.map((place, n) => {
      const marks = [n === 0 && "first pass", n === list.best && "rescored",
        current.references && wrong(place) === fewest && "fewest errors"].filter(Boolean);
      return make("tr", { class: n === 0 || n === list.best ? "chosen" : "" },
        make("th", { scope: "row" }, String(n + 1)),
        ...(current.references ? [make("td", {}, String(wrong(place)))] : []),
        make("td", { class: "words" }, ...coloured(texts[place]), " ",
          make("small", { class: "gap" }, marks.length ? `(${marks.join(", ")})` : "")),
        ...scores.map(([, values]) => make("td", {}, values[n].toFixed(2).replace("-", "\u2212"))));
    });
    return scroll(`Hypotheses of ${list.utt}`,
      make("table", { class: "hyps" }, make("thead", {}, head), make("tbody", {}, ...body)));
  };
  const uncertainties = (list, current) => {
    const values = list.words[list.best];
    if (!values) return [];
    const given = Object.keys(values);
    const head = make("tr", {}, make("th", { scope: "col", class: "words" }, "rescored"),
      ...given.map((name) => make("th", { scope: "col" }, current.measures[name])));
    const body = [...split(texts[list.hyps[list.best]][0]), "</s>"].map((word, n) =>
      make("tr", {}, make("th", { scope: "row" }, word),
        ...given.map((name) => make("td", {}, shown(values[name][n])))));
    return [scroll(`Uncertainty of the words of ${list.utt}`,
      make("table", { class: "values" }, make("thead", {}, head), make("tbody", {}, ...body)))];
  };
  const article = (list, current) => {
    const notes = [];
    if (current.references) {
      const sign = list.change > 0 ? "+" : "\u2212";
      if (list.change) {
        notes.push(make("span", { class: list.change > 0 ? "worse" : "better" },
          `${sign}${plural(Math.abs(list.change), "error")}`));
      }
      const both = list.changed ? `${list.first} \u2192 ${list.errors}` : `${list.errors}`;
      notes.push(make("span", {}, `${both} of ${plural(split(list.ref).length, "word")} wrong`));
    } else if (list.changed) notes.push(make("span", {}, "changed"));
    const count = list.hyps.length;
    const more = make("details", {},
      make("summary", {}, count === 1 ? "1 hypothesis" : `${count} hypotheses`));
    more.addEventListener("toggle", () => {
      if (more.open && more.children.length === 1) {
        more.append(hypotheses(list, current), ...uncertainties(list, current));
      }
    });
    return make("article", { class: "utt" }, make("h3", {}, list.utt, ...notes),
      alignment(list, current), more);
  };
  const show = () => {
    const current = view(Number(system.value));
    const found = chosen();
    const step = Number(size.value);
    first = Math.max(0, Math.min(first, step * Math.floor((found.length - 1) / step)));
    const part = found.slice(first, first + step);
    rows.replaceChildren(...part.map((list) => article(list, current)));
    const total = plural(current.lists.length, "utterance");
    const end = first + part.length;
    const range = found.length ? `${first + 1}\u2013${end} of ${found.length}` : "none";
    const text = found.length === current.lists.length ? range : `${range} (of ${total})`;
    for (const pager of pagers) {
      pager.back.disabled = first === 0;
      pager.next.disabled = first + step >= found.length;
      pager.status.textContent = text;
    }
    pagers[1].node.hidden = part.length < 10;
  };

  controls.addEventListener("submit", (event) => event.preventDefault());
  for (const control of [filter, order, measure, size]) control.addEventListener("change", restart);
  for (const control of [utt, words]) control.addEventListener("input", restart);
  system.addEventListener("change", () => {
    choices();
    restart();
  });
  choices();
  if (measure.options.length > 1) {
    measure.value = "entropy";
    // where it is not among them
    if (!measure.value) measure.value = measure.options[1].value;
  }
  show();
})();
