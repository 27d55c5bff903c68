#!/usr/bin/env python3
"""Tables of perplexity and word error rate, and a plot of the learning curves."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence

import yaml

from espnet_bayeslm.evaluation.wer import (
    ErrorCounts,
    count_errors,
    oracle_errors,
    read_transcripts,
)
from espnet_bayeslm.report.plots import save_figure
from espnet_bayeslm.rescoring.kaldi import read_kaldi
from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.files import atomic_write, read_lines

LABELS = {
    "3gram": "3-gram",
    "lstm": "LSTM + 3-gram",
    "bayes_lstm": "Bayesian LSTM + 3-gram",
    "bayes_lstm_lstm": "Bayesian LSTM + LSTM + 3-gram",
    "transformer": "Transformer + 3-gram",
    "bayes_transformer": "Bayesian Transformer + 3-gram",
    "bayes_transformer_transformer": "Bayesian Transformer + Transformer + 3-gram",
}
LMS = {
    "point_lstm": "LSTM",
    "bayes_lstm": "Bayesian LSTM",
    "gp_lstm": "GP LSTM",
    "variational_lstm": "Variational LSTM",
    "point_transformer": "Transformer",
    "bayes_transformer": "Bayesian Transformer",
    "gp_transformer": "GP Transformer",
    "variational_transformer": "Variational Transformer",
}
FAMILIES = ("lstm", "transformer")
KINDS = {"point": "o-", "bayes": "s--", "gp": "^:", "variational": "v-."}
VOICES = {"us": "en-US", "gb": "en-GB"}
SETS = [(name, voice) for voice in VOICES for name in ("dev", "test")]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, the first column left-aligned, the others right-aligned."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


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
            cells = [f"{read_perplexities(file)['mixture']:.1f}" for file in files]
        rows.append([LABELS.get(system, system), *cells, *map(format_errors, counts)])
    return markdown_table(header, rows)


def lm_table(exp: Path, systems: Sequence[str]) -> str:
    """Return the table of each LM's own perplexity."""
    found: Dict[str, List[float]] = {}
    for name in ("dev", "test"):
        merged: Dict[str, float] = {}
        for system in (*systems, *LMS):
            path = exp / "perplexity" / system / f"{name}.json"
            merged.update(read_perplexities(path) if path.exists() else {})
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
            percentiles = row["snr_percentiles"]
            rows.append(
                [
                    label,
                    row["location"],
                    f"{kl:.3f}",
                    *(f"{value:.3g}" for value in (row["median_snr"], row["median_std"])),
                    f"{percentiles['5']:.2g} to {percentiles['95']:.2g}",
                    "" if moved is None else f"{moved:.3g}",
                ]
            )
    header = ["", "location", "KL of the LM", "median SNR", "median sigma", "SNR 5 to 95 %"]
    return markdown_table([*header, "sigma / start"], rows)


def bound_table(exp: Path) -> str:
    """Return the table of each LM's bound after its last epoch of training, and what is in it."""
    fixed = {f"fixed_{family}": f"{LMS[f'bayes_{family}']}, sigma fixed" for family in FAMILIES}
    rows = []
    for lm, label in {**LMS, **fixed}.items():
        if (exp / lm / "checkpoint.pth").exists():
            last = read_stats(exp / lm)[-1]
            values = [last["train"][name] for name in ("nll", "kl", "loss")]
            valid = f"{last['valid']['ppl']:.1f}"
            rows.append([label, *(f"{value:.3f}" for value in values), valid])
    header = ["", "training NLL", "KL", "sum: minus ELBO", "validation ppl at the mean"]
    return markdown_table(header, rows)


def tuned_table(exp: Path, systems: Sequence[str]) -> str:
    """Return the table of the interpolation weights and the scales."""
    rows = []
    for system in systems:
        weights = yaml.safe_load((exp / "weights" / f"{system}.yaml").read_text())["components"]
        cells = [LABELS[system], ", ".join(f"{w['name']} {w['weight']:.3f}" for w in weights)]
        for voice in VOICES:
            path = exp / "rescore" / system / f"dev_{voice}" / "scales.yaml"
            scales = yaml.safe_load(path.read_text())
            cells.append(f"{scales['lmwt']:g}, {scales['word_penalty']:g}")
        rows.append(cells)
    header = ["", "weights", *(f"LMWT, penalty {voice}" for voice in VOICES)]
    return markdown_table(header, rows)


def read_stats(folder: Path) -> List[Dict[str, Dict[str, float]]]:
    """Return what ESPnet's reporter kept of each epoch: {train, valid: {statistic: value}}."""
    from espnet_bayeslm.training.checkpoint import read_checkpoint

    stats = read_checkpoint(folder / "checkpoint.pth")["reporter"]["stats"]
    return [stats[epoch] for epoch in sorted(stats) if "valid" in stats[epoch]]


def learning_curve(folder: Path) -> List[float]:
    """Return the validation perplexities of an experiment's epochs."""
    return [stats["valid"]["ppl"] for stats in read_stats(folder)]


def plot_curves(exp: Path, output: Path) -> None:
    """Write a plot of the validation perplexity per epoch of the LMs in `exp`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, family in zip(axes, FAMILIES, strict=True):
        begun = learning_curve(exp / f"half_{family}")
        axis.plot(range(1, len(begun) + 1), begun, "k-", label="first half")
        trained = {
            kind: line for kind, line in KINDS.items() if (exp / f"{kind}_{family}").is_dir()
        }
        for kind, line in trained.items():
            # all go on from the same LM
            values = [begun[-1], *learning_curve(exp / f"{kind}_{family}")]
            epochs = range(len(begun), len(begun) + len(values))
            axis.plot(epochs, values, line, label=LMS[f"{kind}_{family}"])
        axis.set_xlabel("epoch")
        axis.legend()
    axes[0].set_ylabel("validation perplexity")
    figure.tight_layout()
    save_figure(figure, output)


def explanation(data: Path, size: str, seed: int) -> Iterator[str]:
    """Yield what the numbers mean."""
    yield f"# RESULTS, size {size}\n"
    yield (
        "Real text, a real recogniser, **synthetic speech**: sentences of the presidents'"
        " addresses, spoken by the text-to-speech voices of Pico, recognised by PocketSphinx with"
        " the 3-gram to 20-best lists. The word error rates say nothing about recorded speech.\n"
    )
    yield (
        "Tuned on dev, applied unchanged to test: interpolation weights (EM on the dev text), and"
        " per voice and system LMWT and word penalty (fewest errors on the dev lists). The"
        " figures of dev are therefore optimistic; the LMs' checkpoints were chosen on dev text"
        f" too. One run, seed {seed}: small differences are not significant. The point-estimate and"
        " the uncertain LMs go on from the same half-trained LM by the same steps.\n"
    )
    yield "".join(f"- {line}\n" for _, line in read_lines(data / "statistics.txt"))


def results(exp: str, data: str, size: str, systems: Sequence[str], seed: int) -> None:
    """Write EXP/RESULTS.md and EXP/images/learning_curves.png, and print the former."""
    image = Path("images/learning_curves.png")
    plot_curves(Path(exp), Path(exp) / image)
    text = "\n".join(
        [
            *explanation(Path(data), size, seed),
            "## Perplexity and word error rate\n",
            "Perplexity of the interpolated LM, `</s>` counted, unknown words left out; word error"
            " rate in % (substitutions/deletions/insertions).\n",
            main_table(Path(exp), Path(data), systems),
            "## The LMs alone\n",
            lm_table(Path(exp), systems),
            "## Uncertainty\n",
            "KL in nats per token; signal-to-noise ratio |mean| / sigma of the random weights, of a"
            " latent output over the tokens of dev; sigma over its start.\n",
            uncertainty_table(Path(exp)),
            "## The bound\n",
            "In nats per token, over the last epoch of training with its draws and its dropout.\n",
            bound_table(Path(exp)),
            "## Tuned on dev\n",
            tuned_table(Path(exp), systems),
            f"![learning curves]({image})\n",
        ]
    )
    with atomic_write(Path(exp) / "RESULTS.md") as f:
        f.write(text)
    print(text)


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = tool_parser("results", __doc__.splitlines()[0])
    parser.prog = "local/results.py"
    parser.add_argument("--exp", default="exp", help="Folder of LMs and rescored lists")
    parser.add_argument("--data", default="data", help="Folder of texts and N-best lists")
    parser.add_argument("--size", default="small", help="As in run.sh")
    parser.add_argument("--systems", nargs="+", default=list(LABELS), help="Rows of the table")
    parser.add_argument("--seed", type=int, default=0, help="ESPnet's seed of the training")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Write the results."""
    run_tool(get_parser(), results, cmd)


if __name__ == "__main__":
    main()
