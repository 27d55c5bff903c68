#!/usr/bin/env python3
"""Text of LRS2 as Kaldi `text`: pretrain and train together, val and test."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Sequence

from espnet2.utils.types import str_or_none
from lrs2_corpus import Clip, clip_files, find_corpus, find_lists, read_sets

from espnet_bayeslm.evaluation.text_checks import find_leakage
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from lab.texts import write_corpus


def utterances(clips: Iterable[Clip]) -> Dict[str, List[str]]:
    """Return {id: words}, sorted by id."""
    found: Dict[str, List[str]] = {}
    for clip in clips:
        for utt, words in clip.utterances():
            if utt in found:
                raise InputError(f"two clips have the id {utt}", remedy="Rename one's folder.")
            found[utt] = words
    return dict(sorted(found.items()))


def prepare(lrs2: Optional[str], filelists: Optional[str], output: str, pause: float) -> None:
    """Write OUTPUT/{train,val,test}, OUTPUT/lexicon_words.txt and OUTPUT/statistics.txt."""
    if not 0 <= pause < float("inf"):
        raise InputError(f"--pause {pause}: expected seconds, 0 or more")
    root = find_corpus(lrs2)
    sets = read_sets(clip_files(root, find_lists(root, filelists)), pause)
    cut = f"are cut at silences of more than {pause:g} s" if pause > 0 else "are whole"
    notes = [f"Clips of pretrain {cut}."]
    train = [clip.words for clip in sets["train"]]
    for name in ("val", "test"):
        leakage = find_leakage(train, [clip.words for clip in sets[name]])
        notes.append(f"In train stand {leakage} of {name}.")
    texts = {name: list(utterances(clips).items()) for name, clips in sets.items()}
    write_corpus(output, texts, dev="val", note=" ".join(notes))


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Prepare the text."""
    tool = Tool("lrs2_data", __doc__.splitlines()[0], prepare)
    parser = tool.parser()
    parser.prog = "local/data.sh"
    parser.add_argument(
        "--lrs2", type=str_or_none, help="The corpus: the folder with main and pretrain"
    )
    parser.add_argument(
        "--filelists",
        type=str_or_none,
        help="Folder of pretrain.txt, train.txt, val.txt and test.txt, where they are neither in"
        " the corpus's folder nor beside it",
    )
    parser.add_argument("--output", default="data", help="Folder of the sets")
    parser.add_argument(
        "--pause",
        type=float,
        default=0.5,
        help="Silences longer than this, in seconds, end a sentence in pretrain; 0: none does",
    )
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
