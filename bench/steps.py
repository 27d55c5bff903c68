"""Time of a training step and of an evaluation pass, over those of the point-estimate LM.

Rounds are interleaved and the medians of their ratios are printed: on a shared machine only
ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable, Dict, List

import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from espnet2.lm.transformer_lm import TransformerLM
from torch import nn

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

SHAPES = {
    # vocabulary, LSTM, Transformer, batch x length
    "small": (10000, dict(unit=256), dict(att_unit=128, head=4, unit=512, layer=4), (32, 35)),
    "paper": (10000, dict(unit=1024), dict(att_unit=512, head=8, unit=4096, layer=6), (32, 35)),
}


def build(shape: str) -> Dict[str, nn.Module]:
    """Return the models to compare, by name; each family's first is what it is compared with."""
    vocab, lstm, transformer, _ = SHAPES[shape]
    lstm = {**lstm, "nlayers": 2, "dropout_rate": 0.2, "tie_weights": True}
    sizes = {**transformer, "dropout_rate": 0.2}
    lms = {
        "lstm point": BayesLSTMLM(vocab, **lstm),
        "lstm cell_input@1-2 bayes": BayesLSTMLM(
            vocab, **lstm, uncertainty={"cell_input@1-2": "bayes"}
        ),
        "lstm all_gates@1-2 bayes": BayesLSTMLM(
            vocab, **lstm, uncertainty={"all_gates@1-2": "bayes"}
        ),
        "lstm espnet seq_rnn": SequentialRNNLM(vocab, **lstm),
        "transformer point": BayesTransformerLM(vocab, **sizes),
        **{
            f"transformer {place} bayes": BayesTransformerLM(
                vocab, **sizes, uncertainty={place: "bayes"}
            )
            for place in ("ffn@1", "ffn@*")
        },
        "transformer espnet": TransformerLM(
            vocab, embed_unit=transformer["att_unit"], pos_enc="sinusoidal", **sizes
        ),
    }
    return {name: wrap(lm, vocab) for name, lm in lms.items()}


def wrap(lm: nn.Module, vocab: int) -> nn.Module:
    """Return ESPnet's model around an LM."""
    from espnet2.lm.espnet_model import ESPnetLanguageModel

    if isinstance(lm, (BayesLSTMLM, BayesTransformerLM)):
        return BayesLanguageModel(lm, vocab, num_train_tokens=1_000_000)
    return ESPnetLanguageModel(lm, vocab)


def train_step(model: nn.Module, text: torch.Tensor, lengths: torch.Tensor) -> None:
    """Forward, backward and an SGD update."""
    model.train()
    loss, _, _ = model(text, lengths)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
            parameter.grad = None


@torch.no_grad()
def evaluate(model: nn.Module, text: torch.Tensor, lengths: torch.Tensor) -> None:
    """Validation loss."""
    model.eval()
    model(text, lengths)


def timed(function: Callable[..., None], *args) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def measure(shape: str, rounds: int) -> None:
    """Print a table of medians and of medians of the rounds' ratios."""
    models = build(shape)
    vocab, _, _, (batch, length) = SHAPES[shape]
    text = torch.randint(2, vocab - 1, (batch, length))
    lengths = torch.full((batch,), length)
    work = {"train": train_step, "eval": evaluate}
    times: Dict[str, Dict[str, List[float]]] = {k: {n: [] for n in models} for k in work}
    for done in range(-1, rounds):
        for name, model in models.items():
            for kind, function in work.items():
                seconds = timed(function, model, text, lengths)
                if done >= 0:  # the first round warms up
                    times[kind][name].append(seconds)
    print(f"\n{shape}: {batch} x {length} tokens, {vocab} words, {torch.get_num_threads()} thread")
    print(f"{'':28} {'train ms':>9} {'ratio':>6} {'eval ms':>9} {'ratio':>6}")
    for name in models:
        base = f"{name.split()[0]} point"
        row = f"{name:28}"
        for kind in work:
            ratios = [a / b for a, b in zip(times[kind][name], times[kind][base], strict=True)]
            median = statistics.median(times[kind][name])
            row += f" {1000 * median:9.1f} {statistics.median(ratios):6.3f}"
        print(row)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["small", "paper"], choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for shape in args.shapes:
        measure(shape, args.rounds)


if __name__ == "__main__":
    main()
