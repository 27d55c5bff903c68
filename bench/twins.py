"""What each kernel gains of a whole training step, rescoring or beam search.

The ratio of the time without one kernel to that with all. Rounds are
interleaved, and medians of the rounds' ratios are printed: of each piece of work for all kernels
that it uses, and in the end a line for each kernel with its greatest gain at each size. A kernel
that gains less than 5 % everywhere is not worth its lines.
"""

from __future__ import annotations

import argparse
import collections
import functools
import random
import statistics
from typing import Any, Callable, Dict, List, Tuple
from unittest.mock import patch

import torch
from decode import search
from steps import SHAPES, make_batch, make_lm, timed, train_step

from espnet_bayeslm import kernels
from espnet_bayeslm.rescoring import score_hypotheses

TRAINING: List[Tuple[str, Dict[str, Any]]] = [
    ("lstm", {"all_gates@1-2": "bayes"}),
    ("lstm", {"cell_input@1-2": "gp"}),
    ("lstm", {"hidden_output@1-2": "variational"}),
    ("transformer", {"ffn@*": "bayes"}),
    ("transformer", {"embedding": "bayes"}),
    ("transformer", {"ffn@*": "gp"}),
    ("transformer", {"hidden_output@*": "variational"}),
]
SCORING: List[Tuple[str, Dict[str, Any]]] = [
    ("lstm", {"all_gates@1-2": "bayes"}),
    ("lstm", {"cell_input@1-2": "gp"}),
    ("transformer", {"ffn@*": "bayes"}),
    ("transformer", {"ffn@*": "gp"}),
]
LISTS, HYPOTHESES, LENGTH, STEPS = 10, 20, 15, 20
Work = Callable[..., Any]
Gains = Dict[str, Dict[str, Tuple[float, str]]]


def nbest_lists(vocab: int) -> List[List[List[int]]]:
    """Lists of hypotheses that differ in one to three words."""
    rng = random.Random(0)
    lists = []
    for _ in range(LISTS):
        first = [rng.randrange(1, vocab - 1) for _ in range(LENGTH)]
        hypotheses = [list(first) for _ in range(HYPOTHESES)]
        for words in hypotheses:
            for _ in range(rng.randint(1, 3)):
                words[rng.randrange(LENGTH)] = rng.randrange(1, vocab - 1)
        lists.append(hypotheses)
    return lists


def works(shape: str, names: List[str]) -> List[Tuple[str, Callable[[], Work]]]:
    """What is timed, by name, each made when it is its turn."""
    vocab = SHAPES[shape][0]

    def train(family: str, uncertainty: Dict[str, Any]) -> Work:
        return functools.partial(
            train_step, make_lm(shape, family, uncertainty), *make_batch(shape)
        )

    def rescore(family: str, uncertainty: Dict[str, Any]) -> Work:
        lm = make_lm(shape, family, uncertainty).eval().lm
        return functools.partial(score_hypotheses, lm, nbest_lists(vocab))

    def decode(family: str, uncertainty: Dict[str, Any]) -> Work:
        lm = make_lm(shape, family, uncertainty).eval().lm
        return functools.partial(search, lm, vocab, STEPS + 1)

    cases = {
        "training": (train, TRAINING),
        "rescoring": (rescore, SCORING),
        "decoding": (decode, SCORING),
    }
    return [
        (
            f"{name}, {family} {' '.join(f'{k} {v}' for k, v in place.items())}",
            functools.partial(work, family, place),
        )
        for name, (work, places) in cases.items()
        if name.partition(" (")[0] in names
        for family, place in places
    ]


def used_by(work: Work) -> List[str]:
    """The kernels that a piece of work uses."""
    found = set()

    def noted(name: str, kernel: Work) -> Work:
        return lambda *args, **kwargs: (found.add(name), kernel(*args, **kwargs))[1]

    twins = {
        name: kernels.Twins(plain, noted(name, kernel))
        for name, (plain, kernel) in kernels.KERNELS.items()
    }
    with patch.dict(kernels.KERNELS, twins):
        work()
    return sorted(found)


def without(name: str, work: Work) -> None:
    """Do it without a kernel."""
    plain = kernels.KERNELS[name].plain
    with patch.dict(kernels.KERNELS, {name: kernels.Twins(plain, plain)}):
        work()


def measure(shape: str, names: List[str], rounds: int, gains: Gains) -> None:
    """Print a line for each piece of work, and note each kernel's greatest gain."""
    for title, prepare in works(shape, names):
        work = prepare()
        used = used_by(work)
        ratios: Dict[str, List[float]] = {name: [] for name in used}
        seconds = []
        for _ in range(rounds):
            seconds.append(timed(work))
            for name in used:
                plain = timed(functools.partial(without, name, work))
                ratios[name].append(plain / seconds[-1])
        cells = []
        for name in used:
            gain = 100 * (statistics.median(ratios[name]) - 1)
            cells.append(f"{name} {gain:+.0f} %")
            gains[name][shape] = max(gains[name].get(shape, (-100.0, "")), (gain, title))
        print(f"{shape}, {title}: {1000 * statistics.median(seconds):.0f} ms;", *cells, flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["small", "paper10k"], choices=list(SHAPES))
    names = ["training", "rescoring", "decoding"]
    parser.add_argument("--works", nargs="+", default=names, choices=names)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gains: Gains = collections.defaultdict(dict)
    for shape in args.shapes:
        measure(shape, args.works, args.rounds, gains)
    print("\n| kernel |", *(f"{shape} |" for shape in args.shapes))
    print("| --- |", *("--- |" for _ in args.shapes))
    for name in sorted(gains):
        cells = (gains[name].get(shape, (0.0, "not used")) for shape in args.shapes)
        print(f"| `{name}` |", *(f"{gain:+.0f} % ({title}) |" for gain, title in cells))


if __name__ == "__main__":
    main()
