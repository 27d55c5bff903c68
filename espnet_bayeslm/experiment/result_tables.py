"""The tables of a results file, in Markdown."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from espnet_bayeslm.configs.tables import paper_figures
from espnet_bayeslm.experiment.cells import NOTHING, Values, cell, change, mean, table
from espnet_bayeslm.experiment.collect import control_systems
from espnet_bayeslm.experiment.outputs import Json
from espnet_bayeslm.experiment.plan import ALONE, NGRAM, POINT
from espnet_bayeslm.experiment.view import View
from espnet_bayeslm.report.tables import signed

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
        for name in control_systems(view.content, run, lm):
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
