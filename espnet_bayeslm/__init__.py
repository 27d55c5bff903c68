"""Rescore and decode with language models, pretrained or Bayesian, for ESPnet and any recogniser.

Heavy modules are imported where they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Optional, Union

from espnet_bayeslm.utils.imports import lazy_names

if TYPE_CHECKING:
    from espnet_bayeslm.decoding.ctc_decoder import build_ctcdecoder
    from espnet_bayeslm.loading.pretrained_lm import PretrainedLM
    from espnet_bayeslm.loading.trained_lm import TrainedLM
    from espnet_bayeslm.rescoring.rescore import rescore
    from espnet_bayeslm.utils.files import PathLike

__version__ = "1.0.0"


def register() -> None:
    """Add the LMs and the model `bayes_lm` to ESPnet's LM task (idempotent).

    Raises:
        InputError: ESPnet is missing or too old.
    """
    from espnet_bayeslm.utils.espnet_versions import check_espnet

    check_espnet()
    importlib.import_module("espnet_bayeslm.training.task")


def speech2text(**options: Any) -> Any:
    """ESPnet's `Speech2Text` in a process that knows the LMs of this package.

    It is the `_target_` of the recogniser in the `inference.yaml` of an ESPnet3 recipe. A search
    with a fusion pays the ends of its hypotheses when it is over, a transducer's too.

    Args:
        **options: As of `espnet2.bin.asr_inference.Speech2Text`, or of `s2t_inference` where there
            is an `s2t_train_config`.
    """
    from espnet_bayeslm.training.launch import attach_lm
    from espnet_bayeslm.utils.imports import quiet_imports

    register()
    with quiet_imports():
        if "s2t_train_config" in options:
            from espnet2.bin.s2t_inference import Speech2Text
        else:
            from espnet2.bin.asr_inference import Speech2Text
    recogniser = Speech2Text(**options)
    attach_lm(recogniser)
    return recogniser


def load(
    exp: PathLike,
    *,
    device: str = "cpu",
    text_form: str = "auto",
    precision: str = "float32",
    base: Optional[str] = None,
) -> Union[TrainedLM, PretrainedLM]:
    """Load an LM that scores text: one of this package, of ESPnet or of transformers.

    Args:
        exp: An experiment folder, or a checkpoint beside its config.yaml; `hf:FOLDER`, `hf:NAME`,
            a GGUF file or the folder of a peft adapter.
        device: Device of the weights, such as `cuda`.
        text_form: Form in which a causal LM reads text: `auto`, or FORM[,MARKS[,BLANK]] as the
            option `--text_form`. An adapter reads text in the form of its training.
        precision: Of a causal LM: `float32` or `bfloat16`.
        base: Base model of an adapter, where it is not at the path that the adapter names.

    Returns:
        The LM in evaluation mode, with its tokenizer.

    Raises:
        InputError: Files are missing, or the checkpoint does not fit the configuration.
    """
    from espnet_bayeslm.pretrained.names import HAVE_BASE, source_type
    from espnet_bayeslm.utils.errors import InputError

    kind = source_type(exp)
    if base is not None and kind not in HAVE_BASE:
        raise InputError("--base, and it is no adapter", path=exp, remedy="Leave it out.")
    if kind == "espnet":
        from espnet_bayeslm.loading.trained_lm import load_lm

        return load_lm(exp, device=device)
    from espnet_bayeslm.loading.pretrained_lm import PretrainedLM, load_adapted
    from espnet_bayeslm.pretrained.causal_lm import load_causal_lm

    how: Any = {"device": device, "precision": precision, "text_form": text_form, "base": base}
    if kind == "adapted":
        return load_adapted(exp, **how)
    return PretrainedLM(**vars(load_causal_lm(exp, **how)))


__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.rescoring.rescore": ["rescore"],
        "espnet_bayeslm.decoding.ctc_decoder": ["build_ctcdecoder"],
    },
)

__all__ = ["__version__", "build_ctcdecoder", "load", "register", "rescore", "speech2text"]
