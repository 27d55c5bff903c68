#!/usr/bin/env python3
"""Joins consecutive sentences of a recording into lines, for LMs that see what was said before.

Between two sentences of a line stands `<sos/eos>`, the end of the one and the start of the next:
what `bayeslm perplexity --context` scores.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from stages import need

from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import staged

BETWEEN = "<sos/eos>"
# The last field of digits of an id is the sentence's number in its recording.
NUMBER = re.compile(r"^(.*)-\d{3,}(-.*)?$")


def recording(utterance: str) -> str:
    """Return what the ids of a recording's sentences have in common."""
    found = NUMBER.match(utterance)
    return found[1] if found else utterance


def joined(text: Path, count: int) -> Iterator[Tuple[str, List[str]]]:
    """Yield (id of the first sentence, words) of each run of `count` sentences of a Kaldi text.

    The last run of a recording may be shorter.
    """
    with open(text, encoding="utf-8") as f:
        rows = [line.split() for line in f]
    for _, group in groupby(rows, key=lambda row: recording(row[0])):
        sentences = list(group)
        for first in range(0, len(sentences), count):
            run = sentences[first : first + count]
            words = [word for row in run for word in [*row[1:], BETWEEN]]
            yield run[0][0], words[:-1]


def join(train: str, valid: str, tokens: str, count: int, output: str, stats: str) -> None:
    """Write OUTPUT/text, OUTPUT/text.known, both without ids too, and their statistics."""
    if count < 2:
        raise InputError(f"--count {count}: expected 2 or more sentences")
    need({Path(train): 1, Path(valid): 1, Path(tokens): 2})
    with open(tokens, encoding="utf-8") as f:
        size = sum(1 for _ in f)
    with staged(output) as texts, staged(stats) as shapes:
        for source, target, name in ((train, "text", "train"), (valid, "text.known", "valid")):
            lines = list(joined(Path(source), count))
            rows = (f"{utterance} {' '.join(words)}\n" for utterance, words in lines)
            (texts / target).write_text("".join(rows), encoding="utf-8")
            plain = (f"{' '.join(words)}\n" for _, words in lines)
            (texts / f"{target}.plain").write_text("".join(plain), encoding="utf-8")
            (shapes / name).mkdir()
            sizes = (f"{utterance} {len(words)},{size}\n" for utterance, words in lines)
            (shapes / name / "text_shape.word").write_text("".join(sizes), encoding="utf-8")


def get_parser() -> Any:
    """Return the parser of this script."""
    parser = tool_parser("join", __doc__.splitlines()[0])
    parser.prog = "local/join.py"
    parser.add_argument("--train", default="data/train/text", help="Kaldi text for training")
    parser.add_argument("--valid", default="data/dev/text.known", help="Kaldi text for validation")
    parser.add_argument("--tokens", default="data/token_list/word/tokens.txt", help="Token list")
    parser.add_argument("--count", type=int, required=True, help="Sentences of a line")
    parser.add_argument("--output", required=True, help="Folder for the joined texts")
    parser.add_argument("--stats", required=True, help="Folder for their statistics")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Join the sentences."""
    run_tool(get_parser(), join, cmd)


if __name__ == "__main__":
    main()
