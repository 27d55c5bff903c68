"""The form in which a pretrained LM reads a sentence, and where its words stand in the tokens.

A pretrained LM has seen text with capitals, full stops and line breaks; lists of a recogniser
have none of these. The form matters more than the model: 7189 and 664 are perplexities of one LM
on the same sentences of meetings.
"""

from __future__ import annotations

import functools
import re
from typing import Any, List, NamedTuple, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.utils.casing import lower_case
from espnet_bayeslm.utils.errors import InputError

FORMS = ("as_is", "lower", "sentence")
AUTO = "auto"
# How a token is written that begins a word, or goes on in one
BEGINS, CONTINUES = ("\u0120", "\u2581", " "), "##"
# What stands before and after a sentence: a line break, or the LM's own marks
MARKS = ("newline", "special")


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
        return f"{self.form}, {self.marks} marks, {'a' if self.blank else 'no'} blank at the start"

    def words(self, words: Sequence[str]) -> Tuple[List[str], str]:
        """Words as the LM reads them, and the punctuation after the last."""
        if self.form == "as_is" or not words:
            return list(words), ""
        lower = [lower_case(word) for word in words]
        if self.form == "lower":
            return lower, ""
        lower = [re.sub(r"^i(?=$|')", "I", word) for word in lower]
        return [lower[0][:1].title() + lower[0][1:], *lower[1:]], "."


class Encoded(NamedTuple):
    """Tokens of a sentence.

    Attributes:
        ids: Tokens of the words and of the sentence's end.
        starts: Where each of the n words, and `</s>`, begins in them, (n + 1,).
    """

    ids: List[int]
    starts: List[int]


class Reader:
    """Writes sentences in a form and cuts them into the LM's tokens.

    Args:
        tokenizer: A fast tokenizer of `transformers`.
        form: The form.

    Attributes:
        start: Tokens before a sentence.
        end: Tokens after a sentence without punctuation.

    Raises:
        InputError: The form needs a mark that the tokenizer has not.
    """

    def __init__(self, tokenizer: Any, form: TextForm):
        self.tokenizer, self.form = tokenizer, form
        if form.marks == "newline":
            self.start = self.end = self._ids("\n")
        else:
            start = tokenizer.bos_token_id
            end = tokenizer.eos_token_id
            self.end = [] if end is None else [end]
            self.start = self.end if start is None else [start]
        if not self.start or not self.end:
            raise InputError(f"the tokenizer has no token for {form.marks} marks")

    def _ids(self, text: str) -> List[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

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

    def sentence_ids(self, words: Sequence[str]) -> List[int]:
        """Tokens of a sentence and its punctuation, without the tokens of its end."""
        return self.encode(words).ids[: -len(self.end)]

    @functools.cached_property
    def openings(self) -> torch.Tensor:
        """(V,) bool, True for the tokens that end the word before them."""
        vocabulary = self.tokenizer.get_vocab()
        opens = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
        begins = any(token.startswith(BEGINS) for token in vocabulary)
        continues = not begins and any(token.startswith(CONTINUES) for token in vocabulary)
        for token, index in vocabulary.items():
            # of whole words, or of pieces that tell where a word ends, each may be next
            opens[index] = token.startswith(BEGINS) if begins else True
            opens[index] &= not (continues and token.startswith(CONTINUES))
        _, stop = self.form.words(["a"])
        after = self._ids(f"a{stop}")[len(self._ids("a")) :] if stop else []
        opens[[*after[:1], *self.end[:1]]] = True
        return opens


def candidates(tokenizer: Any, form: str) -> List[Reader]:
    """Readers to choose from: of one form if it is given, and for `auto` of all forms and marks."""
    if form not in (AUTO, *FORMS):
        raise InputError(f"--text_form {form}: valid are {', '.join((AUTO, *FORMS))}")
    blanks, forms = ((True, False), FORMS) if form == AUTO else ((True,), (form,))
    readers = []
    for marks in MARKS:
        try:
            readers += [Reader(tokenizer, TextForm(f, marks, b)) for b in blanks for f in forms]
        except InputError:
            continue  # the tokenizer lacks these marks
    if not readers:
        raise InputError("the tokenizer has neither a line break nor a token for ends of text")
    return readers if form == AUTO else readers[:1]


def training_reader(tokenizer: Any, form: str, marks: str) -> Reader:
    """Reader of one form, with one token before and one after a sentence.

    Line breaks that the tokenizer writes as several tokens give way to the tokenizer's own marks.

    Raises:
        InputError: There is no such form, or the tokenizer lacks the marks.
    """
    for name, value, valid in (("text_form", form, FORMS), ("marks", marks, MARKS)):
        if value not in valid:
            raise InputError(f"{name} {value!r}: valid are {', '.join(valid)}")
    reader = Reader(tokenizer, TextForm(form, marks))
    if len(reader.start) > 1:
        reader = Reader(tokenizer, TextForm(form, "special"))
    return reader
