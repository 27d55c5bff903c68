"""The format of N-best lists or lattices, where the names or the contents of files say it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Dict, Optional, Union

from espnet_bayeslm.nbest import espnet, kaldi
from espnet_bayeslm.nbest.fields import natural_order
from espnet_bayeslm.nbest.json_values import BadValue, json_items, parse_json
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines

JSON_KEYS = {"hypotheses": "jsonl", "input": "whisper", "alternatives": "vosk"}
"""Key of a list's JSON object -> format."""

FOLDERS = ("kaldi", "espnet", "nemo")
"""Formats of whole folders."""

BESIDE = r"(?!sweep\.)"
"""Begins patterns that leave out the files that `rescore` writes beside its lists."""


def find_format(path: PathLike) -> Optional[str]:
    """Format of a file, or of a folder's files; None where they do not say one format.

    A beam file makes a folder NeMo's, whatever its manifest is called. Archives of Kaldi and decode
    directories of ESPnet may have other lists beside them.
    """
    path = Path(path)
    if path.is_file():
        named = "jsonl" if path.name.endswith((".jsonl", ".jsonl.gz")) else None
        return _format_of(path, path.name) or named
    found: Dict[str, None] = {}
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    for name in sorted(names, key=natural_order):
        if not (found and name.removesuffix(".gz").endswith(".json")):  # one says it for all
            found.update(dict.fromkeys(filter(None, [_format_of(path / name, name)])))
    formats = list(found)
    first = next((format for format in FOLDERS if format in found), None)
    chosen = formats if first is None else [first]
    return chosen[0] if len(chosen) == 1 else None


def _format_of(path: Path, name: str) -> Optional[str]:
    """Format of a file or of a folder's entry, None where it is of none."""
    found = next((how for pattern, how in NAMES.items() if re.fullmatch(pattern, name)), None)
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
        first = parse_json(line)  # of JSON lines, whose file may be large
    except BadValue:
        first = None
    if not isinstance(first, dict):
        _, first = next(json_items(path, remedy=""), (0, None))
    keys = first if isinstance(first, dict) else {}
    found = next((format for key, format in JSON_KEYS.items() if key in keys), None)
    if found is not None:
        return found
    # of a list of utterances json_items gives the first
    rows = next(iter(keys.values()), None) if keys else first
    is_beams = isinstance(rows, list) and bool(rows) and isinstance(rows[0], list)
    return "beams" if is_beams else None


def _lattice_format(path: Path) -> Optional[str]:
    """Format of a file of lattices: HTK's lines are `key=value`."""
    lines = (line for _, line in read_lines(path) if line.strip())
    first = next(lines, None)
    if first is None:
        return None
    return "htk" if first.startswith("#") or "=" in first else "kaldi_lattice"


NAMES: Dict[str, Union[str, Callable[[Path], Optional[str]]]] = {
    kaldi.PATTERN: "kaldi",
    rf"{espnet.PATTERN}|logdir": "espnet",
    rf"{BESIDE}.*\.tsv(\.gz)?": "nemo",
    r".*\.(score|nbest)(\.gz)?": "srilm",
    rf"{BESIDE}.*\.jsonl?(\.gz)?": _json_format,
    r".*\.(slf|htk)(\.gz)?": "htk",
    r".*\.(lats|ark)(\.gz)?": "kaldi_lattice",
    r".*\.lat(\.gz)?": _lattice_format,
}
"""Pattern of a whole name -> format, or what finds it in the file."""
