"""The LMs that the suite "training" compares, and the batches that they train on."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import random
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from espnet2.train.distributed_utils import DistributedOption
from steps import espnet_options, lm_options

from espnet_bayeslm.kernels.product import has_onednn
from espnet_bayeslm.training.task import BayesLMTask

BAYES = {"lstm": {"cell_input@1-2": "bayes"}, "transformer": {"ffn@1-2": "bayes"}}
GP = {"lstm": {"cell_input@1-2": "gp"}, "transformer": {"ffn@1-2": "gp"}}
ESPNET = {"lstm": "seq_rnn", "transformer": "transformer"}
LOW = "bfloat16"
NOISE_TOKENS = 1024
# Mean words of AMI's sentences, and the longest that a generated text has.
MEAN_LENGTH, LONGEST = 9, 100
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
    sampled = dataclasses.replace(bayes, name="  sampled softmax", sampled=True)
    found = [espnet, point, bayes, sampled]
    if device == "cuda":  # ESPnet has no bfloat16 on a CPU
        gp = next(iter(GP[family])) + " gp"
        found += [Variant(gp, ours, GP[family])]
    if device == "cpu" and not has_onednn(torch.bfloat16):
        return found  # emulated, it would take minutes a step
    lowered = [v for v in found if device == "cuda" or v.uncertainty is not None]
    return found + [dataclasses.replace(v, name=f"{v.name} {LOW}", low=True) for v in lowered]


def lm_conf(shape: str, family: str, variant: Variant) -> Dict[str, Any]:
    """Return the options of a variant's LM."""
    if variant.uncertainty is None:
        return espnet_options(shape, family)
    return {**lm_options(shape, family), "uncertainty": dict(variant.uncertainty)}


def noise_tokens(vocab: int) -> int:
    """Return how many noise tokens a sampled softmax has."""
    return min(NOISE_TOKENS, vocab // 2)


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
    found.ddp_comm_hook = args.ddp_comm_hook
    found.model, found.model_conf = "lm", {}
    if variant.uncertainty is not None:
        found.model = "bayes_lm"
        found.model_conf = {"autocast": LOW} if variant.low else {}
    if variant.sampled:
        sampling = {"num_samples": noise_tokens(args.vocab), "distribution": "unigram"}
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
