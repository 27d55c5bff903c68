"""Cost of an architecture search: training steps of super-networks, and the ranking.

Time is that of a training step with the optimizers of a training, over the point-estimate LM's, in
interleaved rounds as in `steps.py`; memory is what a fresh process needs for the model and three
steps; the ranking is that of the 100 best of 2^48 architectures.
"""

from __future__ import annotations

import functools
import gc
import itertools
import random
import statistics
from typing import Any, Callable, Dict

import torch
from steps import (
    get_parser,
    in_new_process,
    interleave,
    make_batch,
    make_lm,
    print_table,
    print_title,
    resident_mib,
    started,
    timed,
)

from espnet_bayeslm.kinds.search.ranking import rank
from espnet_bayeslm.training.task import BayesLMTask

GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")


def space(kind: str, *positions: str) -> Dict[str, Any]:
    """Return the `uncertainty` of a search at positions of all layers."""
    return {f"{name}@*": {"kind": "search", "candidates": ["point", kind]} for name in positions}


# The spaces of conf/search_*.yaml, for any number of layers.
SPACES = {
    "lstm": {
        "search, point or bayes": space("bayes", *GATES),
        "search, point or gp": space("gp", "cell_input", "output_gate", "hidden_input"),
    },
    "transformer": {
        "search, point or bayes": space("bayes", "ffn"),
        "search, point or gp": space("gp", "ffn"),
    },
}
STEPS = 3
RANKED, LOCATIONS = 100, 48


def trainer(shape: str, family: str, uncertainty: Dict[str, Any]) -> Callable[[], None]:
    """Return a training step of a new model, as a call."""
    model = make_lm(shape, family, uncertainty).train()
    # a rate at which nothing moves: the work is the same
    options = ["--optim", "sgd", "--optim_conf", "lr=1.0e-12", "--output_dir", "none"]
    optimizers = BayesLMTask.build_optimizers(BayesLMTask.get_parser().parse_args(options), model)
    text, lengths = make_batch(shape)

    def step() -> None:
        loss, _, _ = model(text, lengths)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def measure_time(shape: str, family: str, rounds: int) -> None:
    """Print a table of the times of a training step."""
    steps = {"point": trainer(shape, family, {})}
    steps |= {name: trainer(shape, family, space) for name, space in SPACES[family].items()}
    times = interleave({"train": steps}, rounds)
    print_title(shape, family)
    print_table(times, bases=["point"])


def peak_mib(threads: int, shape: str, family: str, uncertainty: Dict[str, Any]) -> float:
    """Return how much memory a model and its training steps take, in a new process."""
    torch.set_num_threads(threads)
    before = resident_mib("VmRSS")
    step = trainer(shape, family, uncertainty)
    for _ in range(STEPS):
        step()
    return resident_mib("VmHWM") - before


def measure_memory(shape: str, family: str) -> None:
    """Print a table of peak memory, each model in a new process."""
    mib = {}
    for name, uncertainty in {"point": {}, **SPACES[family]}.items():
        threads = torch.get_num_threads()
        mib[name] = in_new_process(peak_mib, threads, shape, family, uncertainty)
    print(f"{'':32} {'peak MiB':>14} {'peak /point':>14}")
    for name, value in mib.items():
        print(f"{name:32} {value:14.0f} {value / mib['point']:14.3f}", flush=True)


def measure_ranking(rounds: int) -> None:
    """Print how long the best architectures of a large space take."""
    generator = random.Random(0)
    weights = {
        f"ffn@{layer}": {"point": generator.gauss(0, 1), "bayes": generator.gauss(0, 1)}
        for layer in range(1, LOCATIONS + 1)
    }
    best = functools.partial(rank, [weights], RANKED)
    assert len(best()) == RANKED
    milliseconds = 1000 * statistics.median(timed(best) for _ in range(rounds))
    print(f"\nranking: the {RANKED} best of 2^{LOCATIONS}: {milliseconds:.2f} ms,", end=" ")
    print(f"median of {rounds}")


def main() -> None:
    """Run the benchmark."""
    args = started(get_parser(__doc__, shapes=["small", "paper", "paper10k"], families=SPACES))
    for shape, family in itertools.product(args.shapes, args.families):
        measure_time(shape, family, args.rounds)
        gc.collect()
        measure_memory(shape, family)
    measure_ranking(max(100, args.rounds))


if __name__ == "__main__":
    main()
