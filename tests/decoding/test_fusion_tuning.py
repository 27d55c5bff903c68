"""Weights of a fusion from the lists of all rounds."""

import numpy as np
import pytest
import torch
from test_fusion_lm import total

from espnet_bayeslm.decoding import fusion_tuning
from espnet_bayeslm.decoding.fusion_lm import FusionLM
from espnet_bayeslm.decoding.fusion_tuning import FusionTuning, best_weights
from espnet_bayeslm.decoding.tuned_search import ESPnetSearch, FusionWeights, Heard, SearchParts
from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists
from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.utils.errors import InputError

TRUE = FusionWeights(0.5, 0.8, 0.6)


def random_lists(num_lists, *, ahead_stays):
    """Return lists whose hypotheses have fewer errors the higher their true total is."""
    rng = np.random.default_rng(0)
    lists = {}
    for n in range(num_lists):
        heard = {}
        for k in range(8):
            ids = tuple(range(k, k + int(rng.integers(3, 9))))
            am, lm, ahead = rng.normal(size=3) * (4, 8, 8)
            total = am + TRUE.lm_weight * lm + TRUE.penalty * (len(ids) + 1)
            total += TRUE.lm_weight * TRUE.ahead_weight * ahead * ahead_stays
            heard[ids] = Heard(am, total, lm, ahead, length=len(ids) + 1)
        order = sorted(heard, key=lambda ids: -heard[ids].errors)
        lists[f"u{n}"] = {
            ids: heard[ids]._replace(errors=order.index(ids)) for ids in sorted(heard)
        }
    return lists


@pytest.mark.parametrize("ahead_stays", [False, True])
def test_weights_that_make_the_fewest_errors_are_found(ahead_stays):
    lists = random_lists(300, ahead_stays=ahead_stays)
    start = FusionWeights(0.0, 0.0, 0.5)
    found = best_weights(lists, start, SearchParts(ahead=ahead_stays))
    assert found.lm_weight == pytest.approx(TRUE.lm_weight, rel=0.2)
    assert found.penalty == pytest.approx(TRUE.penalty, abs=0.3)
    expected = TRUE.ahead_weight if ahead_stays else start.ahead_weight
    assert found.ahead_weight == pytest.approx(expected, rel=0.2)


def test_a_recogniser_that_is_wrong_keeps_a_weight():
    """The more the acoustic score, the more errors."""
    lists = random_lists(50, ahead_stays=False)
    for heard in lists.values():
        order = sorted(heard, key=lambda ids: heard[ids].am_score)
        for ids in heard:
            heard[ids] = heard[ids]._replace(errors=order.index(ids))
    found = best_weights(lists, FusionWeights(0.3, 0.0, 0.5), SearchParts())
    assert abs(found.lm_weight) <= 1 and abs(found.penalty) <= 4 and found.ahead_weight == 0.5


@pytest.mark.parametrize("lm_weight", [0.0, 0.4, 3.0])
@pytest.mark.parametrize("ahead_stays", [False, True])
def test_a_round_does_not_leave_the_recogniser_or_the_look_ahead_out(lm_weight, ahead_stays):
    """On the lists the LM alone makes fewest errors, and more of it is always better."""
    lists = random_lists(50, ahead_stays=ahead_stays)
    for heard in lists.values():
        order = sorted(heard, key=lambda ids: -heard[ids].log_prob)
        for ids in heard:
            heard[ids] = heard[ids]._replace(errors=order.index(ids))
    start = FusionWeights(lm_weight, 0.0, 0.5)
    found = best_weights(lists, start, SearchParts(ahead=ahead_stays))
    most = max(1.0, 2 * lm_weight)
    assert 0.5 * most < found.lm_weight <= most
    assert abs(found.penalty) <= 4
    assert 0.25 <= found.ahead_weight <= (2 if ahead_stays else 0.5)


class Recogniser:
    """A search over a fixed set of hypotheses of each recording, by true weights."""

    def __init__(self, lists, lm):
        self.lists, self.lm, self.weights, self.asked = lists, lm, {}, []

    def set_weights(self, **weights):
        self.weights = weights
        self.asked.append(weights)

    def with_tokens(self, utt):
        """Return the best two hypotheses, as a beam search would."""
        lm, bonus = (self.weights[name] for name in ("lm", "length_bonus"))
        items = self.lists[utt]

        def total(ids):
            return items[ids].am_score + lm * items[ids].log_prob + bonus * (len(ids) + 1)

        best = sorted(items, key=total, reverse=True)[:2]
        words = {ids: tuple("x" * items[ids].errors) for ids in best}
        return {ids: Hypothesis(words[ids], items[ids].am_score) for ids in best}


def tuning_of(search, alone, *args, **how):
    """Return the tuning of a search as ESPnet's."""
    return FusionTuning(ESPnetSearch(search, alone), *args, **how)


PART = {"name": "ahead", "weight": 1.0}


class FixedLM(FusionLM):
    """A fusion whose ln P of each text is known."""

    def __init__(self, lists):
        torch.nn.Module.__init__(self)
        self.ahead, self.ahead_stays, self.ahead_weight = None, False, 0.5
        self.bias_weight = 0.0
        self._loaded = self
        self.known = {ids: item.log_prob for items in lists.values() for ids, item in items.items()}

    def text_log_probs(self, hypotheses):
        return [self.known[ids] for ids in hypotheses]


def test_rounds_get_better_and_the_best_one_wins():
    lists = random_lists(200, ahead_stays=False)
    # ids of lists must differ, for the LM
    lists = {
        utt: {(n + 100, *ids): item for ids, item in items.items()}
        for n, (utt, items) in enumerate(lists.items())
    }
    search = Recogniser(lists, FixedLM(lists))
    recordings = {utt: lambda utt=utt: utt for utt in lists}
    tuning = tuning_of(search, Recogniser(lists, None), recordings, {utt: () for utt in lists})
    best = tuning.run(4)
    errors = [item.errors for item in tuning.rounds]
    assert best.errors == min(errors) < 0.5 * errors[0]
    assert tuning.rounds[0].weights.lm_weight == 0 and len(tuning.rounds) > 1
    assert best.weights.lm_weight == pytest.approx(TRUE.lm_weight, rel=0.4)
    # the union has hypotheses that no single round has
    assert max(len(items) for items in tuning.lists.values()) > 2


def test_words_of_a_recording_of_which_nothing_is_found_are_errors():
    """Beside those of the best hypothesis of each other recording."""
    lists = {"u0": {(5,): Heard(-1.0, 2, -3.0), (6,): Heard(-2.0, 1, -3.0)}, "silent": {}}
    search = Recogniser(lists, FixedLM(lists))
    recordings = {utt: lambda utt=utt: utt for utt in lists}
    refs = {"u0": (), "silent": ("three", "words", "said")}
    tuning = tuning_of(search, Recogniser(lists, None), recordings, refs)
    tuning.run(0)
    assert [item.errors for item in tuning.rounds] == [2 + 3]


@pytest.mark.parametrize("kind", ["lm", "ngram"])
def test_a_look_ahead_that_stays_scores_each_hypothesis(kind, tmp_path):
    lists = random_lists(2, ahead_stays=True)
    lm = FixedLM(lists)
    if kind == "lm":
        conf = {"att_unit": 8, "head": 2, "unit": 16, "layer": 1}
        part = {"lm": "bayes_transformer", "lm_conf": conf}
        lm.ahead = MixtureLM(20, components=[part | PART | {"kind": kind}]).eval()
    else:
        text, tokens = tmp_path / "text", ["<blank>", *map(str, range(18)), "<sos/eos>"]
        # as of `ngram --asr_exp`, which knows all tokens
        text.write_text("1 2 3 4 5\n2 3 4 5 6\n" + " ".join(tokens[1:-1]) + "\n")
        build_ngram(text, tmp_path / "arpa", order=2, discount_fallback=True)
        part = PART | {"kind": kind, "path": str(tmp_path / "arpa")}
        lm.ahead = MixtureLM(20, components=[part], tokens=tokens)
    lm.ahead_stays = True
    search, alone = Recogniser(lists, lm), Recogniser(lists, None)
    recordings = {utt: lambda utt=utt: utt for utt in lists}
    tuning = tuning_of(search, alone, recordings, {utt: () for utt in lists})
    tuning.run(0)
    for found in tuning.lists.values():
        expected = [total(lm.ahead, ids) for ids in found]
        assert [item.ahead for item in found.values()] == pytest.approx(expected, abs=1e-5)


class NarrowRecogniser(Recogniser):
    """A search that finds nothing but nonsense above an LM weight, as a narrow beam does."""

    def with_tokens(self, utt):
        found = super().with_tokens(utt)
        if self.weights["lm"] < 0.3:
            return found
        words = ("nonsense",) * 20
        return {(0, *ids): Hypothesis(words, hyp.am_score) for ids, hyp in found.items()}


def test_a_round_with_more_errors_halves_the_way(monkeypatch):
    """The lists ask for more than the search stands, again and again."""
    far = FusionWeights(0.8004, 0.8, 0.5)  # weights of three digits are tried
    monkeypatch.setattr(fusion_tuning, "best_weights", lambda *_, **__: far)
    lists = {
        utt: {(n + 100, *ids): item for ids, item in items.items()}
        for n, (utt, items) in enumerate(random_lists(200, ahead_stays=False).items())
    }
    nonsense = {
        utt: {(0, *ids): item for ids, item in items.items()} for utt, items in lists.items()
    }
    search = NarrowRecogniser(lists, FixedLM({**lists, **{f"{u}x": nonsense[u] for u in lists}}))
    recordings = {utt: lambda utt=utt: utt for utt in lists}
    refs = {utt: () for utt in lists}
    tuning = tuning_of(search, Recogniser(lists, None), recordings, refs)
    best = tuning.run(5)
    errors = [item.errors for item in tuning.rounds]
    weights = [item.weights.lm_weight for item in tuning.rounds]
    assert weights == [0, 0.8, 0.4, 0.2, 0.35, 0.275]
    assert all(row > errors[0] for row in (*errors[1:3], errors[4]))
    assert best.errors == min(errors) < errors[0]


class FailingRecogniser(Recogniser):
    """A search that fails on one recording always, and on another one with an LM."""

    def with_tokens(self, utt):
        if utt == "u0" or (utt == "u1" and self.weights["lm"]):
            raise RuntimeError("no memory")
        return super().with_tokens(utt)


def test_a_recording_that_fails_does_not_lose_the_others(monkeypatch, caplog):
    """Rounds are compared on the same recordings."""
    weights = FusionWeights(0.8, 0.8, 0.5)
    monkeypatch.setattr(fusion_tuning, "best_weights", lambda *_, **__: weights)
    lists = random_lists(6, ahead_stays=False)
    lists = {u: {(n, *i): x for i, x in lists[u].items()} for n, u in enumerate(lists, 100)}
    search, refs = FailingRecogniser(lists, FixedLM(lists)), {utt: ("x",) * 3 for utt in lists}
    recordings = {utt: lambda utt=utt: utt for utt in lists}
    tuning = tuning_of(search, FailingRecogniser(lists, None), recordings, refs)
    tuning.run(1)
    assert [*tuning.lists] == ["u1", "u2", "u3", "u4", "u5"]
    best = [next(iter(search.with_tokens(utt).values())) for utt in [*lists][2:]]
    errors = sum(abs(len(hyp.words) - 3) for hyp in best)
    assert tuning.rounds[1].errors == 3 + errors
    assert "u0 is left out: RuntimeError: no memory" in caplog.text
    assert "u1 counts as deleted: no memory" in caplog.text
    gone = {utt: recordings[utt] for utt in ("u0",)}
    with pytest.raises(InputError, match="no memory"):
        tuning_of(search, FailingRecogniser(lists, None), gone, refs).run(1)


def test_an_lm_that_knows_nothing_is_not_taken():
    lists = random_lists(200, ahead_stays=False)
    rng = np.random.default_rng(1)
    lists = {
        utt: {(n + 100, *ids): i._replace(log_prob=float(rng.normal())) for ids, i in items.items()}
        for n, (utt, items) in enumerate(lists.items())
    }
    for items in lists.values():
        order = sorted(items, key=lambda ids: -items[ids].am_score)
        for ids in items:
            items[ids] = items[ids]._replace(errors=order.index(ids))
    search = Recogniser(lists, FixedLM(lists))
    recordings = {utt: lambda utt=utt: utt for utt in lists}
    tuning = tuning_of(search, Recogniser(lists, None), recordings, {utt: () for utt in lists})
    best = tuning.run(2)
    assert best is tuning.rounds[0] and best.errors == 0


def biased_lists(num_lists, *, decoys, harm=0.0):
    """Return lists whose errors fall with their phrases, and with decoys perhaps do not."""
    rng = np.random.default_rng(0)
    lists = {}
    for n in range(num_lists):
        heard = {}
        for k in range(8):
            ids = tuple(range(k, k + int(rng.integers(3, 9))))
            am, lm, bias = *(rng.normal(size=2) * (4, 8)), float(rng.integers(3))
            decoy = float(rng.integers(3)) if decoys else 0.0
            true = am + 0.5 * (lm + 4.0 * bias)
            outside = int(rng.random() < harm * bias)
            heard[ids] = Heard(am, true, lm, 0.0, bias, decoy, outside, len(ids) + 1)
        order = sorted(heard, key=lambda ids: -heard[ids].errors)
        lists[f"u{n}"] = {i: heard[i]._replace(errors=order.index(i)) for i in heard}
    return lists


def test_the_weight_of_a_bias_list_is_tuned_with_the_others():
    parts, start = SearchParts(bias=True), FusionWeights(0.0, 0.0, 0.5)
    found = best_weights(biased_lists(300, decoys=False), start, parts)
    assert found.lm_weight == pytest.approx(0.5, rel=0.25)
    # in nats of the recogniser
    assert found.bias_weight == pytest.approx(0.5 * 4.0, rel=0.35)


@pytest.mark.parametrize("how", [{"decoys": True}, {"decoys": False, "harm": 0.5}])
def test_a_bias_list_that_harms_decoys_or_other_words_has_a_smaller_weight(how):
    parts, start = SearchParts(bias=True), FusionWeights(0.0, 0.0, 0.5)
    free = best_weights(biased_lists(300, decoys=False), start, parts)
    found = best_weights(biased_lists(300, **how), start, parts)
    assert found.bias_weight < 0.7 * free.bias_weight


def test_a_bias_list_alone_has_a_weight():
    lists = biased_lists(300, decoys=False)
    for heard in lists.values():
        true = {ids: item.am_score + 3.0 * item.bias for ids, item in heard.items()}
        order = sorted(heard, key=lambda ids: -true[ids])
        for ids in heard:
            heard[ids] = heard[ids]._replace(log_prob=0.0, errors=order.index(ids))
    parts = SearchParts(lms=False, bias=True)
    found = best_weights(lists, FusionWeights(0.0, 0.0, 0.5), parts)
    assert found.lm_weight == 1.0 and found.bias_weight == pytest.approx(3.0, rel=0.35)
    on_grid = fusion_tuning._best_on_grid(
        FusionWeights(1.0, 0.0, 0.5),
        lambda w: fusion_tuning._table(lists, parts).errors_of(parts.vector(w)).sum(),
        parts,
    )
    assert on_grid.bias_weight == pytest.approx(3.0, abs=1.5)


def test_a_bias_list_beside_an_lm_that_does_not_help_keeps_its_weight():
    lists = biased_lists(300, decoys=False)
    for heard in lists.values():
        order = sorted(heard, key=lambda ids: -(heard[ids].am_score + 3.0 * heard[ids].bias))
        for ids in heard:
            heard[ids] = heard[ids]._replace(errors=order.index(ids))
    found = best_weights(lists, FusionWeights(0.0, 0.0, 0.5), SearchParts(bias=True))
    assert found.lm_weight < 0.1 and found.bias_weight == pytest.approx(3.0, rel=0.4)


class ListeningRecogniser:
    """A search that finds a listed name, and for a heavy list without it two wrong words."""

    def __init__(self, lm):
        self.lm, self.weight = lm, 0.0

    def set_weights(self, **weights):
        self.weight = weights["lm"]

    def with_tokens(self, utt, bias):
        weight = self.weight * self.lm.bias_weight
        ids = (2, 2) if weight > 2 else (3,)
        if weight and "name" in bias.words:
            ids = (1,)
        return {ids: Hypothesis(tuple(self.lm.payments.words(ids)), -1.0)}


def test_a_search_that_harms_decoys_gets_a_smaller_weight():
    tokens = ["<blank>", "▁name", "▁other", "▁x", "<sos/eos>"]
    lm = FusionLM(len(tokens), tokens, bias=[], bias_weight=6.0)
    bias = BiasLists(shared=BiasList([("name", None), ("other", None)]))
    recordings = {f"u{n}": lambda n=n: f"u{n}" for n in range(4)}
    search, refs = ListeningRecogniser(lm), dict.fromkeys(recordings, ("name",))
    tuning = tuning_of(search, ListeningRecogniser(lm), recordings, refs, bias=bias)
    found = tuning.run(1)
    assert found.weights.bias_weight == 6.0 and (tuning.rounds[0].errors, found.errors) == (4, 0)
    best, plain, decoys = tuning.guarded(found)
    assert best.weights.bias_weight == 1.5 and best.errors == 0
    assert plain is tuning.rounds[0] and decoys.errors == plain.errors
