"""KenLM's own estimator, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from typing import IO, List, Optional

from espnet_bayeslm.ngram.arpa import copy_header
from espnet_bayeslm.ngram.text import EOS, Corpus
from espnet_bayeslm.utils.errors import InputError

# lmplz's default is 80 % of the machine, which recipes share with other jobs; it sorts on disk
_SORT_MEMORY = "1G"


def find_lmplz(lmplz: str) -> Optional[str]:
    """Program that `auto`, `none` or a path stands for; None for our estimator.

    Raises:
        InputError: The path is no program.
    """
    if lmplz == "none":
        return None
    program = shutil.which("lmplz" if lmplz == "auto" else lmplz)
    if program is None and lmplz != "auto":
        raise InputError(
            "--lmplz names no program that can be run",
            path=lmplz,
            remedy="Give the path of lmplz, auto or none.",
        )
    return program


def run_lmplz(
    corpus: Corpus, output: IO[bytes], *, program: str, order: int, discount_fallback: bool = False
) -> List[int]:
    """Numbers of n-grams per order of lmplz's ARPA, which is written to `output`.

    Args:
        corpus: The text.
        output: Open binary stream.
        program: Path of lmplz.
        order: Highest order.
        discount_fallback: Its option of this name, with its default discounts.

    Raises:
        InputError: lmplz failed; holds what it said.
    """
    command = [program, "--order", str(order), "--memory", _SORT_MEMORY]
    if discount_fallback:
        command.append("--discount_fallback")
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as log:
        # written anew: lmplz drops the </s> of a last line that has no line end
        _write_text(corpus, text)
        text.seek(0)
        with subprocess.Popen(command, stdin=text, stdout=subprocess.PIPE, stderr=log) as process:
            assert process.stdout is not None
            counts = copy_header(process.stdout, output)
            shutil.copyfileobj(process.stdout, output, 1 << 20)
        if process.returncode:
            log.seek(0)
            raise _failure(log.read().decode("utf-8", "replace"), process.returncode)
    if len(counts) != order:
        raise InputError("this is not lmplz: it wrote no ARPA file", path=program)
    return counts


def _write_text(corpus: Corpus, output: IO[bytes]) -> None:
    words = corpus.words
    sentence: List[str] = []
    for id_ in corpus.ids.tolist():
        if id_ == EOS:
            output.write(" ".join(sentence).encode("utf-8") + b"\n")
            sentence = []
        elif id_ > EOS:
            sentence.append(words[id_])


def _failure(log: str, status: int) -> InputError:
    """Error with lmplz's own reason for failing."""
    if "BadDiscountException" in log:
        return InputError(
            "lmplz cannot estimate the discounts",
            remedy="The text is small or artificial: take more text, a lower --order, or "
            "--discount_fallback true.",
        )
    reason = " ".join(log.split("\n\n")[-1].split())[-500:]
    return InputError(f"lmplz ended with status {status}: {reason}", remedy="Try --lmplz none.")
