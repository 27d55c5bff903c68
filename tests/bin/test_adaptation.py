"""`bayeslm train --from`: anybody's ESPnet LM becomes Bayesian and learns a text."""

import pytest
import torch
import yaml
from command_lines import SHORT

from espnet_bayeslm.bin.train import main
from espnet_bayeslm.loading.trained_lm import load_lm

ADAM = ["--optim", "adam", "--optim_conf", "lr=0.005"]
TRANSFORMER = dict(embed_unit=6, att_unit=8, head=2, unit=12, layer=2)
EVERYTHING = {
    "seq_rnn": {"all_gates@*": "bayes", "embedding": "bayes", "output": "bayes"},
    "transformer": {
        **{f"{position}@*": "bayes" for position in ("attention", "ffn", "ffn_out")},
        **{"embedding": "bayes", "output": "bayes"},
    },
}
EVERYTHING["transformer_opt"] = EVERYTHING["transformer"]


def options(name, conf):
    """Return ESPnet's options for one of its LMs."""
    pairs = [word for item in conf.items() for word in ("--lm_conf", "{}={}".format(*item))]
    return ["--lm", name, *pairs]


@pytest.fixture(scope="module")
def transformer(train_lm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lms") / "transformer"
    return train_lm(folder, *options("transformer", TRANSFORMER), *ADAM)


@pytest.fixture(scope="module")
def transformer_opt(train_lm, pretrained_opt, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lms") / "opt"
    return train_lm(folder, *options("transformer_opt", {"opt_name": pretrained_opt}), *ADAM)


@pytest.fixture
def adapt(plain_text, tmp_path):
    """Return a function that adapts a trained LM by a configuration, and returns the result."""

    def run(source, config, *words, exp="adapted"):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        command = ["--train_text", plain_text / "train.txt"]
        command += ["--valid_text", plain_text / "valid.txt", "--config", path]
        command += ["--exp", tmp_path / exp, "--from", source]
        main([str(word) for word in (*command, *words)])
        return load_lm(tmp_path / exp)

    return run


def configuration(locations, **lm_conf):
    lm_conf = {"uncertainty": locations, "init_std": 0.01, **lm_conf}
    rate = {"optim": "adam", "optim_conf": {"lr": 0.003}}
    return {"lm": "bayes_espnet", "lm_conf": lm_conf, **rate, **SHORT}


def point_weights(model):
    return {
        k: v for k, v in model.state_dict().items() if not k.endswith(("_std", "_mean", "step"))
    }


def log_prob(trained, folder):
    """Return ln p of the validation text at the mean."""
    return sum(map(trained.score, (folder / "valid.txt").read_text().splitlines()))


@pytest.mark.parametrize("name", ["seq_rnn", "transformer", "transformer_opt"])
def test_the_source_is_backbone_start_and_prior(adapt, plain_text, request, name):
    source = load_lm(request.getfixturevalue(name))
    adapted = adapt(source.path.parent, configuration(EVERYTHING[name]))
    written = yaml.safe_load(adapted.config.read_text())["lm_conf"]
    theirs = yaml.safe_load(source.config.read_text())["lm_conf"]
    assert (written["backbone"], written["backbone_conf"]) == (name, theirs)
    assert adapted.token_list == source.token_list
    weights = source.model.state_dict()
    assert list(point_weights(adapted.model)) == list(weights)
    blocks = adapted.lm.posterior.blocks()
    assert blocks
    for block in blocks:
        prior = block.tensor("_prior_mean")
        assert torch.equal(prior, weights[f"lm.{block.name}"][slice(*block.rows)])
    assert log_prob(adapted, plain_text) > log_prob(source, plain_text) + 2


def test_from_a_bayesian_one_with_that_backbone(adapt, seq_rnn):
    """At a rate of 0 all weights are those of the start."""
    config = configuration({"cell_input@1": "bayes"})
    first = adapt(seq_rnn, config, exp="first")
    other = configuration({"forget_gate@1": "bayes"}, backbone_conf={"dropout_rate": 0.3})
    second = adapt(first.path.parent, other, "--optim_conf", "lr=0.0", exp="second")
    assert second.lm.locations() == ["forget_gate@1"]
    assert (second.lm.rnn.hidden_size, second.lm.drop.p) == (8, 0.3)
    for key, value in point_weights(second.model).items():
        assert torch.equal(value, first.model.state_dict()[key]), key


@pytest.mark.parametrize(
    "lm_conf, source, message",
    [
        ({}, "bayes", "is of the kind bayes_lstm"),
        ({"backbone": "transformer"}, "seq_rnn", "kind seq_rnn"),
    ],
)
def test_bad_input(adapt, request, capsys, lm_conf, source, message):
    config = configuration({"embedding": "bayes"}, **lm_conf)
    with pytest.raises(SystemExit):
        adapt(request.getfixturevalue(source), config)
    found = capsys.readouterr().err.splitlines()[-1]
    assert found.startswith("bayeslm train: error:") and message in found
