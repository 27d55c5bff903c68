"""Kaldi's N-best archives: loss-free round trips, and one error for each thing that is bad."""

import math
import random
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espnet_bayeslm.rescoring.formats import read_nbest, write_nbest
from espnet_bayeslm.rescoring.kaldi import write_costs
from espnet_bayeslm.rescoring.nbest import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError

FILES = ("words_text", "acwt", "lmwt.nolm", "lmwt.withlm")
GOOD = {
    "words_text": "en-A_1-2-1 well i'm 3\nen-A_1-2-2\nen-A_1-1 yes\n",
    "acwt": "en-A_1-2-1 10.5\nen-A_1-2-2 1e1\nen-A_1-1 -3\n",
    "lmwt.nolm": "en-A_1-2-1 2\nen-A_1-2-2 0\nen-A_1-1 1\n",
    "lmwt.withlm": "en-A_1-2-1 7\nen-A_1-2-2 .5\nen-A_1-1 5\n",
}


def write(folder, **changes):
    """Write the good archives, with changes (a None is a file that is not there)."""
    folder.mkdir(exist_ok=True)
    for name, content in {**GOOD, **changes}.items():
        if content is not None:
            (folder / name).write_text(content)
    return folder


def read(folder):
    return list(read_nbest(folder, "kaldi"))


def test_by_hand(tmp_path):
    assert read(write(tmp_path)) == [
        NBest(
            "en-A_1-2",
            (
                Hypothesis(("well", "i'm", "3"), -10.5, lm_score=-5.0, graph_score=-2.0),
                Hypothesis((), -10.0, lm_score=-0.5, graph_score=0.0),
            ),
        ),
        NBest("en-A_1", (Hypothesis(("yes",), 3.0, lm_score=-4.0, graph_score=-1.0),)),
    ]


def test_files_that_may_be_missing(tmp_path):
    (first, _) = read(write(tmp_path / "a", **{"lmwt.nolm": None, "lmwt.withlm": None}))
    assert [(h.lm_score, h.graph_score) for h in first.hypotheses] == [(None, None)] * 2
    (first, _) = read(write(tmp_path / "b", **{"lmwt.withlm": None}))
    assert [(h.lm_score, h.graph_score) for h in first.hypotheses] == [(None, -2.0), (None, 0.0)]


SCORES = st.floats(-1e6, 1e6, allow_nan=False)
UTTS = st.from_regex(r"[a-zA-Z0-9_.-]{1,8}", fullmatch=True)
WORDS = st.lists(
    st.sampled_from(["a", "b", "<unk>", "o'clock", "7", "x-1", "é", "a-2"]), max_size=4
)


@st.composite
def nbest_lists(draw):
    """Return lists whose hypotheses all have the same kinds of scores."""
    has_graph, has_lm = draw(st.sampled_from([(False, False), (True, False), (True, True)]))
    hypothesis = st.builds(
        Hypothesis,
        WORDS.map(tuple),
        SCORES,
        SCORES if has_lm else st.none(),
        SCORES if has_graph else st.none(),
    )
    lists = st.lists(hypothesis, min_size=1, max_size=12).map(tuple)
    utts = draw(st.lists(UTTS, min_size=1, max_size=4, unique=True))
    return [NBest(utt, draw(lists)) for utt in utts]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(nbests=nbest_lists())
def test_round_trip(nbests):
    with tempfile.TemporaryDirectory() as folder:
        write_nbest(nbests, folder)
        again = read(folder)
        assert [n.utt for n in again] == [n.utt for n in nbests]
        for a, b in zip(again, nbests, strict=True):
            assert [h.words for h in a.hypotheses] == [h.words for h in b.hypotheses]
            for x, y in zip(a.hypotheses, b.hypotheses, strict=True):
                assert (x.am_score, x.graph_score) == (y.am_score, y.graph_score)
                if y.lm_score is None:
                    assert x.lm_score is None
                else:  # a sum is written: its rounding, 2^-52 of it, is lost
                    size = abs(y.lm_score) + abs(y.graph_score)
                    assert x.lm_score == pytest.approx(y.lm_score, abs=1e-15 * size + 1e-300)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(nbests=nbest_lists())
def test_what_was_read_is_written_again_without_any_loss(nbests):
    with tempfile.TemporaryDirectory() as folder:
        write_nbest(nbests, Path(folder) / "a")
        once = read(Path(folder) / "a")
        write_nbest(once, Path(folder) / "b")
        twice = read(Path(folder) / "b")
        for a, b in zip(once, twice, strict=True):
            for x, y in zip(a.hypotheses, b.hypotheses, strict=True):
                assert (x.words, x.am_score, x.graph_score) == (y.words, y.am_score, y.graph_score)
                assert x.lm_score is None or math.isclose(x.lm_score, y.lm_score, abs_tol=1e-9)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(nbests=nbest_lists(), seed=st.integers(0, 1000))
def test_the_order_of_lines_changes_nothing_but_the_order(nbests, seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        write_nbest(nbests, folder)
        before = {nbest.utt: nbest for nbest in read(folder)}
        for path in Path(folder).iterdir():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            rng.shuffle(lines)
            path.write_text("".join(lines), encoding="utf-8")
        assert {nbest.utt: nbest for nbest in read(folder)} == before


def change(name, old, new):
    """Return the good archives with one line of a file changed."""
    assert old in GOOD[name]
    return {name: GOOD[name].replace(old, new, 1)}


BAD = {
    "missing words_text": ({"words_text": None}, r"words_text: cannot be read"),
    "missing acwt": ({"acwt": None}, r"acwt: cannot be read"),
    "withlm alone": ({"lmwt.nolm": None}, r"lmwt\.nolm: missing"),
    "empty": ({name: "" for name in FILES}, r"words_text: no hypotheses"),
    "empty line": (change("words_text", "en-A_1-1", "\nen-A_1-1"), r"words_text:3: an empty line"),
    "empty line of costs": (change("acwt", "en-A_1-1", "\nen-A_1-1"), r"acwt:3: an empty line"),
    "no rank": (
        {name: GOOD[name].replace("en-A_1-1", "utterance") for name in FILES},
        r"words_text:3: the key 'utterance' is not of the form",
    ),
    "rank 0": (
        {name: GOOD[name].replace("en-A_1-1", "u-0") for name in FILES},
        r"words_text:3: the key 'u-0' is not of the form",
    ),
    "rank 01": (
        {name: GOOD[name].replace("en-A_1-1", "u-01") for name in FILES},
        r"words_text:3: the key 'u-01' is not of the form",
    ),
    "missing rank": (
        {name: GOOD[name].replace("2-2", "2-3") for name in FILES},
        r"words_text:2: the hypothesis 'en-A_1-2-2' is missing",
    ),
    "missing first": (
        {name: GOOD[name].replace("en-A_1-1", "en-A_1-7") for name in FILES},
        r"words_text:3: the hypothesis 'en-A_1-1' is missing",
    ),
    "duplicate words": (
        change("words_text", "en-A_1-1 ", "en-A_1-2-1 "),
        r"words_text:3: the key 'en-A_1-2-1' stands already in line 1",
    ),
    "duplicate cost": (
        change("acwt", "en-A_1-1 ", "en-A_1-2-1 "),
        r"acwt:3: the key 'en-A_1-2-1' stands already in line 1",
    ),
    "key without cost": (
        change("acwt", "en-A_1-2-2 1e1\n", ""),
        r"acwt: 1 of the 3 keys of words_text are missing, the first 'en-A_1-2-2' \(words_text:2\)",
    ),
    "cost without key": (
        {"lmwt.withlm": GOOD["lmwt.withlm"] + "new-1 3\n"},
        r"words_text: 1 of the 4 keys of lmwt\.withlm .* 'new-1' \(lmwt\.withlm:4\)",
    ),
    "other keys": (
        change("lmwt.nolm", "en-A_1-2-1", "en-A-1-2-1"),
        r"lmwt\.nolm: 1 of the 3 keys of words_text .* 'en-A_1-2-1'",
    ),
    "no cost": (change("acwt", " 10.5", ""), r"acwt:1: '' stands where one number"),
    "a word": (change("acwt", "10.5", "high"), r"acwt:1: 'high' stands where one number"),
    "two numbers": (change("acwt", "10.5", "1 2"), r"acwt:1: '1 2' stands where one number"),
    "comma": (change("acwt", "10.5", "10,5"), r"acwt:1: '10,5' stands where one number"),
    "underscore": (change("acwt", "10.5", "1_0"), r"acwt:1: '1_0' stands where one number"),
    "nan": (change("acwt", "10.5", "nan"), r"acwt:1: 'nan' is not a finite number"),
    "inf": (change("acwt", "10.5", "-Inf"), r"acwt:1: '-Inf' is not a finite number"),
    "inf lm": (change("lmwt.withlm", " .5", " inf"), r"lmwt\.withlm:2: 'inf' is not a finite"),
    "overflow": (change("acwt", "10.5", "1e999"), r"acwt:1: '1e999' is too large"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_archives_are_one_error_with_file_and_line_or_key(tmp_path, name):
    changes, message = BAD[name]
    with pytest.raises(InputError, match=message) as error:
        read(write(tmp_path / "nbest", **changes))
    text = str(error.value)
    assert text.startswith(f"{tmp_path / 'nbest'}/") and "\n" not in text
    if name not in ("missing words_text", "missing acwt", "empty"):
        assert re.search(r"\. [A-Z].*\.$|\?$", text), f"no remedy: {text}"


def test_not_utf8(tmp_path):
    write(tmp_path)
    (tmp_path / "words_text").write_bytes(b"a-1 \xff\n")
    with pytest.raises(InputError, match="words_text: not UTF-8"):
        read(tmp_path)


def test_not_a_folder_and_unknown_format(tmp_path):
    with pytest.raises(InputError, match="nosuch: not a folder of Kaldi N-best archives"):
        read(tmp_path / "nosuch")
    with pytest.raises(InputError, match=r"unknown N-best format 'htk'.*kaldi"):
        list(read_nbest(tmp_path, "htk"))
    with pytest.raises(InputError, match="unknown N-best format 'htk'"):
        write_nbest([], tmp_path, format="htk")


def test_hypotheses_with_different_kinds_of_scores_are_not_written(tmp_path):
    hyps = (Hypothesis(("a",), -1.0, -2.0, -3.0), Hypothesis(("b",), -1.0))
    with pytest.raises(ValueError, match="1 of 2 hypotheses have a cost lmwt"):
        write_nbest([NBest("u", hyps)], tmp_path)


def test_a_list_needs_a_hypothesis():
    with pytest.raises(ValueError, match="'u' has no hypothesis"):
        NBest("u", ())


def test_costs_are_written_one_line_per_key(tmp_path):
    write_costs(tmp_path / "lmwt.nn", [("u-1", [1.5, 2.25]), ("u-2", [0.1234567]), ("u-3", [])])
    lines = (tmp_path / "lmwt.nn").read_text().splitlines()
    assert lines == ["u-1 1.500000 2.250000", "u-2 0.123457", "u-3"]
