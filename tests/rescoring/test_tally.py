"""What is counted over lists that are tuned on and lists that are not."""

import numpy as np

from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.pipeline import RescoredList
from espnet_bayeslm.rescoring.tally import ConfidenceTally, ErrorTally


def test_tuning_lists_stand_before_test_lists():
    refs = {"u1": ("a", "b"), "u2": ("a",), "u3": ("c",)}
    errors, sure = ErrorTally(refs), ConfidenceTally(refs)
    for utt, part in (("u1", "test"), ("u2", "tuning"), ("u3", "test")):
        words = ("a",) if utt == "u3" else refs[utt]
        values = np.full(len(words), 0.75)
        nbest = NBest(utt, (Hypothesis(words),))
        item = RescoredList(nbest, (0.0,), (values,), 0, part=part, masses=values)
        item = item._replace(confidences=values)
        errors.add(item)
        sure.add(item)
    assert list(errors.parts()) == list(sure.parts()) == ["tuning", "test"]
    assert errors.parts()["test"]["rescored"].errors == 1
    assert [sure.parts()[part].words for part in ("tuning", "test")] == [1, 3]
