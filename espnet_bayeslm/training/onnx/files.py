"""A folder with the ONNX graphs of an LM, its tokens and a description.

The graphs are compared with the LM before they are there.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch

from espnet_bayeslm.lm.scoring import IncrementalLM
from espnet_bayeslm.training.experiment import read_config
from espnet_bayeslm.training.export import (
    TOLERANCE,
    check_kind,
    check_output,
    copy_text_files,
    difference,
    log_probs,
    random_ids,
)
from espnet_bayeslm.training.load import TrainedLM, load_lm
from espnet_bayeslm.training.onnx.graphs import (
    BATCH,
    LENGTH,
    LOG_PROBS,
    PREFIX,
    TOKENS,
    Shapes,
    StateTensor,
    TraceableLM,
    describe_state,
    full_shapes,
    step_shapes,
    write_full,
    write_repeated,
    write_step,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, staged, write_json, write_text

PACKAGES = ("onnx", "onnxruntime")


def export_onnx(path: PathLike, output: PathLike) -> None:
    """Write a trained LM at its posterior mean as ONNX graphs.

    The folder has `step.onnx` (one token), `full.onnx` (whole sequences), `tokens.txt`,
    `onnx.json`, which says how they are used, and the sentencepiece model where there is one.

    Args:
        path: The experiment folder, or a checkpoint beside its config.yaml.
        output: The folder to write.

    Raises:
        InputError: A package is missing, the LM cannot be loaded or traced, a graph differs from
            the LM, or `output` holds something else.
    """
    check_packages()
    check_output(output, sources=[path])
    trained = load_lm(path)
    args = read_config(trained.config)
    check_lm(trained, args)
    with staged(output) as folder:
        state = _write_graphs(trained, args.lm_conf.get("backbone"), folder)
        check_graphs(trained.lm, state, folder)
        files = copy_text_files(args, folder, named=Path())
        write_text(folder / "tokens.txt", "".join(f"{token}\n" for token in trained.token_list))
        about = describe(trained, state, files)
        write_json(folder / "onnx.json", about, ensure_ascii=False)


def check_packages() -> None:
    """Raise an InputError where a package that is needed is not installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"--format onnx needs {', '.join(missing)}, not installed here",
            remedy="pip install 'espnet_bayeslm[onnx]'",
        )


def check_lm(trained: TrainedLM, args: argparse.Namespace) -> None:
    """Raise an InputError where an LM is none of this package's, a super-network or a mixture."""
    check_kind(args, path=trained.config)
    if not isinstance(trained.lm, IncrementalLM):
        raise InputError(
            f"--format onnx is for the LMs of this package, and this is ESPnet's"
            f" {type(trained.lm).__name__}",
            path=trained.path,
            remedy="`lm: bayes_espnet` can have it as its backbone, with `uncertainty: {}` too.",
        )


def _write_graphs(trained: TrainedLM, backbone: Optional[str], folder: Path) -> List[StateTensor]:
    """Write both graphs; return the tensors of the state."""
    step, full = folder / "step.onnx", folder / "full.onnx"
    try:
        lm = TraceableLM(trained.lm, backbone)
        state = describe_state(lm)
        write_step(lm, state, step)
        if lm.repeats:
            write_repeated(step, state, full, vocab_size=len(trained.token_list))
        else:
            write_full(lm, full)
    except Exception as error:  # whatever torch's exporter raises
        logging.debug("traceback", exc_info=True)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"this LM cannot be traced ({reason})", path=trained.path) from error
    return state


def describe(
    trained: TrainedLM, state: Sequence[StateTensor], files: Dict[str, str]
) -> Dict[str, Any]:
    """Content of `onnx.json`; `unk_size` words share the probability of `<unk>`."""
    vocab_size = len(trained.token_list)
    return {
        "lm": trained.name,
        "vocab_size": vocab_size,
        "token_list": "tokens.txt",
        "token_type": trained.token_type,
        "unk_size": trained.unk_size,
        **files,
        "sos": vocab_size - 1,
        "eos": vocab_size - 1,
        "axes": {
            BATCH: "sentences or hypotheses",
            LENGTH: "tokens, <sos/eos> first",
            PREFIX: "tokens before this one; at the start 0",
        },
        "full": {"file": "full.onnx", **_tensors(full_shapes(vocab_size))},
        "step": {
            "file": "step.onnx",
            **_tensors(step_shapes(state, vocab_size)),
            "next": {t.new_name: t.name for t in state},
            "start": "tokens are sos; each other input is zeros of its shape",
        },
    }


def _tensors(shapes: Shapes) -> Dict[str, Any]:
    """Inputs and outputs of a graph, for `describe`."""
    return {
        side: {
            name: {"type": "int64" if name == TOKENS else "float32", "shape": list(shape)}
            for name, shape in tensors.items()
        }
        for side, tensors in zip(("inputs", "outputs"), shapes, strict=True)
    }


def check_graphs(lm: Any, state: Sequence[StateTensor], folder: Path) -> None:
    """Raise an InputError where `full.onnx` or `step.onnx` of a folder is not of an LM."""
    full, step = (_session(folder / f"{name}.onnx") for name in ("full", "step"))
    for ids in random_ids(lm.vocab_size):
        expected = log_probs(lm, ids)
        found = {
            "full.onnx": full.run([LOG_PROBS], {TOKENS: ids.numpy()})[0],
            "step.onnx": _run_steps(step, state, ids.numpy()),
        }
        for name, values in found.items():
            worst = difference(expected, torch.from_numpy(values))
            if not worst <= TOLERANCE:
                size = "x".join(map(str, ids.shape))
                raise InputError(
                    f"{name} differs from the LM by {worst:.2g} of ln p, for {size} tokens"
                    f" (at most {TOLERANCE:.0e} was expected); nothing was written"
                )


def _session(path: Path) -> Any:
    """Onnxruntime session on as many CPU threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run_steps(session: Any, state: Sequence[StateTensor], ids: np.ndarray) -> np.ndarray:
    """Ln p of each next token, (B, L) -> (B, L, vocab_size), one token after the other."""
    feed = {tensor.name: tensor.start(len(ids)).numpy() for tensor in state}
    outputs = [LOG_PROBS, *(tensor.new_name for tensor in state)]
    results: List[np.ndarray] = []
    for column in ids.T:
        found, *new = session.run(outputs, {TOKENS: column[:, None], **feed})
        feed = {tensor.name: value for tensor, value in zip(state, new, strict=True)}
        results.append(found)
    return np.stack(results, axis=1)
