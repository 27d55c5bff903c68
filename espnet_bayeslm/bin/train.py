"""Plain text to a trained LM in one command."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

from espnet_bayeslm.configs import SIZES, find_config, inherited_size_options, size_options
from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.utils.cli import PROGRESS, log_to, run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError

LOG = "train.log"


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
    add_text_options(parser, required=True)
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        help="ESPnet's training configuration: a file, or a name of `bayeslm configs`",
    )
    parser.add_argument(
        "--size",
        choices=tuple(SIZES),
        help="The sizes of bayes_lstm or bayes_transformer. Default: those of --from, else of"
        " --config; a shipped configuration has the paper's",
    )
    parser.add_argument("--exp", type=Path, required=True, help="The experiment's folder")
    add_token_options(parser)
    return parser


def add_text_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options that name the texts."""
    for name, what in (("train", "Training"), ("valid", "Validation")):
        parser.add_argument(
            f"--{name}_text", type=Path, required=required, help=f"{what} text, a sentence a line"
        )


def add_token_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what an LM's tokens are, and what it starts from."""
    group = parser.add_argument_group("tokens and start")
    group.add_argument("--token_type", choices=["word", "bpe", "char"], help="Default: word")
    group.add_argument("--vocab_size", type=int, help="Default: all words, or 5000 BPE pieces")
    group.add_argument("--token_list", type=Path, help="Take these tokens, a file as ESPnet's")
    group.add_argument("--bpemodel", type=Path, help="The sentencepiece model of --token_list")
    group.add_argument(
        "--asr_exp",
        type=Path,
        help="An ESPnet recogniser: take the tokens, and the BPE model, of its config.yaml",
    )
    group.add_argument(
        "--from",
        dest="source",
        type=Path,
        help="A trained point-estimate LM: its tokens, the starting point, and the prior where the"
        " configuration chooses none (model_conf: prior); for `lm: bayes_espnet` also the"
        " backbone, if it is one of ESPnet's own LMs",
    )


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


def train(
    *,
    train_text: Path,
    valid_text: Path,
    config: Path,
    exp: Path,
    size: Optional[str] = None,
    source: Optional[Path] = None,
    espnet_options: Sequence[str] = (),
    **tokens: Any,
) -> None:
    """Train an LM on plain text.

    Args:
        train_text: Training text, a sentence a line.
        valid_text: Validation text.
        config: ESPnet's training configuration.
        exp: The experiment's folder.
        size: One of `configs.SIZES`; None: those of `source`, or of the configuration.
        source: A trained LM to start from, and to take as the prior (and as the backbone).
        espnet_options: More options of `espnet2.bin.lm_train`.
        **tokens: The other `TokenOptions`.

    Raises:
        InputError: Text, configuration or the trained LM cannot be used, or another process trains
            in the folder.
    """
    from espnet_bayeslm.lm.registry import LM_CLASSES
    from espnet_bayeslm.loading.experiment import (
        check_exp,
        find_files,
        read_config,
        read_yaml_mapping,
    )
    from espnet_bayeslm.training import adaptation, text
    from espnet_bayeslm.training.task import BayesLMTask
    from espnet_bayeslm.training.tokens import TokenOptions, given_tokens
    from espnet_bayeslm.utils.locks import folder_lock

    config = find_config(config)
    wanted = TokenOptions(source=source, **tokens)
    given = given_tokens(wanted)
    sizes: List[str] = []
    if size is not None:
        lm = parse_training_options(config, espnet_options).lm
        sizes = size_options(config, lm, size)
    elif source is not None:
        theirs, ours = read_config(find_files(source)[0]), read_yaml_mapping(config)
        if ours.get("lm") == theirs.lm:
            sizes = inherited_size_options(config, ours, theirs.lm_conf)
    espnet_options = [*sizes, *espnet_options]
    args = parse_training_options(config, espnet_options)
    check_exp(exp, ",")
    options: List[str] = ["--config", str(config), "--output_dir", str(exp), "--resume", "true"]
    if not args.fold_length:
        # as the recipes, for batches of type `folded`
        options += ["--fold_length", "150"]
    if source is not None:
        checkpoint = find_files(source)[1].resolve()
        if ":" in str(checkpoint):
            raise InputError(
                "ESPnet's --init_param takes what comes after a `:` for parts of the LM",
                path=checkpoint,
                remedy="Rename the folder.",
            )
        options += ["--init_param", str(checkpoint)]
        # the configuration may choose its own prior, as `prior: zero`
        if args.lm in LM_CLASSES and "prior" not in args.model_conf:
            options += ["--model_conf", f"prior={json.dumps(str(checkpoint))}"]
        if args.lm == adaptation.LM:
            options += adaptation.backbone_options(args.lm_conf, source)
    reading = {name: getattr(args, name) for name in ("cleaner", "non_linguistic_symbols")}
    texts = train_text, valid_text
    with folder_lock(exp):
        pass  # refused before anything is written
    with log_to(exp / LOG):
        PROGRESS.info(f"{exp}: reading {train_text} and {valid_text}; the log is in {exp / LOG}")
        with folder_lock(exp):
            options += text.prepare(
                texts, exp / "data", wanted=wanted, given=given, reading=reading
            )
        BayesLMTask.main(cmd=[*options, *espnet_options])


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


def train_and_tell(exp: Path, **options: Any) -> None:
    """Train an LM as `train` does, and print how good it is and what to do with it."""
    from espnet_bayeslm.loading.experiment import find_files

    train(exp=exp, **options)
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
    rest = "espnet_options"
    run_tool(get_parser(), train_and_tell, cmd, rest=rest, stopped=stopped, signed="exp")


if __name__ == "__main__":
    main()
