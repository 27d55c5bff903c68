"""Time of a training step and of an evaluation pass, over those of point-estimate LMs.

The points of comparison are our LM without uncertainty, and torch's nn.LSTM or ESPnet's
TransformerLM. Rounds are interleaved and the medians of their ratios are printed: on a shared
machine only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from espnet2.lm.transformer_lm import TransformerLM
from torch import nn

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

SMALL = dict(lstm=dict(unit=256), transformer=dict(att_unit=128, head=4, unit=512, layer=4))
PAPER = dict(lstm=dict(unit=1024), transformer=dict(att_unit=512, head=8, unit=4096, layer=6))
# words and sizes; the paper's AMI lexicon has 47,000 words (V-A)
SHAPES: Dict[str, Tuple[int, Dict[str, Dict[str, int]]]] = {
    "small": (10_000, SMALL),
    "paper": (47_000, PAPER),
    "paper10k": (10_000, PAPER),
}
BATCH = (32, 35)
FEEDBACK = {"kind": "variational", "feedback": True}
# What is measured, with the goal for (training, evaluation) where there is one.
UNCERTAIN: Dict[str, List[Tuple[str, Any, Tuple[float, float] | None]]] = {
    "lstm": [
        ("cell_input@1-2", "bayes", (1.02, 1.00)),
        ("all_gates@1-2", "bayes", (1.02, 1.00)),
        ("cell_input@1-2", "gp", (1.10, 1.10)),
        ("hidden_input@1-2", "gp", (1.10, 1.10)),
        ("hidden_output@1-2", "variational", (1.05, 1.03)),
        ("hidden_output@1-2", FEEDBACK, None),
    ],
    "transformer": [
        ("ffn@1", "bayes", (1.02, 1.00)),
        ("ffn@*", "bayes", (1.02, 1.00)),
        ("ffn@1", "gp", (1.05, 1.10)),
        ("ffn@*", "gp", (1.05, 1.10)),
        ("hidden_output@1", "variational", (1.05, 1.03)),
        ("hidden_output@*", "variational", (1.05, 1.03)),
    ],
}


def build(shape: str, family: str) -> Dict[str, nn.Module]:
    """Return the models to compare, by name: the two points of comparison first."""
    vocab, sizes = SHAPES[shape]
    conf = {**sizes[family], "dropout_rate": 0.2, "tie_weights": True}
    lms: Dict[str, nn.Module] = {}
    if family == "lstm":
        conf["nlayers"] = 2
        make: Callable[..., nn.Module] = BayesLSTMLM
        lms["point"], lms["nn.LSTM"] = make(vocab, **conf), SequentialRNNLM(vocab, **conf)
    else:
        make = BayesTransformerLM
        lms["point"] = make(vocab, **conf)
        # it has no tied weights, which cost no time
        espnet = {k: v for k, v in conf.items() if k != "tie_weights"}
        espnet |= dict(embed_unit=conf["att_unit"], pos_enc="sinusoidal")
        lms["ESPnet"] = TransformerLM(vocab, **espnet)
    for place, kind, _ in UNCERTAIN[family]:
        lms[name_of(place, kind)] = make(vocab, uncertainty={place: kind}, **conf)
    return {name: wrap(lm, vocab) for name, lm in lms.items()}


def name_of(place: str, kind: Any) -> str:
    """Return what a row is called."""
    return f"{place} {kind}" if isinstance(kind, str) else f"{place} feedback"


def wrap(lm: nn.Module, vocab: int) -> nn.Module:
    """Return ESPnet's model around an LM."""
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
            # a rate at which nothing moves: the work is the same
            parameter.sub_(parameter.grad, alpha=1e-12)
            parameter.grad = None


@torch.no_grad()
def evaluate(model: nn.Module, text: torch.Tensor, lengths: torch.Tensor) -> None:
    """NLL of each token, as perplexity and rescoring compute it."""
    model.eval()
    model.nll(text, lengths)


def timed(function: Callable[..., None], *args: Any) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def measure(shape: str, family: str, rounds: int) -> None:
    """Print a table of medians and of medians of the rounds' ratios."""
    models = build(shape, family)
    vocab = SHAPES[shape][0]
    text, lengths = torch.randint(2, vocab - 1, BATCH), torch.full(BATCH[:1], BATCH[1])
    work = {"train": train_step, "eval": evaluate}
    times: Dict[str, Dict[str, List[float]]] = {k: {n: [] for n in models} for k in work}
    for done in range(-1, rounds):
        for name, model in models.items():
            for kind, function in work.items():
                seconds = timed(function, model, text, lengths)
                if done >= 0:  # the first round warms up
                    times[kind][name].append(seconds)
    print_table(shape, family, times)


def print_table(shape: str, family: str, times: Dict[str, Dict[str, List[float]]]) -> None:
    """Print a row for each model."""
    threads = f"{torch.get_num_threads()} thread(s)"
    words, tokens = f"{SHAPES[shape][0]} words", f"{BATCH[0]} x {BATCH[1]} tokens"
    print(f"\n{family}, {shape} shape: {words}, {tokens}, {threads}")
    other = "nn.LSTM" if family == "lstm" else "ESPnet"
    columns = [f"{kind} {what}" for kind in times for what in ("ms", "/point", f"/{other}")]
    print(f"{'':32}", *(f"{column:>14}" for column in columns), "   goals")
    goals = {name_of(place, kind): goal for place, kind, goal in UNCERTAIN[family]}
    for name in times["train"]:
        cells = []
        for kind in times.values():
            cells.append(1000 * statistics.median(kind[name]))
            for base in ("point", other):
                ratios = [a / b for a, b in zip(kind[name], kind[base], strict=True)]
                cells.append(statistics.median(ratios))
        goal = goals.get(name)
        print(
            f"{name:32}",
            *(f"{cell:14.1f}" if k % 3 == 0 else f"{cell:14.3f}" for k, cell in enumerate(cells)),
            "   {:.2f} / {:.2f}".format(*goal) if goal else "",
            flush=True,
        )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["small", "paper"], choices=list(SHAPES))
    parser.add_argument("--families", nargs="+", default=list(UNCERTAIN), choices=list(UNCERTAIN))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for shape in args.shapes:
        for family in args.families:
            measure(shape, family, args.rounds)
            gc.collect()


if __name__ == "__main__":
    main()
