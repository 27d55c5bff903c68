"""`bayeslm TOOL ...`: calls `espnet_bayeslm.bin.TOOL`."""

from __future__ import annotations

import importlib
import sys
from typing import Optional, Sequence

from espnet_bayeslm import __version__
from espnet_bayeslm.utils.errors import one_line_errors
from espnet_bayeslm.utils.espnet_versions import check_espnet

TOOLS = {
    "quickstart": "what the package ships to a table of word error rates, in minutes",
    "compare": "does a Bayesian LM help on my text? perplexities with intervals over seeds",
    "lm_train": "train an LM with ESPnet's own options",
    "configs": "training configurations that are shipped",
    "train": "plain text to a trained LM in one command",
    "adapt": "lists with references to an adapted LM, with all that rescoring needs",
    "search": "architecture search: which locations should be uncertain",
    "ngram": "estimate a modified Kneser-Ney n-gram, ARPA out",
    "nbest": "N-best lists from recordings or logits: ESPnet, Whisper, CTC, PocketSphinx",
    "perplexity": "perplexity of a text under an LM or n-gram",
    "interpolate": "EM weights of LMs and n-grams on held-out text",
    "rescore": "N-best lists in, LM scores and a new 1-best out",
    "lattice": "word lattices in, rescored lattices, N best and oracle WER out",
    "export": "an LM's posterior means as an ordinary checkpoint; LMs for a recogniser's search",
    "tune_fusion": "weights of LMs and bias lists in a search, tuned by decoding",
    "snr": "signal-to-noise ratio of random weights, and pruning by it",
    "score": "WER with S/D/I, significance, oracle WER of N-best lists",
    "report": "results in one HTML file: tables, figures, N-best lists to look through",
}


def usage() -> str:
    """List of the tools."""
    width = max(map(len, TOOLS))
    lines = [f"  {name:{width}}  {what}" for name, what in TOOLS.items()]
    return "usage: bayeslm TOOL [options]; bayeslm TOOL --help; bayeslm --version\n\n" + "\n".join(
        lines
    )


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run the tool that the first word names."""
    words = list(sys.argv[1:] if cmd is None else cmd)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        raise SystemExit(0 if words else 2)
    if words[0] == "--version":
        print(f"bayeslm {__version__}")
        raise SystemExit(0)
    tool = words.pop(0)
    if tool not in TOOLS:
        print(f"bayeslm: error: unknown tool {tool!r}\n{usage()}", file=sys.stderr)
        raise SystemExit(2)
    with one_line_errors(f"bayeslm {tool}"):
        check_espnet()
        importlib.import_module(f"espnet_bayeslm.bin.{tool}").main(words)


if __name__ == "__main__":
    main()
