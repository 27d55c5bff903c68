#!/usr/bin/env python3
"""Text of LRS2 as Kaldi `text`: pretrain and train together, val and test."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple

from espnet2.utils.types import str2bool, str_or_none
from lrs2_corpus import Clip, clip_files, find_corpus, find_lists, read_sets

from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from lab.texts import write_corpus

Sentence = Tuple[str, ...]

# Shorter sentences are said twice by chance.
MIN_SHARED_WORDS = 5


def find_shared(
    clips: Iterable[Clip], sentences: Iterable[Sequence[str]]
) -> Dict[str, Set[Sentence]]:
    """Return {id of a clip: the sentences of `MIN_SHARED_WORDS` or more that it holds in full}."""
    starts: Dict[Sentence, Set[Sentence]] = {}
    for sentence in map(tuple, sentences):
        if len(sentence) >= MIN_SHARED_WORDS:
            starts.setdefault(sentence[:MIN_SHARED_WORDS], set()).add(sentence)
    shared: Dict[str, Set[Sentence]] = {}
    for clip in clips:
        words = tuple(clip.words)
        for begin in range(len(words) - MIN_SHARED_WORDS + 1):
            for sentence in starts.get(words[begin : begin + MIN_SHARED_WORDS], ()):
                if words[begin : begin + len(sentence)] == sentence:
                    shared.setdefault(clip.utt, set()).add(sentence)
    return shared


def utterances(clips: Iterable[Clip]) -> Dict[str, List[str]]:
    """Return {id: words}, sorted by id.

    Raises:
        InputError: Two clips have the same id.
    """
    found: Dict[str, List[str]] = {}
    for clip in clips:
        for utt, words in clip.utterances():
            if utt in found:
                raise InputError(f"two clips have the id {utt}", remedy="Rename one's folder.")
            found[utt] = words
    return dict(sorted(found.items()))


def describe(name: str, clips: Sequence[Clip], known: Set[str], shared: Set[Sentence]) -> str:
    """Return a set's row of the table of statistics."""
    words = [word for clip in clips for word in clip.words]
    num_oov = sum(word not in known for word in words)
    long = [clip for clip in clips if len(clip.words) >= MIN_SHARED_WORDS]
    held = sum(tuple(clip.words) in shared for clip in long)
    counts = (len(clips), sum(len(clip.pieces) for clip in clips), len(words), len(set(words)))
    cells = [name, *map(str, counts), f"{100 * num_oov / len(words):.2f}"]
    cells.append("" if name == "train" else f"{held} of {len(long)}")
    return "| " + " | ".join(cells) + " |"


def statistics(sets: Dict[str, List[Clip]], pause: float, num_dropped: int) -> str:
    """Return the table of statistics, in Markdown, and what it counts."""
    known = {word for clip in sets["train"] for word in clip.words}
    others = [clip.words for name in ("val", "test") for clip in sets[name]]
    shared = set().union(*find_shared(sets["train"], others).values())
    lines = [
        "| set | clips | sentences | words | vocabulary | OOV % | in train word for word |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(describe(name, clips, known, shared) for name, clips in sets.items()),
        "",
        f"Clips of pretrain are cut at silences of more than {pause:g} s."
        if pause > 0
        else "Clips of pretrain are whole.",
        "OOV: words that are not in train. In train word for word: clips of val or test of"
        f" {MIN_SHARED_WORDS} words or more whose text lies in a training clip.",
    ]
    if num_dropped:
        lines.append(f"Left out of train: {num_dropped} clips that held a clip of val or test.")
    return "\n".join(lines) + "\n"


def prepare(
    lrs2: Optional[str], filelists: Optional[str], output: str, pause: float, drop_overlap: bool
) -> None:
    """Write OUTPUT/{train,val,test}, OUTPUT/lexicon_words.txt and OUTPUT/statistics.txt.

    Raises:
        InputError: The corpus is not there, or not as it is given out.
    """
    if not 0 <= pause < float("inf"):
        raise InputError(f"--pause {pause}: expected seconds, 0 or more")
    root = find_corpus(lrs2)
    sets = read_sets(clip_files(root, find_lists(root, filelists)), pause)
    num_dropped = 0
    if drop_overlap:
        others = [clip.words for name in ("val", "test") for clip in sets[name]]
        shared = find_shared(sets["train"], others)
        sets["train"] = [clip for clip in sets["train"] if clip.utt not in shared]
        num_dropped = len(shared)
        if not sets["train"]:
            raise InputError("--drop_overlap true leaves no training text")
    texts = {name: list(utterances(clips).items()) for name, clips in sets.items()}
    write_corpus(output, texts, dev="val", statistics=statistics(sets, pause, num_dropped))


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Prepare the text."""
    parser = tool_parser("lrs2_data", __doc__.splitlines()[0])
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
    parser.add_argument(
        "--drop_overlap",
        type=str2bool,
        default=False,
        help=f"Leave out training clips that hold a clip of val or test of {MIN_SHARED_WORDS}"
        " words or more",
    )
    run_tool(parser, prepare, cmd)


if __name__ == "__main__":
    main()
