"""Batches of a training: how many tokens they have, and which sentences."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from typing import Iterable, Iterator, List, Sequence, Tuple

import numpy as np
from espnet2.samplers.abs_sampler import AbsSampler

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, split_files, write_text


def read_shapes(path: PathLike) -> Iterator[Tuple[str, int, str]]:
    """Yield utterance, length and `,vocab_size` (or nothing) of lines `utterance length[,..]`."""
    for number, line in read_lines(path):
        fields = line.split()
        length, comma, rest = (fields[1] if len(fields) == 2 else "").partition(",")
        if not length.isdigit():
            raise InputError(
                f"expected `utterance length[,vocab_size]`, got {line!r}",
                path=path,
                line=number,
                remedy="Collect the statistics again.",
            )
        yield fields[0], int(length), comma + rest


def count_tokens(shape_files: Iterable[str]) -> int:
    """Number of tokens, `</s>` included, of the utterances of shape files."""
    paths = itertools.chain.from_iterable(map(split_files, shape_files))
    total = sum(length + 1 for path in paths for _, length, _ in read_shapes(path))
    if total == 0:
        raise InputError("the shape files list no utterance", path=next(iter(shape_files), None))
    return total


@contextlib.contextmanager
def with_sentence_ends(shape_files: Iterable[str]) -> Iterator[List[str]]:
    """Yield copies of shape files whose lengths count `</s>` too.

    A batch's loss is a mean. Without the ends a batch of one-word sentences would have twice the
    tokens of other batches, and these sentences half the weight.
    """
    copies: List[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in shape_files:
            lines = (f"{utt} {length + 1}{rest}\n" for utt, length, rest in read_shapes(path))
            copies.append(f"{folder}/{len(copies)}")
            write_text(copies[-1], "".join(lines))
        yield copies


class MixedSampler(AbsSampler):
    """Sampler of as many batches as ESPnet has made, whose sentences are mixed anew in each epoch.

    A step on sentences of one length moves the probability that a sentence ends there.
    """

    def __init__(self, batches: Sequence[Sequence[str]]):
        self._count = len(batches)
        self._utts = [utt for batch in batches for utt in batch]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Tuple[str, ...]]:
        return iter(self.generate(0))

    def generate(self, seed: int) -> List[Tuple[str, ...]]:
        """Batches of an epoch, which differ by one sentence in their size."""
        order = np.random.RandomState(seed).permutation(len(self._utts))
        return [tuple(self._utts[k] for k in part) for part in np.array_split(order, self._count)]
