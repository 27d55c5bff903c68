"""The LMs of the contract, which have every kind at every location, and helpers for them."""

import torch

from espnet_bayeslm.lm import BayesESPnetLM, BayesLSTMLM, BayesTransformerLM

VOCAB = 17
LSTM = dict(unit=8, nlayers=2, dropout_rate=0.0)
UNTIED = {**LSTM, "tie_weights": False}
TRANSFORMER = dict(att_unit=8, head=2, unit=12, layer=3, dropout_rate=0.0)
NORM_FIRST = {**TRANSFORMER, "norm_first": True}
SEQ_RNN = dict(backbone="seq_rnn", backbone_conf=dict(unit=8, nlayers=2, tie_weights=True))
NO_DROPOUT = dict(dropout_rate=0.0, positional_dropout_rate=0.0, attention_dropout_rate=0.0)
SIZES = dict(att_unit=8, embed_unit=6, head=2, unit=12, layer=3, pos_enc="sinusoidal")
ESPNET_TRANSFORMER = dict(backbone="transformer", backbone_conf={**SIZES, **NO_DROPOUT})

GP_COEFFICIENTS = {"kind": "gp", "random": ["coefficients"]}
GP_WEIGHTS = {"kind": "gp", "random": ["weights"], "basis": ["gelu", "tanh", "sigmoid"]}
GATES = ["input_gate", "forget_gate", "cell_input", "output_gate"]
WHOLE_LSTM = ["cell_state", "hidden_input", "layer_input"]


def search(*candidates):
    return {"kind": "search", "candidates": list(candidates)}


def latent(dim):
    return {"kind": "variational", "latent_dim": dim}


POINT_BAYES, POINT_GP = search("point", "bayes"), search("point", "gp")

# (class, options, uncertainty) of LMs that have every kind and every way of running ...
SOME = [
    (BayesLSTMLM, UNTIED, {}),
    (BayesLSTMLM, LSTM, {"embedding": "bayes"}),
    (BayesLSTMLM, LSTM, {"cell_input@1-2": "bayes"}),
    (BayesLSTMLM, LSTM, {"cell_input@*": "gp"}),
    (BayesLSTMLM, LSTM, {"hidden_output@*": "variational"}),
    (
        BayesLSTMLM,
        LSTM,
        {
            "all_gates@1": "bayes",
            "cell_state@1": "gp",
            "hidden_input@1": GP_COEFFICIENTS,
            "layer_input@2": "gp",
            "hidden_output@1": "variational",
            "hidden_output@2": "variational",
        },
    ),
    (BayesTransformerLM, TRANSFORMER, {"ffn@1": "gp"}),
    (BayesTransformerLM, NORM_FIRST, {"hidden_output@*": latent(3)}),
    (
        BayesTransformerLM,
        {**TRANSFORMER, "tie_weights": False, "embed_unit": 6, "pos_enc": None},
        {
            "embedding": "bayes",
            "attention@*": "bayes",
            "ffn@1-2": "gp",
            "ffn@3": "bayes",
            "ffn_out@*": "bayes",
            "hidden_output@2": "variational",
        },
    ),
    (BayesESPnetLM, SEQ_RNN, {"cell_input@1": "bayes", "embedding": "bayes"}),
    (
        BayesESPnetLM,
        ESPNET_TRANSFORMER,
        {"embedding": "bayes", "attention@*": "bayes", "ffn@1-2": "bayes", "ffn_out@3": "bayes"},
    ),
    (BayesLSTMLM, LSTM, {"embedding": "search"}),
    (BayesLSTMLM, LSTM, {f"{p}@1": "search" for p in [*GATES, *WHOLE_LSTM, "hidden_output"]}),
    (BayesTransformerLM, TRANSFORMER, {"ffn@1-2": POINT_GP, "ffn@3": search("bayes", "gp")}),
    (
        BayesTransformerLM,
        {**NORM_FIRST, "tie_weights": False},
        {
            place: "search"
            for place in ["embedding", "attention@*", "ffn@*", "ffn_out@1-2", "hidden_output@*"]
        },
    ),
]
# ... and of LMs with every location.
CASES = [
    *SOME,
    (BayesLSTMLM, LSTM, {}),
    (BayesLSTMLM, UNTIED, {"embedding": "bayes", "cell_input@2": "bayes"}),
    *[(BayesLSTMLM, LSTM, {f"{gate}@1": "bayes"}) for gate in GATES if gate != "cell_input"],
    (BayesLSTMLM, LSTM, {"all_gates@2": "bayes"}),
    (BayesLSTMLM, {**LSTM, "nlayers": 1}, {"cell_input@1": "bayes", "input_gate@1": "bayes"}),
    *[(BayesLSTMLM, LSTM, {f"{gate}@1": "gp"}) for gate in GATES if gate != "cell_input"],
    (BayesLSTMLM, LSTM, {"all_gates@*": "gp"}),
    *[(BayesLSTMLM, LSTM, {p: "gp"}) for p in ("cell_state@1", "hidden_input@*", "layer_input@2")],
    (BayesLSTMLM, LSTM, {"cell_input@2": GP_COEFFICIENTS}),
    (BayesLSTMLM, LSTM, {"cell_input@2": GP_WEIGHTS, "cell_state@2": GP_WEIGHTS}),
    (BayesLSTMLM, LSTM, {"hidden_output@2": latent(5)}),
    (BayesLSTMLM, LSTM, {"hidden_output@1": latent(11)}),
    (BayesTransformerLM, TRANSFORMER, {}),
    (BayesTransformerLM, TRANSFORMER, {"embedding": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {"attention@1": "bayes", "ffn_out@3": "bayes"}),
    (BayesTransformerLM, NORM_FIRST, {"ffn@*": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {"ffn@1,3": GP_COEFFICIENTS}),
    (BayesTransformerLM, NORM_FIRST, {"ffn@2": GP_WEIGHTS}),
    (BayesTransformerLM, TRANSFORMER, {"hidden_output@1": "variational"}),
    (BayesESPnetLM, SEQ_RNN, {}),
    (BayesLSTMLM, LSTM, {"forget_gate@1": "search"}),
    (BayesLSTMLM, LSTM, {"all_gates@*": POINT_BAYES}),
    (BayesLSTMLM, LSTM, {f"{gate}@*": POINT_GP for gate in [*GATES[2:], "hidden_input"]}),
    *[(BayesLSTMLM, LSTM, {f"{position}@2": POINT_GP}) for position in WHOLE_LSTM],
    (BayesLSTMLM, LSTM, {"cell_input@1": search("gp", "bayes"), "hidden_input@1": "gp"}),
    (BayesLSTMLM, LSTM, {"output_gate@1": POINT_GP, "layer_input@1": "gp", "cell_state@1": "gp"}),
    (BayesLSTMLM, LSTM, {"hidden_output@*": "search"}),
    (BayesLSTMLM, UNTIED, {"embedding": "search"}),
    *[
        (BayesTransformerLM, TRANSFORMER, {place: "search"})
        for place in ["embedding", "attention@2", "ffn@1", "ffn_out@*", "hidden_output@3"]
    ],
]
RANDOM = [case for case in SOME if case[2]]
SEARCHES = [case for case in CASES if "search" in str(case[2])]


def name(case):
    cls, conf, uncertainty = case
    kinds = [
        k if isinstance(k, str) else "_".join(map(str, k.values())) for k in uncertainty.values()
    ]
    kinds = ["".join(c for c in kind if c.isalnum() or c in "_ ") for kind in kinds]
    places = [f"{place}:{kind}" for place, kind in zip(uncertainty, kinds, strict=True)]
    return f"{cls.__name__}-{','.join(places) or 'point'}-{len(conf)}"


def build(case, **kwargs):
    cls, conf, uncertainty = case
    torch.manual_seed(0)
    return cls(VOCAB, uncertainty=uncertainty, **{**conf, **kwargs}).double()


def tokens(batch=3, length=7):
    ids = torch.randint(1, VOCAB - 1, (batch, length))
    ids[:, 0] = VOCAB - 1
    return ids


def is_random(case):
    return bool(case[2])


def is_latent(case):
    return any(place.startswith("hidden_output") for place in case[2])


def make_generic(lm, std=0.1):
    """Move every parameter away from where it starts (latent outputs start with q = p)."""
    for parameter in lm.parameters():
        parameter.data += std * torch.randn_like(parameter)
    return lm


@torch.no_grad()
def one_sequence(lm, ids, eos, before=()):
    """Return (n + 1,) ln p of each token and </s>, after all that was said before."""
    logits, _ = lm.eval()(torch.tensor([[*before, eos, *ids]]), None)
    log_probs = logits[0, len(before) :].double().log_softmax(-1)
    return log_probs[range(len(ids) + 1), [*ids, eos]].numpy()


def make_certain(lm):
    for block in lm.posterior.blocks():
        torch.nn.init.constant_(block.tensor("_log_std"), -40.0)
    for _, latent in lm.latents():
        torch.nn.init.zeros_(latent.infer_log_std.weight)
        torch.nn.init.constant_(latent.infer_log_std.bias, -40.0)


BATCH = (
    torch.randint(1, VOCAB - 1, (3, 6), generator=torch.Generator().manual_seed(0)),
    torch.tensor([6, 3, 4]),
)
