#!/usr/bin/env python3
"""Tuned weights on real lists in several disguises, and the time of tuning.

    bench/tuning.py --lists FOLDER --ngram ARPA [--other ARPA] [--splits 20]
    bench/tuning.py --time 500x20,5000x100

FOLDER has Kaldi lists dev_CONDITION and eval_CONDITION, each with its references as `text`. They
are tuned on dev and tested on eval: as they are; with one total divided by the length; without
scores; with scores in other units; with the best hypothesis first; and with an LM of another
domain on random halves of dev and eval together.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Sequence

import numpy as np

from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.rescoring.decision import ScoredList
from espnet_bayeslm.rescoring.feature_tuning import tune_features
from espnet_bayeslm.rescoring.tuning import Tuning, hypothesis_errors, tune_scales

# What PocketSphinx gave its LM beside the acoustic score, about
LANGUAGE_WEIGHT = 9.5
LMWTS, PENALTIES = np.arange(1, 30.5, 0.5), np.arange(-2, 2.5, 0.5)


class Lists(NamedTuple):
    """Lists of a set with their scores.

    Attributes:
        scored: The lists.
        errors: Of each the word errors of its hypotheses.
        words: Of each its reference's.
    """

    scored: List[ScoredList]
    errors: List[np.ndarray]
    words: np.ndarray

    def only(self, places: Sequence[int]) -> Lists:
        """Some of the lists."""
        own = [self.scored[k] for k in places], [self.errors[k] for k in places]
        return Lists(*own, self.words[list(places)])

    def rate(self, choices: Sequence[int]) -> float:
        """Word error rate of some hypotheses in percent."""
        total = sum(int(e[k]) for e, k in zip(self.errors, choices, strict=True))
        return float(100 * total / self.words.sum())


def read_lists(folder: Path, scorer: NgramScorer) -> Lists:
    """Lists of a folder with an n-gram's scores."""
    refs = read_transcripts(folder / "text")
    nbests = list(read_nbest(folder, "kaldi"))
    scored = []
    for nbest in nbests:
        scores = scorer.word_scores([hyp.words for hyp in nbest.hypotheses])
        log_probs = np.array([round(float(score.log_probs.sum()), 6) for score in scores])
        scored.append(ScoredList(nbest, log_probs))
    words = np.array([len(refs[nbest.utt]) for nbest in nbests])
    return Lists(scored, hypothesis_errors(nbests, refs), words)


def disguised(lists: Lists, change: Callable[[Hypothesis], Hypothesis]) -> Lists:
    """The lists with other scores."""
    scored = []
    for item in lists.scored:
        hyps = tuple(change(hyp) for hyp in item.nbest.hypotheses)
        scored.append(ScoredList(NBest(item.nbest.utt, hyps), item.log_probs))
    return lists._replace(scored=scored)


def divided(hyp: Hypothesis) -> Hypothesis:
    """One total, divided by the length."""
    total = (hyp.am_score or 0) / LANGUAGE_WEIGHT + (hyp.lm_score or 0)
    return Hypothesis(hyp.words, total / (len(hyp.words) + 1))


def in_units(factor: float) -> Callable[[Hypothesis], Hypothesis]:
    """Scores in other units."""

    def change(hyp: Hypothesis) -> Hypothesis:
        scores = [None if s is None else s * factor for s in (hyp.am_score, hyp.lm_score)]
        return dataclasses.replace(hyp, am_score=scores[0], lm_score=scores[1])

    return change


def best_first(lists: Lists) -> Lists:
    """The lists with the hypothesis of the fewest errors in front."""
    scored, errors = [], []
    for item, counts in zip(lists.scored, lists.errors, strict=True):
        order = [int(counts.argmin())]
        order += [k for k in range(len(counts)) if k != order[0]]
        hyps = tuple(item.nbest.hypotheses[k] for k in order)
        scored.append(ScoredList(NBest(item.nbest.utt, hyps), item.log_probs[order]))
        errors.append(counts[order])
    return Lists(scored, errors, lists.words)


DISGUISES: Dict[str, Callable[[Lists], Lists]] = {
    "(a) as they are": lambda lists: lists,
    "(b) total / (length + 1)": lambda lists: disguised(lists, divided),
    "(c) no scores": lambda lists: disguised(lists, lambda hyp: Hypothesis(hyp.words)),
    "(d) scores x 0.001": lambda lists: disguised(lists, in_units(0.001)),
    "(d) scores x 1000": lambda lists: disguised(lists, in_units(1000.0)),
    "(g) best first": best_first,
}


def tuned_choices(dev: Lists, test: Lists):
    """What is tuned on dev, and the places that it chooses on test."""
    groups = [item.nbest.utt for item in dev.scored]
    found, scales, _ = tune_scales(dev.scored, dev.errors, groups=groups, tuning=Tuning())
    return found, [item.choice(scales) for item in test.scored]


def grid_choices(dev: Lists, test: Lists) -> List[int]:
    """What the fewest errors over a grid of LMWT and word penalty choose on test."""

    def grid(item: ScoredList) -> np.ndarray:
        am = np.array([hyp.am_score or 0.0 for hyp in item.nbest.hypotheses])
        words = np.array([len(hyp.words) for hyp in item.nbest.hypotheses])
        return am / LMWTS[:, None, None] + item.log_probs - PENALTIES[:, None] * words

    pairs = zip(dev.scored, dev.errors, strict=True)
    total = sum(errors[grid(item).argmax(axis=-1)] for item, errors in pairs)

    def order(place):
        """Of equals those nearest to no penalty and LMWT 10."""
        return total[place], abs(PENALTIES[place[1]]), abs(LMWTS[place[0]] - 10)

    best = min(np.ndindex(*total.shape), key=order)
    return [int(grid(item)[best].argmax()) for item in test.scored]


def compare(folder: Path, scorer: NgramScorer) -> None:
    """Print a row for each condition and disguise."""
    print("| lists | | first pass | grid | tuned: mert | tuned: risk | kept (mert) |")
    print("|---|---|---|---|---|---|---|")
    for dev_folder in sorted(folder.glob("dev_*")):
        condition = dev_folder.name.removeprefix("dev_")
        sets = [read_lists(folder / f"{part}_{condition}", scorer) for part in ("dev", "eval")]
        expected = None
        for name, change in DISGUISES.items():
            dev, test = map(change, sets)
            found, choices = tuned_choices(dev, test)
            risk = test.rate(tuned_choices(dev, test, "risk")[1])
            grid = f"{test.rate(grid_choices(dev, test)):.2f}" if "(a)" in name else ""
            same = ""
            if "(d)" in name:
                same = ", same choices" if choices == expected else ", OTHER CHOICES"
            expected = choices if "(a)" in name else expected
            first = test.rate([0] * len(test.scored))
            print(
                f"| {condition} {name} | {len(dev.scored)}, {len(test.scored)} | {first:.2f} |"
                f" {grid} | {test.rate(choices):.2f} | {risk:.2f} | {found.kept}{same} |",
                flush=True,
            )


def compare_splits(folder: Path, scorer: NgramScorer, num_splits: int) -> None:
    """Print the gains with an LM of another domain on random halves."""
    for dev_folder in sorted(folder.glob("dev_*")):
        condition = dev_folder.name.removeprefix("dev_")
        dev, test = (read_lists(folder / f"{p}_{condition}", scorer) for p in ("dev", "eval"))
        both = Lists(
            dev.scored + test.scored, dev.errors + test.errors, np.append(dev.words, test.words)
        )
        gains = []
        for seed in range(num_splits):
            order = np.random.default_rng(seed).permutation(len(both.scored))
            halves = both.only(order[: len(order) // 2]), both.only(order[len(order) // 2 :])
            _, choices = tuned_choices(*halves)
            gains.append(halves[1].rate([0] * len(choices)) - halves[1].rate(choices))
        print(
            f"(e) {condition}, {scorer.name}, {num_splits} random halves: WER below the first pass"
            f" by {np.mean(gains):.2f} on average, {min(gains):.2f} to {max(gains):.2f}",
            flush=True,
        )


def time_tuning(num_lists: int, num_hyps: int) -> None:
    """Print how long the tuning of random lists takes, errors counted."""
    rng = np.random.default_rng(0)
    wrong = rng.integers(0, 8, (num_lists, num_hyps))
    rank = np.arange(num_hyps)
    lists = []
    for row in wrong:
        am, old, new = (-k * row + rng.normal(size=num_hyps) for k in (0.5, 0.3, 0.5))
        words = 12.0 + rng.integers(-1, 2, num_hyps)
        features = {"am_score": 10 * am, "lm_score": old, "log_prob": new, "words": words}
        features.update(chars=5 * words + rng.integers(-2, 3, num_hyps))
        features.update(rank=-np.log(rank + 1.0), is_first=(rank == 0) * 1.0)
        lists.append(features)
    start, cpu = time.perf_counter(), time.process_time()
    found = tune_features(lists, list(wrong), groups=[str(n) for n in range(num_lists)])
    print(
        f"{num_lists} x {num_hyps}: {time.perf_counter() - start:.1f} s"
        f" ({time.process_time() - cpu:.1f} s of CPU), errors {found.errors}, kept {found.kept},"
        f" weights {', '.join(f'{name} {weight:.3g}' for name, weight in found.weights)}",
        flush=True,
    )


def main() -> None:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", type=Path, help="Folder of dev_CONDITION and eval_CONDITION")
    parser.add_argument("--ngram", help="An ARPA file of fitting text")
    parser.add_argument("--other", help="An ARPA file of another domain")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--time", default="", help="LISTSxHYPOTHESES,..")
    args = parser.parse_args()
    if args.lists and args.ngram:
        compare(args.lists, NgramScorer(args.ngram))
    if args.lists and args.other:
        compare_splits(args.lists, NgramScorer(args.other), args.splits)
    for size in filter(None, args.time.split(",")):
        time_tuning(*map(int, size.split("x")))


if __name__ == "__main__":
    main()
