import gzip
import logging
from pathlib import Path

import numpy as np
import pytest
from tiny_training import words
from written_files import write

from espnet_bayeslm.bin.ngram import main
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer

TEXT = Path(__file__).parents[1] / "ngram" / "data" / "reference.txt"


def options(text, arpa, **others):
    return words(**{"text": text, "arpa": arpa, "lmplz": "none", **others})


def test_text_to_scores(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    main(options(TEXT, tmp_path / "new" / "lm.arpa"))
    main(options(TEXT, tmp_path / "lm.arpa.gz"))
    assert "own modified Kneser-Ney" in caplog.text
    assert "3-grams" in caplog.text
    plain, zipped = tmp_path / "new" / "lm.arpa", tmp_path / "lm.arpa.gz"
    assert gzip.decompress(zipped.read_bytes()) == plain.read_bytes()
    sentences = [["thank", "you"], ["unheard"], []]
    for a, b in zip(*(NgramScorer(p).word_scores(sentences) for p in (plain, zipped)), strict=True):
        np.testing.assert_array_equal(a.log_probs, b.log_probs)


@pytest.mark.parametrize(
    "content, others, message",
    [
        (b"a b\n", {}, "--discount_fallback true"),
        (b"a b\n", {"order": 0}, "--order is 0"),
        (b"a b\n", {"lmplz": "/nosuch/lmplz"}, "/nosuch/lmplz: --lmplz names no program"),
    ],
)
def test_bad_input_leaves_the_old_file(tmp_path, refused, content, others, message):
    (tmp_path / "text").write_bytes(content)
    (tmp_path / "lm.arpa").write_text("old")
    refused(main, options(tmp_path / "text", tmp_path / "lm.arpa", **others), message)


@pytest.mark.parametrize("arpa", ["folder", "."])
def test_an_output_that_is_a_folder(tmp_path, refused, monkeypatch, arpa):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    refused(main, options(TEXT, arpa), f"error: {tmp_path}: cannot be read or written")


@pytest.fixture
def program(tmp_path):
    """Return a function that makes a stand-in for lmplz of shell commands."""
    return lambda commands: write(tmp_path / "lmplz", f"#!/bin/sh\n{commands}\n")


def test_lmplz_on_the_path_is_taken(tmp_path, program, monkeypatch):
    lmplz = program(
        'echo "$@" >"${0%/*}/options"; cat >"${0%/*}/stdin"\n'
        r"printf '\\data\\\nngram 1=3\nngram 2=1\n\n\\1-grams:\nrest\n'"
    )
    monkeypatch.setenv("PATH", str(lmplz.parent), prepend=":")
    (tmp_path / "text").write_bytes(b"a  b\n\nc")
    arpa = tmp_path / "lm.arpa"
    main(options(tmp_path / "text", arpa, lmplz="auto", order=2, discount_fallback="true"))
    # tidy lines: lmplz drops the </s> of a last line without an end
    assert (tmp_path / "stdin").read_text() == "a b\n\nc\n"
    assert (tmp_path / "options").read_text().startswith("--order 2 ")
    assert "--discount_fallback" in (tmp_path / "options").read_text()
    assert arpa.read_text() == "\\data\\\nngram 1=3\nngram 2=1\n\n\\1-grams:\nrest\n"


@pytest.mark.parametrize(
    "commands, message",
    [
        ("echo BadDiscountException >&2; exit 134", "cannot estimate the discounts"),
        ("echo partial; echo disk full >&2; exit 3", "ended with status 3: disk full"),
        ("cat >/dev/null", "this is not lmplz"),
    ],
)
def test_failing_lmplz_leaves_nothing(tmp_path, program, fails, commands, message):
    arpa = tmp_path / "out" / "lm.arpa"
    assert message in fails(main, options(TEXT, arpa, lmplz=program(commands)))
    assert not any(arpa.parent.iterdir())
