"""Bayesian, Gaussian-process and variational language models for ESPnet.

Heavy modules are imported where they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Union

from espnet_bayeslm.utils.imports import lazy_names

if TYPE_CHECKING:
    from espnet_bayeslm.loading.trained_lm import TrainedLM
    from espnet_bayeslm.pretrained.scorer import PretrainedLM
    from espnet_bayeslm.rescoring.list_worker import rescore
    from espnet_bayeslm.utils.files import PathLike

__version__ = "0.2.0"


def register() -> None:
    """Add the LMs and the model `bayes_lm` to ESPnet's LM task (idempotent).

    Raises:
        InputError: ESPnet is missing or too old.
    """
    from espnet_bayeslm.utils.espnet_versions import check_espnet

    check_espnet()
    importlib.import_module("espnet_bayeslm.training.task")


def load(
    exp: PathLike, *, device: str = "cpu", text_form: str = "auto", precision: str = "float32"
) -> Union[TrainedLM, PretrainedLM]:
    """Load an LM that scores text: one of this package, of ESPnet or of transformers.

    Args:
        exp: An experiment folder, or a checkpoint beside its config.yaml; `hf:FOLDER`, `hf:NAME`,
            a GGUF file or the folder of a peft adapter.
        device: Device of the weights, such as `cuda`.
        text_form: Form in which a causal LM reads text: `auto`, `as_is`, `lower` or `sentence`.
        precision: Of a causal LM: `float32` or `bfloat16`.

    Returns:
        The LM in evaluation mode, with its tokenizer.

    Raises:
        InputError: Files are missing, or the checkpoint does not fit the configuration.
    """
    from espnet_bayeslm.pretrained.names import is_adapted, is_pretrained

    if is_pretrained(exp):
        from espnet_bayeslm.pretrained.causal_lm import load_causal_lm

        return load_causal_lm(exp, device=device, precision=precision, text_form=text_form)
    from espnet_bayeslm.loading.trained_lm import load_adapted, load_lm

    if is_adapted(exp):
        return load_adapted(exp, device, precision=precision)
    return load_lm(exp, device=device)


__getattr__ = lazy_names(__name__, {"espnet_bayeslm.rescoring.list_worker": ["rescore"]})

__all__ = ["__version__", "load", "register", "rescore"]
