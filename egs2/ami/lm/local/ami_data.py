#!/usr/bin/env python3
"""Text of the AMI meetings as Kaldi `text`, and the lexicon of the training text's words.

From the corpus's manual annotations (--ami) or three files of plain text (--ami_text); the
transcripts of Fisher (--fisher) are added to the training text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Optional, Sequence

from ami_annotations import DOWNLOAD, SETS, Sentences, read_annotations
from fisher_data import read_fisher

from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines
from lab.texts import write_corpus

# What is no word: a plain text with any of these was not prepared as the recipe needs it.
PUNCTUATION = re.compile(r'[,;:?!"()\[\]{}<>]')


def read_text(path: Path, name: str) -> Sentences:
    """Return the sentences of a file, one a line; ids are ami-SET-LINE, lines from 0."""
    sentences = []
    for number, line in read_lines(path):
        found = PUNCTUATION.search(line)
        if found:
            raise InputError(
                f"{found[0]!r} stands where words were expected",
                path=path,
                line=number,
                remedy="One sentence a line, words only: take out punctuation and noise marks.",
            )
        if line.split():
            sentences.append((f"ami-{name}-{number - 1:07d}", line.lower().split()))
    if not sentences:
        raise InputError("no words", path=path, remedy="One sentence a line is expected.")
    return sentences


def read_texts(folder: Path) -> Dict[str, Sentences]:
    """Return {set: sentences} of a folder's train.txt, dev.txt and eval.txt."""
    files = {name: folder / f"{name}.txt" for name in SETS}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        found = "no such folder" if not folder.is_dir() else f"{', '.join(missing)} not there"
        raise InputError(
            f"{found}; looked for train.txt, dev.txt and eval.txt",
            path=folder,
            remedy="AMI_TEXT is a folder with these three files, one sentence a line.",
        )
    return {name: read_text(path, name) for name, path in files.items()}


def read_meetings(ami: str, ami_text: str) -> Dict[str, Sentences]:
    """Return {set: sentences} of the one source that is given."""
    if not ami and not ami_text:
        raise InputError(
            "neither AMI (the corpus's annotations) nor AMI_TEXT (train.txt, dev.txt, eval.txt) is"
            " set",
            remedy=f"Set one in db.sh or the environment, or give --ami or --ami_text. {DOWNLOAD}",
        )
    if ami and ami_text:
        raise InputError(
            f"both AMI ({ami}) and AMI_TEXT ({ami_text}) are set",
            remedy='Leave one of them empty (--ami "" or --ami_text "" on the command line).',
        )
    sets = read_texts(Path(ami_text)) if ami_text else read_annotations(Path(ami))
    empty = [name for name, sentences in sets.items() if not sentences]
    if empty:
        raise InputError(
            f"no sentences of {' and '.join(empty)}",
            path=ami or ami_text,
            remedy="Are the annotations of all meetings there?",
        )
    return sets


def prepare(output: str, ami: str, ami_text: str, fisher: str) -> None:
    """Write OUTPUT/{train,dev,eval}, OUTPUT/lexicon_words.txt and OUTPUT/statistics.txt."""
    sets = read_meetings(ami, ami_text)
    note = (
        "Text: AMI, three files of sentences."
        if ami_text
        else "Text: AMI, manual annotations; sentences end at full stops and at segments."
    )
    known = {word for _, words in sets["train"] for word in words}
    parts = {}
    if fisher:
        more = read_fisher(Path(fisher), known)
        parts = {"train: AMI": sets["train"], "train: Fisher": more}
        note = note[:-1] + "; and Fisher."
        sets["train"] = sets["train"] + more
        known.update(word for _, words in more for word in words)
    if not any(known.issuperset(words) for _, words in sets["dev"]):
        raise InputError(
            "each sentence of dev has a word that the training text has not",
            path=ami or ami_text,
            remedy="Training is validated on sentences of known words: give more training text.",
        )
    texts = {name: sorted(sentences) for name, sentences in sets.items()}
    write_corpus(output, texts, dev="dev", note=note, parts=parts)


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Prepare the text."""
    tool = Tool("data", __doc__.splitlines()[0], prepare)
    parser = tool.parser()
    parser.prog = "local/data.sh"
    parser.add_argument("--output", default="data", help="Folder of the sets")
    parser.add_argument("--ami", default="", help="AMI's manual annotations, folder or zip file")
    parser.add_argument("--ami_text", default="", help="Folder of train.txt, dev.txt, eval.txt")
    parser.add_argument("--fisher", default="", help="Folder of Fisher's transcripts")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
