"""Recordings, blocks and jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_interpolation import Table

from espnet_bayeslm.evaluation.word_scores import Component
from espnet_bayeslm.nbest.segments import Segment, read_segments
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring import list_worker as module
from espnet_bayeslm.rescoring.list_worker import blocks, by_recording, score_lists
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.rescoring.scales import Weighting
from espnet_bayeslm.utils.errors import InputError

LM = [Component("table", "ngram", Table("table", "a", 0))]


def scored(nbests, job, num_jobs):
    """Return the lists that a job scores."""
    weighting = Weighting.of(LM, None, None)
    found = score_lists(nbests, LM, weighting, RescoreOptions(job=job, num_jobs=num_jobs))
    return [item.nbest for item in found]


def make(sizes):
    return [NBest(f"u{n}", (Hypothesis(("a",), 0.0),) * size) for n, size in enumerate(sizes)]


def test_segments_of_kaldi_and_utt2start(tmp_path):
    files = {
        "a-1 rec1 2.5 3\nb-1 rec2 0 1.5\n": {"a-1": ("rec1", 2.5), "b-1": ("rec2", 0.0)},
        "a 3.5\nb 1\n": {"a": ("", 3.5), "b": ("", 1.0)},
        "a rec 3.5\n": {"a": ("rec", 3.5)},
    }
    for text, expected in files.items():
        (tmp_path / "segments").write_text(text)
        assert read_segments(tmp_path / "segments") == expected


@pytest.mark.parametrize("line", ["a", "a b c", "a rec nan 1", "a rec 1 2 3", "a inf"])
def test_lines_that_are_no_segments(tmp_path, line):
    (tmp_path / "segments").write_text(f"ok rec 0 1\n{line}\n")
    with pytest.raises(InputError, match="segments:2: expected `utterance recording start"):
        read_segments(tmp_path / "segments")
    (tmp_path / "empty").write_text("")
    with pytest.raises(InputError, match="no utterances"):
        read_segments(tmp_path / "empty")


def test_a_recording_is_whole_and_in_time_order():
    segments = {"u0": Segment("r", 3.0), "u1": Segment("s", 0.0), "u2": Segment("r", 1.0)}
    found = [[item.utt for item in items] for items in by_recording(make([1, 1, 1]), segments)]
    assert found == [["u2", "u0"], ["u1"]]
    with pytest.raises(InputError, match="seg: has no line for the utterance 'u3'"):
        list(by_recording(make([1] * 4), segments, path="seg"))


@given(
    sizes=st.lists(st.integers(1, 9), max_size=30),
    num_jobs=st.integers(1, 5),
    size=st.integers(1, 20),
)
def test_jobs_share_the_blocks_of_one_job(sizes, num_jobs, size):
    nbests = make(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_SIZE", size)
        whole = list(blocks(by_recording(nbests, None)))
        jobs = [scored(nbests, job, num_jobs) for job in range(1, num_jobs + 1)]
    assert [items[0] for block in whole for items in block] == nbests
    for block in whole[:-1]:
        counts = [len(items[0].hypotheses) for items in block]
        assert sum(counts) >= size > sum(counts[:-1])
    for number, found in enumerate(jobs):
        assert found == [items[0] for block in whole[number::num_jobs] for items in block]
