"""Rescoring of lattices in blocks, which one process or many workers score."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.engine.work import Blocks
from espnet_bayeslm.loading.component_options import SubtractOptions
from espnet_bayeslm.loading.components import ComponentWorker, scored_blocks, with_words_checked
from espnet_bayeslm.nbest.formats import NBEST_SIZE
from espnet_bayeslm.nbest.lattice import Lattice, PathScales, best_paths
from espnet_bayeslm.pretrained.text_forms import best_first
from espnet_bayeslm.rescoring.scales import load_mixture
from espnet_bayeslm.scoring.cache import uncached
from espnet_bayeslm.scoring.interpolation import combined
from espnet_bayeslm.scoring.perplexity import UnknownWords
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.files import PathLike

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.lattices import MergeOptions

LATTICES = 32
"""Lattices of a block."""


class LatticeWorker(ComponentWorker):
    """LMs and n-grams, loaded by a worker, which rescores blocks of lattices."""

    def __init__(
        self,
        options: SubtractOptions,
        merging: MergeOptions,
        scales: Optional[PathScales],
        ngpu: int,
    ):
        components, self._weighting, kept = load_mixture(options, device_of(ngpu))
        super().__init__(components, None, kept)
        self._merging, self._scales = merging, scales
        self._max_oov_rate = options.max_oov_rate

    def score(self, block: Sequence[Lattice]) -> Tuple[List[Lattice], List[UnknownWords]]:
        """Lattices with the scores of the components, and the words that these do not know."""
        from espnet_bayeslm.scoring.lattices import rescore_lattices  # imports torch

        scorers = [uncached(component.scorer) for component in self.components]
        how: Any = {"scales": self._scales, "options": self._merging}
        unknown = []
        for component, scorer in zip(self.components, scorers, strict=True):
            count = UnknownWords(component.name, self._max_oov_rate)
            for item in block:  # each word once a lattice
                words = list(dict.fromkeys(arc.label for arc in item.arcs if arc.word is not None))
                oov = np.array([*scorer.unknown(words), False])
                count.add([words], [WordScores(np.zeros(len(oov)), oov)])
            unknown.append(count)
        return rescore_lattices(block, scorers, self._mixed, **how), unknown

    def _mixed(self, log_probs: np.ndarray) -> np.ndarray:
        """Ln p of the mixture less that of the subtracted LMs, from that of all components."""
        weighting = self._weighting
        count = len(weighting.names)
        mixed = combined(log_probs[:count], weighting.weights)
        rows = zip(weighting.scales.subtracted, log_probs[count:], strict=True)
        return mixed + sum(row.weight * values for row, values in rows if row.weight)


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
