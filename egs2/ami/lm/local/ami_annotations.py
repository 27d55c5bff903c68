"""Sentences of the AMI corpus's public manual annotations, by lhotse's parser and its split."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple
from xml.etree import ElementTree

from espnet_bayeslm.utils.errors import InputError

Sentences = List[Tuple[str, List[str]]]
"""Utterance ids and their words."""

# The split of Kaldi's recipe and of the paper, and what lhotse calls the sets.
PARTITION = "full-corpus-asr"
SETS = {"train": "train", "dev": "dev", "eval": "test"}
MAX_WORDS = 30  # as Kaldi's recipe: longer sentences are cut at commas
LAYOUT = ("corpusResources/meetings.xml", "segments", "words")
IN_ZIP = ("/corpusResources/meetings.xml", "/segments/", "/words/")
DOWNLOAD = (
    "Get ami_public_manual_1.6.2.zip from https://groups.inf.ed.ac.uk/ami/download/ (the AMI"
    " corpus, manual annotations) and give it, or its folder."
)


def is_annotations(folder: Path) -> bool:
    """Return whether a folder has the parts of the annotations that are read."""
    return all((folder / name).exists() for name in LAYOUT)


def find_annotations(path: Path) -> Path:
    """Return the folder or the zip file of the annotations: `path` itself, or what lies in it."""
    if not path.exists():
        raise InputError("no such file or folder", path=path, remedy=DOWNLOAD)
    if path.is_file():
        if not zipfile.is_zipfile(path):
            raise InputError("expected a folder or a zip file", path=path, remedy=DOWNLOAD)
        return path
    folders = [path, *(entry for entry in sorted(path.iterdir()) if entry.is_dir())]
    zips = sorted(path.glob("ami_public_manual_*.zip"))
    for candidate in (*filter(is_annotations, folders), *zips):
        return candidate
    raise InputError(
        f"neither {', '.join(LAYOUT)} nor ami_public_manual_*.zip is there or in a folder of it",
        path=path,
        remedy=DOWNLOAD,
    )


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the annotations' folder; that of a zip file is a temporary one."""
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory() as temporary:
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                wanted = [name for name in names if any(part in f"/{name}" for part in IN_ZIP)]
                archive.extractall(temporary, wanted)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise InputError(f"cannot be unpacked ({error})", path=path, remedy=DOWNLOAD) from error
        folders = [Path(temporary), *sorted(Path(temporary).iterdir())]
        found = next(filter(is_annotations, folders), None)
        if found is None:
            raise InputError(f"does not hold {', '.join(LAYOUT)}", path=path, remedy=DOWNLOAD)
        yield found


def _lhotse() -> Any:
    """Return lhotse's AMI recipe."""
    try:
        from lhotse.recipes import ami
    except ImportError as error:
        raise InputError(
            f"the package lhotse parses the annotations, and cannot be imported ({error})",
            remedy="pip install lhotse; or give the text as AMI_TEXT, which needs no parser.",
        ) from error
    return ami


def _parse(folder: Path) -> Mapping[Tuple[str, str, int], Sequence[Any]]:
    """Return lhotse's {(meeting, speaker, channel): segments with `text` and `start_time`}."""
    ami = _lhotse()
    try:
        return ami.parse_ami_annotations(
            folder, normalize="kaldi", max_words_per_segment=MAX_WORDS, merge_consecutive=False
        )
    except (ElementTree.ParseError, LookupError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"lhotse cannot parse this ({type(error).__name__}: {error})",
            path=_unreadable(folder) or folder,
            remedy="Is the archive whole? Unpack it anew.",
        ) from error


def _unreadable(folder: Path) -> Optional[Path]:
    """Return the first file that is no XML."""
    for name in LAYOUT:
        part = folder / name
        for path in sorted(part.iterdir()) if part.is_dir() else [part]:
            try:
                ElementTree.parse(path)
            except (ElementTree.ParseError, OSError):
                return path
    return None


def read_annotations(path: Path) -> Dict[str, Sentences]:
    """Return {set: sentences} of the annotations, each meeting's in the order of time.

    Words are those of lhotse's normalisation after Kaldi's recipe, in lower case; the ids are
    ami-SET-MEETING-NUMBER-SPEAKER.
    """
    with unpacked(find_annotations(path)) as folder:
        parsed = _parse(folder)
    meetings: Dict[str, List[Tuple[float, str, List[str]]]] = {}
    for (meeting, speaker, _), segments in parsed.items():
        for item in segments:
            # what has neither letter nor digit is no word
            words = [w for w in item.text.lower().split() if any(c.isalnum() for c in w)]
            if words:
                meetings.setdefault(meeting, []).append((item.start_time, speaker, words))
    sets = {}
    for name, its_name in SETS.items():
        wanted = sorted(_lhotse().PARTITIONS[PARTITION][its_name])
        missing = [meeting for meeting in wanted if not meetings.get(meeting)]
        if missing:
            logging.warning(
                f"{path}: {len(missing)} of the {len(wanted)} meetings of {name} are not there, the"
                f" first {missing[0]}"
            )
        sets[name] = [
            (f"ami-{name}-{meeting}-{number:05d}-{speaker}", words)
            for meeting in wanted
            for number, (_, speaker, words) in enumerate(sorted(meetings.get(meeting, [])))
        ]
    return sets
