"""Word scores kept in files, so that many mixtures score each LM once per list."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Callable, List, Sequence, Union

import numpy as np

from espnet_bayeslm.scoring.word_scores import WordScorer, WordScores
from espnet_bayeslm.utils.files import PathLike, atomic_write
from espnet_bayeslm.utils.log import LOG

# Meaning of the scores; another one makes scores that were kept before be computed again
CONVENTION = "a word's score has its end in it"


class CachedScorer(WordScorer):
    """A scorer that is loaded only where its scores are not in the cache yet.

    Scores of sentences by themselves are kept; all else is the scorer's.

    Its fingerprint is a digest of all that scores depend on besides the sentences, or a function
    of the sentences that are scored first, by which an LM chooses how it reads text.
    """

    def __init__(
        self,
        load: Callable[[], WordScorer],
        *,
        name: str,
        folder: PathLike,
        fingerprint: Union[str, Callable[[Sequence[Sequence[str]]], str]],
        reads_in_forms: bool = False,
    ):
        self.name, self.reads_in_forms = name, reads_in_forms
        self._load, self._folder, self._fingerprint = load, Path(folder), fingerprint

    @functools.cached_property
    def scorer(self) -> WordScorer:
        """Scorer whose scores are kept, loaded on first use."""
        return self._load()

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of each sentence, from the cache where they are there."""
        if not sentences:
            return []
        known = self._fingerprint
        known = known(sentences) if callable(known) else known
        digest = hashlib.sha256(f"{CONVENTION} {known}".encode())
        for words in sentences:
            digest.update(b"\n" + " ".join(words).encode())
        path = self._folder / f"{digest.hexdigest()}.npz"
        if path.exists():
            LOG.info("%s: word scores from %s", self.name, path)
            with np.load(path, allow_pickle=False) as arrays:
                ends = arrays["ends"][:-1]
                parts = (np.split(arrays[name], ends) for name in ("log_probs", "oov"))
                return [WordScores(*pair) for pair in zip(*parts, strict=True)]
        scores = self.scorer.word_scores(sentences)
        with atomic_write(path, "wb") as f:
            np.savez(
                f,
                log_probs=np.concatenate([s.log_probs for s in scores]),
                oov=np.concatenate([s.oov for s in scores]),
                ends=np.cumsum([len(s.oov) for s in scores]),
            )
        return scores

    @property
    def text_form(self) -> str:  # type: ignore[override]
        """Form in which the LM reads text; an LM without forms is not loaded for it."""
        return self.scorer.text_form if self.reads_in_forms else ""


def _of_scorer(name: str) -> property:
    """Attribute or method of the scorer behind a cache."""
    return property(lambda cached: getattr(cached.scorer, name))


for _name in vars(WordScorer).keys() - vars(CachedScorer).keys() - {"name", "reads_in_forms"}:
    if not _name.startswith("_"):
        setattr(CachedScorer, _name, _of_scorer(_name))
