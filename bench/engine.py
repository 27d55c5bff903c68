"""Speed of `bayeslm rescore` on two workers over that of one process, and the client's memory.

    bench/engine.py --nbest NBEST/eval_us --text TRAIN.txt --work DIR --num_utts 1000 5000
    bench/engine.py --nbest NBEST/eval_us --text TRAIN.txt --work DIR --num_utts 100000 --tiny

The second one takes a quarter of an hour of two cores that nobody else uses. In the last row a
worker is killed with -9 after a third and after two thirds of the blocks. With the tiny LM the
client, which reads and writes on one of the two cores, takes a third of the time: measure the speed
with an LM of a usual size.

The lists are those of `--nbest` (Kaldi's), repeated under other ids until there are `--num_utts`.
Every process has one thread. The LM's training is one step, since the values of weights change no
time. Outputs must be the same bytes. Seconds are those of the whole command, with imports.

The table has the seconds, the hypotheses a second and the speed over one process. On a machine that
does other work too these are not to be trusted: then look at the seconds of CPU, of all processes
and of the client alone. The last column is the client's memory. DIR/result.json has all of it.
"""

from __future__ import annotations

import argparse
import filecmp
import itertools
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple

from espnet_bayeslm.rescoring.list_worker import BLOCK_SIZE

FILES = ("words_text", "acwt", "lmwt.nolm", "lmwt.withlm")
# Of one command, after which it tells what its process has taken
COMMAND = """
import json, resource, sys
from espnet_bayeslm.bin.bayeslm import main
main(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_SELF)
with open(sys.argv[1], "w") as f:
    json.dump({"mib": used.ru_maxrss / 1024, "cpu": used.ru_utime + used.ru_stime}, f)
"""
ENGINES = {
    "one process": [],
    "two processes": ["--workers", "2"],
    "two workers of Dask": ["--engine", "dask", "--workers", "2"],
    "two, killed twice": ["--engine", "dask", "--workers", "2"],
}
KILLED = "two, killed twice"
# An LM that scores 100,000 lists in minutes
TINY = ["--vocab_size", "2000", "--lm_conf", "att_unit=64", "--lm_conf", "unit=256"]
TINY += ["--lm_conf", "head=4", "--lm_conf", "layer=2"]


def get_parser() -> argparse.ArgumentParser:
    """Parser of the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nbest", type=Path, required=True, help="Lists in Kaldi's form")
    parser.add_argument("--text", type=Path, required=True, help="Text of the LM's words")
    parser.add_argument("--work", type=Path, required=True, help="Folder to write")
    parser.add_argument("--num_utts", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--config", default="bayes_transformer", help="Of the LM")
    parser.add_argument("--size", default="small", help="Of the LM")
    parser.add_argument("--tiny", action="store_true", help="A tiny LM of 2,000 words")
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


class Used(NamedTuple):
    """Seconds of a command, seconds of CPU of all its processes, and of the first, and its MiB."""

    seconds: float
    cpu: float
    client: float
    mib: float


def workers_of(pid: int) -> List[int]:
    """Processes that a process has started, those with the most CPU time first."""
    children = [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]
    return sorted(children, key=cpu_of, reverse=True)


def cpu_of(pid: int) -> int:
    """CPU time of a process in ticks; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def kill_workers(client: subprocess.Popen, blocks: Path, total: int) -> Iterator[int]:
    """Kill a worker after a third and after two thirds of the blocks; yield the blocks kept."""
    for part in (1, 2):
        while client.poll() is None:
            kept = len(list(blocks.glob("*"))) if blocks.exists() else 0
            if 3 * kept >= part * total:
                os.kill(workers_of(client.pid)[0], signal.SIGKILL)
                yield kept
                break
            time.sleep(0.2)


def run(words: List[object], log: Path, *, blocks: Path = Path(), kills: int = 0) -> Used:
    """Run a command line; return what it has used.

    Args:
        words: The command line.
        log: File of its output.
        blocks: Folder of its finished blocks.
        kills: Number of its blocks, if workers are to be killed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin, before = time.monotonic(), cpu_of_children()
    used = log.with_suffix(".used")
    command = [sys.executable, "-c", COMMAND, str(used), *map(str, words)]
    with open(log, "w") as f:
        process = subprocess.Popen(command, stdout=f, stderr=f, env=environment)
        killed = list(kill_workers(process, blocks, kills)) if kills else []
        assert process.wait() == 0, log.read_text()[-2000:]
    assert len(killed) == (2 if kills else 0), killed
    seconds, cpu = time.monotonic() - begin, cpu_of_children() - before
    own = json.loads(used.read_text())
    return Used(seconds, cpu, own["cpu"], own["mib"])


def cpu_of_children() -> float:
    """Seconds of CPU of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def make_lm(args: argparse.Namespace) -> Path:
    """Folder of an LM, of one step of training."""
    exp: Path = args.work / f"{args.config}_{'tiny' if args.tiny else args.size}"
    if not (exp / "valid.loss.ave.pth").exists():
        valid = args.work / "valid.txt"
        with open(args.text, encoding="utf-8") as f:
            valid.write_text("".join(itertools.islice(f, 20)), encoding="utf-8")
        texts = ["--train_text", args.text, "--valid_text", valid, "--token_type", "word"]
        short = ["--max_epoch", "1", "--num_iters_per_epoch", "1", "--num_workers", "0"]
        short += ["--model_conf", "min_iters_per_epoch=0", "--model_conf", "warmup_epochs=0"]
        how = ["--config", args.config, "--size", args.size, *short, *(TINY * args.tiny)]
        run(["train", *texts, *how, "--exp", exp], args.work / "train.log")
    return exp


def main() -> None:
    """Print a table."""
    args = get_parser().parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    lm = make_lm(args)
    rows = []
    columns = ["utts", "hyps", "s", "hyps/s", "speed", "CPU s", "client's", "MiB"]
    print(f"{'':<20}", *(f"{column:>9}" for column in columns))
    for num_utts in args.num_utts:
        lists = args.work / f"lists{num_utts}"
        count = repeat_lists(args.nbest, lists, num_utts)
        found: Dict[str, Used] = {}
        for name in (name for name in ENGINES if name not in args.skip):
            output = args.work / f"{name.replace(' ', '_')}{num_utts}"
            words = ["rescore", "--nbest", lists, "--lm", lm, "--lmwt", "11", *ENGINES[name]]
            blocks = output.with_name(f".{output.name}.blocks")
            kills = -(-count // BLOCK_SIZE) if name == KILLED else 0
            log = output.with_suffix(".log")
            used = run([*words, "--output", output], log, blocks=blocks, kills=kills)
            found[name] = used
            first = next(iter(found))
            other = args.work / f"{first.replace(' ', '_')}{num_utts}"
            names = ("lmwt.nn", "text", "words_text")
            _, different, missing = filecmp.cmpfiles(output, other, names, shallow=False)
            assert not different and not missing, (output, other, different, missing)
            speed = found[first].seconds / used.seconds
            figures = f"{used.seconds:9.1f} {count / used.seconds:9.0f} {speed:9.2f}"
            cpu = f"{used.cpu:9.1f} {used.client:9.1f} {used.mib:9.0f}"
            print(f"{name:<20} {num_utts:9} {count:9} {figures} {cpu}", flush=True)
            row = {"engine": name, "utts": num_utts, "hyps": count, **used._asdict()}
            rows.append({**row, "speed": speed, "same_bytes_as": first, "kills": 2 if kills else 0})
            load = {"cores": os.cpu_count(), "load": os.getloadavg(), "cpu": platform.processor()}
            (args.work / "result.json").write_text(json.dumps([load, *rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
