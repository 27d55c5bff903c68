"""Suite "training": our LMs over ESPnet's own, in ESPnet's trainer and in its batches.

Tokens per second of whole steps (forward, backward, clipping, optimizer) in interleaved rounds:
medians, and medians of the rounds' ratios, since on a shared machine only ratios within one run
mean anything. Then the shares of a step, the peak memory of a process, and two processes on two
cores over one on one core. The text is `--text`, a sentence a line, or one with word frequencies
by Zipf's law and sentences as short as those of meetings.

Wanted: at least ESPnet's speed, with a sampled softmax and 47,000 words twice that; half its memory
with 47,000 words; 1.6 times the speed with two processes; on CUDA a GP LSTM within 1.3 times the
time of torch's own (which ESPnet's seq_rnn is), 0.77 of its speed. bfloat16 on CUDA is compared
with ESPnet's in bfloat16, which it has not on a CPU.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import gc
import inspect
import json
import logging
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import Reporter
from steps import PAPER, SMALL, timed
from torch import nn

from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.training.trainer import BayesLMTrainer

TINY = dict(lstm=dict(unit=32), transformer=dict(att_unit=32, head=2, unit=64, layer=2))
SHAPES = {"tiny": TINY, "small": SMALL, "paper": PAPER}
BAYES = {"lstm": {"cell_input@1-2": "bayes"}, "transformer": {"ffn@1-2": "bayes"}}
GP = {"lstm": {"cell_input@1-2": "gp"}, "transformer": {"ffn@1-2": "gp"}}
ESPNET = {"lstm": "seq_rnn", "transformer": "transformer"}
LOW = "bfloat16"
NOISE_TOKENS = 1024
# Mean words of AMI's sentences, and the longest that a generated text has.
MEAN_LENGTH, LONGEST = 9, 100
MEMORY_BATCH = (32, 100)
# Parts of names of torch's operators that multiply matrices.
PRODUCTS = ("mm", "linear", "mkldnn_rnn", "cudnn_rnn", "attention", "gemm")
Batch = Tuple[List[str], Dict[str, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Variant:
    """An LM to train.

    Attributes:
        name: What its row is called.
        lm: As ESPnet's `--lm`.
        uncertainty: As in `lm_conf`; None: ESPnet's own LM.
        low: Whether products are in bfloat16.
        sampled: Whether the softmax is sampled.
    """

    name: str
    lm: str
    uncertainty: Optional[Mapping[str, Any]] = None
    low: bool = False
    sampled: bool = False


def variants(family: str, device: str) -> List[Variant]:
    """Return the LMs to compare, the point of comparison first."""
    ours, point = f"bayes_{family}", Variant("point", f"bayes_{family}", {})
    espnet = Variant(f"ESPnet {ESPNET[family]}", ESPNET[family])
    bayes = Variant(next(iter(BAYES[family])) + " bayes", ours, BAYES[family])
    found = [espnet, point, bayes]
    if "sampled_softmax" in inspect.signature(BayesLanguageModel.__init__).parameters:
        found.append(dataclasses.replace(bayes, name="  sampled softmax", sampled=True))
    if device == "cuda":  # ESPnet has no bfloat16 on a CPU
        gp = next(iter(GP[family])) + " gp"
        found += [Variant(gp, ours, GP[family])]
    lowered = [v for v in found if device == "cuda" or v.uncertainty is not None]
    return found + [dataclasses.replace(v, name=f"{v.name} {LOW}", low=True) for v in lowered]


def lm_conf(shape: str, family: str, variant: Variant) -> Dict[str, Any]:
    """Return the options of a variant's LM; an LSTM has 2 layers."""
    conf: Dict[str, Any] = {"dropout_rate": 0.2, "tie_weights": True, **SHAPES[shape][family]}
    conf |= {"nlayers": 2} if family == "lstm" else {}
    if variant.uncertainty is not None:
        return conf | {"uncertainty": dict(variant.uncertainty)}
    if family == "transformer":
        del conf["tie_weights"]  # it has none
        conf |= {"embed_unit": conf["att_unit"], "pos_enc": "sinusoidal"}
    return conf


def forward_flops(shape: str, family: str, outputs: int, length: float) -> float:
    """Return the floating-point operations of a token's products in the forward pass.

    Args:
        shape: The sizes.
        family: `lstm` or `transformer`.
        outputs: Words whose logits are computed.
        length: Tokens of its sentence, for attention.
    """
    sizes = SHAPES[shape][family]
    if family == "lstm":
        unit = sizes["unit"]
        return 2.0 * (2 * 8 * unit**2 + unit * outputs)
    dim, layers = sizes["att_unit"], sizes["layer"]
    per_layer = 4 * dim**2 + 2 * dim * sizes["unit"] + dim * length
    return 2.0 * (layers * per_layer + dim * outputs)


def generated_text(vocab: int, sentences: int) -> List[List[str]]:
    """Return sentences of words whose frequencies follow Zipf's law."""
    rng = random.Random(0)
    weights = [1 / rank for rank in range(1, vocab - 2)]
    cumulative = torch.tensor(weights).double().cumsum(0).tolist()
    words = [f"w{rank}" for rank in range(len(weights))]
    lengths = [
        min(LONGEST, 1 + int(rng.expovariate(1 / (MEAN_LENGTH - 0.5)))) for _ in range(sentences)
    ]
    return [rng.choices(words, cum_weights=cumulative, k=length) for length in lengths]


def write_corpus(folder: Path, args: argparse.Namespace, vocab: int) -> None:
    """Write what ESPnet's training reads: train.txt, train.shape and tokens.txt."""
    if args.text is None:
        text = generated_text(vocab, args.sentences)
    else:
        lines = Path(args.text).read_text(encoding="utf-8").splitlines()
        text = [words for line in lines if (words := line.split())]
        text = random.Random(0).sample(text, min(args.sentences, len(text)))
    counts = collections.Counter(word for words in text for word in words)
    tokens = [word for word, _ in counts.most_common(vocab - 3)]
    tokens += [f"<unused{n}>" for n in range(vocab - 3 - len(tokens))]
    tokens = ["<blank>", "<unk>", *tokens, "<sos/eos>"]
    (folder / "tokens.txt").write_text("".join(f"{token}\n" for token in tokens))
    with open(folder / "train.txt", "w") as f, open(folder / "train.shape", "w") as shapes:
        for number, words in enumerate(text):
            f.write(f"s{number:07} {' '.join(words)}\n")
            shapes.write(f"s{number:07} {len(words)},{vocab}\n")


def espnet_args(
    folder: Path, args: argparse.Namespace, family: str, variant: Variant
) -> argparse.Namespace:
    """Return the options of ESPnet's LM training for a variant."""
    found = BayesLMTask.get_parser().parse_args(
        [
            *["--token_type", "word", "--token_list", f"{folder}/tokens.txt"],
            *["--train_data_path_and_name_and_type", f"{folder}/train.txt,text,text"],
            *["--train_shape_file", f"{folder}/train.shape", "--output_dir", f"{folder}/exp"],
            *["--batch_type", "sorted", "--batch_size", str(args.batch_size)],
            *["--num_workers", "0", "--lm", variant.lm, "--optim", args.optim],
            # a rate at which nothing moves: the work is the same
            *["--optim_conf", "lr=1.0e-9", "--ngpu", str(int(args.device == "cuda"))],
        ]
    )
    found.lm_conf = lm_conf(args.shape, family, variant)
    found.model, found.model_conf = "lm", {}
    if variant.uncertainty is not None:
        found.model = "bayes_lm"
        found.model_conf = {"autocast": LOW} if variant.low else {}
    if variant.sampled:
        samples = min(NOISE_TOKENS, args.vocab // 2)
        sampling = {"num_samples": samples, "distribution": "unigram"}
        found.model_conf["sampled_softmax"] = sampling
    return found


def read_batches(
    options: argparse.Namespace, number: int, distributed: DistributedOption
) -> List[Batch]:
    """Return some of ESPnet's batches, evenly from the shortest to the longest."""
    factory = BayesLMTask.build_iter_factory(options, distributed, mode="train")
    every = list(factory.build_iter(1, shuffle=False))
    number = min(number, len(every))
    return [every[int((n + 0.5) * len(every) / number)] for n in range(number)]


def count_tokens(batches: Sequence[Batch]) -> int:
    """Return the tokens of batches, with one </s> a sentence."""
    return sum(int((batch["text_lengths"] + 1).sum()) for _, batch in batches)


class Training:
    """A variant's model and optimizer, and ESPnet's trainer."""

    def __init__(
        self, options: argparse.Namespace, variant: Variant, *, distributed: DistributedOption
    ):
        torch.manual_seed(0)
        self.variant, self.distributed = variant, distributed
        self.device = torch.device("cuda" if options.ngpu else "cpu")
        self.model = BayesLMTask.build_model(options).to(self.device)
        self.optimizers = BayesLMTask.build_optimizers(options, self.model)
        self.options = BayesLMTrainer.build_options(options)
        self.wrapped: nn.Module = self.model
        if distributed.distributed:
            self.wrapped = nn.parallel.DistributedDataParallel(self.model)
        self.lm = self.model.lm

    def lowered(self) -> Any:
        """Return the context of ESPnet's LM in bfloat16; our model has its own."""
        if self.variant.low and self.variant.uncertainty is None:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def train(self, batches: Sequence[Batch]) -> None:
        """Do a step for each batch."""
        reporter = Reporter()
        reporter.set_epoch(1)
        with reporter.observe("train") as observed, self.lowered():
            BayesLMTrainer.train_one_epoch(
                model=self.wrapped,
                iterator=[(keys, dict(batch)) for keys, batch in batches],
                optimizers=self.optimizers,
                schedulers=[None],
                scaler=None,
                reporter=observed,
                summary_writer=None,
                options=self.options,
                distributed_option=self.distributed,
            )
        self.finish()

    def finish(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch."""
        with self.lowered():
            values = {key: value.to(self.device) for key, value in batch[1].items()}
            loss: torch.Tensor = self.model(**values)[0]
            return loss

    @contextlib.contextmanager
    def only_vocabulary(self) -> Iterator[None]:
        """Make the loss that of random outputs of the LM's layers, without the KL."""
        decoder = self.lm.decoder

        def outputs(input: torch.Tensor) -> torch.Tensor:
            shape = (*input.shape, decoder.in_features)
            return torch.zeros(shape, device=input.device, requires_grad=True)

        if self.variant.uncertainty is None:
            self.lm.forward = lambda input, hidden: (decoder(outputs(input)), None)
        else:
            self.lm.outputs = outputs
            self.model.kl_term = lambda num_tokens: torch.zeros((), device=self.device)
        try:
            yield
        finally:
            for owner, name in ((self.lm, "forward"), (self.lm, "outputs")):
                owner.__dict__.pop(name, None)
            self.model.__dict__.pop("kl_term", None)

    def vocabulary_seconds(self, batches: Sequence[Batch]) -> float:
        """Return the seconds of the output projection and the softmax, both passes."""

        def work() -> None:
            for batch in batches:
                self.loss(batch).backward()
                self.model.zero_grad()
            self.finish()

        with self.only_vocabulary():
            return min(timed(work) for _ in range(2))

    def sampling_seconds(self, batches: Sequence[Batch]) -> float:
        """Return the seconds of the draws and the KL, both passes."""
        blocks = [] if self.variant.uncertainty is None else list(self.lm.random_blocks())
        if not blocks:
            return 0.0
        places = {(id(module), b.parameter): (module, b.parameter) for _, module, b in blocks}
        gradients = [torch.ones_like(getattr(m, name)) for m, name in places.values()]

        def work() -> None:
            for _, batch in batches:
                self.lm._prepare()
                values = [module.value(name) for module, name in places.values()]
                kl = self.model.kl_term(batch["text_lengths"].sum().to(self.device))
                torch.autograd.backward([*values, kl], [*gradients, torch.ones_like(kl)])
                self.model.zero_grad()
            self.finish()

        return min(timed(work) for _ in range(2))

    def optimizer_seconds(self, batches: Sequence[Batch]) -> float:
        """Return the seconds of the gradients' norm and the optimizer's steps."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

        def work() -> None:
            for _ in batches:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.options.grad_clip)
                for optimizer in self.optimizers:
                    optimizer.step()
            self.finish()

        seconds = min(timed(work) for _ in range(2))
        self.model.zero_grad()
        return seconds

    def product_share(self, batches: Sequence[Batch]) -> float:
        """Return the share of the steps' time that products of matrices take."""
        on_cuda = self.device.type == "cuda"
        activity = torch.profiler.ProfilerActivity
        with torch.profiler.profile(
            activities=[activity.CPU, *([activity.CUDA] if on_cuda else [])]
        ) as profile:
            seconds = timed(functools.partial(self.train, batches))
        name = "self_device_time_total" if on_cuda else "self_cpu_time_total"
        microseconds = sum(
            getattr(event, name)
            for event in profile.key_averages()
            if "::" in event.key and any(part in event.key for part in PRODUCTS)
        )
        return float(microseconds) * 1e-6 / seconds


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def measure_speed(args: argparse.Namespace, family: str, vocab: int) -> List[Dict[str, Any]]:
    """Return what was measured of each variant of a family, and print it."""
    args.vocab = vocab
    rows: List[Dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder), args, vocab)
        single = DistributedOption()
        chosen = variants(family, args.device)
        options = [espnet_args(Path(folder), args, family, v) for v in chosen]
        trainings = [
            Training(o, v, distributed=single) for o, v in zip(options, chosen, strict=True)
        ]
        batches = read_batches(options[0], args.steps, single)
    seconds: List[List[float]] = [[] for _ in trainings]
    for done in range(-1, args.rounds):
        for training, times in zip(trainings, seconds, strict=True):
            taken = timed(functools.partial(training.train, batches))
            if done >= 0:  # the first round warms up
                times.append(taken)
    tokens = count_tokens(batches)
    length = tokens / sum(len(keys) for keys, _ in batches)
    for training, times in zip(trainings, seconds, strict=True):
        variant, taken = training.variant, statistics.median(times)
        low = [i for i, v in enumerate(chosen) if v.uncertainty is None and v.low == variant.low]
        outputs = min(NOISE_TOKENS, vocab // 2) if variant.sampled else vocab
        flops = 3 * forward_flops(args.shape, family, outputs, length) * tokens / taken
        row = {
            "family": family,
            "vocab": vocab,
            "name": variant.name,
            "tokens_per_second": tokens / taken,
            "speed_over_espnet": ratio(seconds[low[0] if low else 0], times),
            "speed_over_point": ratio(seconds[1], times),
            "vocabulary": training.vocabulary_seconds(batches) / taken,
            "sampling": training.sampling_seconds(batches) / taken,
            "optimizer": training.optimizer_seconds(batches) / taken,
            "products": training.product_share(batches),
            "gflops": flops / 1e9,
            "of_peak": flops / (args.peak_tflops * 1e12) if args.peak_tflops else None,
            "parameters": sum(p.numel() for p in training.model.parameters()),
        }
        rows.append(row)
    print(f"\n{family}, {args.shape} shape, {vocab} words, {len(batches)} batches of", end=" ")
    print(f"{args.batch_size} sentences, {tokens / len(batches):.0f} tokens on average")
    print_speed(rows)
    return rows


def print_speed(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each variant; shares are of the step's time."""
    columns = ("tokens/s", "/ESPnet", "/point", "vocab", "sampling", "optim", "products")
    print(f"{'':34}", *(f"{column:>9}" for column in columns), f"{'GFLOP/s':>9} {'of peak':>8}")
    for row in rows:
        shares = (row[key] for key in ("vocabulary", "sampling", "optimizer", "products"))
        peak = "" if row["of_peak"] is None else f"{100 * row['of_peak']:7.1f}%"
        print(
            f"{row['name']:34} {row['tokens_per_second']:9.0f} {row['speed_over_espnet']:9.2f}",
            f"{row['speed_over_point']:9.2f}",
            *(f"{100 * share:8.1f}%" for share in shares),
            f"{row['gflops']:9.1f} {peak:>8}",
            flush=True,
        )


def call_worker(args: argparse.Namespace, **job: Any) -> subprocess.Popen:
    """Start this program for one job, with the same options, in a process of its own."""
    words = json.dumps({**vars(args), **job})
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    return subprocess.Popen(
        [sys.executable, __file__, "--worker", words],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def result_of(process: subprocess.Popen) -> Dict[str, Any]:
    """Return what a job printed last, as json."""
    output = process.communicate()[0]
    if process.returncode != 0:
        raise SystemExit(f"bench/train.py: a job failed with status {process.returncode}")
    found: Dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def find_variant(args: argparse.Namespace) -> Variant:
    """Return the variant that a job is about."""
    return next(v for v in variants(args.family, args.device) if v.name == args.name)


def peak_memory() -> float:
    """Return the most memory that this process has had at a time, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def memory_job(args: argparse.Namespace) -> Dict[str, Any]:
    """Return the peak memory of a training in this process, in MB.

    On a CPU that of the process less what it had after its imports: parameters, gradients and
    the optimizer's state belong to it.
    """
    with contextlib.suppress(OSError):  # importing took more than it left
        Path("/proc/self/clear_refs").write_text("5")
    baseline = peak_memory()
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder), args, args.vocab)
        options = espnet_args(Path(folder), args, args.family, find_variant(args))
        training = Training(options, find_variant(args), distributed=DistributedOption())
    size, length = MEMORY_BATCH
    text = torch.randint(2, args.vocab - 1, (size, length - 1))
    batch = {"text": text, "text_lengths": torch.full((size,), length - 1)}
    training.train([([str(n) for n in range(size)], batch)] * 2)
    if args.device == "cuda":
        return {"mb": torch.cuda.max_memory_allocated() / 2**20}
    return {"mb": peak_memory() - baseline}


def measure_memory(args: argparse.Namespace, family: str, vocab: int) -> List[Dict[str, Any]]:
    """Return the peak memory of each variant, each in a process of its own, and print it."""
    size, length = MEMORY_BATCH
    print(f"\npeak memory, {family}, {args.shape} shape, {vocab} words, {size} x {length} tokens")
    rows: List[Dict[str, Any]] = []
    for variant in variants(family, args.device):
        job = call_worker(args, job="memory", family=family, vocab=vocab, name=variant.name)
        row = {"family": family, "vocab": vocab, "name": variant.name, **result_of(job)}
        row["over_espnet"] = row["mb"] / max(rows[0]["mb"], 1.0) if rows else 1.0
        rows.append(row)
        print(f"{row['name']:34} {row['mb']:9.0f} MB {row['over_espnet']:9.2f}", flush=True)
    return rows


def seconds_of_group(training: Training, batches: Sequence[Batch]) -> float:
    """Return the seconds that all processes of a group need for their parts of the batches."""

    def work() -> None:
        training.train(batches)
        torch.distributed.barrier()

    work()  # warms up
    return timed(work)


def speed_job(args: argparse.Namespace) -> Dict[str, Any]:
    """Return the tokens per second of this process and the others of its group.

    Each process has a core of its own, and a part of each batch.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[args.rank % len(cores)]})
    distributed = DistributedOption(distributed=args.world > 1, dist_backend="gloo")
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://localhost:{args.port}",
        rank=args.rank,
        world_size=args.world,
    )
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder), args, args.vocab)
        options = espnet_args(Path(folder), args, args.family, find_variant(args))
        training = Training(options, find_variant(args), distributed=distributed)
        batches = read_batches(options, args.steps, distributed)
    tokens = torch.tensor(count_tokens(batches))
    torch.distributed.all_reduce(tokens)
    seconds = seconds_of_group(training, batches)
    # what uses the group must be gone before it is
    del training
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return {"tokens_per_second": int(tokens) / seconds}


def measure_processes(args: argparse.Namespace, family: str, vocab: int) -> List[Dict[str, Any]]:
    """Return and print the speed of two processes on two cores over that of one on one core."""
    if len(os.sched_getaffinity(0)) < 2:
        print("\ntwo processes: needs two cores")
        return []
    rows: List[Dict[str, Any]] = []
    print(f"\ntwo gloo processes over one, {family}, {args.shape} shape, {vocab} words,", end=" ")
    print(f"{args.batch_size} sentences a step", flush=True)
    for variant in variants(family, args.device)[1:3]:
        speeds: Dict[int, List[float]] = {1: [], 2: []}
        for _ in range(args.rounds):
            for world, found in speeds.items():
                job = dict(job="speed", family=family, vocab=vocab, name=variant.name)
                job |= dict(world=world, port=free_port(), threads=1)
                jobs = [call_worker(args, **job, rank=rank) for rank in range(world)]
                speeds_of_ranks = [result_of(one)["tokens_per_second"] for one in jobs]
                found.append(min(speeds_of_ranks))
        row = {
            "family": family,
            "vocab": vocab,
            "name": variant.name,
            "one": statistics.median(speeds[1]),
            "two": statistics.median(speeds[2]),
            "two_over_one": ratio(speeds[2], speeds[1]),
        }
        rows.append(row)
        print(
            f"{row['name']:34} {row['one']:9.0f} {row['two']:9.0f} tokens/s,"
            f" {row['two_over_one']:.2f} times (goal 1.60)",
            flush=True,
        )
    return rows


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port: int = s.getsockname()[1]
        return port


PARTS: Dict[str, Callable[[argparse.Namespace, str, int], List[Dict[str, Any]]]] = {
    "speed": measure_speed,
    "memory": measure_memory,
    "processes": measure_processes,
}
JOBS = {"memory": memory_job, "speed": speed_job}


def get_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", help="real text, a sentence a line")
    parser.add_argument("--sentences", type=int, default=8192, help="of the text, at random")
    parser.add_argument("--shape", default="paper", choices=list(SHAPES))
    parser.add_argument("--families", nargs="+", default=list(BAYES), choices=list(BAYES))
    parser.add_argument("--vocabs", nargs="+", type=int, default=[11_800, 47_000])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--batch_size", type=int, default=32, help="sentences")
    parser.add_argument("--steps", type=int, default=8, help="batches in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optim", default="sgd", help="as ESPnet's")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--peak_tflops", type=float, help="of the device, for the share of it")
    parser.add_argument("--output", help="a json file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Run the benchmark."""
    args = get_parser().parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if args.worker:
        job = argparse.Namespace(**json.loads(args.worker))
        torch.set_num_threads(job.threads)
        print(json.dumps(JOBS[job.job](job)))
        return
    torch.set_num_threads(args.threads)
    results: Dict[str, Any] = {"torch": torch.__version__, "options": vars(args).copy()}
    print(f"torch {torch.__version__}, {args.device}, {args.threads} thread(s)")
    for part in args.parts:
        results[part] = []
        for family in args.families:
            for vocab in args.vocabs:
                results[part] += PARTS[part](args, family, vocab)
                gc.collect()
    if args.output:
        Path(args.output).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
