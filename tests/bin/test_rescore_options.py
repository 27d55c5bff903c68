"""Options of `bayeslm rescore` that are refused before anything is read."""

import re

import pytest

from espnet_bayeslm.bin.rescore import RescoreCommand
from espnet_bayeslm.rescoring.scales import Scales

REFUSED = [
    ({"lmwt": 3.0, "scales": "x"}, "more than one source of scales: --scales, --lmwt and"),
    ({"tune_ref": "x", "word_penalty": 1.0}, "more than one source of scales: --tune_ref and"),
    ({"lmwt": -3.0}, "lmwt must be positive"),
    ({"scales": "nosuch.yaml"}, "nosuch.yaml: cannot be read"),
    ({"job": 2}, "--job 2 of --num_jobs 1: expected 1 to 1"),
    ({"num_jobs": 2, "tune_ref": "x"}, "a job has a part of the lists only"),
    ({"num_jobs": 2, "merge": ["x"]}, "--merge with --job"),
    ({"merge": ["x"], "tune_lms": True}, "needs the scores of each LM"),
    ({"merge": ["x"], "uncertainty": True, "num_samples": 9}, "--uncertainty with --merge"),
    ({"uncertainty": True}, "needs several weight samples, --num_samples is 0"),
    ({"context": "previous"}, "needs to know the recordings"),
    ({"folds": 1}, "--folds 1: expected 2 or more"),
    ({"tune_folds": 0}, "--tune_folds 0, --folds None: expected 2 or more"),
]


@pytest.mark.parametrize("options, message", REFUSED)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        RescoreCommand(nbest="x", output="y", **options).given_scales()


@pytest.mark.parametrize("options", [{"folds": 2}, {"tune_lms": True}])
def test_tuning_needs_references(options):
    with pytest.raises(ValueError, match=f"--{next(iter(options))} needs references to tune on"):
        RescoreCommand(nbest="x", output="y", **options).check_untuned()


def test_scales_of_options():
    def given(**options):
        return RescoreCommand(nbest="x", output="y", **options).given_scales()

    assert given() is None and given(tune_ref="x") is None
    assert given(lmwt=3.0) == Scales(3.0) and given(word_penalty=1.0) == Scales(word_penalty=1.0)
