"""N-best lists: their types, and the formats that they are read from and written in."""

from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest

__all__ = ["Hypothesis", "NBest", "read_nbest", "write_nbest"]
