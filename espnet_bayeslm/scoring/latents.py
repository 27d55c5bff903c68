"""The Gaussians of an LM's latent variables over the tokens of a text."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Dict, List, Sequence, Tuple

import torch

from espnet_bayeslm.scoring.sequences import MAX_TOKENS, tokens_with_logits, vocab_size
from espnet_bayeslm.utils.cli import progress

Moments = List[Tuple[torch.Tensor, torch.Tensor]]


def latent_moments(
    trained: Any, sentences: Sequence[Sequence[str]], *, max_tokens: int = MAX_TOKENS
) -> Dict[str, Moments]:
    """{location: (mean, std), ...} of q(z_t) at each token of a text, each (B, L, c)."""
    lm = trained.lm
    encoded = [
        # <sos> w1 .. wn
        [vocab_size(lm) - 1, *(trained.ids(trained.tokenize(" ".join(words))) if words else [])]
        for words in sentences
    ]
    device = next(lm.parameters()).device
    moments: Dict[str, Moments] = {location: [] for location, _ in lm.latents()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        bar = stack.enter_context(progress(desc="latent variables", unit="seq", total=len(encoded)))
        for location, output in lm.latents():
            kept = moments[location]
            output.observer = lambda mean, std, kept=kept: kept.append((mean.cpu(), std.cpu()))
            stack.callback(setattr, output, "observer", None)
        # batches of one length, so that no padding is counted
        for length, group in itertools.groupby(sorted(encoded, key=len), key=len):
            size = max(1, tokens_with_logits(max_tokens) // length)
            while batch := list(itertools.islice(group, size)):
                lm(torch.tensor(batch, device=device), None)
                bar.update(len(batch))
    return moments
