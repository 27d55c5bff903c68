"""LMs in the beam searches of transducers: `asr_inference` and `asr_transducer_inference`."""

from typing import NamedTuple

import homophones
import pytest
import torch
import yaml
from espnet2.asr.decoder.transducer_decoder import TransducerDecoder
from espnet2.lm.abs_model import AbsLM
from espnet2.tasks.lm import LMTask

from espnet_bayeslm.lm.ngram import LogProbLM
from espnet_bayeslm.loading.trained_lm import load_lm


class Call(NamedTuple):
    """The log-probs of a search's call: a hypothesis, and what the LM has read for it, from sos."""

    hypothesis: tuple
    read: tuple
    log_probs: torch.Tensor


class WatchedLM(AbsLM):
    """An LM as it is, whose states also hold the tokens that they stand for."""

    rnn_type = "lstm"

    def __init__(self, lm, calls):
        super().__init__()
        self.lm = lm
        self.calls = calls
        self.hypotheses = None

    def forward(self, input, hidden):
        return self.lm(input, hidden)

    def zero_state(self):
        return self.lm.zero_state(), ()

    def score(self, y, state, x):
        inner, read = state or (None, ())
        log_probs, inner = self.lm.score(y, inner, x)
        read = (*read, int(y[-1]))
        self.calls.append(Call(tuple(y[1:].tolist()), read, log_probs))
        return log_probs, (inner, read)

    def batch_score(self, ys, states, xs):
        states = [state or (None, ()) for state in states]
        log_probs, inner = self.lm.batch_score(ys, [state for state, _ in states], xs)
        read = [(*read, int(y[-1])) for (_, read), y in zip(states, ys, strict=True)]
        known = self.hypotheses or [[token for token in y.tolist() if token] for y in ys]
        for hypothesis, tokens, answer in zip(known, read, log_probs, strict=True):
            self.calls.append(Call(tuple(hypothesis[1:]), tokens, answer))
        return log_probs, list(zip(inner, read, strict=True))


def watch(monkeypatch):
    """Make ESPnet load watched LMs, and return the list of their calls."""
    calls, build, step = [], LMTask.build_model_from_file, TransducerDecoder.batch_score
    loaded = []

    def build_watched(*args, **kwargs):
        model, train_args = build(*args, **kwargs)
        model.lm = WatchedLM(model.lm, calls)
        loaded.append(model.lm)
        return model, train_args

    def batch_score(self, hyps, *args):
        # asr_inference asks the decoder, and then the LM, about the same hypotheses
        for lm in loaded:
            lm.hypotheses = [list(hyp.yseq) for hyp in hyps]
        return step(self, hyps, *args)

    monkeypatch.setattr(LMTask, "build_model_from_file", build_watched)
    monkeypatch.setattr(TransducerDecoder, "batch_score", batch_score)
    return calls


SEARCHES = [("asr_inference", name) for name in ("default", "tsd", "alsd", "nsc", "maes")]
# ESPnet's other program, whose recogniser is trained for these tests alone
OTHERS = [("asr_transducer_inference", name) for name in ("default", "tsd", "alsd", "maes")]
# How many tokens may follow each other within a frame
EXPANSIONS = {"tsd": {"max_sym_exp": 4}, "nsc": {"nstep": 3}, "maes": {"nstep": 3}}
LM_WEIGHT = 0.5
BLANK, SOS = 0, len(homophones.TOKENS) - 1
# A search of ESPnet's that loses tokens, whatever the LM
FORGETFUL = [("asr_inference", "maes")]


@pytest.fixture
def search(decode, speech, tmp_path, recogniser_of):
    """Return a function that decodes three recordings by one of the searches."""
    keys = tmp_path / "keys"
    keys.write_text("".join((speech / "text").read_text().splitlines(keepends=True)[:3]))

    def run(program, name, *, lm=None, lm_weight=LM_WEIGHT, nbest=5):
        mine = program == "asr_inference"
        options = {"search_type": name, **EXPANSIONS.get(name, {})}
        options |= {"nbest": nbest} if mine else {}
        config = tmp_path / "search.yaml"
        key = "transducer_conf" if mine else "beam_search_config"
        config.write_text(yaml.safe_dump({key: options}))
        model = recogniser_of("transducer" if mine else "standalone")
        folder = tmp_path / f"{program}_{name}_{lm and lm.name}_{lm_weight}"
        values = {"config": config, "key_file": keys, "beam_size": 5, "nbest": nbest}
        return decode(program, folder, model, lm=lm, lm_weight=lm_weight, **values)

    return run


@pytest.mark.parametrize(
    "program, name, lm_name",
    [
        *[(*search, "bayes_lstm") for search in SEARCHES],
        (*SEARCHES[0], "bayes_espnet"),
        (*SEARCHES[0], "seq_rnn"),
        (*SEARCHES[1], "mixture"),  # of an LSTM and a Transformer
        *[pytest.param(*search, "bayes_lstm", marks=pytest.mark.slow) for search in OTHERS],
        pytest.param(*OTHERS[-1], "mixture", marks=pytest.mark.slow),
        (*SEARCHES[0], "subtracted"),  # an LSTM less another
        *[(*search, "fusion") for search in (SEARCHES[0], SEARCHES[-1])],
        pytest.param(*OTHERS[-1], "subtracted", marks=pytest.mark.slow),
    ],
)
def test_each_score_is_that_of_the_whole_hypothesis(
    program, name, lm_name, lm, search, monkeypatch
):
    experiment = lm(lm_name)
    calls = watch(monkeypatch)
    search(program, name, lm=experiment)
    assert len(calls) >= 30 and max(len(call.hypothesis) for call in calls) >= 4
    complete = [call for call in calls if call.read[1:] == call.hypothesis]
    assert (len(complete) < len(calls)) == ((program, name) in FORGETFUL)
    scorer = load_lm(experiment).lm
    expected = {}
    for call in complete:
        assert call.read[0] in (BLANK, SOS)
        # ESPnet's LMs take a <blank> as it comes
        first = call.read[0] if lm_name == "seq_rnn" else SOS
        context = (first, *call.hypothesis)
        if context not in expected:
            with torch.no_grad():
                logits, _ = scorer(torch.tensor([context]), None)
            last = logits[0, -1]
            expected[context] = last if isinstance(scorer, LogProbLM) else last.log_softmax(-1)
        torch.testing.assert_close(call.log_probs, expected[context], atol=5e-5, rtol=0)


@pytest.mark.parametrize(
    "program, name", [SEARCHES[0], pytest.param(*OTHERS[-1], marks=pytest.mark.slow)]
)
def test_the_lm_takes_part(program, name, lm, search):
    without = search(program, name)
    off = search(program, name, lm=lm("bayes_lstm"), lm_weight=0)
    on = search(program, name, lm=lm("bayes_lstm"))
    for utt, expected in without.items():
        assert [words for words, _ in off[utt]] == [words for words, _ in expected]
        scores = [score for _, score in expected]
        assert [score for _, score in off[utt]] == pytest.approx(scores, abs=1e-3)
        assert on[utt][0][1] < scores[0] - 0.5
