"""Exports of pretrained LMs: a folder of transformers, or the adapter of an adapted one."""

from __future__ import annotations

from pathlib import Path

import torch

from espnet_bayeslm.loading.experiment import find_files, read_config
from espnet_bayeslm.loading.trained_lm import load_adapted
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.pretrained.lora import write_adapter
from espnet_bayeslm.pretrained.names import PREFIX, is_adapted, is_pretrained
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, check_folder, entries, staged

ADAPTER_FILES = {"adapter_config.json", "adapter_model.safetensors", "README.md"}


def export_folder(source: PathLike, output: PathLike) -> None:
    """Write a pretrained LM and its tokenizer as `save_pretrained` does, in float16.

    The source is a GGUF file, `hf:FOLDER` or `hf:NAME`. A GGUF file takes many seconds to read, its
    folder one.
    """
    if not is_pretrained(source):
        raise InputError(
            "--format hf is for a pretrained LM",
            path=source,
            remedy="Give a .gguf file, hf:FOLDER or hf:NAME.",
        )
    folder = Path(output)
    is_source = Path(str(source).removeprefix(PREFIX)).resolve() == folder.resolve()
    is_other = folder.is_dir() and entries(folder) and not (folder / "config.json").is_file()
    if is_source or is_other:
        raise InputError("holds other files already", path=folder, remedy="Give a new folder.")
    check_folder(output)
    lm = load_causal_lm(source)
    if hasattr(lm.model, "peft_config"):
        raise InputError("an adapter, and no LM of its own", path=source, remedy="Give its base.")
    # transformers takes an LM of a GGUF file for quantised, though its weights are not
    quantizer = getattr(lm.model, "hf_quantizer", None)
    if Path(source).suffix.lower() == ".gguf" and quantizer is not None:
        quantizer.remove_quantization_config(lm.model)
    with staged(folder) as place:
        lm.model.to(torch.float16).save_pretrained(place)
        lm.tokenizer.save_pretrained(place)
        if lm.licence:
            (place / "README.md").write_text(f"---\nlicense: {lm.licence}\n---\n", "utf-8")


def export_adapter(path: PathLike, output: PathLike) -> None:
    """Write the posterior means of an adapter as peft reads it.

    The base model's name, and its licence where its card has one, go into the adapter's card.
    """
    if not is_adapted(path):
        raise InputError(
            "--format peft is for an adapted pretrained LM",
            path=path,
            remedy="Leave out --format, or train one: bayeslm train --config lora --from hf:NAME.",
        )
    folder = Path(output)
    check_folder(folder, written=ADAPTER_FILES)
    loaded = load_adapted(path)
    base = read_config(find_files(path)[0]).lm_conf["model"]
    with staged(folder) as place:
        write_adapter(loaded.lm, place, base=base, licence=loaded.causal_lm.licence)
