"""Uncertainty of a Bayesian LM about each token: about the word, and about its own weights.

Take K samples of the weights, with p_k the k-th LM's distribution of the next token and p their
mean. The predictive entropy H[p] is the whole uncertainty. The mutual information between token and
weights, H[p] - mean_k H[p_k], is the part that more training text would remove (Depeweg et al.
2018). All are in nats.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from espnet_bayeslm.kernels.product import linear
from espnet_bayeslm.scoring import MAX_TOKENS
from espnet_bayeslm.scoring.log_probs import BLOCKS, diverged_error, word_sums
from espnet_bayeslm.scoring.tree_lm import Passage, TreeLM, tokens_with_logits
from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

# The most outputs that are held, of all samples together
MAX_OUTPUTS = 1 << 16
Pairs = List[Tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """Uncertainty measures of n tokens, or words, and of `</s>`.

    Attributes:
        draws: (K, n + 1) ln p_k of each token under each sample.
        log_probs: (n + 1,) ln of each token's mean probability (of a word: of its tokens).
        entropy: (n + 1,) H[p].
        mutual_information: (n + 1,) H[p] - mean_k H[p_k], 0 or more.
        openings: (K + 1, n + 1) ln of the probability that the word before has ended, under each
            sample and of the mean probability; None: the probability is 1.
    """

    draws: np.ndarray
    log_probs: np.ndarray
    entropy: np.ndarray
    mutual_information: np.ndarray
    openings: Optional[np.ndarray] = None

    @property
    def variance(self) -> np.ndarray:
        """Variance over the samples of ln p_k, (n + 1,)."""
        return self.draws.var(axis=0)

    @classmethod
    def of_draws(
        cls, draws: np.ndarray, entropies: np.ndarray, openings: Optional[np.ndarray] = None
    ) -> Uncertainty:
        """Uncertainty from ln p and ln P(opening) under K samples, and both entropies."""

        def mean(rows: np.ndarray) -> np.ndarray:
            return np.logaddexp.reduce(rows) - np.log(len(rows))

        if openings is not None:
            openings = np.concatenate([openings, [mean(openings)]])
        return cls(draws, mean(draws), entropies[0], entropies[1], openings)

    def of_words(self, starts: Sequence[int], costs: ArrayLike = 0.0) -> Uncertainty:
        """Uncertainty of words: ln p of a word, and sums of the entropies over its tokens.

        The ln p of each token is less by its cost, (n + 1,), as `<unk>` has one. The sums are not
        the entropies of the word's distribution.
        """
        of_tokens = np.concatenate([self.draws, self.log_probs[None]]) - costs
        log_probs = word_sums(of_tokens, starts, self.openings)
        sums = (word_sums(x, starts) for x in (self.entropy, self.mutual_information))
        return Uncertainty(log_probs[:-1], log_probs[-1], *sums)


def token_uncertainty(
    lm: TreeLM,
    passages: Sequence[Passage],
    *,
    num_samples: int,
    openings: Optional[torch.Tensor] = None,
) -> List[Uncertainty]:
    """Uncertainty of the scored tokens of each passage.

    Args:
        lm: The LM; where nothing in it is random, its own entropy is all it has.
        passages: Tokens to score.
        num_samples: K, at least 1; more than 1 for the mutual information not to be 0.
        openings: (V,) bool, True for the tokens that end the word before them; or None.
    """
    lm.require("uncertainty")
    if num_samples < 1:
        raise InputError(f"num_samples is {num_samples} where 1 or more was expected")
    num_draws = len(lm.samples(num_samples))
    if not lm.is_uncertain:
        LOG.warning("nothing in the LM is random: it is certain of its weights")
    max_nodes = min(lm.max_nodes, max(1, MAX_OUTPUTS // num_draws))
    found: Dict[Passage, Uncertainty] = {}
    if openings is not None:
        openings = nn.functional.pad(openings, (0, lm.vocab_size - len(openings)))
    total = len(set(passages))
    with lm.held(), progress(desc="uncertainty", unit="seq", total=total) as bar:
        for batch in lm.batches(passages, max_nodes):
            found.update(zip(batch, _of_batch(lm, batch, num_samples, openings), strict=True))
            bar.update(len(batch))
    return [found[passage] for passage in passages]


def _of_batch(
    lm: TreeLM, batch: Sequence[Passage], num_samples: int, openings: Optional[torch.Tensor]
) -> Iterator[Uncertainty]:
    """Yield the uncertainty of each passage of a batch."""
    read: List[Tuple[torch.Tensor, Tuple[torch.Tensor, ...]]] = []
    for sample in lm.samples(num_samples):
        with sample:
            outputs, paths = lm.read(batch)
            decoder = lm.decoder
            read.append((outputs, () if decoder is None else (decoder.weight, decoder.bias)))
    last = [path[len(path) - p.scored :] for p, path in zip(batch, paths, strict=True)]
    # N tokens after T distinct contexts
    used, places = np.unique(np.concatenate(last), return_inverse=True)
    targets = np.array([t for p in batch for t in p.tokens[len(p.tokens) - p.scored :]])
    device = read[0][0].device
    rows = torch.from_numpy(used).to(device)
    parts = [(outputs[rows], projection) for outputs, projection in read]
    draws = np.zeros((len(parts), 1 if openings is None else 2, len(targets)))
    entropies = np.zeros((2, len(used)))
    height, _ = BLOCKS.get(device.type, BLOCKS["cuda"])
    for start in range(0, len(used), height):
        mine = np.flatnonzero((places >= start) & (places < start + height))
        own, tokens = (torch.from_numpy(x[mine]).to(device) for x in (places - start, targets))
        mean: Any = 0
        of_draws: Any = 0
        for k, (outputs, projection) in enumerate(parts):
            logits = outputs[start : start + height]
            if projection:
                logits = linear(logits, *projection)
            log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
            p = log_p.exp()
            mean = mean + p
            of_draws = of_draws - (p * log_p).sum(1)
            draws[k, 0, mine] = _numpy(log_p[own, tokens])
            if openings is not None:
                masses = log_p[:, openings.to(device)].logsumexp(1)
                draws[k, 1, mine] = _numpy(masses[own])
        mean = mean / len(parts)
        pair = torch.stack([-torch.xlogy(mean, mean).sum(1), of_draws / len(parts)])
        entropies[:, start : start + height] = _numpy(pair)
    if not np.isfinite(draws).all():
        raise diverged_error()
    entropies[1] = np.maximum(entropies[0] - entropies[1], 0) * (len(parts) > 1)
    ends = np.cumsum([passage.scored for passage in batch])[:-1]
    of_tokens = np.split(draws, ends, axis=-1), np.split(entropies[:, places], ends, axis=-1)
    for values, both in zip(*of_tokens, strict=True):
        opens = None if openings is None else values[:, 1]
        yield Uncertainty.of_draws(values[:, 0], both, opens)


def _numpy(x: torch.Tensor) -> np.ndarray:
    return x.to("cpu", torch.float64).numpy()


def latent_moments(
    trained: Any, sentences: Sequence[Sequence[str]], *, max_tokens: int = MAX_TOKENS
) -> Dict[str, Pairs]:
    """{location: (mean, std), ...} of q(z_t) at each token of a text, each (B, L, c)."""
    lm = trained.lm
    encoded = [
        # <sos> w1 .. wn
        [lm.vocab_size - 1, *(trained.ids(trained.tokenize(" ".join(words))) if words else [])]
        for words in sentences
    ]
    device = next(lm.parameters()).device
    moments: Dict[str, Pairs] = {location: [] for location, _ in lm.latents()}
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
