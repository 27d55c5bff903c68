#!/usr/bin/env python3
"""Sentences of the presidents' addresses, spoken by Pico in noise, as Kaldi data folders.

Writes OUTPUT/{train,dev,test}/{wav.scp,text,utt2spk,spk2utt} and flac files beside them. Short
sentences only: a recogniser learns them in hours on one CPU core. The noise is babble (other
sentences, spoken at the same time) at a signal-to-noise ratio that is drawn for each sentence.
Files that are there are kept, so that a run that was stopped goes on.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import random
import sys
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import numpy as np
import soundfile

LM_RECIPE = Path(__file__).resolve().parents[2] / "lm"
sys.path[:0] = [str(LM_RECIPE / "local"), str(LM_RECIPE.parents[1] / "TEMPLATE" / "lm")]
import data as text_data  # noqa: E402
import speech  # noqa: E402

from espnet_bayeslm.utils.cli import Tool, progress  # noqa: E402
from espnet_bayeslm.utils.files import atomic_write  # noqa: E402
from espnet_bayeslm.utils.folders import staged  # noqa: E402

Utterance = Tuple[str, List[str]]
BABBLE = 4  # voices of the noise
TASKS = 50  # sentences of a task of a process


@functools.lru_cache(maxsize=256)
def spoken(voice: str, words: Tuple[str, ...]) -> np.ndarray:
    """Samples of some words, (T,) float32."""
    return np.frombuffer(speech.speak(voice, words), np.int16).astype(np.float32) / 2**15


def with_babble(samples: np.ndarray, others: Sequence[Utterance], snr: float, rng) -> np.ndarray:
    """Samples with other sentences behind them, `snr` in dB, (T,)."""
    noise = np.zeros_like(samples)
    for _, words in others:
        voice = spoken(rng.choice(sorted(speech.VOICES)), tuple(words))
        start = rng.randrange(len(voice))
        noise += np.resize(np.roll(voice, -start), len(samples))
    noise *= np.sqrt((samples**2).mean() / ((noise**2).mean() * 10 ** (snr / 10)))
    mixed = samples + noise
    return mixed / max(1.0, float(np.abs(mixed).max()))


def speak_all(task: Sequence[Tuple[Path, str, Utterance, Sequence[Utterance], float]]) -> int:
    """Write the files of a task; return how many."""
    for path, voice, (utt, words), others, snr in task:
        if path.exists():
            continue
        rng = random.Random(utt)
        samples = with_babble(spoken(voice, tuple(words)), others, snr, rng)
        temporary = path.with_suffix(".part")
        soundfile.write(temporary, samples, speech.RATE, format="FLAC", subtype="PCM_16")
        temporary.rename(path)
    return len(task)


def choose(utterances: Sequence[Utterance], *, num: int, most_words: int) -> List[Utterance]:
    """Some sentences of 3 to `most_words` words, each text once, drawn at random."""
    distinct = {" ".join(words): (utt, words) for utt, words in reversed(utterances)}
    fitting = sorted(u for u in distinct.values() if 3 <= len(u[1]) <= most_words)
    return sorted(random.Random(1).sample(fitting, min(num, len(fitting))))


def snr_of(utt: str, lowest: float, highest: float) -> float:
    """Signal-to-noise ratio of an utterance, uniform between two, the same in each run."""
    number = int(hashlib.sha256(utt.encode()).hexdigest()[:8], 16) / 2**32
    return lowest + (highest - lowest) * number


def prepare(
    output: str, num_train: int, num_test: int, max_words: int, snr: Sequence[float], nj: int
) -> None:
    """Write the sets."""
    sets = text_data.read_sets(0)
    for name in ("train", "dev"):  # all sentences are text for LMs
        with atomic_write(Path(output) / f"lm_{name}.txt") as f:
            f.writelines(" ".join(words) + "\n" for _, words in sets[name])
    numbers = {"train": num_train, "dev": num_test, "test": num_test}
    noise = choose(sets["train"], num=2000, most_words=20)
    for name, utterances in sets.items():
        chosen = choose(utterances, num=numbers[name], most_words=max_words)
        folder = Path(output).resolve() / "audio" / name
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for number, (utt, words) in enumerate(chosen):
            voice = sorted(speech.VOICES)[number % len(speech.VOICES)]
            utt = f"{voice}_{utt}"
            others = random.Random(utt).sample(noise, BABBLE)
            rows.append((folder / f"{utt}.flac", voice, (utt, words), others, snr_of(utt, *snr)))
        tasks = [rows[n : n + TASKS] for n in range(0, len(rows), TASKS)]
        with (
            concurrent.futures.ProcessPoolExecutor(nj) as pool,
            progress(desc=f"speak {name}", unit="utt", total=len(rows)) as bar,
        ):
            for count in pool.map(speak_all, tasks):
                bar.update(count)
        rows.sort(key=lambda row: row[2][0])
        with staged(Path(output) / name) as place:
            for file, column in (
                ("wav.scp", lambda row: row[0]),
                ("text", lambda row: " ".join(row[2][1])),
                ("utt2spk", lambda row: row[1]),
            ):
                lines = (f"{row[2][0]} {column(row)}\n" for row in rows)
                (place / file).write_text("".join(lines), encoding="utf-8")
            speakers = {v: [r[2][0] for r in rows if r[1] == v] for v in sorted(speech.VOICES)}
            lines = (f"{v} {' '.join(utts)}\n" for v, utts in speakers.items())
            (place / "spk2utt").write_text("".join(lines), encoding="utf-8")


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Prepare the data."""
    tool = Tool("data", __doc__.splitlines()[0], prepare)
    parser = tool.parser()
    parser.prog = "local/data.py"
    parser.add_argument("--output", default="data", help="Folder of the sets")
    parser.add_argument("--num_train", type=int, default=9000, help="Sentences to train on")
    parser.add_argument("--num_test", type=int, default=600, help="Sentences of dev and of test")
    parser.add_argument("--max_words", type=int, default=12, help="Words of the longest sentence")
    parser.add_argument(
        "--snr", type=float, nargs=2, default=[5.0, 20.0], help="Range of the noise, in dB"
    )
    parser.add_argument("--nj", type=int, default=2, help="Number of processes")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
