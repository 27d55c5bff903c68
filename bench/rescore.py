"""Speed of rescoring N-best lists, over that of two other ways, and its memory.

The other ways: (a) one hypothesis at a time; (b) ESPnet's `batchify_nll` in batches of 100, which
pads to the longest hypothesis of all. They score a sample of each list's hypotheses, since tokens
per second are compared. "products" is the time of torch.mm for the LM's matrix products over the
distinct prefixes, and for nothing else. Rounds are interleaved and the medians of their ratios are
printed. Weights are random, and so are the lists without `--nbest`: the values change no time.
"""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import logging
import os
import random
import statistics
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel
from steps import (
    SHAPES,
    get_parser,
    in_new_process,
    interleave,
    make_lm,
    ratio,
    resident_mib,
    started,
)
from torch import nn
from twins import nbest_lists

from espnet_bayeslm.kernels.product import has_onednn
from espnet_bayeslm.rescoring import read_nbest, token_log_probs

Ids = Tuple[int, ...]
OURS, HALF, PRODUCTS = "prefix tree", "  in bfloat16", "products"
ONE, BATCHIFY = "(a) one at a time", "(b) batchify_nll"
BATCH = 100
# Of the memory: hypotheses of one utterance, their words, how many at the end differ
MANY, LENGTH, VARIED = 10_000, 60, 14


class Lists(NamedTuple):
    """What is scored.

    Attributes:
        all: The hypotheses.
        some: A sample of them, for the slow ways.
        prefixes: How many distinct ones `all` has.
    """

    all: List[Ids]
    some: List[Ids]
    prefixes: int


def num_tokens(hypotheses: List[Ids]) -> int:
    """Return how many tokens are scored, `</s>` too."""
    return sum(len(ids) + 1 for ids in hypotheses)


def read_lists(path: Optional[Path], num_utts: int, *, sample: int, vocab: int) -> Lists:
    """Return the hypotheses of some of the lists; the slow ways get one in `sample`."""
    if path is None:
        encoded = nbest_lists(vocab)
    else:
        lists = list(read_nbest(path, "kaldi"))
        numbers: Dict[str, int] = {}
        encoded = [
            [
                [2 + numbers.setdefault(w, len(numbers)) % (vocab - 4) for w in hyp.words]
                for hyp in item.hypotheses
            ]
            for item in lists[:: max(1, len(lists) // num_utts)][:num_utts]
        ]
    every = [tuple(ids) for hyps in encoded for ids in hyps]
    some = [tuple(ids) for hyps in encoded for ids in hyps[::sample]]
    prefixes = {ids[:n] for ids in every for n in range(len(ids) + 1)}
    return Lists(every, some, len(prefixes))


def one_at_a_time(model: nn.Module, hypotheses: List[Ids]) -> None:
    """Score each hypothesis alone."""
    with torch.no_grad():
        for ids in hypotheses:
            model.nll(torch.tensor([ids], dtype=torch.long), torch.tensor([len(ids)]))


def batchify(model: nn.Module, hypotheses: List[Ids]) -> None:
    """Score all hypotheses by `batchify_nll`."""
    lengths = torch.tensor([len(ids) for ids in hypotheses])
    text = torch.zeros(len(hypotheses), int(lengths.max()), dtype=torch.long)
    for row, ids in zip(text, hypotheses, strict=True):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.long)
    with torch.no_grad():
        model.batchify_nll(text, lengths, BATCH)


def products(lm: nn.Module, rows: int) -> Callable[[], None]:
    """Return a call of the matrix products that so many contexts need."""
    inputs = ("encoder.weight", "embed.weight")  # looked up; a tied decoder has the same matrix
    weights = [p for name, p in lm.named_parameters() if p.dim() == 2 and name not in inputs]
    if all(lm.decoder.weight is not weight for weight in weights):
        weights.append(lm.decoder.weight)
    height = min(rows, 1024)
    pairs = [
        (torch.randn(height, w.size(1)), w.detach().t(), torch.empty(height, len(w)))
        for w in weights
    ]

    def call() -> None:
        for start in range(0, rows, height):
            n = min(height, rows - start)
            for x, weight, out in pairs:
                torch.mm(x[:n], weight, out=out[:n])

    return call


def measure_speed(shape: str, family: str, lists: Lists, rounds: int) -> None:
    """Print a table of rates and their ratios."""
    model = make_lm(shape, family, {}).eval()
    espnets = ESPnetLanguageModel(model.lm, SHAPES[shape][0]).eval()
    half = copy.deepcopy(model.lm).to(torch.bfloat16)
    calls: Dict[str, Callable[[], Any]] = {
        OURS: functools.partial(token_log_probs, model.lm, lists.all),
        HALF: functools.partial(token_log_probs, half, lists.all),
        PRODUCTS: products(model.lm, lists.prefixes),
        ONE: functools.partial(one_at_a_time, espnets, lists.some),
        BATCHIFY: functools.partial(batchify, espnets, lists.some),
    }
    if not has_onednn(torch.bfloat16):
        del calls[HALF]  # it would be emulated
    times = interleave({"score": calls}, rounds)["score"]
    sizes = {n: lists.some if n in (ONE, BATCHIFY) else lists.all for n in calls}
    rates = {n: [num_tokens(sizes[n]) / s for s in times[n]] for n in calls}
    hypotheses, tokens = len(lists.all), num_tokens(lists.all)
    print(f"\n{family}, {shape} shape: {SHAPES[shape][0]} words, {hypotheses} hypotheses,", end=" ")
    print(f"{tokens} tokens, {100 * lists.prefixes / tokens:.1f} % distinct prefixes,", end=" ")
    print(f"{torch.get_num_threads()} thread(s)")
    print_rates(rates)


def print_rates(rates: Dict[str, List[float]]) -> None:
    """Print a row for each way: tokens per second, and the ratios to the others."""
    bases = [ONE, BATCHIFY, PRODUCTS]
    print(f"{'':20} {'tokens/s':>10}", *(f"{'/ ' + base:>22}" for base in bases))
    for name, values in rates.items():
        cells = [f"{statistics.median(values):10.0f}"]
        cells += [f"{ratio(values, rates[base]):22.2f}" for base in bases]
        print(f"{name:20}", *cells, flush=True)


def many_hypotheses(vocab: int) -> List[Ids]:
    """Return the hypotheses of one long utterance, whose last words differ."""
    generator = random.Random(0)
    words = [generator.sample(range(2, vocab - 1), 2) for _ in range(LENGTH)]
    start = tuple(pair[0] for pair in words[:-VARIED])
    ends = itertools.product(*words[-VARIED:])
    return [(*start, *end) for end in itertools.islice(ends, MANY)]


def peak_mib(shape: str, family: str) -> Tuple[float, float]:
    """Return the memory of an LM and how much more scoring takes at most, in a new process."""
    torch.set_num_threads(1)
    before = resident_mib("VmRSS")
    lm = make_lm(shape, family, {}).eval().lm
    model = resident_mib("VmRSS")
    token_log_probs(lm, many_hypotheses(SHAPES[shape][0]))
    return model - before, resident_mib("VmHWM") - model


def measure_memory(shape: str, family: str) -> None:
    """Print the peak memory of scoring many hypotheses of one utterance."""
    model, more = in_new_process(peak_mib, shape, family)
    what = f"{MANY} hypotheses of {LENGTH} words for one utterance"
    print(f"memory: {what}: {more:.0f} MiB above the model's {model:.0f} MiB", flush=True)


def main() -> None:
    """Run the benchmark."""
    families = ["lstm", "transformer"]
    parser = get_parser(__doc__, shapes=["small", "paper"], families=families)
    parser.add_argument("--nbest", type=Path, help="N-best lists, Kaldi's format; none: random")
    parser.add_argument("--num_utts", type=int, default=60, help="How many lists are scored")
    parser.add_argument("--sample", type=int, default=10, help="Of the slow ways: one in so many")
    args = started(parser)
    os.environ.setdefault("TQDM_DISABLE", "1")
    logging.disable(logging.WARNING)
    for shape, family in itertools.product(args.shapes, args.families):
        lists = read_lists(args.nbest, args.num_utts, sample=args.sample, vocab=SHAPES[shape][0])
        measure_speed(shape, family, lists, args.rounds)
        gc.collect()
        if shape == "paper":
            measure_memory(shape, family)


if __name__ == "__main__":
    main()
