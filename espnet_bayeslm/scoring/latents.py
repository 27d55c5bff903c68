"""The Gaussians of an LM's latent variables over the tokens of a text."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch

from espnet_bayeslm.scoring.neural import TokenLM
from espnet_bayeslm.scoring.sequences import MAX_TOKENS, tokens_with_logits, vocab_size
from espnet_bayeslm.utils.cli import progress

Moments = List[Tuple[torch.Tensor, torch.Tensor]]


def latent_moments(
    trained: TokenLM, sentences: Sequence[Sequence[str]], *, max_tokens: int = MAX_TOKENS
) -> Dict[str, Moments]:
    """{location: (mean, std), ...} of q(z_t) at each token of a text, each (B, L, c)."""
    lm: Any = trained.lm
    encoded = [
        # <sos> w1 .. wn
        [vocab_size(lm) - 1, *(trained.ids(trained.tokenize(" ".join(words))) if words else [])]
        for words in sentences
    ]
    device = next(lm.parameters()).device
    bar = progress(desc="latent variables", unit="seq", total=len(encoded))
    with contextlib.closing(bar), torch.inference_mode(), _recorded(lm) as moments:
        for batch in _equal_batches(encoded, tokens_with_logits(max_tokens)):
            lm(torch.tensor(batch, device=device), None)
            bar.update(len(batch))
    return moments


def _equal_batches(sequences: List[List[int]], max_tokens: int) -> Iterator[List[List[int]]]:
    """Yield batches of sequences of one length, so that no padding is counted."""
    for length, group in itertools.groupby(sorted(sequences, key=len), key=len):
        while batch := list(itertools.islice(group, max(1, max_tokens // length))):
            yield batch


@contextlib.contextmanager
def _recorded(lm: Any) -> Iterator[Dict[str, Moments]]:
    """Collect mean and standard deviation of each latent variable in the block, by location."""
    outputs = dict(lm.latents())
    moments: Dict[str, Moments] = {location: [] for location in outputs}

    def keep(location: str, mean: torch.Tensor, std: torch.Tensor) -> None:
        moments[location].append((mean.cpu(), std.cpu()))

    for location, output in outputs.items():
        output.observer = functools.partial(keep, location)
    try:
        yield moments
    finally:
        for output in outputs.values():
            output.observer = None
