"""N-best lists: hypotheses with their scores, natural logs, higher is better."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG


class Rewriting(NamedTuple):
    """Listed phrases that stand in place of words of another hypothesis of the list.

    Attributes:
        origin: Place of the other hypothesis.
        phrases: The phrases.
        ln_odds: Ln odds that they were said, in nats, summed.
    """

    origin: int
    phrases: Tuple[str, ...]
    ln_odds: float


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One hypothesis of a recogniser.

    Attributes:
        words: Words; an empty hypothesis is valid.
        am_score: Acoustic log-likelihood, unscaled, in nats; the recogniser's total where it
            gives no parts; None where it gives no score.
        lm_score: First-pass LM log-probability, where the format holds it apart.
        graph_score: Log-probability of the graph without the LM (pronunciations,
            transitions), where the format holds it.
        extra: Other entries of the file for this hypothesis; kept, and written again.
        rewriting: How it was made from another one; None: it came with the list.
    """

    words: Tuple[str, ...]
    am_score: Optional[float] = None
    lm_score: Optional[float] = None
    graph_score: Optional[float] = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    rewriting: Optional[Rewriting] = None


@dataclasses.dataclass(frozen=True)
class NBest:
    """The hypotheses of one utterance, the recogniser's best first.

    Attributes:
        utt: Utterance id.
        hypotheses: One or more.
        ref: Words of the reference, where the format holds one.
        speaker: Who speaks, where the format says it.
        extra: Other entries of the file for this utterance; kept, and written again.
        source: The list before normalisation; None: it is not normalised.
        recording: Recording that the utterance is a part of, where the format says it.
        start: Where the utterance begins in the recording, in seconds, where the format says it.
        acoustic: True if `am_score` is an acoustic log-likelihood by its format, and no ln P.

    Raises:
        ValueError: There is no hypothesis.
    """

    utt: str
    hypotheses: Tuple[Hypothesis, ...]
    ref: Optional[Tuple[str, ...]] = None
    speaker: Optional[str] = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    source: Optional[NBest] = None
    recording: Optional[str] = None
    start: Optional[float] = None
    acoustic: bool = dataclasses.field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not self.hypotheses:
            raise ValueError(f"the utterance {self.utt!r} has no hypothesis")

    def with_words(self, change: Callable[[Tuple[str, ...]], Tuple[str, ...]]) -> NBest:
        """List whose hypotheses and reference have the words that a function makes of theirs."""
        hypotheses = (dataclasses.replace(h, words=change(h.words)) for h in self.hypotheses)
        ref = None if self.ref is None else change(self.ref)
        return dataclasses.replace(self, hypotheses=tuple(hypotheses), ref=ref)

    def numbered(self) -> np.ndarray:
        """Number of each hypothesis among the distinct ones, from 0, (N,).

        A hypothesis with the words and the scores of an earlier one repeats it.
        """
        known: Dict[Any, int] = {}
        keys = (
            place if h.am_score is None else (h.words, h.am_score, h.lm_score, h.graph_score)
            for place, h in enumerate(self.hypotheses)
        )
        return np.array([known.setdefault(key, len(known)) for key in keys])

    def scores(self, name: str) -> Optional[np.ndarray]:
        """Scores of one name, (N,); None where no hypothesis has one."""
        values = [getattr(hyp, name) for hyp in self.hypotheses]
        num_given = sum(value is not None for value in values)
        if 0 < num_given < len(values):
            problem = f"{num_given} of {len(values)} hypotheses of {self.utt[:80]!r} have a {name}"
            raise InputError(problem, remedy="Give it for all hypotheses of a list, or for none.")
        return np.array(values, dtype=float) if num_given else None


class Units(NamedTuple):
    """Units that stay whole where lists are divided.

    Attributes:
        name: `recordings`, `speakers` or `utterances`.
        of: Utterance id -> its unit.
    """

    name: str
    of: Mapping[str, str]


def whole_units(lists: Sequence[NBest], place_of: Optional[Callable[[NBest], Any]] = None) -> Units:
    """Recordings of lists, else their speakers, where there are several; else utterances.

    Without `place_of` the lists say their recordings. A list that does not, while others do, is a
    unit of its own, and a warning names it.
    """
    own = [item.recording if place_of is None else place_of(item).recording for item in lists]
    for name, known in (("recordings", own), ("speakers", [item.speaker for item in lists])):
        without = [item.utt for item, unit in zip(lists, known, strict=True) if unit is None]
        if len(without) == len(lists) or len({*known}) < 2:
            continue
        if without:
            LOG.warning(
                f"{len(without)} of {len(lists)} lists do not say their {name[:-1]},"
                f" {without[0][:80]!r} among them: each counts as one of the {name} by itself"
            )
        pairs = zip(lists, known, strict=True)
        return Units(name, {i.utt: f"only {i.utt}" if unit is None else unit for i, unit in pairs})
    return Units("utterances", {item.utt: item.utt for item in lists})
