"""The form in which a pretrained LM reads a sentence, and where its words stand in the tokens.

A pretrained LM has seen text with capitals, full stops and line breaks; lists of a recogniser
have none of these. The form matters more than the model: 7189 and 664 are perplexities of one LM
on the same sentences of meetings.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import TYPE_CHECKING, Any, Collection, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.scoring.reader import Encoded, WordReader
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.words import lower_case

if TYPE_CHECKING:
    import torch

FORMS = ("as_is", "lower", "sentence")
AUTO = "auto"
# How a token is written that begins a word, or goes on in one
BEGINS, CONTINUES = ("\u0120", "\u2581", " "), "##"
# What stands before and after a sentence: a line break, or the LM's own marks
MARKS = ("newline", "special")
# True if a blank stands before the first word
BLANKS = {"blank": True, "no_blank": False}
VALID = {"FORM": FORMS, "MARKS": MARKS, "BLANK": tuple(BLANKS)}
"""Parts of a form's value, `FORM[,MARKS[,BLANK]]`, with their valid words."""
# Words of the first sentences by which `auto` chooses the form
WORDS_TO_CHOOSE = 400


class TextForm(NamedTuple):
    """One way to write a sentence.

    Attributes:
        form: One of `FORMS`.
        marks: One of `MARKS`.
        blank: True if a blank stands before the first word, as before all others.
    """

    form: str = "as_is"
    marks: str = "newline"
    blank: bool = True

    def __str__(self) -> str:
        """Value of `--text_form` that means this form."""
        return f"{self.form},{self.marks},{'blank' if self.blank else 'no_blank'}"

    @classmethod
    def parse(cls, value: str, name: str = "--text_form") -> TextForm:
        """Form of a value `FORM[,MARKS[,BLANK]]`, the inverse of `str`.

        The marks are `newline` where the value lacks them, and a blank stands before the first word
        unless the value says `no_blank`: this holds for a training. Where an LM reads text, they
        are its tokenizer's (`candidates`).
        """
        parts = [part.strip() for part in str(value).split(",")]
        if len(parts) > len(VALID):
            raise InputError(
                f"{name} {value}: {len(parts)} parts, and {','.join(VALID)} was expected",
                remedy=f"Leave out {','.join(parts[len(VALID) :])}.",
            )
        for part, (place, valid) in zip(parts, VALID.items(), strict=False):
            if part not in valid:
                shown = f"{place} {part!r}: " if len(parts) > 1 else ""
                others = f"{AUTO}, " if len(parts) == 1 and name == "--text_form" else ""
                raise InputError(
                    f"{name} {value}: {shown}valid are {others}{', '.join(valid)}",
                    remedy="Give FORM[,MARKS[,BLANK]], as lower or as_is,special,no_blank.",
                )
        form, marks, blank = [*parts, *("as_is", "newline", "blank")[len(parts) :]]
        return cls(form, marks, BLANKS[blank])

    def has(self, value: str) -> bool:
        """True if the form has all parts that a value of `--text_form` names; `auto` names none."""
        named = [] if value == AUTO else [part.strip() for part in value.split(",")]
        return str(self).split(",")[: len(named)] == named

    def words(self, words: Sequence[str]) -> Tuple[List[str], str]:
        """Words as the LM reads them, and the punctuation after the last."""
        if self.form == "as_is" or not words:
            return list(words), ""
        lower = [lower_case(word) for word in words]
        if self.form == "lower":
            return lower, ""
        lower = [re.sub(r"^i(?=$|')", "I", word) for word in lower]
        return [lower[0][:1].title() + lower[0][1:], *lower[1:]], "."


class Reader(WordReader):
    """Writes sentences in a form and cuts them into the LM's tokens.

    Args:
        tokenizer: A fast tokenizer of `transformers`.
        form: The form.

    Attributes:
        start: Tokens before a sentence.
        end: Tokens after a sentence without punctuation.
    """

    def __init__(self, tokenizer: Any, form: TextForm):
        self.tokenizer, self.form = tokenizer, form
        self.unk = -1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id
        if form.marks == "newline":
            self.start = self.end = tokenizer("\n", add_special_tokens=False)["input_ids"]
        else:
            start = tokenizer.bos_token_id
            end = tokenizer.eos_token_id
            self.end = [] if end is None else [end]
            self.start = self.end if start is None else [start]
        if not self.start or not self.end:
            raise InputError(f"the tokenizer has no token for {form.marks} marks")

    def encode(self, words: Sequence[str]) -> Encoded:
        """Tokens of a sentence and its end; all tokens between two blanks are of the word there."""
        written, stop = self.form.words(words)
        text = (" " if self.form.blank and written else "") + " ".join(written)
        found = self.tokenizer(text + stop, add_special_tokens=False, return_offsets_mapping=True)
        ids = found["input_ids"]
        # where the text of each word ends
        begin = len(text) - len(text.lstrip(" "))
        ends = np.cumsum([len(word) + 1 for word in written], dtype=int) - 1 + begin
        # a token is of the word in which its last character stands
        last = [end for _, end in found["offset_mapping"]]
        starts = [0, *np.searchsorted(last, ends, side="right").tolist()]
        return Encoded([*ids, *self.end], starts)

    def text_ids(self, sentences: Iterable[Sequence[str]]) -> List[int]:
        """Tokens of sentences that follow one another, as a history has them, without the end."""
        ids = [token for words in sentences for token in self.encode(words).ids]
        return ids[: -len(self.end)]

    @functools.cached_property
    def _tokens(self) -> Collection[str]:
        """All tokens, which few texts need."""
        return frozenset(self.tokenizer.get_vocab())

    def is_token(self, word: str) -> bool:
        """True for the tokens of the tokenizer."""
        return word in self._tokens

    @functools.cached_property
    def openings(self) -> torch.Tensor:  # type: ignore[override]
        """(V,) bool, True for the tokens that end the word before them."""
        import torch

        vocabulary: Dict[str, int] = self.tokenizer.get_vocab()
        opens = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
        begins = any(token.startswith(BEGINS) for token in vocabulary)
        # of whole words, or of pieces that tell where a word ends, each may be next
        marks = BEGINS if begins else CONTINUES
        opens[[n for token, n in vocabulary.items() if token.startswith(marks) == begins]] = True
        _, stop = self.form.words(["a"])
        short, long = (
            self.tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in ("a", f"a{stop}")
        )
        opens[[*long[len(short) :][:1], *self.end[:1]]] = True
        return opens


def candidates(tokenizer: Any, value: str) -> List[Reader]:
    """Readers of all forms that have the parts that a value of `--text_form` names.

    The first one has the marks and the blank with which the tokenizer itself begins a text.
    """
    if value != AUTO:
        given = TextForm.parse(value)
        if value.count(",") == len(given) - 1:
            return [Reader(tokenizer, given)]
    tried = [TextForm(f, m, b) for m in MARKS for b in (True, False) for f in FORMS]
    if tokenizer.bos_token_id in tokenizer("a")["input_ids"][:1]:
        # an LM that has always seen its own mark first, and the first word right after it
        tried.sort(
            key=lambda form: (form.marks != "special", form.marks == "special" and form.blank)
        )
    readers, problem = [], "the tokenizer has neither a line break nor a token for ends of text"
    for form in tried:
        if form.has(value):
            try:
                readers.append(Reader(tokenizer, form))
            except InputError as error:  # the tokenizer lacks these marks
                problem = str(error) if "," in value else problem
    if not readers:
        raise InputError(problem)
    return readers


def training_readers(tokenizer: Any) -> List[Reader]:
    """Readers of all forms with one token before and one token after a sentence."""
    found = [r for r in candidates(tokenizer, AUTO) if len(r.start) == len(r.end) == 1]
    if not found:
        raise InputError("the tokenizer has neither one token of a line break nor one for an end")
    return found


def training_reader(tokenizer: Any, value: str) -> Reader:
    """Reader of one form, with one token before and one after a sentence.

    In a form without marks, line breaks that the tokenizer writes as several tokens give way to the
    tokenizer's own marks.

    Args:
        tokenizer: A fast tokenizer of `transformers`.
        value: Value of the form.
    """
    form = TextForm.parse(value, "text_form")
    reader = Reader(tokenizer, form)
    if len(reader.start) > 1:
        if "," in value:
            raise InputError(
                f"text_form {value}: the tokenizer writes a line break as {len(reader.start)}"
                " tokens, and training needs one before and one after a sentence",
                remedy=f"Give lm_conf text_form={form._replace(marks='special')}.",
            )
        reader = Reader(tokenizer, form._replace(marks="special"))
    return reader


def first_sentences(
    sentences: Iterable[Sequence[str]], least: int = WORDS_TO_CHOOSE
) -> List[Sequence[str]]:
    """First sentences of `least` words, by which `auto` chooses the form; none is empty."""
    some: List[Sequence[str]] = []
    words = 0
    for sentence in filter(None, sentences):
        some.append(sentence)
        words += len(sentence)
        if words >= least:
            break
    return some


def best_first(lists: Iterable[Sequence[Sequence[str]]]) -> List[Sequence[str]]:
    """First distinct sentences of lists: the best of each list, then the second of each, and so on.

    By these `auto` chooses the form in which it reads lists or lattices.
    """
    ranks = itertools.zip_longest(*lists, fillvalue=())
    return first_sentences(dict.fromkeys(map(tuple, itertools.chain.from_iterable(ranks))))
