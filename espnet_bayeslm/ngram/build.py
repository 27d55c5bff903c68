"""From a text file to an ARPA file, by lmplz or by our own estimator."""

from __future__ import annotations

import logging
from typing import IO, List

from espnet_bayeslm.ngram.arpa import arpa_lines
from espnet_bayeslm.ngram.counts import count_ngrams
from espnet_bayeslm.ngram.discounts import estimate_discounts
from espnet_bayeslm.ngram.estimate import estimate_ngram
from espnet_bayeslm.ngram.lmplz import find_lmplz, run_lmplz
from espnet_bayeslm.ngram.text import Corpus, read_corpus
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, compress_to


def build_ngram(
    text: PathLike,
    arpa: PathLike,
    *,
    order: int = 3,
    discount_fallback: bool = False,
    lmplz: str = "auto",
) -> List[int]:
    """Numbers of n-grams per order of the ARPA file that is written.

    Args:
        text: One sentence per line; a blank line is an empty sentence.
        arpa: The file to write; gzipped if it ends in .gz.
        order: Words in the longest n-gram.
        discount_fallback: Take 0.5, 1, 1.5 where the text allows no estimate of the discounts.
        lmplz: `auto` (lmplz if it is on the PATH), `none` (our own estimator) or lmplz's path.

    Raises:
        InputError: The order, the text or lmplz is bad, or the discounts cannot be estimated.
    """
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
        if program:
            counts = run_lmplz(
                corpus, output, program=program, order=order, discount_fallback=discount_fallback
            )
        else:
            counts = write_arpa(corpus, output, order=order, discount_fallback=discount_fallback)
    summary = ", ".join(f"{count} {k}-grams" for k, count in enumerate(counts, 1))
    logging.info("%s: %s", arpa, summary)
    return counts


def write_arpa(
    corpus: Corpus, output: IO[bytes], *, order: int, discount_fallback: bool = False
) -> List[int]:
    """Numbers of n-grams per order of our own ARPA, which is written to `output`.

    Raises:
        InputError: The discounts cannot be estimated, and `discount_fallback` is off.
    """
    tables = count_ngrams(corpus, order=order)
    discounts = estimate_discounts(tables, discount_fallback=discount_fallback)
    for k, discount in enumerate(discounts, 1):
        logging.info("%d-grams: discounts D1 %.4f, D2 %.4f, D3+ %.4f", k, *discount[1:])
    probs = estimate_ngram(tables, discounts=discounts)
    for line in arpa_lines(tables, probs, words=corpus.words):
        output.write(line.encode("utf-8"))
    return [len(table.raw) for table in tables]
