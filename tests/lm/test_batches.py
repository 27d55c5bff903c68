"""LMs in ESPnet's search over a batch of utterances, which newer releases of ESPnet have."""

import inspect
import math

import pytest
import torch
from espnet_nets import BatchBeamSearch, BatchScorerInterface
from lm_cases import ESPNET_TRANSFORMER, LSTM, SEQ_RNN, TRANSFORMER
from pretrained.tiny_models import write_model

from espnet_bayeslm.lm import BayesESPnetLM, BayesLSTMLM, BayesTransformerLM, MixtureLM
from espnet_bayeslm.pretrained.adapted import AdaptedLM
from espnet_bayeslm.pretrained.causal_lm import load_tokenizer

if "x_lengths" not in inspect.signature(BatchBeamSearch.forward).parameters:
    pytest.skip("the installed ESPnet searches one utterance at a time", allow_module_level=True)

VOCAB = 17
LENGTHS = (9, 4, 9, 1, 6)
BEAM = 5
FFN = {"ffn@1": {"kind": "bayes", "init_std": 0.5}}


class Frames(BatchScorerInterface, torch.nn.Module):
    """A recogniser whose encoder says ln p of the n-th token by the n-th frame."""

    def batch_score(self, ys, states, xs):
        return xs[:, ys.size(1) - 1], [None] * len(ys)


def mixture(**weights):
    """Return a mixture of LMs, or one LM less another."""
    confs = {
        "lstm": ("bayes_lstm", LSTM),
        "transformer": ("bayes_transformer", TRANSFORMER),
        "espnet": ("transformer", ESPNET_TRANSFORMER["backbone_conf"]),
    }
    parts = [
        {"name": n, "kind": "lm", "weight": w, "lm": confs[n][0], "lm_conf": confs[n][1]}
        for n, w in weights.items()
    ]
    return MixtureLM(VOCAB, parts)


def adapted(folder):
    """Return an adapted LM of a tiny base."""
    base = write_model(folder, "opt")
    return AdaptedLM(len(load_tokenizer(base)), model=f"hf:{base}", lora={"r": 2})


LMS = {
    "bayes_lstm": lambda _: BayesLSTMLM(VOCAB, **LSTM),
    "bayes_transformer": lambda _: BayesTransformerLM(VOCAB, **TRANSFORMER),
    "samples": lambda _: BayesTransformerLM(VOCAB, **TRANSFORMER, uncertainty=FFN, num_samples=3),
    "bayes_espnet": lambda _: BayesESPnetLM(VOCAB, **ESPNET_TRANSFORMER),
    "seq_rnn": lambda _: BayesESPnetLM(VOCAB, **SEQ_RNN),
    "mixture": lambda _: mixture(lstm=0.4, transformer=0.3, espnet=0.3),
    "subtracted": lambda _: mixture(transformer=1.0, espnet=-0.3),
    "pretrained": adapted,
}


@pytest.fixture(params=LMS)
def lm(request, tmp_path):
    """Return an LM away from the uniform distribution."""
    torch.manual_seed(0)
    made = LMS[request.param](tmp_path).eval()
    if request.param != "pretrained":
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if parameter.dim() > 1 and "log_std" not in name:
                    parameter.mul_(4)
    return made


def test_each_utterance_has_the_list_it_has_alone(lm):
    vocab, sos = lm.vocab_size, lm.vocab_size - 1
    search = BatchBeamSearch(
        scorers={"decoder": Frames(), "lm": lm},
        weights={"decoder": 1.0, "lm": 0.7},
        beam_size=BEAM,
        vocab_size=vocab,
        sos=sos,
        eos=sos,
    ).eval()
    frames = 2 * torch.randn(len(LENGTHS), max(LENGTHS), vocab)
    frames[..., 0] = -99  # <blank> is no token
    frames[..., sos] += math.log(vocab)
    frames = frames.log_softmax(-1)
    with torch.no_grad():
        together = search(frames, maxlenratio=1.0, x_lengths=torch.tensor(LENGTHS))
        alone = [search(x[:n], maxlenratio=1.0) for x, n in zip(frames, LENGTHS, strict=True)]
    assert sum(map(len, alone)) > 2 * len(LENGTHS)
    for found, expected in zip(together, alone, strict=True):
        assert [hyp.yseq.tolist() for hyp in found] == [hyp.yseq.tolist() for hyp in expected]
        for name in ("lm", "decoder"):
            scores = [[float(hyp.scores[name]) for hyp in hyps] for hyps in (found, expected)]
            assert scores[0] == pytest.approx(scores[1], rel=0, abs=1e-5)
