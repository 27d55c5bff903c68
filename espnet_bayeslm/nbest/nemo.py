r"""NeMo's lists: a manifest with `beams`, or a beam file of `text<TAB>score` lines beside it.

`transcribe_speech.py` with `extract_nbest=true` puts a list into each line of the manifest,
`{"audio_filepath": .., "beams": [["text", score], ..]}`.

`eval_beamsearch_ngram*.py --preds_output_folder` writes `preds_out_*.tsv`, its hypotheses in the
order of the manifest's lines, `{"audio_filepath": .., "text": reference, ..}`, which hold no
hypotheses. The folder has one of each. A `text` of signs alone, such as NeMo's `-`, is no
reference. Scores are natural logs, the totals of the beam search. An utterance's id is its `utt`,
else the name of its audio file, with as many folders as tell it from other audio files, and with
its `offset` where several are parts of one file. The manifest says how many hypotheses each
utterance has (`num_hypotheses`). Without this number lists are told apart only where the borders
are certain: there is one utterance, or one line for each; or all lists are full (`width16` in the
beam file's name is the most that a list can have); or they have the same size, and the scores rise
from each list to the next and nowhere else.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path, PurePosixPath
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from espnet_bayeslm.evaluation.transcripts import has_words
from espnet_bayeslm.nbest.fields import UniqueUtterances, parse_number
from espnet_bayeslm.nbest.json_lists import DECODER, LIST, PAIR, checked, located, named, nbest_of
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, unpacked_name

COUNT = "num_hypotheses"
KEYS = ("utt", "text", "speaker", COUNT)
"""Keys of the manifest's lines that are read; others are kept."""
REMEDY = "Lines are `text<TAB>score`, as of eval_beamsearch_ngram's --preds_output_folder."
BEAM_SUFFIXES = (".tsv",)
MANIFEST_SUFFIXES = (".json", ".jsonl")
MANIFEST_REMEDY = 'Lines are {"audio_filepath": .., "text": ..}.'
BEAMS = "beams"
"""Key of the list in a line of a manifest."""
BEAMS_REMEDY = (
    'Lines are {"audio_filepath": .., "beams": [["text", score], ..]}, as of transcribe_speech.py'
    " with extract_nbest=true; or give the beam file (*.tsv)."
)
_WIDTH = re.compile(r"width([0-9]{1,9})(?![0-9])", re.ASCII)


def read_nemo(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a manifest with `beams`, or of a beam file, in its order.

    Args:
        path: The manifest, or a beam file, or the folder of either; the manifest is the folder's
            one *.json or *.jsonl (of several the one whose name has `manifest` in it).

    Raises:
        InputError: A line cannot be used (file, line, remedy), the number of lines differs from the
            manifest's, or there are no such files.
    """
    beams = Path(path)
    if beams.is_dir():
        named = (BEAM_SUFFIXES, "preds"), (MANIFEST_SUFFIXES, "manifest")
        beams = _one(beams, *named[not _found(beams, BEAM_SUFFIXES)])
    if unpacked_name(beams.name).endswith(MANIFEST_SUFFIXES):
        yield from _with_beams(beams)
        return
    manifest = _one(beams.parent, MANIFEST_SUFFIXES, "manifest")
    entries = _read_manifest(manifest)
    utts = _ids(entries, manifest)
    hypotheses = [_hypothesis(text, beams, line) for line, text in read_lines(beams)]
    counts, rest = _counts(entries, hypotheses, beams, manifest), iter(hypotheses)
    for line, (utt, entry, count) in enumerate(zip(utts, entries, counts, strict=True), 1):
        with located(manifest, line, MANIFEST_REMEDY):
            nbest = nbest_of(utt, itertools.islice(rest, count), entry, keys=KEYS, ref="text")
        yield nbest


def _with_beams(manifest: Path) -> Iterator[NBest]:
    """Yield the lists that a manifest holds."""
    entries = _read_manifest(manifest)
    for line, (utt, entry) in enumerate(zip(_ids(entries, manifest), entries, strict=True), 1):
        with located(manifest, line, BEAMS_REMEDY):
            hyps = map(_beam, checked(entry.get(BEAMS), BEAMS, LIST))
            nbest = nbest_of(utt, hyps, entry, keys=(*KEYS, BEAMS), ref="text")
        yield nbest


def _beam(row: Any) -> Hypothesis:
    text, score = checked(row, "a beam", PAIR)
    if score is not None:
        score = float(checked(score, "a score", "a finite number"))
    return Hypothesis(tuple(checked(text, "a hypothesis", "a string").split()), score)


def _found(folder: Path, suffixes: Tuple[str, ...]) -> List[Path]:
    """Files of a folder whose names end so, perhaps compressed."""
    return sorted(f for f in folder.iterdir() if unpacked_name(f.name).endswith(suffixes))


def _one(folder: Path, suffixes: Tuple[str, ...], name: str) -> Path:
    """The one file of a folder with such a suffix; of several the one with the name in it."""
    matches = _found(folder, suffixes)
    named = [f for f in matches if name in f.name]
    chosen = matches if len(matches) == 1 else named
    if len(chosen) != 1:
        raise InputError(
            f"{len(chosen) or len(matches)} files *{' or *'.join(suffixes)}, and one was expected",
            path=folder,
            remedy="A folder has a manifest (*.json) with `beams`, or a beam file (*.tsv) and its"
            " manifest; name the file where there are several.",
        )
    return chosen[0]


def _read_manifest(path: Path) -> List[Dict[str, Any]]:
    entries = []
    for number, line in read_lines(path):
        with located(path, number, MANIFEST_REMEDY):
            entry = checked(DECODER.decode(line), "the line", "an object")
            checked(entry.get("audio_filepath"), "audio_filepath", "a string")
            if entry.get("utt") is not None:
                entry["utt"] = named(entry["utt"], "utt")
            if entry.get(COUNT) is not None:
                checked(entry[COUNT], COUNT, "a number from 1")
            if _is_placeholder(entry.get("text")):
                del entry["text"]
        entries.append(entry)
    if not entries:
        raise InputError("no utterances", path=path, remedy=MANIFEST_REMEDY)
    return entries


def _is_placeholder(text: Any) -> bool:
    """True for a text without a letter or digit, such as `-`, where NeMo knows no reference."""
    return isinstance(text, str) and bool(text.strip()) and not has_words([text])


def _hypothesis(text: str, path: Path, line: int) -> Hypothesis:
    words, tab, score = text.rpartition("\t")
    if not tab:
        raise InputError(f"no tab in {text[:80]!r}", path=path, line=line, remedy=REMEDY)
    number = parse_number(score.strip(), path=path, line=line, remedy=REMEDY)
    return Hypothesis(tuple(words.split()), number)


def _counts(
    entries: Sequence[Dict[str, Any]],
    hypotheses: Sequence[Hypothesis],
    beams: Path,
    manifest: Path,
) -> List[int]:
    """Number of hypotheses of each utterance, as the manifest says or the beam file proves."""
    scores: List[Any] = [hyp.am_score for hyp in hypotheses]
    num_lines, num_utts = len(scores), len(entries)
    said = [entry[COUNT] for entry in entries if entry.get(COUNT) is not None]
    if len(said) == num_utts and sum(said) == num_lines:
        return said
    size, rest = divmod(num_lines, num_utts)
    if not said and size and not rest:
        # NeMo puts the width of the beam into the file's name, and no list exceeds it
        width = _WIDTH.search(beams.name)
        full = size in (1, num_lines) or bool(width and int(width[1]) == size)
        rises = [n for n in range(1, num_lines) if scores[n] > scores[n - 1]]
        if full or rises == list(range(size, num_lines, size)):
            return [size] * num_utts
    total = f" ({len(said)} of them with {sum(said)} hypotheses in all)" if said else ""
    raise InputError(
        f"{num_lines} lines, and {num_utts} utterances in {manifest}{total}; nothing tells which"
        " lines belong to which utterance",
        path=beams,
        remedy=f'Give each line of the manifest its number of lines here, "{COUNT}": N.',
    )


def _ids(entries: Sequence[Dict[str, Any]], manifest: Path) -> List[str]:
    """Utterance ids: names of audio files, with folders and offsets that tell them apart."""
    utts: List[Any] = [entry.get("utt") for entry in entries]
    if None in utts:
        paths = [PurePosixPath(entry["audio_filepath"]) for entry in entries]
        ends = [""] * len(paths)
        if len(set(paths)) < len(paths):  # parts of recordings
            offsets = [entry.get("offset") for entry in entries]
            ends = ["" if offset is None else f"-{offset}" for offset in offsets]
        for parts in range(1, max(len(path.parts) for path in paths) + 1):
            names = ["/".join((*path.parts[-parts:-1], path.stem)) for path in paths]
            utts = [name + end for name, end in zip(names, ends, strict=True)]
            if len(set(utts)) == len(utts):
                break
    remedy = "Utterances must differ in `utt`, or in the names of their audio files and `offset`."
    unique = UniqueUtterances(manifest, remedy=remedy)
    for line, utt in enumerate(utts, 1):
        unique.add(utt, manifest, line)
    return utts
