"""Searches whose weights are tuned: scores of their hypotheses, ESPnet's search and Whisper's."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.decoding.fusion_lm import FusionLM
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.recognisers.espnet_asr import BeamSearch
from espnet_bayeslm.recognisers.whisper import WhisperSearch
from espnet_bayeslm.rescoring.features import BIAS, LM
from espnet_bayeslm.scoring.sequences import score_hypotheses

if TYPE_CHECKING:
    from espnet_bayeslm.decoding.generate import WordFusion

Key = Tuple[Any, ...]
"""Tokens or words that tell a hypothesis from others."""


class FusionWeights(NamedTuple):
    """Weights of a search.

    Attributes:
        lm_weight: Of the LMs that are fused.
        penalty: Bonus of each token, as ESPnet's option `penalty`, or of each word.
        ahead_weight: Of the look-ahead, where that of the LMs is 1.
        bias_weight: Of a phrase of the bias list, in nats of the recogniser.
    """

    lm_weight: float
    penalty: float
    ahead_weight: float
    bias_weight: float = 0.0


def in_fusion(weights: FusionWeights) -> float:
    """Weight of a phrase within a fusion, which the weight of the LMs multiplies."""
    return weights.bias_weight / (weights.lm_weight or 1.0)


class Heard(NamedTuple):
    """A hypothesis of some round.

    Attributes:
        am_score: Weighted sum of the recogniser's own scores.
        errors: Word errors.
        log_prob: Ln P of its text by the LMs; None: not computed yet.
        ahead: Ln P of its tokens by the look-ahead, where that stays.
        bias: Phrases of the bias list, each with its own weight.
        decoy: Phrases of the bias list without what was said.
        outside: Word errors outside of the bias list.
        length: Number of tokens with the end, or of words, that have a bonus.
    """

    am_score: float
    errors: int
    log_prob: Optional[float] = None
    ahead: float = 0.0
    bias: float = 0.0
    decoy: float = 0.0
    outside: int = 0
    length: int = 0


class SearchParts(NamedTuple):
    """Scores of a search that have weights.

    Attributes:
        lms: True with LMs; else their weight is 1 in a search with a bias list.
        length: True where tokens or words have a bonus.
        ahead: True with a look-ahead that stays.
        bias: True with bias lists.
        bias_in_lm: True where a bias list is a part of the LMs, whose weight then is not 0.
    """

    lms: bool = True
    length: bool = True
    ahead: bool = False
    bias: bool = False
    bias_in_lm: bool = True

    def _of(self, values: Sequence[Any]) -> List[Any]:
        """Those of five values that belong to the scores that there are."""
        used = (True, self.lms, self.length, self.ahead, self.bias)
        return [value for value, is_used in zip(values, used, strict=True) if is_used]

    @property
    def names(self) -> Tuple[Tuple[str, ...], ...]:
        """Names of the features."""
        return tuple((name,) for name in self._of(("am_score", LM, "length", "ahead", BIAS)))

    def features(self, heard: Heard, *, decoy: bool = False) -> List[float]:
        """Features of a hypothesis, (F,)."""
        bias = heard.decoy if decoy else heard.bias
        return self._of((heard.am_score, heard.log_prob, heard.length, heard.ahead, bias))

    def vector(self, weights: FusionWeights) -> np.ndarray:
        """Weights of the features, (F,)."""
        lm, penalty, ahead, bias = weights
        return np.array(self._of((1.0, lm, penalty, lm * ahead, bias)))

    def weights(self, vector: np.ndarray, before: FusionWeights) -> Optional[FusionWeights]:
        """Weights of a search from those of the features; None where some has none."""
        values = dict(zip(self.names, vector.tolist(), strict=True))
        am, lm = values[("am_score",)], values.get((LM,), 1.0)
        scaled = self.ahead or (self.bias and self.bias_in_lm)
        if am <= 0 or lm < 0 or (lm == 0 and scaled):
            return None
        lm_weight = lm / am if self.lms else 1.0
        ahead = max(values[("ahead",)] / lm, 0.0) if self.ahead else before.ahead_weight
        length, bias = (values.get((name,), 0.0) / am for name in ("length", BIAS))
        found = (lm_weight, length, ahead, bias)
        return FusionWeights(*(round(float(value), 3) for value in found))


class TunedSearch(Protocol):
    """A recogniser's search whose weights are tuned.

    Attributes:
        parts: Scores that have weights.
        start: Weights of the search without an LM.
    """

    parts: SearchParts
    start: FusionWeights

    def first(self, found: FusionWeights, has_bias: bool) -> FusionWeights:
        """Weights of the first round with an LM.

        Args:
            found: Weights that are found on the lists of the search without an LM.
            has_bias: True with bias lists.
        """

    def set_weights(self, weights: FusionWeights) -> None:
        """Set the weights of the next searches."""

    def search(self, samples: np.ndarray, *bias: BiasList) -> Mapping[Key, Hypothesis]:
        """Hypotheses of a recording, the best first; `bias` is its bias list, with bias lists."""

    def length(self, key: Key) -> int:
        """Number of tokens or words that have a bonus."""

    def log_probs(self, keys: Sequence[Key]) -> Sequence[Tuple[float, float]]:
        """Ln P of hypotheses by the LMs, and of their tokens by a look-ahead that stays."""

    def counted(self, words: Sequence[str]) -> Sequence[str]:
        """Words in the form in which errors are counted."""

    def spelled(self, words: Sequence[str]) -> Sequence[str]:
        """Words as they are compared with phrases."""


class ESPnetSearch:
    """ESPnet's beam search.

    Args:
        search: The recogniser with an LM: a fusion, or another LM of the recogniser's tokens.
        alone: The recogniser without an LM.
    """

    def __init__(self, search: BeamSearch, alone: BeamSearch):
        self._with_lm, self._alone, self._now = search, alone, alone
        self._fusion = search.lm if isinstance(search.lm, FusionLM) else None
        self._given_bias = 0.0 if self._fusion is None else self._fusion.bias_weight
        self.parts, self.start = SearchParts(), FusionWeights(0.0, 0.0, 0.0)
        if (fusion := self._fusion) is not None:
            self.parts = SearchParts(lms=fusion.has_lms, ahead=fusion.ahead_stays)
            if fusion.ahead is not None or self.parts.lms:
                self.start = FusionWeights(0.0, 0.0, fusion.ahead_weight)

    def first(self, found: FusionWeights, has_bias: bool) -> FusionWeights:
        """Weights that are found; lists of a search without phrases say nothing of phrases."""
        least = self._given_bias if has_bias else 0.0
        return found._replace(bias_weight=max(found.bias_weight, least))

    def set_weights(self, weights: FusionWeights) -> None:
        """Set the weights of the next searches."""
        self._now = self._with_lm if weights.lm_weight else self._alone
        self._now.set_weights(lm=weights.lm_weight, length_bonus=weights.penalty)
        if self._fusion is not None:
            self._fusion.ahead_weight = weights.ahead_weight
            self._fusion.bias_weight = in_fusion(weights)

    def search(self, samples: np.ndarray, *bias: BiasList) -> Mapping[Key, Hypothesis]:
        """Hypotheses of a recording, the best first."""
        return self._now.with_tokens(samples, *bias)

    def length(self, key: Key) -> int:
        """Number of tokens, with the end."""
        return len(key) + 1

    def log_probs(self, keys: Sequence[Key]) -> Sequence[Tuple[float, float]]:
        """Ln P of hypotheses by the LMs, and by the look-ahead."""
        tokens, fusion = [[list(ids) for ids in keys]], self._fusion
        if fusion is None:
            return [(value, 0.0) for value in score_hypotheses(self._with_lm.lm, tokens)[0]]
        ahead = [0.0] * len(keys)
        if fusion.ahead_stays:
            ahead = score_hypotheses(fusion.ahead, tokens)[0]
        return [*zip(fusion.text_log_probs(keys), ahead, strict=True)]

    def counted(self, words: Sequence[str]) -> Sequence[str]:
        """The words."""
        return words

    def spelled(self, words: Sequence[str]) -> Sequence[str]:
        """Words as the fusion normalises them."""
        return words if self._fusion is None else self._fusion.payments.normalised(words)


class GenerateSearch:
    """Whisper's beam search, by `generate`.

    Args:
        recogniser: The recogniser.
        fusion: Its LMs and bias lists.
    """

    def __init__(self, recogniser: WhisperSearch, fusion: WordFusion):
        self._recogniser, self._fusion = recogniser, fusion
        self._given, lms = dict(fusion.weights), fusion.mixture is not None
        self.parts = SearchParts(lms=lms, length=lms, bias_in_lm=False)
        self.start = FusionWeights(0.0, 0.0, 0.0)

    def first(self, found: FusionWeights, has_bias: bool) -> FusionWeights:
        """Weights of the fusion as it is given: lists without LMs say little of a word's bonus."""
        own = self._given
        return FusionWeights(
            own["lm_weight"] if self.parts.lms else found.lm_weight,
            own["word_bonus"] if self.parts.lms else 0.0,
            0.0,
            own["bias_weight"] if has_bias else 0.0,
        )

    def set_weights(self, weights: FusionWeights) -> None:
        """Set the weights of the next searches."""
        self._recogniser.lm = None if weights == self.start else self._fusion
        bonus, bias = weights.penalty, weights.bias_weight
        self._fusion.set_weights(lm_weight=weights.lm_weight, word_bonus=bonus, bias_weight=bias)

    def search(self, samples: np.ndarray, *bias: BiasList) -> Mapping[Key, Hypothesis]:
        """Hypotheses of a recording, the best first."""
        found = self._recogniser(samples, *bias)
        return {tuple(self.spelled(hypothesis.words)): hypothesis for hypothesis in found}

    def length(self, key: Key) -> int:
        """Number of words."""
        return len(key)

    def log_probs(self, keys: Sequence[Key]) -> Sequence[Tuple[float, float]]:
        """Ln P of hypotheses by the LMs, and by the look-ahead."""
        if self._fusion.mixture is None:
            return [(0.0, 0.0)] * len(keys)
        scores = self._fusion.mixture.word_scores(keys)
        return [(float(score.log_probs.sum()), 0.0) for score in scores]

    def counted(self, words: Sequence[str]) -> Sequence[str]:
        """Words after the normalisation."""
        return self._fusion.normalization.words(words)

    spelled = counted
