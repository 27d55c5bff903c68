"""The tables of a results file, in Markdown: of its systems, then of the LMs themselves."""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Mapping, Optional

from espnet_bayeslm.evaluation.signal_to_noise import PERCENTILES, SnrSummary
from espnet_bayeslm.evaluation.wer import FIRST_PASS
from espnet_bayeslm.report.table import signed
from espnet_bayeslm.scoring.perplexity import perplexity_text
from lab.cells import NOTHING, Values, by_seed, cell, change, mean, table
from lab.paper import NAMES, SEARCHED
from lab.plan import ALONE, NGRAM, POINT, Entry, Figures, paper_figures
from lab.results import Results, Test, Training

ROLES = (ALONE, NGRAM, POINT)


def perplexity_table(results: Results) -> str:
    """Perplexities: alone, with the n-gram, with n-gram and point-estimate LM."""
    ngram = [cell(results.ppl(results.ngram, text), results.seeds) for text in results.sets]
    paper = _paper(_paper_of(results, "ngram").ppl)
    rows = [[results.ngram_label, *ngram, *[NOTHING] * 4, paper, NOTHING]]
    for entry in results.lines:
        cells = [
            cell(results.ppl(entry.systems.get(role), text), entry.seeds)
            for role in ROLES
            for text in results.sets
        ]
        if any(cells):
            figures = [_paper(entry.paper[role].ppl) for role in (NGRAM, POINT)]
            rows.append([results.numbered(entry), *cells, *figures])
    point = f"+ {results.ngram_label} + point"
    names = ("alone", f"+ {results.ngram_label}", point)
    header = ["", *(f"{name}: {text}" for name in names for text in results.sets)]
    return table([*header, f"paper, {names[1]}", f"paper, {point}"], rows)


def _paper_of(results: Results, name: str) -> Figures:
    """Figures of the `ngram` or the `oracle`; none where no line has figures of the paper."""
    of_paper = any(entry.paper[NGRAM].ppl != "-" for entry in results.lines)
    return paper_figures(results.paper, name) if of_paper else Figures()


def _paper(value: str) -> str:
    return NOTHING if value == "-" else value


def error_table(results: Results) -> str:
    """Word error rates in % of the test set, by condition and pooled, with daggers."""
    empty = [NOTHING] * len(results.columns)
    rows = [[FIRST_PASS, *list_rates(results, "first_pass"), *empty, NOTHING, NOTHING]]
    rates = [
        cell(results.wer(results.ngram, results.test, c), results.seeds, 2) for c in results.columns
    ]
    paper = _paper(_paper_of(results, "ngram").wer)
    rows.append([f"{results.ngram_label} alone", *rates, *empty, paper, NOTHING])
    for entry in results.lines:
        cells = [c for role in (NGRAM, POINT) for c in error_cells(results, entry, role)]
        if any(cells):
            figures = [_paper(entry.paper[role].wer) for role in (NGRAM, POINT)]
            rows.append([results.numbered(entry), *cells, *figures])
    paper = _paper(_paper_of(results, "oracle").wer)
    rows.append(["oracle", *list_rates(results, "oracle"), *empty, paper, NOTHING])
    names = (f"+ {results.ngram_label}", f"+ {results.ngram_label} + point")
    header = ["", *(f"{name}: {c}" for name in names for c in results.columns)]
    return table([*header, *(f"paper, {name}" for name in names)], rows)


def list_rates(results: Results, which: str) -> List[str]:
    """Word error rates of the first pass or the oracle of the test set."""
    errors = results.lists[results.test][which]
    return [f"{100 * errors[condition].rate:.2f}" for condition in results.columns]


def error_cells(results: Results, entry: Entry, role: str) -> List[str]:
    """Line's word error rates of the test set; the pooled one has the mark."""
    name = entry.systems.get(role)
    cells = [cell(results.wer(name, results.test, c), entry.seeds, 2) for c in results.columns]
    mark = results.mark(name, entry)
    return [*cells[:-1], f"{cells[-1]} {mark}".rstrip()]


def change_table(results: Results) -> str:
    """Changes of each line + n-gram + point against point + n-gram, by seed."""
    rows = []
    for entry in results.lines:
        name, base = entry.systems.get(POINT), entry.base
        if entry.is_mixture and base != entry.systems[NGRAM]:
            name = entry.systems[NGRAM]
        ratios = change(results.ppl(name, results.test), results.ppl(base, results.test))
        ratios = {seed: ratio for seed, ratio in ratios.items() if seed in entry.seeds}
        if ratios:
            errors = error_changes(results, name, entry)
            rows.append([results.numbered(entry), *_by_seed(results, ratios), *errors])
    header = ["", *(f"ppl, seed {seed}" for seed in results.seeds)]
    header += [f"WER, seed {seed}" for seed in results.seeds if results.conditions]
    return table(header, rows)


def _by_seed(results: Results, values: Dict[int, float]) -> List[str]:
    return [f"{signed(values[seed])} %" if seed in values else NOTHING for seed in results.seeds]


def error_changes(results: Results, name: Optional[str], entry: Entry) -> List[str]:
    """Change of the pooled word error rate by seed, with its interval and p."""
    if not results.conditions:
        return []
    tests = results.tests_of(name, entry.base, entry.seeds)
    return [_test_cell(tests[seed]) if seed in tests else NOTHING for seed in results.seeds]


def _test_cell(test: Test) -> str:
    # the tests hold how much better it is
    low, high = -test.high, -test.low
    return f"{signed(-test.difference)} [{signed(low)}, {signed(high)}], p = {test.p:.2g}"


def chosen_line(results: Results, lm: str) -> str:
    """Perplexity and WER of a backbone's best uncertain line against its base, in words."""
    entry = results.by_number(results.chosen[lm])
    best, base = entry.systems[POINT], entry.base or ""
    ratios = change(results.ppl(best, results.test), results.ppl(base, results.test))
    each = ", ".join(f"{signed(value)} % (seed {seed})" for seed, value in ratios.items())
    text = f"{NAMES[lm]}: {results.role_label(entry, POINT)}. Perplexity of {results.test} against"
    text += f" {results.system_label(base)}: {each}"
    tests = results.tests_of(best, base)
    if tests:
        errors = (f"{signed(-t.difference)} (p = {t.p:.2g}, seed {s})" for s, t in tests.items())
        text += f"; pooled WER in points: {', '.join(errors)}"
    return f"{text}."


def control_table(results: Results, lm: str) -> str:
    """Systems of a backbone without uncertainty beside its best uncertain line."""
    best = results.by_number(results.chosen[lm]).systems[POINT]
    names = {f"**{results.system_label(best)}**": dict.fromkeys(results.seeds, best)}
    controls = control_names(results, lm)
    order = {
        label: mean(_of_seeds(results.ppl, each, results.dev)) for label, each in controls.items()
    }
    names |= {label: controls[label] for label in sorted(order, key=order.__getitem__)}
    rows = [
        [label, *_figures(results, each), *_against(results, best, each)]
        for label, each in names.items()
    ]
    header = ["", f"ppl {results.dev}", f"ppl {results.test}", f"WER {results.test}"]
    header += [f"ppl of the best line, seed {seed}" for seed in results.seeds]
    header += [f"WER of the best line, seed {seed}" for seed in results.seeds]
    return table(header, rows)


def control_names(results: Results, lm: str) -> Dict[str, Dict[int, str]]:
    """{label: {seed: system}} of a backbone's evaluated systems without uncertainty.

    A mixture with the LM of another seed is one row, though its name has the other's number.
    """
    found: Dict[str, Dict[int, str]] = {}
    for seed, run in results.whole.items():
        for name in results.control_systems(run, lm):
            label = results.system_label(name)
            if name in run.controls:
                label = re.sub(r"of seed \d+", "of another seed", label)
            # of three and more seeds there are several others
            while seed in found.get(label, {}):
                label += "'"
            if run.systems[name].perplexity:
                found.setdefault(label, {})[seed] = name
    return found


def _of_seeds(
    value: Callable[[str, str], Values], names: Mapping[int, str], text: str
) -> Dict[int, float]:
    """Value of systems whose names depend on the seed."""
    found = {seed: value(name, text).get(seed) for seed, name in names.items()}
    return {seed: number for seed, number in found.items() if number is not None}


def _figures(results: Results, names: Mapping[int, str]) -> List[str]:
    cells = [cell(_of_seeds(results.ppl, names, text), results.seeds) for text in results.sets]
    return [*cells, cell(_of_seeds(results.wer, names, results.test), results.seeds, 2)]


def _against(results: Results, best: str, names: Mapping[int, str]) -> List[str]:
    """Changes of the best line against systems, by seed."""
    if best in names.values():
        return [NOTHING] * 2 * len(results.seeds)
    others = _of_seeds(results.ppl, names, results.test)
    tests: Dict[int, Test] = {}
    for seed, name in names.items():
        tests |= results.tests_of(best, name, [seed])
    errors = (_test_cell(tests[seed]) if seed in tests else NOTHING for seed in results.seeds)
    return [*_by_seed(results, change(results.ppl(best, results.test), others)), *errors]


def training_table(results: Results) -> str:
    """Figures of each training, a row for each LM and seed."""
    rows = []
    for entry in results.lines:
        for seed, lm in results.lms(entry.name).items():
            if seed in entry.seeds:
                rows.append([results.numbered(entry), f"{seed}", *_training_cells(lm)])
    header = ["", "seed", "parameters", "random", "epochs", "minutes", "training NLL", "KL"]
    return table([*header, "validation ppl, by epoch"], rows)


def _training_cells(lm: Training) -> List[str]:
    last = lm.epochs[-1]
    curve = ", ".join(perplexity_text(epoch.valid_ppl, 1) for epoch in lm.epochs)
    return [
        f"{lm.parameters}",
        f"{lm.random}" if lm.random else NOTHING,
        f"{len(lm.epochs)}",
        f"{lm.minutes:.1f}",
        f"{last.train_nll:.3f}",
        f"{last.train_kl:.3f}",
        curve,
    ]


def snr_table(results: Results) -> str:
    """Signal-to-noise ratios by location and seed; nothing where there are none."""
    rows = []
    for entry in results.lines:
        lms = {seed: lm for seed, lm in results.lms(entry.name).items() if lm.snr}
        found: Dict[str, Dict[int, SnrSummary]] = {}
        for seed, lm in lms.items():
            for summary in lm.snr:
                found.setdefault(summary.location, {})[seed] = summary
        label = results.numbered(entry)
        rows += [[label, place, *_snr_cells(found[place])] for place in found]
        if len(found) > 1:
            first = next(iter(lms.values()))
            medians = by_seed(lms, lambda lm: f"{lm.median_snr:.3g}")
            count = sum(summary.count for summary in first.snr)
            rows.append([label, "all", f"{count}", medians, *[NOTHING] * 3])
    header = ["", "location", "random", "median SNR", "SNR 5 to 95 %", "median sigma"]
    return table([*header, "sigma / start"], rows)


def _snr_cells(rows: Mapping[int, SnrSummary]) -> List[str]:
    first = next(iter(rows.values()))
    low, high = PERCENTILES.index(5), PERCENTILES.index(95)
    known = first.median_std_ratio is not None
    return [
        f"{first.count}",
        by_seed(rows, lambda row: f"{row.median:.3g}"),
        by_seed(rows, lambda row: f"{row.percentiles[low]:.2g} to {row.percentiles[high]:.2g}"),
        by_seed(rows, lambda row: f"{row.median_std:.3g}"),
        by_seed(rows, lambda row: f"{row.median_std_ratio:.3g}") if known else NOTHING,
    ]


def searched_lines(results: Results) -> str:
    """List what the searches chose for the lines that ask for it."""
    rows = []
    for entry in results.lines:
        each: Dict[str, List[int]] = {}
        for seed, lm in results.lms(entry.name).items():
            if entry.line.where == SEARCHED and lm.uncertainty is not None:
                where = ", ".join(lm.uncertainty) or "no location, a point-estimate LM"
                each.setdefault(where, []).append(seed)
        for where, seeds in each.items():
            numbers = ", ".join(map(str, seeds))
            rows.append(f"- {results.numbered(entry)}, seed {numbers}: {where}\n")
    return "".join(rows)


def search_table(results: Results) -> str:
    """Best architectures of each search; nothing where there is none."""
    rows = [
        [name, f"{seed}", f"{item.rank}", item.architecture, f"{item.probability:.3g}"]
        for seed, run in results.whole.items()
        for name, search in run.searches.items()
        for item in search.ranking
    ]
    header = ["", "seed", "rank", "uncertain", "probability"]
    return table(header, rows)


def share_table(results: Results) -> str:
    """Share of each uncertain kind at each location, by seed."""
    found: Dict[str, Dict[int, str]] = {}
    for seed, run in results.whole.items():
        for name, search in run.searches.items():
            for shares in search.shares:
                for location, kinds in shares.items():
                    for kind in (kind for kind in kinds if kind != "point"):
                        key = f"{name}: {location} {kind}"
                        found.setdefault(key, {})[seed] = f"{kinds[kind]:.3f}"
    rows = [
        [key, *(values.get(s, NOTHING) for s in results.seeds)] for key, values in found.items()
    ]
    header = ["", *(f"seed {seed}" for seed in results.seeds)]
    return table(header, rows)


def not_run(results: Results) -> str:
    """List the numbers of the lines of which a step was not made; lines trained at no seed not."""
    found: Dict[str, List[str]] = {}
    for entry in results.lines:
        missing = {seed: results.missing(entry, seed) for seed in entry.seeds}
        if set(missing.values()) == {"trained"}:
            continue
        steps: Dict[str, List[int]] = {}
        for seed, step in missing.items():
            if step is not None:
                steps.setdefault(step, []).append(seed)
        for step, seeds in steps.items():
            of = "" if seeds == results.seeds else f" (seed {', '.join(map(str, seeds))})"
            found.setdefault(f"{step}{of}", []).append(f"{entry.line.number}")
    return "".join(f"- Not {step}: lines {', '.join(found[step])}.\n" for step in found)
