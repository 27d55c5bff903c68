"""LMs of a CTC search with their weights, from arguments or from a folder as of pyctcdecode."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from espnet_bayeslm.decoding.ctc_lists import read_unigrams
from espnet_bayeslm.decoding.ctc_tokens import as_texts
from espnet_bayeslm.decoding.ctc_words import LN_10, CTCFusion, Vocabulary
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.ngram.ngram_files import arpa_order
from espnet_bayeslm.scoring.word_scores import END
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, open_unpacked, write_json

ATTRIBUTES, UNIGRAMS = "attrs.json", "unigrams.txt"
NAMES = ("alpha", "beta", "unk_score_offset", "score_boundary")
"""Weights of an LM, of its object and in `attrs.json`."""
SUFFIXES = (".arpa", ".bin", ".binary")
"""Of an n-gram in a folder."""
NO_OTHERS = MixtureOptions()
"""No LMs beside an n-gram."""


class LanguageModel:
    """LMs with their weights in a CTC search; attributes may be changed between two calls.

    Args:
        kenlm_model: An n-gram: the path of an ARPA file, which may be compressed, or of a KenLM
            binary, or a `kenlm.Model`; None: there are other LMs.
        unigrams: Known words, or a file of them; None: those of the LMs, if each of them lists its
            own.
        alpha: Weight of ln P of the LMs.
        beta: Score of each word.
        unk_score_offset: Log10 P of an unknown word, beside the LMs'.
        score_boundary: True if LMs score the sentence's start and end.
        options: Other LMs, and the weights of all.
        device: Device of the LMs.

    Raises:
        InputError: An LM cannot be loaded.
    """

    def __init__(
        self,
        kenlm_model: Any = None,
        unigrams: Optional[Union[PathLike, Iterable[str]]] = None,
        alpha: float = 0.5,
        beta: float = 1.5,
        unk_score_offset: float = -10.0,
        score_boundary: bool = True,
        *,
        options: MixtureOptions = NO_OTHERS,
        device: str = "cpu",
    ):
        path = getattr(kenlm_model, "path", kenlm_model)
        self._path = os.fsdecode(path) if path is not None else None
        self._options, self._device = options, device
        self.unigrams = known_words(unigrams)
        self.alpha, self.beta, self.unk_score_offset = alpha, beta, unk_score_offset
        self.score_boundary = score_boundary
        ngrams = [] if self._path is None else [self._path]
        named = MixtureOptions(**{**vars(options), "ngrams": ngrams})
        self.mixture = Mixture.load(named, device)
        self.mixture.prepare(())

    @property
    def arguments(self) -> Dict[str, Any]:
        """Arguments that make the same again, in another process."""
        return {
            "kenlm_model": self._path,
            "unigrams": self.unigrams,
            "options": self._options,
            "device": self._device,
            **self.weights,
        }

    @property
    def weights(self) -> Dict[str, Any]:
        """The weights by their names."""
        return {name: getattr(self, name) for name in NAMES}

    def reset_params(self, **weights: Any) -> None:
        """Change weights by their names; None leaves one as it is."""
        for name, value in weights.items():
            if name not in NAMES:
                raise InputError(f"no weight {name!r}, and one of {', '.join(NAMES)} was expected")
            if value is not None:
                setattr(self, name, value)

    @property
    def order(self) -> float:
        """Highest order of the n-grams; infinite with LMs of other types."""
        scorers = [component.scorer for component in self.mixture.every]
        return max(getattr(scorer, "order", math.inf) for scorer in scorers)

    def fusion(self, vocabulary: Optional[Vocabulary]) -> CTCFusion:
        """LMs and weights for a search with some known words."""
        return CTCFusion(
            mixture=self.mixture,
            lm_weight=self.alpha,
            word_bonus=self.beta,
            vocabulary=vocabulary,
            unk_score_offset=self.unk_score_offset,
            boundary=self.score_boundary,
            context_words=max(1, self.order - 1),
        )

    def state_of(self, given: Any) -> Tuple[Any, ...]:
        """State of the mixture of a state as `given_state` returns it."""
        return given if isinstance(given, tuple) else (given,)

    def given_state(self, state: Tuple[Any, ...]) -> Any:
        """State for users: of an n-gram alone KenLM's, else one of each component."""
        return state[0] if len(state) == 1 else state

    def get_start_state(self) -> Any:
        """State before the first word."""
        return self.given_state(self.mixture.begin(anywhere=not self.score_boundary))

    def score(self, prev_state: Any, word: str, is_last_word: bool = False) -> Tuple[float, Any]:
        """Weighted score of a word after a state, and the state after it.

        Args:
            prev_state: State of `get_start_state`, or of a beam.
            word: The word.
            is_last_word: True if the sentence's end is scored, too.
        """
        before = self.state_of(prev_state)
        after = self.mixture.after(before, word)
        log_prob = float(self.mixture.next_words([before], [word])[0])
        known = self.unigrams is None or word in self.unigrams
        if not known or self.mixture.unknown([word])[0]:
            log_prob += LN_10 * self.unk_score_offset
        if is_last_word and self.score_boundary:
            log_prob += float(self.mixture.next_words([after], [END])[0])
        return self.alpha * log_prob + self.beta, self.given_state(after)

    def save_to_dir(self, filepath: PathLike, unigram_encoding: str = "utf-8") -> None:
        """Write n-gram, known words and weights to a folder that pyctcdecode reads, too.

        Raises:
            InputError: There are other LMs than an n-gram.
        """
        folder = Path(filepath)
        if self._path is None or self._options.lms:
            problem = "LMs that are no n-gram, and a decoder's folder has an n-gram alone"
            raise InputError(problem, path=folder, remedy="Build the decoder where it is used.")
        name = Path(self._path).name.removesuffix(".gz")
        if Path(name).suffix not in SUFFIXES:
            name += SUFFIXES[0] if arpa_order(self._path) else SUFFIXES[1]
        write_json(folder / ATTRIBUTES, self.weights)
        words = self.unigrams
        if words is None:
            (component,) = self.mixture.components
            words = component.scorer.known_words()
        with atomic_write(folder / UNIGRAMS, "wb") as f:
            f.write("".join(f"{word}\n" for word in sorted(words or ())).encode(unigram_encoding))
        with open_unpacked(self._path) as source, atomic_write(folder / name, "wb") as f:
            shutil.copyfileobj(source, f)

    @classmethod
    def load_from_dir(
        cls, filepath: PathLike, unigram_encoding: Optional[str] = None
    ) -> LanguageModel:
        """LM of a folder that `save_to_dir` wrote, here or of pyctcdecode.

        Raises:
            InputError: A file is missing or damaged.
        """
        folder = Path(filepath)
        if not folder.is_dir():
            raise InputError("no such folder of an LM", path=folder)
        others = {ATTRIBUTES, UNIGRAMS}
        names = [file.name for file in folder.iterdir() if file.name[0] not in "._"]
        ngrams = [name for name in names if name not in others]
        if not others.issubset(names) or len(ngrams) != 1:
            problem = f"{ATTRIBUTES}, {UNIGRAMS} and an n-gram were expected, found {sorted(names)}"
            raise InputError(problem, path=folder)
        try:
            weights = json.loads((folder / ATTRIBUTES).read_text())
            text = (folder / UNIGRAMS).read_text(encoding=unigram_encoding or "utf-8")
        except ValueError as error:
            raise InputError(f"cannot be read ({error})", path=folder) from error
        if not isinstance(weights, dict) or {*weights} != {*NAMES}:
            problem = f"expected {', '.join(NAMES)}"
            raise InputError(problem, path=folder / ATTRIBUTES)
        return cls(folder / ngrams[0], text.split() or None, **weights)


def known_words(given: Optional[Union[PathLike, Iterable[str]]]) -> Optional[List[str]]:
    """Known words of an argument, which is a list or a file of them."""
    if isinstance(given, (str, os.PathLike)):
        if not os.path.isfile(given):
            problem = f"unigrams: no file {os.fspath(given)!r}"
            raise InputError(problem, remedy="Give a list of words, or a file with one a line.")
        return read_unigrams(given)
    return None if given is None else as_texts(given, "unigrams")
