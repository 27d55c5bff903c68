"""Training of the architectures that a search found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Mapping, Sequence, Tuple

from espnet_bayeslm.bin.search import START, SUPERNET
from espnet_bayeslm.bin.train import best_of, train
from espnet_bayeslm.report.search import Retrained
from espnet_bayeslm.training.supernets import TrainedSupernet
from espnet_bayeslm.utils.errors import InputError

# What a configuration of an architecture says already.
CONFS = ("--lm_conf", "--model_conf")


def starting_points(network: TrainedSupernet, retrain_from: str) -> List[str]:
    """Checkpoints that an architecture starts from, as `--init_param` takes them.

    Args:
        network: The super-network.
        retrain_from: `supernet`, or `start`: what the super-network itself started from.
    """
    from espnet_bayeslm.training.experiment import find_files

    if retrain_from == START:
        return list(network.config.init_param)
    return [str(find_files(network.path)[1].resolve())]


def train_command(network: TrainedSupernet, config: str, retrain_from: str) -> List[str]:
    """Lines that say how to train an architecture as this module does."""
    lines = [
        "Train it, with the tokens and the prior of the super-network, by",
        f"  bayeslm train --config {config} --train_text F --valid_text F --exp NEW_EXP \\",
        f"      --from {network.path} --model_conf {_prior(network)}",
    ]
    if retrain_from == SUPERNET:
        return lines
    start = " ".join(starting_points(network, retrain_from))
    return [*lines[:-1], f"{lines[-1]} \\", f"      --init_param {start}".rstrip()]


def _prior(network: TrainedSupernet) -> str:
    """The super-network's prior, as `--model_conf` takes it."""
    prior = network.config.model_conf.get("prior")
    return f"prior={'null' if prior is None else prior}"


def without(options: Sequence[str], names: Sequence[str]) -> List[str]:
    """Options less those of these names, each of which has one value."""
    kept: List[str] = []
    words = iter(options)
    for word in words:
        if word in names:
            next(words, None)
        elif not word.startswith(tuple(f"{name}=" for name in names)):
            kept.append(word)
    return kept


def retrain_architecture(
    number: int,
    config: Mapping[str, Any],
    network: TrainedSupernet,
    exp: Path,
    *,
    texts: Tuple[Path, Path],
    retrain_from: str,
    seed: int,
    espnet_options: Sequence[str],
) -> Retrained:
    """Train an architecture by itself; a training that was stopped goes on where it was.

    Args:
        number: Its rank.
        config: Its training configuration, which `exp/topNUMBER.yaml` holds.
        network: The super-network that it starts from.
        exp: The search's folder.
        texts: Training and validation text.
        retrain_from: `supernet`, or `start`: from what the super-network itself started from.
        seed: ESPnet's seed.
        espnet_options: More options of `espnet2.bin.lm_train`.

    Raises:
        InputError: Its folder holds the training of another architecture, or see `train`.
    """
    folder = exp / f"top{number}"
    start = starting_points(network, retrain_from)
    check_same(folder, config)
    train(
        train_text=texts[0],
        valid_text=texts[1],
        config=exp / f"top{number}.yaml",
        exp=folder,
        # for its tokens; starting point and prior are those below
        source=network.path,
        espnet_options=[
            *("--model_conf", _prior(network), *espnet_options),
            *("--seed", str(seed), "--init_param", *start),
        ],
    )
    valid_ppl, epoch, num_epochs = best_of(folder)
    return Retrained(number, str(folder), start, valid_ppl, epoch, num_epochs)


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
