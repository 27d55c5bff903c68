"""Time of a training step and of an evaluation pass, over those of point-estimate LMs.

The points of comparison are our LM without uncertainty, and torch's nn.LSTM or ESPnet's
TransformerLM. Rounds are interleaved and the medians of their ratios are printed: on a shared
machine only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import functools
import gc
import multiprocessing
import re
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from espnet2.lm.transformer_lm import TransformerLM
from torch import nn

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

TINY = dict(lstm=dict(unit=32), transformer=dict(att_unit=32, head=2, unit=64, layer=2))
SMALL = dict(lstm=dict(unit=256), transformer=dict(att_unit=128, head=4, unit=512, layer=4))
PAPER = dict(lstm=dict(unit=1024), transformer=dict(att_unit=512, head=8, unit=4096, layer=6))
# words and sizes; the paper's AMI lexicon has 47,000 words (V-A)
SHAPES: Dict[str, Tuple[int, Dict[str, Dict[str, int]]]] = {
    "tiny": (1_000, TINY),
    "small": (10_000, SMALL),
    "paper": (47_000, PAPER),
    "paper10k": (10_000, PAPER),
}
BATCH = (32, 35)
OTHER = {"lstm": "nn.LSTM", "transformer": "ESPnet"}


def search(kind: str, *positions: str) -> Dict[str, Any]:
    """Return the `uncertainty` of a search at positions of all layers."""
    return {f"{name}@*": {"kind": "search", "candidates": ["point", kind]} for name in positions}


# `uncertainty` of the LMs to measure, by the names of their rows; searches as conf/search_*.yaml
UNCERTAIN: Dict[str, Dict[str, Mapping[str, Any]]] = {
    "lstm": {
        "cell_input@1-2 bayes": {"cell_input@1-2": "bayes"},
        "all_gates@1-2 bayes": {"all_gates@1-2": "bayes"},
        "cell_input@1-2 gp": {"cell_input@1-2": "gp"},
        "hidden_input@1-2 gp": {"hidden_input@1-2": "gp"},
        "hidden_output@1-2 variational": {"hidden_output@1-2": "variational"},
        "search, point or bayes": search(
            "bayes", "input_gate", "forget_gate", "cell_input", "output_gate"
        ),
        "search, point or gp": search("gp", "cell_input", "output_gate", "hidden_input"),
    },
    "transformer": {
        "ffn@1 bayes": {"ffn@1": "bayes"},
        "ffn@* bayes": {"ffn@*": "bayes"},
        "ffn@1 gp": {"ffn@1": "gp"},
        "ffn@* gp": {"ffn@*": "gp"},
        "hidden_output@1 variational": {"hidden_output@1": "variational"},
        "hidden_output@* variational": {"hidden_output@*": "variational"},
        "search, point or bayes": search("bayes", "ffn"),
        "search, point or gp": search("gp", "ffn"),
    },
}
# What is timed: {column: {model: a call}}, and the seconds of each round.
Work = Dict[str, Dict[str, Callable[[], None]]]
Times = Dict[str, Dict[str, List[float]]]


def lm_options(shape: str, family: str) -> Dict[str, Any]:
    """Return the sizes of an LM; an LSTM has 2 layers."""
    conf: Dict[str, Any] = {"dropout_rate": 0.2, "tie_weights": True, **SHAPES[shape][1][family]}
    return {**conf, "nlayers": 2} if family == "lstm" else conf


def make_lm(
    shape: str, family: str, uncertainty: Mapping[str, Any], **model_conf: Any
) -> nn.Module:
    """Return one of our LMs, in ESPnet's model with these options."""
    make = BayesLSTMLM if family == "lstm" else BayesTransformerLM
    vocab = SHAPES[shape][0]
    lm = make(vocab, uncertainty=uncertainty, **lm_options(shape, family))
    return BayesLanguageModel(lm, vocab, num_train_tokens=1_000_000, **model_conf)


def espnet_options(shape: str, family: str) -> Dict[str, Any]:
    """Return the options of ESPnet's LM of the same sizes."""
    conf = lm_options(shape, family)
    if family == "transformer":
        del conf["tie_weights"]  # it has none, which cost no time
        conf |= dict(embed_unit=conf["att_unit"], pos_enc="sinusoidal")
    return conf


def make_espnet(shape: str, family: str) -> nn.Module:
    """Return ESPnet's LM of the same sizes."""
    make = SequentialRNNLM if family == "lstm" else TransformerLM
    return make(SHAPES[shape][0], **espnet_options(shape, family))


def build(shape: str, family: str) -> Dict[str, nn.Module]:
    """Return the models to compare, by name: the two points of comparison first."""
    other = ESPnetLanguageModel(make_espnet(shape, family), SHAPES[shape][0])
    models = {"point": make_lm(shape, family, {}), OTHER[family]: other}
    return models | {n: make_lm(shape, family, p) for n, p in UNCERTAIN[family].items()}


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


def timed(function: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def resident_mib(name: str) -> float:
    """Return `VmRSS` (memory of this process) or `VmHWM` (its peak), in MiB.

    The peak that `getrusage` knows is also that of the process which started this one.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)[1]) / 1024


def in_new_process(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def get_parser(
    description: str, *, shapes: Sequence[str], families: Sequence[str], rounds: int = 5
) -> argparse.ArgumentParser:
    """Return the parser of a benchmark over shapes and families; these are the defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shapes", nargs="*", default=list(shapes), choices=list(SHAPES))
    parser.add_argument("--families", nargs="+", default=list(families), choices=list(families))
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=1)
    return parser


def started(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options, with torch's threads and its seed set."""
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    return args


def make_batch(shape: str) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens and the lengths of a batch."""
    return torch.randint(2, SHAPES[shape][0] - 1, BATCH), torch.full(BATCH[:1], BATCH[1])


def interleave(work: Work, rounds: int) -> Times:
    """Return the seconds of each call, once in each round."""
    times: Times = {column: {name: [] for name in calls} for column, calls in work.items()}
    models = next(iter(work.values()))
    for done in range(-1, rounds):
        for name in models:
            for column, calls in work.items():
                seconds = timed(calls[name])
                if done >= 0:  # the first round warms up
                    times[column][name].append(seconds)
    return times


def measure(shape: str, family: str, rounds: int) -> None:
    """Print a table of medians and of medians of the rounds' ratios."""
    models = build(shape, family)
    text, lengths = make_batch(shape)
    work = {
        column: {n: functools.partial(function, m, text, lengths) for n, m in models.items()}
        for column, function in (("train", train_step), ("eval", evaluate))
    }
    threads = f"{torch.get_num_threads()} thread(s)"
    words, tokens = f"{SHAPES[shape][0]} words", f"{BATCH[0]} x {BATCH[1]} tokens"
    print(f"\n{family}, {shape} shape: {words}, {tokens}, {threads}")
    times = interleave(work, rounds)
    print_table(times, bases=list(models)[:2])


def print_table(times: Times, *, bases: Sequence[str]) -> None:
    """Print a row for each model: milliseconds, and their ratios to those of `bases`."""
    heads = ("ms", *(f"/{base}" for base in bases))
    columns = [f"{column} {head}" for column in times for head in heads]
    print(f"{'':32}", *(f"{column:>14}" for column in columns))
    for name in next(iter(times.values())):
        cells = []
        for column in times.values():
            cells.append(f"{1000 * statistics.median(column[name]):14.1f}")
            for base in bases:
                cells.append(f"{ratio(column[name], column[base]):14.3f}")
        print(f"{name:32}", *cells, flush=True)


def main() -> None:
    """Run the benchmark."""
    args = started(get_parser(__doc__, shapes=["small", "paper"], families=UNCERTAIN))
    for shape in args.shapes:
        for family in args.families:
            measure(shape, family, args.rounds)
            gc.collect()


if __name__ == "__main__":
    main()
