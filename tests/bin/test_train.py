"""`bayeslm train`: plain text in, a trained LM out."""

import math

import pytest
import torch
import yaml

from espnet_bayeslm.bin.train import main
from espnet_bayeslm.training.components import load_components
from espnet_bayeslm.training.load import load_lm

POINT = {
    "lm": "bayes_lstm",
    "lm_conf": {"unit": 8, "dropout_rate": 0.0},
    "optim": "adam",
    "batch_type": "sorted",
    "batch_size": 16,
    "num_att_plot": 0,
    "num_workers": 0,
    "use_matplotlib": False,
    "max_epoch": 2,
}
BAYES = {**POINT, "lm_conf": {**POINT["lm_conf"], "uncertainty": {"cell_input@1": "bayes"}}}


@pytest.fixture
def files(corpus, tmp_path):
    """Return the command line's first part, for texts without keys."""
    for part in ("train", "valid"):
        lines = (corpus / f"{part}.txt").read_text().splitlines()
        text = "".join(line.split(maxsplit=1)[1] + "\n" for line in lines)
        (tmp_path / f"{part}.txt").write_text(text + "\n")
    for name, config in (("point", POINT), ("bayes", BAYES)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return ["--train_text", f"{tmp_path}/train.txt", "--valid_text", f"{tmp_path}/valid.txt"]


def test_point_then_bayes_from_it(files, tmp_path):
    main([*files, "--config", f"{tmp_path}/point.yaml", "--exp", f"{tmp_path}/point"])
    point = load_lm(tmp_path / "point")
    assert point.token_list[0] == "<blank>" and point.token_list[-1] == "<sos/eos>"
    assert sorted(point.token_list[2:-1]) == list("abcdefghij")
    main(
        [
            *files,
            "--config",
            f"{tmp_path}/bayes.yaml",
            "--exp",
            f"{tmp_path}/bayes",
            "--from",
            f"{tmp_path}/point",
            "--max_epoch",
            "1",
            "--optim_conf",
            "lr=0.0",
        ]
    )
    bayes = load_lm(tmp_path / "bayes")
    assert bayes.lm.locations() == ["cell_input@1"]
    assert torch.equal(bayes.lm.rnn.weight_hh_l0, point.lm.rnn.weight_hh_l0)
    prior = bayes.lm.rnn.weight_hh_l0_cell_input_prior_mean
    assert torch.equal(prior, point.lm.rnn.weight_hh_l0[16:24])
    config = yaml.safe_load((tmp_path / "bayes" / "config.yaml").read_text())
    assert config["max_epoch"] == 1


def test_the_configuration_may_choose_a_zero_prior(files, tmp_path):
    """`--from` then gives the start only, also where the start has a prior of its own."""
    still = ["--max_epoch", "1", "--optim_conf", "lr=0.0"]
    main([*files, "--config", f"{tmp_path}/point.yaml", "--exp", f"{tmp_path}/point", *still])
    zero = {**BAYES, "model_conf": {"prior": "zero"}}
    (tmp_path / "zero.yaml").write_text(yaml.safe_dump(zero))
    name, prior = "weight_hh_l0", "weight_hh_l0_cell_input_prior_mean"
    start = getattr(load_lm(tmp_path / "point").lm.rnn, name)
    for config, source, is_zero in (("bayes", "point", False), ("zero", "bayes", True)):
        command = [*files, "--config", f"{tmp_path}/{config}.yaml", "--exp", f"{tmp_path}/{config}"]
        main([*command, "--from", f"{tmp_path}/{source}", *still])
        rnn = load_lm(tmp_path / config).lm.rnn
        assert torch.equal(getattr(rnn, name), start)
        assert (getattr(rnn, prior) == 0).all() == is_zero


def test_a_second_call_goes_on(files, tmp_path):
    command = [*files, "--config", f"{tmp_path}/point.yaml", "--exp", f"{tmp_path}/exp"]
    main([*command, "--max_epoch", "1"])
    main([*command, "--max_epoch", "2"])
    assert not (tmp_path / "exp" / "3epoch.pth").exists()
    assert (tmp_path / "exp" / "latest.pth").resolve().name == "2epoch.pth"


@pytest.mark.parametrize("token_type, vocab_size", [("bpe", 20), ("char", 40), ("word", 7)])
def test_token_types(files, tmp_path, token_type, vocab_size):
    main(
        [
            *files,
            "--config",
            f"{tmp_path}/point.yaml",
            "--exp",
            f"{tmp_path}/exp",
            "--token_type",
            token_type,
            "--vocab_size",
            str(vocab_size),
            "--max_epoch",
            "1",
        ]
    )
    lm = load_lm(tmp_path / "exp")
    assert lm.token_type == token_type and len(lm.token_list) <= vocab_size
    tokens = lm.tokenize("a b c")
    assert "".join(tokens).replace("▁", " ").replace("<space>", " ").split() in (
        ["a", "b", "c"],
        ["abc"],
    )
    assert all(0 < i < len(lm.token_list) - 1 for i in lm.ids(tokens))


@pytest.mark.parametrize(
    "change, words",
    [
        (["--train_text", "missing.txt"], ["missing.txt", "cannot be read"]),
        (["--config", "missing.yaml"], ["missing.yaml", "cannot be read"]),
        (["--token_type", "bpe", "--vocab_size", "100000"], ["sentencepiece", "--vocab_size"]),
        (["--from", "missing"], ["missing", "found no"]),
        (["--from", "missing", "--token_type", "word"], ["leave out --token_type"]),
    ],
)
def test_bad_input(files, tmp_path, capsys, change, words):
    with pytest.raises(SystemExit) as stop:
        main([*files, "--config", f"{tmp_path}/point.yaml", "--exp", f"{tmp_path}/exp", *change])
    assert stop.value.code == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("bayeslm train: error:")
    assert all(word in message for word in words)


def test_what_unk_stands_for_is_counted(files, tmp_path):
    """Of the ten words of the text five are in the list: <unk> is the other five, and more."""
    command = [*files, "--config", f"{tmp_path}/point.yaml", "--exp", f"{tmp_path}/exp"]
    main([*command, "--vocab_size", "8", "--max_epoch", "1"])
    counted = yaml.safe_load((tmp_path / "exp/data/unknown_words.yaml").read_text())
    assert counted["left_out"] == 5
    once, twice = counted["seen_once"], counted["seen_twice"]
    unseen = once**2 / (2 * twice) if twice else once * (once - 1) / 2
    assert counted["unk_size"] == 5 + unseen
    lm = load_lm(tmp_path / "exp")
    assert lm.unk_size == counted["unk_size"]
    (component,) = load_components([tmp_path / "exp"], [])
    (whole,) = load_components([tmp_path / "exp"], [], unk_size=1)
    shared, plain = (c.scorer.word_scores([["zebra"]])[0] for c in (component, whole))
    shift = plain.log_probs - shared.log_probs
    assert shift.tolist() == pytest.approx([math.log(counted["unk_size"]), 0.0])
    assert lm.word_scores(["zebra"])[0].log_probs.tolist() == shared.log_probs.tolist()


def test_other_text_under_the_same_name(files, tmp_path, capsys):
    command = [*files, "--config", f"{tmp_path}/point.yaml", "--exp", f"{tmp_path}/exp"]
    main([*command, "--max_epoch", "1"])
    (tmp_path / "train.txt").write_text("a b\n")
    with pytest.raises(SystemExit):
        main(command)
    assert "other text" in capsys.readouterr().err


def test_other_tokens_leave_a_trained_lm_as_it_is(files, tmp_path, capsys):
    command = [*files, "--config", f"{tmp_path}/point.yaml", "--exp", f"{tmp_path}/exp"]
    main([*command, "--max_epoch", "1"])
    before = {
        p: p.read_bytes() for p in (tmp_path / "exp").rglob("*") if p.suffix in (".yaml", ".txt")
    }
    with pytest.raises(SystemExit):
        main([*command, "--vocab_size", "8", "--max_epoch", "2"])
    assert "other tokens" in capsys.readouterr().err
    assert all(path.read_bytes() == content for path, content in before.items())
    load_lm(tmp_path / "exp")


def test_text_with_unk(files, tmp_path):
    with open(tmp_path / "train.txt", "a") as f:
        f.write("a <unk> b\n")
    main(
        [
            *files,
            "--config",
            f"{tmp_path}/point.yaml",
            "--exp",
            f"{tmp_path}/exp",
            "--max_epoch",
            "1",
        ]
    )
    assert load_lm(tmp_path / "exp").token_list.count("<unk>") == 1


def test_text_with_the_end_of_sentence(files, tmp_path, capsys):
    (tmp_path / "train.txt").write_text("a b\na <sos/eos>\n")
    with pytest.raises(SystemExit):
        main([*files, "--config", f"{tmp_path}/point.yaml", "--exp", f"{tmp_path}/exp"])
    assert f"{tmp_path}/train.txt:2: holds the special token <sos/eos>" in capsys.readouterr().err


def test_the_prior_is_set_whatever_names_the_lm(files, tmp_path):
    main(
        [
            *files,
            "--config",
            f"{tmp_path}/point.yaml",
            "--exp",
            f"{tmp_path}/point",
            "--max_epoch",
            "1",
        ]
    )
    config = {key: value for key, value in BAYES.items() if key != "lm"}
    (tmp_path / "nameless.yaml").write_text(yaml.safe_dump(config))
    command = ["--config", f"{tmp_path}/nameless.yaml", "--exp", f"{tmp_path}/bayes"]
    main(
        [*files, *command, "--from", f"{tmp_path}/point", "--lm", "bayes_lstm", "--max_epoch", "1"]
    )
    assert load_lm(tmp_path / "bayes").lm.rnn.weight_hh_l0_cell_input_prior_mean.abs().sum() > 0
