"""Plain text to a trained LM in one command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import List, Optional, Sequence

import yaml

from espnet_bayeslm.configs import find_config
from espnet_bayeslm.utils.cli import run_tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines


def get_parser() -> argparse.ArgumentParser:
    """Return the parser; options that it does not know go to ESPnet's LM training."""
    parser = argparse.ArgumentParser(
        prog="bayeslm train",
        description="Train an LM on plain text. Token list, statistics and training are ESPnet's;"
        " a run that was stopped goes on where it was. Other options (--max_epoch 5,"
        " --ngpu 1, ...) are those of espnet2.bin.lm_train.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--log_level", default="INFO", type=str.upper, help="Of the log")
    parser.add_argument(
        "--train_text", type=Path, required=True, help="Training text, a sentence a line"
    )
    parser.add_argument(
        "--valid_text", type=Path, required=True, help="Validation text, a sentence a line"
    )
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        help="ESPnet's training configuration: a file, or a name of `bayeslm configs`",
    )
    parser.add_argument("--exp", type=Path, required=True, help="The experiment's folder")
    add_token_options(parser)
    return parser


def add_token_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what an LM's tokens are, and what it starts from."""
    parser.add_argument(
        "--token_type", default=None, choices=["word", "bpe", "char"], help="Default: word"
    )
    parser.add_argument(
        "--vocab_size", type=int, default=None, help="Default: all words, or 5000 BPE pieces"
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        default=None,
        help="A trained point-estimate LM: its tokens, the starting point, and the prior where the"
        " configuration chooses none (model_conf: prior); for `lm: bayes_espnet` also the"
        " backbone, if it is one of ESPnet's own LMs",
    )


def parse_training_options(config: Path, words: Sequence[str]) -> argparse.Namespace:
    """Return ESPnet's options, those of the configuration and those of the command line.

    Raises:
        InputError: There is no such configuration, or it is no yaml mapping.
    """
    from espnet_bayeslm.training.task import BayesLMTask

    config = find_config(config)
    try:
        content = yaml.safe_load("\n".join(line for _, line in read_lines(config)))
    except yaml.YAMLError as error:
        raise InputError(f"not a yaml file ({error})", path=config) from error
    if not isinstance(content, dict):
        raise InputError("expected ESPnet's training options as a yaml mapping", path=config)
    return BayesLMTask.get_parser().parse_args(["--config", str(config), *words])


def train(
    *,
    train_text: Path,
    valid_text: Path,
    config: Path,
    exp: Path,
    token_type: Optional[str],
    vocab_size: Optional[int],
    source: Optional[Path],
    espnet_options: Sequence[str] = (),
) -> None:
    """Train an LM on plain text.

    Args:
        train_text: Training text, a sentence a line.
        valid_text: Validation text.
        config: ESPnet's training configuration.
        exp: The experiment's folder.
        token_type: `word`, `bpe` or `char`.
        vocab_size: At most so many tokens.
        source: A trained LM to start from, and to take as the prior (and as the backbone).
        espnet_options: More options of `espnet2.bin.lm_train`.

    Raises:
        InputError: Text, configuration or the trained LM cannot be used, or another process trains
            in the folder.
    """
    from espnet_bayeslm.lm.registry import LM_CLASSES
    from espnet_bayeslm.training import adaptation, text
    from espnet_bayeslm.training.experiment import find_files
    from espnet_bayeslm.training.task import BayesLMTask
    from espnet_bayeslm.utils.locks import folder_lock

    config = find_config(config)
    args = parse_training_options(config, espnet_options)
    if source is not None and (token_type, vocab_size) != (None, None):
        raise ValueError("--from brings its own tokens: leave out --token_type and --vocab_size")
    options: List[str] = ["--config", str(config), "--output_dir", str(exp), "--resume", "true"]
    if source is not None:
        checkpoint = find_files(source)[1].resolve()
        options += ["--init_param", str(checkpoint)]
        # the configuration may choose its own prior, as `prior: zero`
        if args.lm in LM_CLASSES and "prior" not in args.model_conf:
            options += ["--model_conf", f"prior={checkpoint}"]
        if args.lm == adaptation.LM:
            options += adaptation.backbone_options(args.lm_conf, source)
    with folder_lock(exp):
        options += text.prepare(
            (train_text, valid_text),
            exp / "data",
            token_type=token_type or "word",
            vocab_size=vocab_size,
            source=source,
            reading=[
                word
                for name in ("cleaner", "non_linguistic_symbols", "g2p")
                if getattr(args, name) is not None
                for word in (f"--{name}", getattr(args, name))
            ],
        )
    BayesLMTask.main(cmd=[*options, *espnet_options])


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Train an LM on plain text."""
    parser = get_parser()
    run_tool(parser, train, cmd, rest="espnet_options")


if __name__ == "__main__":
    main()
