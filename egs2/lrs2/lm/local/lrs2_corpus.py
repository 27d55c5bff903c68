"""Reads the texts of LRS2 in the layout in which the corpus is given out.

Each clip has a text file, main/ID/NNNNN.txt or pretrain/ID/NNNNN.txt, which begins with the line
`Text:  WORDS`, `Conf:` below it; in pretrain a table `WORD START END ASDSCORE` follows, times in
seconds. The lists {pretrain,train,val,test}.txt name the clips, `ID/NNNNN` first on each line; what
follows there is left out.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines

# list -> folder of its clips
FOLDERS = {"pretrain": "pretrain", "train": "main", "val": "main", "test": "main"}
SETS = {"train": ("pretrain", "train"), "val": ("val",), "test": ("test",)}
ARCHIVE_FOLDER = "mvlrs_v1"  # what the corpus's archive unpacks to
CLIP = re.compile(r"[A-Za-z0-9_-]+/[A-Za-z0-9_-]+")
TEXT = "Text:"
TABLE = ("WORD", "START", "END")
MARK = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|<[^>]*>")  # {NS}, [LAUGHTER]: no words
WORD = re.compile(r"[a-z0-9']*[a-z0-9][a-z0-9']*")
LAYOUT = (
    "Looked for the folders main and pretrain (ID/NNNNN.txt in them), here or in"
    f" {ARCHIVE_FOLDER}. The corpus is 'LRS2' of the Visual Geometry Group, Oxford; BBC Research"
    " & Development grants access"
)


@dataclass(frozen=True)
class Clip:
    """A clip's text.

    Attributes:
        utt: Its id.
        pieces: Words between the pauses at which it is cut; none of them is empty.
        timed: The times of its words are known.
    """

    utt: str
    pieces: List[List[str]]
    timed: bool = False

    @property
    def words(self) -> List[str]:
        """All of its words."""
        return list(itertools.chain.from_iterable(self.pieces))

    def utterances(self) -> Iterator[Tuple[str, List[str]]]:
        """Yield (id, words) of each piece; the id of one that is not the only one has a number."""
        for number, words in enumerate(self.pieces):
            yield (self.utt if len(self.pieces) == 1 else f"{self.utt}-{number:03d}"), words


def normalise(text: str) -> List[str]:
    """Return the words of a text: lower case, letters, digits and apostrophes, no marks."""
    text = unicodedata.normalize("NFKD", MARK.sub(" ", text).replace("’", "'").lower())
    return WORD.findall("".join(c for c in text if not unicodedata.combining(c)))


def find_corpus(lrs2: Optional[str]) -> Path:
    """Return the folder that holds main and pretrain."""
    if not lrs2:
        raise InputError(
            "no path to LRS2",
            remedy=f"Set LRS2 in db.sh or in the environment, or give --lrs2. {LAYOUT}.",
        )
    if not Path(lrs2).is_dir():
        raise InputError("no such folder", path=lrs2, remedy=f"{LAYOUT}.")
    for root in (Path(lrs2), Path(lrs2) / ARCHIVE_FOLDER):
        if all((root / folder).is_dir() for folder in set(FOLDERS.values())):
            return root
    found = sorted(os.listdir(lrs2))
    names = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
    raise InputError(
        f"not LRS2 as it is given out; found here: {names or 'nothing'}",
        path=lrs2,
        remedy=f"{LAYOUT}.",
    )


def find_lists(root: Path, filelists: Optional[str]) -> Dict[str, Path]:
    """Return {list: its file}, from `filelists` or from `root` or the folder above it."""
    folders = [Path(filelists)] if filelists else [root, root.absolute().parent]
    lists: Dict[str, Path] = {}
    for name, folder in itertools.product(FOLDERS, folders):
        if name not in lists and (folder / f"{name}.txt").is_file():
            lists[name] = folder / f"{name}.txt"
    missing = [f"{name}.txt" for name in FOLDERS if name not in lists]
    if missing:
        raise InputError(
            f"no file list {', '.join(missing)} in {' or '.join(map(str, folders))}",
            remedy="They are offered beside the archive: save them there, or give --filelists.",
        )
    return lists


def clip_files(root: Path, lists: Dict[str, Path]) -> Dict[str, List[Tuple[str, Path]]]:
    """Return {list: (utterance id, text file) of its clips}."""
    files: Dict[str, List[Tuple[str, Path]]] = {name: [] for name in lists}
    seen: Dict[Path, str] = {}
    for name, path in lists.items():
        prefix = "lrs2-pretrain-" if name == "pretrain" else "lrs2-"
        for number, line in read_lines(path):
            if not line.strip():
                continue
            clip = line.split()[0]
            if not CLIP.fullmatch(clip):
                raise InputError(f"expected ID/NNNNN, got {clip[:80]!r}", path=path, line=number)
            text = root / FOLDERS[name] / f"{clip}.txt"
            before = seen.setdefault(text, f"{path}:{number}")
            if before != f"{path}:{number}":
                raise InputError(
                    f"the clip {clip} stands already in {before}",
                    path=path,
                    line=number,
                    remedy="A clip belongs to one set, once.",
                )
            files[name].append((prefix + clip.replace("/", "-"), text))
        if not files[name]:
            raise InputError("a file list without a clip", path=path)
    for name, clips in files.items():
        missing = [text for _, text in clips if not text.is_file()]
        if missing:
            raise InputError(
                f"no text {missing[0]}; {len(missing)} of the {len(clips)} clips listed have none",
                path=lists[name],
                remedy="Unpack all parts of the corpus, or take the lists that belong to it.",
            )
    return files


def read_table(path: Path, lines: Iterable[Tuple[int, str]]) -> List[Tuple[str, float, float]]:
    """Return (word, start, end), times in seconds, of the table in a text's lines, if any."""
    header = itertools.dropwhile(lambda item: tuple(item[1].split()[:3]) != TABLE, lines)
    rows = itertools.takewhile(lambda item: item[1].strip(), itertools.islice(header, 1, None))
    table = []
    for number, line in rows:
        try:
            word, start, end = line.split()[:3]
            table.append((word, float(start), float(end)))
        except ValueError as error:
            raise InputError(
                f"expected WORD START END ASDSCORE, got {line[:80]!r}", path=path, line=number
            ) from error
    return table


def split_at_pauses(table: Sequence[Tuple[str, float, float]], pause: float) -> List[str]:
    """Return the texts between silences of more than `pause` seconds."""
    pieces: List[List[str]] = [[]]
    for index, (word, start, _) in enumerate(table):
        if index and start - table[index - 1][2] > pause:
            pieces.append([])
        pieces[-1].append(word)
    return [" ".join(words) for words in pieces]


def read_clip(utt: str, path: Path, pause: float) -> Clip:
    """Return a clip's text, cut at its pauses where it has a table of its words' times.

    Args:
        utt: Its id.
        path: Its text file.
        pause: Silences longer than this, in seconds, cut; 0: none does.
    """
    lines = list(read_lines(path))
    first = lines[0][1] if lines else ""
    if not first.startswith(TEXT):
        raise InputError(f"expected `{TEXT}  WORDS`, got {first[:80]!r}", path=path, line=1)
    text = first[len(TEXT) :].strip()
    if not text:
        raise InputError(
            "an empty text", path=path, line=1, remedy="Mend it, or take the clip off its list."
        )
    table = read_table(path, lines[1:]) if pause > 0 else []
    # a table of other words than the text's has no times for them: keep the clip whole
    timed = [word for word, _, _ in table] == text.split()
    pieces = split_at_pauses(table, pause) if timed else [text]
    return Clip(utt, [words for words in map(normalise, pieces) if words], timed)


def read_sets(files: Dict[str, List[Tuple[str, Path]]], pause: float) -> Dict[str, List[Clip]]:
    """Return {set: its clips, sorted by id}; clips of marks alone are left out."""
    sets: Dict[str, List[Clip]] = {}
    for name, parts in SETS.items():
        # the other lists' clips are sentences already, and N-best lists go by clips
        listed = sorted(
            (utt, path, pause if part == "pretrain" else 0.0)
            for part in parts
            for utt, path in files[part]
        )
        clips = [read_clip(*item) for item in progress(listed, desc=name, unit=" clips")]
        sets[name] = [clip for clip in clips if clip.pieces]
        num_untimed = sum(
            cut > 0 and not c.timed for c, (_, _, cut) in zip(clips, listed, strict=True)
        )
        if num_untimed:
            logging.warning(
                f"pretrain: {num_untimed} clips without times of their words kept whole"
            )
        if len(sets[name]) < len(clips):
            logging.info(f"{name}: {len(clips) - len(sets[name])} clips of marks alone left out")
        if not sets[name]:
            raise InputError(f"{name}: none of the {len(clips)} clips has a word")
    return sets
