"""The examples of docs/lists.md are read as they stand, and all hold one list."""

import math
import re
from pathlib import Path

import pytest

from espnet_bayeslm.nbest.formats import READERS, read_nbest
from espnet_bayeslm.utils.errors import InputError

PAGE = (Path(__file__).parents[2] / "docs" / "lists.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w./]+)`[^`]*:\n\n```\w+\n(.*?)```", re.DOTALL)


def examples():
    """Return {format: {file: text}}."""
    found = {}
    for section in SECTION.findall(PAGE):
        files = dict(FILE.findall(section))
        if files:
            found[re.search(r"--nbest_format (\w+)", section)[1]] = files
    return found


@pytest.mark.parametrize("format", READERS)
def test_lists_that_are_not_there(format, tmp_path):
    with pytest.raises(InputError, match="nosuch"):
        list(read_nbest(tmp_path / "nosuch" / "lists", format))


@pytest.mark.parametrize("format", READERS)
def test_the_example_is_read(format, tmp_path):
    assert set(examples()) == set(READERS)
    for name, text in examples()[format].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    path = tmp_path / "lists.jsonl" if format == "jsonl" else tmp_path
    (nbest,) = read_nbest(path, format)
    assert nbest.utt == "u1"
    words = [" ".join(hyp.words) for hyp in nbest.hypotheses]
    assert words == ["it is a test", "it's a test"]
    if format != "whisper":
        scores = [hyp.am_score for hyp in nbest.hypotheses]
        assert scores == pytest.approx([-3.5, -4.0], abs=1e-3 * math.log(10))
    if format in ("jsonl", "kaldi", "srilm", "beams"):
        lm_scores = [hyp.lm_score for hyp in nbest.hypotheses]
        assert lm_scores == pytest.approx([-8.1, -7.9], abs=1e-3 * math.log(10))
