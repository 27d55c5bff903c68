"""Rescoring of lattices in blocks, which one process or many workers score."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.engine.work import Blocks
from espnet_bayeslm.loading.component_options import SubtractOptions
from espnet_bayeslm.mixture.mixture_worker import MixtureWorker, scored_blocks, with_words_checked
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.nbest.formats import NBEST_SIZE
from espnet_bayeslm.nbest.lattice import Lattice, PathScales, best_paths
from espnet_bayeslm.pretrained.text_forms import best_first
from espnet_bayeslm.scoring.perplexity import UnknownWords
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.files import PathLike

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.lattices import MergeOptions

LATTICES = 32
"""Lattices of a block."""


class LatticeWorker(MixtureWorker):
    """A mixture that rescores blocks of lattices."""

    def __init__(
        self,
        options: SubtractOptions,
        merging: MergeOptions,
        scales: Optional[PathScales],
        ngpu: int,
    ):
        self.mixture = Mixture.load(options, device_of(ngpu))
        self._merging, self._scales = merging, scales

    def score(self, block: Sequence[Lattice]) -> Tuple[List[Lattice], List[UnknownWords]]:
        """Lattices with the scores of the components, and the words that these do not know."""
        from espnet_bayeslm.scoring.lattices import rescore_lattices  # imports torch

        how: Any = {"scales": self._scales, "options": self._merging}
        # each word once a lattice
        every = [list(dict.fromkeys(a.label for a in x.arcs if a.word is not None)) for x in block]
        unknown = self.mixture.unknown_in(list(itertools.chain.from_iterable(every)))
        return rescore_lattices(block, self.mixture, **how), unknown


@contextlib.contextmanager
def rescored_lattices(
    pool: Optional[Pool],
    lattices: Iterable[Lattice],
    options: SubtractOptions,
    merging: MergeOptions,
    scales: Optional[PathScales],
    *,
    ngpu: int,
    output: Optional[PathLike],
    total: int,
) -> Iterator[Tuple[Iterator[Lattice], Mapping[str, str]]]:
    """An iterator of lattices with the scores of LMs and n-grams, to be read within the block.

    With it comes the form in which each pretrained LM reads text, by name.
    """
    workers = Blocks(pool, LatticeWorker, options, merging, scales, ngpu)
    remaining = iter(lattices)
    todo = iter(lambda: list(itertools.islice(remaining, LATTICES)), [])
    ready: List[List[Lattice]] = []

    def first_paths() -> List[Sequence[str]]:
        ready.extend(itertools.islice(todo, 1))
        # whole paths: by beginnings of sentences an LM would choose another form
        items = itertools.chain.from_iterable(ready)
        lists = (best_paths(item, scales or item.scales, NBEST_SIZE) for item in items)
        return best_first([path.words for path in paths] for paths in lists)

    with scored_blocks(
        workers,
        itertools.chain(ready, todo),
        sentences=first_paths,
        identity=f"{options!r} {merging!r} {scales!r} {ngpu}",
        output=output,
        desc="rescoring",
        unit="lattice",
        total=total,
    ) as (facts, scored):
        blocks = (rescored for _, rescored in with_words_checked(scored, workers))
        yield itertools.chain.from_iterable(blocks), facts.text_forms
