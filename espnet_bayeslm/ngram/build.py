"""From a text file to an ARPA file, by lmplz or by our own estimator; there it becomes log10."""

from __future__ import annotations

import functools
import logging
import shutil
import subprocess
import tempfile
from itertools import repeat
from typing import IO, Iterator, List, Optional, Sequence

import numpy as np

from espnet_bayeslm.ngram.kneser_ney import (
    SMALL_TEXT,
    BackoffTable,
    NgramTable,
    count_ngrams,
    estimate_discounts,
    estimate_ngram,
)
from espnet_bayeslm.ngram.text import EOS, Corpus, read_corpus
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, compress_to

# ARPA's word for "never", should a discount of exactly 0 leave nothing to back off with
_LOG10_ZERO = -99.0
# lmplz's default is 80 % of the machine, which recipes share with other jobs; it sorts on disk
_SORT_MEMORY = "1G"


def build_ngram(
    text: PathLike,
    arpa: PathLike,
    *,
    order: int = 3,
    discount_fallback: bool = False,
    lmplz: str = "auto",
) -> List[int]:
    """Numbers of n-grams per order of the ARPA file that is written."""
    if order < 1:
        raise InputError(f"--order is {order}, and 1 or more was expected")
    program = find_lmplz(lmplz)
    corpus = read_corpus(text)
    logging.info(
        "%s: %d sentences, %d words, %d different",
        text,
        corpus.num_sentences,
        corpus.num_tokens,
        len(corpus.words) - 3,
    )
    logging.info("estimating with %s", program or "espnet_bayeslm's own modified Kneser-Ney")
    with atomic_write(arpa, "wb") as f, compress_to(f, arpa) as output:
        estimate = functools.partial(run_lmplz, program=program) if program else write_arpa
        counts = estimate(corpus, output, order=order, discount_fallback=discount_fallback)
    summary = ", ".join(f"{count} {k}-grams" for k, count in enumerate(counts, 1))
    logging.info("%s: %s", arpa, summary)
    return counts


def write_arpa(
    corpus: Corpus, output: IO[bytes], *, order: int, discount_fallback: bool = False
) -> List[int]:
    """Numbers of n-grams per order of our own ARPA, which is written to `output`."""
    tables = count_ngrams(corpus, order=order)
    discounts = estimate_discounts(tables, discount_fallback=discount_fallback)
    for k, discount in enumerate(discounts, 1):
        logging.info("%d-grams: discounts D1 %.4f, D2 %.4f, D3+ %.4f", k, *discount[1:])
    probs = estimate_ngram(tables, discounts=discounts)
    for line in arpa_lines(tables, probs, words=corpus.words):
        output.write(line.encode("utf-8"))
    return [len(table.raw) for table in tables]


def arpa_lines(
    tables: Sequence[NgramTable], probs: Sequence[BackoffTable], *, words: Sequence[str]
) -> Iterator[str]:
    r"""Yield the lines of an ARPA file, each with its end."""
    yield "\\data\\\n"
    yield from (f"ngram {k}={len(table.raw)}\n" for k, table in enumerate(tables, 1))
    text = np.array(words, dtype=object)
    for k, (table, prob) in enumerate(zip(tables, probs, strict=True), 1):
        yield f"\n\\{k}-grams:\n"
        ngrams = map(" ".join, text[table.words])
        # the highest order has no back-off weights
        backoffs = (f"\t{b:.7g}" for b in _log10(prob.backoff)) if k < len(tables) else repeat("")
        lines = zip(_log10(prob.prob), ngrams, backoffs)  # noqa: B905 (repeat has no end)
        yield from (f"{p:.7g}\t{ngram}{backoff}\n" for p, ngram, backoff in lines)
    yield "\n\\end\\\n"


def _log10(values: np.ndarray) -> List[float]:
    """Log10, at most 0 and never -0 or -inf."""
    floor = np.maximum(values, 10.0**_LOG10_ZERO)
    return (np.minimum(np.log10(floor), 0.0) + 0.0).tolist()


def find_lmplz(lmplz: str) -> Optional[str]:
    """Program that `auto`, `none` or a path stands for; None for our estimator."""
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
    """Numbers of n-grams per order of lmplz's ARPA, which is written to `output`."""
    command = [program, "--order", str(order), "--memory", _SORT_MEMORY]
    if discount_fallback:
        command.append("--discount_fallback")
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as arpa:
        # written anew: lmplz drops the </s> of a last line that has no line end
        sentence: List[str] = []
        for id_ in corpus.ids.tolist():
            if id_ == EOS:
                text.write(" ".join(sentence).encode("utf-8") + b"\n")
                sentence = []
            elif id_ > EOS:
                sentence.append(corpus.words[id_])
        text.seek(0)
        done = subprocess.run(command, stdin=text, stdout=arpa, stderr=subprocess.PIPE, check=False)
        log = done.stderr.decode("utf-8", "replace")
        if "BadDiscountException" in log:
            raise InputError("lmplz cannot estimate the discounts", remedy=SMALL_TEXT)
        if done.returncode:
            reason = " ".join(log.split("\n\n")[-1].split())[-500:]
            raise InputError(
                f"lmplz ended with status {done.returncode}: {reason}", remedy="Try --lmplz none."
            )
        arpa.seek(0)
        counts = []
        for line in arpa:
            output.write(line)
            if line.startswith(b"ngram "):
                counts.append(int(line.partition(b"=")[2]))
    if len(counts) != order:
        raise InputError("this is not lmplz: it wrote no ARPA file", path=program)
    return counts
