"""Speed of scoring 20-best lists and of training adapters, at the sizes of SmolLM2-135M.

Scoring: prefix trees, against what is usual in transformers: a padded batch for each list, one
hypothesis at a time, and `past_key_values`, where the beginning that all hypotheses share is read
once, and their ends as a padded batch. The lists are the quick start's, or `--nbest`. Training: a
step of LoRA in peft with a plain loop over padded batches, of the LM `pretrained` with LoRA, and
with a Bayesian adapter. Weights are random, a word is a token: `--base` gives a real LM. Values of
weights change no time. `--lm` compares LMs of any kind, at the same lists. Seconds are of the CPU,
since another process takes none of them; rounds are interleaved, and medians of the rounds' ratios
are printed.
"""

from __future__ import annotations

import argparse
import functools
import gc
import gzip
import json
import logging
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import torch
from steps import in_new_process, ratio, resident_mib, started
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from espnet_bayeslm.kernels.product import has_onednn
from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.pretrained.adapted import AdaptedLM
from espnet_bayeslm.pretrained.adapters import add_adapter
from espnet_bayeslm.pretrained.causal_lm import load_tokenizer
from espnet_bayeslm.pretrained.pretrained_scorer import CausalTreeLM
from espnet_bayeslm.pretrained.text_forms import Reader, TextForm
from espnet_bayeslm.scoring.tree_lm import Passage
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.workflows.quickstart import SHIPPED

VOCAB, START = 49_152, 198
SIZES: Dict[str, Any] = dict(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
)
TREE, PADDED, ONE, CACHE = "prefix trees", "padded", "one at a time", "past_key_values"
PEFT, LORA, BAYES = "peft, plain loop", "LoRA", "Bayesian LoRA"
RANK = 16
# Tokens of the sentences of a training batch: about the `batch_bins` of configs/lora.yaml
BATCHES = {
    "of one length": [18] * 28,
    "of all lengths": [1 + round(-17 * math.log(1 - (n + 0.5) / 28)) for n in range(28)],
}
Ids = Tuple[int, ...]
Words = Tuple[str, ...]
Scores = Dict[Ids, np.ndarray]
Call = Callable[[], Any]


def write_lm(folder: Path) -> None:
    """Write an LM of random weights, with a tokenizer of bytes."""
    config = LlamaConfig(vocab_size=VOCAB, bos_token_id=0, eos_token_id=0, **SIZES)
    AutoModelForCausalLM.from_config(config).to(torch.float16).save_pretrained(folder)
    symbols = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bpe = models.BPE(vocab={symbol: n for n, symbol in enumerate(symbols)}, merges=[])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    marks = dict(bos_token="<|end|>", eos_token="<|end|>")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)


def read_lm(folder: Path, dtype: torch.dtype) -> Any:
    """Return the LM in a precision."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def read_lists(args: argparse.Namespace) -> List[List[Words]]:
    """Return some of the lists, evenly from all."""
    path = args.nbest or SHIPPED / "eval.jsonl.gz"
    if args.nbest:
        every = [[h.words for h in item.hypotheses] for item in read_nbest(path, args.nbest_format)]
    else:
        with gzip.open(path, "rt", encoding="utf-8") as f:
            lists = [json.loads(line)["hypotheses"] for line in f]
        every = [[tuple(h["text"].split()) for h in hypotheses] for hypotheses in lists]
    return [every[n * len(every) // args.lists] for n in range(args.lists)]


def tokens_of(args: argparse.Namespace) -> List[List[Ids]]:
    """Return the tokens of some of the lists, with a start and an end."""
    lists = read_lists(args)
    if args.base:
        reader = Reader(load_tokenizer(args.base), TextForm("lower"))
        return [[(*reader.start, *reader.encode(words).ids) for words in each] for each in lists]
    numbers: Dict[str, int] = {}
    return [
        [
            (START, *(1000 + numbers.setdefault(w, len(numbers)) for w in words), START)
            for words in each
        ]
        for each in lists
    ]


@torch.no_grad()
def padded(model: Any, hypotheses: Sequence[Ids]) -> Scores:
    """Score hypotheses by one padded batch, as is usual in transformers."""
    batch = sorted(set(hypotheses), key=len)
    table = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True)
    lengths = torch.tensor([len(ids) for ids in batch])
    mask = torch.arange(table.size(1)) < lengths.unsqueeze(1)
    logits = model(input_ids=table[:, :-1], attention_mask=mask[:, :-1].long()).logits
    found = logits.float().log_softmax(-1).gather(-1, table[:, 1:, None]).squeeze(-1)
    return {ids: row[: len(ids) - 1].numpy() for ids, row in zip(batch, found, strict=True)}


@torch.no_grad()
def cached(model: Any, hypotheses: Sequence[Ids]) -> Scores:
    """Score a list by transformers' cache of keys and values."""
    batch = sorted(set(hypotheses), key=len)
    shared = 0
    while shared < min(map(len, batch)) - 2 and len({h[shared] for h in batch}) == 1:
        shared += 1
    shared = max(shared, 1)
    beginning = torch.tensor([batch[0][:shared]])
    first = model(input_ids=beginning, past_key_values=DynamicCache(), use_cache=True)
    cache = first.past_key_values
    cache.batch_repeat_interleave(len(batch))
    table = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True)
    lengths = torch.tensor([len(ids) for ids in batch])
    mask = (torch.arange(table.size(1)) < lengths.unsqueeze(1))[:, :-1].long()
    ends = table[:, shared:-1]
    rest = model(input_ids=ends, attention_mask=mask, past_key_values=cache).logits
    logits = torch.cat([first.logits.expand(len(batch), -1, -1), rest], 1)
    found = logits.float().log_softmax(-1).gather(-1, table[:, 1:, None]).squeeze(-1)
    return {ids: row[: len(ids) - 1].numpy() for ids, row in zip(batch, found, strict=True)}


def ways(model: Any, lists: Sequence[Sequence[Ids]]) -> Dict[str, Callable[[], Scores]]:
    """Return the ways to score lists, by name."""
    openings = torch.zeros(VOCAB, dtype=torch.bool)
    openings[1000:30_000] = True
    tree_lm = CausalTreeLM(model)
    every = [ids for hypotheses in lists for ids in hypotheses]

    def trees() -> Scores:
        passages = [Passage(0, ids, len(ids) - 1) for ids in every]
        found = tree_lm.log_probs(passages, openings=openings)
        return {ids: scores[0] for ids, scores in zip(every, found, strict=True)}

    def one_by_one(function: Callable[..., Scores], groups: Sequence[Any]) -> Scores:
        return {ids: row for group in groups for ids, row in function(model, group).items()}

    return {
        TREE: trees,
        PADDED: functools.partial(one_by_one, padded, lists),
        ONE: functools.partial(one_by_one, padded, [[ids] for ids in every]),
        CACHE: functools.partial(one_by_one, cached, lists),
    }


def training_step(folder: Path, batch: Sequence[int], name: str) -> Call:
    """Return a call of a training step: forward, backward, clipping, AdamW."""
    lengths = torch.tensor(batch)
    tokens = torch.randint(1000, 30_000, (len(batch), max(batch)))
    places = torch.arange(-1, max(batch) + 1)
    if name == PEFT:
        base = read_lm(folder, torch.float32)
        model = add_adapter(base, {"r": RANK})
        inside = (places >= 0) & (places < lengths[:, None])
        whole = nn.functional.pad(tokens, (1, 1)).where(inside, START)
        mask = places <= lengths[:, None]
        labels = whole.where(mask, -100)

        def loss() -> torch.Tensor:
            return model(input_ids=whole, attention_mask=mask.long(), labels=labels).loss
    else:
        conf = {"lora_a@*": "bayes"} if name == BAYES else {}
        lm = AdaptedLM(VOCAB, model=f"hf:{folder}", lora={"r": RANK}, uncertainty=conf)
        model = BayesLanguageModel(lm, VOCAB, kl_weight=0.1, num_train_tokens=100_000)

        def loss() -> torch.Tensor:
            return model(tokens, lengths)[0]

    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-9)  # the work of any rate

    def step() -> None:
        model.train()
        loss().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def cpu_seconds(function: Call) -> float:
    """Return the seconds of the CPU that a call takes."""
    start = time.process_time()
    function()
    return time.process_time() - start


def interleave(calls: Dict[str, Call], rounds: int) -> Dict[str, List[float]]:
    """Return the seconds of each call in each round, after one that warms up."""
    seconds: Dict[str, List[float]] = {name: [] for name in calls}
    for done in range(-1, rounds):
        for name, call in calls.items():
            taken = cpu_seconds(call)
            if done >= 0:
                seconds[name].append(taken)
    return seconds


def check_same(calls: Dict[str, Callable[[], Scores]]) -> None:
    """Raise an AssertionError where the ways to score a list differ."""
    expected = calls[PADDED]()
    for name, call in calls.items():
        for ids, found in call().items():
            np.testing.assert_allclose(found, expected[ids], atol=2e-3, err_msg=name)


def print_rows(title: str, seconds: Dict[str, List[float]], *, base: str, count: int = 1) -> None:
    """Print the milliseconds of each call, a `count`-th of it, and its ratio to that of `base`."""
    print(f"\n{title}\n{'':20} {'CPU ms':>9} {'/ ' + base:>20}")
    for name, values in seconds.items():
        milliseconds = 1000 * statistics.median(values) / count
        print(f"{name:20} {milliseconds:9.0f} {ratio(values, seconds[base]):20.2f}", flush=True)


def print_memory(
    what: str, names: Sequence[str], measure: Callable[..., float], *args: Any
) -> None:
    """Print the memory that each way takes, in a process of its own."""
    found = {name: in_new_process(measure, *args, name) for name in names}
    print(f"{what}:", ", ".join(f"{n} {mib:.0f} MiB" for n, mib in found.items()), flush=True)


def scoring_mib(folder: Path, dtype: torch.dtype, args: argparse.Namespace, name: str) -> float:
    """Return the memory that scoring takes at most, above the model, in this process."""
    torch.set_num_threads(1)
    call = ways(read_lm(folder, dtype), tokens_of(args))[name]
    before = resident_mib("VmRSS")
    call()
    return max(0.0, resident_mib("VmHWM") - before)


def training_mib(folder: Path, batch: Sequence[int], name: str) -> float:
    """Return the memory that a training takes at most, with its LM, in this process."""
    torch.set_num_threads(1)
    before = resident_mib("VmRSS")
    step = training_step(folder, batch, name)
    for _ in range(2):
        step()
    return resident_mib("VmHWM") - before


def measure_scoring(folder: Path, dtype: torch.dtype, args: argparse.Namespace) -> None:
    """Print a table of the ways to score lists in a precision."""
    model, lists = read_lm(folder, dtype), tokens_of(args)
    if dtype == torch.float32:
        check_same(ways(model, lists[:1]))
    calls = ways(model, lists)
    names = [TREE, PADDED] if args.fast else list(calls)
    seconds = interleave({name: calls[name] for name in names}, args.rounds)
    read = sum(len(set(each)) * (max(map(len, each)) - 1) for each in lists)
    nodes = len({ids[:n] for each in lists for ids in each for n in range(1, len(ids))})
    title = f"{len(lists)} lists, padded tokens / distinct prefixes {read / nodes:.2f}, ms per list"
    print_rows(f"{str(dtype)[6:]}: {title}", seconds, base=TREE, count=len(lists))
    if not args.fast:
        print_memory("above the model", names, scoring_mib, folder, dtype, args)


def measure_lms(args: argparse.Namespace) -> None:
    """Print the seconds of a list, and the size of the weights, of LMs of any kind."""
    lists = read_lists(args)
    sentences = list(dict.fromkeys(words for each in lists for words in each))
    print(f"\n{len(lists)} lists\n{'':40} {'CPU s per list':>15} {'MB':>8}")
    for lm in args.lm:
        options = ComponentOptions(lms=[lm], text_form="lower", precision=args.precision)
        (component,) = load_components(options)
        component.scorer.word_scores(sentences[:1])
        values = [
            cpu_seconds(functools.partial(component.scorer.word_scores, sentences))
            for _ in range(args.rounds)
        ]
        held = getattr(component.scorer, "trained", component.scorer).lm
        model = getattr(held, "model", held)
        size = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
        seconds = statistics.median(values) / len(lists)
        print(f"{lm[-40:]:40} {seconds:15.3f} {size:8.0f}", flush=True)


def measure_training(folder: Path, rounds: int) -> None:
    """Print a table of training steps for each kind of batch."""
    names = (PEFT, LORA, BAYES)
    for what, batch in BATCHES.items():
        steps = {name: training_step(folder, batch, name) for name in names}
        seconds = interleave(steps, rounds)
        title = f"training, float32, sentences {what}: {sum(batch)} tokens, rank {RANK}"
        print_rows(title, seconds, base=PEFT)
        print(f"{BAYES} / {LORA}: {ratio(seconds[BAYES], seconds[LORA]):.2f}", flush=True)
        print_memory("with the model", names, training_mib, folder, batch)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", type=int, default=3, help="How many lists are scored")
    parser.add_argument("--nbest", type=Path, help="Lists; default: the quick start's")
    parser.add_argument("--nbest_format", default="jsonl")
    parser.add_argument("--base", type=Path, help="Folder of a real LM of SmolLM2's size")
    parser.add_argument("--lm", action="append", default=[], help="LMs to compare, and no more")
    parser.add_argument("--precision", default="float32", help="Precision of --lm")
    parser.add_argument("--fast", action="store_true", help="Time trees and padded batches alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = started(parser)
    logging.disable(logging.WARNING)
    disable_progress_bar()
    if args.lm:
        measure_lms(args)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = args.base or Path(name)
        if not args.base:
            write_lm(folder)
        for dtype in (torch.float32, torch.bfloat16):
            if dtype == torch.float32 or has_onednn(dtype):  # it would be emulated
                measure_scoring(folder, dtype, args)
                gc.collect()
        if not args.fast:
            measure_training(folder, args.rounds)


if __name__ == "__main__":
    main()
