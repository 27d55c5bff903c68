"""A neural LM as a scorer of words: the log-probabilities of a word's tokens are summed."""

from __future__ import annotations

from typing import Callable, Dict, List, Protocol, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.rescoring.scores import MAX_TOKENS, token_log_probs, vocab_size
from espnet_bayeslm.utils.errors import InputError

# a token that opens a word: sentencepiece's mark at its start; ESPnet's character for a space
WORD_MARK = "\u2581"
SPACE = "<space>"
TOKEN_TYPES = ("word", "bpe", "char")


class TokenLM(Protocol):
    """A trained LM with its tokenizer, as `espnet_bayeslm.training.load.load_lm` returns it."""

    name: str
    lm: torch.nn.Module
    token_list: List[str]
    token_type: str

    def tokenize(self, text: str) -> List[str]:
        """Return the tokens of a text."""
        ...

    def ids(self, tokens: Sequence[str]) -> List[int]:
        """Return the ids of tokens, an unknown one as `<unk>`."""
        ...


class NeuralScorer:
    """Scores words by a neural LM over words, sentencepieces or characters.

    Args:
        trained: The LM with its tokenizer.
        num_samples: Weight draws whose probabilities are averaged; 0 for the mean weights.
        max_tokens: The most tokens of a batch.

    Raises:
        InputError: The token list lacks `<unk>`, does not end in `<sos/eos>` or is not the LM's,
            or the token type is unknown.
    """

    def __init__(self, trained: TokenLM, *, num_samples: int = 0, max_tokens: int = MAX_TOKENS):
        _check_token_list(trained)
        self.name = trained.name
        self.trained = trained
        self.num_samples = num_samples
        self.max_tokens = max_tokens
        self.unk = trained.token_list.index("<unk>")

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Return the scores of each sentence; a word is OOV where a token of it is `<unk>`."""
        encoded = [self._encode(words) for words in sentences]
        log_probs = token_log_probs(
            self.trained.lm,
            [ids for ids, _ in encoded],
            max_tokens=self.max_tokens,
            num_samples=self.num_samples,
        )
        scores = []
        for values, (ids, starts) in zip(log_probs, encoded, strict=True):
            unknown = np.array([*(token == self.unk for token in ids), False])
            scores.append(
                WordScores(np.add.reduceat(values, starts), np.logical_or.reduceat(unknown, starts))
            )
        return scores

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """Return (n + 1,) tokens of each word of a sentence and of `</s>`."""
        ids, starts = self._encode(words)
        return np.diff([*starts, len(ids) + 1])

    def _encode(self, words: Sequence[str]) -> Tuple[List[int], List[int]]:
        """Return the token ids, and where each word and `</s>` start in them."""
        tokens = self.trained.tokenize(" ".join(words)) if words else []
        starts = word_starts(tokens, self.trained.token_type)
        if len(starts) != len(words):
            raise InputError(
                f"{self.name}: {len(words)} words, but {len(starts)} begin in its"
                f" {self.trained.token_type} tokens {tokens} of the sentence {' '.join(words)!r}",
                remedy="The tokenizer drops or splits words: normalise the text as for training.",
            )
        return self.trained.ids(tokens), [*starts, len(tokens)]


def word_starts(tokens: Sequence[str], token_type: str) -> List[int]:
    """Return the indices of the tokens that open a word; the first token always does.

    Args:
        tokens: The tokens of a sentence.
        token_type: "word" (all), "bpe" (those with sentencepiece's mark) or "char" (each
            `<space>`, which belongs to the word after it).
    """
    opens: Dict[str, Callable[[str], bool]] = {
        "word": lambda token: True,
        "bpe": lambda token: token.startswith(WORD_MARK),
        "char": lambda token: token == SPACE,
    }
    return [i for i, token in enumerate(tokens) if i == 0 or opens[token_type](token)]


def _check_token_list(trained: TokenLM) -> None:
    tokens, size = trained.token_list, vocab_size(trained.lm)
    problem = ""
    if trained.token_type not in TOKEN_TYPES:
        problem = f"its tokens are of type {trained.token_type!r}, not {', '.join(TOKEN_TYPES)}"
    elif "<unk>" not in tokens:
        problem = "its token list has no <unk>"
    elif tokens[-1] != "<sos/eos>":
        problem = f"its token list ends in {tokens[-1]!r}, not in <sos/eos>"
    elif len(tokens) != size:
        problem = f"its token list has {len(tokens)} tokens, the LM {size}"
    if problem:
        raise InputError(
            f"the LM {trained.name!r} cannot score words: {problem}",
            remedy="Use the token list that ESPnet made for its training.",
        )
