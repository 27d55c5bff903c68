"""Labels of a CTC recogniser as pyctcdecode writes them to a folder's `alphabet.json`."""

from __future__ import annotations

import json
from typing import Any, List, Optional, Sequence

from espnet_bayeslm.decoding.ctc_tokens import UNKNOWN, UNKNOWN_TEXT, CTCTokens, tokens_of_labels
from espnet_bayeslm.decoding.token_words import BAR, CONTINUES, DELIMITERS
from espnet_bayeslm.scoring.reader import WORD_MARK
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.words import lower_case

UNKNOWN_PIECE = f"{WORD_MARK}{UNKNOWN_TEXT}{WORD_MARK}"
"""The unknown token among word pieces."""
KEYS = ("labels", "is_bpe")


class Alphabet:
    """Labels in one form: the blank is empty, a blank stands between words.

    Word pieces begin a word by `\u2581`; the unknown token is \u2047.

    Args:
        labels: A label for each column of the logits, in this form.
        is_bpe: True if the labels are word pieces.
    """

    def __init__(self, labels: Sequence[str], is_bpe: bool):
        self._labels, self._is_bpe = list(labels), is_bpe
        self._tokens: Optional[CTCTokens] = None

    @classmethod
    def build_alphabet(
        cls, labels: Any, *, blank: Optional[str] = None, lower: bool = False
    ) -> Alphabet:
        """Alphabet of a recogniser's own labels.

        Args:
            labels: The labels in the order of the logits' columns, or a mapping between them and
                their ids.
            blank: The label that is the blank; None: it is found by its name, else it is the last
                column.
            lower: True if words are written in lower case.

        Raises:
            InputError: The labels make no words, or one of them comes twice.
        """
        tokens = CTCTokens(tokens_of_labels(labels), blank, lower=lower)
        given = list(tokens.tokens)
        is_bpe = any(label.startswith((WORD_MARK, CONTINUES)) for label in given)
        found = _pieces(given) if is_bpe else _letters(given)
        found[tokens.blank] = ""
        if lower:
            texts = zip(found, tokens.words.texts, strict=True)
            lowered = [lower_case(label) if text else label for label, text in texts]
            # a folder has no other place for it
            found = lowered if len({*lowered}) == len(found) else found
        alphabet = cls(found, is_bpe)
        alphabet._tokens = tokens
        return alphabet

    @property
    def labels(self) -> List[str]:
        """A copy of the labels."""
        return list(self._labels)

    @property
    def is_bpe(self) -> bool:
        """True if the labels are word pieces."""
        return self._is_bpe

    @property
    def tokens(self) -> CTCTokens:
        """Rules by which the labels make words."""
        if self._tokens is None:
            labels = ["<unk>" if label == UNKNOWN_PIECE else label for label in self._labels]
            self._tokens = CTCTokens(labels, "" if "" in labels else None)
        return self._tokens

    def dumps(self) -> str:
        """Text of `alphabet.json`."""
        return json.dumps({"labels": self._labels, "is_bpe": self._is_bpe})

    @classmethod
    def loads(cls, text: str) -> Alphabet:
        """Alphabet of the text of an `alphabet.json`.

        Raises:
            InputError: It is no such text.
        """
        remedy = 'Give {"labels": ["", " ", "a", ..], "is_bpe": false}.'
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"an alphabet that is not JSON ({error})", remedy=remedy) from error
        if not isinstance(content, dict) or {*content} != {*KEYS}:
            raise InputError(f"an alphabet without {' and '.join(KEYS)}", remedy=remedy)
        return cls(tokens_of_labels(content["labels"]), bool(content["is_bpe"]))


def _pieces(labels: Sequence[str]) -> List[str]:
    """Word pieces that begin a word by the mark of sentencepiece."""
    has_hashes = any(label.startswith(CONTINUES) for label in labels)
    found = []
    for label in labels:
        if UNKNOWN.fullmatch(label):
            label = UNKNOWN_PIECE
        elif label.startswith(CONTINUES):
            label = label.removeprefix(CONTINUES)
        elif has_hashes and not (label[:1] in "<[" and label[-1:] in ">]"):
            label = WORD_MARK + label
        found.append(label)
    return found


def _letters(labels: Sequence[str]) -> List[str]:
    """Letters with a blank between words."""
    delimiters = [label for label in DELIMITERS if label in labels] or [BAR]
    found = [UNKNOWN_TEXT if UNKNOWN.fullmatch(label) else label for label in labels]
    return [" " if label == delimiters[0] else label for label in found]
