"""HTK lattices (SLF, Standard Lattice Format), as HTK, SRILM and PocketSphinx write them.

One file an utterance, `UTT.lat`, `.slf` or `.htk`, perhaps gzipped. Lines are `key=value` fields: a
header, nodes (`I=`), links (`J=`). Words stand on the nodes or on the links: a path has the same
words either way, and a written lattice has words on the links. Scores are logs to the header's
`base` (natural ones where it has none), and are written as natural logs. Links of log zero (-inf,
or HTK's -1e10) are on no path.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Tuple

from espnet_bayeslm.nbest.fields import (
    SURROGATE,
    UniqueUtterances,
    files_matching,
    folder_writer,
    format_number,
    utterance_of,
)
from espnet_bayeslm.nbest.lattice import NULL, SILENT, TRANSITIONS, Arc, Lattice, PathScales
from espnet_bayeslm.nbest.lattice_builder import MAX_ARCS, LatticeBuilder
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PACKED, PathLike, read_lines

MAX_NAME = 255  # bytes, on most file systems
SUFFIXES = (".lat", ".slf", ".htk")
PATTERN = rf".*\.(lat|slf|htk){PACKED}"
"""Names that are read in a folder."""

REMEDY = "Nodes are `I=0 t=0.00 W=word`, links `J=0 S=0 E=1 a=-5.5 l=-2.1` (HTK's SLF)."
# Key, and value in quotes or without
_FIELD = re.compile(
    r"""\s*([^\s=]+)=(?:("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')(?!\S)|(\S*))""", re.DOTALL
)
_INTEGER = re.compile("[0-9]{1,15}", re.ASCII)
_ESCAPED = re.compile(r"((?:\\[0-7]{3})+)|\\(.)", re.DOTALL)
LONG_NAMES = {
    **{"NODES": "N", "LINKS": "L", "NODE": "I", "LINK": "J", "START": "S", "END": "E"},
    **{"WORD": "W", "time": "t", "acoustic": "a", "language": "l", "var": "v"},
}
"""HTK's long names of fields; `start` and `end` of the header are others than `START`, `END`."""

# Scores of a link, and the weights of a header.
SCORES = {"a": "am_score", "l": "lm_score", "r": "graph_score"}
SCALE_OF = {"acscale": "am", "lmscale": "lm", "prscale": "graph", "wdpenalty": "word"}
# Fields of a header that are written from the lattice itself
WRITTEN = {"VERSION", "N", "L", "start", "end", "base", *SCALE_OF}
INTEGERS = ("N", "L", "start", "end")
NODE_KEYS = ("I", "t", "W")
LINK_KEYS = ("J", "S", "E", "W", *SCORES)

Fields = Dict[str, str]


def read_htk(path: PathLike, *, max_arcs: int = MAX_ARCS) -> Iterator[Lattice]:
    """Yield the lattice of a file, or the lattices of a folder by natural order.

    Raises:
        InputError: A file that is no such lattice (file, line, remedy), or an id twice.
    """
    remedy = "They are called UTT.lat, UTT.slf.gz, .."
    utterances = UniqueUtterances(path)
    for file in files_matching(Path(path), PATTERN, problem="no HTK lattices in it", remedy=remedy):
        lattice = read_lattice(file, max_arcs=max_arcs)
        utterances.add(lattice.utt, file)
        yield lattice


def read_lattice(path: PathLike, *, max_arcs: int = MAX_ARCS) -> Lattice:
    """Lattice of one file.

    Raises:
        InputError: The file is no HTK lattice, or has more than `max_arcs` arcs.
    """
    return _Reader(Path(path), max_arcs).read()


def _unescaped(match: re.Match[str]) -> str:
    """Character of an escape; several of three octal digits are bytes of UTF-8."""
    if match[2] is not None:
        return match[2]
    return bytes(int(code, 8) & 0xFF for code in match[1].split("\\")[1:]).decode("utf-8")


class _Reader(LatticeBuilder):
    """Reads one file: a header, then nodes, each before its links."""

    def __init__(self, path: Path, max_arcs: int):
        super().__init__(utterance_of(path, SUFFIXES), path, max_arcs=max_arcs, remedy=REMEDY)
        self.header: Dict[str, Tuple[int, str]] = {}
        """Key -> line and value."""
        self.base = math.e
        """Base of the logs; 0: probabilities."""
        self.node_fields: List[Fields] = []
        """By the nodes' index."""
        self.links: Dict[int, int] = {}
        """Number of each link -> its line."""
        self.keys: List[Tuple[str, ...]] = []
        """Word and scores of each link, as far as it has them."""

    def read(self) -> Lattice:
        """Lattice of the file."""
        lines = read_lines(self.path)
        for self.line, line in lines:
            if line.startswith("#") or not line.strip():
                continue
            fields = self._fields(line)
            if "I" in fields:
                self._add_node(fields)
            elif "J" in fields:
                self._add_link(fields)
            else:
                self._add_header(fields)
        if not self.nodes:
            raise self.error("no nodes, and lines `I=0 W=word` were expected")
        return self._lattice()

    def _fields(self, line: str) -> Fields:
        """Fields of a line, by their short names."""
        if rest := _FIELD.sub("", line).strip():
            raise self.error(f"{rest[:60]!r} stands where `key=value` was expected")
        fields: Fields = {}
        for match in _FIELD.finditer(line):
            key = LONG_NAMES.get(match[1], match[1])
            if key in fields:
                raise self.error(f"the field {key[:40]!r} comes twice in the line")
            value = match[3] if match[2] is None else match[2][1:-1]
            try:
                fields[key] = _ESCAPED.sub(_unescaped, value)
            except UnicodeDecodeError as error:
                problem = f"the bytes of {value[:60]!r} are not UTF-8"
                raise self.error(problem, "Convert the lattice to UTF-8.") from error
        if "SUBLAT" in fields or ("I" in fields and "L" in fields):
            remedy = "Expand it first (HTK's HLRescore or SRILM's lattice-tool)."
            raise self.error("a sub-lattice in place of a word", remedy)
        word = fields.get("W", "!NULL")
        if word.split() != [word] or SURROGATE.search(word):
            raise self.error(f"W={word[:60]!r}: expected one word without white space")
        return fields

    def _add_header(self, fields: Fields) -> None:
        if self.nodes:
            shown = ", ".join(fields)[:60]
            raise self.error(f"the fields {shown} stand after the nodes, not in the header")
        for key, value in fields.items():
            if key in self.header:
                first, _ = self.header[key]
                raise self.error(f"the field {key[:40]!r} stands already in line {first}")
            if key in INTEGERS:
                self._integer(fields, key)
            elif key in SCALE_OF:
                self.number(value)
            elif key == "base":
                self.base = self.number(value)
                if self.base < 0 or self.base == 1:
                    raise self.error(f"base={value[:60]}: expected the base of logarithms")
            self.header[key] = self.line, value

    def _integer(self, fields: Fields, key: str) -> int:
        """Number of a field that must be there."""
        if key not in fields:
            raise self.error(f"the field {key} is missing")
        if not _INTEGER.fullmatch(fields[key]):
            raise self.error(f"{key}={fields[key][:60]}: expected a number from 0")
        return int(fields[key])

    def _add_node(self, fields: Fields) -> None:
        name = self._integer(fields, "I")
        if name in self.nodes:
            raise self.error(f"the node {name} comes twice")
        if "t" in fields:
            self.number(fields["t"])
        self.node_fields.append(fields)
        self.node(name)

    def _add_link(self, fields: Fields) -> None:
        name = self._integer(fields, "J")
        if name in self.links:
            raise self.error(f"the link {name} stands already in line {self.links[name]}")
        self.links[name] = self.line
        ends = [self._integer(fields, key) for key in "SE"]
        for end in ends:
            if end not in self.nodes:
                raise self.error(f"a link to the node {end}, and no line `I={end}` before it")
        source, target = (self.nodes[end] for end in ends)
        self.keys.append(tuple(key for key in ("W", *SCORES) if key in fields))
        scores = {name: self._score(fields[key]) for key, name in SCORES.items() if key in fields}
        node = self.node_fields[target]
        label = fields.get("W", node.get("W", NULL))
        details = {key: value for key, value in fields.items() if key not in LINK_KEYS}
        for key, value in node.items():
            if key not in NODE_KEYS:
                details.setdefault(key, value)
        self.add(Arc(source, target, label, **scores, details=tuple(details.items())))

    def _score(self, value: str) -> float:
        """Natural log of a score, -inf where it is the log of zero."""
        if self.base > 0:
            return self.log(value, unit=math.log(self.base))
        number = self.number(value)  # HTK: no logs
        if number < 0:
            raise self.error(f"the probability {value[:60]} has no logarithm")
        return math.log(number) if number else -math.inf

    def _lattice(self) -> Lattice:
        for key, number, what in (("N", len(self.nodes), "nodes"), ("L", len(self.links), "links")):
            line, value = self.header.get(key, (0, str(number)))
            if int(value) != number:
                problem = f"{key}={value}, and there are {number} {what}"
                raise self.error(problem, "Copy it again: it may be cut.", line=line)
        start, end = self._terminal("start"), self._terminal("end")
        self._check_words()
        keys = self._scores() or ["a"]
        first = self.node_fields[start]
        if first.get("W", NULL) not in SILENT:  # an arc to the start has its word
            self.line = self.node_lines[start]
            details = tuple((k, v) for k, v in first.items() if k not in NODE_KEYS)
            after, start = start, self.node(-1)
            self.add(Arc(start, after, first["W"], details=details))
            self.node_fields.append({"t": first["t"]} if "t" in first else {})
        times = [float(node["t"]) if "t" in node else None for node in self.node_fields]
        names = {key: name for key, name in SCALE_OF.items() if key in self.header}
        scales = {name: float(self.header[key][1]) for key, name in names.items()}
        if "word" in scales and self.base > 0:
            scales["word"] *= math.log(self.base)
        return self.lattice(
            start,
            end,
            scores=tuple(SCORES[key] for key in keys),
            scales=PathScales(**scales),
            times=times if any(time is not None for time in times) else (),
            header=tuple((k, v) for k, (_, v) in self.header.items() if k not in WRITTEN),
        )

    def _check_words(self) -> None:
        """Check that all nodes have a word, or all links and no node."""
        on_links = any("W" in keys for keys in self.keys)
        for node, line in zip(self.node_fields, self.node_lines, strict=True):
            if on_links and node.get("W", NULL) not in SILENT:
                problem = f"the node has the word {node['W']!r:.60}, and links have words too"
                raise self.error(problem, line=line)
            if not on_links and "W" not in node:
                raise self.error("the field W is missing", line=line)
        for keys, line in zip(self.keys, self.arc_lines, strict=True):
            if on_links and "W" not in keys:
                raise self.error("the field W is missing", line=line)

    def _scores(self) -> List[str]:
        """Keys of the links' scores; a link without a word may lack some, which are 0 (SRILM)."""
        found = [key for key in SCORES if any(key in keys for keys in self.keys)]
        for arc, keys, line in zip(self.arcs, self.keys, self.arc_lines, strict=True):
            given = [key for key in found if key in keys]
            if arc.word is not None and given != found:
                raise self.error(
                    f"the link of {arc.word!r:.60} has the scores {', '.join(given) or 'none'},"
                    f" other links {', '.join(found)}",
                    "Give each link with a word all scores, 0 for a missing one.",
                    line=line,
                )
        return found

    def _terminal(self, key: str) -> int:
        """Index of the start or end node: as the header says, or the only one that can be it."""
        if key in self.header:
            line, name = self.header[key]
            if int(name) not in self.nodes:
                raise self.error(f"{key}={name}, and there is no node {name}", line=line)
            return self.nodes[int(name)]
        joined = {arc.source if key == "end" else arc.target for arc in self.arcs}
        free = [name for name, index in self.nodes.items() if index not in joined]
        if len(free) != 1:
            what = "final" if key == "end" else "initial"
            found = f"{len(free)} nodes ({', '.join(map(str, free[:5]))})" if free else "no node"
            problem = f"no field {key}=, and {found} where one {what} node was expected"
            raise self.error(problem, f"Name the {what} node in the header: {key}=N.")
        return self.nodes[free[0]]


@contextlib.contextmanager
def htk_writer(folder: PathLike) -> Iterator[Callable[[Lattice], None]]:
    """Write lattices as UTT.lat, all or nothing; reading gives the same, by natural order."""
    with folder_writer(Path(folder), PATTERN) as (known, temporary):

        def add(lattice: Lattice) -> None:
            known.add(lattice.utt)
            name = f"{lattice.utt}.lat"
            if "/" in name or "\0" in name or len(os.fsencode(name)) > MAX_NAME:
                problem = f"the utterance id {lattice.utt[:80]!r} cannot be the name of a file"
                raise InputError(problem, remedy="Write Kaldi lattices.")
            (temporary / name).write_text("".join(_lines(lattice)), encoding="utf-8")

        yield add


def _lines(lattice: Lattice) -> Iterator[str]:
    yield "VERSION=1.0\n"
    for pair in lattice.header:
        yield f"{_field(*pair)}\n"
    scales = (f"{k}={format_number(getattr(lattice.scales, name))}" for k, name in SCALE_OF.items())
    yield f"{' '.join(scales)}\n"
    yield f"start=0 end={lattice.end}\nN={lattice.num_nodes} L={len(lattice.arcs)}\n"
    for node in range(lattice.num_nodes):
        time = lattice.times[node] if lattice.times else None
        yield f"I={node}\n" if time is None else f"I={node} t={format_number(time)}\n"
    keys = {key: name for key, name in SCORES.items() if name in lattice.scores}
    for number, arc in enumerate(lattice.arcs):
        fields = [("W", arc.label or "!NULL")]
        fields += [(key, format_number(getattr(arc, name))) for key, name in keys.items()]
        fields += [pair for pair in arc.details if pair[0] != TRANSITIONS]
        line = " ".join(_field(*pair) for pair in fields)
        yield f"J={number} S={arc.source} E={arc.target} {line}\n"


def _field(key: str, value: str) -> str:
    """Field of a line, in quotes where its value would be read as another."""
    if value[:1] in ('"', "'") or "\\" in value or value.split() != [value]:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'{key}="{escaped}"'
    return f"{key}={value}"
