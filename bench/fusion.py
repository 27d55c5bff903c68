"""Speed of word-level fusion over the search without an LM, and over rescoring of its lists.

    python bench/fusion.py --asr_exp exp/asr --audio data/dev/wav.scp --fusion exp/fusion_tuned

Seconds are of the CPU, one thread, for each utterance; recordings are decoded in turn by each way,
so that all see the same machine. "alone + lists" is the search without an LM, then ln P of its 20
best by the LMs of the fusion. "steps" are those of the search: a search with an LM may end later.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch

from espnet_bayeslm.bin.nbest import find_recordings, read_samples
from espnet_bayeslm.recognisers.espnet_asr import BeamSearch
from espnet_bayeslm.utils.files import read_yaml_mapping

LISTS = 20


class Clock:
    """Sums of CPU seconds, and of steps of a search, by name."""

    def __init__(self) -> None:
        self.seconds: Dict[str, float] = {}
        self.steps: Dict[str, int] = {}

    def __call__(self, name: str, function: Callable[[], Any]) -> Any:
        """Return what a function returns, and count its seconds."""
        start = time.process_time()
        found = function()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start
        return found

    def count_steps(self, name: str, search: Any) -> None:
        """Count the steps of one of ESPnet's searches."""
        step = search.search

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.steps[name] = self.steps.get(name, 0) + 1
            return step(*args, **kwargs)

        search.search = counted


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
            found[f"{Path(folder).name}, interval {interval}"] = search
    return BeamSearch(args.asr_exp, lm_weight=0.0, **how), found


def main() -> None:
    """Measure each fusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asr_exp", required=True, help="The recogniser")
    parser.add_argument("--audio", required=True, help="Recordings: a wav.scp or a folder")
    parser.add_argument("--fusion", action="append", required=True, help="A fusion (repeatable)")
    parser.add_argument("--interval", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--beam_size", type=int, default=10)
    parser.add_argument("--utterances", type=int, default=15)
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
    for samples in recordings:
        found = clock("alone", lambda x=samples: alone.with_tokens(x))
        for name, search in fused.items():
            clock(name, lambda x=samples, search=search: search(x))
            texts = [*found][:LISTS]
            clock(f"{name}: lists", lambda lm=search.lm, texts=texts: lm.text_log_probs(texts))
    count, seconds = len(recordings), clock.seconds
    print(f"{'':32} {'s':>6} {'/ alone':>8} {'/ alone + lists':>16} {'steps':>6}")
    for name in ("alone", *fused):
        of_lists = seconds.get(f"{name}: lists")
        ratio = "" if of_lists is None else f"{seconds[name] / (seconds['alone'] + of_lists):.2f}"
        of_alone = seconds[name] / seconds["alone"]
        steps = clock.steps[name] / count
        print(f"{name:32} {seconds[name] / count:6.2f} {of_alone:8.2f} {ratio:>16} {steps:6.1f}")


if __name__ == "__main__":
    main()
