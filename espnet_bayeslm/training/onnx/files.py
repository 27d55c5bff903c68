"""A folder with the ONNX graphs of an LM, its tokens and a description."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any, Dict, List, Sequence, Union

from espnet_bayeslm.lm.scoring import IncrementalLM
from espnet_bayeslm.training.experiment import read_config
from espnet_bayeslm.training.export import check_kind, check_output, copy_text_files
from espnet_bayeslm.training.load import TrainedLM, load_lm
from espnet_bayeslm.training.onnx.check import check_graphs
from espnet_bayeslm.training.onnx.graphs import (
    BATCH,
    LENGTH,
    LOG_PROBS,
    PREFIX,
    TOKENS,
    StateTensor,
    TraceableLM,
    describe_state,
    write_full,
    write_repeated,
    write_step,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import staged

PACKAGES = ("onnx", "onnxruntime")


def export_onnx(path: Union[str, Path], output: Union[str, Path]) -> None:
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
    check_lm(trained)
    with staged(output) as folder:
        state = _write_graphs(trained, folder)
        check_graphs(trained.lm, state, folder)
        files = copy_text_files(read_config(trained.config), folder, named=Path())
        (folder / "tokens.txt").write_text(
            "".join(f"{token}\n" for token in trained.token_list), encoding="utf-8"
        )
        text = json.dumps(describe(trained, state, files), indent=1, ensure_ascii=False)
        (folder / "onnx.json").write_text(text + "\n", encoding="utf-8")


def check_packages() -> None:
    """Raise an InputError where a package that is needed is not installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"--format onnx needs {', '.join(missing)}, not installed here",
            remedy="pip install 'espnet_bayeslm[onnx]'",
        )


def check_lm(trained: TrainedLM) -> None:
    """Raise an InputError where an LM has no graph.

    Raises:
        InputError: It is none of this package's, or a super-network or a mixture.
    """
    check_kind(read_config(trained.config), path=trained.config)
    if not isinstance(trained.lm, IncrementalLM):
        raise InputError(
            f"--format onnx is for the LMs of this package, and this is ESPnet's"
            f" {type(trained.lm).__name__}",
            path=trained.path,
            remedy="`lm: bayes_espnet` can have it as its backbone, with `uncertainty: {}` too.",
        )


def _write_graphs(trained: TrainedLM, folder: Path) -> List[StateTensor]:
    """Write both graphs; return the tensors of the state."""
    backbone = read_config(trained.config).lm_conf.get("backbone")
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
    """Content of `onnx.json`."""
    vocab_size = len(trained.token_list)
    return {
        "lm": trained.name,
        "vocab_size": vocab_size,
        "token_list": "tokens.txt",
        "token_type": trained.token_type,
        **files,
        "sos": vocab_size - 1,
        "eos": vocab_size - 1,
        "axes": {
            BATCH: "sentences or hypotheses",
            LENGTH: "tokens, <sos/eos> first",
            PREFIX: "tokens before this one; at the start 0",
        },
        "full": {
            "file": "full.onnx",
            "inputs": {TOKENS: _tensor("int64", [BATCH, LENGTH])},
            "outputs": {LOG_PROBS: _tensor("float32", [BATCH, LENGTH, vocab_size])},
        },
        "step": {
            "file": "step.onnx",
            "inputs": {
                TOKENS: _tensor("int64", [BATCH, 1]),
                **{t.name: _tensor("float32", t.shape) for t in state},
            },
            "outputs": {
                LOG_PROBS: _tensor("float32", [BATCH, vocab_size]),
                **{t.new_name: _tensor("float32", t.new_shape) for t in state},
            },
            "next": {t.new_name: t.name for t in state},
            "start": "tokens are sos; each other input is zeros of its shape",
        },
    }


def _tensor(dtype: str, shape: Sequence[Any]) -> Dict[str, Any]:
    return {"type": dtype, "shape": list(shape)}
