"""Test sentences that stand in the training text of an LM: its figures then say too much.

Sentences of an ordinary split repeat short phrases of the training text. A long run of words seldom
stands in both. It does so for about 0.3 % of the sentences of six or more words of AMI's usual dev
and eval sets, and for 0.7 % of the presidents' addresses, which have set phrases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, List, NamedTuple, Sequence, Set, Tuple

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.words import lower_case

# A sentence of at least so many words counts; shorter ones are said by everybody
SHORTEST = 6
# So many words in a row seldom stand in two texts by chance
RUN = 10
# Part of the sentences that chance and set phrases explain, standard deviations above it at which
# there is a warning, and the fewest sentences of one
USUAL, DEVIATIONS, FEWEST = 0.01, 3.0, 3
SHOWN = 3


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
    sentences = [tuple(lower_case(word) for word in words) for words in test]
    sentences = [words for words in sentences if len(words) >= SHORTEST]
    wanted = {part for words in sentences for part in _parts(words)}
    found: Set[Tuple[str, ...]] = set()
    for words in train:
        if len(words) >= SHORTEST:
            found.update(wanted.intersection(_parts([lower_case(word) for word in words])))
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
