"""Steps: their command lines, the inputs that these name, and records of both."""

import pytest

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.workflows.steps import Records, Step, content_digest, words


def test_a_command_line_repeats_lists_and_leaves_out_none():
    line = words("train", text="a b", lm=["x", "y"], ngram=(), base=None, max_epoch=3)
    expected = ["train", "--text", "a b", "--lm", "x", "--lm", "y", "--max_epoch", "3"]
    assert line == expected
    assert Step("a", [line]).script() == "bayeslm train --text 'a b' --lm x --lm y --max_epoch 3\n"


def test_inputs_are_what_is_there_and_is_not_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("text", "arpa", "score", "weights", "command"):
        (tmp_path / name).write_text(name)
    for name in ("lm", "exp", "exp/lm", "cache", "curves"):
        (tmp_path / name).mkdir()
    train = words("command", text="text", exp="exp", lm="hf:lm", config="unknown", n=1, of=".")
    measure = words("perplexity", lm="hf:exp/lm", cache="cache", output="score", ngram="3=arpa")
    report = words("report", score="score", exp="point=curves", output="exp/report.html")
    step = Step("a", [train, measure, report], reads=[tmp_path / "weights"])
    found = {str(path) for path in step.inputs()}
    assert found == {"text", "lm", "arpa", "curves", str(tmp_path / "weights")}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text("one")
    return path


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "log")


def test_a_step_is_done_with_the_same_words_and_contents(text, records):
    """A file that is gone has not changed, such as weights that a later training began with."""
    step = Step("sub/a", [words("score", ref=text)])
    records.begin(step)
    assert not records.is_done(step)
    records.finish(step)
    assert records.is_done(step) and not records.is_done(step.then(step))
    text.unlink()
    assert records.is_done(step)
    text.write_text("two")
    assert not records.is_done(step)
    # records of before had no digests
    (records.folder / "sub" / "a.done").write_text(step.script())
    assert records.is_done(step)
    records.begin(step)
    assert not records.is_done(step)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("change", ["content", "name in a folder"])
def test_a_training_does_not_go_on_with_an_input_that_changed(
    change, ended, tmp_path, text, records
):
    exp, lm = tmp_path / "exp", tmp_path / "lm"
    lm.mkdir()
    (lm / "weights").write_text("one")
    measure = words("perplexity", lm=exp, text=text)
    step = Step("a", [words("train", **{"from": f"hf:{lm}"}, exp=exp), measure])
    records.begin(step)
    if ended:
        records.finish(step)
    exp.mkdir()
    assert records.is_done(step) == ended
    # an input of what comes after the training is no reason
    text.write_text("two")
    assert not records.is_done(step)
    if change == "content":
        (lm / "weights").write_text("two")
    else:
        (lm / "weights").rename(lm / "other")
    with pytest.raises(InputError, match=r"exp: was made with another .*lm than .* new folder"):
        records.is_done(step)
    # without its folder it begins anew
    exp.rmdir()
    assert not records.is_done(step)


def test_an_experiment_has_the_digest_of_its_weights(tmp_path):
    exp = tmp_path / "exp"
    exp.mkdir()
    config = "lm: x\nlm_conf: {}\ntoken_list: [a]\ntoken_type: word\n"
    (exp / "config.yaml").write_text(config)
    assert content_digest(exp) == ""
    (exp / "valid.loss.ave.pth").write_text("one")
    one = content_digest(exp)
    (exp / "train.log").write_text("a line")
    assert content_digest(exp) == one
    (exp / "valid.loss.ave.pth").write_text("two")
    assert content_digest(exp) not in ("", one)
