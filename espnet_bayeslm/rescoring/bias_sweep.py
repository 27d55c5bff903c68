"""Errors of tuning lists by the weight of their bias lists: what it gains, and what it costs."""

from __future__ import annotations

import math
from typing import FrozenSet, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.biased_words import BIASED, UNBIASED, part_errors_of_list
from espnet_bayeslm.evaluation.wer import Counting
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.feature_tuning import Validated
from espnet_bayeslm.rescoring.features import BIAS, Features, Totals, totals

ALL, DECOYS = "WER", "WER with decoys"
STEPS = 24
# Little is to be seen far beyond the weight at which this part of the lists has changed
SHOWN, BEYOND = 0.9, 1.25


class BiasSweep(NamedTuple):
    """Error rates by the weight of the feature `bias`, where all other weights are held.

    Attributes:
        weights: The weights, (A,), as scales have them; the chosen one is among them.
        chosen: The chosen one.
        rates: Name -> rates in %, (A,), of words that there are.
        phrases: Mean number of phrases of a list.
    """

    weights: np.ndarray
    chosen: float
    rates: Mapping[str, np.ndarray]
    phrases: float


def bias_sweep(
    every: Validated,
    nbests: Sequence[NBest],
    refs: Mapping[str, Sequence[str]],
    bias: BiasLists,
    weights: Mapping[str, float],
    ignored: FrozenSet[str],
) -> Optional[BiasSweep]:
    """Sweep around some weights; None where no weight of the bias lists changes a choice.

    Args:
        every: Features and word errors of each list's hypotheses, and of decoys if there are some.
        nbests: The lists.
        refs: Utterance id -> words.
        bias: The bias lists.
        weights: Weights of the features.
        ignored: Words that do not count.
    """
    lists, errors = every.lists, every.errors
    rest = {name: weight for name, weight in weights.items() if name != BIAS}
    chosen = weights.get(BIAS, 0.0)
    grid = _grid(lists, rest, chosen)
    if len(grid) == 1:
        return None
    units, counts = Counting("word", ignored).units, np.zeros((len(grid), 3))
    words = np.zeros(3)
    for own, of_hyps, nbest in zip(lists, errors, nbests, strict=True):
        # few hypotheses are the best at some weight
        used, places = np.unique(_best(own, rest, grid), return_inverse=True)
        hyps = [units(nbest.hypotheses[k].words) for k in used]
        of_parts = part_errors_of_list(units(refs[nbest.utt]), hyps, bias.of(nbest.utt).words)
        of_words = [[part.errors for part in parts] for parts in of_parts]
        counts += np.column_stack([of_hyps[used], of_words])[places]
        words[1:] += [part.words for part in of_parts[0]]
    words[0] = words[1:].sum()
    columns = zip((ALL, UNBIASED, BIASED), words.tolist(), counts.T, strict=True)
    rates = {name: 100 * own / count for name, count, own in columns if count}
    if every.decoys and words[0]:
        pairs = zip(every.decoys, every.decoy_errors, strict=True)
        harmed = sum(of_hyps[_best(own, rest, grid)] for own, of_hyps in pairs)
        rates[DECOYS] = 100 * harmed / words[0]
    phrases = sum(len(bias.of(nbest.utt)) for nbest in nbests) / len(nbests)
    return BiasSweep(grid, chosen, rates, phrases)


def _best(own: Features, rest: Mapping[str, float], grid: np.ndarray) -> np.ndarray:
    """Place of a list's best hypothesis at each weight of the bias list, (A,)."""
    found, bias = totals(own, rest), own[BIAS]
    sizes = found.size + np.abs(grid) * np.abs(bias).max()
    return Totals(found.values + grid[:, None] * bias, sizes).best()


def _grid(lists: Sequence[Features], rest: Mapping[str, float], chosen: float) -> np.ndarray:
    """Weights from zero to where most lists have changed, and twice the chosen one at least."""
    changes: List[float] = []
    for own in lists:
        found, bias = totals(own, rest), own[BIAS]
        first = int(found.best())
        more = bias > bias[first]
        if more.any():
            losses = found.values[first] - found.values[more]
            changes.append(float((losses / (bias[more] - bias[first])).min()))
    changes = [value for value in changes if math.isfinite(value)]
    top = max([2 * chosen, *([BEYOND * float(np.quantile(changes, SHOWN))] if changes else [])])
    steps = np.linspace(0.0, top, STEPS + 1)
    return np.unique([*steps[~np.isclose(steps, chosen)], chosen])
