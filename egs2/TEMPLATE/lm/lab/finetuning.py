"""Fine-tuning of all weights of a pretrained LM, which adapters are compared with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.pretrained.text_forms import Reader, training_reader
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.log import LOG
from lab.texts import read_sentences

NAME = "finetune"
# As of the configuration `lora`
GAMMA, GRAD_CLIP, AVERAGED = 0.5, 5.0, 2
FORM, PADDING = "as_is", -100


def main(cmd: Sequence[str]) -> None:
    """Run `finetune`, or a program of `bayeslm`."""
    if cmd[0] != NAME:
        bayeslm.main(cmd)
        return
    tool = Tool(NAME, __doc__.splitlines()[0], finetune)
    parser = tool.parser()
    for name in ("base", "precision"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("train_text", "valid_text", "exp"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("batch_bins", "max_epoch", "patience", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    tool.main(cmd[1:], parser)


def finetune(
    *,
    base: str,
    precision: str,
    train_text: Path,
    valid_text: Path,
    batch_bins: int,
    max_epoch: int,
    patience: int,
    seed: int,
    lr: float,
    exp: Path,
) -> None:
    """Write EXP/lm, the average of the best epochs, and the statistics of a checkpoint of ESPnet's.

    As the configuration `lora` trains: the rate halves after each epoch, and training ends after
    `patience` + 1 epochs without a gain. The weights stay in float32; with the precision bfloat16
    the products are in it.
    """
    lm = load_causal_lm(base)
    reader = training_reader(lm.tokenizer, FORM)
    train, valid = (read_ids(path, reader) for path in (train_text, valid_text))
    # faster on short sentences than the fused operator's backward pass
    lm.model.set_attn_implementation("eager")
    optimizer = torch.optim.AdamW(lm.model.parameters(), lr=lr, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, GAMMA)
    order = random.Random(seed)
    perplexities: List[float] = []
    kept: List[Tuple[float, Dict[str, torch.Tensor]]] = []
    for epoch in range(max_epoch):
        lm.model.train()
        order.shuffle(train)
        for batch in batches(train, batch_bins):
            optimizer.zero_grad(set_to_none=False)
            total, count = nll(lm.model, batch, precision)
            (total / count).backward()
            nn.utils.clip_grad_norm_(lm.model.parameters(), GRAD_CLIP)
            optimizer.step()
        schedule.step()
        perplexities.append(perplexity(lm.model, valid, batch_bins, precision))
        LOG.info("epoch %d: valid ppl %.2f", epoch + 1, perplexities[-1])
        state = {name: value.clone() for name, value in lm.model.state_dict().items()}
        kept = sorted([*kept, (perplexities[-1], state)], key=lambda one: one[0])[:AVERAGED]
        if epoch - perplexities.index(min(perplexities)) > patience:
            break
    states = [state for _, state in kept]
    average = {name: sum(state[name] for state in states) / len(states) for name in states[0]}
    lm.model.load_state_dict(average)
    lm.model.save_pretrained(exp / "lm")
    lm.tokenizer.save_pretrained(exp / "lm")
    stats = {n: {"valid": {"ppl": value}} for n, value in enumerate(perplexities, start=1)}
    torch.save({"reporter": {"stats": stats}}, exp / "checkpoint.pth")


def read_ids(path: Path, reader: Reader) -> List[torch.Tensor]:
    """Tokens of each sentence of a text, with what stands before and after it."""
    sentences = map(str.split, read_sentences(path))
    return [torch.tensor([*reader.start, *reader.encode(words).ids]) for words in sentences]


def batches(sentences: Sequence[torch.Tensor], bins: int) -> Iterator[torch.Tensor]:
    """Sentences that follow one another, (B, L) with padding, of at most `bins` tokens with it."""
    batch: List[torch.Tensor] = []
    for ids in sentences:
        if batch and max(map(len, [*batch, ids])) * (len(batch) + 1) > bins:
            yield pad_sequence(batch, batch_first=True, padding_value=PADDING)
            batch = []
        batch.append(ids)
    yield pad_sequence(batch, batch_first=True, padding_value=PADDING)


def nll(model: Any, batch: torch.Tensor, precision: str) -> Tuple[torch.Tensor, int]:
    """-ln P of the tokens of (B, L) after the first of each row, summed, and their number."""
    real, targets = batch != PADDING, batch[:, 1:]
    # once for each batch: weights in bfloat16 are kept until it ends
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        logits = model(input_ids=batch.clamp(min=0), attention_mask=real.long()).logits[:, :-1]
    total = nn.functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=PADDING, reduction="sum"
    )
    return total, int(real[:, 1:].sum())


@torch.no_grad()
def perplexity(model: Any, sentences: Sequence[torch.Tensor], bins: int, precision: str) -> float:
    """Perplexity of a token."""
    model.eval()
    found = [nll(model, batch, precision) for batch in batches(sentences, bins)]
    totals, counts = zip(*found, strict=True)
    return float((sum(totals) / sum(counts)).exp())
