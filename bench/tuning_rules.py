#!/usr/bin/env python3
"""Error rates of rules that accept a tuned gain, over random splits of real lists.

    bench/tuning_rules.py --ngram ARPA [--ngram ARPA] [--sizes 50,100] LISTS[,LISTS] ...

LISTS is a folder of Kaldi lists with references as `text`, or a jsonl file with references; lists
joined by a comma are one set. Each split tunes on some lists of a set and tests on the others.
Features are tuned without a new LM, with a score of pure noise, and with each n-gram.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.rescoring.feature_tuning import (
    AS_IT_CAME,
    LISTS_PER_WEIGHT,
    NUM_FOLDS,
    held_out_errors,
    make_candidates,
    solve,
)
from espnet_bayeslm.rescoring.features import LM, hypothesis_features, is_normalised
from espnet_bayeslm.rescoring.tuning import hypothesis_errors
from espnet_bayeslm.rescoring.weight_search import folds

SIGN_FLIPS = 1000

# Candidate -> errors of each tuning list where it was held out, (L,)
HeldOut = Mapping[str, np.ndarray]
Rule = Callable[[HeldOut, Mapping[str, int]], str]


class ListSet(NamedTuple):
    """Lists with their references.

    Attributes:
        nbests: The lists.
        errors: Of each list the word errors of its hypotheses.
        num_words: Of each list the words of its reference, (L,).
    """

    nbests: List[NBest]
    errors: List[np.ndarray]
    num_words: np.ndarray


def read_set(paths: str) -> ListSet:
    """Lists of one or several folders or jsonl files."""
    nbests: List[NBest] = []
    refs: Dict[str, Sequence[str]] = {}
    for path in map(Path, paths.split(",")):
        own = list(read_nbest(path, "kaldi" if path.is_dir() else "jsonl"))
        held = {item.utt: item.ref for item in own if item.ref is not None}
        refs.update(read_transcripts(path / "text") if path.is_dir() else held)
        nbests += own
    words = np.array([len(refs[item.utt]) for item in nbests])
    return ListSet(nbests, hypothesis_errors(nbests, refs), words)


def lm_scores(nbests: Sequence[NBest], ngrams: Sequence[str]) -> Dict[str, List[Dict]]:
    """Source of the LM's score -> of each list {feature: (N,)}."""
    rng = np.random.default_rng(0)
    found: Dict[str, List[Dict]] = {
        "no LM": [{} for _ in nbests],
        "noise": [{LM: rng.normal(size=len(item.hypotheses))} for item in nbests],
    }
    for path in ngrams:
        scorer = NgramScorer(path)
        found[scorer.name] = [
            {
                LM: np.array(
                    [s.log_probs.sum() for s in scorer.word_scores([h.words for h in n.hypotheses])]
                )
            }
            for n in nbests
        ]
    return found


def fewest(held_out: HeldOut) -> str:
    """Candidate with the fewest errors on held-out lists."""
    return min(held_out, key=lambda name: held_out[name].sum())


def standard_error(gains: np.ndarray) -> float:
    """Standard error of a sum over independent lists."""
    return float(np.sqrt(len(gains)) * gains.std(ddof=1))


def above(count: float) -> Rule:
    """Accept a gain that is above so many standard errors."""

    def rule(held_out: HeldOut, sizes: Mapping[str, int]) -> str:
        best = fewest(held_out)
        gains = held_out[AS_IT_CAME] - held_out[best]
        return best if gains.sum() > count * standard_error(gains) else AS_IT_CAME

    return rule


def smallest(held_out: HeldOut, sizes: Mapping[str, int]) -> str:
    """Fewest features within one standard error of the best (Breiman et al. 1984)."""
    best = held_out[fewest(held_out)]
    more = {name: errors - best for name, errors in held_out.items()}
    near = [name for name, more in more.items() if more.sum() <= standard_error(more)]
    return min(near, key=lambda name: (sizes[name], held_out[name].sum()))


def sign_flips(level: float) -> Rule:
    """Accept a gain where random signs of the lists' gains seldom give as much."""

    def rule(held_out: HeldOut, sizes: Mapping[str, int]) -> str:
        best = fewest(held_out)
        gains = held_out[AS_IT_CAME] - held_out[best]
        gains = gains[gains != 0]
        signs = np.random.default_rng(0).choice([-1, 1], size=(SIGN_FLIPS, len(gains)))
        p = ((signs @ gains >= gains.sum()).sum() + 1) / (SIGN_FLIPS + 1)
        return best if p < level else AS_IT_CAME

    return rule


def sign_test(level: float) -> Rule:
    """Accept a gain where more lists get better than worse, by an exact sign test."""

    def rule(held_out: HeldOut, sizes: Mapping[str, int]) -> str:
        best = fewest(held_out)
        gains = held_out[AS_IT_CAME] - held_out[best]
        better, moved = int((gains > 0).sum()), int((gains != 0).sum())
        p = sum(math.comb(moved, k) for k in range(better, moved + 1)) / 2**moved
        return best if p < level else AS_IT_CAME

    return rule


RULES: Dict[str, Rule] = {
    **{f"above {count:g} standard errors": above(count) for count in (0, 0.5, 1, 1.5, 2)},
    "smallest within 1": smallest,
    "sign flips, p < 0.05": sign_flips(0.05),
    "sign test, p < 0.05": sign_test(0.05),
}


class Outcome(NamedTuple):
    """Result of a rule on a split: word errors on the test lists, and the words.

    Attributes:
        accepted: True if the rule kept a candidate other than the lists as they came.
        first: Of the first pass.
        chosen: Of the choice of the rule.
        fewest: Of the candidate with the fewest errors on held-out lists.
        words: Of the references.
    """

    accepted: bool
    first: int
    chosen: int
    fewest: int
    words: int


def study_set(
    lists: ListSet, scores: Sequence[Mapping], sizes: Sequence[int], seeds: Sequence[int]
) -> Dict[int, Dict[str, List[Outcome]]]:
    """Size of the tuning part -> rule -> its outcome on each split."""
    pairs = zip(lists.nbests, scores, strict=True)
    features = [hypothesis_features(item, score) for item, score in pairs]
    normalised = is_normalised(features)
    problem, every = make_candidates(features, lists.errors, normalised_scores=normalised)
    found: Dict[int, Dict[str, List[Outcome]]] = {n: defaultdict(list) for n in sizes}
    for size, seed in ((n, s) for n in sizes for s in seeds):
        sets = {n: own for n, own in every.items() if len(own) * LISTS_PER_WEIGHT <= size}
        order = np.random.default_rng(seed).permutation(len(lists.nbests))
        tuning, test = problem.only(order[:size]), problem.only(order[size:])
        parts = folds([str(k) for k in range(size)], NUM_FOLDS)
        held_out = held_out_errors(tuning, sets, parts, "mert")
        counts = {AS_IT_CAME: (tuning.first_pass, test.first_pass)}
        for name, weights in solve(tuning, sets, "mert").items():
            both = (part.columns(sets[name]).list_errors(weights) for part in (tuning, test))
            on_tuning, on_test = (int(errors.sum()) for errors in both)
            counts[name] = (on_tuning, on_test)
        num_columns = {AS_IT_CAME: 0, **{name: len(own) for name, own in sets.items()}}
        words = int(lists.num_words[order[size:]].sum())
        for rule, choose in RULES.items():
            # never worse on the tuning lists than the first pass
            chosen, best = (
                AS_IT_CAME if counts[name][0] > tuning.first_pass else name
                for name in (choose(held_out, num_columns), fewest(held_out))
            )
            on_test = (counts[name][1] for name in (AS_IT_CAME, chosen, best))
            found[size][rule].append(Outcome(chosen != AS_IT_CAME, *on_test, words))
    return found


def shares(outcomes: Sequence[Outcome]) -> List[str]:
    """Accepted gains that are worse on test, and true gains that are missed, in percent."""
    accepted = [o for o in outcomes if o.accepted]
    true = [o for o in outcomes if o.fewest < o.first]
    wrong = sum(o.chosen > o.first for o in accepted)
    missed = sum(not o.accepted for o in true)
    pairs = ((wrong, accepted), (missed, true))
    return [f"{100 * n / len(of):.1f}" if of else "-" for n, of in pairs]


def rate(outcomes: Sequence[Outcome], field: str) -> str:
    """Mean word error rate over splits in percent."""
    return f"{np.mean([100 * getattr(o, field) / o.words for o in outcomes]):.2f}"


def print_table(title: str, outcomes: Mapping[str, Mapping[str, List[Outcome]]]) -> None:
    """Print the rates of each rule over all splits, and its word error rate in each group.

    Args:
        title: Of the table.
        outcomes: Group -> rule -> outcomes.
    """
    print(f"\n{title}\n\n| rule | worse on test % | missed % | WER % | {' | '.join(outcomes)} |")
    print("|" + "---|" * (4 + len(outcomes)))
    rules = {rule: "chosen" for rule in RULES}
    for rule, field in {"as it came": "first", **rules}.items():
        rows = [group[rule if rule in RULES else next(iter(RULES))] for group in outcomes.values()]
        every = [o for row in rows for o in row]
        cells = shares(every) if rule in RULES else ["", ""]
        cells += [rate(row, field) for row in (every, *rows)]
        print(f"| {rule} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lists", nargs="+", help="LISTS[,LISTS]: each argument is one set")
    parser.add_argument("--ngram", action="append", default=[], help="An ARPA file (repeatable)")
    parser.add_argument("--sizes", default="50,100,200,400", help="Lists to tune on, with commas")
    parser.add_argument("--splits", type=int, default=20, help="Random splits of each size")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    by_source: Dict[str, Dict[str, List[Outcome]]] = defaultdict(lambda: defaultdict(list))
    by_size: Dict[str, Dict[str, List[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for paths in args.lists:
        lists = read_set(paths)
        for source, scores in lm_scores(lists.nbests, args.ngram).items():
            for size, rules in study_set(lists, scores, sizes, range(args.splits)).items():
                for rule, found in rules.items():
                    by_source[source][rule] += found
                    by_size[f"{size} lists"][rule] += found
    print_table("By the LM's score", by_source)
    print_table("By the number of tuning lists", by_size)


if __name__ == "__main__":
    main()
