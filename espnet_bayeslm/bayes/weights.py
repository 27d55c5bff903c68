"""Weights that an LM offers to kinds: names of parameters, and parts of their rows."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

# The first row of a parameter and the one after the last.
Rows = Tuple[int, int]


class Weights(NamedTuple):
    """Parameters of a module, by their names.

    Attributes:
        pattern: Pattern of the names, as `fnmatch` reads it: `encoder.layers.0.linear1.*`. In a
            table of positions `{k}` stands for the layer, counted from 0.
        part: (n, count): part n, from 0, of `count` equal parts of the rows, as an LSTM's gate;
            None: all rows.
        label: Suffix of the parameter's name in the names of a part's posterior tensors.
        is_new: True if a point-estimate LM has no such parameter: the prior's mean is its start.
    """

    pattern: str
    part: Optional[Tuple[int, int]] = None
    label: str = ""
    is_new: bool = False


class Function(NamedTuple):
    """A function of units that a mixture of basis functions may replace.

    Attributes:
        native: The activation function; None: there is none, and the mean function is the identity.
        path: Name of the module whose `add_process` puts the mixture there, `{k}` for the layer.
        weights: Weights that compute the function's argument.
    """

    native: Optional[str]
    path: str
    weights: Tuple[Weights, ...] = ()
