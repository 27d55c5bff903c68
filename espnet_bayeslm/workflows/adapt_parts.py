"""Lists with references, divided into parts for cross-fitting.

What an LM was trained on tells nothing of how far it may be trusted. So adapters that learn all
parts but one tune the weights on this one, and no recording is in two parts.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import numpy as np

from espnet_bayeslm.nbest.types import Units
from espnet_bayeslm.rescoring.feature_tuning import LISTS_PER_WEIGHT, folds
from espnet_bayeslm.utils.errors import InputError

PARTS, PARTS_OF_LITTLE, LITTLE = 2, 3, 200
"""Number of parts, and the number below so many sentences, whose halves would train too little."""
LEAST_LISTS = 2 * LISTS_PER_WEIGHT * 5 // 4
"""Lists without which no weights of a score and an LM could be tuned on four of five folds."""


class Parts(NamedTuple):
    """Parts of lists.

    Attributes:
        part_of: Utterance id -> number of its part, from 1.
        number: How many parts there are.
        units: What is in one part as a whole: `recordings`, `speakers` or `utterances`.
    """

    part_of: Mapping[str, int]
    number: int
    units: str


def divide(utts: Sequence[str], units: Units) -> Parts:
    """Parts of utterances of about the same number; units stay whole, and are drawn at random.

    The parts are the same at each call.

    Raises:
        InputError: There are fewer than `LEAST_LISTS`.
    """
    if len(utts) < LEAST_LISTS:
        raise InputError(
            f"{len(utts)} lists with references, and {LEAST_LISTS} or more were expected: fewer"
            " cannot tune the weight of an LM",
            remedy="Give some hundred lists with references.",
        )
    wanted = PARTS if len(utts) >= LITTLE else PARTS_OF_LITTLE
    parts = folds([units.of[utt] for utt in utts], wanted)
    numbers = np.zeros(len(utts), dtype=int)
    for number, places in enumerate(parts, 1):
        numbers[places] = number
    return Parts(dict(zip(utts, numbers.tolist(), strict=True)), len(parts), units.name)
