"""What the recipe's stages left in one folder of experiments: exp/SIZE/seedS and those in it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import torch
import yaml

from espnet_bayeslm.bayes.kinds import NOISE_STEP
from espnet_bayeslm.bayes.weights import LOG_STD, PRIOR_MEAN, START_STD
from espnet_bayeslm.evaluation.snr import BIN_EDGES, PERCENTILES, SnrSummary
from espnet_bayeslm.experiment.plan import backbone
from espnet_bayeslm.experiment.train import BEST
from espnet_bayeslm.kinds.search.ranking import shares
from espnet_bayeslm.loading.checkpoint import load_state, read_checkpoint
from espnet_bayeslm.report.html_input import expecting
from espnet_bayeslm.report.html_scores import read_perplexities
from espnet_bayeslm.report.html_search import read_search
from espnet_bayeslm.report.html_snr import SNR, read_snr
from espnet_bayeslm.report.search import describe
from espnet_bayeslm.rescoring.decision import read_scales

CHECKPOINT = "checkpoint.pth"
# The stages of run.sh that make what may be missing.
TRAINING, PERPLEXITY, RESCORING = 4, 5, 6
Json = Dict[str, Any]


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
    if study is None:
        return found
    for path in folder.glob(f"{study}*"):
        match = re.fullmatch(rf"{study}(\d+)", path.name)
        if match and path.is_dir():
            found.append(Part(seed, study, int(match[1]), path))
    return sorted(found, key=lambda part: part.value)


def is_trained(folder: Path) -> bool:
    """Whether a training is complete."""
    return (folder / BEST).exists() and (folder / CHECKPOINT).exists()


def read_lm(folder: Path) -> Json:
    """What a training left: its epochs, its size, and what is random in it.

    Args:
        folder: The experiment of a trained LM.

    Returns:
        `epochs` with the figures of each (NLL and KL in nats per token, perplexity of the
        validation text at the mean), `minutes` of training and validation, `parameters` and how
        many of them are `random`, and of its configuration `unit`, its width, and `uncertainty`,
        empty for a point estimate.
    """
    stats = read_stats(folder)
    seconds = [part["time"].total_seconds() for s in stats for part in s.values() if "time" in part]
    parameters, random = count_parameters(load_state(folder / BEST))
    config = folder / "train.yaml"
    content = yaml.safe_load(config.read_text(encoding="utf-8")) if config.exists() else {}
    return {
        "epochs": [_epoch(part["train"], part["valid"]) for part in stats],
        "minutes": sum(seconds) / 60,
        "parameters": parameters,
        "random": random,
        **{key: (content.get("lm_conf") or {}).get(key) for key in ("unit", "uncertainty")},
    }


def count_parameters(state: Mapping[str, torch.Tensor]) -> Tuple[int, int]:
    """How many parameters an LM has, without standard deviations, and how many are random.

    Args:
        state: Its state_dict. Tensors that share their memory are one; what is a buffer of
            the prior or of the noise is none.
    """
    buffers = (PRIOR_MEAN, START_STD)
    found: Dict[bool, Dict[int, int]] = {True: {}, False: {}}
    for key, tensor in state.items():
        if not key.endswith((*buffers, NOISE_STEP)):
            found[key.endswith(LOG_STD)][tensor.data_ptr()] = tensor.numel()
    return sum(found[False].values()), sum(found[True].values())


def _epoch(train: Mapping[str, float], valid: Mapping[str, float]) -> Json:
    return {
        "train_nll": float(train["nll"]),
        "train_kl": float(train.get("kl", 0.0)),
        "valid_ppl": float(valid["ppl"]),
    }


def read_stats(folder: Path) -> List[Dict[str, Dict[str, Any]]]:
    """What ESPnet's reporter kept of each epoch: {train, valid: {statistic: value}}."""
    stats = read_checkpoint(folder / CHECKPOINT)["reporter"]["stats"]
    return [stats[epoch] for epoch in sorted(stats) if "valid" in stats[epoch]]


def read_snr_rows(folder: Path) -> List[Json]:
    """Signal-to-noise ratios of an LM by location; nothing where there are none."""
    if not (folder / SNR).exists():
        return []
    lms, _ = read_snr([str(folder / SNR)])
    summaries = [summary for rows in lms.values() for summary in rows]
    rows = [_snr_row(summary) for summary in summaries]
    if len(rows) > 1:
        count = sum(summary.count for summary in summaries)
        rows.append({"location": "all", "count": count, "median": pooled_median(summaries)})
    return rows


def _snr_row(summary: SnrSummary) -> Json:
    ratios = dict(zip(PERCENTILES, summary.percentiles, strict=True))
    return {
        "location": summary.location,
        "count": summary.count,
        "median": summary.median,
        "low": ratios[5],
        "high": ratios[95],
        "median_std": summary.median_std,
        "median_std_ratio": summary.median_std_ratio,
    }


def pooled_median(summaries: Sequence[SnrSummary]) -> float:
    """Median ratio of several locations together, from their histograms.

    Within the bin of the median, of which there are 20 a decade, it is interpolated.
    """
    counts = np.sum([summary.histogram for summary in summaries], axis=0)
    below = np.concatenate([[0], np.cumsum(counts)])
    half = below[-1] / 2
    place = int(np.searchsorted(below, half, side="left")) - 1
    share = (half - below[place]) / counts[place]
    low, high = np.log10(BIN_EDGES[place : place + 2])
    return float(10 ** (low + share * (high - low)))


def read_perplexity(folder: Path, system: str, sets: Sequence[str]) -> Optional[Json]:
    """{set: perplexities} of a system, None where one is missing.

    Args:
        folder: A folder of experiments.
        system: The system's folder.
        sets: Names of the sets.

    Returns:
        Of each set `ppl` without and `ppl_with_oov` with the unknown words, of the mixture or the
        only LM, and `components`, {name: perplexity without the unknown words} of each by itself.
    """
    paths = {name: folder / "perplexity" / system / f"{name}.json" for name in sets}
    if not all(path.exists() for path in paths.values()):
        return None
    found = {}
    for name, path in paths.items():
        rows = read_perplexities([(system, str(path))])[0].rows
        values = {row["name"]: row["perplexity_without_oov"]["word"] for row in rows}
        found[name] = {
            "ppl": rows[-1]["perplexity_without_oov"]["word"],
            "ppl_with_oov": rows[-1]["perplexity"]["word"],
            "components": {key: value for key, value in values.items() if key != "mixture"},
        }
    return found


def read_weights(folder: Path, system: str) -> Dict[str, float]:
    """{component: weight} of a mixture; nothing where it has no file of weights."""
    path = folder / "weights" / f"{system}.yaml"
    if not path.exists():
        return {}
    with expecting("weights of components", path=path, remedy=f"Run stage {PERPLEXITY} again."):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {str(row["name"]): float(row["weight"]) for row in content["components"]}


def read_tuned(folder: Path, system: str, dev: str, conditions: Sequence[str]) -> Json:
    """{condition: its LMWT and word penalty}, as they were tuned on the dev lists."""
    found = {}
    for condition in conditions:
        path = folder / "rescore" / system / f"{dev}_{condition}" / "scales.yaml"
        scales = read_scales(path) if path.exists() else None
        if scales is not None and scales.has_lmwt:
            values = {"lmwt": scales.lmwt, "word_penalty": scales.word_penalty}
            found[condition] = {name: round(value, 2) for name, value in values.items()}
    return found


def read_searches(folder: Path) -> Json:
    """{folder: shares of the kinds and ranking} of the architecture searches."""
    found = {}
    for path in sorted(folder.glob("search_*/search.json")):
        search = read_search(str(path.parent))
        found[path.parent.name] = {
            "runs": {name: shares(weights) for name, weights in search.runs.items()},
            "ranking": [
                {
                    "rank": item["rank"],
                    "architecture": describe(item["choices"]),
                    "probability": item["probability"],
                }
                for item in search.ranking
            ],
        }
    return found


def find_controls(folder: Path, ngram: str, known: Set[str]) -> List[str]:
    """Mixtures of point-estimate LMs of one backbone, beyond those that are known.

    Args:
        folder: A folder of experiments.
        ngram: Name of the n-gram.
        known: Folders of systems that are the lines' own.
    """
    found = []
    for path in sorted((folder / "perplexity").glob(f"*+{ngram}")):
        lms = [name for name in path.name.split("+") if name != ngram]
        of_points = all(name.startswith("point_") for name in lms)
        several = len(lms) > 1 and len(set(map(backbone, lms))) == 1
        if path.name not in known and of_points and several:
            found.append(path.name)
    return found
