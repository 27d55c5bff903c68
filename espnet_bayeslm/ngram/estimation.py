"""From a text file to an ARPA file: lmplz, or our own interpolated modified Kneser-Ney estimation.

Chen, S. F. and Goodman, J. (1998); counts and conventions are lmplz's (Heafield et al. 2013).
Probabilities become log10 where the file is written.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from array import array
from itertools import pairwise, repeat
from typing import IO, Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import numpy as np

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    END,
    START,
    PathLike,
    atomic_write,
    compressed_to,
    read_lines,
    without_marks,
)
from espnet_bayeslm.utils.log import LOG

UNK, BOS, EOS = 0, 1, 2
UNKNOWN = "<unk>"
SPECIAL_WORDS = (UNKNOWN, START, END)
# lmplz cuts at these and at nothing else: a no-break space is a part of a word
_BLANKS = str.maketrans("\0\t\r", "   ")
# lmplz's default for --discount_fallback: D1, D2, D3+ with a leading D0
FALLBACK = np.array([0.0, 0.5, 1.0, 1.5])
# ARPA's word for "never", should a discount of exactly 0 leave nothing to back off with
_LOG10_ZERO = -99.0
# lmplz's default is 80 % of the machine, which recipes share with other jobs; it sorts on disk
_SORT_MEMORY = "1G"
SMALL_TEXT = (
    "The text is small or artificial: take more text, a lower --order, or --discount_fallback true."
)
"""Remedy where the discounts cannot be estimated."""


def build_ngram(
    text: PathLike,
    arpa: PathLike,
    *,
    order: int = 3,
    discount_fallback: bool = False,
    lmplz: str = "auto",
    tokens: Optional[Tokenizer] = None,
) -> List[int]:
    """Estimate an n-gram, write its ARPA file, and return the numbers of n-grams per order.

    With `tokens` the n-gram is over the tokens of a list, all of which it has.
    """
    if order < 1:
        raise InputError(f"--order is {order}, and 1 or more was expected")
    program = find_lmplz(lmplz)
    corpus = read_corpus(text, tokens)
    unit = "tokens" if tokens else "words"
    seen = np.unique(corpus.ids)
    sizes = corpus.num_sentences, corpus.num_tokens, unit, np.count_nonzero(seen > EOS)
    LOG.info("%s: %d sentences, %d %s, %d different", text, *sizes)
    if program and (UNK in seen or sizes[-1] < len(corpus.words) - len(SPECIAL_WORDS)):
        LOG.info("lmplz knows only the words of a text, and not all tokens stand there")
        program = None
    LOG.info("estimating with %s", program or "espnet_bayeslm's own modified Kneser-Ney")
    with atomic_write(arpa, "wb") as f, compressed_to(f, arpa) as output:
        estimate = functools.partial(run_lmplz, program=program) if program else write_arpa
        counts = estimate(corpus, output, order=order, discount_fallback=discount_fallback)
    summary = ", ".join(f"{count} {k}-grams" for k, count in enumerate(counts, 1))
    LOG.info("%s: %s", arpa, summary)
    return counts


class Tokenizer(Protocol):
    """Tokens of an LM or a recogniser, and how it cuts text into them."""

    text_tokens: List[str]

    def cut(self, words: Sequence[str]) -> List[str]:
        """Tokens of a sentence, `<unk>` for a token that the list lacks."""

    def check(self, text: PathLike) -> None:
        """Raise an InputError where the sentences of a text do not fit the tokens."""


class Corpus(NamedTuple):
    """A text whose sentences stand one after another, each as `<s> words </s>`.

    Attributes:
        words: The word of each id: `<unk>`, `<s>`, `</s>`, then by first appearance.
        ids: (T,) int64, the stream.
        positions: (T,) int64, position in the sentence, 0 for `<s>`.
        num_sentences: Lines of the text, blank ones too.
    """

    words: List[str]
    ids: np.ndarray
    positions: np.ndarray
    num_sentences: int

    @property
    def num_tokens(self) -> int:
        """Words of the text, without `<s>` and `</s>`."""
        return len(self.ids) - 2 * self.num_sentences


def split_words(line: str, path: PathLike, number: int) -> List[str]:
    """Words of one line."""
    fields = line.translate(_BLANKS).split(" ")
    words = without_marks([word for word in fields if word], path=path, line=number)
    if UNKNOWN in words:
        raise InputError(
            f"{UNKNOWN} stands in the text, where only ordinary words are expected",
            path=path,
            line=number,
            remedy="Remove it: the estimation adds it.",
        )
    return list(words)


def read_corpus(path: PathLike, tokens: Optional[Tokenizer] = None) -> Corpus:
    """Text of a file with one sentence per line; a compressed file is unpacked.

    A blank line is an empty sentence, `<s> </s>`, as it is for lmplz. With `tokens` the words are
    the tokens of the sentences, and those of the list have an id even if the text lacks them.
    """
    index: Dict[str, int] = {word: id_ for id_, word in enumerate(SPECIAL_WORDS)}
    ids = array("q")  # 8 bytes each, where a list would take more
    lengths: List[int] = []
    for number, line in read_lines(path):
        words = split_words(line, path, number)
        words = tokens.cut(words) if tokens else words
        ids.append(BOS)
        ids.extend([index.setdefault(word, len(index)) for word in words])
        ids.append(EOS)
        lengths.append(len(words) + 2)
    if len(ids) == 2 * len(lengths):
        raise InputError("no word in the text", path=path, remedy="Give one sentence per line.")
    if tokens:
        tokens.check(path)
    if uncommon := [word for word in index if word.split() != [word]]:
        LOG.warning(
            f"{path}: {len(uncommon)} words hold blanks that are none for lmplz, {uncommon[0]!r}"
            " first; all other tools cut there: put ordinary blanks in their place"
        )
    starts = np.cumsum([0, *lengths[:-1]])
    positions = np.arange(len(ids)) - np.repeat(starts, lengths)
    stream, names = np.array(ids, dtype=np.int64), list(index)
    if tokens:
        # before the others, of which the last counts otherwise
        missing = [token for token in tokens.text_tokens if token not in index]
        names[EOS + 1 : EOS + 1] = missing
        stream[stream > EOS] += len(missing)
    return Corpus(names, stream, positions, len(lengths))


class NgramTable(NamedTuple):
    """The G distinct n-grams of one order, sorted by last word, last but one, and so on.

    Attributes:
        words: (G, order) int64, word ids.
        context: (G,) int64, row of the n-gram without its last word, one order below.
        suffix: (G,) int64, row of the n-gram without its first word, one order below.
        raw: (G,) int64, occurrences in the text.
        adjusted: (G,) int64, the count that modified Kneser-Ney discounts.
    """

    words: np.ndarray
    context: np.ndarray
    suffix: np.ndarray
    raw: np.ndarray
    adjusted: np.ndarray


def count_ngrams(corpus: Corpus, *, order: int) -> List[NgramTable]:
    """Tables of orders 1 to `order`.

    An n-gram's key is the row of its suffix and its first word. One sort of T numbers per order
    therefore counts the n-grams, and gives all links between the orders.
    """
    num_words = len(corpus.words)
    raw = np.bincount(corpus.ids, minlength=num_words)
    raw[BOS] = 0
    root = np.zeros(num_words, dtype=np.int64)
    table = NgramTable(np.arange(num_words)[:, None], root, root, raw, raw)
    tables = [table]
    ends = np.flatnonzero(corpus.positions >= 1)  # where an n-gram of this order ends
    rows = corpus.ids  # (T,) the row of the n-gram that ends here
    for k in range(2, order + 1):
        # no n-gram reaches over the start of its sentence
        ends = ends[corpus.positions[ends] >= k - 1]
        keys = rows[ends] * num_words + corpus.ids[ends - k + 1]
        keys, first, inverse, raw = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        suffix, first_word = np.divmod(keys, num_words)
        words = np.column_stack([first_word, table.words[suffix]])
        table = NgramTable(words, rows[ends[first] - 1], suffix, raw, raw)
        tables.append(table)
        rows = np.full(len(corpus.ids), -1)
        rows[ends] = inverse
    # Sec. 3.2, Heafield et al. 2013: below the highest order the adjusted count is the number of
    # distinct words to the left; an n-gram that starts with <s> has none, and keeps its raw count
    for k, higher in enumerate(tables[1:]):
        table = tables[k]
        left_words = np.bincount(higher.suffix, minlength=len(table.raw))
        starts = table.words[:, 0] == BOS
        tables[k] = table._replace(adjusted=np.where(starts, table.raw, left_words))
    return tables


def estimate_discounts(
    tables: Sequence[NgramTable], *, discount_fallback: bool = False
) -> List[np.ndarray]:
    """Discounts (4,) of adjusted counts 0 (always 0), 1, 2 and 3+, per order."""
    discounts = []
    for order, counts in enumerate(_statistics_counts(tables), 1):
        try:
            discounts.append(closed_form_discounts(np.bincount(counts, minlength=5)[:5]))
        except ValueError as error:
            if not discount_fallback:
                raise InputError(
                    f"cannot estimate the discounts of {order}-grams: {error}",
                    remedy=SMALL_TEXT,
                ) from error
            LOG.warning("%d-grams: %s; fallback discounts %s", order, error, FALLBACK[1:].tolist())
            discounts.append(FALLBACK)
    return discounts


def closed_form_discounts(count_of_counts: np.ndarray) -> np.ndarray:
    """(0, D1, D2, D3+): Eq. (26), Chen and Goodman 1998.

    Args:
        count_of_counts: (5,) how many n-grams have adjusted count 0 (not used), 1, 2, 3, 4.

    Raises:
        ValueError: A count of counts is 0, or a discount exceeds its count or is negative.
    """
    n = np.asarray(count_of_counts, dtype=np.float64)
    if not n[1:4].all():
        missing = 1 + int(np.argmin(n[1:4]))
        raise ValueError(f"none has adjusted count {missing}")
    y = n[1] / (n[1] + 2 * n[2])
    j = np.arange(1, 4)
    discounts = j - (j + 1) * y * n[2:5] / n[1:4]
    bad = (discounts < 0) | (discounts > j)
    if bad.any():
        worst = int(np.argmax(bad))
        raise ValueError(
            f"the discount of adjusted count {worst + 1} is {discounts[worst]:.4g}, "
            f"outside 0 to {worst + 1}"
        )
    return np.concatenate([[0.0], discounts])


def _statistics_counts(tables: Sequence[NgramTable]) -> List[np.ndarray]:
    """Counts (G,) from which lmplz takes its counts of counts, per order.

    They are the adjusted counts, but lmplz files the very last n-gram of each lower order under
    its raw count. On a small text this one count moves the discounts by more than 1e-4.
    """
    result = []
    for table, higher in pairwise(tables):
        counts = table.adjusted.copy()
        counts[-1] = table.raw[-1]
        result.append(counts)
        # a last n-gram that starts with <s> has no longer one, and ends the chain
        if higher.suffix[-1] != len(table.raw) - 1:
            break
    return [*result, *(table.adjusted for table in tables[len(result) :])]


def estimate_ngram(
    tables: Sequence[NgramTable], *, discounts: Sequence[np.ndarray]
) -> Tuple[List[np.ndarray], List[np.ndarray]]:
    """Interpolated model, per order (G,): p(last word | words before it), and back-off weights.

    A back-off weight is that of the lower order after an n-gram; 1 if none follows. Sec. 3.3 and
    3.4, Heafield et al. 2013:

        p(w | c) = (a(c w) - D(a(c w))) / sum_x a(c x) + gamma(c) p(w | c without first word)

    and the unigram is interpolated with the uniform distribution over the words, `</s>` and
    `<unk>`, which is all that `<unk>` gets.
    """
    # as if of order 0: one empty context; <s> is never predicted and does not count
    lower = np.array([1 / (len(tables[0].raw) - 1)])
    probs, gammas = [], []
    for table, discount in zip(tables, discounts, strict=True):
        taken = discount[np.minimum(table.adjusted, 3)]
        total = np.bincount(table.context, weights=table.adjusted, minlength=len(lower))
        total_taken = np.bincount(table.context, weights=taken, minlength=len(lower))
        gamma = np.divide(total_taken, total, out=np.ones(len(total)), where=total > 0)
        discounted = (table.adjusted - taken) / total[table.context]
        lower = discounted + gamma[table.context] * lower[table.suffix]
        probs.append(lower)
        gammas.append(gamma)
    probs[0][BOS] = 1.0  # lmplz's convention: <s> costs nothing
    # the gammas of one order are the back-off weights of the order below
    return probs, [*gammas[1:], np.ones_like(probs[-1])]


def write_arpa(
    corpus: Corpus, output: IO[bytes], *, order: int, discount_fallback: bool = False
) -> List[int]:
    """Write an ARPA file by our own estimation, and return the numbers of n-grams per order."""
    tables = count_ngrams(corpus, order=order)
    discounts = estimate_discounts(tables, discount_fallback=discount_fallback)
    for k, discount in enumerate(discounts, 1):
        LOG.info("%d-grams: discounts D1 %.4f, D2 %.4f, D3+ %.4f", k, *discount[1:])
    model = estimate_ngram(tables, discounts=discounts)
    for line in arpa_lines(tables, *model, words=corpus.words):
        output.write(line.encode("utf-8"))
    return [len(table.raw) for table in tables]


def arpa_lines(
    tables: Sequence[NgramTable],
    probs: Sequence[np.ndarray],
    backoffs: Sequence[np.ndarray],
    *,
    words: Sequence[str],
) -> Iterator[str]:
    r"""Yield the lines of an ARPA file, each with its end."""
    yield "\\data\\\n"
    yield from (f"ngram {k}={len(table.raw)}\n" for k, table in enumerate(tables, 1))
    text = np.array(words, dtype=object)
    for k, (table, prob, backoff) in enumerate(zip(tables, probs, backoffs, strict=True), 1):
        yield f"\n\\{k}-grams:\n"
        ngrams = map(" ".join, text[table.words])
        # the highest order has no back-off weights
        ends = (f"\t{b:.7g}" for b in _log10(backoff)) if k < len(tables) else repeat("")
        lines = zip(_log10(prob), ngrams, ends)  # noqa: B905 (repeat has no end)
        yield from (f"{p:.7g}\t{ngram}{end}\n" for p, ngram, end in lines)
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
    """Write an ARPA file by lmplz, and return the numbers of n-grams per order."""
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
