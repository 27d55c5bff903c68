"""WER and CPU time of rescoring lattices, beside that of rescoring the 20 and 100 best of each.

LMWT and word penalty are tuned on the development lists, for 20 and 100 best apart; lattices take
those of 100. The LM and the n-gram are mixed half and half. Times are CPU seconds of this process,
a sentence; lattices are read in the time of `reading`.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from espnet_bayeslm.evaluation.wer import NO_WORDS, read_transcripts, word_errors
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.nbest.htk import read_lattice
from espnet_bayeslm.nbest.lattice import PathScales, best_paths, kaldi_scales, oracle_words
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.scoring.lattices import MERGING, rescore_lattices
from espnet_bayeslm.scoring.neural import NeuralScorer

Words = Tuple[str, ...]
LMWTS = (4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 28)
PENALTIES = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)


def mix(log_probs: np.ndarray) -> np.ndarray:
    """Return the scores of the components in equal parts, (n,), from (K, n)."""
    return np.logaddexp.reduce(log_probs - np.log(len(log_probs)), axis=0)


def read_lists(path: Path, num: int) -> List[NBest]:
    """Return `num` of the lists, evenly spread; all where there are no more."""
    lists = list(read_nbest(path, "jsonl"))
    return lists[:: max(1, len(lists) // num)][:num]


def features(lists: List[NBest], scorers: List[Any]) -> List[np.ndarray]:
    """Return (acoustic score, ln P, number of words) of each hypothesis, (n, 3) a list."""
    words = [hyp.words for nbest in lists for hyp in nbest.hypotheses]
    found = zip(*(scorer.word_scores(words) for scorer in scorers), strict=True)
    log_probs = (mix(np.stack([s.log_probs for s in scores])).sum() for scores in found)
    return [
        np.array([(hyp.am_score, next(log_probs), len(hyp.words)) for hyp in nbest.hypotheses])
        for nbest in lists
    ]


def best(lists: List[NBest], rows: List[np.ndarray], scales: PathScales) -> Dict[str, Words]:
    """Return the best words of each list."""
    weights = scales.am, 1.0, scales.word
    return {
        nbest.utt: nbest.hypotheses[int(np.argmax(row @ weights))].words
        for nbest, row in zip(lists, rows, strict=True)
    }


def tune(lists: List[NBest], rows: List[np.ndarray], refs: Dict[str, Any]) -> PathScales:
    """Return the scales of the fewest word errors."""
    errors = [
        np.array([word_errors(refs[nbest.utt], hyp.words).errors for hyp in nbest.hypotheses])
        for nbest in lists
    ]

    def count(scales: PathScales) -> int:
        weights = scales.am, 1.0, scales.word
        return sum(e[int(np.argmax(row @ weights))] for e, row in zip(errors, rows, strict=True))

    grid = itertools.product(LMWTS, PENALTIES)
    return min((kaldi_scales(lmwt, penalty) for lmwt, penalty in grid), key=count)


def timed(function: Callable[[], Any]) -> Tuple[Any, float]:
    """Return a result, and the CPU seconds that it took."""
    start = time.process_time()
    result = function()
    return result, time.process_time() - start


def main() -> None:
    """Print a row for each way of rescoring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lm", required=True, help="Folder of the LM")
    parser.add_argument("--ngram", required=True, help="ARPA file")
    parser.add_argument("--dev", required=True, type=Path, help="100-best lists, jsonl")
    parser.add_argument("--dev_ref", required=True, type=Path)
    parser.add_argument("--test", required=True, type=Path, help="100-best lists, jsonl")
    parser.add_argument("--test_ref", required=True, type=Path)
    parser.add_argument("--lattices", required=True, type=Path, help="UTT.lat of the test lists")
    parser.add_argument("--num", type=int, default=60, help="Sentences of each set, at most")
    parser.add_argument(
        "--options", nargs="*", default=[], help="More of them: ORDER,BEAM,PRUNE,MAX_HYPS"
    )
    args = parser.parse_args()
    scorers = [NeuralScorer(load_lm(args.lm)), NgramScorer(args.ngram)]
    dev, test = (read_lists(path, args.num) for path in (args.dev, args.test))
    dev_refs, refs = read_transcripts(args.dev_ref), read_transcripts(args.test_ref)

    def show(name: str, hyps: Dict[str, Words], seconds: float) -> None:
        counts = sum((word_errors(refs[utt], words) for utt, words in hyps.items()), NO_WORDS)
        rate = f"{100 * counts.rate:6.2f} ({counts.errors}/{counts.words})"
        print(f"{name:40s} {rate} {1000 * seconds / len(hyps):9.1f} ms", flush=True)

    print(f"{len(dev)} lists for tuning, {len(test)} sentences tested")
    show("first pass", {nbest.utt: nbest.hypotheses[0].words for nbest in test}, 0.0)
    rows = features(dev, scorers)
    for size in (20, 100):
        short = [NBest(nbest.utt, nbest.hypotheses[:size]) for nbest in dev]
        scales = tune(short, [row[:size] for row in rows], dev_refs)
        cut = [NBest(nbest.utt, nbest.hypotheses[:size]) for nbest in test]
        found, seconds = timed(lambda cut=cut, s=scales: best(cut, features(cut, scorers), s))
        show(f"{size} best, LMWT {1 / scales.am:g}, penalty {-scales.word:g}", found, seconds)
    paths = [args.lattices / f"{nbest.utt}.lat" for nbest in test]
    lattices, seconds = timed(lambda: [read_lattice(path) for path in paths])
    oracle = {item.utt: oracle_words(item, refs[item.utt]) for item in lattices}
    show("oracle of the lattices; reading", oracle, seconds)
    for text in ["default", *args.options]:
        options = MERGING
        if text != "default":
            order, beam, prune, max_hyps = text.split(",")
            options = MERGING._replace(
                order=int(order), beam=float(beam), prune=float(prune), max_hyps=int(max_hyps)
            )

        def rescored(options: Any = options) -> Dict[str, Words]:
            every = rescore_lattices(lattices, scorers, mix, scales=scales, options=options)
            return {item.utt: best_paths(item, scales, 1)[0].words for item in every}

        found, seconds = timed(rescored)
        numbers = f"{options.order}, {options.beam:g}, {options.prune:g}, {options.max_hyps}"
        show(f"lattice, options {numbers}", found, seconds)


if __name__ == "__main__":
    main()
