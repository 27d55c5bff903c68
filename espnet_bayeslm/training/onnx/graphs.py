"""Graphs of one step and of whole sequences, traced or as one step repeated."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import nn

from espnet_bayeslm.training.onnx.plain import WITH_STATE, has_loop, traceable, without_tables

TOKENS, LOG_PROBS = "tokens", "log_probs"
# Names of dynamic axes: hypotheses or sentences; tokens; tokens before the one that is given.
BATCH, LENGTH, PREFIX = "B", "L", "P"
NEXT = {PREFIX: "P + 1"}
OPSET = 17
# Before the names of what is repeated.
INNER = "step_"
Size = Union[int, str]
State = Tuple[torch.Tensor, ...]
# {name: shape} of the inputs and of the outputs of a graph.
Shapes = Tuple[Mapping[str, Sequence[Size]], Mapping[str, Sequence[Size]]]


@dataclasses.dataclass(frozen=True)
class StateTensor:
    """A tensor of an LM's state.

    Attributes:
        name: Its name as an input.
        shape: Its shape, with `B` and, where it grows with each token, `P`.
    """

    name: str
    shape: Tuple[Size, ...]

    @property
    def new_name(self) -> str:
        """Its name as an output."""
        return f"new_{self.name}"

    @property
    def new_shape(self) -> Tuple[Size, ...]:
        """Its shape after one more token."""
        return tuple(NEXT.get(size, size) if isinstance(size, str) else size for size in self.shape)

    def start(self, batch: int) -> torch.Tensor:
        """State before the first token."""
        known = {BATCH: batch, PREFIX: 0}
        return torch.zeros([known[s] if isinstance(s, str) else s for s in self.shape])


class TraceableLM(nn.Module):
    """A copy of an LM at its posterior mean that can be traced.

    Args:
        lm: One of this package's LMs.
        backbone: Of a `bayes_espnet`, ESPnet's name of its backbone.

    Attributes:
        repeats: Whether one token at a time can be traced, and no more.
        vocab_size: Number of tokens.
    """

    def __init__(self, lm: Any, backbone: Optional[str] = None):
        super().__init__()
        self.repeats, self.vocab_size = has_loop(lm), lm.vocab_size
        self.lm = without_tables(copy.deepcopy(lm).eval())
        self.compute = WITH_STATE.get(backbone or "", type(lm).compute)
        # a GRU's state is a tensor, those of others are several
        with traceable(self.lm):
            self.is_single = torch.is_tensor(self.compute(self.lm, _ids(1, 1), None)[1])

    def forward(
        self, tokens: torch.Tensor, state: Optional[State] = None
    ) -> Tuple[torch.Tensor, State]:
        """Ln p of each next token, (B, L, vocab_size), and the tensors of the new state.

        Args:
            tokens: Token ids, (B, L).
            state: The tensors of the state; None at the start.
        """
        hidden = state[0] if state and self.is_single else state or None
        with traceable(self.lm):
            logits, new = self.compute(self.lm, tokens, hidden)
        return logits.log_softmax(dim=-1), (new,) if self.is_single else new


class Graph(nn.Module):
    """Ln p of whole sequences, (B, L, vocab_size); with `step` of one token, and the new state."""

    def __init__(self, lm: TraceableLM, *, step: bool):
        super().__init__()
        self.lm, self.is_step = lm, step

    def forward(self, tokens: torch.Tensor, *state: torch.Tensor) -> Any:
        """See above."""
        log_probs, new = self.lm(tokens, state)
        return (log_probs[:, -1], *new) if self.is_step else log_probs


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.ones(batch, length, dtype=torch.long)


@torch.no_grad()
def describe_state(lm: TraceableLM) -> List[StateTensor]:
    """Tensors of an LM's state, their dynamic axes found by trying."""
    shapes = []
    tried = [lm(_ids(*size))[1] for size in ((2, 3), (3, 3), (2, 4))]
    for base, wider, longer in zip(*tried, strict=True):
        sizes: List[Size] = list(base.shape)
        for axis, size in enumerate(base.shape):
            if wider.size(axis) != size:
                sizes[axis] = BATCH
            elif longer.size(axis) != size:
                sizes[axis] = PREFIX
        shapes.append(tuple(sizes))
    grows = any(PREFIX in shape for shape in shapes)
    names = [f"past_{number}" for number in range(1, len(shapes) + 1)] if grows else ["h", "c"]
    return [StateTensor(name, shape) for name, shape in zip(names, shapes, strict=False)]


def step_shapes(state: Sequence[StateTensor], vocab_size: int) -> Shapes:
    """Shapes of the graph of one step."""
    inputs = {TOKENS: (BATCH, 1), **{tensor.name: tensor.shape for tensor in state}}
    new = {tensor.new_name: tensor.new_shape for tensor in state}
    return inputs, {LOG_PROBS: (BATCH, vocab_size), **new}


def full_shapes(vocab_size: int) -> Shapes:
    """Shapes of the graph of whole sequences."""
    return {TOKENS: (BATCH, LENGTH)}, {LOG_PROBS: (BATCH, LENGTH, vocab_size)}


def write_step(lm: TraceableLM, state: Sequence[StateTensor], path: Path) -> None:
    """Write the graph of one step."""
    args = (_ids(2, 1), *lm(_ids(2, 3))[1])
    _trace(Graph(lm, step=True), args, path, step_shapes(state, lm.vocab_size))


def write_full(lm: TraceableLM, path: Path) -> None:
    """Write the graph of whole sequences."""
    _trace(Graph(lm, step=False), (_ids(2, 5),), path, full_shapes(lm.vocab_size))


def _trace(module: nn.Module, args: State, path: Path, shapes: Shapes) -> None:
    """Write the graph of what a module makes of some arguments."""
    inputs, outputs = shapes
    axes = {
        name: {i: size for i, size in enumerate(shape) if isinstance(size, str)}
        for name, shape in {**inputs, **outputs}.items()
    }
    with warnings.catch_warnings(), torch.no_grad():
        # of tables that a trace would fix, for which there are plain parts
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            args,
            str(path),
            input_names=[*inputs],
            output_names=[*outputs],
            dynamic_axes=axes,
            opset_version=OPSET,
            do_constant_folding=False,
            # the newer exporter makes an LSTM of one length
            dynamo=False,
        )


def write_repeated(
    step: Path, state: Sequence[StateTensor], path: Path, *, vocab_size: int
) -> None:
    """Write the graph of whole sequences of an LM whose recurrence cannot be traced as one.

    Args:
        step: The graph of one step; no tensor of its state grows.
        state: The tensors of its state.
        path: The graph to write.
        vocab_size: Number of tokens.
    """
    import onnx
    from onnx import TensorProto, compose, helper, numpy_helper

    model = compose.add_prefix(onnx.load(step), INNER)
    info = helper.make_tensor_value_info
    # Scan gives a column of the ids at a time, (B,); what it repeats sees the weights outside
    column = info("column", TensorProto.INT64, [BATCH])
    widen = helper.make_node("Unsqueeze", ["column", "one"], [INNER + TOKENS])
    tokens, *states = model.graph.input
    log_probs, *new_states = model.graph.output
    assert tokens.name == INNER + TOKENS, tokens.name
    body = helper.make_graph(
        [widen, *model.graph.node], "step", [*states, column], [*new_states, log_probs]
    )
    scan = helper.make_node(
        "Scan",
        [*(t.name for t in state), TOKENS],
        [*(t.new_name for t in state), LOG_PROBS],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
    )
    start, sizes = _start(state, helper)
    graph = helper.make_graph(
        [*start, scan],
        "full",
        [info(TOKENS, TensorProto.INT64, [BATCH, LENGTH])],
        [info(LOG_PROBS, TensorProto.FLOAT, [BATCH, LENGTH, vocab_size])],
        [*model.graph.initializer, *(numpy_helper.from_array(v, n) for n, v in sizes.items())],
    )
    model.graph.CopyFrom(graph)
    onnx.save(model, path)


def _start(state: Sequence[StateTensor], helper: Any) -> Tuple[List[Any], Dict[str, np.ndarray]]:
    """Nodes that make the zeros of the start, for the batch that is given, and constants."""
    nodes = [helper.make_node("Shape", [TOKENS], ["batch"], start=0, end=1)]
    sizes = {"one": np.array([1])}
    for tensor in state:
        axis = tensor.shape.index(BATCH)
        before, shape, after = (f"{tensor.name}_{part}" for part in ("before", "shape", "after"))
        sizes[before] = np.array(tensor.shape[:axis], dtype=np.int64)
        sizes[after] = np.array(tensor.shape[axis + 1 :], dtype=np.int64)
        nodes.append(helper.make_node("Concat", [before, "batch", after], [shape], axis=0))
        nodes.append(helper.make_node("ConstantOfShape", [shape], [tensor.name]))
    return nodes, sizes
