"""Scores of sentences under an n-gram, read by KenLM: the border where log10 becomes ln."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import List, Sequence

import kenlm
import numpy as np

from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

_LN_10 = math.log(10.0)
_SUFFIXES = {".gz", ".bz2", ".xz", ".arpa", ".bin", ".binary", ".klm", ".lm"}


class NgramScorer:
    """A `WordScorer` of an ARPA file or a KenLM binary.

    Attributes:
        name: The file's name without what tells its format: `3gram` for `3gram.arpa.gz`.
        order: The highest order of the model.
    """

    def __init__(self, path: PathLike):
        self._model = _load(path)
        self.name = _readable_name(path)
        self.order = self._model.order
        logging.info("Loaded %s: %d-gram", path, self.order)

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Return ln P(word | words before it) of each word and of `</s>`, per sentence.

        Args:
            sentences: Words without `<s>` and `</s>`; a word may hold any character.
        """
        return [self._score(words) for words in sentences]

    def _score(self, words: Sequence[str]) -> WordScores:
        state, after = kenlm.State(), kenlm.State()
        self._model.BeginSentenceWrite(state)
        log10_probs, oov = [], []
        for word in (*words, "</s>"):
            score = self._model.BaseFullScore(state, word, after)
            log10_probs.append(score.log_prob)
            oov.append(score.oov)
            state, after = after, state
        return WordScores(np.array(log10_probs) * _LN_10, np.array(oov))


def _load(path: PathLike) -> kenlm.Model:
    """Return the model of a file.

    Raises:
        InputError: The file is missing or is no n-gram that KenLM can read.
    """
    if not os.path.isfile(path):
        raise InputError("no such n-gram file", path=path, remedy="Make one with `bayeslm ngram`.")
    config = kenlm.Config()
    config.show_progress = False
    try:
        return kenlm.Model(os.fspath(path), config)
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        # KenLM's own words, without the C++ signature before them
        reason = str(error).rsplit("Exception. ", 1)[-1] if isinstance(error, OSError) else ""
        raise InputError(
            f"not an n-gram that KenLM can read ({reason.strip(' ()') or 'not an ARPA file'})",
            path=path,
            remedy="Give an ARPA file or a KenLM binary of order 2 or more.",
        ) from error


def _readable_name(path: PathLike) -> str:
    name = Path(path)
    while name.suffix in _SUFFIXES and name.stem:
        name = name.with_suffix("")
    return name.name
