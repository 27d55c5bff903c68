"""`bayeslm rescore` writes the times of the words of its best hypotheses, where lists have them."""

import logging

import pytest
from command_lines import json_lines, run

from espnet_bayeslm.nbest.formats import write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest


def lists_of(path, **times):
    """Write lists whose second hypothesis is the best, with these times of its words."""
    with_times = {utt: {} if own is None else {"times": own} for utt, own in times.items()}
    hypotheses = {
        utt: (
            Hypothesis(("the", "tables"), -9.0, extra={"times": [[0, 0.2], [0.2, 0.9]]}),
            Hypothesis(("The", "remote"), -1.0, extra=own),
        )
        for utt, own in with_times.items()
    }
    write_nbest([NBest(utt, hyps) for utt, hyps in hypotheses.items()], path, format="jsonl")
    return path


def rescored(nbest, ngram, output, **options):
    """Rescore the lists by an n-gram, which need not know their words; return the folder."""
    how = {"nbest": nbest, "nbest_format": "jsonl", "ngram": ngram, "max_oov_rate": 1}
    return run(**how, **options, output=output)


def lines(output):
    """Return the lines of the ctm file, in columns."""
    return [line.split() for line in (output / "ctm").read_text().splitlines()]


def test_times_of_the_best_hypotheses(ngram, tmp_path, caplog):
    nbest = lists_of(tmp_path / "lists.jsonl", u2=[[0.1, 0.25], [0.25, 0.8]], u1=None)
    with caplog.at_level(logging.WARNING):
        output = rescored(nbest, ngram, tmp_path / "lower", normalize="lower")
    assert "ctm: 1 best hypotheses have no times of words" in caplog.text
    expected = [["u2", "1", "0.100", "0.150", "The"], ["u2", "1", "0.250", "0.550", "remote"]]
    assert lines(output) == expected
    output = rescored(nbest, ngram, tmp_path / "sure", confidence="true")
    shares = json_lines(output / "confidence.ndjson")[0]["confidence"]
    rows = zip(expected, shares, strict=True)
    assert lines(output) == [[*row, f"{share:.3f}"] for row, share in rows]


def test_lists_without_times(ngram, tmp_path, caplog):
    nbest = lists_of(tmp_path / "lists.jsonl", u1=None)
    output = rescored(nbest, ngram, tmp_path / "out")
    assert not (output / "ctm").exists() and "ctm" not in caplog.text


@pytest.mark.parametrize("times", [[[0, 1]], [0.5, 1.0], [[0, 1], [1, None]], "soon"])
def test_a_key_of_that_name_that_is_something_else(times, ngram, tmp_path):
    nbest = lists_of(tmp_path / "lists.jsonl", u1=times)
    output = rescored(nbest, ngram, tmp_path / "out")
    assert not (output / "ctm").exists() and (output / "text").read_text() == "u1 The remote\n"
