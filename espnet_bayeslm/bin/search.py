"""`bayeslm search`: which locations of an LM should be uncertain, and of which kind."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.bin.train import (
    add_text_options,
    add_token_options,
    best_of,
    parse_training_options,
    train,
)
from espnet_bayeslm.utils.cli import add_flag, run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError

if TYPE_CHECKING:
    from espnet_bayeslm.supernet import RankedArchitecture
    from espnet_bayeslm.training.supernets import TrainedSupernet


def get_parser() -> argparse.ArgumentParser:
    """Parser; options that it does not know go to ESPnet's LM training."""
    parser = tool_parser(
        "search",
        "Architecture search: train a super-network on plain text, once for each seed, and rank the"
        " architectures that it holds. Writes search.json, top1.yaml, ..., architecture.png and"
        " history.png. A search that was stopped goes on where it was. Other options (--max_epoch"
        " 5, --ngpu 1, ...) are those of espnet2.bin.lm_train.",
        trains=True,
    )
    add_text_options(parser, required=False)
    parser.add_argument(
        "--config",
        type=Path,
        help="ESPnet's configuration: a file, or a name of `bayeslm configs`, as search_bayes_lstm",
    )
    parser.add_argument("--exp", type=Path, required=True, help="The search's folder")
    parser.add_argument("--seeds", help="One super-network for each, as 0,1,2. Default: 0")
    parser.add_argument("--top", type=int, default=3, help="How many architectures to write")
    parser.add_argument(
        "--supernet",
        type=Path,
        action="append",
        help="Instead of training, rank this super-network's architectures; repeatable",
    )
    add_token_options(parser)
    what = "Train the best architectures too, from the super-network, in EXP/top1, ..."
    add_flag(parser, "--retrain", what)
    return parser


def search(
    *,
    train_text: Optional[Path],
    valid_text: Optional[Path],
    config: Optional[Path],
    exp: Path,
    seeds: Optional[str],
    top: int,
    supernet: Optional[Sequence[Path]],
    retrain: bool,
    espnet_options: Sequence[str],
    **tokens: Any,
) -> None:
    """Search for the best architectures; options as `get_parser` explains them.

    Those that are not named here are `train`'s.

    Raises:
        InputError: An option, a text or a configuration cannot be used, or nothing is searched.
    """
    from espnet_bayeslm.training.experiment import check_exp
    from espnet_bayeslm.training.supernets import load_supernet

    check_exp(exp, ",:")
    if top < 1:
        raise InputError(f"--top {top}: expected 1 or more")
    texts = {"train_text": train_text, "valid_text": valid_text}
    options = list(espnet_options)
    if supernet:
        given = {"config": config, "seeds": seeds}
        given.update(("from" if name == "source" else name, v) for name, v in tokens.items())
        check_ranking(given, texts, options, retrain=retrain)
        networks = [load_supernet(folder) for folder in supernet]
    else:
        runs = parse_seeds("0" if seeds is None else seeds)
        check_training({"config": config, **texts}, options)
        networks = train_supernets(runs, exp, options, config=config, **texts, **tokens)
        options = without_confs(options)
    ranking, configs = rank_supernets(networks, exp, top)
    if retrain:
        retrain_best(networks, ranking, configs, exp, options, texts)


def parse_seeds(seeds: str) -> List[int]:
    """Seeds that `--seeds` names.

    Raises:
        InputError: They are not whole numbers from 0 with commas, or one comes twice.
    """
    words = [word.strip() for word in str(seeds).split(",")]
    values = [int(word) for word in words if word.isdecimal()]
    if len(values) < len(words) or len(set(values)) < len(values):
        raise InputError(
            f"--seeds {seeds}: expected different whole numbers from 0", remedy="As --seeds 0,1,2."
        )
    return values


def check_training(needed: Mapping[str, Any], options: Sequence[str]) -> None:
    """Raise an InputError where super-networks cannot be trained."""
    from espnet_bayeslm.supernet import check_searched

    missing = [f"--{name}" for name, value in needed.items() if value is None]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} not given",
            remedy="Give texts and a configuration, or trained super-networks by --supernet EXP.",
        )
    for word, instead in (("--seed", "--seeds"), ("--output_dir", "--exp")):
        if any(option.partition("=")[0] == word for option in options):
            raise InputError(f"{word}: each run of a search has its own", remedy=f"Use {instead}.")
    args = parse_training_options(needed["config"], options)
    check_searched(args.lm_conf.get("uncertainty"), path=needed["config"])


def check_ranking(
    given: Mapping[str, Any],
    texts: Mapping[str, Optional[Path]],
    options: Sequence[str],
    *,
    retrain: bool,
) -> None:
    """Raise an InputError where options make no sense with trained super-networks."""
    words = [f"--{name}" for name, value in given.items() if value is not None]
    if retrain and None in texts.values():
        raise InputError("--retrain true needs a text", remedy="Give --train_text, --valid_text.")
    if not retrain:
        words += [f"--{name}" for name, value in texts.items() if value is not None]
        words += options[:1]
    if words:
        raise InputError(
            f"{', '.join(words)}: with --supernet no super-network is trained",
            remedy="Leave it out, or train super-networks without --supernet.",
        )


def train_supernets(
    seeds: Sequence[int], exp: Path, options: Sequence[str], **training: Any
) -> List[TrainedSupernet]:
    """Train a super-network for each seed, where that was not done yet, and return them.

    Args:
        seeds: ESPnet's seeds.
        exp: The search's folder.
        options: Options of `espnet2.bin.lm_train`.
        **training: Arguments of `train`.
    """
    from espnet_bayeslm.training.supernets import load_supernet

    folders = []
    for number, seed in enumerate(seeds, 1):
        logging.info(f"Super-network {number} of {len(seeds)}: seed {seed}")
        folder = exp / f"seed{seed}"
        train(exp=folder, espnet_options=[*options, "--seed", str(seed)], **training)
        folders.append(folder)
    return [load_supernet(folder) for folder in folders]


def without_confs(options: Sequence[str]) -> List[str]:
    """Options less what an architecture's configuration holds, where the search has no place."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--lm_conf", "--model_conf"):
        parser.add_argument(name, action="append")
    return parser.parse_known_args(list(options))[1]


def best_network(networks: Sequence[TrainedSupernet], item: RankedArchitecture) -> TrainedSupernet:
    """Super-network in which an architecture is the most probable: what it starts from."""
    return networks[item.log_probs.index(max(item.log_probs))]


def prior_of(network: TrainedSupernet) -> str:
    """The super-network's prior, as `--model_conf` takes it."""
    prior = network.config.model_conf.get("prior")
    return f"prior={json.dumps(prior and str(prior))}"


def train_command(network: TrainedSupernet, config: Path) -> List[str]:
    """Lines that say how to train an architecture as `retrain_best` does."""
    return [
        "Train it, with the tokens and the prior of the super-network, by",
        f"  bayeslm train --config {config} --train_text F --valid_text F --exp NEW_EXP \\",
        f"      --from {network.path} --model_conf {prior_of(network)}",
    ]


def rank_supernets(
    networks: Sequence[TrainedSupernet], exp: Path, top: int
) -> Tuple[List[RankedArchitecture], List[Dict[str, Any]]]:
    """Write and print the best architectures; return them with their configurations."""
    from espnet_bayeslm.report.search import as_runs, print_ranking, print_weights, write_files
    from espnet_bayeslm.supernet import derived_config, rank
    from espnet_bayeslm.training.supernets import training_config

    runs = as_runs(networks)
    ranking = rank([network.weights for network in networks], top)
    search_config = training_config(networks[0].config)
    configs = [derived_config(search_config, r.choices, networks[0].options) for r in ranking]
    howto = [
        train_command(best_network(networks, item), exp / f"top{number}.yaml")
        for number, item in enumerate(ranking, 1)
    ]
    write_files(exp, runs, ranking, configs, howto=howto)
    print_weights(runs)
    print_ranking(ranking, runs)
    return ranking, configs


def retrain_best(
    networks: Sequence[TrainedSupernet],
    ranking: Sequence[RankedArchitecture],
    configs: Sequence[Mapping[str, Any]],
    exp: Path,
    options: Sequence[str],
    texts: Mapping[str, Any],
) -> None:
    """Train each of the best architectures by itself; write and print how good they are.

    A training that was stopped goes on where it was.

    Raises:
        InputError: A folder holds the training of another architecture, or see `train`.
    """
    from espnet_bayeslm.report.search import Retrained, print_retrained, write_retrained
    from espnet_bayeslm.training.experiment import find_files

    # all alike, so that no architecture has luck of its own
    seed = str(networks[0].config.seed)
    results = []
    for number, (item, config) in enumerate(zip(ranking, configs, strict=True), 1):
        logging.info(f"Architecture {number} of {len(ranking)}")
        network, folder = best_network(networks, item), exp / f"top{number}"
        check_same(folder, config)
        train(
            **texts,
            config=exp / f"top{number}.yaml",
            exp=folder,
            source=network.path,
            espnet_options=["--model_conf", prior_of(network), *options, "--seed", seed],
        )
        start = [str(find_files(network.path)[1].resolve())]
        results.append(Retrained(number, str(folder), start, *best_of(folder)))
    write_retrained(exp / "retrain.json", results, ranking)
    print_retrained(results, ranking)


def check_same(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise an InputError where a folder holds the training of another architecture."""
    from espnet_bayeslm.training.experiment import read_config

    if not (folder / "config.yaml").exists():
        return
    given = config["lm_conf"]["uncertainty"]
    found = read_config(folder / "config.yaml").lm_conf.get("uncertainty")
    if found != given:
        raise InputError(
            f"holds the training of another architecture: {found}, expected {given}",
            path=folder,
            remedy="Move it away, or give a new --exp.",
        )


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Search for the best architectures."""
    stopped = "; the same command goes on where it was"
    rest = "espnet_options"
    run_tool(get_parser(), search, cmd, rest=rest, stopped=stopped, signed="exp")


if __name__ == "__main__":
    main()
