"""N-best lists and lattices: their types and formats; their new scores are in `rescoring`."""

from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest

__all__ = ["Hypothesis", "NBest", "read_nbest", "write_nbest"]
