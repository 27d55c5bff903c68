"""Text in the tokens of an ESPnet recogniser or LM, and n-grams over these tokens."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from typing import Collection, List, Sequence

from espnet_bayeslm.loading.experiment import (
    DEFAULTS,
    config_of,
    find_files,
    special_ids,
    token_difference,
    trained_tokens,
)
from espnet_bayeslm.loading.trained_lm import text_reader
from espnet_bayeslm.ngram.ngram_files import arpa_ngrams, arpa_order, log10_of
from espnet_bayeslm.pretrained.names import is_adapted, is_pretrained
from espnet_bayeslm.scoring.scorer import MARKED, check_is_plain
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_mapping
from espnet_bayeslm.utils.log import LOG

UNKNOWN = "<unk>"
# Share of a text's tokens that the list may lack, unless another is given
MAX_UNKNOWN = 0.2
# Largest share of an n-gram, or of a text's tokens, by which n-gram and list may differ
MAX_OTHER = 0.05
MAKE_NGRAM = "Make it by `bayeslm ngram --asr_exp EXP` of the LM or recogniser."


class TokenText:
    """Cuts sentences into the tokens of an ESPnet recogniser or LM, by ESPnet's own tokenizer.

    Args:
        exp: The experiment's folder, its config.yaml or a file beside it.

    Attributes:
        config: The configuration.
        token_type: `word`, `bpe`, `char` or one of Whisper's.
        token_list: All tokens; the index is the id.
        text_tokens: Tokens but for blank, start and end.
        unknown: Tokens that the list lacks, of the sentences that were cut, and their numbers.
        num_tokens: Number of tokens of these sentences.
    """

    def __init__(self, exp: PathLike):
        self.config = config_of(exp)
        self.token_type, self.token_list, model = trained_tokens(self.config)
        config = read_yaml_mapping(self.config)
        ids = special_ids(config, self.token_list, path=str(self.config))
        special = {*ids.values()} or {0, len(self.token_list) - 1}
        self.text_tokens = [t for n, t in enumerate(self.token_list) if n not in special]
        content = {**DEFAULTS, **config, "token_list": self.token_list}
        args = argparse.Namespace(**{**content, "bpemodel": str(model)})
        self._tokenize, _ = text_reader(args)
        self._known = frozenset(self.token_list)
        self.unknown: Counter[str] = Counter()
        self.num_tokens = 0
        pieces = self.token_list if self.token_type != "word" else ()
        self._marked = frozenset(filter(MARKED.match, pieces))
        self._lines: List[Sequence[str]] = []

    def cut(self, words: Sequence[str]) -> List[str]:
        """Tokens of a sentence, `<unk>` for a token that the list lacks."""
        # of each sentence all that is needed to tell pieces from words
        self._lines.append([w for w in words if w in self._marked][:1] or words[:1])
        tokens = self._tokenize(" ".join(words)) if words else []
        self.num_tokens += len(tokens)
        others = [token for token in tokens if token not in self._known]
        if not others:
            return tokens
        self.unknown.update(others)
        return [token if token in self._known else UNKNOWN for token in tokens]

    def check(self, text: PathLike, *, max_unknown: float = MAX_UNKNOWN) -> None:
        """Check that the sentences were plain text, and that the list has their tokens."""
        check_is_plain(self._lines, self._marked.__contains__, name=str(text))
        total = self.unknown.total()
        if not total:
            return
        examples = ", ".join(repr(token) for token, _ in self.unknown.most_common(5))
        problem = f"{total} of its {self.num_tokens} tokens are not in the token list ({examples})"
        if total > max_unknown * self.num_tokens:
            raise InputError(
                f"{problem} of {self.config}",
                path=text,
                remedy="Write the text as the training text of the tokens: case, punctuation.",
            )
        LOG.info("%s: %s: each is <unk>", text, problem)


def shared_tokens(lms: Sequence[PathLike]) -> TokenText:
    """Tokens of trained ESPnet LMs, which must be the same."""
    if not lms:
        raise InputError("--unit token without an LM", remedy="Give --lm EXP: it has the tokens.")
    for lm in lms:
        if is_pretrained(lm) or is_adapted(lm):
            raise InputError(
                "has tokens of its own, where an ESPnet LM over a recogniser's was expected",
                path=lm,
                remedy="Leave out --unit token: words are mixed then.",
            )
    first, *others = [TokenText(find_files(lm)[0]) for lm in lms]
    for other in others:
        problem = token_difference(other.token_list, first.token_list, whose=str(first.config))
        if not problem and other.token_type != first.token_type:
            problem = f"{other.token_type} tokens, where {first.config} has {first.token_type}"
        if problem:
            remedy = "Train the LMs of a mixture with one token list."
            raise InputError(problem, path=other.config, remedy=remedy)
    return first


def check_ngram(path: PathLike, tokens: Collection[str], *, whose: object) -> None:
    """Check that an ARPA file is over the tokens of a list of word pieces or characters.

    A KenLM binary does not tell its words.
    """
    if not arpa_order(path):
        return
    known, others, share = {*tokens, "<s>", "</s>", UNKNOWN, "<UNK>"}, [], 0.0
    for line in itertools.takewhile(lambda line: line.order == 1, arpa_ngrams(path)):
        word = line.fields[1].decode("utf-8", "replace")
        if word not in known:
            others.append(word)
            share += 10 ** log10_of(line.fields[0], path, line.number)
    if share > MAX_OTHER:
        raise InputError(
            f"{len(others)} of its words ({', '.join(map(repr, others[:3]))}, ...) are no tokens of"
            f" {whose}",
            path=path,
            remedy=MAKE_NGRAM,
        )


def check_knows(
    path: PathLike, sentences: Sequence[Sequence[str]], scores: Sequence[WordScores]
) -> None:
    """Check that an n-gram knows the tokens of a text, but for `<unk>`."""
    pairs = zip(sentences, scores, strict=True)
    counted = [
        (token, oov)
        for tokens, score in pairs
        for token, oov in zip(tokens, score.oov, strict=False)
        if token != UNKNOWN
    ]
    missing = [token for token, oov in counted if oov]
    if len(missing) > MAX_OTHER * len(counted):
        examples = ", ".join(map(repr, dict.fromkeys(missing[:20])))
        raise InputError(
            f"does not know {len(missing)} of the text's {len(counted)} tokens ({examples[:80]}):"
            " it is over others",
            path=path,
            remedy=MAKE_NGRAM,
        )
