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

from espnet_bayeslm.kernels.product import linear
from espnet_bayeslm.scoring.log_probs import (
    BLOCKS,
    Group,
    along_paths,
    batch_tree,
    targets_of,
    tree_batches,
)
from espnet_bayeslm.scoring.sequences import (
    MAX_TOKENS,
    Ids,
    check_finite,
    check_tokens,
    evaluating,
    num_draws,
    over_draws,
    require_tree,
    token_ids,
    tokens_with_logits,
    vocab_size,
)
from espnet_bayeslm.scoring.word_scores import Text, WordScores, sentences_of, words_of
from espnet_bayeslm.scoring.words import word_log_probs, word_sums
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
        log_probs = word_log_probs(of_tokens, starts, self.openings)
        sums = (word_sums(x, starts) for x in (self.entropy, self.mutual_information))
        return Uncertainty(log_probs[:-1], log_probs[-1], *sums)


def token_uncertainty(
    lm: Any,
    sequences: Sequence[Sequence[int]],
    *,
    num_samples: int,
    max_tokens: int = MAX_TOKENS,
    openings: Optional[torch.Tensor] = None,
) -> List[Uncertainty]:
    """Uncertainty of the tokens and `</s>` of each sequence.

    Args:
        lm: One of our LMs; where nothing in it is random, its own entropy is all it has.
        sequences: Token ids without `<sos/eos>`.
        num_samples: K, at least 1; more than 1 for the mutual information not to be 0.
        max_tokens: The most distinct prefixes of a batch.
        openings: (V,) bool, True for the tokens that end the word before them; or None.
    """
    require_tree(lm, "uncertainty")
    if num_samples < 1:
        raise InputError(f"num_samples is {num_samples} where 1 or more was expected")
    known = token_ids(sequences)
    unique = sorted(set(known))
    check_tokens(unique, vocab_size(lm))
    draws = num_draws(lm, num_samples)
    if not draws:
        LOG.warning("nothing in the LM is random: it is certain of its weights")
    max_tokens = min(max_tokens, max(1, MAX_OUTPUTS // max(draws, 1)))
    found: Dict[Ids, Uncertainty] = {}
    if openings is not None:
        openings = openings.to(lm.decoder.weight.device)
    decoders = over_draws(lm, num_samples, lambda _: (lm.decoder.weight, lm.decoder.bias))
    with evaluating(lm), progress(desc="uncertainty", unit="seq", total=len(unique)) as bar:
        for group in tree_batches(unique, max_tokens=max_tokens):
            found.update(
                zip(group, _batch(lm, group, decoders, num_samples, openings), strict=True)
            )
            bar.update(len(group))
    return [found[ids] for ids in known]


def _batch(
    lm: Any,
    group: Group,
    decoders: Pairs,
    num_samples: int,
    openings: Optional[torch.Tensor],
) -> Iterator[Uncertainty]:
    """Yield the uncertainty of each sequence of a batch."""
    tree, paths = batch_tree(lm, group)
    contexts, targets = targets_of(tree, paths, lm.vocab_size - 1)
    # K times (T, M)
    outputs = over_draws(lm, num_samples, lambda _: lm.tree_outputs(tree))
    draws = np.zeros((len(outputs), 1 if openings is None else 2, len(contexts)))
    entropies = np.zeros((2, len(contexts)))
    height, _ = BLOCKS.get(contexts.device.type, BLOCKS["cuda"])
    for start in range(0, len(tree), height):
        mine = ((contexts >= start) & (contexts < start + height)).nonzero().squeeze(1)
        rows, tokens, places = contexts[mine] - start, targets[mine], mine.cpu().numpy()
        mean: Any = 0
        of_draws: Any = 0
        for k, (output, (weight, bias)) in enumerate(zip(outputs, decoders, strict=True)):
            logits = linear(output[start : start + height], weight, bias)
            log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
            p = log_p.exp()
            mean = mean + p
            of_draws = of_draws - (p * log_p).sum(1)
            draws[k, 0, places] = _numpy(log_p[rows, tokens])
            if openings is not None:
                draws[k, 1, places] = _numpy(log_p[:, openings].logsumexp(1)[rows])
        mean = mean / len(outputs)
        both = torch.stack([-torch.xlogy(mean, mean).sum(1), of_draws / len(outputs)])
        entropies[:, places] = _numpy(both[:, rows])
    check_finite(draws)
    information = np.maximum(entropies[0] - entropies[1], 0) * (len(outputs) > 1)
    # (K or 2 K) + 2 rows
    values = np.concatenate([*draws.swapaxes(0, 1), [entropies[0], information]])
    for found in along_paths(values, tree, paths):
        opens = None if openings is None else found[len(outputs) : -2]
        yield Uncertainty.of_draws(found[: len(outputs)], found[-2:], opens)


def _numpy(x: torch.Tensor) -> np.ndarray:
    return x.to("cpu", torch.float64).numpy()


class LoadedLM:
    """An LM as `espnet_bayeslm.load` returns it: it scores sentences, strings or lists of words."""

    def _scorer(self, num_samples: int) -> Any:
        """Scorer of sentences, with weight samples or the posterior mean (0)."""
        raise NotImplementedError

    def score(self, text: Text, *, num_samples: int = 0) -> float:
        """Ln P(text, end) of a sentence, a string or its words, in nats.

        With `num_samples` the probabilities of so many weight samples are averaged; 0: the
        posterior mean.
        """
        return float(self.word_scores([text], num_samples=num_samples)[0].log_probs.sum())

    def word_scores(self, texts: Sequence[Text], *, num_samples: int = 0) -> List[WordScores]:
        """Ln p of each word and of the end of sentences, strings or lists of words, in nats.

        With `num_samples` the probabilities of so many weight samples are averaged; 0: the
        posterior mean.

        Raises:
            InputError: One string, where a list of sentences is expected.
        """
        return self._scorer(num_samples).word_scores(sentences_of(texts))

    def uncertainty(self, text: Text, *, num_samples: int = 10) -> Uncertainty:
        """Uncertainty of the LM about each word and the end of a sentence, in nats."""
        return self._scorer(num_samples).uncertainty([words_of(text)])[0]


def latent_moments(
    trained: Any, sentences: Sequence[Sequence[str]], *, max_tokens: int = MAX_TOKENS
) -> Dict[str, Pairs]:
    """{location: (mean, std), ...} of q(z_t) at each token of a text, each (B, L, c)."""
    lm = trained.lm
    encoded = [
        # <sos> w1 .. wn
        [vocab_size(lm) - 1, *(trained.ids(trained.tokenize(" ".join(words))) if words else [])]
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
