"""Speed of CTC prefix beam search over that of pyctcdecode, where it is installed.

Two decoders of C++ are measured beside, where they are installed: ctc-beam-decoder, and that of
flashlight-text in torchaudio, which finds the LM's words only.

Logits are made as a wav2vec2 recogniser gives them: 10 s of 500 frames x 32 tokens, most of them
blank, with confusions. They are scaled to four sharpnesses: likely tokens of a frame, whose ln P is
at least -5, on average. Text and word 3-gram are the quick start's. Beam 100, one core. Seconds are
of the CPU, rounds are interleaved, and medians of the rounds' ratios are printed. "words paid" are
the distinct (words, word) whose ln P the LM was asked for; "calls" are the calls that did so.

Bias lists hold words of random letters, and for each utterance a word that it holds. Times are
those over one list of ten phrases: one of 10,000, and a list of 100 that each utterance has for
itself over the same list for all.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib
import importlib.util
import logging
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import torch
from steps import ratio

from espnet_bayeslm import build_ctcdecoder
from espnet_bayeslm.decoding.ctc_lists import search_vocabulary
from espnet_bayeslm.decoding.ctc_search import BeamOptions, CTCSearch
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens, tokens_of_labels
from espnet_bayeslm.decoding.ctc_words import CTCFusion
from espnet_bayeslm.decoding.logits import log_probs_of
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.workflows.quickstart import SHIPPED

LABELS = ["", "<s>", "</s>", "<unk>", " ", *"etaonihsrdlumwcfgypbvk'xjqz"]
FRAMES, LETTERS = 500, 140
SHARPNESSES = (4.9, 2.8, 1.3, 1.07)
LIKELY = -5.0  # `token_min_logp`
HOTWORDS = ["congress", "nation", "america", "freedom", "peace"]
OURS, THEIRS = "espnet_bayeslm", "pyctcdecode"
CPP, FLASHLIGHT = "ctc_beam_decoder", "torchaudio"


def read_text(name: str) -> str:
    """Return one of the quick start's texts."""
    with gzip.open(SHIPPED / f"{name}.txt.gz", "rt", encoding="utf-8") as f:
        return f.read()


def make_logits(text: str, rng: np.random.Generator) -> np.ndarray:
    """Return logits of a text, (frames, labels): a peak for each letter, and blanks between."""
    logits = rng.normal(0.0, 2.0, (FRAMES, len(LABELS)))
    logits[:, 1:4] -= 12.0  # marks and <unk>, which a recogniser hardly ever finds
    targets = np.zeros(FRAMES, int)
    places = np.sort(rng.choice(np.arange(1, FRAMES - 1), len(text), replace=False))
    targets[places] = [LABELS.index(letter) for letter in text]
    peaks = 9.0 + rng.normal(0.0, 3.0, FRAMES) * (targets > 0)
    logits[np.arange(FRAMES), targets] += peaks
    # pyctcdecode scores an empty word where a text ends in a blank
    logits[places[-1] + 1 :, LABELS.index(" ")] -= 30.0
    return logits


def utterances(count: int) -> List[np.ndarray]:
    """Return the logits of some utterances."""
    rng, words = np.random.default_rng(0), read_text("eval").split()
    found = []
    for _ in range(count):
        text = words.pop(0)
        while len(text) + 1 + len(words[0]) <= LETTERS:
            text += f" {words.pop(0)}"
        found.append(make_logits(text, rng))
    return found


def likely_tokens(logits: Sequence[np.ndarray], scale: float) -> float:
    """Return the likely tokens of a frame, on average, of logits times a scale."""
    return float(np.mean([(log_probs_of(scale * each) >= LIKELY).sum(1) for each in logits]))


def sharpened(logits: Sequence[np.ndarray], target: float) -> List[np.ndarray]:
    """Return logits scaled to a number of likely tokens of a frame, by bisection."""
    low, high = 0.1, 100.0
    for _ in range(20):
        scale = (low * high) ** 0.5
        low, high = (scale, high) if likely_tokens(logits, scale) > target else (low, scale)
    return [scale * each for each in logits]


class Counted:
    """Counts of an n-gram's calls, while they are made."""

    def __init__(self) -> None:
        self.calls = self.words = 0
        self._next_words = NgramScorer.next_words

    def __enter__(self) -> Counted:
        def counted(scorer: NgramScorer, states: Sequence[Any], words: Sequence[str]) -> np.ndarray:
            self.calls, self.words = self.calls + 1, self.words + len(words)
            return self._next_words(scorer, states, words)

        NgramScorer.next_words = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: Any) -> None:
        NgramScorer.next_words = self._next_words  # type: ignore[method-assign]


class Torchaudio:
    """Decoder of torchaudio, which is that of flashlight-text in C++, with the words of an LM."""

    def __init__(self, labels: Sequence[str], arpa: Optional[Path]):
        from torchaudio.models.decoder import ctc_decoder

        how: Dict[str, Any] = {"lexicon": None}
        if arpa is not None:
            words = NgramScorer(arpa).known_words() or []
            lexicon = arpa.with_name("lexicon.txt")
            lexicon.write_text("".join(f"{w} {' '.join(w)} |\n" for w in words), encoding="utf-8")
            weights = {"lm_weight": 0.5 * math.log(10.0), "word_score": 1.5}  # of log10 P
            how = {"lexicon": str(lexicon), "lm": str(arpa), **weights}
        tokens = ["<blank>", *labels[1:]]
        tokens[labels.index(" ")] = "|"
        sizes = {"nbest": 100, "beam_size": 100, "beam_threshold": 10.0, "log_add": True}
        self._decode = ctc_decoder(
            tokens=tokens, blank_token="<blank>", sil_token="|", **how, **sizes
        )
        self._tokens, self._is_text = tokens, arpa is None

    def decode_beams(self, logits: np.ndarray, beam_width: int) -> List[Sequence[str]]:
        """Return the hypotheses."""
        emissions = torch.tensor(log_probs_of(logits), dtype=torch.float32)
        # it finds no word that no delimiter follows
        last = torch.full_like(emissions[:1], -30.0)
        last[:, self._tokens.index("|")] = 0.0
        (found,) = self._decode(torch.cat([emissions, last])[None])
        if not self._is_text:
            return [(" ".join(each.words),) for each in found]
        letters = ("".join(self._tokens[n] for n in each.tokens) for each in found)
        return [(" ".join(text.replace("|", " ").split()),) for text in letters]


def decoders(title: str, method: str, arpa: Optional[Path]) -> Dict[str, Any]:
    """Return the decoders by name that have a method; None: it is not installed."""
    found: Dict[str, Any] = {OURS: build_ctcdecoder(LABELS, arpa)}
    for name in (THEIRS, CPP):
        found[name] = None
        if importlib.util.find_spec(name):
            module = importlib.import_module(name)
            found[name] = module.build_ctcdecoder(list(LABELS), arpa and str(arpa))
    if method == "decode_beams" and "hotwords" not in title:
        is_here = importlib.util.find_spec("flashlight")
        found[FLASHLIGHT] = Torchaudio(LABELS, arpa) if is_here else None
    return found


def decode(method: str, decoder: Any, logits: Sequence[np.ndarray], **options: Any) -> List[str]:
    """Return the best texts, by `decode` or `decode_beams`."""
    found = [getattr(decoder, method)(each, beam_width=100, **options) for each in logits]
    return found if method == "decode" else [beams[0][0] for beams in found]


def cpu_seconds(function: Callable[[], Any]) -> float:
    """Return the seconds of the CPU that a call takes."""
    start = time.process_time()
    function()
    return time.process_time() - start


def measure(
    title: str, method: str, arpa: Optional[Path], logits: Sequence[np.ndarray], rounds: int
) -> None:
    """Print the milliseconds of an utterance by each decoder."""
    options = {"hotwords": HOTWORDS} if "hotwords" in title else {}
    known = decoders(title, method, arpa)
    calls = {
        name: functools.partial(decode, method, decoder, logits, **options)
        for name, decoder in known.items()
        if decoder is not None
    }
    with Counted() as count:
        best = calls[OURS]()
    seconds: Dict[str, List[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(cpu_seconds(call))
    for name, values in seconds.items():
        milliseconds = 1000 * statistics.median(values) / len(logits)
        equal = sum(a == b for a, b in zip(best, calls[name](), strict=True))
        times = ratio(values, seconds[OURS])
        row = f"{title:20} {method:13} {name:16} {milliseconds:8.1f} {times:8.2f}"
        print(f"{row} {equal:4}/{len(logits)}", flush=True)
    for name in known.keys() - calls.keys():
        print(f"{title:20} {method:13} {name:16} not installed")
    if arpa is not None and method == "decode_beams":
        each = len(logits)
        print(f"{'':20} words paid {count.words / each:.0f}, calls {count.calls / each:.0f}")


def bias_lists(count: int, size: int, rng: np.random.Generator) -> List[BiasList]:
    """Return bias lists of words of random letters, and one word that is said."""
    letters, said = np.array(LABELS[5:25]), read_text("eval").split()
    found = []
    for n in range(count):
        names = ("".join(rng.choice(letters, rng.integers(5, 11))) for _ in range(size - 1))
        found.append(BiasList((name, None) for name in (said[5 * n], *names)))
    return found


def measure_bias(arpa: Path, logits: Sequence[np.ndarray], rounds: int) -> None:
    """Print the milliseconds of an utterance with long and short lists, of each and of all."""
    rng, count = np.random.default_rng(1), len(logits)
    mixture = Mixture.load(MixtureOptions(ngrams=[arpa]))
    mixture.prepare(())
    tokens = CTCTokens(tokens_of_labels(LABELS))
    vocabulary = search_vocabulary(None, mixture, tokens)
    fusion = CTCFusion(mixture=mixture, vocabulary=vocabulary, bias_weight=3.0)
    every = [log_probs_of(each) for each in logits]
    ways = {f"bias list of {size}": bias_lists(1, size, rng) * count for size in (10, 10_000, 100)}
    same = ways["bias list of 100"][0].weights.items()
    ways["100, each its own"] = [BiasList(same) for _ in logits]
    base = dict(zip(ways, ("bias list of 10",) * 3 + ("bias list of 100",), strict=True))
    searches = {name: CTCSearch(tokens, fusion, BeamOptions()) for name in ways}
    seconds: Dict[str, List[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, lists in ways.items():
            pairs = [*zip(every, lists, strict=True)]
            took = cpu_seconds(lambda s=searches[name], p=pairs: [s(*pair) for pair in p])
            seconds[name] += [took] * (number > 0)  # the first one fills what is kept
    for name, values in seconds.items():
        milliseconds = 1000 * statistics.median(values) / count
        print(f"{name:22} {OURS:16} {milliseconds:8.1f} {ratio(values, seconds[base[name]]):8.3f}")


def main() -> None:
    """Measure at each sharpness without an LM, with a 3-gram, with hotwords and with bias lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--utterances", type=int, default=10)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        text, arpa = Path(folder) / "train.txt", Path(folder) / "3gram.arpa"
        text.write_text(read_text("train"), encoding="utf-8")
        build_ngram(text, arpa, order=3)
        noisy = utterances(args.utterances)
        for sharpness in SHARPNESSES:
            logits = sharpened(noisy, sharpness)
            title = f"{sharpness} likely tokens"
            print(f"\n{title:51} {'CPU ms':>8} {'/ ours':>8} same best")
            for title, lm in (("without LM", None), ("3-gram", arpa), ("3-gram, hotwords", arpa)):
                for method in ("decode_beams", "decode"):
                    measure(title, method, lm, logits, args.rounds)
            measure_bias(arpa, logits, args.rounds)


if __name__ == "__main__":
    main()
