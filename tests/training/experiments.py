"""Experiment folders of LMs of many kinds, with random weights in place of a training."""

import argparse

import torch
import yaml
from espnet2.tasks.lm import LMTask

import espnet_bayeslm
from espnet_bayeslm.training.optimizer import add_optimizer_posterior

LSTM = dict(unit=8, nlayers=2)
TRANSFORMER = dict(att_unit=8, head=2, unit=12, layer=2)
ESPNET_TRANSFORMER = dict(embed_unit=6, att_unit=8, head=2, unit=12, layer=2)
BLOCKS = {f"{place}@*": "bayes" for place in ("attention", "ffn", "ffn_out")}
GPS = {f"{place}@1": "gp" for place in ("layer_input", "hidden_input", "cell_state", "cell_input")}


def lstm(uncertainty, **conf):
    return "bayes_lstm", {**LSTM, **conf, "uncertainty": uncertainty}


def transformer(uncertainty, **conf):
    return "bayes_transformer", {**TRANSFORMER, **conf, "uncertainty": uncertainty}


def espnet(backbone, backbone_conf, uncertainty):
    conf = {"backbone": backbone, "backbone_conf": backbone_conf, "uncertainty": uncertainty}
    return "bayes_espnet", {**conf, "num_samples": 2}


# LMs that are uncertain, of which the means are an LM.
BAYES = {
    "lstm": lstm({"all_gates@*": "bayes"}, tie_weights=False, init_std=0.1),
    "lstm_num_samples": lstm({"cell_input@2": {"kind": "bayes", "init_std": 1.0}}, num_samples=3),
    "transformer": transformer({"embedding": "bayes", **BLOCKS}, prior_variance=0.1),
    "pre_norm": transformer(
        {"ffn@2": "bayes"}, norm_first=True, pos_enc=None, embed_unit=6, tie_weights=False
    ),
}
GP = {
    "gp_lstm": lstm({**GPS, "output_gate@2": {"kind": "gp", "basis": ["relu", "sigmoid"]}}),
    "gp_transformer": transformer({"ffn@1": {"kind": "gp", "random": ["weights"]}, "ffn@2": "gp"}),
}
BACKBONES = {
    "seq_rnn": espnet("seq_rnn", dict(unit=8, nlayers=2, nhid=6), {"all_gates@*": "bayes"}),
    "tied": espnet("seq_rnn", dict(unit=8, nlayers=1, tie_weights=True), {"embedding": "bayes"}),
    "gru": espnet("seq_rnn", dict(unit=8, nlayers=1, rnn_type="gru"), {"all_gates@1": "bayes"}),
    "espnet_transformer": espnet(
        "transformer", dict(ESPNET_TRANSFORMER, pos_enc="sinusoidal"), {"output": "bayes", **BLOCKS}
    ),
    "no_positions": espnet("transformer", ESPNET_TRANSFORMER, {"embedding": "bayes"}),
}
VARIATIONAL = {
    "latent": lstm({"hidden_output@1": "variational"}),
    "smaller": transformer({"hidden_output@2": {"kind": "variational", "latent_dim": 3}}),
    "both": transformer({"ffn@1": "gp", "ffn@2": "bayes", "hidden_output@1": "variational"}),
}
SEARCH = {"search": transformer({"ffn@1": "search"})}


def write_experiment(template, folder, lm, lm_conf, **options):
    """Write an experiment folder like that of a trained LM, with random weights, and return it."""
    espnet_bayeslm.register()
    config = yaml.safe_load((template / "config.yaml").read_text())
    config.update(lm=lm, lm_conf=lm_conf, model="bayes_lm" if "bayes" in lm else "lm")
    config.update(model_conf={}, **options)
    model = LMTask.build_model(argparse.Namespace(**config))
    if config["optim"] == "ivon":
        add_optimizer_posterior(model)
    generator = torch.Generator().manual_seed(1)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(torch.empty_like(tensor).normal_(0, 0.3, generator=generator))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    torch.save(model.state_dict(), folder / "valid.loss.ave.pth")
    return folder
