"""Options of tiny trainings, what they reported, and configurations of LMs."""

import torch
from tiny_training import words

from espnet_bayeslm.loading.experiment import load_state, read_checkpoint

SIZES = ["att_unit=8", "head=2", "unit=8", "layer=2", "dropout_rate=0.0"]
LSTM = words(lm="bayes_lstm", lm_conf=["unit=8", "dropout_rate=0.0"])
TRANSFORMER = words(lm="bayes_transformer", lm_conf=SIZES)
FFN = words(lm_conf="uncertainty.ffn@1=bayes")
ADAM = words(optim="adam", optim_conf="lr=0.01")
SGD = words(optim="sgd", optim_conf="lr=0.1")
STILL = words(optim="sgd", optim_conf="lr=0.0")
IVON = words(optim="ivon", optim_conf="lr=1.0")
CELL = words(lm_conf="uncertainty.cell_input@1-2=bayes")
# A standard deviation of 3e-9: the draws change nothing that is compared.
QUIET = words(lm_conf="init_std=3.0e-9")


def batch():
    """Return padded token ids of three sentences, one longer than each, and their lengths."""
    lengths = torch.tensor([5, 1, 3])
    text = torch.randint(2, 12, (3, 6), generator=torch.Generator().manual_seed(2))
    return text * (torch.arange(6) < lengths.unsqueeze(1)), lengths


def assert_same(checkpoint, other, **tolerance):
    """Check that two checkpoints hold the same tensors, to the last bit where nothing is said."""
    tolerance = tolerance or dict(rtol=0, atol=0)
    torch.testing.assert_close(load_state(checkpoint), load_state(other), **tolerance)


def stats(output, epoch=1, part="train"):
    return read_checkpoint(output / "checkpoint.pth")["reporter"]["stats"][epoch][part]


LSTM_CONF = dict(unit=8, nlayers=2)
TRANSFORMER_CONF = dict(att_unit=8, head=2, unit=12, layer=2)
ESPNET_TRANSFORMER = dict(embed_unit=6, att_unit=8, head=2, unit=12, layer=2)
BLOCKS = {f"{place}@*": "bayes" for place in ("attention", "ffn", "ffn_out")}
GPS = {f"{place}@1": "gp" for place in ("layer_input", "hidden_input", "cell_state", "cell_input")}


def lstm(uncertainty, **conf):
    return "bayes_lstm", {**LSTM_CONF, **conf, "uncertainty": uncertainty}


def transformer(uncertainty, **conf):
    return "bayes_transformer", {**TRANSFORMER_CONF, **conf, "uncertainty": uncertainty}


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
# LMs without a point-estimate form.
FORMLESS = {
    "latent": lstm({"hidden_output@1": "variational"}),
    "both": transformer({"ffn@1": "gp", "ffn@2": "bayes", "hidden_output@1": "variational"}),
    "search": transformer({"ffn@1": "search"}),
}
