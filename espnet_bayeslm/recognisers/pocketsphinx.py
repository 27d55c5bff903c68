"""PocketSphinx, whose lattices have acoustic scores."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.nbest.htk import read_lattice
from espnet_bayeslm.nbest.lattice import acoustic_score
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.ngram.ngram_files import arpa_words
from espnet_bayeslm.recognisers.recordings import DIGITS, RATE, installed
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    PathLike,
    atomic_write,
    read_lines,
)

if TYPE_CHECKING:
    pass

MAX_PATHS = 3000  # paths looked at for one list: most repeat the words of an earlier one


class SphinxSearch:
    """PocketSphinx with its own acoustic model.

    Args:
        lm: N-gram LM in ARPA format; None: PocketSphinx's own.
        dictionary: Pronunciations (`write_dictionary`); None: those of the LM's words.
        size: Hypotheses of a list, at most.
    """

    rate = RATE

    def __init__(
        self,
        lm: Optional[PathLike] = None,
        dictionary: Optional[PathLike] = None,
        *,
        size: int,
    ):
        pocketsphinx = installed("pocketsphinx", "pocketsphinx")
        files = {}
        with tempfile.TemporaryDirectory() as folder:
            if lm is not None:
                if dictionary is None:
                    dictionary = Path(folder) / "dictionary"
                    write_dictionary(dictionary, arpa_words(lm))
                files = {"lm": str(lm), "dict": str(dictionary)}
            self.decoder: Any = pocketsphinx.Decoder(
                hmm=pocketsphinx.get_model_path("en-us/en-us"),
                fwdflat=False,  # its second search takes 40 % of the time and changes no WER here
                loglevel="FATAL",
                **files,
            )
        self.scorer = None if lm is None else NgramScorer(lm)
        self.size = size
        self.decode(bytes(2 * RATE))  # the first one differs from all others

    def decode(self, audio: bytes) -> List[Tuple[Tuple[str, ...], float]]:
        """Hypotheses of PCM samples of 16 bit: distinct words, and their acoustic scores in nats.

        The first is the recogniser's own result, the others follow in the order of its N-best
        search. Where it has no result, the only hypothesis is the empty one, with score 0.
        """
        # The front end's means and noise level, else those of the utterance before: the lists
        # must not depend on how the work is split.
        self.decoder.reinit_feat()
        self.decoder.start_utt()
        self.decoder.process_raw(audio, full_utt=True)
        self.decoder.end_utt()
        lattice, result = self.decoder.get_lattice(), self.decoder.hyp()
        if lattice is None or result is None:
            return [((), 0.0)]
        hypotheses = {tuple(result.hypstr.split()): None}  # in order, each once
        for count, path in enumerate(self.decoder.nbest()):
            if path is None or len(hypotheses) == self.size or count == MAX_PATHS:
                break
            hypotheses.setdefault(tuple(path.hypstr.split()))
        with tempfile.TemporaryDirectory() as folder:
            lattice.write_htk(f"{folder}/utterance.lat")
            lattice = read_lattice(f"{folder}/utterance.lat")
        scored = ((words, acoustic_score(lattice, words)) for words in hypotheses)
        return [(words, score) for words, score in scored if score > float("-inf")]

    def __call__(self, samples: np.ndarray) -> List[Hypothesis]:
        """Hypotheses of samples between -1 and 1, with ln P of the n-gram where one was given."""
        audio = np.clip(np.round(samples * 32768), -32768, 32767).astype("<i2").tobytes()
        found = self.decode(audio)
        if self.scorer is None:
            return [Hypothesis(words, round(score, DIGITS)) for words, score in found]
        return list(with_lm_scores(found, self.scorer))


def with_lm_scores(
    hypotheses: Sequence[Tuple[Sequence[str], float]], scorer: NgramScorer, digits: int = DIGITS
) -> Tuple[Hypothesis, ...]:
    """Hypotheses with the scores of the first-pass LM, from words and acoustic scores in nats."""
    lm_scores = [float(s.log_probs.sum()) for s in scorer.word_scores([w for w, _ in hypotheses])]
    return tuple(
        Hypothesis(tuple(words), round(am, digits), round(lm, digits), 0.0)
        for (words, am), lm in zip(hypotheses, lm_scores, strict=True)
    )


def cmudict() -> Dict[str, List[Tuple[str, str]]]:
    """{word: [(entry, pronunciation)]} of PocketSphinx; entries are `word`, `word(2)`, ..."""
    entries: Dict[str, List[Tuple[str, str]]] = {}
    pocketsphinx = installed("pocketsphinx", "pocketsphinx")
    for _, line in read_lines(pocketsphinx.get_model_path("en-us/cmudict-en-us.dict")):
        entry, phones = line.split(maxsplit=1)
        entries.setdefault(re.sub(r"\(\d+\)$", "", entry), []).append((entry, phones))
    return entries


def write_dictionary(path: Path, words: Iterable[str]) -> int:
    """Write the pronunciations that cmudict has of `words`, and return how many words it has."""
    entries = cmudict()
    known = sorted(set(words) & entries.keys())
    if not known:
        raise InputError("no word of the LM has a pronunciation", remedy="Is the LM English?")
    with atomic_write(path) as f:
        for word in known:
            f.writelines(f"{entry} {phones}\n" for entry, phones in entries[word])
    return len(known)
