"""Export of LMs for other programs: the posterior mean as a checkpoint, an adapter, a folder."""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.bayes.kinds import parse_kind
from espnet_bayeslm.lm.mixture import LM_CLASSES
from espnet_bayeslm.loading.build import MODEL, OPTIM, build_model
from espnet_bayeslm.loading.experiment import (
    UNKNOWN_WORDS,
    find_files,
    read_config,
    read_unk_size,
    write_unk_size,
)
from espnet_bayeslm.loading.trained_lm import load_adapted, load_lm
from espnet_bayeslm.loading.training_config import training_config
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.pretrained.lora import write_adapter
from espnet_bayeslm.pretrained.names import PREFIX, is_adapted, is_pretrained
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, check_folder, entries, staged, write_yaml

CONFIG, CHECKPOINT = "config.yaml", "valid.loss.ave.pth"
# What ESPnet's programs ask the configuration of a trained LM for, besides the LM and the model.
READING = (
    *("token_list", "token_type", "bpemodel", "use_preprocessor"),
    *("cleaner", "g2p", "non_linguistic_symbols"),
)
# Files that reading text needs, and their names beside an exported LM.
TEXT_FILES = {"bpemodel": "bpe.model", "non_linguistic_symbols": "non_linguistic_symbols.txt"}
# Options of an LM that say how it is uncertain.
UNCERTAIN_OPTIONS = ("uncertainty", "prior_variance", "init_std", "init_std_unit", "num_samples")
# All that an export ever writes into its folder.
WRITTEN = {CONFIG, CHECKPOINT, *TEXT_FILES.values(), "ngrams", UNKNOWN_WORDS.parts[0]}
ADAPTER_FILES = {"adapter_config.json", "adapter_model.safetensors", "README.md"}


def export_lm(path: PathLike, output: PathLike) -> None:
    """Write a trained LM's posterior means as an ordinary checkpoint with its configuration.

    The folder has `config.yaml` and `valid.loss.ave.pth`, the sentencepiece model where there
    is one, and how many words `<unk>` stands for where training has counted them. A `bayes_espnet`
    becomes the ESPnet LM that it was made of, and needs this package no more; another LM the same
    one with `uncertainty: {}`.
    """
    check_output(output, sources=[path])
    trained_config = find_files(path)[0]
    args = read_config(trained_config)
    config = point_config(args, path=trained_config)
    state = load_lm(path).model.state_dict()
    means = {k: state[k] for k in build_model(argparse.Namespace(**config)).state_dict()}
    size = read_unk_size(trained_config.parent)
    with staged(output, replaces=[str(UNKNOWN_WORDS)]) as folder:
        config.update(copy_text_files(args, folder, named=Path(output)))
        write_yaml(folder / CONFIG, config)
        if size is not None:
            write_unk_size(folder, size)
        torch.save(means, folder / CHECKPOINT)


def check_output(output: PathLike, *, sources: Sequence[PathLike]) -> None:
    """Raise an InputError where writing to a folder would spoil its content."""
    folder = Path(output)
    for source in map(Path, sources):
        if folder.exists() and folder.samefile(find_files(source)[0].parent):
            raise InputError("is the LM's own folder", path=folder, remedy="Give a new one.")
    check_folder(folder, written=WRITTEN)


def point_config(args: argparse.Namespace, *, path: Path) -> Dict[str, Any]:
    """Configuration of the posterior mean as a point-estimate LM.

    The configuration says how the LM was trained, and names nothing that only the machine of the
    training has.
    """
    if "components" in args.lm_conf:
        raise InputError(
            "a mixture is exported when it is made",
            path=path,
            remedy="Export its LMs, and then their mixture: --lm EXP --lm EXP --weights FILE.",
        )
    if args.lm_conf.get("num_samples"):
        logging.warning(f"{path}: its searches average num_samples samples; the mean is exported")
    config = {**training_config(args), **{name: getattr(args, name, None) for name in READING}}
    config.update(lm=args.lm, lm_conf=dict(args.lm_conf), init=None, optim=args.optim)
    model = getattr(args, "model", "lm")
    config.update(model=model, model_conf=dict(args.model_conf))
    if args.lm in LM_CLASSES:
        uncertainty = point_uncertainty(args.lm_conf.get("uncertainty"), path=path)
        kept = {k: v for k, v in args.lm_conf.items() if k not in UNCERTAIN_OPTIONS}
        config["lm_conf"] = {**kept, "uncertainty": uncertainty}
    if model == MODEL:
        # every other option is about training
        config["model_conf"] = {k: v for k, v in args.model_conf.items() if k == "ignore_id"}
    if "backbone" in args.lm_conf:
        conf = dict(args.lm_conf.get("backbone_conf") or {})
        config.update(lm=args.lm_conf["backbone"], lm_conf=conf)
        config["model"] = "lm" if model == MODEL else model
    if args.optim == OPTIM:
        # it would make the buffers of its posterior wherever the LM is loaded
        config.pop("optim_conf", None)
        config["optim"] = "adam"
    return config


def point_uncertainty(uncertainty: Optional[Mapping[str, Any]], *, path: Path) -> Dict[str, Any]:
    """The `uncertainty` of the exported LM: the point-estimate form of each location's kind."""
    kinds = {entry: parse_kind(value) for entry, value in (uncertainty or {}).items()}
    refused: Dict[Tuple[str, str], List[str]] = {}
    for entry, kind in kinds.items():
        if kind.no_export is not None:
            refused.setdefault(kind.no_export, []).append(entry)
    for (what, remedy), found in refused.items():
        raise InputError(what.format(places=", ".join(found)), path=path, remedy=remedy)
    forms = {entry: kind.point_form() for entry, kind in kinds.items()}
    return {entry: form for entry, form in forms.items() if form is not None}


def copy_text_files(args: argparse.Namespace, folder: Path, *, named: Path) -> Dict[str, str]:
    """Copy the files that reading text needs; return the options that name them in `named`."""
    options = {}
    for option, name in TEXT_FILES.items():
        source = getattr(args, option, None)
        if source is not None:
            shutil.copyfile(source, folder / name)
            options[option] = str(named / name)
    return options


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
    check_folder(output, written=ADAPTER_FILES)
    loaded = load_adapted(path)
    base = read_config(find_files(path)[0]).lm_conf["model"]
    with staged(output) as place:
        write_adapter(loaded.lm, place, base=base, licence=loaded.causal_lm.licence)
