"""Speed and memory of training in ESPnet's trainer: our LMs over ESPnet's own.

Tokens per second of whole steps (forward, backward, clipping, optimizer) in interleaved rounds:
medians, and medians of the rounds' ratios, since on a shared machine only ratios within one run
mean anything. Then the peak memory of a process. The text is `--text`, a sentence a line, or one
with word frequencies by Zipf's law and sentences as short as those of meetings. ESPnet's AMI
recipe trains its LM of words with 64 sentences a batch and SGD.

bfloat16 on CUDA is compared with ESPnet's in bfloat16, which ESPnet has not on a CPU; a CPU
without bfloat16 leaves it out.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import logging
import random
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import Reporter
from steps import SHAPES, espnet_options, in_new_process, lm_options, ratio, resident_mib, timed

from espnet_bayeslm.kernels.product import has_onednn
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.training.trainer import BayesLMTrainer

BAYES = {"lstm": {"cell_input@1-2": "bayes"}, "transformer": {"ffn@1-2": "bayes"}}
ESPNET = {"lstm": "seq_rnn", "transformer": "transformer"}
# Mean words of AMI's sentences, and the longest that a generated text has.
MEAN_LENGTH, LONGEST = 9, 100
MEMORY_BATCH = (32, 100)
Batch = Tuple[List[str], Dict[str, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Variant:
    """An LM to train.

    Attributes:
        name: Name of its row.
        lm: As ESPnet's `--lm`.
        uncertainty: As in `lm_conf`; None: ESPnet's own LM.
        low: True if products are in bfloat16.
    """

    name: str
    lm: str
    uncertainty: Optional[Mapping[str, Any]] = None
    low: bool = False


def variants(family: str, device: str) -> List[Variant]:
    """LMs to compare: ESPnet's and the point-estimate LM first."""
    ours = f"bayes_{family}"
    found = [Variant(f"ESPnet {ESPNET[family]}", ESPNET[family]), Variant("point", ours, {})]
    found += [Variant(next(iter(BAYES[family])) + " bayes", ours, BAYES[family])]
    if device == "cpu" and not has_onednn(torch.bfloat16):
        return found  # emulated, it would take minutes a step
    lowered = [v for v in found if device == "cuda" or v.uncertainty is not None]
    return found + [dataclasses.replace(v, name=f"{v.name} bfloat16", low=True) for v in lowered]


def generated_text(vocab: int, sentences: int) -> List[List[str]]:
    """Sentences of words whose frequencies follow Zipf's law."""
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
    folder: Path, args: argparse.Namespace, family: str, variant: Variant, vocab: int
) -> argparse.Namespace:
    """Options of ESPnet's LM training for a variant, on the text in a folder."""
    write_corpus(folder, args, vocab)
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
    if variant.uncertainty is None:
        found.lm_conf, found.model, found.model_conf = espnet_options(args.shape, family), "lm", {}
        return found
    found.lm_conf = {**lm_options(args.shape, family), "uncertainty": dict(variant.uncertainty)}
    found.model, found.model_conf = "bayes_lm", {"autocast": "bfloat16"} if variant.low else {}
    return found


def read_batches(options: argparse.Namespace, number: int) -> List[Batch]:
    """Some of ESPnet's batches, evenly from the shortest to the longest."""
    factory = BayesLMTask.build_iter_factory(options, DistributedOption(), mode="train")
    every = list(factory.build_iter(1, shuffle=False))
    number = min(number, len(every))
    return [every[int((n + 0.5) * len(every) / number)] for n in range(number)]


class Training:
    """A variant's model and optimizers, and ESPnet's trainer."""

    def __init__(self, options: argparse.Namespace, variant: Variant):
        torch.manual_seed(0)
        self.variant = variant
        self.device = torch.device("cuda" if options.ngpu else "cpu")
        self.model = BayesLMTask.build_model(options).to(self.device)
        self.optimizers = BayesLMTask.build_optimizers(options, self.model)
        self.options = BayesLMTrainer.build_options(options)

    def train(self, batches: Sequence[Batch]) -> None:
        """Do a step for each batch."""
        # our model lowers by itself
        lowers = self.variant.low and self.variant.uncertainty is None
        reporter = Reporter()
        reporter.set_epoch(1)
        with (
            reporter.observe("train") as observed,
            torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=lowers),
        ):
            BayesLMTrainer.train_one_epoch(
                model=self.model,
                iterator=[(keys, dict(batch)) for keys, batch in batches],
                optimizers=self.optimizers,
                schedulers=[None],
                scaler=None,
                reporter=observed,
                summary_writer=None,
                options=self.options,
                distributed_option=DistributedOption(),
            )
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure_speed(args: argparse.Namespace, family: str, vocab: int) -> None:
    """Print the speed of each variant of a family."""
    chosen = variants(family, args.device)
    with tempfile.TemporaryDirectory() as folder:
        options = [espnet_args(Path(folder), args, family, v, vocab) for v in chosen]
        trainings = [Training(o, v) for o, v in zip(options, chosen, strict=True)]
        batches = read_batches(options[0], args.steps)
    tokens = sum(int((batch["text_lengths"] + 1).sum()) for _, batch in batches)
    print(f"\n{family}, {args.shape} shape, {vocab} words, {len(batches)} batches of", end=" ")
    print(f"{args.batch_size} sentences, {tokens / len(batches):.0f} tokens on average", flush=True)
    seconds: List[List[float]] = [[] for _ in trainings]
    for done in range(-1, args.rounds):
        for training, times in zip(trainings, seconds, strict=True):
            taken = timed(functools.partial(training.train, batches))
            if done >= 0:  # the first round warms up
                times.append(taken)
    print(f"{'':34} {'tokens/s':>9} {'/ESPnet':>9} {'/point':>9}")
    for variant, times in zip(chosen, seconds, strict=True):
        # ESPnet's LM in the same precision, where there is one
        low = [i for i, v in enumerate(chosen) if v.uncertainty is None and v.low == variant.low]
        ratios = [ratio(seconds[i], times) for i in ((low or [0])[0], 1)]
        speed = tokens / statistics.median(times)
        print(f"{variant.name:34} {speed:9.0f} {ratios[0]:9.2f} {ratios[1]:9.2f}", flush=True)


def prepare(threads: int) -> None:
    """Set this process's threads, and let ESPnet and torch say nothing."""
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)


def peak_mib(args: argparse.Namespace, family: str, variant: Variant, vocab: int) -> float:
    """Peak memory of a training in this process, in MiB.

    On a CPU that of the process less what it had after its imports: parameters, gradients and
    the optimizer's state belong to it.
    """
    prepare(args.threads)
    with contextlib.suppress(OSError):  # importing took more than it left
        Path("/proc/self/clear_refs").write_text("5")
    baseline = resident_mib("VmHWM")
    with tempfile.TemporaryDirectory() as folder:
        training = Training(espnet_args(Path(folder), args, family, variant, vocab), variant)
    size, length = MEMORY_BATCH
    text = torch.randint(2, vocab - 1, (size, length - 1))
    batch = {"text": text, "text_lengths": torch.full((size,), length - 1)}
    training.train([([str(n) for n in range(size)], batch)] * 2)
    if args.device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resident_mib("VmHWM") - baseline


def measure_memory(args: argparse.Namespace, family: str, vocab: int) -> None:
    """Print the peak memory of each variant, each in a process of its own."""
    size, length = MEMORY_BATCH
    print(f"\npeak memory, {family}, {args.shape} shape, {vocab} words, {size} x {length} tokens")
    espnets = 0.0
    for variant in variants(family, args.device):
        mib = in_new_process(peak_mib, args, family, variant, vocab)
        espnets = espnets or max(mib, 1.0)
        print(f"{variant.name:34} {mib:9.0f} MiB {mib / espnets:9.2f}", flush=True)


def get_parser() -> argparse.ArgumentParser:
    """Parser of the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", help="real text, a sentence a line")
    parser.add_argument("--sentences", type=int, default=8192, help="of the text, at random")
    parser.add_argument("--shape", default="paper", choices=list(SHAPES))
    parser.add_argument("--families", nargs="+", default=list(BAYES), choices=list(BAYES))
    parser.add_argument("--vocabs", nargs="+", type=int, default=[11_800, 47_000])
    parser.add_argument("--batch_size", type=int, default=64, help="sentences, as ESPnet's AMI")
    parser.add_argument("--steps", type=int, default=8, help="batches in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optim", default="sgd", help="as ESPnet's")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    return parser


def main() -> None:
    """Run the benchmark."""
    args = get_parser().parse_args()
    prepare(args.threads)
    print(f"torch {torch.__version__}, {args.device}, {args.threads} thread(s)")
    for measure in (measure_speed, measure_memory):
        for family in args.families:
            for vocab in args.vocabs:
                measure(args, family, vocab)


if __name__ == "__main__":
    main()
