"""Synthetic speech by Pico, and N-best lists with acoustic scores by PocketSphinx."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Dict, Iterable, List, Sequence, Tuple

from espnet_bayeslm.nbest.htk import read_lattice
from espnet_bayeslm.nbest.lattice import acoustic_scores
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, read_lines

VOICES = {"us": "en-US", "gb": "en-GB"}
AUDIO_FORMAT = (16000, 16, 1)  # samples/s, bits, channels: what Pico gives, and the model takes
MAX_PATHS = 3000  # paths looked at for one list: most repeat the words of an earlier one


def speak(voice: str, words: Sequence[str]) -> bytes:
    """Return words spoken by Pico, as PCM samples, 16 kHz, 16 bit, mono.

    Args:
        voice: A key of `VOICES`.
        words: The words.
    """
    from ttspico import TtsEngine

    parts: List[bytes] = []
    formats = set()

    def listen(audio_format, audio, final):
        formats.add(tuple(audio_format))
        parts.append(audio)

    # A new engine, since one goes on with its noise where the sentence before ended
    TtsEngine(VOICES[voice]).speak(" ".join(words), callback=listen)
    if formats != {AUDIO_FORMAT}:
        raise RuntimeError(f"the voice gave {formats}, expected {AUDIO_FORMAT}")
    return b"".join(parts)


class Recogniser:
    """PocketSphinx with its own acoustic model and a given LM.

    Args:
        lm: N-gram LM in ARPA format.
        dictionary: Pronunciations, see `write_dictionary`.
    """

    def __init__(self, lm: PathLike, dictionary: PathLike):
        import pocketsphinx

        self.decoder = pocketsphinx.Decoder(
            hmm=pocketsphinx.get_model_path("en-us/en-us"),
            lm=str(lm),
            dict=str(dictionary),
            fwdflat=False,  # its second search takes 40 % of the time and changes no WER here
            loglevel="FATAL",
        )
        self.decode(bytes(2 * AUDIO_FORMAT[0]), 1)  # the first one differs from all others

    def decode(self, audio: bytes, size: int) -> List[Tuple[Tuple[str, ...], float]]:
        """Return up to `size` hypotheses: distinct words, and their acoustic scores in nats.

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
            if path is None or len(hypotheses) == size or count == MAX_PATHS:
                break
            hypotheses.setdefault(tuple(path.hypstr.split()))
        with tempfile.TemporaryDirectory() as folder:
            lattice.write_htk(f"{folder}/utterance.lat")
            lattice = read_lattice(f"{folder}/utterance.lat")
            scores = acoustic_scores(lattice, hypotheses)
        return [(h, s) for h, s in zip(hypotheses, scores, strict=True) if s > float("-inf")]


def cmudict() -> Dict[str, List[Tuple[str, str]]]:
    """Return {word: [(its entry, pronunciation)]}; entries are `word`, `word(2)`, ..."""
    import pocketsphinx

    entries: Dict[str, List[Tuple[str, str]]] = {}
    for _, line in read_lines(pocketsphinx.get_model_path("en-us/cmudict-en-us.dict")):
        entry, phones = line.split(maxsplit=1)
        entries.setdefault(re.sub(r"\(\d+\)$", "", entry), []).append((entry, phones))
    return entries


def write_dictionary(path: Path, words: Iterable[str]) -> int:
    """Write the pronunciations of those of `words` that cmudict has; return how many it has."""
    entries = cmudict()
    known = sorted(set(words) & entries.keys())
    if not known:
        raise InputError("no word of the LM has a pronunciation", remedy="Is the LM English?")
    with atomic_write(path) as f:
        for word in known:
            f.writelines(f"{entry} {phones}\n" for entry, phones in entries[word])
    return len(known)


def arpa_words(path: PathLike) -> List[str]:
    """Return the words of an ARPA file's unigrams, without `<s>`, `</s>` and `<unk>`."""
    words: List[str] = []
    inside = False
    for _, line in read_lines(path):
        if inside and line.startswith("\\"):
            break
        if inside and line.strip():
            words.append(line.split()[1])
        inside = inside or line.strip() == "\\1-grams:"
    words = [word for word in words if not word.startswith("<")]
    if not words:
        raise InputError("no unigrams", path=path, remedy="An LM in ARPA format is needed.")
    return words
