"""Export of an adapted pretrained LM as an adapter of peft."""

from __future__ import annotations

from pathlib import Path

from espnet_bayeslm.loading.experiment import find_files, read_config
from espnet_bayeslm.loading.trained_lm import load_adapted
from espnet_bayeslm.pretrained.lora import write_adapter
from espnet_bayeslm.pretrained.names import is_adapted
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, check_folder, staged

WRITTEN = {"adapter_config.json", "adapter_model.safetensors", "README.md"}


def export_adapter(path: PathLike, output: PathLike) -> None:
    """Write the posterior means of an adapter as peft reads it.

    The base model's name, and its licence where its card has one, go into the adapter's card.

    Args:
        path: The experiment folder, or a checkpoint beside its config.yaml.
        output: The folder to write.

    Raises:
        InputError: The LM is no adapted pretrained LM, or `output` holds something else.
    """
    if not is_adapted(path):
        raise InputError(
            "--format peft is for an adapted pretrained LM",
            path=path,
            remedy="Leave out --format, or train one: bayeslm train --config lora --from hf:NAME.",
        )
    folder = Path(output)
    check_folder(folder, written=WRITTEN)
    loaded = load_adapted(path)
    base = read_config(find_files(path)[0]).lm_conf["model"]
    with staged(folder) as place:
        write_adapter(loaded.lm, place, base=base, licence=loaded.causal_lm.licence)
