"""Speed of scoring 20-best lists and of training adapters, at the sizes of SmolLM2-135M.

Scoring: the prefix tree, against padded batches, one hypothesis at a time, and transformers' own
`past_key_values`: the beginning that all hypotheses share is read once, and their ends as a padded
batch. The lists are the quick start's, a token a word. Training: a step of LoRA in peft with a
plain loop, of the LM `pretrained` with LoRA, and with a Bayesian adapter. Weights are random: their
values change no time. Seconds are of the CPU, since another process takes none of them; rounds are
interleaved, and medians of the rounds' ratios are printed.
"""

from __future__ import annotations

import argparse
import functools
import gc
import gzip
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import torch
from steps import in_new_process, ratio, resident_mib, started
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from espnet_bayeslm.kernels.product import has_onednn
from espnet_bayeslm.pretrained.adapted import AdaptedLM
from espnet_bayeslm.pretrained.lora import LoraOptions, add_adapter
from espnet_bayeslm.pretrained.tree_scores import TreeScorer
from espnet_bayeslm.quickstart.demo import SHIPPED
from espnet_bayeslm.training.model import BayesLanguageModel

VOCAB, START = 49_152, 198
SIZES: Dict[str, Any] = dict(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
)
TREE, PADDED, ONE, CACHE = "prefix tree", "padded", "one at a time", "past_key_values"
PEFT, LORA, BAYES = "peft, plain loop", "LoRA", "Bayesian LoRA"
RANK = 16
# Sentences of a training batch and their tokens: the `batch_bins` of configs/lora.yaml
BATCH = (28, 18)
Ids = Tuple[int, ...]
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


def read_lists(number: int) -> List[List[Ids]]:
    """Return some of the quick start's lists, a token a word, with a start and an end."""
    with gzip.open(SHIPPED / "data" / "eval.jsonl.gz", "rt", encoding="utf-8") as f:
        every = [json.loads(line)["hypotheses"] for line in f]
    numbers: Dict[str, int] = {}
    return [
        [
            (START, *(1000 + numbers.setdefault(w, len(numbers)) for w in h["text"].split()), START)
            for h in hypotheses
        ]
        for hypotheses in every[:: len(every) // number][:number]
    ]


@torch.no_grad()
def cached(scorer: TreeScorer, hypotheses: Sequence[Ids]) -> List[np.ndarray]:
    """Score a list by transformers' cache of keys and values.

    The scores are those of `TreeScorer`: with the probabilities that a word ends.
    """
    shared = 0
    while shared < min(map(len, hypotheses)) - 2 and len({h[shared] for h in hypotheses}) == 1:
        shared += 1
    shared = max(shared, 1)
    beginning = torch.tensor([hypotheses[0][:shared]])
    first = scorer.model(input_ids=beginning, past_key_values=DynamicCache(), use_cache=True)
    cache = first.past_key_values
    cache.batch_repeat_interleave(len(hypotheses))
    ends = [ids[shared:-1] for ids in hypotheses]
    longest = max(map(len, ends))
    table = torch.tensor([[*end, *[0] * (longest - len(end))] for end in ends])
    mask = torch.tensor([[1] * (shared + len(e)) + [0] * (longest - len(e)) for e in ends])
    rest = scorer.model(input_ids=table, attention_mask=mask, past_key_values=cache).logits
    logits = torch.cat([first.logits[0], rest.flatten(0, 1)])
    paths = [
        np.concatenate([np.arange(shared), shared + n * longest + np.arange(len(end))])
        for n, end in enumerate(ends)
    ]
    return scorer.of_paths(logits, hypotheses, paths)


def ways(model: Any, hypotheses: Sequence[Ids]) -> Dict[str, Callable[[], List[np.ndarray]]]:
    """Return the ways to score a list, by name."""
    openings = torch.zeros(VOCAB, dtype=torch.bool)
    openings[1000:30_000] = True
    tree, padded = TreeScorer(model, openings), TreeScorer(model, openings)
    padded.takes_trees = False
    counts = [len(ids) - 1 for ids in hypotheses]
    return {
        TREE: functools.partial(tree.log_probs, hypotheses, counts),
        PADDED: functools.partial(padded.log_probs, hypotheses, counts),
        ONE: lambda: [padded.log_probs([ids], [len(ids) - 1])[0] for ids in hypotheses],
        CACHE: functools.partial(cached, tree, hypotheses),
    }


def training_step(folder: Path, name: str) -> Call:
    """Return a call of a training step: forward, backward, clipping, AdamW."""
    tokens = torch.randint(1000, 30_000, BATCH)
    if name == PEFT:
        base = read_lm(folder, torch.float32)
        model = add_adapter(base, LoraOptions(r=RANK))
        whole = torch.cat([torch.full((len(tokens), 1), START), tokens], 1)
        whole = torch.cat([whole, torch.full((len(tokens), 1), START)], 1)

        def loss() -> torch.Tensor:
            return model(input_ids=whole, labels=whole).loss
    else:
        conf = {"lora_a@*": "bayes"} if name == BAYES else {}
        lm = AdaptedLM(VOCAB, model=f"hf:{folder}", lora={"r": RANK}, uncertainty=conf)
        model = BayesLanguageModel(lm, VOCAB, kl_weight=0.1, num_train_tokens=100_000)
        lengths = torch.full(BATCH[:1], BATCH[1])

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


def check_same(calls: Dict[str, Callable[[], List[np.ndarray]]]) -> None:
    """Raise an AssertionError where the ways to score a list differ."""
    scores = {name: np.concatenate(call(), axis=1) for name, call in calls.items()}
    for name, found in scores.items():
        np.testing.assert_allclose(found, scores[TREE], atol=2e-3, err_msg=name)


def print_rows(title: str, seconds: Dict[str, List[float]], *, base: str) -> None:
    """Print the milliseconds of each call and its ratio to that of `base`."""
    print(f"\n{title}\n{'':20} {'CPU ms':>9} {'/ ' + base:>20}")
    for name, values in seconds.items():
        cells = f"{1000 * statistics.median(values):9.0f} {ratio(values, seconds[base]):20.2f}"
        print(f"{name:20} {cells}", flush=True)


def print_memory(
    what: str, names: Sequence[str], measure: Callable[..., float], *args: Any
) -> None:
    """Print the memory that each way takes, in a process of its own."""
    found = {name: in_new_process(measure, *args, name) for name in names}
    print(f"{what}:", ", ".join(f"{n} {mib:.0f} MiB" for n, mib in found.items()), flush=True)


def scoring_mib(folder: Path, dtype: torch.dtype, number: int, name: str) -> float:
    """Return the memory that scoring takes at most, above the model, in this process."""
    torch.set_num_threads(1)
    model = read_lm(folder, dtype)
    calls = [ways(model, hypotheses)[name] for hypotheses in read_lists(number)]
    before = resident_mib("VmRSS")
    for call in calls:
        call()
    return max(0.0, resident_mib("VmHWM") - before)


def training_mib(folder: Path, name: str) -> float:
    """Return the memory that a training takes at most, with its LM, in this process."""
    torch.set_num_threads(1)
    before = resident_mib("VmRSS")
    step = training_step(folder, name)
    for _ in range(2):
        step()
    return resident_mib("VmHWM") - before


def measure_scoring(folder: Path, dtype: torch.dtype, args: argparse.Namespace) -> None:
    """Print a table of the ways to score lists in a precision."""
    model, lists = read_lm(folder, dtype), read_lists(args.lists)
    calls = [ways(model, hypotheses) for hypotheses in lists]
    if dtype == torch.float32:
        check_same(calls[0])

    def all_lists(name: str) -> None:
        for each in calls:
            each[name]()

    names = {name: functools.partial(all_lists, name) for name in calls[0]}
    seconds = interleave(names, args.rounds)
    tokens = sum(len(ids) - 1 for hypotheses in lists for ids in hypotheses)
    nodes = sum(
        len({ids[:n] for ids in hypotheses for n in range(1, len(ids))}) for hypotheses in lists
    )
    title = f"{len(lists)} lists, {tokens} tokens, {100 * nodes / tokens:.0f} % distinct prefixes"
    print_rows(f"{str(dtype)[6:]}: {title}", seconds, base=TREE)
    print_memory("above the model", list(names), scoring_mib, folder, dtype, args.lists)


def measure_training(folder: Path, rounds: int) -> None:
    """Print a table of training steps."""
    names = (PEFT, LORA, BAYES)
    seconds = interleave({name: training_step(folder, name) for name in names}, rounds)
    title = f"training, float32: {BATCH[0]} x {BATCH[1]} tokens, rank {RANK}"
    print_rows(title, seconds, base=PEFT)
    print(f"{BAYES} / {LORA}: {ratio(seconds[BAYES], seconds[LORA]):.2f}", flush=True)
    print_memory("with the model", names, training_mib, folder)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", type=int, default=3, help="How many lists are scored")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = started(parser)
    logging.disable(logging.WARNING)
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_lm(folder)
        for dtype in (torch.float32, torch.bfloat16):
            if dtype == torch.float32 or has_onednn(dtype):  # it would be emulated
                measure_scoring(folder, dtype, args)
                gc.collect()
        measure_training(folder, args.rounds)


if __name__ == "__main__":
    main()
