"""Tables of perplexities, word error rates and what the LMs learnt, from the recipe's outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

import yaml

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.evaluation.wer import ErrorCounts, count_errors, oracle_errors, read_transcripts
from espnet_bayeslm.experiment.cells import markdown_table
from espnet_bayeslm.experiment.outputs import read_stats, read_weights
from espnet_bayeslm.nbest.kaldi import read_kaldi
from espnet_bayeslm.report.search import describe

LABELS = {
    "3gram": "3-gram",
    "lstm": "LSTM + 3-gram",
    "bayes_lstm": "Bayesian LSTM + 3-gram",
    "bayes_lstm_lstm": "Bayesian LSTM + LSTM + 3-gram",
    "transformer": "Transformer + 3-gram",
    "bayes_transformer": "Bayesian Transformer + 3-gram",
    "bayes_transformer_transformer": "Bayesian Transformer + Transformer + 3-gram",
    "embedding_transformer": "Transformer, Bayesian embedding + 3-gram",
    "embedding_transformer_transformer": "Transformer, Bayesian embedding + Transformer + 3-gram",
    "search_lstm": "LSTM, top 1 of the search + 3-gram",
}
LMS = {
    "point_lstm": "LSTM",
    "bayes_lstm": "Bayesian LSTM",
    "gp_lstm": "GP LSTM",
    "variational_lstm": "Variational LSTM",
    **{f"search_lstm_top{n}": f"LSTM, top {n} of the search" for n in (1, 2, 3)},
    "point_transformer": "Transformer",
    "bayes_transformer": "Bayesian Transformer",
    "embedding_transformer": "Transformer, Bayesian embedding",
    "gp_transformer": "GP Transformer",
    "variational_transformer": "Variational Transformer",
}
# The system of the architecture search, where it was made.
SEARCH = "search_lstm"
FAMILIES = ("lstm", "transformer")
VOICES = {"us": "en-US", "gb": "en-GB"}
SETS = [(name, voice) for voice in VOICES for name in ("dev", "test")]


def format_errors(counts: ErrorCounts) -> str:
    """Return `WER % (substitutions / deletions / insertions)`."""
    return (
        f"{100 * counts.rate:.2f} ({counts.substitutions}/{counts.deletions}/{counts.insertions})"
    )


def read_perplexities(path: Path) -> Dict[str, float]:
    """Return {component: perplexity, unknown words left out} of `bayeslm perplexity`'s JSON.

    The last row, the mixture's or the only component's, is there as `mixture` too.
    """
    rows = json.loads(path.read_text())["components"]
    perplexities = {row["name"]: row["perplexity_without_oov"]["word"] for row in rows}
    return {**perplexities, "mixture": list(perplexities.values())[-1]}


def error_rows(exp: Path, data: Path, systems: Sequence[str]) -> Dict[str, List[ErrorCounts]]:
    """Return {first pass, systems, oracle: word errors on each of `SETS`}."""
    rows: Dict[str, List[ErrorCounts]] = {}
    for name, voice in SETS:
        folder = data / "nbest" / f"{name}_{voice}"
        refs = read_transcripts(folder / "text")
        lists = {item.utt: [h.words for h in item.hypotheses] for item in read_kaldi(folder)}
        first = {utt: hypotheses[0] for utt, hypotheses in lists.items()}
        rows.setdefault("first pass", []).append(count_errors(refs, first))
        for system in systems:
            hyps = read_transcripts(exp / "rescore" / system / f"{name}_{voice}" / "text")
            rows.setdefault(system, []).append(count_errors(refs, hyps))
        rows.setdefault("oracle", []).append(oracle_errors(refs, lists))
    rows["oracle"] = rows.pop("oracle")  # the last row
    return rows


def main_table(exp: Path, data: Path, systems: Sequence[str]) -> str:
    """Return the table of perplexities and word error rates."""
    header = ["", "ppl dev", "ppl test", *(f"{voice} {name}" for name, voice in SETS)]
    rows = []
    for system, counts in error_rows(exp, data, systems).items():
        cells = ["", ""]
        if system in systems:
            files = (exp / "perplexity" / system / f"{name}.json" for name in ("dev", "test"))
            cells = [perplexity_text(read_perplexities(file)["mixture"], 1) for file in files]
        rows.append([LABELS.get(system, system), *cells, *map(format_errors, counts)])
    return markdown_table(header, rows)


def lm_table(exp: Path, systems: Sequence[str]) -> str:
    """Return the table of each LM's own perplexity."""
    found: Dict[str, List[float]] = {}
    for name in ("dev", "test"):
        merged: Dict[str, float] = {}
        for system in systems:
            merged.update(read_perplexities(exp / "perplexity" / system / f"{name}.json"))
        for lm in LMS:
            path = exp / "perplexity" / lm / f"{name}.json"
            if path.exists():  # an LM's own is the first row, whatever its name is there
                merged[lm] = next(iter(read_perplexities(path).values()))
        for lm in ("3gram", *LMS):
            if lm in merged:
                found.setdefault(lm, []).append(merged[lm])
    labels = {**LABELS, **LMS}
    rows = [[labels[lm], *(f"{value:.1f}" for value in values)] for lm, values in found.items()]
    return markdown_table(["", "ppl dev", "ppl test"], rows)


def uncertainty_table(exp: Path) -> str:
    """Return the table of each uncertain location: SNR, standard deviation and its start."""
    rows = []
    for lm, label in LMS.items():
        path = exp / "snr" / lm / "snr.json"
        if not path.exists():
            continue
        kl = read_stats(exp / lm)[-1]["valid"]["kl"]
        for row in json.loads(path.read_text())["lms"][lm]:
            moved = row["median_std_ratio"]
            medians = [f"{row[key]:.3g}" for key in ("median_snr", "median_std")]
            low, high = (row["snr_percentiles"][key] for key in ("5", "95"))
            ends = [f"{low:.2g} to {high:.2g}", "" if moved is None else f"{moved:.3g}"]
            rows.append([label, row["location"], f"{kl:.3f}", *medians, *ends])
    header = ["", "location", "KL of the LM", "median SNR", "median sigma", "SNR 5 to 95 %"]
    return markdown_table([*header, "sigma / start"], rows)


def bound_table(exp: Path) -> str:
    """Return the table of each LM's bound after its last epoch of training, and what is in it."""
    fixed = {f"fixed_{family}": f"{LMS[f'bayes_{family}']}, sigma fixed" for family in FAMILIES}
    rows = []
    for lm, label in {**LMS, **fixed}.items():
        folder = exp / lm.replace("_top", "/top")  # those of a search are in its folder
        if (folder / "checkpoint.pth").exists():
            last = read_stats(folder)[-1]
            values = [last["train"][name] for name in ("nll", "kl", "loss")]
            valid = perplexity_text(last["valid"]["ppl"], 1)
            rows.append([label, *(f"{value:.3f}" for value in values), valid])
    header = ["", "training NLL", "KL", "sum: minus ELBO", "validation ppl at the mean"]
    return markdown_table(header, rows)


def tuned_table(exp: Path, systems: Sequence[str]) -> str:
    """Return the table of the interpolation weights and the scales."""
    rows = []
    for system in systems:
        # one component has nothing to weigh, and no file
        weights = read_weights(exp, system).items()
        cells = [LABELS[system], ", ".join(f"{name} {weight:.3f}" for name, weight in weights)]
        for voice in VOICES:
            path = exp / "rescore" / system / f"dev_{voice}" / "scales.yaml"
            scales = yaml.safe_load(path.read_text())
            # other weights have no LMWT either
            kept = "as it came" if scales.get("features") == {"is_first": 1.0} else "-"
            known = "lmwt" in scales
            cells.append(f"{scales['lmwt']:.3g}, {scales['word_penalty']:.2g}" if known else kept)
        rows.append(cells)
    header = ["", "weights", *(f"LMWT, penalty {voice}" for voice in VOICES)]
    return markdown_table(header, rows)


def search_tables(exp: Path) -> str:
    """Return the tables of the architecture search; nothing where it was not made."""
    path = exp / SEARCH / "search.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text())
    return share_table(found["runs"]) + "\n" + ranking_table(found["ranking"])


def share_table(runs: Sequence[Dict[str, Any]]) -> str:
    """Return the table of each uncertain kind's share: mean over the seeds, and each seed's."""
    rows = []
    for location, kinds in runs[0]["shares"].items():
        for kind in kinds:
            values = [run["shares"][location][kind] for run in runs]
            cells = (f"{value:.3f}" for value in (sum(values) / len(values), *values))
            if kind != "point":
                rows.append([f"{location} {kind}", *cells])
    return markdown_table(["", "mean share", *(f"seed {run['seed']}" for run in runs)], rows)


def ranking_table(ranking: Sequence[Dict[str, Any]]) -> str:
    """Return the table of the best architectures."""
    rows = [
        [
            LMS[f"{SEARCH}_top{item['rank']}"],
            describe(item["choices"]),
            f"{item['probability']:.3g}",
            ", ".join("-" if rank is None else f"{rank}" for rank in item["ranks"]),
        ]
        for item in ranking
    ]
    return markdown_table(["", "uncertain", "probability", "rank by each seed"], rows)
