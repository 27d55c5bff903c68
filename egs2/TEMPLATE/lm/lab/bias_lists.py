#!/usr/bin/env python3
"""Bias lists of rare words, best texts of N-best lists, and biased words that a search found.

    python3 -m lab.bias_lists make --ref REF --text LM_TEXT --output LISTS [--decoys LISTS]
    python3 -m lab.bias_lists decoys --ref REF --bias LISTS --output LISTS
    python3 -m lab.bias_lists text --nbest LISTS --output TEXT
    python3 -m lab.bias_lists found --ref REF --bias LISTS --nbest LISTS --hyp TEXT

An utterance's list has the words of its reference that are not among the commonest of the LM's
training text, and others of that text, drawn at random: Le et al. 2021, arXiv 2104.02194. Decoys
are the lists without the words of the reference.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
from pathlib import Path
from typing import Dict, List, Set

from espnet_bayeslm.evaluation.normalization import Normalization


def read_text(path: Path) -> Dict[str, List[str]]:
    """Words of each utterance of a Kaldi text."""
    lines = (line.split() for line in path.read_text("utf-8").splitlines() if line.strip())
    return {utt: words for utt, *words in lines}


def read_jsonl(path: Path) -> List[dict]:
    """Rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def write(path: Path, lines: List[str]) -> None:
    """Write lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def make(args: argparse.Namespace) -> None:
    """Write the lists and their decoys."""
    counts = collections.Counter(args.text.read_text("utf-8").split())
    common = {word for word, _ in counts.most_common(args.num_common)}
    pool, rng = sorted(counts.keys() - common), random.Random(args.seed)
    rows: Dict[str, List[str]] = {"output": [], "decoys": []}
    num_rare = num_words = 0
    for utt, words in read_text(args.ref).items():
        own = [word for word in dict.fromkeys(words) if word not in common]
        drawn = rng.sample(pool, min(args.num_distractors + len(own), len(pool)))
        others = [word for word in drawn if word not in own][: args.num_distractors]
        for name, listed in (("output", own + others), ("decoys", others)):
            rows[name].append(json.dumps({"utt": utt, "words": sorted(listed)}))
        num_rare += sum(word not in common for word in words)
        num_words += len(words)
    for name in rows:
        if getattr(args, name) is not None:
            write(getattr(args, name), rows[name])
    print(f"{args.output}: {num_rare} of {num_words} words are in their utterance's list")


def decoys(args: argparse.Namespace) -> None:
    """Write lists without the words of the references."""
    refs, rows = read_text(args.ref), read_jsonl(args.bias)
    others = (
        {**row, "words": [word for word in row["words"] if word not in refs.get(row["utt"], ())]}
        for row in rows
    )
    write(args.output, [json.dumps(row) for row in others])


def text(args: argparse.Namespace) -> None:
    """Write the best hypothesis of each list, as a Kaldi text."""
    rows = sorted((row["utt"], row["hypotheses"][0]["text"]) for row in read_jsonl(args.nbest))
    write(args.output, [f"{utt} {best}".rstrip() for utt, best in rows])


def found(args: argparse.Namespace) -> None:
    """Print how many biased words of the references the lists hold, and the outputs find."""
    refs, bias = read_text(args.ref), {r["utt"]: {*r["words"]} for r in read_jsonl(args.bias)}
    words_of = Normalization(args.normalize).words
    held: Dict[str, Set[str]] = {
        row["utt"]: {word for hyp in row["hypotheses"] for word in words_of(hyp["text"].split())}
        for row in read_jsonl(args.nbest)
    }
    said = {(u, w) for u, words in refs.items() for w in words if w in bias.get(u, ())}
    lost = {(utt, word) for utt, word in said if word not in held.get(utt, ())}
    print(f"{len(said)} biased words (each once an utterance); {len(lost)} in no hypothesis")
    for path in args.hyp:
        hyps = {utt: words_of(words) for utt, words in read_text(path).items()}
        right = {(utt, word) for utt, word in said if word in hyps.get(utt, ())}
        print(f"{path}: {len(right)} found, {len(right & lost)} of those in no hypothesis")


def main() -> None:
    """Run one of the programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    programs = parser.add_subparsers(required=True)
    files = {make: "ref text output decoys", decoys: "ref bias output", text: "nbest output"}
    for function, paths in files.items():
        own = programs.add_parser(function.__name__, description=function.__doc__)
        own.set_defaults(function=function)
        for name in paths.split():
            own.add_argument(f"--{name}", type=Path, required=name != "decoys")
        if function is make:
            own.add_argument("--num_common", type=int, default=3000)
            own.add_argument("--num_distractors", type=int, default=100)
            own.add_argument("--seed", type=int, default=1)
    own = programs.add_parser("found", description=found.__doc__)
    own.set_defaults(function=found)
    for name in ("ref", "bias", "nbest"):
        own.add_argument(f"--{name}", type=Path, required=True)
    own.add_argument("--hyp", type=Path, nargs="+", required=True)
    own.add_argument("--normalize", default="", help="what is done to hypotheses")
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
