"""The graph of whole sequences as the graph of one step, repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Sequence

from espnet_bayeslm.training.onnx.graphs import BATCH, LENGTH, LOG_PROBS, TOKENS, StateTensor

# Before the names of what is repeated.
INNER = "step_"


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
    sizes = _sizes(state)
    graph = helper.make_graph(
        [*_start(state, helper), scan],
        "full",
        [info(TOKENS, TensorProto.INT64, [BATCH, LENGTH])],
        [info(LOG_PROBS, TensorProto.FLOAT, [BATCH, LENGTH, vocab_size])],
        [*model.graph.initializer, *(numpy_helper.from_array(v, n) for n, v in sizes.items())],
    )
    model.graph.CopyFrom(graph)
    onnx.save(model, path)


def _sizes(state: Sequence[StateTensor]) -> Any:
    """{name: constant} of what `_start` reads."""
    import numpy as np

    sizes = {"one": np.array([1])}
    for tensor in state:
        axis = tensor.shape.index(BATCH)
        sizes[f"{tensor.name}_before"] = np.array(tensor.shape[:axis], dtype=np.int64)
        sizes[f"{tensor.name}_after"] = np.array(tensor.shape[axis + 1 :], dtype=np.int64)
    return sizes


def _start(state: Sequence[StateTensor], helper: Any) -> List[Any]:
    """Nodes that make the zeros of the start, for the batch that is given."""
    nodes = [helper.make_node("Shape", [TOKENS], ["batch"], start=0, end=1)]
    for tensor in state:
        parts = [f"{tensor.name}_before", "batch", f"{tensor.name}_after"]
        nodes.append(helper.make_node("Concat", parts, [f"{tensor.name}_shape"], axis=0))
        nodes.append(helper.make_node("ConstantOfShape", [f"{tensor.name}_shape"], [tensor.name]))
    return nodes
