"""The formats of N-best lists, given or found. A new one is a reader, named here or elsewhere.

Kaldi's lists are written as they are read, all others as jsonl, which holds everything. Formats
of lattices are read as the N best hypotheses of each.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from functools import partial
from pathlib import Path
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Tuple,
    Union,
)

import numpy as np

from espnet_bayeslm.evaluation.normalization import AS_IT_IS, Normalization
from espnet_bayeslm.evaluation.text_checks import Subset, warn_of_placeholders
from espnet_bayeslm.evaluation.transcripts import has_words
from espnet_bayeslm.nbest import kaldi
from espnet_bayeslm.nbest.fields import (
    BESIDE,
    SCORES,
    AddList,
    UniqueUtterances,
    natural_order,
    placed,
)
from espnet_bayeslm.nbest.htk import htk_writer, read_htk
from espnet_bayeslm.nbest.json_lists import DECODER, json_items, jsonl_writer
from espnet_bayeslm.nbest.kaldi_lattice import kaldi_lattice_writer, read_kaldi_lattices
from espnet_bayeslm.nbest.lattice import Lattice, PathScales, nbest_list
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    END,
    PACKED,
    START,
    PathLike,
    check_seekable,
    read_lines,
    unpacked_name,
    without_marks,
)
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import option
from espnet_bayeslm.utils.registry import Registry

READERS: Registry[Callable[[PathLike], Iterator[NBest]]] = Registry(
    "N-best format",
    group="espnet_bayeslm.nbest_formats",
    built_in={
        "kaldi": "espnet_bayeslm.nbest.kaldi:read_kaldi",
        "espnet": "espnet_bayeslm.nbest.kaldi:read_espnet",
        "srilm": "espnet_bayeslm.nbest.srilm:read_srilm",
        "jsonl": "espnet_bayeslm.nbest.json_lists:read_jsonl",
        "hyporadise": "espnet_bayeslm.nbest.json_lists:read_hyporadise",
        "nemo": "espnet_bayeslm.nbest.nemo:read_nemo",
        "vosk": "espnet_bayeslm.nbest.json_lists:read_vosk",
        "beams": "espnet_bayeslm.nbest.json_lists:read_beams",
    },
    fault_of=lambda name, reader: "" if callable(reader) else f"it is {reader!r}, and no function",
)
FORMER_NAMES = {"whisper": "hyporadise"}
"""Name of a format in older commands -> its name."""
WRITERS: Dict[str, Callable[[Path], ContextManager[AddList]]] = {
    "kaldi": kaldi.kaldi_writer,
    "jsonl": jsonl_writer,
}
LATTICE_READERS: Dict[str, Callable[..., Iterator[Lattice]]] = {
    "htk": read_htk,
    "kaldi_lattice": read_kaldi_lattices,
}
LATTICE_WRITERS: Dict[str, Callable[[PathLike], ContextManager[Callable[[Lattice], None]]]] = {
    "htk": htk_writer,
    "kaldi_lattice": kaldi_lattice_writer,
}
LatticeScales = Dict[Tuple[PathScales, Tuple[str, ...]], str]
"""Weights that come with lattices, and the scores that these hold -> the first such utterance."""

LOOKED_AT = 200
"""First lists that tell whether scores are ln P."""

ROUNDING = 0.01
"""Ln of the sum of a list's probabilities, at most, where their scores are rounded."""

NBEST_SIZE = 100
"""Hypotheses of a lattice, unless another number is asked for."""

JSON_KEYS = {
    "hypotheses": "jsonl",
    "input": "hyporadise",
    "alternatives": "vosk",
    "beams": "nemo",
}
"""Key of a list's JSON object -> format."""

FOLDERS = ("kaldi", "espnet", "nemo")
"""Formats of whole folders."""


class FormatNames:
    """Names of all formats, those of installed packages too, as a message has them."""

    def __str__(self) -> str:
        return ", ".join((*READERS, *LATTICE_READERS))


def format_option(more: str = "") -> Any:
    """Option `--nbest_format` of a tool, whose help ends in `more`."""
    help = "Format of the lists: %(names)s (default: as names or contents of the files say)"
    return option(help + more, None, names=FormatNames())


def check_format(format: str) -> None:
    """Check that a format is known."""
    format = FORMER_NAMES.get(format, format)
    if format not in LATTICE_READERS and format not in READERS:
        remedy = f"The formats are: {FormatNames()}."
        raise InputError(f"unknown N-best format {format!r}", remedy=remedy)


def format_of(path: PathLike, format: Optional[str] = None) -> str:
    """Format of lists or lattices: the one that is given, else the one that their files show."""
    if format:
        check_format(format)
        format = FORMER_NAMES.get(format, format)
    if not Path(path).exists():
        raise InputError("no such file or folder", path=path)
    found = format or find_format(path)
    if found is None:
        _check_readable(Path(path))
        problem = "no format of N-best lists or lattices can be told from it"
        remedy = f"Give --nbest_format, one of: {FormatNames()}."
        raise InputError(problem, path=path, remedy=remedy)
    return found


def _check_readable(path: Path) -> None:
    """Raise an InputError where a file that would say the format cannot be read."""
    for file in [path] if path.is_file() else sorted(path.iterdir()):
        if file.is_file() and any(re.fullmatch(pattern, file.name) for pattern in NAMES):
            next(read_lines(file), None)


def find_format(path: PathLike) -> Optional[str]:
    """Format of a file, or of a folder's files; None where they do not say one format.

    A beam file makes a folder NeMo's, whatever its manifest is called. Archives of Kaldi and decode
    directories of ESPnet may have other lists beside them.
    """
    path = Path(path)
    if path.is_file():
        named = "jsonl" if unpacked_name(path.name).endswith(".jsonl") else None
        return _format_of(path) or named
    found: List[str] = []
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    for name in sorted(names, key=natural_order):
        if not (found and unpacked_name(name).endswith(".json")):  # one says it for all
            found += filter(None, [_format_of(path / name)])
    first = next((format for format in FOLDERS if format in found), None)
    return found[0] if first is None and len(set(found)) == 1 else first


def _format_of(path: Path) -> Optional[str]:
    """Format of a file or of a folder's entry, None where it is of none."""
    found = next((how for pattern, how in NAMES.items() if re.fullmatch(pattern, path.name)), None)
    if found is None or isinstance(found, str):
        return found
    try:
        return found(path)
    except InputError:
        return None


def _json_format(path: Path) -> Optional[str]:
    """Format of a JSON file by the keys of its first object, or by its nested lists."""
    _, line = next(read_lines(path), (1, ""))
    try:
        first = DECODER.decode(line)  # of JSON lines, whose file may be large
    except (ValueError, RecursionError):
        first = None
    if not isinstance(first, dict):  # of a list of utterances json_items gives the first
        _, first = next(json_items(path, remedy=""), (0, None))
    if isinstance(first, dict):
        for key, format in JSON_KEYS.items():
            if key in first:
                return format
        first = next(iter(first.values()), None)
    is_beams = isinstance(first, list) and bool(first) and isinstance(first[0], list)
    return "beams" if is_beams else None


def _lattice_format(path: Path) -> Optional[str]:
    """Format of a file of lattices: HTK's lines are `key=value`."""
    first = next((line for _, line in read_lines(path) if line.strip()), "")
    is_htk = first.startswith("#") or "=" in first
    return "htk" if is_htk else "kaldi_lattice" if first else None


NAMES: Dict[str, Union[str, Callable[[Path], Optional[str]]]] = {
    kaldi.PATTERN: "kaldi",
    rf"{kaldi.ESPNET_PATTERN}|logdir": "espnet",
    rf"{BESIDE}.*\.tsv{PACKED}": "nemo",
    rf".*\.(score|nbest){PACKED}": "srilm",
    rf"{BESIDE}.*\.jsonl?{PACKED}": _json_format,
    rf".*\.(slf|htk){PACKED}": "htk",
    rf".*\.(lats|ark){PACKED}": "kaldi_lattice",
    rf".*\.lat{PACKED}": _lattice_format,
}
"""Pattern of a whole name -> format, or what finds it in the file."""


def read_nbest(
    path: PathLike, format: Optional[str] = None, *, size: int = NBEST_SIZE
) -> Iterator[NBest]:
    """N-best lists of a file or folder, one by one.

    Memory holds one list and the ids. Some inputs are read whole: a Kaldi archive whose files
    have different orders, an ESPnet job, NeMo's files, and a file of Vosk's or of the
    Hypotheses Paradise.
    Utterances come as the files have them; files of a folder by natural order (u2 before u10).

    Args:
        path: The file or folder.
        format: A name of `READERS` or `LATTICE_READERS`; None: the format is found from names or
            contents of the files.
        size: The most hypotheses that are taken of a lattice, distinct and the best first. They
            are ranked by the scales of the lattice's file; Kaldi's have an LMWT of 10. Lists come
            whole.

    Raises:
        InputError: The format is unknown, or the input cannot be used.
    """
    return _reader(format_of(path, format), size, {})(path)


def _reader(format: str, size: int, scales: LatticeScales) -> Callable[[PathLike], Iterator[NBest]]:
    """Reader of a format's lists, or of the `size` best of its lattices, whose scales it notes."""
    if size < 1:
        raise InputError(f"--nbest_size {size}: 1 or more hypotheses were expected")
    if format not in LATTICE_READERS:
        read = READERS[format] if format in READERS.built_in else partial(_from_outside, format)
        return lambda path: _without_marks(read(path), path)

    def lists(path: PathLike) -> Iterator[NBest]:
        for item in LATTICE_READERS[format](path):
            scales.setdefault((item.scales, item.scores), item.utt)
            yield nbest_list(item, size)

    return lists


def _from_outside(format: str, path: PathLike) -> Iterator[NBest]:
    """Yield the lists of a format of another package; each error names a file."""
    utterances = UniqueUtterances(path)
    try:
        for nbest in READERS[format](path):
            if not isinstance(nbest, NBest):
                raise InputError(f"the reader of the format {format} gives {nbest!r}, no NBest")
            utterances.add(nbest.utt)
            yield nbest
        utterances.check()
    except Exception as error:  # a reader may raise any
        raise placed(error, path) from error


def _without_marks(lists: Iterable[NBest], path: PathLike) -> Iterator[NBest]:
    """Yield lists without `<s>` and `</s>` around hypotheses and references."""
    for nbest in lists:
        texts = [hyp.words for hyp in nbest.hypotheses] + [nbest.ref or ()]
        if any(mark in words for words in texts for mark in (START, END)):
            try:
                nbest = nbest.with_words(without_marks)
            except InputError as error:
                raise InputError(f"utterance {nbest.utt[:80]!r}: {error}", path=path) from error
        yield nbest


def nbest_writer(path: PathLike, *, format: str = "kaldi") -> ContextManager[AddList]:
    """Write N-best lists one by one, all or nothing; `read_nbest` reads them again.

    The block gets the function that adds a list.

    Args:
        path: The folder (made where it is missing), or, for jsonl, a name that ends in .jsonl
            or .jsonl.gz.
        format: One of `WRITERS`.

    Raises:
        ValueError: The format is not written or cannot hold a list (a reference in Kaldi's, a word
            with white space), or there are other lists in the folder that would be read with these.
    """
    if format not in WRITERS:
        remedy = f"Write one of: {', '.join(WRITERS)}; jsonl holds everything."
        raise InputError(f"N-best lists are not written in the format {format!r}", remedy=remedy)
    return WRITERS[format](Path(path))


def write_nbest(nbests: Iterable[NBest], path: PathLike, *, format: str = "kaldi") -> None:
    """Write N-best lists as `nbest_writer` does; one is kept in memory at a time."""
    with nbest_writer(path, format=format) as add:
        for nbest in nbests:
            add(nbest)


def normalized(
    lists: Iterable[NBest], normalization: Normalization, *, report: bool = True
) -> Iterator[NBest]:
    """Yield lists with normalised words, for scores and counts; `source` is the list as it came.

    Where `am_score` is ln P, hypotheses of one text have the sum of their probabilities.
    """
    num_changed = num_hyps = num_repeated = 0
    emptied: List[str] = []
    lists = iter(lists)
    ahead = list(itertools.islice(lists, LOOKED_AT))
    sums = all(map(_has_log_probs, ahead))
    for nbest in itertools.chain(ahead, lists):
        item = nbest.with_words(normalization.words)
        for hyp, new in zip(nbest.hypotheses, item.hypotheses, strict=True):
            num_hyps += 1
            num_changed += new.words != hyp.words
            if hyp.words and not new.words:
                emptied.append(f"{' '.join(hyp.words)[:40]!r} of {nbest.utt}")
        if sums and _has_log_probs(nbest):
            item = with_summed_scores(item)
            num_repeated += len(item.hypotheses) - len(set(item.numbered()))
        yield dataclasses.replace(item, source=nbest.source or nbest)
    if not report:
        return
    steps = ",".join(normalization.steps)
    LOG.info("--normalize %s changes %d of %d hypotheses", steps, num_changed, num_hyps)
    if num_repeated:
        told = "%d of %d repeat the text of another one: their probabilities are added up"
        LOG.info(f"--normalize %s: {told}", steps, num_repeated, num_hyps)
    if emptied:
        LOG.warning(
            "--normalize %s leaves no word of %d hypotheses, the first %s: they count as empty",
            *(steps, len(emptied), emptied[0]),
        )


def with_summed_scores(nbest: NBest) -> NBest:
    """List in which hypotheses of one text have one `am_score`, the ln of their summed P."""
    scores: Dict[Tuple[str, ...], List[Any]] = {}
    for hyp in nbest.hypotheses:
        scores.setdefault(hyp.words, []).append(hyp.am_score)
    sums = {words: float(np.logaddexp.reduce(own)) for words, own in scores.items()}
    hyps = (dataclasses.replace(h, am_score=sums[h.words]) for h in nbest.hypotheses)
    return dataclasses.replace(nbest, hypotheses=tuple(hyps))


def _has_log_probs(nbest: NBest) -> bool:
    """True if `am_score` may be ln P of each hypothesis: it stands alone, and P sum to 1 at most.

    Scores that are divided by the length sum to more.
    """
    scores = nbest.scores("am_score")
    if scores is None or nbest.acoustic or any(nbest.scores(n) is not None for n in SCORES[1:]):
        return False
    return bool(np.logaddexp.reduce(scores) <= ROUNDING)


class CheckedLists:
    """N-best lists that are read through before the work: no fault comes to light after hours.

    Each iteration reads them again, and none is kept.

    Attributes:
        format: Format of the lists.
        written_format: Format that they are written in: the same where it has a writer, else jsonl.
        utts: The utterances, in their order.
        refs: Utterance id -> words of the reference, for utterances that have one.
        scales: Scales of lattices, and their first utterances; empty for lists.
        firsts: Best hypotheses, normalised, of some lists where there are many.
    """

    def __init__(
        self,
        path: PathLike,
        format: Optional[str] = None,
        *,
        size: int = NBEST_SIZE,
        normalization: Normalization = AS_IT_IS,
    ):
        check_seekable(path)
        self.path, self.normalization = path, normalization
        self.scales: LatticeScales = {}
        self.format = format_of(path, format)
        self.written_format = self.format if self.format in WRITERS else "jsonl"
        self._read = _reader(self.format, size, self.scales)
        self.utts: Dict[str, None] = {}
        self.refs: Dict[str, Tuple[str, ...]] = {}
        unscored: List[str] = []
        self.firsts = Subset()
        for item in self:
            self.utts[item.utt] = None
            self.firsts.add(item.utt, item.hypotheses[0].words)
            if item.hypotheses[0].am_score is None:
                unscored.append(item.utt)
            if item.ref is not None:
                self.refs[item.utt] = item.ref
        if self.refs and not has_words(self.refs.values()):
            LOG.warning("%s: no reference has a word: they count as none", path)
            self.refs = {}
        warn_of_placeholders(self.refs, path)
        if 0 < len(unscored) < len(self.utts):
            raise InputError(
                f"{len(unscored)} of {len(self.utts)} lists have no first-pass score (the first:"
                f" {unscored[0][:80]!r})",
                path=self.path,
                remedy="Give scores for all lists, or for none: then the ranks take their place.",
            )

    def __iter__(self) -> Iterator[NBest]:
        lists = self._read(self.path)
        if not self.normalization.steps:
            return lists
        # the first reading reports what it changes
        return normalized(lists, self.normalization, report=not self.utts)
