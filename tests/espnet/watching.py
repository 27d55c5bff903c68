"""Looks on while one of ESPnet's searches of transducers asks an LM for scores."""

import dataclasses

import torch
from espnet2.asr.decoder.transducer_decoder import TransducerDecoder
from espnet2.lm.abs_model import AbsLM
from espnet2.tasks.lm import LMTask


@dataclasses.dataclass(frozen=True)
class Call:
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
