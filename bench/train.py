"""Suite "training": our LMs over ESPnet's own, in ESPnet's trainer and in its batches.

Tokens per second of whole steps (forward, backward, clipping, optimizer) in interleaved rounds:
medians, and medians of the rounds' ratios, since on a shared machine only ratios within one run
mean anything. Then the shares of a step, the peak memory of a process, and two processes on two
cores over one on one core. The text is `--text`, a sentence a line, or one with word frequencies
by Zipf's law and sentences as short as those of meetings. ESPnet's AMI recipe trains its LM of
words with 64 sentences a batch and SGD.

bfloat16 on CUDA is compared with ESPnet's in bfloat16, which ESPnet has not on a CPU; a CPU
without bfloat16 leaves it out.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import logging
import os
import socket
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Callable, Dict, List, Sequence

import torch
from compared import (
    BAYES,
    Batch,
    Variant,
    count_tokens,
    espnet_args,
    read_batches,
    variants,
    write_corpus,
)
from espnet2.train.distributed_utils import DistributedOption
from one_training import Training
from steps import SHAPES, in_new_process, in_new_processes, ratio, resident_mib, timed

MEMORY_BATCH = (32, 100)


def measure_speed(args: argparse.Namespace, family: str, vocab: int) -> None:
    """Print the speed of each variant of a family, and the shares of a step."""
    args.vocab = vocab
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder), args, vocab)
        single = DistributedOption()
        chosen = variants(family, args.device)
        options = [espnet_args(Path(folder), args, family, v) for v in chosen]
        trainings = [
            Training(o, v, distributed=single) for o, v in zip(options, chosen, strict=True)
        ]
        batches = read_batches(options[0], args.steps, single)
    tokens = count_tokens(batches)
    print(f"\n{family}, {args.shape} shape, {vocab} words, {len(batches)} batches of", end=" ")
    print(f"{args.batch_size} sentences, {tokens / len(batches):.0f} tokens on average", flush=True)
    seconds: List[List[float]] = [[] for _ in trainings]
    for done in range(-1, args.rounds):
        for training, times in zip(trainings, seconds, strict=True):
            taken = timed(functools.partial(training.train, batches))
            if done >= 0:  # the first round warms up
                times.append(taken)
    columns = ("tokens/s", "/ESPnet", "/point", "vocab", "sampling", "optim")
    print(f"{'':34}", *(f"{column:>9}" for column in columns))
    for training, times in zip(trainings, seconds, strict=True):
        variant, taken = training.variant, statistics.median(times)
        low = [i for i, v in enumerate(chosen) if v.uncertainty is None and v.low == variant.low]
        parts = (training.vocabulary_seconds, training.sampling_seconds, training.optimizer_seconds)
        print(
            f"{variant.name:34} {tokens / taken:9.0f}",
            f"{ratio(seconds[low[0] if low else 0], times):9.2f} {ratio(seconds[1], times):9.2f}",
            *(f"{100 * part(batches) / taken:8.1f}%" for part in parts),
            flush=True,
        )


def prepare(threads: int) -> None:
    """Set this process's threads, and let ESPnet and torch say nothing."""
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)


def memory_job(args: argparse.Namespace, family: str, variant: Variant) -> float:
    """Return the peak memory of a training in this process, in MB.

    On a CPU that of the process less what it had after its imports: parameters, gradients and
    the optimizer's state belong to it.
    """
    prepare(args.threads)
    with contextlib.suppress(OSError):  # importing took more than it left
        Path("/proc/self/clear_refs").write_text("5")
    baseline = resident_mib("VmHWM")
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder), args, args.vocab)
        options = espnet_args(Path(folder), args, family, variant)
        training = Training(options, variant, distributed=DistributedOption())
    size, length = MEMORY_BATCH
    text = torch.randint(2, args.vocab - 1, (size, length - 1))
    batch = {"text": text, "text_lengths": torch.full((size,), length - 1)}
    training.train([([str(n) for n in range(size)], batch)] * 2)
    if args.device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resident_mib("VmHWM") - baseline


def measure_memory(args: argparse.Namespace, family: str, vocab: int) -> None:
    """Print the peak memory of each variant, each in a process of its own."""
    args.vocab = vocab
    size, length = MEMORY_BATCH
    print(f"\npeak memory, {family}, {args.shape} shape, {vocab} words, {size} x {length} tokens")
    espnets = 0.0
    for variant in variants(family, args.device):
        mb = in_new_process(memory_job, args, family, variant)
        espnets = espnets or max(mb, 1.0)
        print(f"{variant.name:34} {mb:9.0f} MB {mb / espnets:9.2f}", flush=True)


def seconds_of_group(training: Training, batches: Sequence[Batch]) -> float:
    """Return the seconds that all processes of a group need for their parts of the batches."""

    def work() -> None:
        training.train(batches)
        torch.distributed.barrier()

    work()  # warms up
    return timed(work)


def speed_job(
    args: argparse.Namespace, family: str, variant: Variant, rank: int, world: int, port: int
) -> float:
    """Return the tokens per second of this process and the others of its group.

    Each process has a core of its own, and a part of each batch.
    """
    prepare(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    distributed = DistributedOption(distributed=world > 1, dist_backend="gloo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=world
    )
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder), args, args.vocab)
        options = espnet_args(Path(folder), args, family, variant)
        training = Training(options, variant, distributed=distributed)
        batches = read_batches(options, args.steps, distributed)
    tokens = torch.tensor(count_tokens(batches))
    torch.distributed.all_reduce(tokens)
    seconds = seconds_of_group(training, batches)
    # what uses the group must be gone before it is
    del training
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return int(tokens) / seconds


def measure_processes(args: argparse.Namespace, family: str, vocab: int) -> None:
    """Print the speed of two processes on two cores over that of one on one core."""
    if len(os.sched_getaffinity(0)) < 2:
        print("\ntwo processes: needs two cores")
        return
    args.vocab = vocab
    print(f"\ntwo gloo processes over one, {family}, {args.shape} shape, {vocab} words,", end=" ")
    print(f"{args.batch_size} sentences a step", flush=True)
    for variant in variants(family, args.device)[1:3]:
        speeds: Dict[int, List[float]] = {1: [], 2: []}
        for _ in range(args.rounds):
            for world, found in speeds.items():
                group = world, free_port()
                jobs = [(args, family, variant, rank, *group) for rank in range(world)]
                found.append(min(in_new_processes(speed_job, *jobs)))
        print(
            f"{variant.name:34} {statistics.median(speeds[1]):9.0f}"
            f" {statistics.median(speeds[2]):9.0f} tokens/s,"
            f" {ratio(speeds[2], speeds[1]):.2f} times",
            flush=True,
        )


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port: int = s.getsockname()[1]
        return port


PARTS: Dict[str, Callable[[argparse.Namespace, str, int], None]] = {
    "speed": measure_speed,
    "memory": measure_memory,
    "processes": measure_processes,
}


def get_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", help="real text, a sentence a line")
    parser.add_argument("--sentences", type=int, default=8192, help="of the text, at random")
    parser.add_argument("--shape", default="paper", choices=list(SHAPES))
    parser.add_argument("--families", nargs="+", default=list(BAYES), choices=list(BAYES))
    parser.add_argument("--vocabs", nargs="+", type=int, default=[11_800, 47_000])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--batch_size", type=int, default=64, help="sentences, as ESPnet's AMI")
    parser.add_argument("--steps", type=int, default=8, help="batches in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ddp_comm_hook", help="of two processes, as ESPnet's")
    parser.add_argument("--optim", default="sgd", help="as ESPnet's")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    return parser


def main() -> None:
    """Run the benchmark."""
    args = get_parser().parse_args()
    prepare(args.threads)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # of the processes that are started
    print(f"torch {torch.__version__}, {args.device}, {args.threads} thread(s)")
    for part in args.parts:
        for family in args.families:
            for vocab in args.vocabs:
                PARTS[part](args, family, vocab)
                gc.collect()


if __name__ == "__main__":
    main()
