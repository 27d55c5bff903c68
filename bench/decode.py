"""Time of one step of a beam search, over that of ESPnet's own LMs.

Rounds are interleaved; medians, and medians of the rounds' ratios. A beam shares prefixes as one
does that keeps its hypotheses at random. `adapted` is ESPnet's LM in `bayes_espnet`, with the same
weights. The share of the V-way softmax (the output projection and log_softmax) is measured alone.
Batches: one search over several utterances, in time per utterance and step.
"""

from __future__ import annotations

import functools
import random
import statistics
from typing import Any, Callable, Dict, List, Tuple

import torch
from steps import (
    SHAPES,
    espnet_options,
    get_parser,
    interleave,
    make_espnet,
    make_lm,
    ratio,
    started,
)
from torch import nn

from espnet_bayeslm.kernels.product import keeping_packed, linear, searches
from espnet_bayeslm.lm import BayesESPnetLM

BEAM = 20
STEPS = 5
# Prefix lengths of each family
PREFIXES = {"lstm": (30,), "transformer": (2, 30, 60, 200)}
# Batches; at the paper's sizes ESPnet's LM would need minutes for each step
UTTERANCES = (1, 8, 32)
BATCH_SHAPES = ("tiny", "small")
BATCH_BEAM, BATCH_PREFIX = 10, 150
UNCERTAIN = {"lstm": {"cell_input@1-2": "bayes"}, "transformer": {"ffn@1-2": "bayes"}}
SEARCH = next(searches)  # whose weights stay
Beam = Tuple[torch.Tensor, List[Any]]


def make_adapted(family: str, shape: str, espnet: nn.Module) -> nn.Module:
    """Return ESPnet's LM as the backbone of `bayes_espnet`."""
    conf = espnet_options(shape, family)
    backbone = {"lstm": "seq_rnn", "transformer": "transformer"}[family]
    lm = BayesESPnetLM(SHAPES[shape][0], backbone=backbone, backbone_conf=conf).eval()
    lm.load_state_dict(espnet.state_dict())
    return lm


@torch.no_grad()
def search(
    lm: nn.Module, vocab: int, length: int, *, beam: int = BEAM, utterances: int = 1
) -> Beam:
    """Return prefixes of a length and the states before their last token.

    The hypotheses of each step are chosen at random from those before of the same utterance, as a
    search prunes. As in a batch of ESPnet, all places of an utterance begin, and the first goes on.
    """
    rng, size, width = random.Random(length), utterances * beam, 1
    prefixes, states = torch.full((size, 1), vocab - 1), [None] * size
    for _ in range(length - 1):
        _, new = lm.batch_score(prefixes, states, None)
        kept = [beam * (k // beam) + rng.randrange(width) for k in range(size)]
        tokens = torch.randint(1, vocab - 1, (size, 1))
        prefixes, states = torch.cat([prefixes[kept], tokens], dim=1), [new[i] for i in kept]
        width = beam
    return prefixes, states


def steps(lm: nn.Module, beam: Beam, count: int = STEPS) -> None:
    """Do some steps from the same beam."""
    for _ in range(count):
        lm.batch_score(*beam, None)


def softmax(lm: nn.Module, hidden: torch.Tensor) -> None:
    """Do the output projection and log_softmax of some steps."""
    with keeping_packed(SEARCH):
        for _ in range(STEPS):
            linear(hidden, lm.decoder.weight, lm.decoder.bias).log_softmax(-1)


@torch.no_grad()
def work_of(family: str, shape: str) -> Dict[str, Callable[[], None]]:
    """Return what is timed, by name."""
    vocab, espnet = SHAPES[shape][0], make_espnet(shape, family).eval()
    ours = make_lm(shape, family, UNCERTAIN[family]).eval().lm
    hidden = torch.randn(BEAM, ours.decoder.in_features)
    work = {"softmax": functools.partial(softmax, ours, hidden)}
    adapted = make_adapted(family, shape, espnet)
    for length in PREFIXES[family]:
        beam = search(ours, vocab, length)
        work[f"ours {length}"] = functools.partial(steps, ours, beam)
        beam = search(adapted, vocab, length)
        work[f"adapted {length}"] = functools.partial(steps, adapted, beam)
        # ESPnet computes a whole prefix where there is no state yet
        _, states = espnet.batch_score(beam[0][:, :-1], [None] * BEAM, None)
        if family == "lstm":
            states = search(espnet, vocab, length)[1]
        work[f"ESPnet {length}"] = functools.partial(steps, espnet, (beam[0], states))
    return work


@torch.no_grad()
def measure(family: str, shape: str, rounds: int) -> None:
    """Print a table of a family and a shape."""
    times = interleave({"steps": work_of(family, shape)}, rounds)["steps"]
    threads = torch.get_num_threads()
    print(f"\n{family}, {shape} shape: {SHAPES[shape][0]} words, beam {BEAM}, {threads} thread(s)")

    def over(a: str, b: str) -> float:
        return ratio(times[a], times[b])

    for name, seconds in times.items():
        print(f"{name:16} {1000 * statistics.median(seconds) / STEPS:8.2f} ms a step")
    for length in PREFIXES[family]:
        espnet = over(f"ESPnet {length}", f"ours {length}")
        share = over("softmax", f"ours {length}")
        adapted = over(f"ESPnet {length}", f"adapted {length}")
        print(
            f"prefix {length:4}: {espnet:5.2f} times ESPnet's speed;"
            f" softmax {100 * share:.0f} % of our step; bayes_espnet {adapted:.2f} times"
        )
    if family == "transformer":
        print(f"prefix 200: {over('ours 200', 'ours 2'):.3f} times the step at 2")


@torch.no_grad()
def batch_work(family: str, shape: str) -> Dict[str, Callable[[], None]]:
    """Return the work of batches, by name; the utterances of each make the same number of steps."""
    vocab, espnet, work = SHAPES[shape][0], make_espnet(shape, family).eval(), {}
    ours = make_lm(shape, family, UNCERTAIN[family]).eval().lm
    for utterances in UTTERANCES:
        count = UTTERANCES[-1] // utterances
        ys, states = search(ours, vocab, BATCH_PREFIX, beam=BATCH_BEAM, utterances=utterances)
        work[f"ours {utterances}"] = functools.partial(steps, ours, (ys, states), count)
        _, states = espnet.batch_score(ys[:, :-1], [None] * len(ys), None)
        if family == "lstm":
            states = search(espnet, vocab, 2, beam=BATCH_BEAM, utterances=utterances)[1]
        work[f"ESPnet {utterances}"] = functools.partial(steps, espnet, (ys, states), count)
    return work


def measure_batches(family: str, shape: str, rounds: int) -> None:
    """Print a table of batches of a family and a shape."""
    times = interleave({"steps": batch_work(family, shape)}, rounds)["steps"]
    beam = f"{UTTERANCES[-1]} utterances and fewer, beam {BATCH_BEAM}, prefix {BATCH_PREFIX}"
    print(f"\n{family}, {shape} shape: {beam}; per utterance and step")
    for utterances in UTTERANCES:
        mine, other = times[f"ours {utterances}"], times[f"ESPnet {utterances}"]
        each = (1000 * statistics.median(seconds) / UTTERANCES[-1] for seconds in (mine, other))
        print(
            f"batch of {utterances:2}: {next(each):6.2f} ms, ESPnet {next(each):6.2f} ms;"
            f" {ratio(other, mine):5.2f} times ESPnet's speed;"
            f" {ratio(mine, times[f'ours {UTTERANCES[0]}']):.2f} times our time alone"
        )


def main() -> None:
    """Run the benchmark."""
    args = started(get_parser(__doc__, shapes=["small", "paper"], families=UNCERTAIN, rounds=9))
    for shape in args.shapes:
        for family in args.families:
            measure(family, shape, args.rounds)
            if shape in BATCH_SHAPES:
                measure_batches(family, shape, args.rounds)


if __name__ == "__main__":
    main()
