#!/usr/bin/env python3
"""Data that `bayeslm quickstart` ships: text, and 20-best lists of dev and eval sentences.

From what stages 1 and 2 of run.sh made (`data/{train,dev,test}`, the 3-gram). The voices take
turns from sentence to sentence, so that each is spoken once and the sentences are independent,
as the significance test takes them to be.
"""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import nbest

from espnet_bayeslm.recognisers.pocketsphinx import cmudict, with_lm_scores
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.files import read_lines
from espnet_bayeslm.utils.folders import staged

PACKAGE = Path(__file__).resolve().parents[4] / "espnet_bayeslm" / "workflows" / "quickstart_data"
# Shipped text -> the recipe's: the LMs are validated on sentences without unknown words
TEXTS = {"train": "train/text.plain", "dev": "dev/text.known", "eval": "test/text.plain"}
VOICES = ("us", "gb")


def list_lines(
    hypotheses: Dict[str, List[Tuple[List[str], float]]],
    refs: Dict[str, List[str]],
    scorer: NgramScorer,
) -> Iterator[str]:
    """Yield a JSON line for each utterance: scores in nats, rounded to what two decimals hold."""
    for utt, found in sorted(hypotheses.items()):
        rows = [
            {"text": " ".join(hyp.words), "am_score": hyp.am_score, "lm_score": hyp.lm_score}
            for hyp in with_lm_scores(found, scorer, digits=2)
        ]
        content = {"utt": utt, "ref": " ".join(refs[utt]), "hypotheses": rows}
        yield json.dumps(content, separators=(",", ":"))


def recognised(data: Path, name: str, num: int, nj: int, lm: Path) -> Iterator[str]:
    """Yield the lines of a set's lists; finished parts are kept in data/local/quickstart."""
    text = data / name / "text"
    sentences = nbest.select_sentences(text, cmudict(), num=num, length=(3, 20), seed=1)
    folder = nbest.work_folder(data / "local" / "quickstart", lm, sentences, 20)
    # every second one by each voice
    spoken = {voice: sentences[n :: len(VOICES)] for n, voice in enumerate(VOICES)}
    parts = nbest.recognised(spoken, folder, lm, size=20, nj=nj)
    refs = {f"{v}_{utt}": words for v, mine in spoken.items() for utt, words in mine}
    hypotheses = dict(nbest.read_parts([part for mine in parts.values() for part in mine]))
    yield from list_lines(hypotheses, refs, NgramScorer(lm))


def write_gzip(path: Path, lines: Iterator[str]) -> None:
    """Write lines as gzip without a date, so that the same lines give the same file."""
    text = "".join(line + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    logging.info(f"{path.name}: {path.stat().st_size} bytes")


def make_data(data: str, output: str, num_dev: int, num_eval: int, nj: int) -> None:
    """Write the text and the lists."""
    lm = Path(data) / "local" / "3gram.arpa"
    with staged(output) as folder:
        for name, source in TEXTS.items():
            lines = (line for _, line in read_lines(Path(data) / source))
            keyed = source.endswith("known")
            write_gzip(
                folder / f"{name}.txt.gz", (x.split(maxsplit=1)[1] if keyed else x for x in lines)
            )
        for name, source, num in (("dev", "dev", num_dev), ("eval", "test", num_eval)):
            lines = recognised(Path(data), source, num, nj, lm)
            write_gzip(folder / f"{name}.jsonl.gz", lines)


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Make what is shipped."""
    tool = Tool("quickstart_data", __doc__.splitlines()[0], make_data)
    parser = tool.parser()
    parser.prog = "local/quickstart_data.py"
    parser.add_argument("--data", default="data", help="Folder of texts and 3-gram")
    parser.add_argument("--output", default=str(PACKAGE), help="Folder of what is shipped")
    parser.add_argument("--num_dev", type=int, default=300, help="Sentences to tune on")
    parser.add_argument("--num_eval", type=int, default=1000, help="Sentences of the table")
    parser.add_argument("--nj", type=int, default=2, help="Number of processes")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
