"""`bayeslm report`: one file of what the other tools have written."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from command_lines import run
from oracles.html_reader import Page
from tiny_training import words

from espnet_bayeslm.bin.report import main
from espnet_bayeslm.report.rescored_lists import read_references, read_rescored
from espnet_bayeslm.utils.errors import InputError


def test_everything(outputs, bayes, nbest, tmp_path, capsys, monkeypatch):
    path = tmp_path / "new" / "report.html"
    scores = {"score": outputs / "score.json", "perplexity": f"ngram={outputs}/ppl.json"}
    lists = {"rescored": [outputs / "ngram", f"fixed={outputs}/fixed"], "ref": nbest / "dev.ref"}
    command = words(output=path, title="A & B", **scores, **lists, exp=bayes, snr=outputs / "snr")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    main(command)
    first = path.read_text(encoding="utf-8")
    page = Page(first)
    assert "A & B" in page.text
    sections = {"scores", "learning", "snr", "nbest", "nbest-view-0", "nbest-view-1", "provenance"}
    assert sections <= set(page.ids)
    assert {"ngram", "fixed", "bayes", "oracle"} <= set(page.cells)
    assert "N-best lists" in capsys.readouterr().out
    # where it comes from: date, command, LMs and weights, versions, commands of the inputs
    assert "1970-01-02 00:00 UTC" in page.text and "espnet 2" in page.text
    assert f"bayeslm report --output {path} --title 'A & B' --score {outputs}" in page.text
    row = page.cells[page.cells.index("LMs and weights") + 4 :]
    assert row[:2] == ["ngram", "bigram 1"] and row[2].startswith("lmwt ")
    digest = hashlib.sha256(Path(f"{outputs}/score.json").read_bytes()).hexdigest()
    assert digest[:12] in page.cells
    assert f"bayeslm snr --lm {bayes} --output {outputs}/snr" in page.cells
    # the same once more, but for the date
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "172800")
    main(command)
    assert path.read_text(encoding="utf-8") == first.replace("1970-01-02", "1970-01-03")


def test_lists_that_were_normalised_are_counted_so(bayes, tmp_path):
    """As by the rescoring, and the uncertainty of its words is theirs."""
    rows = [{"utt": f"u{n}", "ref": "a b", "hypotheses": ["A, b.", "a c"]} for n in range(3)]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lists = {"nbest": tmp_path / "lists.jsonl", "nbest_format": "jsonl", "lm": bayes, "lmwt": 1}
    options = {"normalize": "lower,punct", "uncertainty": "true", "num_samples": 2}
    folder = run(**lists, **options, output=tmp_path / "out")
    assert yaml.safe_load((folder / "scales.yaml").read_text())["normalize"] == "lower,punct"
    rescored = read_rescored("r", str(folder), "jsonl")
    assert [n.hypotheses[0].words for n in rescored.nbests] == [("a", "b")] * 3
    (tmp_path / "ref").write_text("u0 A b!\nu1 a b\nu2 a B\n")
    refs = read_references([str(tmp_path / "ref")], [rescored], [("r", str(folder))])
    assert set(refs.values()) == {("a", "b")}
    other = run(**lists, output=tmp_path / "plain", max_oov_rate=1)
    both = [rescored, read_rescored("plain", str(other), "jsonl")]
    with pytest.raises(InputError, match="rescored with --normalize '' and 'lower,punct'"):
        read_references([str(tmp_path / "ref")], both, [])
