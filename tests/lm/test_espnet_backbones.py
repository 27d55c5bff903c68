"""`bayes_espnet` against ESPnet's own LMs."""

import pytest
import torch
from lm_cases import VOCAB, tokens
from search_contract import SearchContract
from torch import nn

from espnet_bayeslm.bayes.base_kinds import is_posterior_key
from espnet_bayeslm.lm import BayesESPnetLM
from espnet_bayeslm.lm.espnet import BACKBONES
from espnet_bayeslm.scoring.tree_lm import ESPnetTreeLM

RNN = dict(unit=6, nhid=8, nlayers=2)
TIED = dict(unit=8, nlayers=2, tie_weights=True)
TRANSFORMER = dict(embed_unit=6, att_unit=8, head=2, unit=12, layer=2, pos_enc="sinusoidal")
OPT = dict(word_embed_proj_dim=8)
OPT_350 = dict(word_embed_proj_dim=6, do_layer_norm_before=False)
ALL_RNN = {"embedding": "bayes", "output": "bayes"}
ALL_GATED = {**ALL_RNN, "all_gates@*": "bayes"}
ALL_BLOCKS = {**ALL_RNN, "attention@*": "bayes", "ffn@*": "bayes", "ffn_out@*": "bayes"}
# (backbone, its options, everything that it can have random)
CASES = {
    "lstm": ("seq_rnn", RNN, ALL_GATED),
    "tied": ("seq_rnn", TIED, {"all_gates@*": "bayes", "embedding": "bayes"}),
    "one": ("seq_rnn", dict(TIED, nlayers=1, tie_weights=False), {"cell_input@1": "bayes"}),
    "gru": ("seq_rnn", dict(RNN, rnn_type="gru"), ALL_GATED),
    "tanh": ("seq_rnn", dict(RNN, rnn_type="rnn_tanh"), ALL_RNN),
    "transformer": ("transformer", TRANSFORMER, ALL_BLOCKS),
    # as Hugging Face has them: most of the models, and the one of 350 million weights
    "opt": ("transformer_opt", OPT, ALL_BLOCKS),
    "opt350": ("transformer_opt", OPT_350, ALL_BLOCKS),
}


@pytest.fixture(params=CASES)
def case(request):
    """Return (backbone, options, the locations that can be random)."""
    backbone, conf, uncertainty = CASES[request.param]
    if backbone == "transformer_opt":
        conf = {"opt_name": request.getfixturevalue("pretrained_opt")(**conf)}
    return backbone, conf, uncertainty


def theirs_of(case):
    """Return ESPnet's own LM with weights that are nowhere 0, in float64, in evaluation mode."""
    backbone, conf, _ = case
    torch.manual_seed(1)
    lm = BACKBONES[backbone].espnet_class(VOCAB, **conf).double().eval()
    for parameter in lm.parameters():
        nn.init.normal_(parameter, std=0.3)
    return lm


def ours_of(case, uncertainty=None, **options):
    """Return our LM of the same backbone; default: all that can be random is."""
    backbone, conf, everything = case
    torch.manual_seed(2)
    uncertainty = everything if uncertainty is None else uncertainty
    return BayesESPnetLM(VOCAB, backbone, dict(conf), uncertainty=uncertainty, **options).double()


@pytest.fixture
def theirs(case):
    return theirs_of(case)


@pytest.fixture
def lm(case, theirs):
    """Return our LM, all of it random, with ESPnet's weights."""
    lm = ours_of(case)
    lm.load_state_dict(theirs.state_dict())
    return lm.eval()


def with_zeros():
    """Return tokens with padding, and with token 0 where it does not belong."""
    ids = tokens(batch=5, length=9)
    ids[1, 6:], ids[2, 3], ids[3, 1:3], ids[4, 0] = 0, 0, 0, 0
    return ids


def logits(lm, ids):
    return lm(ids, None)[0]


def distance(a, b):
    return float((a - b).detach().abs().max())


def test_forward_and_gradients_are_those_of_espnet(lm, theirs):
    for ids in (tokens(), with_zeros(), tokens(1, 1)):
        assert distance(logits(lm, ids), logits(theirs, ids)) < 1e-10
    ids, weights = with_zeros(), torch.randn(5, 9, VOCAB, dtype=torch.float64)
    for model in (lm, theirs):
        (logits(model, ids) * weights).sum().backward()
    ours = dict(lm.named_parameters())
    for name, parameter in theirs.named_parameters():
        assert distance(ours[name].grad, parameter.grad) < 1e-10, name
    with pytest.raises(ValueError, match="--multiprocessing_distributed true"):
        lm._replicate_for_data_parallel()


def test_without_uncertainty_training_is_that_of_espnet(case, theirs):
    lm = ours_of(case, {})
    lm.load_state_dict(theirs.state_dict())
    assert list(lm.state_dict()) == list(theirs.state_dict())
    ids = with_zeros()
    results = [model.train()(ids, None)[0] for model in (lm, theirs)]
    if case[0] != "transformer":  # whose dropout is drawn in another order
        assert distance(*results) < 1e-10


class TestSearch(SearchContract):
    """Teacher forcing gives what ESPnet's own LM gives."""

    def test_prefix_trees_where_the_backbone_has_them(self, lm, case):
        with_trees = case[0] == "transformer" or isinstance(getattr(lm, "rnn", None), nn.LSTM)
        # rescoring takes the output projection's mean
        assert ESPnetTreeLM(lm).takes_trees == (with_trees and "output" not in case[2])
        assert ESPnetTreeLM(ours_of(case, {})).takes_trees == with_trees


def test_state_dict_goes_into_espnets_lm_and_back(case, lm, theirs):
    plain = {key: value for key, value in lm.state_dict().items() if not is_posterior_key(key)}
    other = BACKBONES[case[0]].espnet_class(VOCAB, **case[1]).double()
    other.load_state_dict(plain, strict=True)
    assert list(plain) == list(theirs.state_dict())
    again = ours_of(case)
    again.load_state_dict(lm.state_dict(), strict=True)
    for key, value in lm.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


def weights_in_use(lm):
    """Return all weights as the forward pass sees them, by ESPnet's names."""
    values = {}
    for name, module in lm.named_modules():
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if not is_posterior_key(key):
                values[f"{name}.{key}"] = parameter.detach().clone()
    return values


def test_a_draw_changes_its_location_only(case, theirs):
    # the rows of torch's recurrent layers, 8 units each
    rows = {"input_gate": 0, "forget_gate": 1, "cell_input": 2, "output_gate": 3}
    rows.update(reset_gate=0, update_gate=1, new_gate=2)
    for location in ours_of(case).locations():
        lm = ours_of(case, {location: "bayes"})
        assert lm.locations() == [location]
        lm.load_state_dict(theirs.state_dict())
        means = weights_in_use(lm)
        with lm.sampled(0):
            drawn = weights_in_use(lm)
        changed = {name for name in means if not torch.equal(means[name], drawn[name])}
        assert changed == {block.name for block in lm.posterior.blocks()}
        position, _, layer = location.partition("@")
        for name in changed:
            differs = means[name] != drawn[name]
            if position in rows:
                start = 8 * rows[position]
                assert name.endswith(f"_l{int(layer) - 1}")
                assert differs[start : start + 8].all()
                assert not differs[:start].any() and not differs[start + 8 :].any()
            else:
                assert differs.all()
        assert not torch.equal(logits(lm.train(), tokens()), logits(theirs, tokens()))


def test_tied_output_keeps_the_mean():
    case = CASES["tied"]
    lm = ours_of(case, {"embedding": "bayes"}, init_std=0.5)
    assert lm.decoder.weight is lm.encoder.weight
    assert len(list(lm.parameters())) == len(list(theirs_of(case).parameters())) + 1
    ids = tokens()
    with lm.eval().sampled(0):
        table = lm.encoder.weight
        output, _ = lm.rnn(nn.functional.embedding(ids, table))
        assert distance(logits(lm, ids), lm.decoder(output)) < 1e-12
        assert not torch.equal(table, lm.decoder.weight)
    assert torch.equal(lm.decoder.weight, lm.encoder.weight)


GRU = {"rnn_type": "gru"}
# backbone, its options, uncertainty, words of the error
ERRORS = [
    (None, {}, {}, ["backbone None", "seq_rnn, transformer, transformer_opt", "--from"]),
    ("lstm", {}, {}, ["backbone 'lstm'", "seq_rnn"]),
    ("seq_rnn", {"units": 8}, {}, ["backbone_conf: ESPnet's seq_rnn says", "'units'"]),
    ("seq_rnn", 3, {}, ["backbone_conf: ESPnet's seq_rnn says", "must be a mapping"]),
    ("seq_rnn", {"unit": "x"}, {}, ["ESPnet's seq_rnn says"]),
    ("seq_rnn", {"rnn_type": "x"}, {}, ["LSTM", "GRU"]),
    ("transformer", {"head": 3}, {}, ["ESPnet's transformer says"]),
    ("transformer", {"pos_enc": "x"}, {}, ["unknown pos-enc"]),
    ("seq_rnn", TIED, {"output": "bayes"}, ["'output'", "tie_weights", "embedding"]),
    ("seq_rnn", {}, {"ffn@1": "bayes"}, ["'ffn'", "valid positions are input_gate", "output"]),
    ("seq_rnn", GRU, {"cell_input@1": "bayes"}, ["are reset_gate, update_gate, new_gate"]),
    ("seq_rnn", GRU, {"new_gate@1": "search"}, ["new_gate@1", "search"]),
]


@pytest.mark.parametrize("backbone, conf, uncertainty, words", ERRORS)
def test_errors(backbone, conf, uncertainty, words):
    with pytest.raises(ValueError) as error:
        BayesESPnetLM(VOCAB, backbone, conf, uncertainty=uncertainty)
    assert all(word in str(error.value) for word in words), error.value


def test_pretrained_weights_are_the_start(pretrained_opt, tmp_path):
    from transformers import OPTModel

    folder = pretrained_opt(**OPT)
    source = OPTModel.from_pretrained(folder)
    lm = BayesESPnetLM(VOCAB, "transformer_opt", {"opt_name": folder})
    assert not hasattr(lm, "pretrained_params")
    own = lm.state_dict()
    for name, value in source.state_dict().items():
        if name != "decoder.embed_tokens.weight":
            assert torch.equal(own[f"decoder.{name}"], value.to(own[f"decoder.{name}"])), name
    with pytest.raises(ValueError, match=r"opt_name .*folder"):
        BayesESPnetLM(VOCAB, "transformer_opt", {"opt_name": f"{tmp_path}/none"})
