"""The report's section of N-best lists: data of the page's program, and word errors."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import quote

import kaldialign
import numpy as np

from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.biased_words import BIASED, UNBIASED, PartErrors
from espnet_bayeslm.evaluation.comparison import Mapsswe
from espnet_bayeslm.evaluation.wer import (
    FIRST_PASS,
    ORACLE,
    RATES,
    Counted,
    ErrorCounts,
    Words,
    closest_reading,
)
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.report.counted_outputs import of_all_systems
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.rescored_lists import Rescored, Uncertainty
from espnet_bayeslm.report.table import MISSING, Cell, Row, Table, fixed, typeset
from espnet_bayeslm.rescoring.bayes_risk import auroc
from espnet_bayeslm.rescoring.decision import NO_BIAS, NO_LM, RESCORED, ListTally, RescoredList

LABELS = {
    "log_prob": "−ln p",
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "variance": "variance of ln p",
}
CORRECT, SUBSTITUTION, DELETION, INSERTION = ".sdi"
# No word is empty: it stands where an alignment of kaldialign has none
GAP = ""
# What the table of errors shows for a word that is not there, and how many errors it shows
DASH, MAX_CONFUSIONS = "—", 25
# Digits of scores after the point, significant digits of uncertainties
DIGITS, SIGNIFICANT = 3, 3

# Measure -> its value of each word, and True for each wrong word
Judged = Dict[str, List[Tuple[float, bool]]]
# (words, hypothesis that is compared with them) -> its place, one however many lists have it
Texts = Dict[Tuple[Words, Words], int]


def operations(ref: Sequence[str], hyp: Sequence[str]) -> str:
    """Letter for each step from `ref` to `hyp`: right, another word, missing, added.

    The errors are as few as `word_errors` counts.
    """
    return "".join(
        INSERTION if a == GAP else DELETION if b == GAP else CORRECT if a == b else SUBSTITUTION
        for a, b in kaldialign.align(ref, hyp, GAP)
    )


class View(NamedTuple):
    """The lists of a rescoring as the page's program reads them, with figures for tables."""

    data: Dict[str, Any]
    # first pass, control, new best or oracle -> word errors of all lists
    errors: Dict[str, ErrorCounts]
    # of the words of the new best
    judged: Judged
    # the first pass or the control (A) -> its test against the new best (B)
    tests: Dict[str, Mapsswe]
    # the same outputs -> errors of unbiased and of biased words
    parts: Mapping[str, PartErrors] = {}


def make_view(
    rescored: Rescored,
    refs: Mapping[str, Words],
    texts: Texts,
    bias: Optional[BiasLists] = None,
) -> View:
    """Data of one rescoring for the page's program; texts of hypotheses are added to `texts`.

    Without references the first pass takes their place.
    """
    tally = ListTally(refs or None, rescored.counting, bias)
    judged: Judged = {}
    lists = []
    for nbest in rescored.nbests:
        units = [rescored.counting.units(hyp.words) for hyp in nbest.hypotheses]
        best = rescored.best[nbest.utt]
        ref = rescored.counting.units(refs[nbest.utt]) if refs else units[0]
        pivot = closest_reading(ref, units[best])
        places = [texts.setdefault((pivot, words), len(texts)) for words in units]
        uncertainty = _counted_uncertainty(rescored, nbest)
        entry: Dict[str, Any] = {"utt": nbest.utt, "ref": " ".join(pivot), "hyps": places}
        entry["best"] = best
        entry["scores"] = {
            name: [round(value, DIGITS) for value in values]
            for name, values in rescored.scores[nbest.utt].items()
        }
        if bias is not None:
            own = bias.of(nbest.utt)
            entry["scores"]["bias"] = [own.total(hyp.words) for hyp in nbest.hypotheses]
            entry["biased"] = sorted({*pivot, *itertools.chain(*units)} & own.words)
        entry["words"] = {
            str(place): {
                name: [float(f"{value:.{SIGNIFICANT}g}") for value in values]
                for name, values in measured.items()
            }
            for place, measured in uncertainty.items()
        }
        lists.append(entry)
        others = {name: getattr(rescored, name).get(nbest.utt) for name in ("control", "unbiased")}
        tally.add(RescoredList(nbest, (), (), best, **others))
        if measured := uncertainty.get(best):
            steps = operations(pivot, units[best])
            wrong = [step != CORRECT for step in steps if step != DELETION]
            for name, values in measured.items():
                judged.setdefault(name, []).extend(zip(values[:-1], wrong, strict=True))
    found = [values for places in rescored.uncertainty.values() for values in places.values()]
    measures = {name: label for name, label in LABELS.items() if any(name in v for v in found)}
    data = {"name": rescored.name, "measures": measures, "references": bool(refs), "lists": lists}
    return View(data, tally.errors, judged, tally.tests(), tally.parts)


def _counted_uncertainty(rescored: Rescored, nbest: NBest) -> Dict[int, Uncertainty]:
    """Uncertainties of the words that count and of `</s>`; none where characters are counted."""
    if rescored.counting.unit != "word":
        return {}
    kept: Dict[int, Uncertainty] = {}
    for place, values in rescored.uncertainty.get(nbest.utt, {}).items():
        counts = [*map(rescored.counting.size, zip(nbest.hypotheses[place].words)), 1]
        kept[place] = {name: [*itertools.compress(row, counts)] for name, row in values.items()}
    return kept


def nbest_section(
    rescored: Sequence[Rescored], refs: Mapping[str, Words], bias: Optional[BiasLists] = None
) -> Section:
    """Section of lists, their errors, and the LMs' uncertainty about wrong words.

    Words of bias lists are marked, and have errors of their own.
    """
    texts: Texts = {}
    views = [make_view(item, refs, texts, bias) for item in rescored]
    rows = [(" ".join(words), operations(pivot, words)) for pivot, words in texts]
    tables = []
    if refs:
        counted = of_all_systems(rescored[0].counted, {r.name: r.counted for r in rescored})
        errors = view_errors(views, counted)
        parts = [part_table(views)] if bias is not None else []
        tables = [errors, *parts, test_table(views), *confusion_tables(views, rows)]
    if refs and any(view.judged for view in views):
        tables.append(judgement_table(views))
    measures = dict(pair for view in views for pair in view.data["measures"].items())
    values = {
        "tables": tables,
        "references": bool(refs),
        "biased": bias is not None,
        "systems": [(n, item.name) for n, item in enumerate(rescored)],
        "measures": [*measures.items()],
        "means": [
            (f"mean:{name}", f"largest mean {text} first") for name, text in measures.items()
        ],
        "texts": rows,
        "views": [view.data for view in views],
    }
    return Section("nbest", "N-best lists", values)


def view_errors(views: Sequence[View], counted: Counted) -> Table:
    """Errors of the first pass, the control, the new best and the oracle of each rescoring."""
    rows = []
    for what in (FIRST_PASS, NO_LM, NO_BIAS, RESCORED, ORACLE):
        found = [view for view in views if what in view.errors]
        # lists that several LMs have rescored have one first pass and one oracle
        same = len({view.errors[what] for view in found}) == 1 and len(found) == len(views) > 1
        for view in found[:1] if same else found:
            counts, before = view.errors[what], view.errors[FIRST_PASS].errors
            change, total = counts.errors - before, counts.words
            rates = [f"{100 * counts.rate:.2f}" if total else MISSING, MISSING, MISSING]
            if total and what != FIRST_PASS:
                rates[1] = typeset(100 * change / total)
                rates[2] = typeset(100 * change / before, 1) if before else MISSING
            wrong = [counts.substitutions, counts.deletions, counts.insertions, total]
            name = "all" if same else view.data["name"]
            rows.append([name, what, *rates, *map(str, wrong)])
    unit = counted.unit
    header = ["system", "output", f"{RATES[unit]} %", "change", "relative %", "sub", "del", "ins"]
    header.append(f"{unit}s")
    what = "Word" if unit == "word" else "Character"
    caption = f"{what} errors of the lists below, and their change from the first pass"
    return Table(caption, header, rows, words=(1,), counted=counted)


def part_table(views: Sequence[View]) -> Table:
    """Errors of the words outside and inside of bias lists in each output."""
    rows: List[Row] = []
    for view in views:
        for what, parts in view.parts.items():
            rates = (f"{100 * p.rate:.2f}" if p.words else MISSING for p in parts)
            counts = (f"{p.errors} of {p.words}" for p in parts)
            rows.append([view.data["name"], what, *rates, *counts])
    header = ["system", "output", f"{UNBIASED} %", f"{BIASED} %", "errors outside", "errors inside"]
    caption = "Errors of the words outside and inside of the utterances' bias lists"
    return Table(caption, header, rows, words=(1,))


def test_table(views: Sequence[View]) -> Table:
    """MAPSSWE of the first pass and of the control against the new best of each rescoring."""
    rows: List[Row] = [
        [view.data["name"], f"{name} − {RESCORED}", f"{test.z:.2f}", f"{test.p:.2g}"]
        for view in views
        for name, test in view.tests.items()
    ]
    caption = "MAPSSWE: does the rescoring make fewer errors (z > 0)?"
    if any(NO_LM in view.tests for view in views):
        caption += " The last step of a system is that of the LM"
    return Table(caption, ["system", "step", "z", "p"], rows, words=(1,))


def confusion_tables(views: Sequence[View], texts: Sequence[Tuple[str, str]]) -> List[Table]:
    """Most frequent errors: how often the first pass and each system make them."""
    counts: Dict[str, Counter[Tuple[str, str]]] = {}
    examples: Dict[Tuple[str, str], str] = {}
    for view in views:
        for label, best in ((FIRST_PASS, False), (view.data["name"], True)):
            found: Counter[Tuple[str, str]] = Counter()
            for item in view.data["lists"]:
                words, steps = texts[item["hyps"][item["best"] if best else 0]]
                for pair in word_errors_of(item["ref"], words, steps):
                    found[pair] += 1
                    examples.setdefault(pair, item["utt"])
            # lists that several LMs have rescored have one first pass
            if counts.setdefault(label, found) != found:
                counts[f"{label} of {view.data['name']}"] = found
    most = {pair: max(count[pair] for count in counts.values()) for pair in examples}
    rows: List[Row] = [
        [
            pair[0],
            pair[1],
            *(str(count[pair]) for count in counts.values()),
            Cell(examples[pair], href=f"#utt={quote(examples[pair], safe='')}"),
        ]
        for pair in sorted(most, key=lambda pair: (-most[pair], pair))[:MAX_CONFUSIONS]
    ]
    header = ["reference", "recognised", *counts, "one of them"]
    caption = "Most frequent errors: how often each output has them"
    return [Table(caption, header, rows, words=(1, len(header) - 1))] if rows else []


def word_errors_of(ref: str, hyp: str, steps: str) -> Iterator[Tuple[str, str]]:
    """Pairs of a word and the word in its place, a dash where there is none."""
    refs, hyps = iter(ref.split()), iter(hyp.split())
    for step in steps:
        word = DASH if step == INSERTION else next(refs)
        other = DASH if step == DELETION else next(hyps)
        if step != CORRECT:
            yield word, other


def judgement_table(views: Sequence[View]) -> Table:
    """Mean uncertainty of right and of wrong words of the new best."""
    rows = []
    for view in views:
        for name, pairs in view.judged.items():
            parts = [[value for value, wrong in pairs if wrong == which] for which in (False, True)]
            cells = [f"{np.mean(part):.3g}" if part else MISSING for part in parts]
            area = fixed(auroc([value for value, _ in pairs], [wrong for _, wrong in pairs]), 3)
            rows.append([view.data["name"], LABELS[name], *cells, area])
    header = ["system", "per word", "right words", "wrong words", "AUROC"]
    caption = (
        "Mean uncertainty of the rescored words; AUROC: does it tell wrong from right (0.5: no)"
    )
    return Table(caption, header, rows, words=(1,))
