"""`bayeslm search`: which locations of an LM should be uncertain, and of which kind."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from espnet_bayeslm.training.plain_text import best_of, parse_training_options, train
from espnet_bayeslm.training.train_options import TextOptions, TokenOptions
from espnet_bayeslm.utils.cli import Tool, parse_numbers
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import option

if TYPE_CHECKING:
    from espnet_bayeslm.kinds.architectures import RankedArchitecture, Run
    from espnet_bayeslm.report.search_results import Retrained


# Options of a super-network's training that its architectures' yaml files leave out.
OF_A_RUN = ("ngpu", "num_workers", "use_matplotlib", "use_tensorboard")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(TokenOptions, TextOptions):
    """Options of `bayeslm search`; `espnet_options` are more options of `espnet2.bin.lm_train`."""

    config: Path = option(
        "ESPnet's configuration: a file, or a name of `bayeslm configs`, as search_bayes_lstm"
    )
    exp: Path = option("The search's folder")
    seeds: str = option("One super-network for each, as 0,1,2", "0")
    top: int = option("How many architectures to write", 3, least=1)
    retrain: bool = option(
        "Train the best architectures too, from the super-network, in EXP/top1, ...", False
    )
    espnet_options: Sequence[str] = ()


def search(options: SearchOptions) -> None:
    """Search for the best architectures."""
    from espnet_bayeslm.kinds.architectures import derived_config, rank
    from espnet_bayeslm.report.search_results import ranking_table, weight_table, write_search

    exp = options.exp
    check_options(options)
    shared = (*dataclasses.fields(TextOptions), *dataclasses.fields(TokenOptions))
    given: Dict[str, Any] = {field.name: getattr(options, field.name) for field in shared}
    runs = []
    for seed in parse_numbers("--seeds", options.seeds):
        LOG.info(f"Super-network of seed {seed}")
        words = [*options.espnet_options, "--seed", str(seed)]
        folder = exp / f"seed{seed}"
        train(**given, config=options.config, exp=folder, espnet_options=words)
        runs.append(load_supernet(folder))
    ranking = rank([run.weights for run in runs], options.top)
    configs = [derived_config(runs[0].config, item.choices, runs[0].options) for item in ranking]
    write_search(exp, runs, ranking, configs)
    print(weight_table(runs).text())
    ranked = ranking_table(ranking, runs)
    print(f"\n{ranked.caption}\n{ranked.text()}")
    if options.retrain:
        train_best(options, runs, ranking)


def load_supernet(path: Path) -> Run:
    """Trained super-network in an experiment folder, with its latest architecture weights.

    They are those of `checkpoint.pth`: the other checkpoints are averages over epochs, or of the
    epoch that was best for the LM.
    """
    from espnet_bayeslm.kinds.architectures import HISTORY, Run, read_history
    from espnet_bayeslm.kinds.search import architecture_weights, choices
    from espnet_bayeslm.loading.experiment import read_config, training_config
    from espnet_bayeslm.loading.trained_lm import load_model

    config = read_config(path / "config.yaml")
    lm = load_model(config, path / "checkpoint.pth", posterior=True).lm
    options = {
        location: {kind.name: dict(kind.options) for kind in choice.candidates}
        for location, choice in choices(lm)
    }
    records = read_history(path / HISTORY) if (path / HISTORY).exists() else []
    given = training_config(config)
    weights = architecture_weights(lm)
    return Run(path.name, str(path), config.seed, weights, records, given, options)


def check_options(options: SearchOptions) -> None:
    """Raise an InputError where the options or the configuration fit no search."""
    from espnet_bayeslm.kinds.architectures import check_searched
    from espnet_bayeslm.loading.experiment import check_exp

    check_exp(options.exp, ",:")
    for word, instead in (("--seed", "--seeds"), ("--output_dir", "--exp")):
        if any(given.partition("=")[0] == word for given in options.espnet_options):
            raise InputError(f"{word}: each run of a search has its own", remedy=f"Use {instead}.")
    args = parse_training_options(options.config, options.espnet_options)
    check_searched(args.lm_conf.get("uncertainty"), path=options.config)


def without_confs(options: Sequence[str]) -> List[str]:
    """Words of a command line without `--lm_conf` and `--model_conf` and their values."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--lm_conf", "--model_conf"):
        parser.add_argument(name, action="append")
    return parser.parse_known_args(list(options))[1]


def train_best(
    options: SearchOptions, runs: Sequence[Run], ranking: Sequence[RankedArchitecture]
) -> None:
    """Train each of the best architectures by itself; write and print how good they are.

    An architecture starts from the super-network in which it is the most probable. A training that
    was stopped goes on where it was.
    """
    from espnet_bayeslm.loading.experiment import find_files, read_config
    from espnet_bayeslm.report.search_results import Retrained, ranking_table, write_retrained

    searched = read_config(find_files(Path(runs[0].path))[0])
    words = [f"--{name}={getattr(searched, name)}" for name in OF_A_RUN]
    # one seed for all, so that the architectures can be compared
    words += [*without_confs(options.espnet_options), "--seed", str(runs[0].seed)]
    exp = options.exp
    results: List[Retrained] = []
    for number, item in enumerate(ranking, 1):
        LOG.info(f"Architecture {number} of {len(ranking)}")
        folder, source = exp / f"top{number}", Path(runs[item.best_run].path)
        train(
            train_text=options.train_text,
            valid_text=options.valid_text,
            config=exp / f"top{number}.yaml",
            exp=folder,
            source=source,
            espnet_options=words,
        )
        start = [str(find_files(source)[1].resolve())]
        results.append(Retrained(number, str(folder), start, *best_of(folder)))
    write_retrained(exp / "retrain.json", results, ranking)
    print(f"\nTrained by themselves\n{ranking_table(ranking, runs, results).text()}")


TOOL = Tool(
    "search",
    "Architecture search: train a super-network on plain text, once for each seed, and rank the"
    " architectures that it holds. Writes search.json, top1.yaml, ..., architecture.png and"
    " history.png. The same command continues a search that was stopped, and ranks a search"
    " that has ended again. Other options (--max_epoch 5, --ngpu 1, ...) are those of"
    " espnet2.bin.lm_train.",
    search,
    SearchOptions,
    stopped="; the same command goes on where it was",
    signed="exp",
    trains=True,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
