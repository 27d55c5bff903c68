"""Word scores kept in files, so that many mixtures score each LM once per list."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from espnet_bayeslm.evaluation.perplexity import token_counts
from espnet_bayeslm.evaluation.word_scores import WordScorer, WordScores
from espnet_bayeslm.utils.files import PathLike, atomic_write

# Meaning of the scores; another one makes scores that were kept before be computed again
CONVENTION = "a word's score has its end in it"


class CachedScorer:
    """A scorer that is loaded only where its scores are not in the cache yet.

    Args:
        load: Returns the scorer.
        name: The scorer's name.
        folder: Where the scores are kept.
        fingerprint: Digest of all that the scores depend on besides the sentences: LM files,
            options.
    """

    def __init__(
        self, load: Callable[[], WordScorer], *, name: str, folder: PathLike, fingerprint: str
    ):
        self.name = name
        self._load = load
        self._loaded: Optional[WordScorer] = None
        self._folder = Path(folder)
        self._fingerprint = fingerprint

    @property
    def scorer(self) -> WordScorer:
        """Scorer behind the cache, loaded."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of each sentence, from the cache where they are there."""
        if not sentences:
            return []
        digest = hashlib.sha256(f"{CONVENTION} {self._fingerprint}".encode())
        for words in sentences:
            digest.update(b"\n" + " ".join(words).encode())
        path = self._folder / f"{digest.hexdigest()}.npz"
        if path.exists():
            logging.info("%s: word scores from %s", self.name, path)
            return _read(path)
        scores = self.scorer.word_scores(sentences)
        _write(scores, path)
        return scores

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """(n + 1,) tokens of each word and of `</s>`."""
        return token_counts(self.scorer, words)

    def unknown(self, words: Sequence[str]) -> List[bool]:
        """True for each word that the LM does not know."""
        scorer: Any = self.scorer
        return list(scorer.unknown(words))


def _write(scores: Sequence[WordScores], path: Path) -> None:
    with atomic_write(path, "wb") as f:
        np.savez(
            f,
            log_probs=np.concatenate([s.log_probs for s in scores]),
            oov=np.concatenate([s.oov for s in scores]),
            ends=np.cumsum([len(s.oov) for s in scores]),
        )


def uncached(scorer: WordScorer) -> Any:
    """Scorer itself, loaded, where a cache stands before it."""
    return scorer.scorer if isinstance(scorer, CachedScorer) else scorer


def _read(path: Path) -> List[WordScores]:
    with np.load(path, allow_pickle=False) as arrays:
        ends = arrays["ends"][:-1]
        log_probs, oov = np.split(arrays["log_probs"], ends), np.split(arrays["oov"], ends)
    return [WordScores(*pair) for pair in zip(log_probs, oov, strict=True)]
