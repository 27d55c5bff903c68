"""Files of n-grams, read by KenLM."""

from __future__ import annotations

import os
from pathlib import Path

import kenlm

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, sha256

NGRAM_SUFFIXES = {".gz", ".bz2", ".xz", ".arpa", ".bin", ".binary", ".klm", ".lm"}


def load_kenlm(path: PathLike) -> kenlm.Model:
    """Model of an ARPA file or a KenLM binary.

    Raises:
        InputError: The file is missing or is no n-gram that KenLM can read.
    """
    _check_file(path)
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE  # on where a binary would load faster
    try:
        return kenlm.Model(os.fspath(path), config)
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        # KenLM's own words, without the C++ signature before them
        reason = str(error).rsplit("Exception. ", 1)[-1] if isinstance(error, OSError) else ""
        raise InputError(
            f"not an n-gram that KenLM can read ({reason.strip(' ()') or 'not an ARPA file'})",
            path=path,
            remedy="Give an ARPA file or a KenLM binary of order 2 or more.",
        ) from error


def ngram_fingerprint(path: PathLike) -> str:
    """Digest of an n-gram's file, by which weights find it under any name.

    Raises:
        InputError: The file is missing.
    """
    _check_file(path)
    return sha256(path)


def _check_file(path: PathLike) -> None:
    """Raise an InputError where there is no such file."""
    if os.path.isdir(path):
        raise InputError(
            "a folder, and an n-gram is a file",
            path=path,
            remedy="An LM's experiment folder is given by --lm; `bayeslm ngram` makes an n-gram.",
        )
    if not os.path.isfile(path):
        raise InputError("no such n-gram file", path=path, remedy="Make one with `bayeslm ngram`.")


def ngram_name(path: PathLike) -> str:
    """Name of a file without its format: `3gram` for `3gram.arpa.gz`."""
    name = Path(path)
    while name.suffix in NGRAM_SUFFIXES and name.stem:
        name = name.with_suffix("")
    return name.name
