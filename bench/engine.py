"""Speed of `bayeslm rescore` on two workers over that of one process, and the client's memory.

    bench/engine.py --nbest NBEST/eval_us --text TRAIN.txt --work DIR --num_utts 1000 5000

The lists are those of `--nbest` (Kaldi's), repeated under other ids until there are `--num_utts` of
them. Every process has one thread. The LM's training is one step, since the values of weights change
no time. Outputs must be the same bytes. Seconds are those of the whole command, with imports.
"""

from __future__ import annotations

import argparse
import filecmp
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Tuple

FILES = ("words_text", "acwt", "lmwt.nolm", "lmwt.withlm")
# Of one command, after which it tells how much memory its process has taken, in KiB
COMMAND = """
import json, resource, sys
from espnet_bayeslm.bin.bayeslm import main
main(sys.argv[2:])
with open(sys.argv[1], "w") as f:
    json.dump(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, f)
"""
ENGINES = {
    "one process": [],
    "two processes": ["--workers", "2"],
    "two workers of Dask": ["--engine", "dask", "--workers", "2"],
}


def get_parser() -> argparse.ArgumentParser:
    """Parser of the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nbest", type=Path, required=True, help="Lists in Kaldi's form")
    parser.add_argument("--text", type=Path, required=True, help="Text of the LM's words")
    parser.add_argument("--work", type=Path, required=True, help="Folder to write")
    parser.add_argument("--num_utts", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--config", default="bayes_transformer", help="Of the LM")
    parser.add_argument("--size", default="small", help="Of the LM")
    parser.add_argument("--skip", nargs="*", default=[], choices=ENGINES, help="Engines left out")
    return parser


def repeat_lists(nbest: Path, folder: Path, num_utts: int) -> int:
    """Write the lists, again and again under other ids; return the number of hypotheses."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name in FILES:
        lines = (nbest / name).read_text(encoding="utf-8").splitlines()
        groups = itertools.groupby(lines, lambda line: line.split(maxsplit=1)[0].rpartition("-")[0])
        lists = [list(group) for _, group in groups]
        with open(folder / name, "w", encoding="utf-8") as f:
            for n in range(num_utts):
                # the round stands before the id
                chosen = lists[n % len(lists)]
                f.writelines(f"r{n // len(lists):05d}-{line}\n" for line in chosen)
                count += len(chosen) if name == FILES[0] else 0
    return count


def run(words: List[object], log: Path) -> Tuple[float, float]:
    """Run a command line; return its seconds, and the MiB of its first process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin, memory = time.monotonic(), log.with_suffix(".kib")
    command = [sys.executable, "-c", COMMAND, str(memory), *map(str, words)]
    with open(log, "w") as f:
        subprocess.run(command, stdout=f, stderr=f, env=environment, check=True)
    return time.monotonic() - begin, json.loads(memory.read_text()) / 1024


def make_lm(args: argparse.Namespace) -> Path:
    """Folder of an LM, of one step of training."""
    exp: Path = args.work / f"{args.config}_{args.size}"
    if not (exp / "valid.loss.ave.pth").exists():
        valid = args.work / "valid.txt"
        with open(args.text, encoding="utf-8") as f:
            valid.write_text("".join(itertools.islice(f, 20)), encoding="utf-8")
        texts = ["--train_text", args.text, "--valid_text", valid, "--token_type", "word"]
        short = ["--max_epoch", "1", "--num_iters_per_epoch", "1", "--num_workers", "0"]
        short += ["--model_conf", "min_iters_per_epoch=0", "--model_conf", "warmup_epochs=0"]
        how = ["--config", args.config, "--size", args.size, *short]
        run(["train", *texts, *how, "--exp", exp], args.work / "train.log")
    return exp


def main() -> None:
    """Print a table."""
    args = get_parser().parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    lm = make_lm(args)
    print(
        f"{'utterances':>10} {'hypotheses':>10} {'engine':<20} {'s':>8} {'hyp/s':>8} {'x':>5} MiB"
    )
    for num_utts in args.num_utts:
        lists = args.work / f"lists{num_utts}"
        count = repeat_lists(args.nbest, lists, num_utts)
        seconds: Dict[str, float] = {}
        for name, options in ENGINES.items():
            if name in args.skip:
                continue
            output = args.work / f"{name.replace(' ', '_')}{num_utts}"
            words = ["rescore", "--nbest", lists, "--lm", lm, "--lmwt", "11", *options]
            seconds[name], mib = run([*words, "--output", output], output.with_suffix(".log"))
            first = next(iter(seconds))
            other = args.work / f"{first.replace(' ', '_')}{num_utts}"
            _, different, missing = filecmp.cmpfiles(
                output, other, ("lmwt.nn", "text", "words_text"), shallow=False
            )
            assert not different and not missing, (output, other, different, missing)
            print(
                f"{num_utts:>10} {count:>10} {name:<20} {seconds[name]:>8.1f}",
                f"{count / seconds[name]:>8.0f} {seconds[first] / seconds[name]:>5.2f} {mib:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
