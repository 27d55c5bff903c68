"""Export of LMs for other programs: the posterior mean as a checkpoint, an adapter, a folder."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Union

import torch

from espnet_bayeslm.bayes.base_kinds import parse_kind
from espnet_bayeslm.lm import LMS
from espnet_bayeslm.loading.experiment import (
    UNKNOWN_WORDS,
    find_files,
    load_state,
    read_config,
    read_unk_size,
    training_config,
)
from espnet_bayeslm.loading.pretrained_lm import load_adapted
from espnet_bayeslm.loading.trained_lm import (
    MODEL,
    OPTIM,
    TrainedLM,
    build_model,
    load_lm,
)
from espnet_bayeslm.pretrained.adapters import write_adapter
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.pretrained.names import (
    PREFIX,
    PRETRAINED,
    is_adapted,
    is_adapter,
    is_pretrained,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, write_yaml
from espnet_bayeslm.utils.folders import check_folder, entries, staged
from espnet_bayeslm.utils.log import LOG

# The folder beside the checkpoint that holds a mixture's n-grams.
CONFIG, CHECKPOINT, NGRAMS = "config.yaml", "valid.loss.ave.pth", "ngrams"
Source = Union[TrainedLM, PathLike]
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
WRITTEN = {CONFIG, CHECKPOINT, *TEXT_FILES.values(), NGRAMS, UNKNOWN_WORDS.parts[0]}
ADAPTER_FILES = {"adapter_config.json", "adapter_model.safetensors", "README.md"}


def export_lm(path: PathLike, output: PathLike) -> None:
    """Write a trained LM's posterior means as an ordinary checkpoint with its configuration.

    The folder has `config.yaml` and `valid.loss.ave.pth`, the sentencepiece model where there
    is one, and how many words `<unk>` stands for where training has counted them. A `bayes_espnet`
    becomes the ESPnet LM that it was made of, and needs this package no more; another LM the same
    one with `uncertainty: {}`.
    """
    check_target(output, sources=[path])
    trained_config = find_files(path)[0]
    args = read_config(trained_config)
    config = point_config(args, path=trained_config)
    state = load_lm(path).model.state_dict()
    means = {k: state[k] for k in build_model(argparse.Namespace(**config)).state_dict()}
    write_folder(output, args, config, means, read_unk_size(trained_config.parent), {})


def check_target(output: PathLike, *, sources: Sequence[PathLike]) -> None:
    """Raise an InputError where writing to a folder would spoil its content."""
    folder = Path(output)
    for source in map(Path, sources):
        if folder.exists() and folder.samefile(find_files(source)[0].parent):
            raise InputError("is the LM's own folder", path=folder, remedy="Give a new one.")
    check_folder(folder, written=WRITTEN)


def point_config(args: argparse.Namespace, *, path: Path) -> Dict[str, Any]:
    """Configuration of the posterior mean as a point-estimate LM, without paths of its training."""
    if "components" in args.lm_conf:
        raise InputError(
            "a mixture is exported when it is made",
            path=path,
            remedy="Export its LMs, and then their mixture: --lm EXP --lm EXP --weights FILE.",
        )
    if args.lm_conf.get("num_samples"):
        LOG.warning(f"{path}: its searches average num_samples samples; the mean is exported")
    config = {**training_config(args), **{name: getattr(args, name, None) for name in READING}}
    own = ("lm", "lm_conf", "init", "optim", "model", "model_conf")
    config.update({name: getattr(args, name) for name in own}, init=None)
    if args.lm in LMS and args.lm != PRETRAINED:
        uncertainty = point_uncertainty(args.lm_conf.get("uncertainty"), path=path)
        kept = {k: v for k, v in args.lm_conf.items() if k not in UNCERTAIN_OPTIONS}
        config["lm_conf"] = {**kept, "uncertainty": uncertainty}
    if args.model == MODEL:
        # every other option is about training
        config["model_conf"] = {k: v for k, v in args.model_conf.items() if k == "ignore_id"}
    if "backbone" in args.lm_conf:
        conf = dict(args.lm_conf.get("backbone_conf") or {})
        config.update(lm=args.lm_conf["backbone"], lm_conf=conf)
        config["model"] = "lm" if args.model == MODEL else args.model
    if args.optim == OPTIM:
        # it would make the buffers of its posterior wherever the LM is loaded
        config.pop("optim_conf", None)
        config["optim"] = "adam"
    return config


def point_uncertainty(uncertainty: Optional[Mapping[str, Any]], *, path: Path) -> Dict[str, Any]:
    """The `uncertainty` of the exported LM: the point-estimate form of each location's kind."""
    kinds = {entry: parse_kind(value) for entry, value in (uncertainty or {}).items()}
    for refused in filter(None, (kind.no_export for kind in kinds.values())):
        what, remedy = refused
        places = ", ".join(entry for entry, kind in kinds.items() if kind.no_export == refused)
        raise InputError(what.format(places=places), path=path, remedy=remedy)
    forms = {entry: kind.point_form() for entry, kind in kinds.items()}
    return {entry: form for entry, form in forms.items() if form is not None}


def write_folder(
    output: PathLike,
    args: argparse.Namespace,
    config: Dict[str, Any],
    state: Mapping[str, Any],
    unk_size: Optional[float],
    copies: Mapping[str, PathLike],
) -> None:
    """Write configuration and checkpoint, and copy the files that reading text needs, and others.

    `args` are the configuration that names these files; `copies` are {name in the folder: file}.
    """
    named = {option: name for option, name in TEXT_FILES.items() if getattr(args, option, None)}
    with staged(output, replaces=[str(UNKNOWN_WORDS)]) as folder:
        files = {**copies, **{name: getattr(args, option) for option, name in named.items()}}
        for name, source in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, folder / name)
        paths = {option: str(Path(output) / name) for option, name in named.items()}
        write_yaml(folder / CONFIG, {**config, **paths})
        if unk_size is not None:
            write_yaml(folder / UNKNOWN_WORDS, {"unk_size": unk_size})
        torch.save(state, folder / CHECKPOINT)


def write_average(output: PathLike, exps: Sequence[PathLike]) -> None:
    """Write the mean of LMs that were trained from one start, each on a part of a text.

    It predicts as one training on the whole text does, or nearly so (Wortsman et al. 2022, "Model
    soups"; McMahan et al. 2017 for parts of the data), and is loaded as one of them.

    Args:
        output: Folder to write.
        exps: Experiments of one configuration.
    """
    config = find_files(exps[0])[0]
    args = read_config(config)
    states = [load_state(find_files(exp)[1]) for exp in exps]
    mean = {
        name: torch.stack([state[name].float() for state in states]).mean(0).to(first.dtype)
        for name, first in states[0].items()
    }
    write_folder(output, args, vars(args), mean, read_unk_size(config.parent), {})


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
    if is_adapter(source):
        raise InputError("an adapter, and no LM of its own", path=source, remedy="Give its base.")
    folder = Path(output)
    is_source = Path(str(source).removeprefix(PREFIX)).resolve() == folder.resolve()
    is_other = folder.is_dir() and entries(folder) and not (folder / "config.json").is_file()
    if is_source or is_other:
        raise InputError("holds other files already", path=folder, remedy="Give a new folder.")
    check_folder(output)
    lm = load_causal_lm(source)
    # transformers takes an LM of a GGUF file for quantised, though its weights are not
    quantizer = getattr(lm.model, "hf_quantizer", None)
    if Path(source).suffix.lower() == ".gguf" and quantizer is not None:
        quantizer.remove_quantization_config(lm.model)
    with staged(folder) as place:
        lm.model.to(torch.float16).save_pretrained(place)
        lm.tokenizer.save_pretrained(place)
        if lm.licence:
            (place / "README.md").write_text(f"---\nlicense: {lm.licence}\n---\n", "utf-8")


def export_adapter(path: PathLike, output: PathLike, base: Optional[str] = None) -> None:
    """Write an adapter's posterior means as peft reads it, with its base's name and licence.

    The `base` model may stand elsewhere than in training.
    """
    if not is_adapted(path):
        raise InputError(
            "--format peft is for an adapted pretrained LM",
            path=path,
            remedy="Leave out --format, or train one: bayeslm train --config lora --from hf:NAME.",
        )
    check_folder(output, written=ADAPTER_FILES)
    loaded = load_adapted(path, base=base)
    base = base or read_config(find_files(path)[0]).lm_conf["model"]
    form = loaded.scorer.prepare([]).form
    with staged(output) as place:
        write_adapter(loaded.lm, place, base=base, licence=loaded.licence, form=form)


def reading_options(args: argparse.Namespace) -> Dict[str, Any]:
    """Options of an LM that is not trained: how text is read, from a trained LM or recogniser."""
    reading = {name: getattr(args, name, None) for name in READING}
    return {**reading, "model": "lm", "model_conf": {}, "init": None, "optim": None}
