"""A mixture is the sum of its components' probabilities, however it is asked."""

import contextlib
import math
import random

import pytest
import torch
from espnet_nets import BatchBeamSearch, BatchScorerInterface
from search_contract import SearchContract

from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.lm.ngram import NgramLM
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.errors import InputError

TOKENS = ["<blank>", "<unk>", *"abcdefghij", "<sos/eos>"]
VOCAB, SOS = len(TOKENS), len(TOKENS) - 1
BAYES = {"cell_input@1": {"kind": "bayes", "init_std": 0.3}}
LMS = {
    "lstm": ("bayes_lstm", dict(unit=6, nlayers=1, uncertainty=BAYES)),
    "transformer": (
        "bayes_transformer",
        dict(att_unit=8, head=2, unit=12, layer=2, uncertainty={"ffn@1": "bayes"}),
    ),
    "seq_rnn": ("seq_rnn", dict(unit=6, nlayers=2)),
    "gru": ("seq_rnn", dict(unit=6, nlayers=1, rnn_type="gru")),
    "espnet": ("transformer", dict(att_unit=8, head=2, unit=12, layer=2, pos_enc="sinusoidal")),
    "adapted": (
        "bayes_espnet",
        dict(
            backbone="seq_rnn",
            backbone_conf=dict(unit=6, nlayers=1),
            uncertainty={"cell_input@1": "bayes"},
        ),
    ),
}
EVERYTHING = [*LMS, "ngram"]
SUBTRACTED = {"lstm": 0.6, "ngram": -0.3, "seq_rnn": 0.4, "copy": -0.1}


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngram")
    rng = random.Random(0)
    lines = [" ".join(rng.choices(TOKENS[2:-1], k=rng.randrange(9))) for _ in range(150)]
    (folder / "text").write_text("\n".join(lines) + "\n")
    path = folder / "trigram.arpa"
    build_ngram(folder / "text", path, order=3, lmplz="none", discount_fallback=True)
    return path


def part(name, weight, arpa):
    if name == "ngram":
        return {"name": name, "kind": "ngram", "weight": weight, "path": str(arpa)}
    lm, conf = LMS[{"copy": "lstm"}.get(name, name)]
    return {"name": name, "kind": "lm", "weight": weight, "lm": lm, "lm_conf": conf}


def make(weights, arpa):
    """Return a mixture of LMs with random weights, in float64."""
    parts = [part(name, weight, arpa) for name, weight in weights.items()]
    lm = MixtureLM(VOCAB, parts, TOKENS).double().eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)  # far from the uniform distribution
    return lm


def log_probs(lm, ids):
    """Return ln p of the next tokens by a component, (B, L, V)."""
    values, _ = lm(ids, None)
    return values if isinstance(lm, NgramLM) else values.log_softmax(-1)


def equal_weights(*names):
    return dict.fromkeys(names, 1 / len(names))


WEIGHTS = {"lstm": 0.3, "transformer": 0.25, "seq_rnn": 0.1, "espnet": 0.15, "ngram": 0.2}


class TestProbabilities:
    def test_are_the_weighted_sum_of_the_components(self, arpa):
        lm = make(WEIGHTS, arpa)
        ids = torch.randint(1, VOCAB, (4, 9))
        expected = sum(
            weight * log_probs(component, ids).exp()
            for weight, component in zip(WEIGHTS.values(), lm.components, strict=True)
        )
        found, _ = lm(ids, None)
        # the n-gram's seven digits
        assert torch.allclose(found.exp(), expected, rtol=0, atol=1e-7)
        assert torch.allclose(found.log_softmax(-1), found, rtol=0, atol=1e-6)

    def test_an_ngram_that_does_not_know_all_tokens(self, arpa):
        """`<unk>` of the n-gram for each of them, as KenLM has it, and no softmax over it."""
        tokens = [*TOKENS[:-1], "x", "y", TOKENS[-1]]
        parts = [part("lstm", 0.4, arpa), part("ngram", 0.6, arpa)]
        lm = MixtureLM(len(tokens), parts, tokens).double().eval()
        prefix = torch.tensor([len(tokens) - 1, 3])
        found, _ = lm.score(prefix, None, None)
        neural = log_probs(lm.components[0], prefix[None])[0, -1]
        (ngram,) = NgramScorer(arpa).word_scores([["b", "y"]])
        y = tokens.index("y")
        expected = math.log(0.4 * math.exp(neural[y].item()) + 0.6 * math.exp(ngram.log_probs[1]))
        assert found[y].item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    "names",
    [("lstm", "ngram"), ("espnet", "seq_rnn"), EVERYTHING],
    ids="+".join,
)
class TestSearch(SearchContract):
    @pytest.fixture
    def lm(self, arpa, names):
        return make(equal_weights(*names), arpa)


class TestSubtractionInSearch(SearchContract):
    @pytest.fixture
    def lm(self, arpa):
        return make(SUBTRACTED, arpa)

    @pytest.mark.parametrize("name", ["lstm", "ngram"])
    def test_the_score_is_that_of_the_formula(self, arpa, name):
        """Ln sum w p - 0.4 ln p_s - 0.2 ln p_t of each token; <blank> keeps its score."""
        lm = make({"transformer": 0.7, "seq_rnn": 0.3, name: -0.4, "gru": -0.2}, arpa)
        ids = torch.randint(1, VOCAB, (3, 6))
        parts = [log_probs(component, ids) for component in lm.components]
        mixed = (0.7 * parts[0].exp() + 0.3 * parts[1].exp()).log()
        expected = mixed - 0.4 * parts[2] - 0.2 * parts[3]
        expected[..., 0] = mixed[..., 0]
        torch.testing.assert_close(lm(ids, None)[0], expected, rtol=0, atol=1e-10)


class Frames(BatchScorerInterface, torch.nn.Module):
    """A recogniser that says the n-th token by the n-th row of a table."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def batch_score(self, ys, states, xs):
        return self.table[ys.size(1) - 1].expand(len(ys), -1), [None] * len(ys)


@pytest.mark.parametrize("subtracts", [False, True])
def test_espnets_beam_search(arpa, subtracts):
    """The scores of its N-best list are the LM's; what the n-gram excludes does no harm."""
    lm = make(SUBTRACTED if subtracts else equal_weights(*EVERYTHING), arpa).float()
    frames = 3 * torch.randn(7, VOCAB)
    frames[:, 0] -= 9
    frames = frames.log_softmax(-1)
    search = BatchBeamSearch(
        scorers={"decoder": Frames(frames), "lm": lm},
        weights={"decoder": 1.0, "lm": 0.7},
        beam_size=VOCAB,  # with <blank>, which an n-gram excludes
        vocab_size=VOCAB,
        sos=SOS,
        eos=SOS,
    )
    search.to(dtype=torch.float32).eval()
    with torch.no_grad():
        nbest = search(torch.zeros(7, 1), maxlenratio=1.0, minlenratio=0.0)
    assert not any(hyp.score.isnan() for hyp in nbest)
    nbest = [hyp for hyp in nbest if 0 not in hyp.yseq]
    assert len(nbest) >= 10
    for hyp in nbest:
        # ESPnet ends what is as long as the speech with an <eos> that costs nothing
        ids = hyp.yseq[: 1 + len(frames)]
        expected = lm(ids[None, :-1], None)[0][0].gather(1, ids[1:, None]).sum().item()
        assert hyp.scores["lm"].item() == pytest.approx(expected, abs=1e-4)
        acoustic = sum(frames[n, token].item() for n, token in enumerate(ids[1:]))
        assert hyp.score.item() == pytest.approx(acoustic + 0.7 * expected, abs=1e-4)


class TestWeights:
    def test_a_component_of_weight_zero_is_not_computed(self, arpa, monkeypatch):
        names = {"lstm": 0.6, "espnet": 0.0, "ngram": 0.4}
        lm = make(names, arpa)
        expected = make({"lstm": 0.6, "ngram": 0.4}, arpa)
        expected.components[0].load_state_dict(lm.components[0].state_dict())

        def fail(*_):
            raise AssertionError("computed")

        monkeypatch.setattr(lm.components[1], "forward", fail)
        monkeypatch.setattr(lm.components[1], "batch_score", fail)
        ids = torch.tensor([[SOS, 3, 4], [SOS, 7, 1]])
        assert torch.equal(lm(ids, None)[0], expected(ids, None)[0])
        scores, states = lm.batch_score(ids, [None, None], None)
        assert torch.equal(scores, expected.batch_score(ids, [None, None], None)[0])
        lm.batch_score(ids, states, None)

    @pytest.mark.parametrize("name", EVERYTHING)
    def test_a_single_component_is_itself(self, arpa, name):
        lm = make({name: 1.0}, arpa)
        ids = torch.randint(1, VOCAB, (3, 7))
        assert torch.equal(lm(ids, None)[0], log_probs(lm.components[0], ids))


class TestModule:
    def test_a_checkpoint_holds_all_weights_and_nothing_of_the_ngram(self, arpa):
        lm, other = (make(equal_weights(*EVERYTHING), arpa) for _ in range(2))
        state = lm.state_dict()
        for k, (name, component) in enumerate(zip(lm.names, lm.components, strict=True)):
            keys = {key for key in state if key.startswith(f"components.{k}.")}
            assert keys == {f"components.{k}.{key}" for key in component.state_dict()}
            assert bool(keys) == (name != "ngram")
        assert "components.0.encoder.weight" in state
        prefix = torch.tensor([[SOS, 3, 4]])
        expected = lm(prefix, None)[0]
        assert not torch.equal(other(prefix, None)[0], expected)
        other.load_state_dict(state)
        assert torch.equal(other(prefix, None)[0], expected)

    def test_what_is_uncertain_is_drawn_in_all_components(self, arpa):
        lm = make(WEIGHTS, arpa)
        assert lm.locations() == ["lstm/cell_input@1", "transformer/ffn@1"]
        kls = [lm.components[k].kl() for k in range(2)]
        assert lm.kl().item() == pytest.approx(sum(kls).item(), rel=1e-12) and lm.kl() > 0
        certain = make({"seq_rnn": 0.5, "ngram": 0.5}, arpa)
        assert certain.locations() == [] and certain.kl() == 0
        ids = torch.randint(1, VOCAB, (2, 5))
        mean = lm(ids, None)[0]
        with lm.sampled(3):
            found = lm(ids, None)[0]
            scores, _ = lm.batch_score(ids, [None, None], None)
        parts = []
        for weight, component in zip(lm.weights, lm.components, strict=True):
            is_ngram = isinstance(component, NgramLM)
            with contextlib.nullcontext() if is_ngram else component.sampled(3):
                parts.append(log_probs(component, ids) + math.log(weight))
        expected = torch.stack(parts).logsumexp(0)
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        # <blank> has no place in a search
        assert torch.allclose(scores[:, 1:], expected[:, -1, 1:], rtol=0, atol=1e-10)
        assert torch.equal(lm(ids, None)[0], mean) and not torch.allclose(found, mean, atol=1e-3)

    def test_teacher_forcing_goes_on_from_a_state(self, arpa):
        lm = make(equal_weights("lstm", "gru", "ngram"), arpa)
        ids = torch.randint(1, VOCAB - 1, (3, 8))
        first, state = lm(ids[:, :5], None)
        second, _ = lm(ids[:, 5:], state)
        whole = lm(ids, None)[0]
        assert torch.allclose(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
        lm = make(equal_weights("espnet", "ngram"), arpa)
        _, state = lm(torch.tensor([[SOS, 3]]), None)
        with pytest.raises(InputError, match="espnet reads only whole sent"):
            lm(torch.tensor([[4]]), state)


GOOD = {"name": "x", "kind": "lm", "weight": 1.0, "lm": "seq_rnn", "lm_conf": {"unit": 4}}
NGRAM = part("ngram", 1.0, "z")
BAD = [
    (None, None, "expected a list of `components`"),
    ([], None, "expected a list of `components`"),
    ({"a": GOOD}, None, "expected a list of `components`"),
    (["x"], None, "component 0 of a mixture: expected a mapping with kind, lm,.* got 'x'"),
    ([{**GOOD, "kind": "arpa"}], None, "component 0 of a mixture: expected .*'kind': 'arpa'"),
    ([{**NGRAM, "kind": "lm"}], None, "component 0 of a mixture: expected .*kind, lm, lm_conf, na"),
    ([{**GOOD, "path": "x"}], None, "component 0 of a mixture: expected .*kind, lm, .*'path'"),
    ([{**GOOD, "weight": -1.0}], None, r"weights \[-1.0\]"),
    ([{**GOOD, "lm": "mixture"}], None, "lm 'mixture' cannot .* bayes_lstm, bayes_tra"),
    ([NGRAM], None, "n-gram ngram needs the token list, and lm_conf has no `tokens` where 13"),
    ([NGRAM], TOKENS[1:], "has 12 `tokens` where 13 were expected"),
]


@pytest.mark.parametrize("components, tokens, message", BAD)
def test_configurations_that_are_none(components, tokens, message):
    with pytest.raises(InputError, match=message):
        MixtureLM(VOCAB, components, tokens)
