"""The new best hypothesis of each N-best list."""

from __future__ import annotations

import dataclasses
import math
from typing import Iterable, List, Optional, Sequence, Tuple

import numpy as np
import yaml

from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

Words = Tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Scales:
    """How the scores of a hypothesis are weighed.

    total = am_score / lmwt + graph_score + ln P_LM - word_penalty * words, to be maximised.

    Attributes:
        lmwt: What divides the acoustic score, Kaldi's LMWT.
        word_penalty: Kaldi's word insertion penalty, in nats per word.
        weights: (name, weight) of the components, where they were tuned too.
        fingerprints: (name, digest of its files) of the components, where they are known.

    Raises:
        ValueError: `lmwt` is not positive, or one is not finite.
    """

    lmwt: float = 10.0
    word_penalty: float = 0.0
    weights: Optional[Tuple[Tuple[str, float], ...]] = None
    fingerprints: Tuple[Tuple[str, str], ...] = ()

    def __post_init__(self):
        if not (0 < self.lmwt < math.inf and math.isfinite(self.word_penalty)):
            raise ValueError(f"lmwt must be positive, and both finite: {self}")


@dataclasses.dataclass(frozen=True)
class ScoredList:
    """The N hypotheses of one utterance, as arrays.

    Attributes:
        utt: Utterance id.
        hypotheses: Their words.
        am: (N,) acoustic log-likelihoods, in nats.
        lm: (N,) ln P_LM + graph score, in nats.
        num_words: (N,).
    """

    utt: str
    hypotheses: Tuple[Words, ...]
    am: np.ndarray
    lm: np.ndarray
    num_words: np.ndarray

    def best(self, lmwt: np.ndarray, word_penalty: np.ndarray) -> np.ndarray:
        """Index of the best hypothesis (the first of equals), of the scales' shape."""
        total = self.lm - np.multiply.outer(word_penalty, self.num_words)
        return (total + np.divide.outer(1.0, lmwt)[..., None] * self.am).argmax(axis=-1)

    def choice(self, scales: Scales) -> int:
        """Index of the best hypothesis at some scales."""
        return int(self.best(np.array(scales.lmwt), np.array(scales.word_penalty)))


def scored_list(nbest: NBest, lm_log_probs: Sequence[float]) -> ScoredList:
    """A list with a new LM's scores in place of the first pass's.

    Args:
        nbest: The list.
        lm_log_probs: ln P_LM(words, `</s>`) of each hypothesis, in nats.
    """
    hyps = nbest.hypotheses
    pairs = zip(hyps, lm_log_probs, strict=True)
    return ScoredList(
        nbest.utt,
        tuple(hyp.words for hyp in hyps),
        np.array([hyp.am_score or 0.0 for hyp in hyps]),
        np.array([log_prob + (hyp.graph_score or 0.0) for hyp, log_prob in pairs]),
        np.array([len(hyp.words) for hyp in hyps]),
    )


def distinct_hypotheses(nbests: Iterable[NBest]) -> List[Words]:
    """Return the hypotheses of all lists, each once."""
    return list(dict.fromkeys(hyp.words for nbest in nbests for hyp in nbest.hypotheses))


def read_scales(path: PathLike) -> Scales:
    """Return the scales of a yaml file that `bayeslm rescore` wrote.

    Raises:
        InputError: The file does not hold them.
    """
    try:
        with open(path, encoding="utf-8") as f:
            content = yaml.safe_load(f)
        weights, digests = content.get("weights"), content.get("fingerprints") or {}
        pairs = None if weights is None else tuple((str(k), float(v)) for k, v in weights.items())
        known = tuple((str(name), str(digest)) for name, digest in digests.items())
        return Scales(float(content["lmwt"]), float(content["word_penalty"]), pairs, known)
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"no usable `lmwt` and `word_penalty` in it ({error!r})",
            path=path,
            remedy="Give the scales.yaml of a tuned `bayeslm rescore`.",
        ) from error
