"""Inputs of an adaptation: lists with references, divided into the texts that train and tune."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.adaptation.parts import Parts
from espnet_bayeslm.adaptation.plan import Plan
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.text_checks import warn_leakage, warn_of_spelling
from espnet_bayeslm.evaluation.transcripts import has_words, read_transcripts
from espnet_bayeslm.evaluation.wer import Counting, check_same_utterances
from espnet_bayeslm.nbest.formats import CheckedLists, write_nbest
from espnet_bayeslm.nbest.segments import PlaceOf, recordings
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.pretrained.names import PREFIX
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, sha256, write_text
from espnet_bayeslm.utils.folders import staged
from espnet_bayeslm.utils.log import LOG

Refs = Mapping[str, Sequence[str]]
VALID, SOME = 100, 20
"""Most references of its part by which the epochs of a training are chosen, and those that the last
training reads, on whose figure nothing depends."""


def checked_input(
    nbest: Optional[str],
    format: Optional[str],
    ref: Optional[str],
    normalization: Normalization,
    counting: Counting,
) -> Tuple[Refs, List[NBest]]:
    """References and, in their order, the lists; without lists a reference is its own hypothesis.

    Says what another normalisation would gain.

    Raises:
        InputError: A list has no reference, or none has words.
    """
    refs: Refs = {}
    if ref is not None:
        refs = read_transcripts(ref)
    if nbest is None:
        if ref is None:
            raise InputError("neither lists nor references", remedy="Give --nbest, --ref or both.")
        _check_words(refs, ref)
        return refs, [NBest(utt, (Hypothesis(tuple(words)),)) for utt, words in refs.items()]
    lists = CheckedLists(nbest, format)
    refs = refs or lists.refs
    _check_words(refs, ref or nbest)
    check_same_utterances(refs, lists.utts, ref_path=ref or "", hyp_path=nbest)
    LOG.info("read %d N-best lists (%s) from %s", len(lists.utts), lists.format, lists.path)
    firsts = normalization.text(lists.firsts.texts) if normalization.steps else lists.firsts.texts
    warn_of_spelling(normalization.text(refs), firsts, counting, given=normalization.steps)
    by_utt = {item.utt: item for item in lists}
    return refs, [by_utt[utt] for utt in refs]


def _check_words(refs: Refs, path: PathLike) -> None:
    """Raise an InputError where no reference has words."""
    if not has_words(refs.values()):
        raise InputError("no references with words", path=path, remedy="Give --ref FILE.")


def write_texts(
    plan: Plan,
    parts: Parts,
    lists: Sequence[NBest],
    refs: Refs,
    said: Refs,
    more: Sequence[Refs] = (),
    order: Optional[PlaceOf] = None,
) -> None:
    """Write texts that train and tune, references, and which adapter scores which utterance.

    With the `order` of utterances, the texts of trainings have it, with a blank line between
    recordings.

    Args:
        plan: Where they are written.
        parts: Parts of the utterances.
        lists: The lists.
        refs: References as they came.
        said: References as an LM learns them: normalised, without ignored words.
        more: Sentences of other texts that train, as an LM learns them.
        order: Function of a list that says where it is.

    Raises:
        InputError: A part has no words to learn, or the folder holds parts of other lists.
    """
    taught = {parts.part_of[utt] for utt, words in said.items() if words}
    if len(taught) < parts.number:
        raise InputError(
            f"{sum(map(bool, said.values()))} of {len(said)} references have words to learn, and"
            f" each of {parts.number} parts needs some",
            remedy="Give some hundred references with words that are not ignored.",
        )
    between = "\n" * (order is not None)

    def text(items: Iterable[NBest]) -> str:
        runs = [items] if order is None else recordings(items, order)
        return "\n".join(_lines(said[item.utt] for item in run) for run in runs)

    others = "".join(between + _lines(sentences.values()) for sentences in more)
    keyed = {utt: " ".join(words) for utt, words in said.items() if words}
    files = {
        "adapt.txt": text(lists) + others,
        "some.txt": _lines(list(filter(None, said.values()))[:SOME]),
        "tune.text": "".join(f"{utt} {words}\n" for utt, words in keyed.items()),
        "tune.ref": "".join(
            f"{utt} {' '.join(words)}".rstrip() + "\n" for utt, words in refs.items()
        ),
    }
    for part in range(1, parts.number + 1):
        own = [item for item in lists if parts.part_of[item.utt] == part and said[item.utt]]
        rest = [item for item in lists if parts.part_of[item.utt] != part]
        files[f"valid{part}.txt"] = text(own[:VALID])
        files[f"adapt{part}.txt"] = text(rest) + others
    _keep(plan.data(""), files)
    for part in range(1, parts.number + 1):
        heard = [said[utt] for utt in refs if parts.part_of[utt] == part]
        what = f"the references of part {part}"
        warn_leakage(heard, plan.data(f"adapt{part}.txt"), what=what)


def write_utt2lm(plan: Plan, parts: Parts, config: str) -> None:
    """Write which adapter of a configuration scores each utterance."""
    rows = (f"{utt} {plan.exp(config, part)}\n" for utt, part in parts.part_of.items())
    write_text(plan.utt2lm(config), "".join(rows))


def write_lists(plan: Plan, lists: Sequence[NBest]) -> None:
    """Write the lists, in the order of the references.

    Raises:
        InputError: The folder holds other lists.
    """
    path = plan.data("tune.jsonl")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        own = Path(folder) / path.name
        write_nbest(lists, own, format="jsonl")
        if not path.exists():
            own.replace(path)
        elif not _holds(path, own.read_text("utf-8")):
            raise _of_others(path, "parts of other lists or texts")


def check_same_files(plan: Plan, names: Sequence[str]) -> None:
    """Check that LMs, n-grams and other files are those of the run that is gone on with.

    Raises:
        InputError: The content of one has changed.
    """
    path = plan.data("inputs.json")
    now = {name: digest for name in names if (digest := content_digest(name))}
    known: Dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if changed := [name for name, digest in now.items() if known.get(name, digest) != digest]:
        raise _of_others(plan.data(""), f"parts that were made with another {changed[0]}")
    write_text(path, json.dumps({**known, **now}))


def content_digest(name: str) -> str:
    """Digest of a file's content, or of the files of a folder; empty where there is neither."""
    place = Path(name.removeprefix(PREFIX))
    files = [place] if place.is_file() else sorted(place.glob("*")) if place.is_dir() else []
    return " ".join(f"{path.name} {sha256(path)}" for path in files if path.is_file())


def _keep(target: Path, files: Mapping[str, str]) -> None:
    """Write files to a new folder; one that exists must have them."""
    if not target.exists():
        with staged(target) as place:
            for name, content in files.items():
                (place / name).write_text(content, encoding="utf-8")
    elif any(not _holds(target / name, content) for name, content in files.items()):
        raise _of_others(target, "parts of other lists or texts")


def _of_others(path: Path, what: str) -> InputError:
    """Error of an output of another adaptation."""
    return InputError(
        f"holds {what} than those given now", path=path, remedy="Give a new --output."
    )


def _holds(path: Path, text: str) -> bool:
    """True if a file has this text."""
    return path.exists() and path.read_text("utf-8") == text


def learnt(sentences: Refs, normalization: Normalization, counting: Counting) -> Refs:
    """Sentences as an LM learns them: normalised, without the words that are not counted."""
    text = normalization.text(sentences)
    return {k: [w for w in words if w not in counting.ignored] for k, words in text.items()}


def read_more(path: PathLike) -> Refs:
    """Sentences of a text, by the number of their line.

    Raises:
        InputError: The text has no words.
    """
    found = {str(number): line.split() for number, line in read_lines(path)}
    if not any(found.values()):
        raise InputError("no words", path=path, remedy="Give a text, a sentence on each line.")
    return found


def _lines(sentences: Iterable[Sequence[str]]) -> str:
    """Sentences, a line each; those without words are left out."""
    return "".join(f"{' '.join(words)}\n" for words in sentences if words)
