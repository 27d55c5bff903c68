"""Rescoring of lattices in blocks, which one process or many workers score."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Optional

import numpy as np

from espnet_bayeslm.engine.blocks import Blocks
from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.loading.components import SubtractOptions, read_as
from espnet_bayeslm.nbest.formats import NBEST_SIZE
from espnet_bayeslm.nbest.lattice import Lattice, PathScales, best_paths
from espnet_bayeslm.pretrained.text_forms import best_first
from espnet_bayeslm.rescoring.list_worker import ComponentWorker, Found, InForms, checked
from espnet_bayeslm.rescoring.scales import Weighting, load_mixture
from espnet_bayeslm.scoring.cache import uncached
from espnet_bayeslm.scoring.interpolation import combined
from espnet_bayeslm.scoring.oov_rate import UnknownWords
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
        super().__init__(*load_mixture(options, device_of(ngpu)))
        self._merging, self._scales = merging, scales
        self._max_oov_rate = options.max_oov_rate

    def rescore(self, given: InForms) -> Found[Lattice]:
        """Lattices with the scores of the components, and the words that these do not know."""
        from espnet_bayeslm.scoring.lattices import rescore_lattices  # imports torch

        forms, block = given
        read_as(self._components, forms)
        scorers = [uncached(component.scorer) for component in self._components]
        how: Any = {"scales": self._scales, "options": self._merging}
        unknown = []
        for component, scorer in zip(self._components, scorers, strict=True):
            count = UnknownWords(component.name, max_oov_rate=self._max_oov_rate, scorer=scorer)
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
    pool: Pool,
    lattices: Iterable[Lattice],
    options: SubtractOptions,
    merging: MergeOptions,
    scales: Optional[PathScales],
    *,
    ngpu: int,
    output: Optional[PathLike],
    total: int,
) -> Iterator[Iterator[Lattice]]:
    """An iterator of lattices with the scores of LMs and n-grams, to be read within the block."""
    work = Blocks(pool, LatticeWorker, options, merging, scales, ngpu)
    remaining = iter(lattices)
    todo = iter(lambda: list(itertools.islice(remaining, LATTICES)), [])
    first = next(todo, []) if options.chooses_form() else []
    # whole paths: by beginnings of sentences an LM would choose another form
    paths = (best_paths(item, scales or item.scales, NBEST_SIZE) for item in first)
    seen = best_first([path.words for path in of_one] for of_one in paths)
    weighting: Weighting = work.ask("weighting", seen)
    forms = weighting.text_forms
    weighting.warn_of_other_forms()
    identity = f"{options!r} {merging!r} {scales!r} {ngpu} {weighting.digests} {forms}"
    how: Any = dict(desc="rescoring", unit="lattice", sent=lambda block: (forms, block))
    with work.kept(output, identity):
        every = itertools.chain([first] if first else [], todo)
        found = work.map("rescore", every, total=total, **how)
        yield checked((result for _, result in found), work)
