"""N-best lists as JSON lines."""

import gzip
import json

import pytest
from oracles.refused import check_refused

from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.json_lists import json_items
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError

GOOD = {
    "utt": "u-1",
    "hypotheses": [{"text": "a b", "am_score": -1.5}, {"text": "", "am_score": 2}],
}


def read(path):
    return list(read_nbest(path, "jsonl"))


def write(path, *objects):
    """Write lines; a string is written as it stands."""
    lines = [item if isinstance(item, str) else json.dumps(item) for item in objects]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_strings_totals_ranks_speakers_and_unknown_keys(tmp_path, caplog):
    caplog.set_level("INFO")
    objects = [
        {"utt": "u1", "hypotheses": ["a b", {"text": "c"}, ""], "speaker": "s 1", "wer": [0.5, 1]},
        {"utt": "u2", "hypotheses": [{"text": "a", "score": -2, "tokens": ["a"]}]},
        {"utt": "u3", "hypotheses": [{"text": "b", "rank": 2}, {"text": "a", "rank": 1}]},
        {"utt": "u4", "hypotheses": [{"text": "b", "rank": 2, "am_score": 1, "score": 3}]},
    ]
    expected = [
        NBest(
            "u1",
            (Hypothesis(("a", "b")), Hypothesis(("c",)), Hypothesis(())),
            speaker="s 1",
            extra={"wer": [0.5, 1]},
        ),
        NBest("u2", (Hypothesis(("a",), -2.0, extra={"score": -2, "tokens": ["a"]}),)),
        NBest("u3", (Hypothesis(("a",), extra={"rank": 1}), Hypothesis(("b",), extra={"rank": 2}))),
        NBest("u4", (Hypothesis(("b",), 1.0, extra={"rank": 2, "score": 3}),)),
    ]
    lists = read(write(tmp_path / "lists.jsonl", *objects))
    assert lists == expected
    assert "kept, and not used: tokens, wer" in caplog.text
    write_nbest(lists, tmp_path / "again.jsonl", format="jsonl")
    assert read(tmp_path / "again.jsonl") == expected


def test_a_folder_has_its_files_read_in_natural_order(tmp_path):
    for name in ("part.10.jsonl", "part.2.jsonl", "other.json", "text"):
        write(tmp_path / name, {**GOOD, "utt": name})
    packed = gzip.compress(json.dumps({**GOOD, "utt": "zipped"}).encode())
    (tmp_path / "part.1.jsonl.gz").write_bytes(packed)
    utts = [nbest.utt for nbest in read(tmp_path)]
    assert utts == ["zipped", "part.2.jsonl", "part.10.jsonl"]


@pytest.mark.parametrize("name, file", [
    ("new", "new/nbest.jsonl"), ("a.jsonl", "a.jsonl"), ("b.jsonl.gz", "b.jsonl.gz")
])  # fmt: skip
def test_where_it_is_written(tmp_path, name, file):
    lists = [NBest("é", (Hypothesis(("a",), -1.0, graph_score=0.0),), ("b",))]
    write_nbest(lists, tmp_path / name, format="jsonl")
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()] == [file]
    assert read(tmp_path / name) == lists
    if file.endswith("gz"):
        before = (tmp_path / file).read_bytes()
        write_nbest(lists, tmp_path / name, format="jsonl")
        assert (tmp_path / file).read_bytes() == before


def hyp(**content):
    return {"utt": "u", "hypotheses": [{"text": "a", **content}]}


BAD = [
    ([], r"lists: no utterances"),
    ([GOOD, ""], r":2: not JSON \(Expecting value at column 1\)"),
    (['{"utt": "a", "hypo'], r":1: not JSON \(Unterminated string .* column 14\)"),
    (["{} {}"], r":1: not JSON \(Extra data at column 4\)"),
    ([[GOOD]], r":1: the line is .*, and an object was expected"),
    ([{"hypotheses": [{"text": "a"}]}], r":1: utt is missing, and a string"),
    ([{**GOOD, "utt": "a b"}], r":1: 'a b' cannot be an utterance id"),
    ([{**GOOD, "utt": "\ud800"}], r":1: '\\ud800' cannot be an utterance id"),
    ([hyp(text="\udfff")], r":1: text is '\\udfff', and a string"),
    ([GOOD, GOOD], r":2: the utterance 'u-1' stands already in .*lists:1"),
    ([{"utt": "u"}], r":1: hypotheses are missing"),
    ([{"utt": "u", "hypotheses": [["a"]]}], r":1: a hypothesis is \['a'\]"),
    ([{"utt": "u", "hypotheses": [{"text": "a", "rank": 1}] * 2}], r":1: two .* of one rank"),
    ([{**GOOD, "speaker": 3}], r":1: speaker is 3, and a string"),
    ([{**GOOD, "x": "\ud800"}], r":1: .* cannot be kept"),
    ([json.dumps(hyp(x=7)).replace("7", "1e999")], r":1: .* cannot be kept"),
    ([{"utt": "u", "hypotheses": [{}]}], r":1: text is missing"),
    ([hyp(am_score="-1")], r":1: am_score is '-1', and a finite number"),
    ([hyp(lm_score=True)], r":1: lm_score is True, and a finite number"),
    ([hyp(lm_score=float("nan"))], r":1: lm_score is nan, and a finite number"),
    ([json.dumps(hyp(am_score=7)).replace("7", "1e999")], r":1: am_score is inf"),
    ([f'{{"utt": {"1" * 10**6}}}'], r":1: not JSON \(Exceeds the limit"),
    (['{"utt": "u", "utt": "v"}'], r":1: a key comes twice"),
    (
        [{"utt": "u", "hypotheses": [{"text": "", "am_score": 1}, {"text": ""}]}],
        r":1: 1 of 2 hypotheses have a score",
    ),
    (["[" * 10**6], r":1: brackets are nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize("lines, message", BAD, ids=[message for _, message in BAD])
def test_bad_lines_are_one_error_with_file_and_line(tmp_path, lines, message):
    path = write(tmp_path / "lists", *lines)
    check_refused(lambda: read(path), message, path)


def test_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match="nosuch: cannot be read"):
        read(tmp_path / "nosuch")
    with pytest.raises(InputError, match=r"no \*\.jsonl in it"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["[1, 2,]", "[1, 2,\n]", "[1, 2", "[1 2]", "[1] 2"])
def test_a_list_that_is_not_json(text, tmp_path):
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(InputError, match="',' or the end of the list was expected"):
        list(json_items(tmp_path / "list.json", remedy="Write a list."))
