"""`export_lm`: what ESPnet loads from the export is the LM at its posterior mean."""

import pytest
import torch
import yaml
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.tasks.lm import LMTask
from experiments import (
    BACKBONES,
    BAYES,
    GP,
    LSTM,
    SEARCH,
    VARIATIONAL,
)

from espnet_bayeslm.loading.export import export_lm, write_mixture
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.text import TokenOptions, made_tokens
from espnet_bayeslm.utils.errors import InputError

IVON = {
    "ivon": ("bayes_lstm", LSTM, {"optim": "ivon", "optim_conf": {"lr": 0.1}}),
    "ivon_seq_rnn": ("seq_rnn", LSTM, {"optim": "ivon"}),
}
POINT = {
    "point": ("bayes_lstm", {**LSTM, "uncertainty": {"cell_input@1": "point"}}),
    "espnet": ("transformer", dict(embed_unit=6, att_unit=8, head=2, unit=12, layer=2)),
}
CASES = {**BAYES, **GP, **BACKBONES, **IVON, **POINT}


def text():
    """Return padded token ids and their lengths."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.tensor([9, 1, 30, 4])
    ids = torch.randint(1, 12, (4, 30), generator=generator)
    return ids * (torch.arange(30) < lengths.unsqueeze(1)), lengths


@torch.no_grad()
def nll(model):
    """Return the NLL as ESPnet's own model computes it, whatever the class of the model."""
    return ESPnetLanguageModel.nll(model.eval(), *text())[0]


@pytest.mark.parametrize("name", CASES)
def test_means_are_an_lm_that_espnet_loads(make, tmp_path, name):
    exp = make(name, *CASES[name])
    export_lm(exp, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.yaml",
        "valid.loss.ave.pth",
    }
    given, written = (torch.load(f / "valid.loss.ave.pth") for f in (exp, tmp_path / "out"))
    model, args = LMTask.build_model_from_file(
        tmp_path / "out" / "config.yaml", tmp_path / "out" / "valid.loss.ave.pth"
    )
    model.load_state_dict(written, strict=True)
    assert all(torch.equal(value, given[key]) for key, value in written.items())
    assert not any(key.endswith(("_log_std", "_prior_mean", "_start_std")) for key in written)
    if name in BACKBONES:  # which ESPnet loads without this package
        content = (tmp_path / "out" / "config.yaml").read_text()
        conf = CASES[name][1]
        assert (args.lm, args.lm_conf) == (conf["backbone"], conf["backbone_conf"])
        assert args.model == "lm" and "bayes" not in content
    # ESPnet's attention is written in another way
    tolerance = 1e-5 if name in BACKBONES else 0
    assert float((nll(model) - nll(load_lm(exp).model)).abs().max()) <= tolerance
    again = load_lm(tmp_path / "out")
    assert torch.equal(nll(again.model), nll(model))
    assert not hasattr(again.lm, "locations") or again.lm.locations() == []
    assert args.optim != "ivon" and args.model_conf == {}


def test_gaussian_processes_stay_with_their_mean_coefficients(make, tmp_path):
    export_lm(make("gp_lstm", *GP["gp_lstm"]), tmp_path / "out")
    conf = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["lm_conf"]
    gate = {"kind": "gp", "random": [], "basis": ["relu", "sigmoid"]}
    assert conf["uncertainty"]["output_gate@2"] == gate
    assert conf["uncertainty"]["cell_state@1"] == {"kind": "gp", "random": []}
    lm = load_lm(tmp_path / "out").lm
    assert float(lm.kl()) == 0 and lm.posterior.blocks() == []
    assert "gp_coefficients_cell_state_l0" in dict(lm.rnn.named_parameters())


def test_nothing_of_the_machine_of_the_training(point, tmp_path):
    export_lm(point, tmp_path / "out")
    before, after = ((f / "config.yaml").read_text() for f in (point, tmp_path / "out"))
    root = str(tmp_path.parents[1])
    assert root in before and root not in after
    config = yaml.safe_load(after)
    assert (config["optim_conf"], config["max_epoch"]) == ({"lr": 0.01}, 2)


# Keys without which nobody can tell what the LM and its tokens are.
ESSENTIAL = ("lm", "lm_conf", "token_list", "token_type")


@pytest.mark.parametrize("name", ["lstm", "seq_rnn", "espnet", "ivon"])
def test_a_configuration_without_what_only_training_needs(make, tmp_path, name):
    """Loaded, exported and mixed as before."""
    exp = make(name, *CASES[name])
    before = load_lm(exp)
    config = yaml.safe_load((exp / "config.yaml").read_text())
    (exp / "config.yaml").write_text(yaml.safe_dump({key: config[key] for key in ESSENTIAL}))
    after = load_lm(exp)
    assert after.score("a b c") == before.score("a b c")
    export_lm(exp, tmp_path / "out")
    write_mixture(tmp_path / "mixture", lms=[exp])
    for folder in (tmp_path / "out", tmp_path / "mixture"):
        assert load_lm(folder).score("a b c") == pytest.approx(before.score("a b c"), rel=1e-5)


@pytest.mark.parametrize("key", ESSENTIAL)
def test_a_configuration_without_what_an_lm_needs(make, key):
    exp = make("lstm", *BAYES["lstm"])
    config = yaml.safe_load((exp / "config.yaml").read_text())
    del config[key]
    (exp / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match=rf"config\.yaml.*; {key} not in it"):
        load_lm(exp)


@pytest.fixture
def bpe(make, tmp_path):
    """Return a Bayesian LM over sentencepiece tokens."""
    (tmp_path / "train.txt").write_text("key a bc abc cab a b c\n" * 20)
    token_type, tokens, bpemodel, _ = made_tokens(tmp_path, TokenOptions("bpe", 9), {})
    options = {"token_list": tokens, "token_type": token_type, "bpemodel": bpemodel}
    return make("bpe", *BAYES["lstm"], options)


def test_the_sentencepiece_model_comes_with_it(bpe, tmp_path):
    before = load_lm(bpe)
    tokens = before.tokenize("abc cab b")
    export_lm(bpe, tmp_path / "out")
    (tmp_path / "bpe.model").unlink()
    after = load_lm(tmp_path / "out")
    assert len(tokens) > 2 and after.tokenize("abc cab b") == tokens
    assert after.ids(tokens) == before.ids(tokens)
    assert (tmp_path / "out" / "bpe.model").is_file()


def test_a_missing_sentencepiece_model(bpe, tmp_path):
    (tmp_path / "bpe.model").unlink()
    with pytest.raises(InputError, match=r"bpe\.model: its word-piece model is not there"):
        export_lm(bpe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


REFUSED = {
    "latent": r"latent variables at hidden_output@1 have no point-estimate form",
    "both": r"at hidden_output@1 have no",
    "search": r"super-network, at ffn@1, has no point-estimate form.*bayeslm search",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_point_estimate_form(make, tmp_path, name):
    exp = make(name, *{**VARIATIONAL, **SEARCH}[name])
    with pytest.raises(InputError, match=REFUSED[name]):
        export_lm(exp, tmp_path / "out")
    assert not (tmp_path / "out").exists()
