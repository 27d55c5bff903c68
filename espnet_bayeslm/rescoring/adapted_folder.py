"""Folder of `bayeslm adapt`: an LM and all that goes with it, for `rescore --adapted`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from espnet_bayeslm.pretrained.names import PREFIX
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.rescoring.scales import NOT_USED, read_scales
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_as, write_yaml
from espnet_bayeslm.utils.log import LOG

OPTIONS_FILE = "adapted.yaml"
LMS = {"lm": "lms", "ngram": "ngrams"}
FILES = ("weights", "scales", "ignore_words")
PLAIN = ("normalize", "unit", "precision", "context", "recording_of")
TOLD = ("used", "note")
"""Option -> its field: those of LMs, which may be several, of files, and of plain values."""
BROUGHT = {"subtract_lm": "subtract_lms", "utt2lm": "utt2lm"}
BROUGHT.update((name, name) for name in ("text_form", "tune_lms", "lmwt", "word_penalty"))
"""Further options that say what the folder says."""


def write_adapted(folder: Path, options: Mapping[str, Any]) -> None:
    """Write the options that `rescore --adapted FOLDER` takes, by the names of the command line.

    A path in the folder is written as seen from there, any other as a whole path.
    """
    content = dict(options)
    for name in LMS:
        content[name] = [_from(folder, str(lm)) for lm in options.get(name, ())]
    for name in FILES:
        if content.get(name) is not None:
            content[name] = _from(folder, str(options[name]))
    write_yaml(folder / OPTIONS_FILE, {name: value for name, value in content.items() if value})


def _from(folder: Path, name: str) -> str:
    """Path as it is written in a folder's file; a name of the hub as it is."""
    path = Path(name.removeprefix(PREFIX))
    if not path.exists():
        return name
    path, folder = path.resolve(), folder.resolve()
    place = path.relative_to(folder) if path.is_relative_to(folder) else path
    return f"{PREFIX * name.startswith(PREFIX)}{place}"


def with_adapted(options: RescoreOptions, adapted: PathLike, *tunes: str) -> RescoreOptions:
    """Options of a rescoring with those that a folder brings, in place of a tuning."""
    folder = Path(adapted)
    path = folder / OPTIONS_FILE
    if not path.is_file():
        remedy = "Give the --output of `bayeslm adapt`; if it has not finished, run it again."
        raise InputError(f"no {OPTIONS_FILE} in it", path=folder, remedy=remedy)
    filled = read_yaml_as(
        path,
        lambda content: _filled(options, folder, content, tunes),
        problem="not as `bayeslm adapt` writes it",
        remedy="Give the --output of `bayeslm adapt`.",
    )
    if filled.bias is None and filled.scales is not None:
        # they may have been tuned with a bias list, and these lists have none
        known = read_scales(filled.scales)
        if known.unbiased is not None:
            filled = dataclasses.replace(filled, scales=known.without_bias)
    return without_unused_lms(filled)


def _filled(
    options: RescoreOptions, folder: Path, content: Mapping[str, Any], tunes: Sequence[str]
) -> RescoreOptions:
    """Options with the content of a folder's file."""
    known = {**LMS, **{name: name for name in (*FILES, *PLAIN)}}
    told = [str(content[name]) for name in TOLD if name in content]
    content = {name: value for name, value in content.items() if name not in TOLD}
    if unknown := sorted(map(str, set(content) - set(known))):
        raise InputError(f"unknown: {', '.join(unknown)[:80]}; expected {', '.join(known)}")
    if told:
        (LOG.info if len(told) == 1 else LOG.warning)("%s: used: %s", folder, "; ".join(told))
    given, usual = options.values(), RescoreOptions().values()
    fields = {**known, **BROUGHT}
    twice = [
        f"--{name}"
        for name, field in fields.items()
        if (given[field] or None) != (usual[field] or None)
    ]
    twice += tunes
    if twice:
        raise InputError(
            f"--adapted brings its own LM, weights and form of text: {', '.join(twice)}",
            remedy="Leave out one or the other.",
        )
    return RescoreOptions.of(**{**given, **_values(folder, content)})


def without_unused_lms(options: RescoreOptions) -> RescoreOptions:
    """Options without their LMs where the scales give these no weight: none is read and scored."""
    known = options.scales
    if known is None or read_scales(known).uses_lm:
        return options
    if options.mixture.lms:
        LOG.warning(NOT_USED)
    none: Any = dict(lms=(), ngrams=(), weights=None, context="none")
    return RescoreOptions.of(**{**options.values(), **none})


def _values(folder: Path, content: Mapping[str, Any]) -> Dict[str, Any]:
    """Fields of options, with the paths as seen from here."""

    def there(name: object) -> str:
        text = str(name)
        place = folder / text.removeprefix(PREFIX)
        return f"{PREFIX * text.startswith(PREFIX)}{place}" if place.exists() else text

    values: Dict[str, Any] = {}
    for name, value in content.items():
        if name in LMS:
            names: List[Any] = value if isinstance(value, list) else [value]
            values[LMS[name]] = tuple(there(one) for one in names)
        else:
            values[name] = there(value) if name in FILES else value
    return values
