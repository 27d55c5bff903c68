"""Checks of test texts: other spelling than the hypotheses', and sentences of the training text.

Sentences of an ordinary split repeat short phrases of the training text. A long run of words seldom
stands in both. It does so for about 0.3 % of the sentences of six or more words of AMI's usual dev
and eval sets, and for 0.7 % of the presidents' addresses, which have set phrases.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

from espnet_bayeslm.evaluation.normalization import STEPS, Normalization
from espnet_bayeslm.evaluation.transcripts import has_words
from espnet_bayeslm.evaluation.wer import FIRST_PASS, NO_WORDS, Counting, ErrorCounts
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.words import lower_case

# Steps that only write the same words in another way: `whisper` also leaves some out
ORDINARY_STEPS = tuple(name for name in STEPS if name not in ("whisper", "lower_tr"))
TURKISH_STEPS = tuple(name for name in STEPS if name not in ("whisper", "lower"))
# Sentences on which steps are tried, at least
TRIED = 300
# A gain is told above this rate, and this part of the errors
LEAST_GAIN, LEAST_PART = 0.001, 0.02

MOST = 5000
"""Texts of a subset."""

Pairs = Sequence[Tuple[Sequence[str], Sequence[str]]]

# A sentence of at least so many words counts; shorter ones are said by everybody
SHORTEST = 6
# So many words in a row seldom stand in two texts by chance
RUN = 10
# Part of the sentences that chance and set phrases explain, standard deviations above it at which
# there is a warning, and the fewest sentences of one
USUAL, DEVIATIONS, FEWEST = 0.01, 3.0, 3
SHOWN = 3


@dataclasses.dataclass
class Subset:
    """At most `MOST` of many texts by utterance id, at even distances, chosen in one reading.

    Attributes:
        texts: Utterance id -> words.
        seen: Number of texts that were offered.
        step: Distance of the texts that are taken.
    """

    texts: Dict[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    seen: int = 0
    step: int = 1

    def add(self, utt: str, words: Sequence[str]) -> None:
        """Take a text, or leave it out."""
        if self.seen % self.step == 0:
            self.texts[utt] = words
        self.seen += 1
        if len(self.texts) > MOST:
            self.texts = {utt: self.texts[utt] for utt in list(self.texts)[::2]}
            self.step *= 2


def warn_of_placeholders(refs: Mapping[str, Sequence[str]], path: PathLike) -> None:
    """Warn where no reference has a word, or all are one text, as placeholders are."""
    texts = {tuple(words) for words in refs.values()}
    if refs and not has_words(texts):
        LOG.warning("%s: no reference has a word: error rates say nothing", path)
    elif len(texts) == 1 < len(refs):
        (words,) = texts
        told = "all %d references are %r: is it a placeholder? Then error rates say nothing"
        LOG.warning(f"%s: {told}", path, len(refs), " ".join(words)[:80])


def warn_of_spelling(
    refs: Mapping[str, Sequence[str]],
    hyps: Mapping[str, Sequence[str]],
    counting: Counting,
    *,
    given: Sequence[str] = (),
    of: str = FIRST_PASS,
) -> bool:
    """Warn where a normalisation lowers the error rate of a system noticeably; True if it does.

    Args:
        refs: Utterance id -> words, which the `given` steps have normalised.
        hyps: Best hypotheses, of some utterances at least, normalised by the same steps.
        counting: How errors are counted.
        given: Steps that are never left out.
        of: Name of the system.
    """
    pairs = [(refs[utt], words) for utt, words in hyps.items() if utt in refs]
    before = best = _errors(pairs, (), counting)
    steps: Sequence[str] = ()
    # Turkish lower case parts the English `I` and `i`: named where it is better than the ordinary
    for known in (ORDINARY_STEPS, TURKISH_STEPS):
        try:
            better = _better_steps(pairs, counting, given, known)
        except InputError:  # a number has no name
            nameable = [name for name in known if name != "numbers"]
            better = _better_steps(pairs, counting, given, nameable)
        errors = _errors(pairs, better, counting) if better else best
        if _is_gain(best, errors):
            steps, best = better, errors
    if steps:
        LOG.warning(
            "--normalize %s: %s %.2f -> %.2f %%; references and hypotheses are written differently",
            ",".join(steps),
            of,
            100 * before.rate,
            100 * best.rate,
        )
    return bool(steps)


def _better_steps(
    pairs: Pairs, counting: Counting, given: Sequence[str], known: Sequence[str]
) -> List[str]:
    """The given steps and the known ones that a lower error rate needs; empty if none is lower."""
    tried = pairs[:: max(len(pairs) // TRIED, 1)]
    before = _errors(tried, (), counting)
    steps = [name for name in STEPS if name in {*given, *known}]
    after = _errors(tried, steps, counting)
    for name in reversed(known):
        if name in given:
            continue
        rest = [other for other in steps if other != name]
        without = _errors(tried, rest, counting)
        if not _is_gain(without, after):
            steps, after = rest, without
    return steps if _is_gain(before, after) else []


def _errors(pairs: Pairs, steps: Sequence[str], counting: Counting) -> ErrorCounts:
    """Errors of hypotheses after some steps."""
    words = Normalization(",".join(steps), kept=counting.ignored).words
    return sum((counting.errors(words(ref), words(hyp)) for ref, hyp in pairs), NO_WORDS)


def _is_gain(before: ErrorCounts, after: ErrorCounts) -> bool:
    """True if errors, and their rate, fall by more than a trifle."""
    fewer = before.errors - after.errors > LEAST_PART * before.errors
    return fewer and before.rate - after.rate > LEAST_GAIN


class Leakage(NamedTuple):
    """Test sentences `found` in a training text, of `long` that have `SHORTEST` words or more."""

    found: List[Tuple[str, ...]]
    long: int

    def __str__(self) -> str:
        """Counts, for people."""
        rate = 100 * len(self.found) / max(self.long, 1)
        return (
            f"{len(self.found)} of {self.long} sentences of {SHORTEST} or more words ({rate:.3g} %)"
        )


def find_leakage(train: Iterable[Sequence[str]], test: Iterable[Sequence[str]]) -> Leakage:
    """Test sentences that stand in the training text, whole or with `RUN` words in a row.

    Case is ignored.
    """
    lower = functools.cache(lower_case)  # texts have many words, and few different ones
    sentences = [tuple(map(lower, words)) for words in test]
    sentences = [words for words in sentences if len(words) >= SHORTEST]
    wanted = {part for words in sentences for part in _parts(words)}
    found: Set[Tuple[str, ...]] = set()
    for words in train:
        if len(words) >= SHORTEST:
            found.update(wanted.intersection(_parts([*map(lower, words)])))
    leaked = [words for words in sentences if not found.isdisjoint(_parts(words))]
    return Leakage(leaked, len(sentences))


def _parts(words: Sequence[str]) -> Iterable[Tuple[str, ...]]:
    """Runs of `RUN` words; a shorter sentence as a whole."""
    last = max(len(words) - RUN, 0)
    return (tuple(words[n : n + RUN]) for n in range(last + 1))


def warn_leakage(
    test: Iterable[Sequence[str]], path: PathLike, *, what: str, keyed: bool = False
) -> None:
    """Warn where a test text stands in the training text of an LM."""
    if not Path(path).is_file():
        raise InputError("no such training text", path=path, remedy="Give --train_text FILE.")
    leakage = find_leakage((line.split()[keyed:] for _, line in read_lines(path)), test)
    usual = USUAL * leakage.long
    if len(leakage.found) < max(FEWEST, usual + DEVIATIONS * usual**0.5):
        LOG.info("%s: %s stand in the training text %s", what, leakage, path)
        return
    shown = dict.fromkeys(leakage.found)
    examples = ", ".join(repr(" ".join(words)[:80]) for words in list(shown)[:SHOWN])
    LOG.warning(
        "%s: %s stand in the training text %s, whole or with %d words in a row: %s. Results on"
        " them say little of other text. Train without them, or take another test set.",
        *(what, leakage, path, RUN, examples),
    )
