"""`bayeslm score` and `report`: word errors of several systems, and one page of all results."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import yaml
from command_lines import run
from oracles.html_reader import Page
from tiny_training import words

from espnet_bayeslm.bin import report
from espnet_bayeslm.bin.score import condition_files, main
from espnet_bayeslm.evaluation.wer import oracle_errors, read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.report.rescored_lists import read_references, read_rescored
from espnet_bayeslm.report.score_results import (
    print_scores,
    read_scores,
    scores_json,
    scores_section,
)
from espnet_bayeslm.utils.errors import InputError


def write(path, texts):
    path.write_text("".join(f"{utt} {words}\n" for utt, words in texts.items()))
    return path


def test_several_conditions(tmp_path, capsys):
    near, far = {"m1": "a b c", "m2": "d e"}, {"n1": "f g", "n2": "a b c d"}
    outputs = {"x": [near, {"n1": "f", "n2": "a x c"}], "y": [{"m1": "", "m2": "d e"}, far]}
    write(tmp_path / "near", near)
    write(tmp_path / "far", far)
    options = ["--ref", f"near={tmp_path}/near", "--ref", f"far={tmp_path}/far"]
    for name, texts in outputs.items():
        for condition, text in zip(("near", "far"), texts, strict=True):
            path = write(tmp_path / f"{name}_{condition}", text)
            options += ["--hyp", f"{name}:{condition}={path}"]
    main([*options, "--output", f"{tmp_path}/out.json"])
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["x", "y", "significance", "conditions", "average_wer", "counted"]
    assert found["x"]["wer"] == pytest.approx(100 * 3 / 11)
    assert found["average_wer"] == {"x": 25.0, "y": 30.0}
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["WER", "%", "near", "far", "average", "pooled"] in rows
    assert ["x", "0.00", "50.00", "25.00", "27.27"] in rows


def test_first_pass_and_oracle_of_lists(nbest, tmp_path, capsys, caplog):
    refs = read_transcripts(nbest / "dev.ref")
    lists = {item.utt: [hyp.words for hyp in item.hypotheses] for item in read_nbest(nbest / "dev")}
    options = ["--ref", f"dev={nbest}/dev.ref", "--nbest", f"{nbest}/dev"]
    main([*options, "--hyp", f"ref={nbest}/dev.ref", "--output", f"{tmp_path}/out.json"])
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found)[:3] == ["first pass", "ref", "oracle"] and found["ref"]["errors"] == 0
    fewest = oracle_errors(refs, lists)
    assert found["oracle"]["errors"] == fewest.errors > 0
    assert found["oracle"]["words"] == fewest.words
    first, own = capsys.readouterr().out.splitlines()[1:3]
    assert first.startswith("first pass ") and own.split()[:2] == ["ref", "0.00†"]
    lines = (nbest / "dev.ref").read_text().splitlines()
    (tmp_path / "bad").write_text("".join(f"{line.split()[0]} x\n" for line in lines))
    lists = ["--nbest", f"{nbest}/dev", "--hyp", f"bad={tmp_path}/bad"]
    main(["--ref", f"{nbest}/dev.ref", *lists, "--hyp", f"good={nbest}/dev.ref"])
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1 and warnings[0].startswith("bad is worse than the first pass: ")


@pytest.mark.parametrize("normalize", [None, "lower", "lower,punct"])
@pytest.mark.parametrize("source", ["hyp", "nbest"])
def test_a_normalisation_that_lowers_the_error_rate_is_named(source, normalize, tmp_path, caplog):
    """In one line, that of the first system which is written in another way."""
    refs = {f"u{n}": f"it is a {'rose' if n else 'test'}" for n in range(30)}
    loud = {utt: f"It is a {text.split()[-1].title()}." for utt, text in refs.items()}
    options = ["--ref", f"{write(tmp_path / 'ref', refs)}"]
    options += ["--hyp", f"same={write(tmp_path / 'same', refs)}"]
    if source == "hyp":
        options += [f"--hyp={name}={write(tmp_path / 'loud', loud)}" for name in ("loud", "again")]
    else:
        lists = [{"utt": utt, "hypotheses": [text]} for utt, text in loud.items()]
        (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in lists))
        options += ["--nbest", f"{tmp_path}/a.jsonl"]
    main([*options, *([f"--normalize={normalize}"] if normalize else [])])
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    if normalize == "lower,punct":
        assert not warnings
        return
    (line,) = warnings
    name, rate = {"hyp": "loud", "nbest": "first pass"}[source], 25 if normalize else 50
    assert line.startswith(f"--normalize lower,punct: {name} {rate}.00 -> 0.00 %; references and")


@pytest.mark.parametrize("ref", ["-", "", "..."])
def test_references_without_a_word_are_told(ref, tmp_path, caplog):
    refs, hyps = write(tmp_path / "ref", {"u": ref}), write(tmp_path / "hyp", {"u": "a"})
    main(["--ref", f"{refs}", "--hyp", f"s={hyps}"])
    assert f"{refs}: no reference has a word: error rates say nothing" in caplog.text
    caplog.clear()
    main(["--ref", f"{hyps}", "--hyp", f"s={refs}"])
    assert "no reference" not in caplog.text
    same = write(tmp_path / "same", {"u": "N/A", "v": "N/A"})
    main(["--ref", f"{same}", "--hyp", f"s={same}"])
    assert f"{same}: all 2 references are 'N/A': is it a placeholder?" in caplog.text


# --ref, --hyp and --nbest, with blanks between the values of each
CONDITIONS = [
    ("r", "", "", "nothing to score"),
    ("r", "x", "", "Give NAME=TEXT"),
    ("r", "=x", "", "Give NAME=TEXT"),
    ("r", "a=x a=x", "", "its own NAME"),
    ("r s", "", "", "each with its own CONDITION"),
    ("r", "", "far=x", "--nbest far=... has no --ref"),
    ("", "", "", "no references. Give --ref TEXT."),
    ("a=x a=y", "", "", "each with its own CONDITION"),
    ("a=x y", "", "", "each with its own CONDITION"),
    ("a=", "", "", "Give --ref CONDITION=PATH"),
    ("a=x b=y", "s=z", "", "no condition of --ref (a, b)"),
    ("a=x b=y", "s:c=z", "", "Give NAME:CONDITION=TEXT"),
    ("a=x b=y", "s:a=z s:a=z", "", "Give NAME:CONDITION=TEXT, each with its own NAME"),
    ("a=x b=y", "s:a=z", "", "--hyp s:b=... is missing"),
    ("a=x b=y", "", "a=z", "--nbest b=... is missing"),
    ("a=x b=y", "", "z", "Every system needs an output"),
]


@pytest.mark.parametrize("ref, hyp, nbest, message", CONDITIONS)
def test_conditions_that_cannot_be_used(ref, hyp, nbest, message):
    with pytest.raises(InputError, match=re.escape(message)):
        condition_files(ref.split(), hyp.split(), nbest.split())


@pytest.mark.parametrize(
    "ref, hyp, option, row",
    [
        ("z1 我喜欢一本书", "z1 我喜欢一本数", "--unit=char", "16.67 1 0 0 6"),
        ("{ a / @ } b (a-1)", "[hm] a !SIL b (a-1)", "--ignore_words=noise", "0.00 0 0 0 2"),
    ],
)
def test_how_errors_are_counted(tmp_path, monkeypatch, capsys, ref, hyp, option, row):
    monkeypatch.chdir(tmp_path)
    for name, text in (("ref", ref), ("hyp", hyp), ("noise", "[hm]\n!SIL")):
        Path(name).write_text(f"{text}\n")
    main(["--ref", "ref", "--hyp", "s=hyp", option])
    header, found, line = (line.split() for line in capsys.readouterr().out.splitlines())
    assert found == ["s", *row.split()]
    assert header[0] == ("CER" if "char" in option else "WER")
    counting = ("chars;", "none;") if "char" in option else ("words;", "!SIL,")
    assert (line[0], line[1], line[5]) == ("counted:", *counting)


def test_words_of_bias_lists(tmp_path, capsys, caplog):
    """In a table for each of both, tested, and read from the JSON as they were."""
    texts = {
        "near": {"m1": "call Anna", "m2": "the red kite"},
        "far": {"n1": "new york [hm] kite", "n2": "a b"},
    }
    options = [f"--ref={name}={write(tmp_path / name, text)}" for name, text in texts.items()]
    outputs = {
        "x": {"near": {"m1": "call Hannah", "m2": "red kite"}, "far": {"n1": "new", "n2": "a b"}},
        "y": {"near": {"m1": "cell anna", "m2": "the red"}, "far": {"n1": "new", "n2": "a b York"}},
    }
    for name, of in outputs.items():
        for condition, text in of.items():
            path = write(tmp_path / f"{name}_{condition}", text)
            options += ["--hyp", f"{name}:{condition}={path}"]
    rows = {
        "m1": ["ANNA", "bee"],
        "m2": ["[hm]", "Kite"],
        "n1": ["New York", "axe"],
        "n2": ["York"],
    }
    lines = [json.dumps({"utt": utt, "words": words}) + "\n" for utt, words in rows.items()]
    (tmp_path / "bias").write_text("".join(lines))
    (tmp_path / "noise").write_text("[hm]\n")
    options += ["--normalize=lower", f"--ignore_words={tmp_path}/noise", f"--bias={tmp_path}/bias"]
    main([*options, "--output", f"{tmp_path}/out.json"])
    found = json.loads((tmp_path / "out.json").read_text())
    errors = {
        rate: {name: [*part[name].values()][:4] for name in "xy"}
        for rate, part in {"WER": found, **found["bias"]}.items()
    }
    assert errors == {  # S, D, I and words
        "WER": {"x": [1, 3, 0, 10], "y": [1, 3, 1, 10]},
        "U-WER": {"x": [0, 2, 0, 6], "y": [1, 1, 0, 6]},
        "B-WER": {"x": [1, 1, 0, 4], "y": [0, 2, 1, 4]},
    }
    assert found["bias"]["B-WER"]["conditions"]["far"]["y"]["wer"] == 100.0
    # of x the wrong anna and york, of y kite, york and the inserted york, each in its utterance
    (pair,) = found["bias"]["B-WER"]["significance"]["pairs"]
    assert pair["mapsswe"]["segments"] == 4 and pair["mapsswe"]["mean"] == pytest.approx(-1 / 4)
    cells = [line.split() for line in capsys.readouterr().out.splitlines()]
    tables = [row[0] for row in cells if row[-3:] == ["far", "average", "pooled"]]
    assert tables == ["WER", "U-WER", "B-WER"]
    assert ["y", "50.00", "100.00", "75.00", "75.00"] in cells
    read = read_scores(f"{tmp_path}/out.json")
    assert json.loads(json.dumps(scores_json(read))) == found
    capsys.readouterr()
    print_scores(read)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == cells
    assert not caplog.messages


def test_words_that_the_references_lack(tmp_path, capsys, caplog):
    """Their insertions count, no systems are compared, and a warning says it."""
    options = ["--ref", f"{write(tmp_path / 'ref', {'u': 'a b', 'v': 'c'})}"]
    for name, text in (("x", "a KITE b"), ("y", "a b")):
        options += ["--hyp", f"{name}={write(tmp_path / name, {'u': text, 'v': 'c'})}"]
    (tmp_path / "bias").write_text("KITE\n")
    main([*options, f"--bias={tmp_path}/bias", "--output", f"{tmp_path}/out.json"])
    found = json.loads((tmp_path / "out.json").read_text())["bias"]["B-WER"]
    assert list(found) == ["x", "y"] and (found["x"]["errors"], found["x"]["wer"]) == (1, None)
    assert ["x", "inf", "0", "0", "1", "0"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    assert "bias: no word of the bias lists stands in the references." in caplog.text
    section = scores_section(read_scores(f"{tmp_path}/out.json"), []).body
    assert "\u221e" in section and "nan" not in section


def test_everything(outputs, bayes, nbest, tmp_path, capsys, monkeypatch):
    path = tmp_path / "new" / "report.html"
    scores = {"score": outputs / "score.json", "perplexity": f"ngram={outputs}/ppl.json"}
    lists = {"rescored": [outputs / "ngram", f"fixed={outputs}/fixed"], "ref": nbest / "dev.ref"}
    command = words(output=path, title="A & B", **scores, **lists, exp=bayes, snr=outputs / "snr")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    report.main(command)
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
    report.main(command)
    assert path.read_text(encoding="utf-8") == first.replace("1970-01-02", "1970-01-03")


def test_a_report_of_lists_without_references(outputs, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.report.provenance_section.PACKAGES", ("torch", "no-such"))
    path = tmp_path / "report.html"
    report.main(words(rescored=f"fixed={outputs}/fixed", output=path))
    assert "no references: the lists are compared with the first pass" in caplog.text
    found = Page(path.read_text(encoding="utf-8"))
    assert "nbest-view-0" in found.ids and "no-such not installed" in found.text


def test_lists_that_were_normalised_are_counted_so(bayes, tmp_path):
    """As by the rescoring, and the uncertainty of its words is theirs."""
    rows = [{"utt": f"u{n}", "ref": "a b", "hypotheses": ["A, b.", "a c"]} for n in range(3)]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lists = {"nbest": tmp_path / "lists.jsonl", "nbest_format": "jsonl", "lm": bayes, "lmwt": 1}
    options = {"normalize": "lower,punct", "uncertainty": "true", "num_samples": 2}
    folder = run(**lists, **options, output=tmp_path / "out")
    assert yaml.safe_load((folder / "scales.yaml").read_text())["normalize"] == "lower,punct"
    assert len((folder / "uncertainty.ndjson").read_text().splitlines()) == 6  # and it is read:
    rescored = read_rescored("r", str(folder), "jsonl")
    assert [n.hypotheses[0].words for n in rescored.nbests] == [("a", "b")] * 3
    (tmp_path / "ref").write_text("u0 A b!\nu1 a b\nu2 a B\n")
    refs = read_references([str(tmp_path / "ref")], [rescored], [("r", str(folder))])
    assert set(refs.values()) == {("a", "b")}
    other = run(**lists, output=tmp_path / "plain", max_oov_rate=1)
    both = [rescored, read_rescored("plain", str(other), "jsonl")]
    with pytest.raises(InputError, match="rescored with --normalize '' and 'lower,punct'"):
        read_references([str(tmp_path / "ref")], both, [])
