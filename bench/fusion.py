"""Speed of word-level fusion over the search without an LM, and over rescoring of its lists.

    python bench/fusion.py --asr_exp exp/asr --audio data/dev/wav.scp --fusion exp/fusion_tuned

A row is of a fusion and an `--interval`.

Seconds are of the CPU, one thread, for each utterance, the median of some rounds; recordings are
decoded in turn by each way, so that all see the same machine. "alone + lists" is the search without
an LM, then ln P of its 20 best by the LMs of the fusion. "steps" are those of the search: a search
with an LM may end later.
"paid" are words and ends that the LMs score in it, "calls" the steps in which they score any.

Bias lists hold words of random letters: one list of ten phrases, one of 10,000, one of 100, and
the same list that each utterance has for itself. "/ 10" is the time of a step over that with ten.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch

from espnet_bayeslm.bin.nbest import find_recordings, read_samples
from espnet_bayeslm.decoding.fusion_export import bias_fusion
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.recognisers.espnet_asr import BeamSearch
from espnet_bayeslm.utils.files import read_yaml_mapping

LISTS = 20


class Clock:
    """CPU seconds of recordings, and sums of steps and of paid words of a search, by name."""

    def __init__(self) -> None:
        self.times: Dict[str, Dict[int, List[float]]] = {}
        self.steps: Dict[str, int] = {}
        self.calls: Dict[str, int] = {}
        self.words: Dict[str, int] = {}

    def __call__(self, name: str, recording: int, function: Callable[[], Any]) -> Any:
        """Return what a function returns, and count its seconds for a recording."""
        start = time.process_time()
        found = function()
        times = self.times.setdefault(name, {}).setdefault(recording, [])
        times.append(time.process_time() - start)
        return found

    @property
    def seconds(self) -> Dict[str, float]:
        """Mean over recordings of the median over rounds, by name."""
        return {
            name: statistics.mean(map(statistics.median, times.values()))
            for name, times in self.times.items()
        }

    def count_steps(self, name: str, search: Any) -> None:
        """Count the steps of one of ESPnet's searches."""
        step = search.search

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.steps[name] = self.steps.get(name, 0) + 1
            return step(*args, **kwargs)

        search.search = counted

    def count_words(self, name: str, mixture: Any) -> None:
        """Count the words that a mixture pays, and the calls that pay them."""
        next_words = mixture.next_words
        self.calls[name] = self.words[name] = 0

        def counted(states: Any, words: Any) -> Any:
            self.calls[name] += 1
            self.words[name] += len(words)
            return next_words(states, words)

        mixture.next_words = counted


def searches(args: argparse.Namespace) -> Tuple[BeamSearch, Dict[str, BeamSearch]]:
    """Return the search without an LM, and that with each fusion."""
    how = {"ctc_weight": 0.3, "size": args.beam_size}
    found = {}
    for folder in args.fusion:
        weights: Dict[str, Any] = {"lm_weight": 0.4, "penalty": 1.0}
        if (Path(folder) / "decode.yaml").exists():
            tuned = read_yaml_mapping(Path(folder) / "decode.yaml")
            weights = {name: tuned[name] for name in weights}
        for interval in args.interval:
            search = BeamSearch(args.asr_exp, lm=folder, **weights, **how)
            search.lm.payments.interval = interval
            found[f"{Path(folder).name}, {interval}"] = search
    return BeamSearch(args.asr_exp, lm_weight=0.0, **how), found


def bias_lists(search: BeamSearch, count: int) -> Dict[str, List[BiasList]]:
    """Return bias lists of each utterance by name."""
    rng, texts = random.Random(0), search.lm.payments.spelled.texts
    letters = sorted({letter for text in texts for letter in text if letter.isalpha()})

    def words(size: int) -> BiasList:
        names = ("".join(rng.choices(letters, k=rng.randint(5, 10))) for _ in range(size))
        return BiasList((name, None) for name in names)

    found = {f"bias, {size}": [words(size)] * count for size in (10, 10_000, 100)}
    same = found["bias, 100"][0].weights.items()
    return {**found, "bias, 100, each its own": [BiasList(same) for _ in range(count)]}


def measure_bias(args: argparse.Namespace, recordings: List[Any], rounds: int) -> None:
    """Print seconds of a search, and milliseconds of its steps, with bias lists alone."""
    clock, searches = Clock(), {}
    with bias_fusion(args.asr_exp) as folder:
        how = {"ctc_weight": 0.3, "size": args.beam_size, "lm_weight": 1.0}
        first = BeamSearch(args.asr_exp, lm=folder, **how)
        lists = bias_lists(first, len(recordings))
        for name in lists:
            searches[name] = BeamSearch(args.asr_exp, lm=folder, **how)
            searches[name](recordings[0], lists[name][0])
            clock.count_steps(name, searches[name]._search.beam_search)
    for _ in range(rounds):
        for n, samples in enumerate(recordings):
            for name, search in searches.items():
                clock(name, n, lambda x=samples, s=search, b=lists[name][n]: s(x, b))
    count, totals = rounds * len(recordings), clock.seconds
    each = {name: totals[name] * count / clock.steps[name] for name in searches}
    for name, seconds in each.items():
        ratio, total = seconds / each["bias, 10"], totals[name]
        print(f"{name:32} {total:6.2f} s, {1000 * seconds:6.2f} ms a step, / 10: {ratio:.3f}")


def main() -> None:
    """Measure each fusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asr_exp", required=True, help="The recogniser")
    parser.add_argument("--audio", required=True, help="Recordings: a wav.scp or a folder")
    parser.add_argument("--fusion", action="append", default=[], help="A fusion (repeatable)")
    parser.add_argument("--interval", type=int, nargs="+", default=[1])
    parser.add_argument("--beam_size", type=int, default=10)
    parser.add_argument("--utterances", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bias_rounds", type=int, default=3, help="0: no bias lists")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    alone, fused = searches(args)
    paths = [*find_recordings(args.audio).values()]
    paths = paths[:: max(len(paths) // args.utterances, 1)][: args.utterances]
    recordings: List[Any] = [read_samples(path) for path in paths]
    for search in (alone, *fused.values()):
        search(recordings[0])  # the first one differs from all others
    clock = Clock()
    for name, search in (("alone", alone), *fused.items()):
        clock.count_steps(name, search._search.beam_search)
        if search.lm is not None:
            clock.count_words(name, search.lm._mixture())
    for n, samples in [*enumerate(recordings)] * args.rounds:
        found = clock("alone", n, lambda x=samples: alone.with_tokens(x))
        for name, search in fused.items():
            clock(name, n, lambda x=samples, search=search: search(x))
            texts, lists = [*found][:LISTS], f"{name}: lists"
            clock(lists, n, lambda lm=search.lm, texts=texts: lm.text_log_probs(texts))
    count, seconds = args.rounds * len(recordings), clock.seconds
    header = f"{'':32} {'s':>6} {'/ alone':>8} {'/ alone + lists':>16}"
    print(header + f" {'steps':>6} {'calls':>6} {'paid':>6}")
    for name in ("alone", *fused):
        of_lists = seconds.get(f"{name}: lists")
        ratio = "" if of_lists is None else f"{seconds[name] / (seconds['alone'] + of_lists):.2f}"
        of_alone = seconds[name] / seconds["alone"]
        numbers = [own.get(name, 0) / count for own in (clock.steps, clock.calls, clock.words)]
        shown = " ".join(f"{number:6.1f}" for number in numbers)
        print(f"{name:32} {seconds[name]:6.2f} {of_alone:8.2f} {ratio:>16} {shown}")
    if args.bias_rounds:
        measure_bias(args, recordings, args.bias_rounds)


if __name__ == "__main__":
    main()
