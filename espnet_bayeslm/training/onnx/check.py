"""Comparison of ONNX graphs with the LM that they are of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, List, Sequence, Tuple

import torch

from espnet_bayeslm.training.export import TOLERANCE, difference, log_probs, random_ids
from espnet_bayeslm.training.onnx.graphs import LOG_PROBS, TOKENS, StateTensor
from espnet_bayeslm.utils.errors import InputError


def open_graph(path: Path) -> Any:
    """Onnxruntime session on one CPU thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_full(session: Any, ids: torch.Tensor) -> torch.Tensor:
    """Ln p of each next token, (B, L) -> (B, L, vocab_size)."""
    return torch.from_numpy(session.run([LOG_PROBS], {TOKENS: ids.numpy()})[0])


def run_steps(session: Any, state: Sequence[StateTensor], ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities as `run_full`'s, one token after the other."""
    feed = {tensor.name: tensor.start(len(ids)).numpy() for tensor in state}
    results: List[torch.Tensor] = []
    for column in ids.split(1, dim=1):
        found, *new = session.run(
            [LOG_PROBS, *(t.new_name for t in state)], {TOKENS: column.numpy(), **feed}
        )
        feed = {tensor.name: value for tensor, value in zip(state, new, strict=True)}
        results.append(torch.from_numpy(found))
    return torch.stack(results, dim=1)


def check_graphs(lm: Any, state: Sequence[StateTensor], folder: Path) -> None:
    """Raise an InputError where `full.onnx` or `step.onnx` of a folder is not of an LM."""
    full, step = (open_graph(folder / f"{name}.onnx") for name in ("full", "step"))

    def pairs() -> Iterator[Tuple[str, torch.Tensor, torch.Tensor]]:
        for ids in random_ids(lm.vocab_size):
            expected = log_probs(lm, ids)
            yield "full.onnx", expected, run_full(full, ids)
            yield "step.onnx", expected, run_steps(step, state, ids)

    for name, expected, found in pairs():
        worst = difference(expected, found)
        if not worst <= TOLERANCE:
            size = "x".join(map(str, expected.shape[:2]))
            raise InputError(
                f"{name} differs from the LM by {worst:.2g} of ln p, for {size} tokens"
                f" (at most {TOLERANCE:.0e} was expected); nothing was written"
            )
