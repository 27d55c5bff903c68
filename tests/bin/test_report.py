"""`bayeslm report`: one file of what the other tools have written."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from command_lines import perplexities, run, words
from oracles.html_reader import Page

from espnet_bayeslm.bin import score, snr
from espnet_bayeslm.bin.report import main
from espnet_bayeslm.report.rescored_lists import read_references, read_rescored
from espnet_bayeslm.utils.errors import InputError


@pytest.fixture(scope="module")
def outputs(bayes, ngram, nbest, plain_text, tmp_path_factory):
    """Return a folder with what the tools write."""
    folder = tmp_path_factory.mktemp("outputs")
    lists, ref = {"nbest": nbest / "dev", "ngram": ngram}, nbest / "dev.ref"
    run(**lists, tune_ref=ref, output=folder / "ngram")
    run(**lists, lmwt=3, output=folder / "fixed")
    hyps = [f"{name}={folder}/{name}/text" for name in ("fixed", "ngram")]
    score.main(words(ref=ref, hyp=hyps, output=folder / "score.json"))
    perplexities(text=plain_text / "valid.txt", ngram=ngram, output=folder / "ppl.json")
    snr.main(words(lm=bayes, output=folder / "snr"))
    return folder


def test_everything(outputs, bayes, nbest, tmp_path, capsys, monkeypatch):
    path = tmp_path / "new" / "report.html"
    scores = {"score": outputs / "score.json", "perplexity": f"ngram={outputs}/ppl.json"}
    lists = {"rescored": [outputs / "ngram", f"fixed={outputs}/fixed"], "ref": nbest / "dev.ref"}
    command = words(output=path, title="A & B", **scores, **lists, exp=bayes, snr=outputs / "snr")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    main(command)
    page = Page(path.read_text(encoding="utf-8"))
    assert "A & B" in page.text
    sections = {"scores", "learning", "snr", "nbest", "nbest-view-0", "nbest-view-1", "provenance"}
    assert sections <= set(page.ids)
    # links within the page, and pictures that are part of it
    assert all(
        address.startswith(("#", "data:image/png;", "data:application/json;"))
        for address in page.addresses
    )
    assert not page.handlers
    assert {"ngram", "fixed", "bayes", "oracle"} <= set(page.cells)
    assert "N-best lists" in capsys.readouterr().out
    # where it comes from: date, command, LMs and weights, versions
    assert "1970-01-02 00:00 UTC" in page.text and "espnet 2" in page.text
    assert f"bayeslm report --output {path} --title 'A & B' --score {outputs}" in page.text
    row = page.cells[page.cells.index("LMs and weights") + 5 :]
    assert row[:3] == ["ngram", "bigram 1", "linear"] and row[3].startswith("lmwt ")
    assert row[6] == "fixed" and row[9] == "lmwt 3, word_penalty 0"
    digest = hashlib.sha256(Path(f"{outputs}/score.json").read_bytes()).hexdigest()
    assert digest[:12] in page.cells
    # what wrote the inputs; a training by ESPnet's own tool leaves no command
    written = page.cells[page.cells.index("written by") + 1 :]
    commands = {row[0]: row[4] for row in zip(*[iter(written)] * 5, strict=True)}
    assert commands["score"].startswith(f"bayeslm score --ref {nbest}/dev.ref --hyp fixed=")
    assert commands["rescored"].startswith(f"bayeslm rescore --nbest {nbest}/dev --ngram ")
    assert commands["snr"] == f"bayeslm snr --lm {bayes} --output {outputs}/snr"
    assert commands["perplexity"].startswith("bayeslm perplexity --text ")
    assert commands["exp"] == commands["ref"] == "–"
    # the same once more, but for the date
    first = path.read_text(encoding="utf-8")
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


def test_options_of_a_file(outputs, tmp_path):
    config = tmp_path / "report.yaml"
    config.write_text(f"perplexity: x={outputs}/ppl.json\noutput: {tmp_path}/r.html\n")
    main(["--config", f"{config}"])
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "x" in page.cells and "nbest" not in page.ids


BAD = {
    "nothing": ([], "nothing to report"),
    "no file": (["--score", "nosuch"], "nosuch: cannot be read"),
    "no score": (["--score", "{outputs}/ppl.json"], "ppl.json: expected word errors of systems"),
    "no perplexity": (
        ["--perplexity", "a={outputs}/score.json"],
        "score.json: expected perplexities",
    ),
    "no name": (["--perplexity", "={outputs}/ppl.json"], "Give --perplexity NAME=PATH"),
    "one text twice": (["--perplexity", "{outputs}/ppl.json"] * 2, "has perplexities of"),
    "no folder": (["--rescored", "nosuch"], "nosuch: not a folder"),
    "one name twice": (["--rescored", "a={outputs}/ngram"] * 2, "are both called a"),
    "no lists": (["--rescored", "{outputs}/snr"], "no format of N-best lists or lattices"),
    "another format": (
        ["--rescored", "{outputs}/ngram", "--nbest_format", "sphinx"],
        "unknown N-best format 'sphinx'",
    ),
    "references alone": (["--ref", "{nbest}/dev.ref"], "--ref without lists"),
    "other references": (
        ["--rescored", "{outputs}/ngram", "--ref", "{nbest}/test.ref"],
        "utterances have no reference",
    ),
    "no experiment": (["--exp", "{outputs}"], "found no checkpoint.pth"),
    "no ratios": (["--snr", "{outputs}"], "snr.json: cannot be read"),
    "no search": (["--search", "{outputs}"], "search.json: cannot be read"),
}


@pytest.mark.parametrize("options, message", BAD.values(), ids=BAD)
def test_bad_input(refused, tmp_path, options, message):
    refused(main, ["--output", tmp_path / "r.html", *options], message)
