"""Training on plain text: token list, statistics and ESPnet's training, in one call."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.configs import (
    chosen_lm,
    find_config,
    inherited_size_options,
    lm_conf_options,
    size_options,
)
from espnet_bayeslm.loading.experiment import check_exp, find_files, read_config
from espnet_bayeslm.pretrained.names import (
    PREFIX,
    PRETRAINED,
    ModelNotFound,
    base_not_found,
    is_adapted,
    is_adapter,
    is_pretrained,
)
from espnet_bayeslm.pretrained.text_forms import AUTO
from espnet_bayeslm.training.train_options import TrainOptions
from espnet_bayeslm.utils.cli import PROGRESS, device_of, log_to
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_yaml_mapping
from espnet_bayeslm.utils.folders import folder_lock
from espnet_bayeslm.utils.options import with_options

if TYPE_CHECKING:
    from espnet_bayeslm.training.text import Tokens

BACKBONE_LM = "bayes_espnet"
ADAPTER_START = "adapter.pth"
AS_IS = "as_is"


@with_options(TrainOptions)
def train(**options: Any) -> None:
    """Train an LM on plain text.

    Args:
        **options: Fields of `TrainOptions`.
        espnet_options: More options of `espnet2.bin.lm_train`, as words of a command line.
    """
    from espnet_bayeslm.training.task import BayesLMTask
    from espnet_bayeslm.training.text import prepare

    wanted = TrainOptions(**options)
    exp, texts = wanted.exp, (wanted.train_text, wanted.valid_text)
    log = exp / "train.log"
    args = training_options(wanted)
    form = chosen_text_form(wanted, args) if args.lm == PRETRAINED else ""
    if form:
        args.lm_conf = {**args.lm_conf, "text_form": form}
    if wanted.context is not None:
        if args.lm != PRETRAINED:
            raise InputError(
                f"--context {wanted.context} is for lm: {PRETRAINED}, and the configuration trains"
                f" lm: {args.lm}",
                remedy="Leave it out, or give --config lora with --from hf:FOLDER.",
            )
        args.lm_conf = {**args.lm_conf, "context": wanted.context}
    given = tokens_of(wanted, args)
    start_from(wanted.source, args, folder=exp / "data")
    reading = {name: getattr(args, name) for name in ("cleaner", "non_linguistic_symbols")}
    with contextlib.ExitStack() as run:
        # whoever trains, perhaps one of several processes, takes the lock again
        with folder_lock(exp):
            run.enter_context(log_to(log))
            PROGRESS.info(f"{exp}: reading {texts[0]} and {texts[1]}; the log is in {log}")
            if form:
                PROGRESS.info(f"{exp}: text form: --lm_conf text_form={form}")
            how: Any = dict(wanted=wanted, given=given, reading=reading)
            made = prepare(texts, exp / "data", **how, context=args.lm_conf.get("context", 0))
        for name, value in made.items():
            # an option that may be repeated may have other values too
            is_list = isinstance(value, list)
            setattr(args, name, [*value, *getattr(args, name)] if is_list else value)
        BayesLMTask.main(args=args)


def training_options(wanted: TrainOptions) -> argparse.Namespace:
    """ESPnet's options of a training that starts or goes on, without those of its texts.

    `espnet_options` take the place of others.
    """
    config, source = find_config(wanted.config), wanted.source
    words = ["--output_dir", str(wanted.exp), "--resume", "true"]
    if checkpoint := starting_point(source, wanted.exp / "data"):
        words += ["--init_param", str(checkpoint)]
    words += [*lm_options(wanted, config), *wanted.espnet_options]
    args = parse_training_options(config, words)
    # as the recipes, for batches of type `folded`
    args.fold_length = args.fold_length or [150]
    if source and is_pretrained(source) and args.lm != PRETRAINED:
        raise InputError(
            f"--from {source} is a pretrained LM, and {config.name} trains lm: {args.lm}",
            remedy="Give --config lora or --config bayes_lora.",
        )
    if wanted.base and not (source and (is_adapter(source) or is_adapted(source))):
        raise InputError("--base, and --from is no adapter", remedy="Leave it out.")
    check_exp(wanted.exp, ",")
    return args


def lm_options(wanted: TrainOptions, config: Path) -> List[str]:
    """ESPnet's options for the LM's size, or its base model: those of `size`, or of `source`."""
    from espnet_bayeslm.pretrained.adapters import adapter_conf

    source = wanted.source
    if source and is_adapted(source):
        conf = read_config(find_files(source)[0]).lm_conf
        kept = {key: conf[key] for key in ("model", "lora", "fingerprint") if key in conf}
        if model := wanted.base or conf.get("model"):
            kept["model"] = whole_name(model)
        return lm_conf_options({**kept, "text_form": conf.get("text_form", AS_IS)})
    if source and is_adapter(source):
        conf = adapter_conf(source, wanted.base)
        return lm_conf_options({**conf, "model": whole_name(conf["model"])})
    if source and is_pretrained(source):
        return lm_conf_options({"model": whole_name(str(source))})
    if wanted.size is not None:
        return size_options(config, chosen_lm(config, wanted.espnet_options), wanted.size)
    if source is None:
        return []
    theirs, lm = read_config(find_files(source)[0]), read_yaml_mapping(config).get("lm")
    return inherited_size_options(config, lm, theirs.lm_conf) if lm == theirs.lm else []


def whole_name(model: str) -> str:
    """Name of a base model by which an experiment may be used from any folder."""
    path = Path(model.removeprefix(PREFIX))
    return f"{PREFIX * path.is_dir()}{path.resolve()}" if path.exists() else model


def chosen_text_form(wanted: TrainOptions, args: argparse.Namespace) -> str:
    """Form in which a pretrained LM reads text, if `lm_conf` leaves it open; else "".

    A run that goes on keeps its form. Otherwise the validation text chooses.
    """
    from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
    from espnet_bayeslm.training.text import base_model, chosen_form

    wanted.check()
    source = wanted.source
    if args.lm_conf.get("text_form", AUTO) != AUTO:
        if source and is_pretrained(source) and Path(source).suffix.lower() != ".gguf":  # slow
            load_causal_lm(source, base=wanted.base)  # refused before anything is written
        return ""
    config = wanted.exp / "config.yaml"
    if (wanted.exp / "checkpoint.pth").is_file() and config.is_file():
        with contextlib.suppress(InputError):  # a kill may have cut it short
            return str(read_config(config).lm_conf.get("text_form", AS_IS))
    # an adapter that does not say its form
    return chosen_form(
        source if source and is_adapter(source) else base_model(args.lm_conf),
        wanted.valid_text,
        device=device_of(args.ngpu),
        precision=args.lm_conf.get("precision", "float32"),
        base=wanted.base,
    )


def tokens_of(wanted: TrainOptions, args: argparse.Namespace) -> Optional[Tokens]:
    """Tokens that are given, or of the base model; None where the training text makes them."""
    from espnet_bayeslm.training.text import given_tokens, pretrained_tokens

    if args.lm != PRETRAINED:
        return given_tokens(wanted)
    try:
        return pretrained_tokens(args.lm_conf)
    except ModelNotFound as error:
        source = wanted.source
        if wanted.base or not (source and is_adapted(source)):
            raise
        named = args.lm_conf["model"]
        raise base_not_found(named, find_files(source)[0], "lm_conf: model") from error


def starting_point(source: Optional[Path], folder: Path) -> Optional[Path]:
    """Checkpoint from which a training starts: a trained LM's, or of a peft adapter in `folder`."""
    if source is None or (is_pretrained(source) and not is_adapter(source)):
        return None
    place = folder / ADAPTER_START if is_adapter(source) else find_files(source)[1]
    checkpoint = place.resolve()
    if ":" in str(checkpoint):
        raise InputError(
            "ESPnet's --init_param takes what comes after a `:` for parts of the LM",
            path=checkpoint,
            remedy="Rename the folder.",
        )
    return checkpoint


def start_from(source: Optional[Path], args: argparse.Namespace, *, folder: Path) -> None:
    """Give ESPnet's options of a training that starts from a trained LM its prior and backbone.

    If the LM is a peft adapter, its checkpoint is written to `folder`.
    """
    from espnet_bayeslm.lm import LMS
    from espnet_bayeslm.pretrained.adapters import write_start

    checkpoint = starting_point(source, folder)
    if source is None or checkpoint is None:
        return
    if is_adapter(source):
        write_start(source, checkpoint)
    # the configuration may choose its own prior, as `prior: zero`
    if args.lm in LMS:
        args.model_conf = {"prior": str(checkpoint), **args.model_conf}
    if args.lm == BACKBONE_LM:
        args.lm_conf = {**args.lm_conf, **backbone_conf(args.lm_conf, source)}


def backbone_conf(lm_conf: Mapping[str, Any], source: Path) -> Dict[str, Any]:
    """`lm_conf` that makes a trained LM the backbone of `bayes_espnet`.

    A `backbone` in `lm_conf` must be the trained LM's. What is in `backbone_conf`, as a dropout
    rate, takes the place of the trained LM's.
    """
    from espnet_bayeslm.lm.espnet import BACKBONES

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
        return {"backbone": name, "backbone_conf": conf}
    raise InputError(f"is of the kind {name}, and {problem}", path=source, remedy=remedy)


def best_of(exp: Path) -> Tuple[float, int, int]:
    """(Lowest perplexity of the validation text, its epoch, number of epochs) of a training."""
    from espnet_bayeslm.loading.experiment import read_checkpoint
    from espnet_bayeslm.training.epoch_lines import valid_perplexities

    path = exp / "checkpoint.pth"
    if not path.is_file():
        raise InputError(f"found no {path.name}: no epoch was trained", path=exp)
    perplexities = valid_perplexities(read_checkpoint(path)["reporter"]["stats"])
    if not perplexities:
        raise InputError("no epoch was trained", path=exp, remedy="Give --max_epoch 1 or more.")
    epoch = min(perplexities, key=lambda number: (perplexities[number], number))
    return perplexities[epoch], epoch, max(perplexities)


def parse_training_options(config: Path, words: Sequence[str]) -> argparse.Namespace:
    """ESPnet's options from a configuration and the words of a command line."""
    from espnet_bayeslm.training.task import BayesLMTask

    config = find_config(config)
    read_yaml_mapping(config)
    return BayesLMTask.parse(["--config", str(config), *words])
