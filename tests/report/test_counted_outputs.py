"""Outputs of `bayeslm rescore` that were counted in other ways are told apart from each other."""

import dataclasses
import json

import pytest
import yaml
from tiny_training import words

from espnet_bayeslm.bin import report, score
from espnet_bayeslm.evaluation.wer import Counted
from espnet_bayeslm.report.counted_outputs import of_all_systems, read_counted, warn_unless_alike
from espnet_bayeslm.utils.errors import InputError

LOWER = Counted(normalize=("lower", "punct"), tuned_on="dev.text")


def warnings(caplog):
    """Return the warnings so far, and forget them."""
    found = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    caplog.clear()
    return found


@pytest.fixture
def output(tmp_path):
    """Return a function: name and counting of an output -> its text of three utterances."""

    def make(name, counted):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "text").write_text("u1 a b\nu2 c\nu3 D\n")
        content = {"files": ["text"]}
        if counted is not None:
            content["counted"] = dataclasses.asdict(counted)
        (folder / "scales.yaml").write_text(yaml.safe_dump(content))
        return folder / "text"

    return make


def test_the_counting_stands_beside_an_output(output, tmp_path):
    counted = dataclasses.replace(LOWER, ignored=("<unk>",), text_forms={"lm": "as_is"})
    path = output("a", counted)
    assert read_counted(path) == read_counted(str(path)) == counted
    # of another text, of an older run, without rescoring, of another program
    assert read_counted(path.with_name("other")) is None
    assert read_counted(output("old", None)) is None
    for content in ("- 1\n", "{\n", "counted: 5\nfiles: 3\n"):
        path.with_name("scales.yaml").write_text(content)
        assert read_counted(path) is None
    path.with_name("scales.yaml").write_text("counted: {ignored: uh}\nfiles: [text]\n")
    with pytest.raises(InputError, match=r"scales.yaml: expected how errors were .* `bayeslm resc"):
        read_counted(path)
    path.with_name("scales.yaml").unlink()
    assert read_counted(path) is None


def test_only_what_makes_rates_incomparable_is_warned_of(caplog):
    other = Counted("word", LOWER.normalize, (), {"lm": "as_is"}, "other.text", "0.0.1")
    warn_unless_alike({"a": LOWER, "b": other, "c": LOWER})
    assert not warnings(caplog)
    char = dataclasses.replace(LOWER, unit="char", ignored=("uh", "um"))
    warn_unless_alike({"a": LOWER, "b": other, "c": char, "d": Counted()})
    assert warnings(caplog) == [
        "a and c count errors differently: unit word and char; ignored words none and uh,um."
        " Their error rates do not compare: give both the same --unit, --ignore_words"
    ]


def test_a_table_of_several_systems_has_their_forms_and_tuning():
    a = dataclasses.replace(LOWER, text_forms={"lm": "as_is", "x": "lower"})
    b = Counted(text_forms={"lm": "as_is", "x": "sentence"}, tuned_on="other.text")
    both = of_all_systems(Counted(), {"a": a, "again": a, "b": b, "c": Counted()})
    forms = {"lm": "as_is", "x": "lower", "b: x": "sentence"}
    assert both == Counted(text_forms=forms, tuned_on="dev.text, other.text")
    assert of_all_systems(LOWER, {}) == dataclasses.replace(LOWER, tuned_on=None)


@pytest.mark.parametrize(
    "of_a, of_b, normalize, warning",
    [
        (LOWER, LOWER, "punct,lower", None),
        (LOWER, Counted(), "lower,punct", "--hyp a and --hyp b count errors differently: normalis"),
        (LOWER, LOWER, "", "--hyp a and this command count errors differently: normalisation"),
        (Counted(), None, "lower", "--hyp a and this command count errors differently: normalis"),
        (None, None, "lower", None),
    ],
)
def test_score_warns_of_other_normalisation(
    output, tmp_path, capsys, caplog, of_a, of_b, normalize, warning
):
    hyps = {"a": output("a", of_a), "b": output("b", of_b)}
    hyp = [f"{name}={path}" for name, path in hyps.items()]
    given = words(ref=hyps["a"], hyp=hyp, normalize=normalize, output=tmp_path / "score.json")
    score.main(given)
    found = warnings(caplog)
    assert len(found) == (warning is not None) and all(text.startswith(warning) for text in found)
    known = [item.tuned_on for item in (of_a, of_b) if item is not None and item.tuned_on]
    steps = tuple(name for name in ("lower", "punct") if name in normalize)
    own = Counted(normalize=steps, tuned_on=known[0] if known else None)
    lines = capsys.readouterr().out.splitlines()
    # below the table of rates, once
    assert lines[3] == str(own) and lines.count(str(own)) == 1
    content = json.loads((tmp_path / "score.json").read_text())["counted"]
    assert content == json.loads(json.dumps(dataclasses.asdict(own)))


def test_score_names_the_condition(output, caplog):
    near, far = output("near", LOWER), output("far", Counted())
    refs = [f"near={near}", f"far={far}"]
    score.main(words(ref=refs, hyp=[f"s:near={near}", f"s:far={far}"]))
    (warning,) = warnings(caplog)
    assert warning.startswith("--hyp s:near and --hyp s:far count errors differently: ")


@pytest.mark.parametrize("same", [True, False])
def test_a_report_warns_of_scores_that_count_otherwise(rescored, tmp_path, caplog, same):
    lists = {"u1": ["a b", "a"], "u2": ["c", "d"]}
    scales = "lmwt: 10.0\nword_penalty: 0.5\n" + ("" if same else "normalize: lower\n")
    rescored("lm", lists, best={"u1": 1, "u2": 0}, files={"scales.yaml": scales})
    (tmp_path / "ref").write_text("u1 a b\nu2 c\n")
    hyp = {"ref": tmp_path / "ref", "hyp": f"lm={tmp_path}/lm/text"}
    score.main(words(**hyp, output=tmp_path / "score.json"))
    lists = {"rescored": f"lm={tmp_path}/lm", "nbest_format": "kaldi", "ref": tmp_path / "ref"}
    caplog.clear()
    report.main(words(score=tmp_path / "score.json", **lists, output=tmp_path / "report.html"))
    found = warnings(caplog)
    assert len(found) == (not same)
    expected = f"--score {tmp_path}/score.json and --rescored lm count errors differently: "
    assert all(text.startswith(f"{expected}normalisation none and lower. ") for text in found)
    page = (tmp_path / "report.html").read_text()
    assert page.count('<p class="legend">counted: words; normalisation none;') == 1 + same
    # an older file says nothing of normalisation
    content = json.loads((tmp_path / "score.json").read_text())
    del content["counted"]
    (tmp_path / "score.json").write_text(json.dumps(content))
    report.main(words(score=tmp_path / "score.json", **lists, output=tmp_path / "report.html"))
    assert not warnings(caplog)
