"""A neural LM as a scorer of words, from the log-probabilities of its tokens.

Self-normalised scoring (Chen et al. 2016) takes one number in place of every context's ln Z. An LM
whose training held the spread of ln Z down (`self_normalization` of `bayes_lm`) needs no softmax:
its logits minus the mean ln Z are nearly log-probabilities.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.lm.scoring import is_random
from espnet_bayeslm.scoring import MAX_CONTEXT, MAX_TOKENS
from espnet_bayeslm.scoring.log_probs import Ids, batch_tree, log_normalizers, tree_batches
from espnet_bayeslm.scoring.sequences import (
    Histories,
    History,
    Normalizer,
    check_finite,
    check_tokens,
    extend,
    over_draws,
    require_tree,
    running_log_probs,
    score_in_context,
    token_log_probs,
    vocab_size,
)
from espnet_bayeslm.scoring.uncertainty import Uncertainty, token_uncertainty
from espnet_bayeslm.scoring.word_scores import WordScores, log_unk_size
from espnet_bayeslm.scoring.words import (
    check_is_plain,
    marked_tokens,
    opening_tokens,
    tokens_of_words,
    word_log_probs,
    word_sums,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

NUM_CONTEXTS = 512
# Standard deviation of ln Z, in nats, above which scores without it are far from exact
LARGE_STD = 1.0


class NeuralScorer:
    """Scores words by a neural LM over words, sentencepieces or characters.

    Args:
        trained: The LM with its tokenizer (`loading.trained_lm.TrainedLM`).
        num_samples: Number of weight samples whose probabilities are averaged; 0: the posterior
            mean.
        max_tokens: The most tokens of a batch.
        self_normalized: True if one number is taken for every context's ln Z: the mean over a
            subset of the contexts of the first sentences that are scored.
        max_context: The most tokens before an utterance that a Transformer reads again.
        context: Number of sentences of a text before each sentence that the LM reads first
            (`running_log_probs`); 0: each sentence by itself.
        unk_size: Number of words that share the probability of `<unk>`, where tokens are words.

    Attributes:
        normalizer: Mean of ln Z and its spread, once they are known; may be set before.
        log_unk_size: Cost of each `<unk>`, since words share its probability, in nats.
        openings: (V,) bool, True for the tokens that end the word before them; None where a
            token is a word.
    """

    def __init__(
        self,
        trained: Any,
        *,
        num_samples: int = 0,
        max_tokens: int = MAX_TOKENS,
        self_normalized: bool = False,
        max_context: int = MAX_CONTEXT,
        context: int = 0,
        unk_size: float = 1.0,
    ):
        if getattr(trained.lm, "is_less", False):
            raise InputError(
                f"{trained.name}: an LM is subtracted in it, so its scores are no probabilities:"
                " it is for ESPnet's decoding alone",
                remedy="Give its LMs apart, by --lm and --subtract_lm.",
            )
        self.name = trained.name
        self.trained = trained
        self.num_samples = num_samples
        self.max_tokens = max_tokens
        self.unk = trained.token_list.index("<unk>")
        self.self_normalized = self_normalized
        self.max_context, self.context = max_context, context
        self.normalizer: Optional[Normalizer] = None
        self.openings = opening_tokens(trained.token_list, trained.token_type)
        # an LM over words may have pieces as words
        self._marked = marked_tokens(trained.token_list if trained.token_type != "word" else ())
        self._tokens: Dict[str, List[str]] = {}
        self.log_unk_size = log_unk_size(unk_size) if trained.token_type == "word" else 0.0

    @property
    def is_uncertain(self) -> bool:
        """True if something in the LM is random."""
        return is_random(self.trained.lm)

    def check_plain(self, sentences: Sequence[Sequence[str]]) -> None:
        """Raise an InputError if most sentences are in tokens already."""
        check_is_plain(sentences, self._marked, name=self.name)

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of each sentence; a word is OOV where a token of it is `<unk>`."""
        self.check_plain(sentences)
        encoded = [self._encode(words) for words in sentences]
        sequences = [ids for ids, _ in encoded]
        options = self._options(sequences)
        if self.context:
            found = running_log_probs(self.trained.lm, sequences, context=self.context, **options)
        else:
            found = token_log_probs(self.trained.lm, sequences, **options)
        return self._of_words(encoded, found)

    def scores_in_context(
        self, groups: Sequence[Sequence[Sequence[str]]], histories: Histories
    ) -> List[List[WordScores]]:
        """Scores of the hypotheses of an utterance, in each of some recordings.

        Histories are those of the recordings, as `extended` returned them; None: the beginning.
        """
        self.check_plain([words for group in groups for words in group])
        encoded = [[self._encode(words) for words in group] for group in groups]
        sequences = [[ids for ids, _ in group] for group in encoded]
        options = self._options([ids for group in sequences for ids in group])
        found = score_in_context(self.trained.lm, sequences, histories, **options)
        return list(map(self._of_words, encoded, found))

    def extended(self, histories: Histories, sentences: Sequence[Sequence[str]]) -> List[History]:
        """Histories after one more sentence of each recording."""
        chosen = [self._encode(words)[0] for words in sentences]
        options = dict(num_samples=self.num_samples, max_context=self.max_context)
        return extend(self.trained.lm, histories, chosen, **options)

    def uncertainty(self, sentences: Sequence[Sequence[str]]) -> List[Uncertainty]:
        """Uncertainty of the words and `</s>` of each sentence, over `num_samples`.

        The entropies of a word of several tokens are sums over them.
        """
        encoded = [self._encode(words) for words in sentences]
        found = token_uncertainty(
            self.trained.lm,
            [ids for ids, _ in encoded],
            num_samples=self.num_samples,
            max_tokens=self.max_tokens,
            openings=self.openings,
        )
        return [
            tokens.of_words(starts, self.log_unk_size * self._unknown_tokens(ids))
            for tokens, (ids, starts) in zip(found, encoded, strict=True)
        ]

    def prepare(self, sentences: Sequence[Sequence[str]]) -> None:
        """Measure ln Z on these sentences, where one number is taken for it and none is known."""
        self._options([self._encode(words)[0] for words in sentences])

    def _options(self, sequences: Sequence[Sequence[int]]) -> Dict[str, Any]:
        """Options of scoring, once ln Z is known where it has to be."""
        if self.self_normalized and self.normalizer is None:
            self.normalizer = measure_normalizer(
                self.trained.lm, sequences, num_samples=self.num_samples
            )
        return {
            "max_tokens": self.max_tokens,
            "num_samples": self.num_samples,
            "openings": self.openings,
            "normalizer": self.normalizer if self.self_normalized else None,
        }

    def _of_words(
        self, encoded: Sequence[Tuple[List[int], List[int]]], found: Sequence[np.ndarray]
    ) -> List[WordScores]:
        """Scores of the words of sentences from the scores of their tokens."""
        scores = []
        for (ids, starts), values in zip(encoded, found, strict=True):
            unknown = self._unknown_tokens(ids)
            if self.trained.token_type != "word":
                log_probs, ends = (values, None) if self.openings is None else values
                values = word_log_probs(log_probs, starts, ends)
                unknown = word_sums(unknown, starts) > 0
            scores.append(WordScores(values - self.log_unk_size * unknown, unknown))
        return scores

    def _unknown_tokens(self, ids: Sequence[int]) -> np.ndarray:
        """True for each token that is `<unk>`, (n + 1,)."""
        return np.array([*(token == self.unk for token in ids), False])

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """(n + 1,) tokens of each word of a sentence and of `</s>`."""
        ids, starts = self._encode(words)
        return np.diff([*starts, len(ids) + 1])

    def unknown(self, words: Sequence[str]) -> List[bool]:
        """True for each word that has `<unk>` among its tokens."""
        return [self.unk in self._encode([word])[0] for word in words]

    def word_tokens(self, word: str) -> Tuple[List[int], List[int]]:
        """Token ids of a word as the first of a sentence, and as a later one."""
        ids, starts = self._encode([word, word])
        return ids[: starts[1]], ids[starts[1] :]

    def _encode(self, words: Sequence[str]) -> Tuple[List[int], List[int]]:
        """Token ids, and where each word and `</s>` start in them."""
        if self.trained.token_type != "word":
            tokens, starts = tokens_of_words(words, self.trained.tokenize, self._tokens)
            return self.trained.ids(tokens), starts
        tokens = self.trained.tokenize(" ".join(words)) if words else []
        if len(tokens) != len(words):
            raise InputError(
                f"{self.name}: the sentence {' '.join(words)!r} has {len(words)} words, and"
                f" {len(tokens)} word tokens: {tokens}",
                remedy="The tokenizer drops or splits words: normalise the text as for training.",
            )
        return self.trained.ids(tokens), list(range(len(words) + 1))


def measure_normalizer(
    lm: Any,
    sequences: Sequence[Sequence[int]],
    *,
    num_contexts: int = NUM_CONTEXTS,
    num_samples: int = 0,
) -> Normalizer:
    """Mean and standard deviation of ln Z over a subset of the distinct contexts.

    The subset is the same whatever the order of the sequences. Workers that share their work should
    share one result too: another constant shifts the score of every word.

    Args:
        lm: One of our LMs.
        sequences: Token ids without `<sos/eos>`.
        num_contexts: Approximate number of contexts; whole sequences are taken.
        num_samples: Number of weight samples; 0: the posterior mean.
    """
    require_tree(lm, "self-normalised scoring")
    texts = sorted({tuple(ids) for ids in sequences})
    chosen: List[Ids] = []
    for index in np.random.default_rng(0).permutation(len(texts)):
        if sum(len(ids) + 1 for ids in chosen) >= num_contexts:
            break
        chosen.append(texts[index])
    chosen = sorted(chosen) or [()]
    check_tokens(chosen, vocab_size(lm))

    def measure(_: int) -> np.ndarray:
        groups = tree_batches(chosen, max_tokens=num_contexts)
        outputs = (lm.tree_outputs(batch_tree(lm, group)[0]) for group in groups)
        found = [log_normalizers(y, lm.decoder.weight, lm.decoder.bias) for y in outputs]
        return torch.cat(found).to("cpu", torch.float64).numpy()

    every = np.concatenate(over_draws(lm, num_samples, measure))
    check_finite(every)
    normalizer = Normalizer(float(every.mean()), float(every.std()))
    LOG.info("ln Z is %.3f +- %.3f over %d contexts", *normalizer, len(every))
    if normalizer.std > LARGE_STD:
        LOG.warning(
            "ln Z has a standard deviation of %.2f nats: train the LM with self_normalization"
            " before scoring without the softmax",
            normalizer.std,
        )
    return normalizer
