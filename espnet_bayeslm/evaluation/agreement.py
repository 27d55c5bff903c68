"""Normalisation with which hypotheses and references agree better."""

from __future__ import annotations

from typing import List, Mapping, Sequence, Tuple

from espnet_bayeslm.evaluation.counting import Counting
from espnet_bayeslm.evaluation.normalization import STEPS, Normalization
from espnet_bayeslm.evaluation.wer import NO_WORDS, ErrorCounts
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

# Steps that only write the same words in another way: `whisper` also leaves some out
ORDINARY_STEPS = tuple(name for name in STEPS if name not in ("whisper", "lower_tr"))
TURKISH_STEPS = tuple(name for name in STEPS if name not in ("whisper", "lower"))
# Sentences on which steps are tried, at least
TRIED = 300
# A gain is told above this rate, and this part of the errors
LEAST_GAIN, LEAST_PART = 0.001, 0.02

Pairs = Sequence[Tuple[Sequence[str], Sequence[str]]]


def warn_of_spelling(
    refs: Mapping[str, Sequence[str]],
    hyps: Mapping[str, Sequence[str]],
    counting: Counting,
    *,
    given: Sequence[str] = (),
) -> None:
    """Warn where a normalisation lowers the error rate of a first pass noticeably.

    Args:
        refs: Utterance id -> words, which the `given` steps have normalised.
        hyps: Best hypotheses, of some utterances at least, normalised by the same steps.
        counting: How errors are counted.
        given: Steps that are never left out.
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
            "--normalize %s: first pass %.2f -> %.2f %%; references and hypotheses are written"
            " differently",
            ",".join(steps),
            100 * before.rate,
            100 * best.rate,
        )


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
