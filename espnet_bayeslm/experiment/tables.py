"""The tables of a results file, in Markdown: of its systems, then of the LMs themselves."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from espnet_bayeslm.configs.tables import SEARCHED, paper_figures
from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.experiment.cells import NOTHING, Values, by_seed, cell, change, mean, table
from espnet_bayeslm.experiment.outputs import Json
from espnet_bayeslm.experiment.plan import ALONE, NGRAM, POINT
from espnet_bayeslm.experiment.view import View
from espnet_bayeslm.report.table import signed

NOT_RUN = "not run"
ROLES = (ALONE, NGRAM, POINT)


def perplexity_table(view: View) -> str:
    """Perplexities: alone, with the n-gram, with n-gram and point-estimate LM."""
    ngram = [cell(view.ppl(view.ngram, text), view.seeds) for text in view.sets]
    rows = [[view.ngram_label, *ngram, *[NOTHING] * 4, _paper_of(view, "ngram")[0], NOTHING]]
    for line in view.lines:
        cells = [
            cell(view.ppl(line["systems"].get(role), text), line["seeds"])
            for role in ROLES
            for text in view.sets
        ]
        if not any(cells):
            cells[0] = NOT_RUN
        figures = [line["paper"][role]["ppl"] for role in (NGRAM, POINT)]
        rows.append([view.numbered(line), *cells, *map(_paper, figures)])
    point = f"+ {view.ngram_label} + point"
    names = ("alone", f"+ {view.ngram_label}", point)
    header = ["", *(f"{name}: {text}" for name in names for text in view.sets)]
    return table([*header, f"paper, {names[1]}", f"paper, {point}"], rows)


def _paper_of(view: View, name: str) -> Tuple[str, str]:
    """Paper's figures of what all lines share; none where no line has the paper's."""
    of_paper = any(line["paper"][NGRAM]["ppl"] != "-" for line in view.lines)
    return paper_figures(view.content["paper"], name) if of_paper else (NOTHING, NOTHING)


def _paper(value: str) -> str:
    return NOTHING if value == "-" else value


def error_table(view: View) -> str:
    """Word error rates in % of the test set, by condition and pooled, with daggers."""
    empty = [NOTHING] * len(view.columns)
    rows = [["first pass", *list_rates(view, "first_pass"), *empty, NOTHING, NOTHING]]
    rates = [cell(view.wer(view.ngram, view.test, c), view.seeds, 2) for c in view.columns]
    rows.append([f"{view.ngram_label} alone", *rates, *empty, _paper_of(view, "ngram")[1], NOTHING])
    for line in view.lines:
        cells = [c for role in (NGRAM, POINT) for c in error_cells(view, line, role)]
        if not any(cells):
            cells[0] = NOT_RUN
        figures = [line["paper"][role]["wer"] for role in (NGRAM, POINT)]
        rows.append([view.numbered(line), *cells, *map(_paper, figures)])
    rows.append(
        ["oracle", *list_rates(view, "oracle"), *empty, _paper_of(view, "oracle")[1], NOTHING]
    )
    names = (f"+ {view.ngram_label}", f"+ {view.ngram_label} + point")
    header = ["", *(f"{name}: {c}" for name in names for c in view.columns)]
    return table([*header, *(f"paper, {name}" for name in names)], rows)


def list_rates(view: View, which: str) -> List[str]:
    """What the lists themselves have: the first pass or the oracle of the test set."""
    errors = view.content["lists"][view.test][which]
    return [f"{errors[condition]['wer']:.2f}" for condition in view.columns]


def error_cells(view: View, line: Json, role: str) -> List[str]:
    """Line's word error rates of the test set; the pooled one has the mark."""
    name = line["systems"].get(role)
    cells = [cell(view.wer(name, view.test, c), line["seeds"], 2) for c in view.columns]
    mark = view.mark(name, line)
    return [*cells[:-1], f"{cells[-1]} {mark}".rstrip()]


def change_table(view: View) -> str:
    """Changes of each line + n-gram + point against point + n-gram, by seed."""
    rows = []
    for line in view.lines:
        name, base = line["systems"].get(POINT), line["base"]
        if view.is_mixture(line) and base != line["systems"][NGRAM]:
            name = line["systems"][NGRAM]
        ratios = change(view.ppl(name, view.test), view.ppl(base, view.test))
        ratios = {seed: ratio for seed, ratio in ratios.items() if seed in line["seeds"]}
        if ratios:
            rows.append(
                [view.numbered(line), *_by_seed(view, ratios), *error_changes(view, name, line)]
            )
    header = ["", *(f"ppl, seed {seed}" for seed in view.seeds)]
    header += [f"WER, seed {seed}" for seed in view.seeds if view.conditions]
    return table(header, rows)


def _by_seed(view: View, values: Dict[int, float]) -> List[str]:
    return [f"{signed(values[seed])} %" if seed in values else NOTHING for seed in view.seeds]


def error_changes(view: View, name: Optional[str], line: Json) -> List[str]:
    """Change of the pooled word error rate by seed, with its interval and p."""
    if not view.conditions:
        return []
    tests = view.tests_of(name, line["base"], line["seeds"])
    return [_test_cell(tests[seed]) if seed in tests else NOTHING for seed in view.seeds]


def _test_cell(test: Mapping[str, Any]) -> str:
    # the tests hold how much better it is
    low, high = -test["high"], -test["low"]
    return f"{signed(-test['difference'])} [{signed(low)}, {signed(high)}], p = {test['p']:.2g}"


def control_table(view: View, lm: str) -> str:
    """Backbone's systems without uncertainty beside its best uncertain line."""
    best = view.by_number(view.content["chosen"][lm])["systems"][POINT]
    names = {f"**{view.system_label(best)}**": dict.fromkeys(view.seeds, best)}
    controls = control_names(view, lm)
    order = {label: mean(_of_seeds(view.ppl, each, view.dev)) for label, each in controls.items()}
    names |= {label: controls[label] for label in sorted(order, key=order.__getitem__)}
    rows = [
        [label, *_figures(view, each), *_against(view, best, each)] for label, each in names.items()
    ]
    header = ["", f"ppl {view.dev}", f"ppl {view.test}", f"WER {view.test}"]
    header += [f"ppl of the best line, seed {seed}" for seed in view.seeds]
    header += [f"WER of the best line, seed {seed}" for seed in view.seeds]
    return table(header, rows)


def control_names(view: View, lm: str) -> Dict[str, Dict[int, str]]:
    """{label: {seed: system}} of a backbone's evaluated systems without uncertainty.

    A mixture with the LM of another seed is one row, though its name has the other's number.
    """
    found: Dict[str, Dict[int, str]] = {}
    for seed, run in view.whole.items():
        for name in view.control_systems(run, lm):
            label = view.system_label(name)
            if name in run["controls"]:
                label = re.sub(r"of seed \d+", "of another seed", label)
            # of three and more seeds there are several others
            while seed in found.get(label, {}):
                label += "'"
            if run["systems"][name]["perplexity"]:
                found.setdefault(label, {})[seed] = name
    return found


def _of_seeds(
    value: Callable[[str, str], Values], names: Mapping[int, str], text: str
) -> Dict[int, float]:
    """Value of systems whose names depend on the seed."""
    found = {seed: value(name, text).get(seed) for seed, name in names.items()}
    return {seed: number for seed, number in found.items() if number is not None}


def _figures(view: View, names: Mapping[int, str]) -> List[str]:
    cells = [cell(_of_seeds(view.ppl, names, text), view.seeds) for text in view.sets]
    return [*cells, cell(_of_seeds(view.wer, names, view.test), view.seeds, 2)]


def _against(view: View, best: str, names: Mapping[int, str]) -> List[str]:
    """What the best line changes against systems, by seed."""
    if best in names.values():
        return [NOTHING] * 2 * len(view.seeds)
    others = _of_seeds(view.ppl, names, view.test)
    tests: Dict[int, Json] = {}
    for seed, name in names.items():
        tests |= view.tests_of(best, name, [seed])
    errors = (_test_cell(tests[seed]) if seed in tests else NOTHING for seed in view.seeds)
    return [*_by_seed(view, change(view.ppl(best, view.test), others)), *errors]


def tuned_table(view: View) -> str:
    """Interpolation weights and the scales of each system, by seed."""
    lines = [name for line in view.lines for r, name in line["systems"].items() if r != ALONE]
    controls = [name for run in view.whole.values() for name in run["controls"]]
    rows = []
    for name in dict.fromkeys([view.ngram, *lines, *controls]):
        systems = {seed: view.system(seed, name) for seed in view.seeds}
        known = {seed: s for seed, s in systems.items() if s and (s["weights"] or s["scales"])}
        if known:
            scales = (_scales(known, condition) for condition in view.conditions)
            rows.append([view.system_label(name), _weights(known), *scales])
    return table(["", "weights", *(f"LMWT, penalty: {c}" for c in view.conditions)], rows)


def _weights(systems: Mapping[int, Json]) -> str:
    """Components' weights, each of all seeds."""
    found: Dict[str, Dict[int, float]] = {}
    for seed, system in systems.items():
        for component, weight in system["weights"].items():
            found.setdefault(component, {})[seed] = weight
    each = (f"{name} {by_seed(values, '{:.3f}'.format)}" for name, values in found.items())
    return ", ".join(each)


def _scales(systems: Mapping[int, Json], condition: str) -> str:
    scales = {n: s["scales"][condition] for n, s in systems.items() if condition in s["scales"]}
    return by_seed(scales, lambda value: f"{value['lmwt']:g}, {value['word_penalty']:g}")


def training_table(view: View) -> str:
    """What each training says of itself, a row for each LM and seed."""
    rows = []
    for line in view.lines:
        for seed, lm in view.lms(line["name"]).items():
            if seed in line["seeds"]:
                rows.append([view.numbered(line), f"{seed}", *_training_cells(lm)])
    header = ["", "seed", "parameters", "random", "epochs", "minutes", "training NLL", "KL"]
    return table([*header, "validation ppl, by epoch"], rows)


def _training_cells(lm: Json) -> List[str]:
    last = lm["epochs"][-1]
    curve = ", ".join(perplexity_text(epoch["valid_ppl"], 1) for epoch in lm["epochs"])
    return [
        f"{lm['parameters']}",
        f"{lm['random']}" if lm["random"] else NOTHING,
        f"{len(lm['epochs'])}",
        f"{lm['minutes']:.1f}",
        f"{last['train_nll']:.3f}",
        f"{last['train_kl']:.3f}",
        curve,
    ]


def snr_table(view: View) -> str:
    """Signal-to-noise ratios by location and seed; nothing where there are none."""
    rows = []
    for line in view.lines:
        found: Dict[str, Dict[int, Json]] = {}
        for seed, lm in view.lms(line["name"]).items():
            for row in lm["snr"]:
                found.setdefault(row["location"], {})[seed] = row
        rows += [[view.numbered(line), place, *_snr_cells(found[place])] for place in found]
    header = ["", "location", "random", "median SNR", "SNR 5 to 95 %", "median sigma"]
    return table([*header, "sigma / start"], rows)


def _snr_cells(rows: Mapping[int, Json]) -> List[str]:
    first = next(iter(rows.values()))
    cells = [f"{first['count']}", by_seed(rows, lambda row: f"{row['median']:.3g}")]
    if "low" not in first:
        return [*cells, NOTHING, NOTHING, NOTHING]
    cells.append(by_seed(rows, lambda row: f"{row['low']:.2g} to {row['high']:.2g}"))
    cells.append(by_seed(rows, lambda row: f"{row['median_std']:.3g}"))
    known = first["median_std_ratio"] is not None
    moved = by_seed(rows, lambda row: f"{row['median_std_ratio']:.3g}") if known else NOTHING
    return [*cells, moved]


def searched_lines(view: View) -> str:
    """What the searches chose for the lines that ask for it, a line each."""
    rows = []
    for line in view.lines:
        each: Dict[str, List[int]] = {}
        for seed, lm in view.lms(line["name"]).items():
            if line["where"] == SEARCHED and lm["uncertainty"] is not None:
                where = ", ".join(lm["uncertainty"]) or "no location, a point-estimate LM"
                each.setdefault(where, []).append(seed)
        for where, seeds in each.items():
            rows.append(f"- {view.numbered(line)}, seed {', '.join(map(str, seeds))}: {where}\n")
    return "".join(rows)


def search_table(view: View) -> str:
    """Best architectures of each search; nothing where there is none."""
    rows = [
        [name, f"{seed}", f"{item['rank']}", item["architecture"], f"{item['probability']:.3g}"]
        for seed, run in view.whole.items()
        for name, search in run["searches"].items()
        for item in search["ranking"]
    ]
    header = ["", "seed", "rank", "uncertain", "probability"]
    return table(header, rows)


def share_table(view: View) -> str:
    """Share of each uncertain kind at each location, by seed."""
    found: Dict[str, Dict[int, str]] = {}
    for seed, run in view.whole.items():
        for name, search in run["searches"].items():
            for shares in search["runs"].values():
                for location, kinds in shares.items():
                    for kind in (kind for kind in kinds if kind != "point"):
                        key = f"{name}: {location} {kind}"
                        found.setdefault(key, {})[seed] = f"{kinds[kind]:.3f}"
    rows = [[key, *(values.get(s, NOTHING) for s in view.seeds)] for key, values in found.items()]
    header = ["", *(f"seed {seed}" for seed in view.seeds)]
    return table(header, rows)
