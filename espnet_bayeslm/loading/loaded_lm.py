"""LMs as `espnet_bayeslm.load` returns them."""

from __future__ import annotations

import dataclasses
import functools
from typing import List, Sequence

from espnet_bayeslm.pretrained.causal_lm import CausalLM
from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer
from espnet_bayeslm.scoring.scorer import LMScorer
from espnet_bayeslm.scoring.uncertainty import Uncertainty
from espnet_bayeslm.scoring.word_scores import Text, WordScores, sentences_of, words_of


class LoadedLM:
    """An LM as `espnet_bayeslm.load` returns it: it scores sentences, strings or lists of words."""

    def _scorer(self, num_samples: int) -> LMScorer:
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


@dataclasses.dataclass(frozen=True)
class PretrainedLM(CausalLM, LoadedLM):
    """A causal LM with its own tokenizer, which scores sentences in a form of the text.

    `PretrainedLM(**vars(lm))` makes it of a `CausalLM`.
    """

    @functools.cached_property
    def scorer(self) -> PretrainedScorer:
        """Scorer of its words."""
        return PretrainedScorer(self)

    def _scorer(self, num_samples: int) -> PretrainedScorer:
        self.scorer.num_samples = num_samples
        return self.scorer
