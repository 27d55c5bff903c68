"""`rescore` and the report count errors in one way: markup, characters, words left out."""

import dataclasses
import json

import pytest
import yaml

from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.report.nbest_section import Texts, make_view
from espnet_bayeslm.report.rescored_lists import read_references, read_rescored

ARPA = """\\data\\
ngram 1=6
ngram 2=1

\\1-grams:
-1\t<unk>
-99\t<s>\t0
-1\t</s>
-0.5\tred\t0
-0.5\tkite
-2\tbread

\\2-grams:
-0.4\tred kite

\\end\\
"""
# utterance -> hypotheses; the last is the best under the n-gram
LISTS = {
    "u-1": ["a bread kite [laugh]", "a red kite [laugh]"],
    "u-2": ["bread !SIL", "red !SIL"],
    "u-3": ["bread kite", "red kite"],
}
REFS = {"u-1": "a { red / blue } kite", "u-2": "red (uh)", "u-3": "{ ten / @ } red kite"}


def write_lists(folder, lists):
    """Write N-best lists, the score of rank n being -n."""
    with open(folder / "lists.jsonl", "w") as f:
        for utt, texts in lists.items():
            hyps = [{"text": text, "am_score": -float(n)} for n, text in enumerate(texts)]
            f.write(json.dumps({"utt": utt, "hypotheses": hyps}) + "\n")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "x.arpa").write_text(ARPA)
    write_lists(tmp_path, LISTS)
    (tmp_path / "ref").write_text("".join(f"{text} ({utt})\n" for utt, text in REFS.items()))
    (tmp_path / "noise").write_text("[laugh]\n!SIL\n")
    return tmp_path


def rescore(files, *options):
    """Run the tool; return its output folder."""
    output = files / "out"
    main(
        f"--nbest {files}/lists.jsonl --nbest_format jsonl --ngram {files}/x.arpa --max_oov_rate 1"
        f" --tune_ref {files}/ref --output {output}".split()
        + list(options)
    )
    return output


def table(text):
    """Return {row's name: its numbers} of the printed table of errors."""
    rows = (line.rsplit(maxsplit=5) for line in text.splitlines())
    return {row[0].strip(): row[1:] for row in rows if len(row) == 6}


@pytest.mark.parametrize(
    "unit, first_pass, num_units",
    [("word", ["42.86", "3", "0", "0", "7"], 7), ("char", None, 20)],
)
def test_the_table_the_settings_and_the_report_count_alike(
    files, capsys, unit, first_pass, num_units
):
    output = rescore(files, "--ignore_words", str(files / "noise"), "--unit", unit)
    printed = capsys.readouterr().out
    assert ("CER %" in printed) == ("WER" not in printed) == (unit == "char")
    noun = "words" if unit == "word" else "characters"
    assert f"{noun} of the first pass" in printed
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
