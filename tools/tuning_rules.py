"""Which rule keeps a gain of tuning: random tuning sets of rescored lists, errors on the rest.

    python tools/tuning_rules.py FOLDER=REF FOLDER=REF ... > table

FOLDER is an output of `bayeslm rescore`, REF its references. Of each set, SIZES lists tune and the
others test, DRAWS times. The rules are today's (a gain above one standard error on held-out lists),
the same with other numbers of standard errors, and a floor: one more candidate has no weight to be
tuned, but the mean of the weights, in units of spread, that the other folders gave on all their
lists.

The rule of this comparison, written before it was run: another rule takes the place of today's if
its mean WER over all folders, sizes and draws is lower by .05 points or more, and if in no folder
the share of draws with more test errors than the first pass grows by more than five points.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.transcripts import read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.rescoring import feature_tuning as tuning
from espnet_bayeslm.rescoring.features import LM, Features, hypothesis_features, is_normalised
from espnet_bayeslm.rescoring.tuning import hypothesis_errors
from espnet_bayeslm.utils.files import read_keyed_lines

SIZES, DRAWS = (40, 80, 160, 320), 20
SURE = (0.0, 0.5, 1.0, 1.5)
TODAY = "1 standard error"
FLOOR: tuple = (("am_score",), (LM,), ("words",))


class Lists(NamedTuple):
    """Features and word errors of the hypotheses of a folder's lists."""

    name: str
    features: List[Features]
    errors: List[np.ndarray]
    words: np.ndarray


def read_folder(folder: str, ref: str) -> Lists:
    """Lists that a folder's LM has scored."""
    nbests = list(read_nbest(folder))
    costs: Dict[str, List[float]] = {}
    for key, (_, line) in read_keyed_lines(Path(folder) / "lmwt.nn").items():
        costs.setdefault(key.rpartition("-")[0], []).append(-float(line))
    refs = read_transcripts(ref)
    features = [hypothesis_features(item, {LM: np.array(costs[item.utt])}) for item in nbests]
    errors = hypothesis_errors(nbests, {item.utt: refs[item.utt] for item in nbests})
    words = np.array([len(refs[item.utt]) for item in nbests])
    return Lists("/".join(Path(folder).parts[-3:]), features, errors, words)


def validated(lists: Lists, places: np.ndarray) -> tuning.Validated:
    """Candidates on some of the lists."""
    features = [lists.features[k] for k in places]
    how: Any = dict(normalised_scores=is_normalised(features))
    groups = [str(k) for k in places]
    return tuning.validate(features, [lists.errors[k] for k in places], groups=groups, **how)


def floor_of(lists: Lists) -> Dict[str, float]:
    """Weights of score, LM and length on all lists, in units of spread."""
    every = validated(lists, np.arange(len(lists.errors)))
    name = next(name for name, own in every.sets.items() if own == FLOOR)
    weights = every.weights[name]
    return dict(zip((column[0] for column in FLOOR), weights, strict=True))


def errors_of(every: tuning.Validated, weights: Dict[str, float], lists: Lists, test: Any) -> int:
    """Test errors of weights, those of the first pass where they are worse on the tuning lists."""
    first = sum(int(counts[0]) for counts in every.errors)
    if tuning.chosen_errors(every.lists, every.errors, weights) > first:
        weights = dict(tuning.FIRST_WINS)
    own = [lists.features[k] for k in test], [lists.errors[k] for k in test]
    return tuning.chosen_errors(*own, weights)


def rules(every: tuning.Validated, floor: Dict[str, float]) -> Dict[str, Dict[str, float]]:
    """Weights that each rule keeps."""
    first, held = dict(tuning.FIRST_WINS), dict(every.held_out)
    found = {"never": first}
    spreads = every.problem.columns(FLOOR).spreads
    fixed = {n: w / s for (n, w), s in zip(floor.items(), spreads, strict=True)}
    problem = every.problem.columns(FLOOR)
    held["floor"] = problem.list_errors(np.array([*floor.values()]))

    def kept(names: Sequence[str], sure: float) -> str:
        best = min(names, key=lambda name: held[name].sum())
        gains = held[tuning.AS_IT_CAME] - held[best]
        error = np.sqrt(len(gains)) * gains.std(ddof=1)
        return best if gains.sum() > sure * error else tuning.AS_IT_CAME

    def weights(name: str) -> Dict[str, float]:
        if name == "floor":
            return fixed
        return first if name == tuning.AS_IT_CAME else dict(every.tuned(name).weights)

    for sure in SURE:
        found[f"{sure:g} standard error"] = weights(kept([*every.held_out], sure))
        found[f"{sure:g}, floor"] = weights(kept([*every.held_out, "floor"], sure))
        # tuned weights must be sure, those of other sets need only not be worse
        sure_one = kept([*every.held_out], sure)
        name = sure_one if sure_one != tuning.AS_IT_CAME else kept([sure_one, "floor"], 0.0)
        found[f"{sure:g}, else floor"] = weights(name)
    return found


def compared(every: Sequence[Lists]) -> Dict[str, Dict[Tuple[str, int], List[Tuple[float, bool]]]]:
    """Rule -> folder and size -> WER in %, and if it is above the first pass's, of each draw."""
    floors = [floor_of(lists) for lists in every]
    found: Dict[str, Dict[Tuple[str, int], List[Tuple[float, bool]]]] = {}
    for k, lists in enumerate(every):
        # a set's own lists, scored by another LM, are no other set
        others = [f for f, o in zip(floors, every, strict=True) if len(o.words) != len(lists.words)]
        floor = {name: float(np.mean([f[name] for f in others])) for name in floors[k]}
        rng = np.random.default_rng(0)
        for size in SIZES:
            for _ in range(DRAWS if size < 0.8 * len(lists.words) else 0):
                order = rng.permutation(len(lists.words))
                tune, test = np.sort(order[:size]), order[size:]
                first = sum(int(lists.errors[n][0]) for n in test)
                candidates = validated(lists, tune)
                for rule, weights in rules(candidates, floor).items():
                    errors = errors_of(candidates, weights, lists, test)
                    row = 100 * errors / int(lists.words[test].sum()), errors > first
                    found.setdefault(rule, {}).setdefault((lists.name, size), []).append(row)
    return found


def main() -> None:
    """Print a row for each rule: mean WER, by size, and the share of draws that are worse."""
    found = compared([read_folder(*word.rsplit("=", 1)) for word in sys.argv[1:]])
    folders = list(dict.fromkeys(folder for folder, _ in found[TODAY]))
    heads = [*(f"{n} lists" for n in SIZES), *(f"worse, {f} %" for f in folders)]
    print("| rule | WER % |", " ".join(f"{head} |" for head in heads))
    print("|---|" + "---:|" * (1 + len(SIZES) + len(folders)))
    for rule, cells in found.items():
        rows = [row for own in cells.values() for row in own]
        figures = [np.mean([wer for wer, _ in rows])]
        for size in SIZES:
            own = [wer for (_, n), draws in cells.items() if n == size for wer, _ in draws]
            figures.append(np.mean(own) if own else np.nan)
        for folder in folders:
            worse = [w for (f, _), draws in cells.items() if f == folder for _, w in draws]
            figures.append(100 * np.mean(worse))
        print(f"| {rule} |", " ".join(f"{figure:.2f} |" for figure in figures))


if __name__ == "__main__":
    main()
