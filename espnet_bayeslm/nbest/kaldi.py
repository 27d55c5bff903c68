"""Lists in Kaldi's text files: Kaldi's N-best archives and ESPnet's decode directories.

Kaldi's archive is a folder of text files with the keys `<utt>-<n>`, n from 1, and costs (-ln).
`words_text` holds the words, `acwt` the acoustic cost; `lmwt.nolm` and `lmwt.withlm`, where they
are there, the graph cost without and with the first-pass LM, whose cost is the difference. They
stand in the folder, or in its `archives.1` ... `archives.N`, as Kaldi's rnnlm/lmrescore_nbest.sh
leaves them, and may be compressed. Kaldi writes all files with the same keys in the same order:
they are read side by side, and only the ids are kept. Other orders take the memory of all lines.

ESPnet has `output.JOB/{n}best_recog/{text,score}`, lines `utterance value`. `score` is the weighted
total of all that took part in the beam search, natural log, and becomes `am_score`: nothing tells
the parts apart, so a list to be rescored is decoded without an LM. `token` and `token_int` are not
read. An utterance may have fewer hypotheses than others. The files of one job are in memory.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import re
from pathlib import Path
from typing import IO, Counter, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from espnet_bayeslm.nbest.fields import (
    AddList,
    UniqueUtterances,
    check_scores,
    folder_writer,
    format_number,
    hypothesis_key,
    numbered,
    packed,
    parse_number,
    words_line,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    PACKED,
    Entry,
    PathLike,
    Table,
    read_entries,
    read_table,
    unpacked_text,
)

FILES = WORDS, ACOUSTIC, NOLM, WITHLM = "words_text", "acwt", "lmwt.nolm", "lmwt.withlm"
PATTERN = rf"(words_text|acwt|lmwt\.nolm|lmwt\.withlm){PACKED}|archives\.[0-9]+"
"""Names that `read_kaldi` reads in a folder."""

ESPNET_PATTERN = r"[0-9]+best_recog|output\.[0-9]+"
"""Names that `read_espnet` reads in a folder."""

KEY = re.compile(r"(.+)-([1-9][0-9]{0,8})", re.ASCII | re.DOTALL)

Columns = Dict[str, List[Path]]
"""Name of what is in some files -> the files, which are read as one."""

Row = Dict[str, Entry]
"""The entries of one key, by the names of the columns."""

Rows = Iterator[Tuple[str, List[Row]]]
"""(utterance, its hypotheses from rank 1 on)."""


class OutOfStep(Exception):
    """Files do not have the same keys in the same order."""


def read_kaldi(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a folder, in the order of their first lines in `words_text`.

    Raises:
        InputError: A line, a key or a score that cannot be used (file, line, remedy).
    """
    columns = _find_columns(Path(path))
    try:
        collections.deque(_side_by_side(columns), maxlen=0)
        rows = _side_by_side(columns)
    except OutOfStep:
        rows = _by_key(columns)  # which finds the fault
    for utt, of_utterance in rows:
        yield NBest(utt, tuple(map(_hypothesis, of_utterance)), acoustic=True)


def _hypothesis(row: Row) -> Hypothesis:
    remedy = "Lines are `utterance-n cost`."
    costs = {
        name: parse_number(value, path=path, line=line, remedy=remedy)
        for name, (path, line, value) in row.items()
        if name != WORDS
    }
    return Hypothesis(
        words=tuple(row[WORDS][2].split()),
        am_score=-costs[ACOUSTIC],
        lm_score=costs[NOLM] - costs[WITHLM] if WITHLM in row else None,
        graph_score=-costs[NOLM] if NOLM in row else None,
    )


def _find_columns(folder: Path) -> Columns:
    """{name: its files, one for each part} of the files that are there."""
    parts = _parts(folder)
    columns = {name: [packed(part / name) for part in parts] for name in FILES}
    for name in (NOLM, WITHLM):
        missing = [path for path in columns[name] if not path.exists()]
        if len(missing) == len(parts):
            del columns[name]
        elif missing:
            there = next(path for path in columns[name] if path not in missing)
            remedy = "All parts of an archive must have the same files."
            raise InputError(f"missing, and {there} is there", path=missing[0], remedy=remedy)
    if WITHLM in columns and NOLM not in columns:
        problem = f"missing, and {WITHLM} alone does not tell the LM's cost from the graph's"
        raise InputError(problem, path=parts[0] / NOLM, remedy="Write both, or neither.")
    return columns


def _parts(folder: Path) -> List[Path]:
    needed = f"Give a folder with {', '.join(FILES)}."
    if not folder.is_dir():
        raise InputError("not a folder of Kaldi N-best archives", path=folder, remedy=needed)
    parts = numbered(folder, "archives.{}")
    has_words = packed(folder / WORDS).exists()
    if not parts:
        if not has_words:
            raise InputError(f"no {WORDS} in it", path=folder, remedy=needed)
        return [folder]
    if has_words:
        remedy = "Move one of them to another folder."
        raise InputError(f"holds {WORDS} and {parts[0].name}", path=folder, remedy=remedy)
    jobs = packed(folder / "num_jobs")
    num_jobs = unpacked_text(jobs).strip() if jobs.is_file() else str(len(parts))
    if num_jobs != str(len(parts)):
        problem = f"says {num_jobs[:80]!r}, and there are {len(parts)} archives"
        remedy = "Did a job fail, or was an archive not copied?"
        raise InputError(problem, path=jobs, remedy=remedy)
    return parts


def _side_by_side(columns: Columns) -> Rows:
    """Yield the rows of files in step."""
    utts: Set[str] = set()
    for utt, group in itertools.groupby(_ranked(columns), key=lambda item: item[0]):
        lines = list(group)
        ranks = {rank: row for _, rank, row in lines}
        if utt in utts or max(ranks) != len(ranks) or len(ranks) != len(lines):
            raise OutOfStep
        utts.add(utt)
        yield utt, [ranks[rank] for rank in range(1, len(ranks) + 1)]
    if not utts:
        raise OutOfStep


def _ranked(columns: Columns) -> Iterator[Tuple[str, int, Row]]:
    """Yield (utterance, rank, row) of each line of files in step."""
    for entries in itertools.zip_longest(*map(read_entries, columns.values())):
        if None in entries or any(key != entries[0][0] for key, _ in entries):
            raise OutOfStep
        match = KEY.fullmatch(entries[0][0])
        if not match:
            raise OutOfStep
        row = {name: entry for name, (_, entry) in zip(columns, entries, strict=True)}
        yield match[1], int(match[2]), row


def _by_key(columns: Columns) -> Rows:
    """Yield the rows of files in any order, by the first lines in `words_text`."""
    text = read_table(columns[WORDS])
    if not text:
        raise InputError("no hypotheses", path=columns[WORDS][0])
    ranks: Dict[str, Dict[int, str]] = {}
    for key, (path, line, _) in text.items():
        match = KEY.fullmatch(key)
        if not match:
            problem = f"the key {key[:80]!r} is not of the form `utterance-n` with n from 1"
            remedy = "Kaldi's N-best keys end in -1, -2, ...; is this a plain `text`?"
            raise InputError(problem, path=path, line=line, remedy=remedy)
        ranks.setdefault(match[1], {})[int(match[2])] = key
    tables = {WORDS: text}
    for name in list(columns)[1:]:
        tables[name] = read_table(columns[name])
        _check_has_keys(tables[name], text, paths=columns[name])
        _check_has_keys(text, tables[name], paths=columns[WORDS])
    for utt, keys in ranks.items():
        if max(keys) != len(keys):
            gap = next(n for n in range(1, len(keys) + 1) if n not in keys)
            path, line, _ = text[keys[max(keys)]]
            raise InputError(
                f"the hypothesis {hypothesis_key(utt[:80], gap)!r} is missing,"
                f" {len(keys)} others of its"
                f" utterance are there, up to {keys[max(keys)][:80]!r}",
                path=path,
                line=line,
                remedy="Ranks must go from 1 to N without gaps: was the file cut or filtered?",
            )
        ordered = [keys[rank] for rank in sorted(keys)]
        yield utt, [{name: table[key] for name, table in tables.items()} for key in ordered]


@contextlib.contextmanager
def kaldi_writer(folder: Path) -> Iterator[AddList]:
    """Write archives, list by list; reading them gives the same words and acoustic scores.

    All hypotheses must have the same kinds of scores. `lmwt.withlm` has 12 digits: the LM score
    that is read again may differ after them. A hypothesis with an LM score and no graph score is
    read with a graph score of 0.

    Raises:
        ValueError: Some hypotheses have an LM or a graph score, and some have not; a list that
            the format cannot hold; or other archives stand there. Nothing is written then.
    """
    counts: Counter[str] = collections.Counter()
    with folder_writer(folder, PATTERN) as (known, temporary), contextlib.ExitStack() as stack:
        files: Dict[str, IO[str]] = {
            name: stack.enter_context(open(temporary / name, "w", encoding="utf-8"))
            for name in FILES
        }

        def add(nbest: NBest) -> None:
            known.add(nbest.utt)
            check_scores(nbest)
            problem = "has a reference" if nbest.ref is not None else ""
            if nbest.hypotheses[0].am_score is None:
                problem = "has no am_score"
            if problem:
                raise InputError(
                    f"the kaldi format cannot hold this: the utterance {nbest.utt!r} {problem}",
                    remedy="Change the lists (dataclasses.replace), or write jsonl: it holds all.",
                )
            for rank, hyp in enumerate(nbest.hypotheses, 1):
                for name, value in _columns(hyp).items():
                    counts[name] += 1
                    files[name].write(f"{hypothesis_key(nbest.utt, rank)} {value}".rstrip() + "\n")

        yield add
        for name in files:
            if counts[name] == 0:
                (temporary / name).unlink()
            elif counts[name] != counts[WORDS]:
                raise ValueError(f"{counts[name]} of {counts[WORDS]} hypotheses have a cost {name}")


def _columns(hyp: Hypothesis) -> Dict[str, str]:
    """{file name: the hypothesis's entry there}."""
    assert hyp.am_score is not None
    values = {WORDS: words_line(hyp.words), ACOUSTIC: format_number(0.0 - hyp.am_score)}
    if hyp.graph_score is not None or hyp.lm_score is not None:
        graph_cost = 0.0 - (hyp.graph_score or 0.0)
        values[NOLM] = format_number(graph_cost)
        if hyp.lm_score is not None:
            # 12 digits hide the rounding of the difference that was read: 0.1 comes back as 0.1
            values[WITHLM] = f"{graph_cost - hyp.lm_score:.12g}"
    return values


def read_espnet(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a decode directory, in the order of each `1best_recog/text`.

    It is the folder that holds `output.1` ... `output.N` (ESPnet's `logdir`), the folder that holds
    this `logdir`, or one job's folder, which holds `1best_recog` and so on.

    Raises:
        InputError: A line, a key or a score that cannot be used (file, line, remedy).
    """
    remedy = "Utterance ids must be unique: was a job copied twice?"
    utterances = UniqueUtterances(path, remedy=remedy)
    for job in _jobs(Path(path)):
        for utt, rows in _read_job(job):
            (file, line, _), _ = rows[0]
            utterances.add(utt, file, line)
            yield NBest(utt, tuple(map(_decoded, rows)))
    utterances.check("no hypotheses")


def _jobs(folder: Path) -> List[Path]:
    """Folders with a `1best_recog`."""
    error = functools.partial(InputError, path=folder)
    if not folder.is_dir():
        remedy = "Give the folder of a decoding by ESPnet with --nbest N."
        raise error("not an ESPnet decode directory", remedy=remedy)
    jobs, ranks = numbered(folder, "output.{}"), numbered(folder, "{}best_recog")
    if not jobs and not ranks and (folder / "logdir").is_dir():
        return _jobs(folder / "logdir")
    if bool(jobs) == bool(ranks):
        problem = "one of output.1 and 1best_recog was expected in it, and there is"
        remedy = "Give the `logdir` of a decode directory."
        raise error(f"{problem} {'both' if jobs else 'neither'}", remedy=remedy)
    return jobs or [folder]


def _read_job(job: Path) -> Iterator[Tuple[str, List[Tuple[Entry, Entry]]]]:
    """Yield (utterance, its text and score of each rank): later ranks may leave utterances out."""
    folders = numbered(job, "{}best_recog")
    if not folders:
        remedy = "Run the job again: it may have failed."
        raise InputError("no 1best_recog in this folder", path=job, remedy=remedy)
    ranks: List[Tuple[Table, Table]] = []
    before: Optional[Path] = None
    for folder in folders:
        paths = [packed(folder / name) for name in ("text", "score")]
        text, score = (read_table([path]) for path in paths)
        _check_has_keys(score, text, paths=paths[1:])
        _check_has_keys(text, score, paths=paths[:1])
        if before is not None:
            _check_has_keys(ranks[-1][0], text, paths=[before])
        ranks.append((text, score))
        before = paths[0]
    for utt in ranks[0][0]:
        yield utt, [(text[utt], score[utt]) for text, score in ranks if utt in text]


def _decoded(row: Tuple[Entry, Entry]) -> Hypothesis:
    (_, _, words), (path, line, value) = row
    remedy = "Lines are `utterance score`, a number or ESPnet's tensor(number)."
    return Hypothesis(
        tuple(words.split()), parse_number(value, path=path, line=line, remedy=remedy)
    )


def _check_has_keys(table: Table, wanted: Table, *, paths: Sequence[Path]) -> None:
    """Check that files have all the keys of other files."""
    missing = [key for key in wanted if key not in table]
    if missing:
        other, line, _ = wanted[missing[0]]
        path = next((path for path in paths if path.parent == other.parent), paths[0])
        # Parts have files of the same name: the part says which is meant
        name = other.name if other.parent == path.parent else f"{other.parent.name}/{other.name}"
        raise InputError(
            f"{len(missing)} of the {len(wanted)} keys of {other.name} are missing, the first"
            f" {missing[0][:80]!r} ({name}:{line})",
            path=path,
            remedy="All files of a list must have the same keys; write them anew together.",
        )
