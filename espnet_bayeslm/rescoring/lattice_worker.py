"""Rescoring of word lattices by workers: blocks of lattices out, rescored ones back."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Iterable, Iterator, List, Optional, Tuple

import numpy as np

from espnet_bayeslm.evaluation.counting import UnknownWords
from espnet_bayeslm.evaluation.interpolation import combined
from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.loading.components import SubtractOptions
from espnet_bayeslm.nbest.lattice import Lattice, PathScales
from espnet_bayeslm.rescoring.decision import Weighting
from espnet_bayeslm.rescoring.list_worker import checked
from espnet_bayeslm.rescoring.subtraction import load_mixture
from espnet_bayeslm.scoring.cache import uncached
from espnet_bayeslm.scoring.lattices import BATCH, MergeOptions, rescore_lattices
from espnet_bayeslm.utils.blocks import Blocks
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.engine import Pool
from espnet_bayeslm.utils.files import PathLike

Block = List[Lattice]


class LatticeWorker:
    """LMs and n-grams, loaded by a worker, which rescores blocks of lattices."""

    def __init__(
        self,
        options: SubtractOptions,
        merging: MergeOptions,
        scales: Optional[PathScales],
        ngpu: int,
    ):
        self._components, self._weighting = load_mixture(options, device_of(ngpu))
        self._merging, self._scales = merging, scales
        self._max_oov_rate = options.max_oov_rate

    def weighting(self, _: None) -> Weighting:
        """Names, weights and digests of the components."""
        return self._weighting

    def rescore(self, block: Block) -> Tuple[Block, List[UnknownWords]]:
        """Lattices with the scores of the components, and the words that these do not know."""
        found = rescore_lattices(
            block,
            [uncached(component.scorer) for component in self._components],
            self._mixed,
            scales=self._scales,
            options=self._merging,
        )
        return list(found), self._unknown(block)

    def _mixed(self, log_probs: np.ndarray) -> np.ndarray:
        """Ln p of the mixture less that of the subtracted LMs, from that of all components."""
        weighting = self._weighting
        count = len(weighting.names)
        mixed = combined(log_probs[:count], weighting.weights)
        rows = zip(weighting.scales.subtracted, log_probs[count:], strict=True)
        return mixed + sum(row.weight * values for row, values in rows if row.weight)

    def _unknown(self, block: Block) -> List[UnknownWords]:
        """Unknown words of the arcs, each once a lattice, of each component."""
        found = []
        for component in self._components:
            count = UnknownWords(
                component.name, max_oov_rate=self._max_oov_rate, scorer=component.scorer
            )
            for item in block:
                words = list(dict.fromkeys(arc.label for arc in item.arcs if arc.word is not None))
                oov = np.array([*uncached(component.scorer).unknown(words), False])
                count.add([words], [WordScores(np.zeros(len(oov)), oov)])
            found.append(count)
        return found


@contextlib.contextmanager
def rescored_lattices(
    pool: Pool,
    lattices: Iterable[Lattice],
    options: SubtractOptions,
    *how: Any,
    output: Optional[PathLike],
    total: int,
) -> Iterator[Iterator[Lattice]]:
    """An iterator of lattices with the scores of LMs and n-grams, to be read within the block."""
    if pool.workers > 1:
        options.check_form()
    work = Blocks(pool, LatticeWorker, options, *how)
    weighting: Weighting = work.ask("weighting")
    remaining = iter(lattices)
    blocks = iter(lambda: list(itertools.islice(remaining, BATCH)), [])
    identity = f"{options!r} {how!r} {weighting.fingerprints}"
    with work.kept(output, identity):
        found = work.map("rescore", blocks, desc="rescoring", unit="lattice", total=total)
        yield checked(result for _, result in found)
