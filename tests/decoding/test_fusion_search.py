"""Fusion in ESPnet's beam search, with a CTC that rules ends out and words that are normalised."""

import math

import numpy as np
import pytest
import torch
from espnet_nets import BatchBeamSearch, CTCPrefixScorer
from test_fusion_lm import look_ahead, total
from tiny_training import words

from espnet_bayeslm.bin import ngram
from espnet_bayeslm.decoding.fusion_lm import CTC_END, FusionLM
from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components

TEXT = "so we could put it there\nwe do not put it there\nputting it there\ndo so\nit is so\n"
PIECES = "▁So ▁WE ▁could, ▁DON'T ▁- ▁put ting ▁it. ▁there ▁do"
TOKENS = ["<blank>", "<unk>", *PIECES.split(), "<sos/eos>"]
STEPS = "lower,punct,contractions"
SIZE = 8  # features of a frame


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    """Return an n-gram of words in lower case."""
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "text").write_text(TEXT * 3)
    files = {"text": folder / "text", "arpa": folder / "words.arpa"}
    ngram.main(words(**files, order=2, discount_fallback="true"))
    return str(files["arpa"])


def fusion(arpa, **options):
    """Return a fusion of the n-gram, or of none, with a CTC of random weights."""
    torch.manual_seed(2)
    components = {"ngrams": [arpa], "max_oov_rate": 1.0} if arpa else None
    lm = FusionLM(len(TOKENS), TOKENS, components, ctc_features=SIZE, **options).eval()
    torch.nn.init.normal_(lm.ctc.projection.weight, std=1.5)
    return lm


class CTC(torch.nn.Module):
    """A recogniser's CTC as ESPnet's search calls it."""

    def __init__(self, ends):
        super().__init__()
        self.ends = ends

    def log_softmax(self, encoded):
        return self.ends.projection(encoded).log_softmax(-1)


def searched(lm, encoded, ctc):
    """Return the finished hypotheses of ESPnet's search."""
    search = BatchBeamSearch(
        scorers={"lm": lm, "ctc": CTCPrefixScorer(ctc=CTC(ctc), eos=len(TOKENS) - 1)},
        weights={"lm": 0.4, "ctc": 0.6},
        beam_size=10,
        vocab_size=len(TOKENS),
        sos=len(TOKENS) - 1,
        eos=len(TOKENS) - 1,
        pre_beam_score_key=None,
    )
    with torch.no_grad():
        found = search(encoded)
    # ESPnet pays no end of those that it cuts off
    ended = [hyp for hyp in found if len(hyp.yseq) < len(encoded)]
    return [(hyp.yseq[1:-1].tolist(), float(hyp.scores["lm"])) for hyp in ended]


def log_prob_of_end(ctc, encoded, ids):
    """Return ln p by CTC that no token follows."""
    with torch.no_grad():
        prefix = ctc.begin(encoded)
        for token in ids:
            (prefix,) = ctc.after([prefix], [token])
        return prefix.end_log_prob


@pytest.mark.parametrize("normalize, interval", [("", 1), (STEPS, 1), (STEPS, 3)])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_search_pays_the_words_as_lms_read_them(arpa, normalize, interval, ahead, monkeypatch):
    """And no hypothesis ends where CTC has more to say."""
    options = {"normalize": normalize, "ahead": look_ahead(ahead), "interval": interval}
    lm = fusion(arpa, **options, end_margin=1e9)
    encoded, score, asked = torch.randn(20, SIZE), lm.batch_score, []

    def watched(*args):
        rows, states = score(*args)
        assert (rows[:, 0] == -math.inf).all()  # the blank
        ends = (rows[:, -1] > -math.inf).tolist()
        asked.extend((s.heard.end_log_prob, end) for s, end in zip(states, ends, strict=True))
        return rows, states

    monkeypatch.setattr(lm, "batch_score", watched)
    found = searched(lm, encoded, lm.ctc)
    ids, scores = zip(*found, strict=True)
    (component,) = load_components(ComponentOptions(ngrams=[arpa], max_oov_rate=1.0))
    texts = [lm.payments.words(tokens) for tokens in ids]
    expected = [float(s.log_probs.sum()) for s in component.scorer.word_scores(texts)]
    assert len(ids) > 1 and max(map(len, texts)) > 3
    assert lm.text_log_probs(ids) == pytest.approx(expected, abs=1e-6)
    assert scores == pytest.approx(expected, abs=1e-4)
    assert all(log_prob_of_end(lm.ctc, encoded, tokens) > CTC_END for tokens in ids)
    assert {may_end for _, may_end in asked} == {True, False}
    assert all(may_end == (log_prob > CTC_END) for log_prob, may_end in asked)


@pytest.mark.parametrize(
    "pieces, read",
    [
        ("▁So ▁WE ▁DON'T ▁put ting ▁it.", "so we do not putting it"),
        ("▁- ▁could, ▁- ▁- ▁there ▁-", "could there"),
        ("▁-", ""),
        ("▁DON'T", "do not"),
    ],
)
@pytest.mark.parametrize("interval", [1, 2])
def test_words_that_the_normalisation_parts_or_drops(pieces, read, interval, arpa):
    lm = fusion(arpa, normalize=STEPS, ahead=look_ahead(1), end_margin=1e9, interval=interval)
    ids = [TOKENS.index(piece) for piece in pieces.split()]
    (component,) = load_components(ComponentOptions(ngrams=[arpa], max_oov_rate=1.0))
    (scores,) = component.scorer.word_scores([read.split()])
    assert lm.text_log_probs([ids]) == pytest.approx([scores.log_probs.sum()], abs=1e-6)
    found = total(lm, ids, ends_early=interval == 1)
    assert found == pytest.approx(scores.log_probs.sum(), abs=1e-4)


def steps(lm, ids, encodings):
    """Return the scores and the state after each token, while the encoding grows."""
    sequence, states, rows = [len(TOKENS) - 1, *ids], [None], []
    for n, encoded in enumerate(encodings, 1):
        row, states = lm.batch_score(torch.tensor([sequence[:n]]), states, encoded[None])
        rows.append((row[0], states[0]))
    return rows


def test_a_growing_encoding_is_heard_from_the_start(arpa):
    """As a streaming search has it: an end that the first block rules out may come in the last."""
    lm, encoded = fusion(arpa, end_margin=1e9), torch.randn(12, SIZE)
    ids = [TOKENS.index(piece) for piece in ("▁So", "▁WE", "▁put", "ting")]
    blocks = [encoded[:4], encoded[:4], encoded[:8], encoded[:8], encoded]
    grown, whole = steps(lm, ids, blocks), steps(lm, ids, [encoded] * 5)
    assert grown[-1][1].heard.tokens == tuple(ids)
    torch.testing.assert_close(grown[-1][1].heard.ends, whole[-1][1].heard.ends)
    torch.testing.assert_close(grown[-1][0], whole[-1][0])
    expected = log_prob_of_end(lm.ctc, encoded, ids)
    assert grown[-1][1].heard.end_log_prob == pytest.approx(expected, abs=1e-9)
    early = log_prob_of_end(lm.ctc, encoded[:8], ids[:3])
    assert grown[3][1].heard.end_log_prob == pytest.approx(early, abs=1e-9)


def test_ctc_is_asked_for_one_utterance_alone(arpa):
    """Others of a batch are padded; hypotheses of one utterance share its encoding."""
    lm, encoded = fusion(arpa, end_margin=1e9), torch.randn(2, 9, SIZE)
    ys = torch.full((2, 1), len(TOKENS) - 1)
    given = {False: encoded, True: encoded[:1].expand(2, -1, -1)}
    for is_one, xs in given.items():
        _, states = lm.batch_score(ys, [None, None], xs)
        assert [state.heard is not None for state in states] == [is_one] * 2
    _, (state,) = lm.batch_score(ys[:1], [None], encoded[:1])
    assert len(state.heard.log_probs) == 9
    _, (state,) = lm.batch_score(ys[:1], [None], None)
    assert state.heard is None


class Known(torch.nn.Module):
    """A look-ahead that gives each next token the same ln p, whatever came before."""

    def __init__(self, log_probs):
        super().__init__()
        self.log_probs = log_probs

    def zero_state(self):
        return None

    def search_rows(self, tokens, states):
        return self.log_probs.expand(len(tokens), -1).double().numpy(), [None] * len(tokens)


@pytest.mark.parametrize("weight", [0.25, 1.0, 2.0])
@pytest.mark.parametrize("below, may_come", [(7.9, True), (8.1, False)])
def test_how_much_less_likely_an_end_may_be(weight, below, may_come, arpa):
    """Than the best token, whatever the look-ahead's weight; the blank is none."""
    lm = fusion(arpa, ahead=look_ahead(1), ahead_weight=weight)
    log_probs = torch.full((len(TOKENS),), -30.0)
    log_probs[[0, 3, -1]] = torch.tensor([20.0, -1.0, -1.0 - below])
    lm.ahead = Known(log_probs)
    found, _ = lm.batch_score(torch.tensor([[len(TOKENS) - 1, 2]]), [None], None)
    assert (found[0, -1] > -math.inf) == may_come


def test_how_unlikely_an_end_may_be_by_ctc(arpa):
    """A frame of the second token, sure to some degree, stands for the ln p of the end."""
    lm, ids = fusion(arpa, end_margin=1e9), [2]
    torch.nn.init.zeros_(lm.ctc.projection.bias)
    lm.ctc.projection.weight.data = torch.eye(len(TOKENS), SIZE)
    ends = []
    for sure in np.linspace(7, 9, 9):
        frames = torch.full((2, SIZE), -50.0)
        frames[0, 2], frames[1, [0, 3]] = 50.0, torch.tensor([0.0, float(sure)])
        found, (state,) = lm.batch_score(
            torch.tensor([[len(TOKENS) - 1, *ids]]), [None], frames[None]
        )
        ends.append((state.heard.end_log_prob, bool(found[0, -1] > -math.inf)))
    assert all(may_come == (log_prob > -8) for log_prob, may_come in ends)
    assert {may_come for _, may_come in ends} == {True, False}
