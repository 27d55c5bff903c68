"""Trained super-networks and the training that they had (ESPnet, which takes seconds, on use)."""

from __future__ import annotations

from pathlib import Path

from espnet_bayeslm.kinds.search.history import HISTORY, read_history
from espnet_bayeslm.kinds.search.ranking import Run
from espnet_bayeslm.loading.training_config import training_config


def load_supernet(path: Path) -> Run:
    """Trained super-network with its latest architecture weights.

    Args:
        path: Its experiment folder. The weights are those of `checkpoint.pth`: the other
            checkpoints are averages over epochs, or of the epoch that was best for the LM.

    Raises:
        InputError: Files are missing or do not fit.
    """
    from espnet_bayeslm.kinds.search import choices
    from espnet_bayeslm.loading.build import load_model
    from espnet_bayeslm.loading.experiment import read_config

    config = read_config(path / "config.yaml")
    found = dict(choices(load_model(config, path / "checkpoint.pth", posterior=True).lm))
    weights = {
        location: dict(zip(choice.kinds, choice.weights.tolist(), strict=True))
        for location, choice in found.items()
    }
    options = {
        location: {kind.name: dict(kind.options) for kind in choice.candidates}
        for location, choice in found.items()
    }
    records = read_history(path / HISTORY) if (path / HISTORY).exists() else []
    given = training_config(config)
    return Run(path.name, str(path), config.seed, weights, records, given, options)
