"""Reads what the stages left in a folder of experiments: exp/SIZE/seedN and the folders in it."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import torch
import yaml

from espnet_bayeslm.bayes.kinds import NOISE_STEP
from espnet_bayeslm.bayes.weights import LOG_STD, PRIOR_MEAN, START_STD
from espnet_bayeslm.evaluation.signal_to_noise import BIN_EDGES, SnrSummary
from espnet_bayeslm.kinds.search.ranking import shares
from espnet_bayeslm.loading.checkpoint import load_state, read_checkpoint
from espnet_bayeslm.report.score_section import read_perplexities
from espnet_bayeslm.report.search_results import describe, read_search
from espnet_bayeslm.report.weight_noise import SNR, read_snr
from lab.plan import backbone
from lab.results import Epoch, Ranked, Search, Training
from lab.train import BEST

CHECKPOINT = "checkpoint.pth"
# The stages that make what may be missing.
TRAINING, PERPLEXITY, RESCORING = 4, 5, 6


@dataclasses.dataclass(frozen=True)
class Part:
    """A folder of experiments: all of the training text, a share of it, or another width.

    Attributes:
        seed: The seed of its trainings.
        study: `all`, `train` (a share of the training text) or `unit` (another width).
        value: The share in % of `train`, the width of `unit`, 0 of `all`.
        path: The folder.
    """

    seed: int
    study: str
    value: int
    path: Path


def find_parts(folder: Path, seed: int, study: Optional[str]) -> List[Part]:
    """Folders of a seed: its own and, of a study, the trainP or unitU in it that exist."""
    found = [Part(seed, "all", 0, folder)]
    for path in folder.glob(f"{study}*"):
        match = re.fullmatch(rf"{study}(\d+)", path.name)
        if study and match and path.is_dir():
            found.append(Part(seed, study, int(match[1]), path))
    return sorted(found, key=lambda part: part.value)


def is_trained(folder: Path) -> bool:
    """True if a training is complete."""
    return (folder / BEST).exists() and (folder / CHECKPOINT).exists()


def read_training(folder: Path, snr: Path) -> Training:
    """Figures of a trained LM.

    Args:
        folder: The experiment of the LM.
        snr: Folder of its signal-to-noise ratios, if there are any.
    """
    reporter = read_checkpoint(folder / CHECKPOINT)["reporter"]["stats"]
    stats = [reporter[epoch] for epoch in sorted(reporter) if "valid" in reporter[epoch]]
    seconds = [part["time"].total_seconds() for s in stats for part in s.values() if "time" in part]
    config = folder / "train.yaml"
    content = yaml.safe_load(config.read_text(encoding="utf-8")) if config.exists() else {}
    lm_conf = content.get("lm_conf") or {}
    ratios = read_ratios(snr / SNR)
    return Training(
        [_epoch(part["train"], part["valid"]) for part in stats],
        sum(seconds) / 60,
        *count_parameters(load_state(folder / BEST)),
        lm_conf.get("unit"),
        lm_conf.get("uncertainty"),
        ratios,
        pooled_median(ratios) if ratios else None,
    )


def count_parameters(state: Mapping[str, torch.Tensor]) -> Tuple[int, int]:
    """Number of an LM's parameters, without standard deviations, and of its random ones.

    Args:
        state: Its state_dict. Tensors that share their memory are one; buffers of the prior and of
            the noise are none.
    """
    found: Dict[bool, Dict[int, int]] = {True: {}, False: {}}
    for key, tensor in state.items():
        if not key.endswith((PRIOR_MEAN, START_STD, NOISE_STEP)):
            found[key.endswith(LOG_STD)][tensor.data_ptr()] = tensor.numel()
    return sum(found[False].values()), sum(found[True].values())


def _epoch(train: Mapping[str, float], valid: Mapping[str, float]) -> Epoch:
    return Epoch(float(train["nll"]), float(train.get("kl", 0.0)), float(valid["ppl"]))


def read_ratios(path: Path) -> List[SnrSummary]:
    """Signal-to-noise ratios of an LM by location; empty if there is no file."""
    if not path.exists():
        return []
    lms, _ = read_snr([str(path)])
    return [row.summary for rows in lms.values() for row in rows if row.summary]


def pooled_median(summaries: Sequence[SnrSummary]) -> float:
    """Median ratio of several locations together, from their histograms.

    Within the bin of the median, of which there are 20 a decade, it is interpolated.
    """
    if len(summaries) == 1:
        return summaries[0].median
    counts = np.sum([summary.histogram for summary in summaries], axis=0)
    below = np.concatenate([[0], np.cumsum(counts)])
    half = below[-1] / 2
    place = int(np.searchsorted(below, half, side="left")) - 1
    share = (half - below[place]) / counts[place]
    low, high = np.log10(BIN_EDGES[place : place + 2])
    return float(10 ** (low + share * (high - low)))


def read_perplexity(folder: Path, system: str, sets: Sequence[str]) -> Optional[Dict[str, float]]:
    """{set: perplexity} of a system, None where one is missing.

    It is that of the mixture or the only LM, out-of-vocabulary words left out.
    """
    paths = {name: folder / "perplexity" / system / f"{name}.json" for name in sets}
    if not all(path.exists() for path in paths.values()):
        return None
    rows = {name: read_perplexities([(system, str(path))])[0].rows for name, path in paths.items()}
    return {name: row[-1].perplexity_without_oov["word"] or math.nan for name, row in rows.items()}


def read_searches(folder: Path) -> Dict[str, Search]:
    """{folder: search} of the architecture searches."""
    found = {}
    for path in sorted(folder.glob("search_*/search.json")):
        search = read_search(str(path.parent))
        ranking = [
            Ranked(rank, describe(item.choices), math.exp(item.mean_log_prob))
            for rank, item in enumerate(search.ranking, 1)
        ]
        found[path.parent.name] = Search([shares(run.weights) for run in search.runs], ranking)
    return found


def find_controls(folder: Path, ngram: str, known: Set[str]) -> List[str]:
    """Mixtures of point-estimate LMs of one backbone that are no line's own.

    Args:
        folder: A folder of experiments.
        ngram: Name of the n-gram.
        known: Systems of the lines.
    """
    found = []
    for path in sorted((folder / "perplexity").glob(f"*+{ngram}")):
        lms = [name for name in path.name.split("+") if name != ngram]
        of_points = all(name.startswith("point_") for name in lms)
        several = len(lms) > 1 and len(set(map(backbone, lms))) == 1
        if path.name not in known and of_points and several:
            found.append(path.name)
    return found
