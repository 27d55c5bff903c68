"""Plain text to a trained LM in one command."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

from espnet_bayeslm.configs import SIZES, find_config, inherited_size_options, size_options
from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.training.options import TokenOptions
from espnet_bayeslm.utils.cli import PROGRESS, log_to, run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import add_options, option, with_options

LOG = "train.log"
TEXT = " text, a sentence a line"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Texts of a training."""

    train_text: Path = option(f"Training{TEXT}")
    valid_text: Path = option(f"Validation{TEXT}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(TokenOptions, TextOptions):
    """Options of `bayeslm train`; `espnet_options` are more options of `espnet2.bin.lm_train`."""

    config: Path = option("ESPnet's training configuration: a file, or a name of `bayeslm configs`")
    size: Optional[str] = option(
        "The sizes of bayes_lstm or bayes_transformer. Default: those of --from, else of"
        " --config; a shipped configuration has the paper's",
        None,
        choices=tuple(SIZES),
    )
    exp: Path = option("The experiment's folder")
    espnet_options: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionalTexts:
    """Texts of a tool that can do without."""

    train_text: Optional[Path] = option(f"Training{TEXT}", None)
    valid_text: Optional[Path] = option(f"Validation{TEXT}", None)


def get_parser() -> argparse.ArgumentParser:
    """Parser; options that it does not know go to ESPnet's LM training."""
    parser = tool_parser(
        "train",
        "Train an LM on plain text. Training is ESPnet's; a run that was stopped goes on where it"
        " was, by the same command. All of the log is in EXP/train.log.",
        log_level="WARNING",
        trains=True,
    )
    parser.epilog = (
        "Other options are those of ESPnet's lm_train: --max_epoch 5, --ngpu 1, --optim_conf"
        " lr=0.1, ... --lm_conf KEY=VALUE sets an option of the LM (unit=650,"
        " uncertainty.ffn@1=bayes), --model_conf KEY=VALUE one of the objective (prior=zero;"
        " warmup_epochs=10: so many point-estimate epochs first). An unknown KEY is told with the"
        " valid ones."
    )
    return add_options(parser, TrainOptions)


def add_text_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options that name the texts."""
    add_options(parser, TextOptions if required else OptionalTexts)


def add_token_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what an LM's tokens are, and what it starts from."""
    add_options(parser, TokenOptions)


def parse_training_options(config: Path, words: Sequence[str]) -> argparse.Namespace:
    """ESPnet's options, those of the configuration and those of the command line.

    Raises:
        InputError: There is no such configuration, or it is no yaml mapping.
    """
    from espnet_bayeslm.loading.experiment import read_yaml_mapping
    from espnet_bayeslm.training.task import BayesLMTask

    config = find_config(config)
    read_yaml_mapping(config)
    return BayesLMTask.parse(["--config", str(config), *words])


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
    from espnet_bayeslm.training import text
    from espnet_bayeslm.training.task import BayesLMTask
    from espnet_bayeslm.training.tokens import given_tokens
    from espnet_bayeslm.utils.locks import folder_lock

    wanted = TrainOptions(**options)
    config, exp = find_config(wanted.config), wanted.exp
    given = given_tokens(wanted)
    words = [*size_of(wanted, config), *wanted.espnet_options]
    args = parse_training_options(config, words)
    check_exp(exp, ",")
    start: List[str] = ["--config", str(config), "--output_dir", str(exp), "--resume", "true"]
    if not args.fold_length:
        # as the recipes, for batches of type `folded`
        start += ["--fold_length", "150"]
    start += starting_point(wanted.source, args)
    reading = {name: getattr(args, name) for name in ("cleaner", "non_linguistic_symbols")}
    texts = wanted.train_text, wanted.valid_text
    with folder_lock(exp):
        pass  # refused before anything is written
    with log_to(exp / LOG):
        PROGRESS.info(f"{exp}: reading {texts[0]} and {texts[1]}; the log is in {exp / LOG}")
        with folder_lock(exp):
            start += text.prepare(texts, exp / "data", wanted=wanted, given=given, reading=reading)
        BayesLMTask.main(cmd=[*start, *words])


def size_of(wanted: TrainOptions, config: Path) -> List[str]:
    """ESPnet's options for the LM's size: that of `size`, or of the trained LM."""
    from espnet_bayeslm.loading.experiment import find_files, read_config, read_yaml_mapping

    if wanted.size is not None:
        lm = parse_training_options(config, wanted.espnet_options).lm
        return size_options(config, lm, wanted.size)
    if wanted.source is None:
        return []
    theirs, ours = read_config(find_files(wanted.source)[0]), read_yaml_mapping(config)
    return (
        inherited_size_options(config, ours, theirs.lm_conf) if ours.get("lm") == theirs.lm else []
    )


def starting_point(source: Optional[Path], args: argparse.Namespace) -> List[str]:
    """ESPnet's options that start from a trained LM, with its weights as the prior.

    Args:
        source: The trained LM; None: none.
        args: The training's options.

    Raises:
        InputError: ESPnet cannot take the LM's path.
    """
    from espnet_bayeslm.lm.registry import LM_CLASSES
    from espnet_bayeslm.loading.experiment import find_files
    from espnet_bayeslm.training import adaptation

    if source is None:
        return []
    checkpoint = find_files(source)[1].resolve()
    if ":" in str(checkpoint):
        raise InputError(
            "ESPnet's --init_param takes what comes after a `:` for parts of the LM",
            path=checkpoint,
            remedy="Rename the folder.",
        )
    options = ["--init_param", str(checkpoint)]
    # the configuration may choose its own prior, as `prior: zero`
    if args.lm in LM_CLASSES and "prior" not in args.model_conf:
        options += ["--model_conf", f"prior={json.dumps(str(checkpoint))}"]
    if args.lm == adaptation.LM:
        options += adaptation.backbone_options(args.lm_conf, source)
    return options


def best_of(exp: Path) -> Tuple[float, int, int]:
    """(Lowest perplexity of the validation text, its epoch, number of epochs) of a training.

    Raises:
        InputError: No epoch was trained.
    """
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


def train_and_tell(options: TrainOptions) -> None:
    """Train an LM as `train` does, and print how good it is and what to do with it."""
    from espnet_bayeslm.loading.experiment import find_files

    exp = options.exp
    train(**vars(options))
    perplexity, epoch, num_epochs = best_of(exp)
    print(f"validation perplexity {perplexity_text(perplexity)} (epoch {epoch} of {num_epochs})")
    checkpoint = find_files(exp)[1]
    averaged = re.search(r"ave_(\d+)best", checkpoint.resolve().name)
    number = int(averaged[1]) if averaged else 1
    of = f", the average of the {number} best epochs" if number > 1 else ""
    print(f"checkpoint: {checkpoint}{of}")
    print(f"next: bayeslm rescore --nbest LISTS --lm {exp} --output DIR")


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Train an LM on plain text."""
    stopped = "; the same command goes on after the last whole epoch"
    run_tool(
        get_parser(),
        train_and_tell,
        cmd,
        options=TrainOptions,
        rest="espnet_options",
        stopped=stopped,
        signed="exp",
    )


if __name__ == "__main__":
    main()
