#!/usr/bin/env python3
"""N-best lists as Kaldi archives: sentences spoken by Pico, recognised by PocketSphinx.

Writes OUTPUT_VOICE/{words_text,acwt,lmwt.nolm,lmwt.withlm,text} for each voice: acoustic costs
from the recogniser's lattice, LM costs by the first-pass n-gram. Finished parts are kept in the
work folder, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import json
import logging
import random
from pathlib import Path
from typing import Container, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import speech

from espnet_bayeslm.nbest.formats import write_nbest
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.ngram.ngram_files import arpa_words
from espnet_bayeslm.recognisers import pocketsphinx
from espnet_bayeslm.recognisers.pocketsphinx import (
    SphinxSearch,
    cmudict,
    with_lm_scores,
    write_dictionary,
)
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.cli import Tool, progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, read_keyed_lines
from espnet_bayeslm.utils.folders import staged

Sentences = List[Tuple[str, List[str]]]
CHUNK = 20  # sentences of a part: what a stopped run loses, at most, in each process


def select_sentences(
    text: PathLike, pronounced: Container[str], *, num: int, length: Tuple[int, int], seed: int
) -> Sentences:
    """Return `num` sentences drawn at random, in their order.

    Args:
        text: Kaldi text.
        pronounced: The words that have a pronunciation; a sentence needs one for each word.
        num: Number of sentences; all if there are fewer.
        length: Words of the shortest and of the longest sentence taken.
        seed: Of the draw.
    """
    sentences = [(utt, words.split()) for utt, (_, words) in read_keyed_lines(text).items()]
    shortest, longest = length
    fitting = [
        (utt, words)
        for utt, words in sentences
        if shortest <= len(words) <= longest and all(word in pronounced for word in words)
    ]
    if not fitting:
        raise InputError(
            f"none of {len(sentences)} sentences has {shortest} to {longest} words with"
            " pronunciations"
        )
    if len(fitting) < num:
        logging.warning(f"{len(fitting)} sentences fit, {num} were asked for")
    return sorted(random.Random(seed).sample(fitting, min(num, len(fitting))))


def work_folder(root: Path, lm: Path, sentences: Sentences, size: int) -> Path:
    """Return the folder of finished parts: another one for other LMs, texts, sizes, settings."""
    programs = [Path(module.__file__).read_bytes() for module in (speech, pocketsphinx)]
    digest = hashlib.sha256(b"".join([lm.read_bytes(), *programs]))
    digest.update(json.dumps([sentences, size, CHUNK]).encode())
    return root / digest.hexdigest()[:16]


@functools.cache
def _recogniser(lm: Path, dictionary: Path, size: int) -> SphinxSearch:
    """Return this process's recogniser."""
    return SphinxSearch(lm, dictionary, size=size)


def recognise(
    part: Path, voice: str, sentences: Sentences, lm: Path, dictionary: Path, size: int
) -> int:
    """Speak and recognise some sentences, write their hypotheses to `part`; return how many."""
    decoder = _recogniser(lm, dictionary, size)
    with atomic_write(part) as f:
        for utt, words in sentences:
            hypotheses = decoder.decode(speech.speak(voice, words))
            f.write(json.dumps([f"{voice}_{utt}", hypotheses]) + "\n")
    return len(sentences)


def read_parts(parts: Sequence[Path]) -> Iterator[Tuple[str, List[Tuple[List[str], float]]]]:
    """Yield (utterance, [(words, acoustic score)]) of finished parts."""
    for part in parts:
        for line in part.read_text().splitlines():
            utt, hypotheses = json.loads(line)
            yield utt, hypotheses


def write_lists(
    output: Path, parts: Sequence[Path], references: Sentences, scorer: NgramScorer
) -> None:
    """Write the archive of one voice: its finished parts, LM costs, references as `text`."""
    nbests = [NBest(utt, with_lm_scores(found, scorer)) for utt, found in read_parts(parts)]
    with staged(output) as folder:
        write_nbest(nbests, folder)
        lines = (" ".join([utt, *words]) for utt, words in references)
        (folder / "text").write_text("\n".join(lines) + "\n")
    num_hypotheses = sum(len(nbest.hypotheses) for nbest in nbests)
    num_empty = sum(not nbest.hypotheses[0].words for nbest in nbests)
    logging.info(
        f"{output}: {len(nbests)} utterances, {num_hypotheses / len(nbests):.1f} hypotheses each,"
        f" {num_empty} without a result"
    )


def run_parts(tasks: Sequence[Tuple[Path, str, Sentences]], nj: int, **options) -> None:
    """Do the parts that are not there yet, on `nj` processes."""
    missing = [task for task in tasks if not task[0].exists()]
    total = sum(len(task[2]) for task in missing)
    with (
        concurrent.futures.ProcessPoolExecutor(nj) as pool,
        progress(desc="speak and recognise", unit="utt", total=total) as bar,
    ):
        futures = [pool.submit(recognise, *task, **options) for task in missing]
        for future in concurrent.futures.as_completed(futures):
            try:
                bar.update(future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def recognised(
    spoken: Mapping[str, Sentences], folder: Path, lm: Path, *, size: int, nj: int
) -> Dict[str, List[Path]]:
    """Return {voice: its finished parts} of what the voices speak.

    Args:
        spoken: {voice: its sentences}.
        folder: The work folder, see `work_folder`.
        lm: First-pass n-gram, ARPA.
        size: Hypotheses per utterance, at most.
        nj: Number of processes.
    """
    dictionary = folder / "dictionary"
    num_words = write_dictionary(dictionary, arpa_words(lm))
    logging.info(f"{num_words} words to recognise, work in {folder}")
    tasks = {
        voice: [
            (folder / f"{voice}_{n:04d}", voice, sentences[n * CHUNK : (n + 1) * CHUNK])
            for n in range(-(-len(sentences) // CHUNK))
        ]
        for voice, sentences in spoken.items()
    }
    every = [task for each in tasks.values() for task in each]
    run_parts(every, nj, lm=lm, dictionary=dictionary, size=size)
    return {voice: [part for part, *_ in each] for voice, each in tasks.items()}


def make_lists(
    text: str,
    lm: str,
    output: str,
    voice: Sequence[str],
    num_sentences: int,
    min_words: int,
    max_words: int,
    nbest: int,
    nj: int,
    seed: int,
    work: str,
) -> None:
    """Write OUTPUT_VOICE for each voice."""
    length = (min_words, max_words)
    sentences = select_sentences(text, cmudict(), num=num_sentences, length=length, seed=seed)
    folder = work_folder(Path(work), Path(lm), sentences, nbest)
    found = recognised(dict.fromkeys(voice, sentences), folder, Path(lm), size=nbest, nj=nj)
    scorer = NgramScorer(lm)
    for v, parts in found.items():
        references = [(f"{v}_{utt}", words) for utt, words in sentences]
        write_lists(Path(f"{output}_{v}"), parts, references, scorer)


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Make the lists."""
    tool = Tool("nbest", __doc__.splitlines()[0], make_lists)
    parser = tool.parser()
    parser.prog = "local/nbest.py"
    parser.add_argument("--text", required=True, help="Kaldi text to draw the sentences from")
    parser.add_argument("--lm", required=True, help="First-pass n-gram, ARPA")
    parser.add_argument("--output", required=True, help="_VOICE is added to it")
    parser.add_argument(
        "--voice", nargs="+", choices=sorted(speech.VOICES), default=["us", "gb"], help="Voices"
    )
    parser.add_argument("--num_sentences", type=int, default=300, help="Sentences per voice")
    parser.add_argument("--min_words", type=int, default=3, help="Shortest sentence")
    parser.add_argument("--max_words", type=int, default=30, help="Longest sentence")
    parser.add_argument("--nbest", type=int, default=20, help="Hypotheses per utterance, at most")
    parser.add_argument("--nj", type=int, default=2, help="Number of processes")
    parser.add_argument("--seed", type=int, default=1, help="Of the draw of the sentences")
    parser.add_argument("--work", default="data/local/nbest", help="Where finished parts are kept")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
