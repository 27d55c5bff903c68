"""`rescore` and the report count errors in one way: markup, characters, words left out."""

import dataclasses
import json

import pytest
import yaml
from command_lines import run

from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.report.nbest_section import Texts, make_view
from espnet_bayeslm.report.rescored_lists import read_references, read_rescored

# no word is in the n-gram, and most words are several characters
LISTS = {
    "u-1": ["a bread kite [laugh]", "a red kite [laugh]"],
    "u-2": ["bread !SIL", "red !SIL"],
    "u-3": ["bread kite", "red kite"],
}
REFS = {"u-1": "a { red / blue } kite", "u-2": "red (uh)", "u-3": "{ ten / @ } red kite"}


@pytest.fixture
def files(tmp_path):
    """A folder with the lists, the score of rank n being -n, and the references."""
    rows = []
    for utt, texts in LISTS.items():
        hyps = [{"text": text, "am_score": -float(n)} for n, text in enumerate(texts)]
        rows.append(json.dumps({"utt": utt, "hypotheses": hyps}) + "\n")
    (tmp_path / "lists.jsonl").write_text("".join(rows))
    (tmp_path / "ref").write_text("".join(f"{text} ({utt})\n" for utt, text in REFS.items()))
    (tmp_path / "noise").write_text("[laugh]\n!SIL\n")
    return tmp_path


def table(text):
    """Return {row's name: its numbers} of the printed table of errors."""
    rows = (line.rsplit(maxsplit=5) for line in text.splitlines())
    return {row[0].strip(): row[1:] for row in rows if len(row) == 6}


@pytest.mark.parametrize(
    "unit, first_pass, num_units",
    [("word", ["42.86", "3", "0", "0", "7"], 7), ("char", None, 20)],
)
def test_the_table_the_settings_and_the_report_count_alike(
    files, ngram, capsys, unit, first_pass, num_units
):
    lists = {"nbest": files / "lists.jsonl", "tune_ref": files / "ref", "max_oov_rate": 1}
    counting = {"ignore_words": files / "noise", "unit": unit}
    output = run(**lists, **counting, ngram=ngram, output=files / "out")
    printed = capsys.readouterr().out
    assert ("CER %" in printed) == ("WER" not in printed) == (unit == "char")
    rows = table(printed)
    assert first_pass is None or rows["first pass"] == first_pass
    assert rows["first pass"][-1] == str(num_units) and rows["oracle"][0] == "0.00"
    # what is written keeps its words
    lists = list(read_nbest(output / "nbest.jsonl", "jsonl"))
    written = {item.utt: [" ".join(hyp.words) for hyp in item.hypotheses] for item in lists}
    assert written == LISTS
    content = yaml.safe_load((output / "scales.yaml").read_text())
    assert content["ignore_words"] == ["!SIL", "[laugh]"]
    assert content.get("unit", "word") == unit and content["tuning"]["words"] == num_units
    item = read_rescored("lm", str(output), "jsonl")
    refs = read_references([str(files / "ref")], [item], [("lm", str(output))])
    for name, counts in make_view(item, refs, Texts()).errors.items():
        assert [*map(str, dataclasses.astuple(counts))] == rows[name][1:]
