"""Tokens of a CTC recogniser from their files, with the blank among them."""

from __future__ import annotations

import json
from typing import Any, List, Optional, Sequence

from espnet_bayeslm.scoring.token_words import TokenWords
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, unpacked_text

BLANK = "<blank>"
BLANKS = (BLANK, "<blk>", "<ctc_blank>", "<eps>", "<pad>", "[PAD]", "")
"""Names of the blank, the surest first."""
OTHER_BLANKS = ("_", "-")
"""Names of the blank where they are the first token."""
FORMS = (
    "Give a token, or a token and its id, on each line; or the JSON of vocab.json, of a list of"
    " labels or of pyctcdecode's alphabet."
)
NUM_FIELDS = 2


class CTCTokens:
    """Columns of a CTC recogniser's logits.

    Args:
        tokens: A token for each column, or for each but the last, which then is the blank.
        blank: The token that is the blank; None: it is found by its name, else it is the last
            column.
        lower: True if words are written in lower case.

    Attributes:
        tokens: A token for each column; the blank is `<blank>`.
        blank: Column of the blank.
        words: How the tokens make words.
        spoken: (V,), True for the blank and for each token that is text or stands between words.

    Raises:
        InputError: A token comes twice, there is no such blank, or the tokens make no words.
    """

    def __init__(self, tokens: Sequence[str], blank: Optional[str] = None, *, lower: bool = False):
        self.tokens = list(tokens)
        if len({*tokens}) < len(tokens):
            twice = next(token for n, token in enumerate(tokens) if token in tokens[:n])
            raise InputError(f"the token {twice!r} comes twice, and each was expected once")
        if blank is not None and blank not in tokens:
            raise InputError(
                f"--blank {blank!r} is none of the {len(tokens)} tokens",
                remedy="Leave it out where the blank has no token and is the last column.",
            )
        self.has_blank = blank is not None
        if blank is None:
            names = [name for name in BLANKS if name in tokens]
            names += [name for name in OTHER_BLANKS if tokens[:1] == [name]]
            self.has_blank = bool(names)
            blank = names[0] if names else BLANK
        if not self.has_blank:
            self.tokens.append(blank)
        self.blank = self.tokens.index(blank)
        self.tokens[self.blank] = BLANK
        self.words = TokenWords(self.tokens, lower=lower)
        if self.words.is_bytes:
            raise InputError(
                f"the {len(tokens)} tokens are bytes, and pieces of text were expected",
                remedy="Give a recogniser whose tokens are letters or sentencepieces.",
            )
        pairs = zip(self.words.opens, self.words.texts, strict=True)
        self.spoken = [bool(opens or text) for opens, text in pairs]
        self.spoken[self.blank] = True

    def check_columns(self, columns: int) -> None:
        """Raise an InputError where logits have another number of columns."""
        if columns == len(self.tokens):
            return
        place = f"the blank is {'found' if self.has_blank else 'the last column'}"
        given = len(self.tokens) - (not self.has_blank)
        remedy = "Give the recogniser's own tokens."
        if not self.has_blank and columns == given:
            remedy = "Give --blank TOKEN, the token that is the blank: none has a known name."
        elif self.has_blank and columns == given + 1:
            remedy += f" If the blank is the last column, add {BLANK} to them, and --blank {BLANK}."
        raise InputError(
            f"{columns} columns, and {len(self.tokens)} were expected for {given} tokens ({place})",
            remedy=remedy,
        )


def read_tokens(path: PathLike) -> List[str]:
    """Tokens in the order of their ids.

    The file is a list with a token, or a token and its id, on each line; or JSON: {token: id} as
    `vocab.json` of wav2vec2, a list of labels, or pyctcdecode's alphabet.

    Raises:
        InputError: The file holds no tokens in one of these forms, or ids are not 0, 1, ...
    """
    first = next((line for _, line in read_lines(path)), "")
    if first.startswith(("{", "[")) and first.strip() not in ("[PAD]", "[UNK]"):
        return _json_tokens(path)
    lines = [line for _, line in read_lines(path)]
    rows = [line.rsplit(maxsplit=1) for line in lines]
    if rows and all(len(row) == NUM_FIELDS and row[1].isdecimal() for row in rows):
        return _by_id(path, [(token, int(number)) for token, number in rows])
    for number, line in enumerate(lines, 1):
        if line.split() != [line] and line not in ("", " "):
            raise InputError(f"{line[:80]!r} is no token", path=path, line=number, remedy=FORMS)
    if not lines:
        raise InputError("no tokens", path=path, remedy=FORMS)
    return lines


def _json_tokens(path: PathLike) -> List[str]:
    """Tokens of a JSON file."""
    try:
        content: Any = json.loads(unpacked_text(path))
    except ValueError as error:
        raise InputError(f"not JSON ({error})", path=path, remedy=FORMS) from error
    if isinstance(content, dict) and isinstance(content.get("labels"), list):
        content = content["labels"]
    if isinstance(content, dict) and all(type(number) is int for number in content.values()):
        return _by_id(path, list(content.items()))
    if not isinstance(content, list) or not all(isinstance(token, str) for token in content):
        raise InputError("tokens and ids were expected in it", path=path, remedy=FORMS)
    return content


def _by_id(path: PathLike, rows: Sequence[Any]) -> List[str]:
    """Tokens in the order of their ids, which are 0, 1, ..."""
    token_of = {number: token for token, number in rows}
    missing = next(number for number in range(len(token_of) + 1) if number not in token_of)
    if missing < len(rows):
        raise InputError(
            f"no token has the id {missing}, and ids from 0 to {len(rows) - 1} were expected,"
            " each once",
            path=path,
            remedy="Give the recogniser's own list.",
        )
    return [token_of[number] for number in range(len(rows))]
