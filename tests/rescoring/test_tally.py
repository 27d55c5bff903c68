"""Tests of the counts over rescored lists."""

import numpy as np

from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.decision import ListTally, RescoredList


def test_errors_and_words_with_confidences_are_counted():
    refs = {"u1": ("a", "b"), "u2": ("a",), "u3": ("c",)}
    tally = ListTally(refs)
    assert tally.calibration() is None
    for utt, ref in refs.items():
        words = ("a",) if utt == "u3" else ref
        values = np.full(len(words), 0.75)
        nbest = NBest(utt, (Hypothesis(words),))
        item = RescoredList(nbest, (0.0,), (values,), 0, masses=values, confidences=values)
        tally.add(item)
    assert list(tally.errors) == ["first pass", "rescored", "oracle"]
    assert tally.errors["rescored"].errors == 1 and tally.calibration().words == 4
