"""The files of a Kaldi N-best archive, and their lines put together by key.

A folder has them itself, or in `archives.1` ... `archives.N`, as Kaldi's rnnlm/lmrescore_nbest.sh
leaves them; each may be gzipped. Where all files have the same keys in the same order, which is
how Kaldi writes them, they are read side by side and nothing is kept but the ids. Other orders
take the memory of all lines.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Set, Tuple

from espnet_bayeslm.nbest.fields import numbered
from espnet_bayeslm.nbest.keyed_files import (
    Entry,
    Table,
    check_has_keys,
    packed,
    read_entries,
    read_table,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines

WORDS, ACOUSTIC, NOLM, WITHLM = "words_text", "acwt", "lmwt.nolm", "lmwt.withlm"
PATTERN = r"(words_text|acwt|lmwt\.nolm|lmwt\.withlm)(\.gz)?|archives\.[0-9]+"
"""Names that `read_kaldi` reads in a folder."""

KEY = re.compile(r"(.+)-([1-9][0-9]{0,8})", re.ASCII | re.DOTALL)
Columns = Dict[str, List[Path]]
Row = Mapping[str, Entry]


def key_of(utt: str, rank: int) -> str:
    """Return the key of the hypothesis `rank` (from 1)."""
    return f"{utt}-{rank}"


def find_columns(folder: Path) -> Columns:
    """Return {name: its files, one for each part} of the files that are there.

    Raises:
        InputError: A part or a file is missing, or stands there twice.
    """
    parts = _parts(folder)
    columns = {name: [packed(part / name) for part in parts] for name in (WORDS, ACOUSTIC)}
    for name in (NOLM, WITHLM):
        paths = [packed(part / name) for part in parts]
        there = [path.exists() for path in paths]
        if any(there):
            columns[name] = paths
            if not all(there):
                raise InputError(
                    f"missing, and {paths[there.index(True)]} is there",
                    path=paths[there.index(False)],
                    remedy="All parts of an archive must have the same files.",
                )
    if WITHLM in columns and NOLM not in columns:
        raise InputError(
            f"missing, and {WITHLM} alone does not tell the LM's cost from the graph's",
            path=parts[0] / NOLM,
            remedy="Write both, or neither.",
        )
    return columns


def _parts(folder: Path) -> List[Path]:
    """Return the folders that hold the files."""
    if not folder.is_dir():
        raise InputError("not a folder of Kaldi N-best archives", path=folder)
    parts = numbered(folder, "archives.{}")
    if not parts:
        return [folder]
    if packed(folder / WORDS).exists():
        raise InputError(
            f"holds {WORDS} and {parts[0].name}",
            path=folder,
            remedy="Which is meant? Move one of them to another folder.",
        )
    if (folder / "num_jobs").is_file():
        num_jobs = " ".join(line for _, line in read_lines(folder / "num_jobs")).strip()
        if num_jobs != str(len(parts)):
            raise InputError(
                f"says {num_jobs[:80]!r}, and there are {len(parts)} archives",
                path=folder / "num_jobs",
                remedy="Did a job fail, or was an archive not copied?",
            )
    return parts


def read_rows(columns: Columns) -> Iterator[Tuple[str, List[Row]]]:
    """Yield (utterance, its hypotheses from rank 1 on), each as {name of a file: its entry}.

    Utterances come in the order of their first lines in `words_text`.

    Raises:
        InputError: The files have different keys, a key is bad or comes twice, a rank is
            missing, or there is no line at all.
    """
    lists = _side_by_side(columns) if _in_step(columns) else _by_key(columns)
    for utt, ranks in lists:
        yield utt, [row for _, row in sorted(ranks.items())]


def _in_step(columns: Columns) -> bool:
    """Return whether all files have the same keys in the same order, and without any fault.

    An utterance's keys must stand together. What is at fault `_by_key` finds out.
    """
    utts: Set[str] = set()
    utt, ranks = "", {1}
    for rows in itertools.zip_longest(*map(read_entries, columns.values())):
        if None in rows or any(row[0] != rows[0][0] for row in rows):
            return False
        match = KEY.fullmatch(rows[0][0])
        if not match:
            return False
        if match[1] != utt:
            if max(ranks) != len(ranks) or match[1] in utts:
                return False
            utt, ranks = match[1], set()
            utts.add(utt)
        rank = int(match[2])
        if rank in ranks:
            return False
        ranks.add(rank)
    return bool(utts) and max(ranks) == len(ranks)


def _side_by_side(columns: Columns) -> Iterator[Tuple[str, Dict[int, Row]]]:
    """Yield (utterance, {rank: row}) of files in step."""

    def utterance(lines: Tuple[Tuple[str, Entry], ...]) -> str:
        return lines[0][0].rpartition("-")[0]

    lines = zip(*map(read_entries, columns.values()), strict=True)
    for utt, group in itertools.groupby(lines, key=utterance):
        yield (
            utt,
            {
                int(row[0][0].rpartition("-")[2]): dict(
                    zip(columns, (entry for _, entry in row), strict=True)
                )
                for row in group
            },
        )


def _by_key(columns: Columns) -> Iterator[Tuple[str, Dict[int, Row]]]:
    """Yield (utterance, {rank: row}) of files whose lines stand in any order."""
    text = read_table(columns[WORDS])
    if not text:
        raise InputError("no hypotheses", path=columns[WORDS][0])
    ranks = _ranks(text)
    tables = {WORDS: text}
    for name in list(columns)[1:]:
        tables[name] = read_table(columns[name])
        check_has_keys(tables[name], text, path=_beside(text, tables[name], columns[name]))
        check_has_keys(text, tables[name], path=_beside(tables[name], text, columns[WORDS]))
    _check_ranks(text, ranks)
    for utt, keys in ranks.items():
        yield (
            utt,
            {
                rank: {name: table[key] for name, table in tables.items()}
                for rank, key in keys.items()
            },
        )


def _beside(wanted: Table, table: Table, paths: List[Path]) -> Path:
    """Return which of `paths` should hold the first key of `wanted` that is not in `table`."""
    folders = (entry[0].parent for key, entry in wanted.items() if key not in table)
    folder = next(folders, paths[0].parent)
    return next(path for path in paths if path.parent == folder)


def _ranks(text: Table) -> Dict[str, Dict[int, str]]:
    """Return {utterance: {rank: key}}."""
    ranks: Dict[str, Dict[int, str]] = {}
    for key, (path, line, _) in text.items():
        match = KEY.fullmatch(key)
        if not match:
            raise InputError(
                f"the key {key[:80]!r} is not of the form `utterance-n` with n from 1",
                path=path,
                line=line,
                remedy="Kaldi's N-best keys end in -1, -2, ...; is this a plain `text`?",
            )
        ranks.setdefault(match[1], {})[int(match[2])] = key
    return ranks


def _check_ranks(text: Table, ranks: Dict[str, Dict[int, str]]) -> None:
    """Check that each utterance's ranks go from 1 to N."""
    for utt, keys in ranks.items():
        if max(keys) != len(keys):
            gap = next(n for n in range(1, len(keys) + 1) if n not in keys)
            last = keys[max(keys)]
            raise InputError(
                f"the hypothesis {key_of(utt[:80], gap)!r} is missing, {len(keys)} others of its"
                f" utterance are there, up to {last[:80]!r}",
                path=text[last][0],
                line=text[last][1],
                remedy="Ranks must go from 1 to N without gaps: was the file cut or filtered?",
            )
