"""Files of n-grams, read by KenLM."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path

import kenlm

from espnet_bayeslm.utils.arpa_text import (
    arpa_order,
    not_an_ngram,
    unigram_sum,
    write_normalized,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, sha256

NGRAM_SUFFIXES = {".gz", ".bz2", ".xz", ".arpa", ".bin", ".binary", ".klm", ".lm"}
_REFUSED = (OSError, RuntimeError, UnicodeDecodeError)
# Sums of rounded probabilities may exceed 1 by less
_MAX_EXCESS = 1e-3


def load_kenlm(path: PathLike) -> kenlm.Model:
    """Model of an ARPA file or a KenLM binary; a unigram model has the order 2 there.

    An ARPA file that KenLM refuses is rewritten in KenLM's spelling to a temporary file.
    """
    _check_file(path)
    order = arpa_order(path)
    if order:
        _check_unigrams(path)
    if order != 1:
        with contextlib.suppress(*_REFUSED):
            return _read(path)
    if not order:
        raise not_an_ngram("neither an ARPA file nor a KenLM binary of its version", path)
    with tempfile.NamedTemporaryFile(suffix=".arpa") as rewritten:
        write_normalized(path, rewritten)
        rewritten.flush()
        try:
            return _read(rewritten.name)
        except _REFUSED as error:
            raise not_an_ngram("an n-gram in it contradicts the others", path) from error


def _read(path: PathLike) -> kenlm.Model:
    """Model that KenLM reads, while its C++ code prints nothing."""
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE  # on where a binary would load faster
    with open(os.devnull, "wb") as nothing:
        stderr = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            return kenlm.Model(os.fspath(path), config)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _check_unigrams(path: PathLike) -> None:
    """Warn where an ARPA file's unigrams sum to more than one, or lack `<unk>`."""
    total, has_unknown = unigram_sum(path)
    if total > 1 + _MAX_EXCESS:
        logging.warning(
            "%s: its unigram probabilities sum to %.4g, and at most 1 was expected: perplexities"
            " come out too low. Estimate it again, or normalise it.",
            path,
            total,
        )
    if not has_unknown:
        logging.info("%s: has no <unk>; unknown words get the log10 probability -100", path)


def ngram_fingerprint(path: PathLike) -> str:
    """Digest of an n-gram's file, by which weights find it under any name."""
    _check_file(path)
    return sha256(path)


def _check_file(path: PathLike) -> None:
    """Raise an InputError where there is no such file."""
    if os.path.isdir(path):
        raise InputError(
            "a folder, where an n-gram file was expected",
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
