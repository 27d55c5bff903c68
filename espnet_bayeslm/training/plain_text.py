"""Training on plain text: token list, statistics and ESPnet's training, in one call."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import yaml

from espnet_bayeslm.configs import (
    find_config,
    inherited_size_options,
    lm_conf_options,
    size_options,
)
from espnet_bayeslm.pretrained.names import PREFIX, PRETRAINED, is_adapted, is_pretrained
from espnet_bayeslm.training.options import TrainOptions
from espnet_bayeslm.utils.cli import PROGRESS, log_to
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_yaml_mapping
from espnet_bayeslm.utils.options import with_options

LOG = "train.log"
BACKBONE_LM = "bayes_espnet"


@with_options(TrainOptions)
def train(**options: Any) -> None:
    """Train an LM on plain text.

    Args:
        **options: Fields of `TrainOptions`.
        espnet_options: More options of `espnet2.bin.lm_train`, as words of a command line.

    Raises:
        InputError: Text, configuration or the trained LM cannot be used, or another process trains
            in the folder.
    """
    from espnet_bayeslm.loading.experiment import check_exp
    from espnet_bayeslm.training.pretrained_text import pretrained_tokens
    from espnet_bayeslm.training.task import BayesLMTask
    from espnet_bayeslm.training.text import given_tokens, prepare
    from espnet_bayeslm.utils.locks import folder_lock

    wanted = TrainOptions(**options)
    config, exp, source = find_config(wanted.config), wanted.exp, wanted.source
    words = [*lm_options(wanted, config), *wanted.espnet_options]
    args = parse_training_options(config, words)
    if source and is_pretrained(source) and args.lm != PRETRAINED:
        raise InputError(
            f"--from {source} is a pretrained LM, and {config.name} trains lm: {args.lm}",
            remedy="Give --config lora or --config bayes_lora.",
        )
    if args.lm == PRETRAINED:
        wanted.check()
    given = pretrained_tokens(args.lm_conf) if args.lm == PRETRAINED else given_tokens(wanted)
    check_exp(exp, ",")
    start = ["--config", str(config), "--output_dir", str(exp), "--resume", "true"]
    # as the recipes, for batches of type `folded`
    start += [] if args.fold_length else ["--fold_length", "150"]
    start += starting_point(source, args, folder=exp / "data")
    reading = {name: getattr(args, name) for name in ("cleaner", "non_linguistic_symbols")}
    texts = wanted.train_text, wanted.valid_text
    with folder_lock(exp):
        pass  # refused before anything is written
    with log_to(exp / LOG):
        PROGRESS.info(f"{exp}: reading {texts[0]} and {texts[1]}; the log is in {exp / LOG}")
        with folder_lock(exp):
            start += prepare(texts, exp / "data", wanted=wanted, given=given, reading=reading)
        BayesLMTask.main(cmd=[*start, *words])


def lm_options(wanted: TrainOptions, config: Path) -> List[str]:
    """ESPnet's options for the LM's size, or its base model: those of `size`, or of `source`."""
    from espnet_bayeslm.loading.experiment import find_files, read_config
    from espnet_bayeslm.pretrained.lora import adapter_conf, is_adapter

    source = wanted.source
    if source and is_adapted(source):
        conf = read_config(find_files(source)[0]).lm_conf
        kept = ("model", "lora", "text_form", "marks")
        return lm_conf_options({key: conf[key] for key in kept if key in conf})
    if source and is_adapter(source):
        return lm_conf_options(adapter_conf(source))
    if source and is_pretrained(source):
        path = Path(str(source).removeprefix(PREFIX))
        # so that the experiment may be used from elsewhere
        local = f"{PREFIX * path.is_dir()}{path.resolve()}"
        return lm_conf_options({"model": local if path.exists() else str(source)})
    if wanted.size is not None:
        lm = parse_training_options(config, wanted.espnet_options).lm
        return size_options(config, lm, wanted.size)
    if source is None:
        return []
    theirs, lm = read_config(find_files(source)[0]), read_yaml_mapping(config).get("lm")
    return inherited_size_options(config, lm, theirs.lm_conf) if lm == theirs.lm else []


def starting_point(source: Optional[Path], args: argparse.Namespace, *, folder: Path) -> List[str]:
    """ESPnet's options that start from a trained LM, with its weights as the prior.

    If the LM is a peft adapter, the start is written to `folder`.
    """
    from espnet_bayeslm.loading.build import TRAINED_CLASSES
    from espnet_bayeslm.loading.experiment import find_files
    from espnet_bayeslm.pretrained.lora import is_adapter, write_start

    if source is None or (is_pretrained(source) and not is_adapter(source)):
        return []
    if is_adapter(source):
        checkpoint = write_start(source, folder / "adapter.pth").resolve()
    else:
        checkpoint = find_files(source)[1].resolve()
    if ":" in str(checkpoint):
        raise InputError(
            "ESPnet's --init_param takes what comes after a `:` for parts of the LM",
            path=checkpoint,
            remedy="Rename the folder.",
        )
    options = ["--init_param", str(checkpoint)]
    # the configuration may choose its own prior, as `prior: zero`
    if args.lm in TRAINED_CLASSES and "prior" not in args.model_conf:
        options += ["--model_conf", f"prior={json.dumps(str(checkpoint))}"]
    if args.lm == BACKBONE_LM:
        options += backbone_options(args.lm_conf, source)
    return options


def backbone_options(lm_conf: Mapping[str, Any], source: Path) -> List[str]:
    """ESPnet's options that make a trained LM the backbone of `bayes_espnet`.

    A `backbone` in `lm_conf` must be the trained LM's. What is in `backbone_conf`, as a dropout
    rate, takes the place of the trained LM's.
    """
    from espnet_bayeslm.lm.espnet import BACKBONES
    from espnet_bayeslm.loading.experiment import find_files, read_config

    args = read_config(find_files(source)[0])
    name, conf = args.lm, args.lm_conf
    if name == BACKBONE_LM:
        name, conf = conf.get("backbone"), conf.get("backbone_conf")
    wanted = lm_conf.get("backbone")
    if name not in BACKBONES:
        problem = f"{BACKBONE_LM} can have {', '.join(BACKBONES)} as its backbone"
        remedy = f"Use a configuration with `lm: {name}`."
    elif wanted not in (None, name):
        problem = f"the configuration is for the backbone {wanted}"
        remedy = "Use another configuration, as conf/adapt_*.yaml."
    else:
        conf = {**(conf or {}), **(lm_conf.get("backbone_conf") or {})}
        # one line, as a word of a command line
        value = yaml.safe_dump(conf, default_flow_style=True, width=float("inf")).strip()
        return ["--lm_conf", f"backbone={name}", "--lm_conf", f"backbone_conf={value}"]
    raise InputError(f"is of the kind {name}, and {problem}", path=source, remedy=remedy)


def best_of(exp: Path) -> Tuple[float, int, int]:
    """(Lowest perplexity of the validation text, its epoch, number of epochs) of a training."""
    from espnet_bayeslm.loading.checkpoint import read_checkpoint
    from espnet_bayeslm.training.saving import valid_perplexities

    path = exp / "checkpoint.pth"
    if not path.is_file():
        raise InputError(f"found no {path.name}: no epoch was trained", path=exp)
    perplexities = valid_perplexities(read_checkpoint(path)["reporter"]["stats"])
    if not perplexities:
        raise InputError("no epoch was trained", path=exp, remedy="Give --max_epoch 1 or more.")
    epoch = min(perplexities, key=lambda number: (perplexities[number], number))
    return perplexities[epoch], epoch, max(perplexities)


def parse_training_options(config: Path, words: Sequence[str]) -> argparse.Namespace:
    """ESPnet's options, those of the configuration and those of the command line."""
    from espnet_bayeslm.training.task import BayesLMTask

    config = find_config(config)
    read_yaml_mapping(config)
    return BayesLMTask.parse(["--config", str(config), *words])
