"""Tokens of a CTC recogniser from their files, with the blank among them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

import numpy as np

from espnet_bayeslm.decoding.token_words import BYTE, MARKS, TokenWords
from espnet_bayeslm.scoring.reader import WORD_MARK
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, unpacked_text

BLANK = "<blank>"
BLANKS = (BLANK, "<blk>", "<ctc_blank>", "<eps>", "<epsilon>", "<pad>", "")
"""Names of the blank, the surest first; in capitals or square brackets too."""
FIRST_BLANKS, LAST_BLANKS = ("_", "-", "blank"), ("blank",)
"""Names of the blank where they are the first or the last token."""
UNKNOWN = re.compile(r"[<\[]unk[>\]]", re.IGNORECASE)
UNKNOWN_TEXT = "\u2047"
"""How unknown text is written, as sentencepiece and pyctcdecode do."""
NO_COLUMN = re.compile(r"#\d+|</?s>")
"""Tokens at the end of a list that may have no column: icefall's `#0`, and added ones."""
NO_TEXT = re.compile(r"[<\[(].*[>\])]|[^\w\s]+|_+")
"""Tokens that are no letters and no word: perhaps the blank."""
FORMS = (
    "Give a token, or a token and its id, on each line; or the JSON of vocab.json, of a list of"
    " labels or of pyctcdecode's alphabet."
)
VOCABULARY, ADDED = "vocab.json", "added_tokens.json"
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
    """

    def __init__(self, tokens: Sequence[str], blank: Optional[str] = None, *, lower: bool = False):
        _check_tokens(tokens, blank)
        self.tokens = list(tokens)
        self._is_named = blank is not None
        blank = _blank(tokens) if blank is None else blank
        self.has_blank = blank is not None
        self._blank_name = "the last column" if blank is None else repr(blank)
        if blank is None:
            self.tokens.append(BLANK)
        self.blank = len(tokens) if blank is None else self.tokens.index(blank)
        self.tokens[self.blank] = BLANK
        self.words = TokenWords(self.tokens, lower=lower)
        for n, token in enumerate(self.tokens):
            if UNKNOWN.fullmatch(token):
                self.words.texts[n] = self.words.letters(UNKNOWN_TEXT)
                # among word pieces it is a word
                self.words.opens[n] |= any(token.startswith(WORD_MARK) for token in tokens)
        self._num_needed = len(self.tokens)
        while NO_COLUMN.fullmatch(self.tokens[self._num_needed - 1]):
            self._num_needed -= 1
        pairs = zip(self.words.opens, self.words.texts, strict=True)
        self.spoken = [bool(opens or text) for opens, text in pairs]
        self.spoken[self._num_needed :] = [False] * (len(self.tokens) - self._num_needed)
        self.spoken[self.blank] = True
        rows = enumerate(zip(self.tokens, self.words.is_text, self.spoken, strict=True))
        self._marks = [n for n, (t, text, said) in rows if not (text or said or t in MARKS)]

    def fitted(self, log_probs: np.ndarray) -> np.ndarray:
        """Ln P of each token at each frame, (T, V): -inf of tokens without a column.

        Marks that a recogniser writes into its text, such as `<eng>`, are as blanks: the blank has
        their probability.

        Args:
            log_probs: Ln P of each column, (T, number of columns).
        """
        columns = log_probs.shape[1]
        if self._num_needed <= columns < len(self.tokens):
            more = ((0, 0), (0, len(self.tokens) - columns))
            log_probs = np.pad(log_probs, more, constant_values=-np.inf)
        self.check_columns(log_probs.shape[1])
        if not self._is_named:
            self._check_blank(np.bincount(log_probs.argmax(axis=1), minlength=len(self.tokens)))
        if self._marks:
            log_probs = log_probs.copy()
            silent = [self.blank, *self._marks]
            log_probs[:, self.blank] = np.logaddexp.reduce(log_probs[:, silent], axis=1)
            log_probs[:, self._marks] = -np.inf
        return log_probs

    def _check_blank(self, wins: np.ndarray) -> None:
        """Raise an InputError where a token that is no text wins most frames, and the blank few."""
        best = int(wins.argmax())
        token, is_gap = self.tokens[best], self.words.opens[best] and not self.words.texts[best]
        no_text = NO_TEXT.fullmatch(token) and not (is_gap or BYTE.fullmatch(token))
        if no_text and wins[best] > 10 * wins[self.blank] + 2:
            raise InputError(
                f"the token {token!r}, which is no text, wins {wins[best]} of {wins.sum()} frames,"
                f" and the blank ({self._blank_name}) {wins[self.blank]}: most were expected",
                remedy=f"Give --blank {token!r} if that is the blank, else --blank with its name.",
            )

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


def _check_tokens(tokens: Sequence[str], blank: Optional[str]) -> None:
    """Raise an InputError where a token comes twice, or the blank is none of them."""
    if len({*tokens}) < len(tokens):
        twice = next(token for n, token in enumerate(tokens) if token in tokens[:n])
        raise InputError(f"the token {twice!r} comes twice, and each was expected once")
    if blank is not None and blank not in tokens:
        raise InputError(
            f"--blank {blank!r} is none of the {len(tokens)} tokens",
            remedy="Leave it out where the blank has no token and is the last column.",
        )


def _blank(tokens: Sequence[str]) -> Optional[str]:
    """The token that is the blank by its name; None: there is none."""
    names: Dict[str, str] = {}
    for token in tokens:
        names.setdefault(re.sub(r"[<\[]\|?(\w+)\|?[>\]]", r"<\1>", token.lower()), token)
    found = [names[name] for name in BLANKS if name in names]
    found += [token for token in tokens[:1] if token.lower() in FIRST_BLANKS]
    found += [token for token in tokens[-1:] if token.lower() in LAST_BLANKS]
    return found[0] if found else None


def tokens_of_labels(labels: Any) -> List[str]:
    """Tokens of labels in order, or of a mapping from ids or to ids."""
    if isinstance(labels, Mapping):
        rows = list(labels.items())
        if _are_ids(labels):
            rows = [(token, number) for number, token in rows]
        labels = _by_id("labels", rows) if _are_ids(number for _, number in rows) else [labels]
    return as_texts(labels, "labels", "Give a list of tokens, or a dict of tokens and their ids.")


def as_texts(given: Any, what: str, remedy: str = "Give a list of words.") -> List[str]:
    """Texts that an argument of Python holds, which is a list, a set or an array of them.

    Raises:
        InputError: It holds something else; `what` names the argument.
    """
    is_list = isinstance(given, Iterable) and not isinstance(given, (str, Mapping))
    texts = list(given) if is_list else [given]
    other = [text for text in texts if not (is_list and isinstance(text, str))]
    if other:
        problem = f"{what}: expected a list of texts, got {str(other[0])[:80]!r}"
        raise InputError(problem, remedy=remedy)
    return texts


def _are_ids(values: Iterable[Any]) -> bool:
    """True if all are numbers of columns."""
    whole = (int, np.integer)
    return all(isinstance(value, whole) and not isinstance(value, bool) for value in values)


def read_tokens(path: PathLike) -> List[str]:
    """Tokens in the order of their ids.

    The file is a list with a token, or a token and its id, on each line; or JSON: {token: id} as
    `vocab.json` of wav2vec2 (with `added_tokens.json` beside it), a list of labels, or
    pyctcdecode's alphabet. Of a folder it is `vocab.json` or `tokens.txt`.
    """
    path = _file_of(Path(path))
    lines = [line for _, line in read_lines(path)]
    if lines and lines[0].startswith(("{", "[")):
        try:
            return _json_tokens(path, json.loads("\n".join(lines)))
        except json.JSONDecodeError as error:
            # a list may begin with [PAD], or with a bracket
            if any(re.search(r'"[^"\s]', line) for line in lines[:2]):
                raise InputError(f"not JSON ({error})", path=path, remedy=FORMS) from error
    rows = [line.rsplit(maxsplit=1) for line in lines]
    if rows and all(len(row) == NUM_FIELDS and row[1].isdecimal() for row in rows):
        return _by_id(path, [(token, int(number)) for token, number in rows])
    for number, line in enumerate(lines, 1):
        if line.split() != [line] and line not in ("", " "):
            problem = f"{line[:80]!r} is no token"
            raise InputError(problem, path=path, line=number, remedy=FORMS)
    if not lines:
        raise InputError("no tokens", path=path, remedy=FORMS)
    return lines


def _file_of(path: Path) -> Path:
    """A file of tokens, or the one in a folder."""
    names = (VOCABULARY, "tokens.txt")
    files = [path / name for name in names if (path / name).is_file()]
    if path.is_dir() and not files:
        raise InputError(f"a folder without {' or '.join(names)}", path=path, remedy=FORMS)
    return files[0] if files else path


def _json_tokens(path: Path, content: Any) -> List[str]:
    """Tokens of the content of a JSON file."""
    if isinstance(content, dict) and isinstance(content.get("labels"), list):
        content = content["labels"]
    if content and isinstance(content, dict) and all(type(c) is dict for c in content.values()):
        if len(content) != 1:
            problem = f"vocabularies of {len(content)} languages ({', '.join(content)[:80]})"
            remedy = "Write the JSON of the one that the recogniser used to a file."
            raise InputError(f"{problem}, and one was expected", path=path, remedy=remedy)
        (content,) = content.values()
    if isinstance(content, dict) and _are_ids(content.values()):
        return _by_id(path, list({**content, **_added(path)}.items()))
    if not isinstance(content, list) or not all(isinstance(token, str) for token in content):
        raise InputError("tokens and ids were expected in it", path=path, remedy=FORMS)
    return content


def _added(path: Path) -> Dict[str, int]:
    """Ids of the tokens in `added_tokens.json`, beside `vocab.json`."""
    file = path.with_name(ADDED)
    if path.name != VOCABULARY or not file.is_file():
        return {}
    try:
        content = json.loads(unpacked_text(file))
    except ValueError as error:
        raise InputError(f"not JSON ({error})", path=file, remedy=FORMS) from error
    if not isinstance(content, dict) or not _are_ids(content.values()):
        raise InputError("tokens and ids were expected in it", path=file, remedy=FORMS)
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
