"""Lists with references, divided into those that an LM is adapted on and those that tune weights.

What an LM was trained on tells nothing of how far it may be trusted: no recording is in both parts.
"""

from __future__ import annotations

import random
from typing import Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError

SHARE = 0.6
"""Part of the words that an LM is adapted on."""
SEED = 0


class Parts(NamedTuple):
    """Lists to adapt on and lists to tune on, each in the order in which they came.

    Attributes:
        adapting: Lists whose references an LM is trained on.
        tuning: Lists that say when the training ends, and tune weights.
        units: What is in one part as a whole: `recordings`, `speakers` or `utterances`.
    """

    adapting: List[NBest]
    tuning: List[NBest]
    units: str


def divide(
    lists: Sequence[NBest],
    refs: Mapping[str, Sequence[str]],
    recordings: Mapping[str, str],
    *,
    share: float = SHARE,
) -> Parts:
    """Two parts of lists; recordings, else speakers, where there are several, stay whole.

    Units are taken in a random order, the same at each call, as long as they bring the words of the
    adapting part nearer to `share` of all.

    Args:
        lists: Lists of different utterances, two or more.
        refs: Utterance id -> words of its reference.
        recordings: Utterance id -> recording; empty where these are not known.
        share: Part of the words for adapting, between 0 and 1.

    Raises:
        InputError: Less than two lists.
    """
    if len(lists) < 2:
        raise InputError(
            f"{len(lists)} list with a reference, and two or more were expected: one part adapts,"
            " the other tunes",
            remedy="Give some hundred lists with references.",
        )
    units, unit_of = _units(lists, recordings)
    sizes: Dict[str, int] = {}
    for item in lists:
        sizes[unit_of[item.utt]] = sizes.get(unit_of[item.utt], 0) + len(refs[item.utt])
    order = sorted(sizes)
    random.Random(SEED).shuffle(order)
    wanted, size = share * sum(sizes.values()), 0
    chosen: Set[str] = set()
    for unit in order:
        if not chosen or (
            abs(size + sizes[unit] - wanted) <= abs(size - wanted) and len(chosen) < len(order) - 1
        ):
            chosen.add(unit)
            size += sizes[unit]
    adapting = [item for item in lists if unit_of[item.utt] in chosen]
    tuning = [item for item in lists if unit_of[item.utt] not in chosen]
    return Parts(adapting, tuning, units)


def _units(lists: Sequence[NBest], recordings: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    """Name of the units that stay whole, and the unit of each utterance."""
    speakers = {item.utt: item.speaker for item in lists if item.speaker is not None}
    for name, known in (("recordings", recordings), ("speakers", speakers)):
        of_lists = {item.utt: known[item.utt] for item in lists if item.utt in known}
        if len(of_lists) == len(lists) and len({*of_lists.values()}) > 1:
            return name, of_lists
    return "utterances", {item.utt: item.utt for item in lists}
