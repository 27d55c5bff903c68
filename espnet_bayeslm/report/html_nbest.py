"""The report's N-best lists: what the page's program shows of them, and their errors."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import kaldialign
import numpy as np

from espnet_bayeslm.evaluation.calibration import auroc
from espnet_bayeslm.evaluation.wer import Words
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.report.html_page import (
    Html,
    Section,
    data_block,
    element,
    markup,
    paragraph,
    table,
)
from espnet_bayeslm.report.html_rescored import MEASURES, Rescored, Uncertainty

LABELS = {
    "log_prob": "−ln p",
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "variance": "variance of ln p",
}
WHAT = ("first pass", "rescored", "oracle")
CORRECT, SUBSTITUTION, DELETION, INSERTION = ".sdi"
# Digits of scores after the point, significant digits of uncertainties
DIGITS, SIGNIFICANT = 3, 3


class Texts:
    """Hypotheses with their errors, each once however many lists have it."""

    def __init__(self) -> None:
        self.rows: List[Tuple[str, str]] = []
        self._places: Dict[Tuple[Words, Words], int] = {}

    def add(self, pivot: Words, words: Words) -> int:
        """Return the place of words that are compared with others."""
        key = pivot, words
        if key not in self._places:
            self._places[key] = len(self.rows)
            self.rows.append((" ".join(words), operations(pivot, words)))
        return self._places[key]

    def errors(self, place: int) -> int:
        """Return how many words of a hypothesis are wrong."""
        operations = self.rows[place][1]
        return len(operations) - operations.count(CORRECT)


def operations(ref: Sequence[str], hyp: Sequence[str]) -> str:
    """Return a letter for each step from `ref` to `hyp`: right, another word, missing, added.

    The errors are as few as `word_errors` counts.
    """
    # numbers in place of words: -1, which is no word, can then be told from every word
    ids = {word: number for number, word in enumerate(dict.fromkeys([*ref, *hyp]))}
    pairs = kaldialign.align([ids[w] for w in ref], [ids[w] for w in hyp], -1)
    return "".join(
        INSERTION if a == -1 else DELETION if b == -1 else CORRECT if a == b else SUBSTITUTION
        for a, b in pairs
    )


class View(NamedTuple):
    """The lists of a rescoring as the page's program reads them, and what tables say of them.

    Attributes:
        data: JSON.
        errors: What -> [words, substitutions, deletions, insertions] of all lists.
        judged: Measure -> (values, whether the word is wrong) over the words of the new best.
    """

    data: Dict[str, Any]
    errors: Dict[str, np.ndarray]
    judged: Dict[str, Tuple[List[float], List[bool]]]


def make_view(rescored: Rescored, refs: Mapping[str, Words], texts: Texts) -> View:
    """Return the lists of a rescoring; hypotheses go to `texts`.

    Without references the first pass takes their place.
    """
    errors = {name: np.zeros(4, dtype=int) for name in WHAT}
    view = View({}, errors, {})
    lists = []
    for nbest in rescored.nbests:
        pivot = refs[nbest.utt] if refs else nbest.hypotheses[0].words
        places = [texts.add(pivot, hyp.words) for hyp in nbest.hypotheses]
        best = rescored.best[nbest.utt]
        uncertainty = rescored.uncertainty.get(nbest.utt, {})
        lists.append(
            {
                "utt": nbest.utt,
                "ref": " ".join(pivot),
                "hyps": places,
                "best": best,
                "scores": _scores(rescored, nbest),
                "words": {str(place): _rounded(values) for place, values in uncertainty.items()},
            }
        )
        fewest = min(places, key=texts.errors)
        for name, place in zip(errors, (places[0], places[best], fewest), strict=True):
            errors[name] += [len(pivot), *map(texts.rows[place][1].count, "sdi")]
        if best in uncertainty:
            _judge(view.judged, uncertainty[best], texts.rows[places[best]][1])
    view.data.update(
        name=rescored.name,
        measures={name: LABELS[name] for name in MEASURES if _measured(rescored, name)},
        references=bool(refs),
        lists=lists,
    )
    return view


def _scores(rescored: Rescored, nbest: NBest) -> Dict[str, List[float]]:
    """Return the scores of a list that there are, by the names of the table's columns."""
    hyps = nbest.hypotheses
    columns: Dict[str, Optional[List[Optional[float]]]] = {
        "acoustic": [hyp.am_score for hyp in hyps],
        "graph": [hyp.graph_score for hyp in hyps],
        "first LM": [hyp.lm_score for hyp in hyps],
        "new LM": [*rescored.lm_scores[nbest.utt]] if rescored.lm_scores else None,
        "total": [*totals] if (totals := rescored.totals(nbest)) else None,
    }
    return {
        name: [round(value, DIGITS) for value in values if value is not None]
        for name, values in columns.items()
        if values is not None and None not in values
    }


def _rounded(uncertainty: Uncertainty) -> Dict[str, List[float]]:
    """Return an utterance's uncertainties in few digits; of ln p the negative."""
    return {
        name: [float(f"{-v if name == 'log_prob' else v:.{SIGNIFICANT}g}") for v in values]
        for name, values in uncertainty.items()
    }


def _measured(rescored: Rescored, measure: str) -> bool:
    return any(
        measure in values for places in rescored.uncertainty.values() for values in places.values()
    )


def _judge(
    judged: Dict[str, Tuple[List[float], List[bool]]], uncertainty: Uncertainty, steps: str
) -> None:
    """Add the words of a hypothesis: their uncertainties, and whether they are wrong."""
    wrong = [step != CORRECT for step in steps if step != DELETION]
    for name, values in uncertainty.items():
        sign = -1.0 if name == "log_prob" else 1.0
        known = judged.setdefault(name, ([], []))
        known[0].extend(sign * value for value in values[:-1])
        known[1].extend(wrong)


def nbest_section(rescored: Sequence[Rescored], refs: Mapping[str, Words]) -> Optional[Section]:
    """Return the lists, their errors, and how uncertain the LMs are of wrong words."""
    if not rescored:
        return None
    texts = Texts()
    views = [make_view(item, refs, texts) for item in rescored]
    parts: List[str] = []
    if refs:
        parts.append(error_table(views))
    if any(view.judged for view in views) and refs:
        parts.append(judgement_table(views))
    parts.append(_browser())
    parts.append(data_block("nbest-names", [item.name for item in rescored]))
    parts.append(data_block("nbest-texts", texts.rows))
    parts += [data_block(f"nbest-view-{n}", view.data) for n, view in enumerate(views)]
    return Section("nbest", "N-best lists", markup(*parts))


def _browser() -> Html:
    """Return the place where the page's program shows the lists."""
    return element(
        "div",
        element("noscript", paragraph("The lists are shown where JavaScript is allowed.")),
        id="nbest-browser",
    )


def error_table(views: Sequence[View]) -> Html:
    """Return the errors of the first pass, the new best and the oracle of each rescoring."""
    rows = []
    for what in WHAT:
        # lists that several LMs have rescored have one first pass and one oracle
        same = len(views) > 1 and len({tuple(view.errors[what]) for view in views}) == 1
        for view in views[:1] if same else views:
            total, *wrong = map(int, view.errors[what])
            rate = f"{100 * sum(wrong) / total:.2f}" if total else ""
            name = "all" if same else view.data["name"]
            rows.append([name, what, rate, *map(str, wrong), str(total)])
    header = ["", "", "WER %", "sub", "del", "ins", "words"]
    return table(header, rows, caption="Word errors of the lists below", words=(1,))


def judgement_table(views: Sequence[View]) -> Html:
    """Return the mean uncertainty of right and of wrong words of the new best."""
    rows = []
    for view in views:
        for name, (values, wrong) in view.judged.items():
            means = [_mean(values, wrong, chosen) for chosen in (False, True)]
            area = auroc(values, wrong)
            cells = ["" if mean is None else f"{mean:.3g}" for mean in means]
            rows.append(
                [view.data["name"], LABELS[name], *cells, "" if area is None else f"{area:.3f}"]
            )
    header = ["", "per word", "right words", "wrong words", "AUROC"]
    caption = "Mean uncertainty of the rescored words; AUROC: does it tell wrong from right"
    return table(header, rows, caption=f"{caption} (0.5: no)", words=(1,))


def _mean(values: Sequence[float], wrong: Sequence[bool], chosen: bool) -> Optional[float]:
    found = [value for value, w in zip(values, wrong, strict=True) if w == chosen]
    return float(np.mean(found)) if found else None
