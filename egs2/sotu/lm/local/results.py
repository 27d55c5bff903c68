#!/usr/bin/env python3
"""Tables of perplexity and word error rate, and a plot of the learning curves."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List, Optional, Sequence

import tables

from espnet_bayeslm.experiment.outputs import read_stats
from espnet_bayeslm.report.plots import new_figure, save_figure
from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.files import read_lines, write_text

KINDS = {"point": "o-", "bayes": "s--", "embedding": "D--", "gp": "^:", "variational": "v-."}


def learning_curve(folder: Path) -> List[float]:
    """Return the validation perplexities of an experiment's epochs."""
    return [stats["valid"]["ppl"] for stats in read_stats(folder)]


def plot_curves(exp: Path, output: Path) -> None:
    """Write a plot of the validation perplexity per epoch of the LMs in `exp`."""
    figure = new_figure((9, 3.6))
    axes = figure.subplots(1, 2, sharey=True)
    for axis, family in zip(axes, tables.FAMILIES, strict=True):
        begun = learning_curve(exp / f"half_{family}")
        axis.plot(range(1, len(begun) + 1), begun, "k-", label="first half")
        trained = {
            kind: line for kind, line in KINDS.items() if (exp / f"{kind}_{family}").is_dir()
        }
        for kind, line in trained.items():
            # all go on from the same LM
            values = [begun[-1], *learning_curve(exp / f"{kind}_{family}")]
            epochs = range(len(begun), len(begun) + len(values))
            axis.plot(epochs, values, line, label=tables.LMS[f"{kind}_{family}"])
        axis.set_xlabel("epoch")
        axis.legend()
    axes[0].set_ylabel("validation perplexity")
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


def search_section(exp: Path) -> Iterator[str]:
    """Yield what the architecture search found, if it was made."""
    found = tables.search_tables(exp)
    if found:
        yield "## Architecture search\n"
        yield (
            "Share of the uncertain path at each location of the super-network, softmax of the"
            " architecture weights at the end of its training (point estimate: the rest); and the"
            " most probable architectures, by the mean over the seeds of ln p. Each was then"
            " trained by itself like the other LMs, from the same half-trained LM by the same"
            " steps.\n"
        )
        yield found


def results(exp: str, data: str, size: str, systems: Sequence[str], seed: int) -> None:
    """Write EXP/RESULTS.md and EXP/images/learning_curves.png, and print the former."""
    image = Path("images/learning_curves.png")
    # the architecture search's is made later
    found = [name for name in tables.LABELS if (Path(exp) / "rescore" / name / "test_gb").is_dir()]
    systems = systems or found
    plot_curves(Path(exp), Path(exp) / image)
    text = "\n".join(
        [
            *explanation(Path(data), size, seed),
            "## Perplexity and word error rate\n",
            "Perplexity of the interpolated LM, `</s>` counted, unknown words left out; word error"
            " rate in % (substitutions/deletions/insertions).\n",
            tables.main_table(Path(exp), Path(data), systems),
            "## The LMs alone\n",
            tables.lm_table(Path(exp), systems),
            "## Uncertainty\n",
            "KL in nats per token; signal-to-noise ratio |mean| / sigma of the random weights, of a"
            " latent output over the tokens of dev; sigma over its start.\n",
            tables.uncertainty_table(Path(exp)),
            "## The bound\n",
            "In nats per token, over the last epoch of training with its draws and its dropout.\n",
            tables.bound_table(Path(exp)),
            "## Tuned on dev\n",
            tables.tuned_table(Path(exp), systems),
            *search_section(Path(exp)),
            f"![learning curves]({image})\n",
        ]
    )
    write_text(Path(exp) / "RESULTS.md", text)
    print(text)


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Write the results."""
    parser = tool_parser("results", __doc__.splitlines()[0])
    parser.prog = "local/results.py"
    parser.add_argument("--exp", default="exp", help="Folder of LMs and rescored lists")
    parser.add_argument("--data", default="data", help="Folder of texts and N-best lists")
    parser.add_argument("--size", default="small", help="As in run.sh")
    parser.add_argument("--systems", nargs="+", default=[], help="Rows of the table; default: all")
    parser.add_argument("--seed", type=int, default=0, help="ESPnet's seed of the training")
    run_tool(parser, results, cmd)


if __name__ == "__main__":
    main()
