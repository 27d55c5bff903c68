"""Words of any LM, and bias lists, in the beam search of `generate` as transformers has it.

Words are paid one step late (`word_payments`), as a constant over the next tokens, and the token of
the end pays the last word and the sentence's end. A hypothesis is known by its tokens: beams change
their rows between the steps of a search.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.decoding.bias_search import BiasTree, checked_bias
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.decoding.word_payments import END_MARGIN, Paid, PaidText, WordPayments
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.rescoring.rescore_options import BIAS_WEIGHT
from espnet_bayeslm.scoring.word_scores import END
from espnet_bayeslm.utils.errors import InputError

try:
    from transformers import LogitsProcessor
except ImportError as missing:
    raise InputError(
        "transformers is not installed",
        remedy="Install it: pip install 'espnet_bayeslm[pretrained]'.",
    ) from missing

# The ln of the sum of a row's probabilities, at most, but for rounding
ROUNDING = 1e-2
NO_TEXT = "<pad>"
LM_WEIGHT, WORD_BONUS = 0.2, 1.0
BEAMS = "Search with beams: generate(num_beams=5, do_sample=False, length_penalty=0.0, ..)."

Row = Tuple[int, bytes]
"""An utterance of the batch, and tokens."""


def text_tokens(tokenizer: Any) -> List[str]:
    """Tokens of a tokenizer of transformers by their numbers; those that are no text are marks."""
    vocabulary = tokenizer.get_vocab()
    tokens = [NO_TEXT] * (max(vocabulary.values(), default=-1) + 1)
    for token, number in vocabulary.items():
        tokens[number] = token
    added = tokenizer.added_tokens_decoder
    special = [number for number, token in added.items() if token.special]
    for number in (*special, *tokenizer.all_special_ids):
        tokens[number] = NO_TEXT
    return tokens


class FusedScore(NamedTuple):
    """Score of a text, as a finished hypothesis has it beside ln P by the model.

    Attributes:
        lm_score: ln P of its words and end by the mixture; None: there is none.
        bias_score: Weight of its phrases, with `bias_weight`.
        total: All together, weighted.
    """

    lm_score: Optional[float]
    bias_score: float
    total: float


class _WeightedWords:
    """Weighted ln P of words by a mixture, and the bonus of each word."""

    def __init__(self, mixture: Mixture, lm_weight: float, word_bonus: float):
        self.begin, self.after = mixture.begin, mixture.after
        self._mixture, self._weight, self._bonus = mixture, lm_weight, word_bonus

    def next_words(self, states: Sequence[Any], words: Sequence[str]) -> np.ndarray:
        bonus = np.array([0.0 if word == END else self._bonus for word in words])
        if not self._weight:  # ln P may have no end
            return bonus
        return self._weight * self._mixture.next_words(states, words) + bonus


class WordFusion(LogitsProcessor):  # type: ignore[misc]
    """LMs and a bias list in the beam search of `generate`, of Whisper or any encoder-decoder.

    With `length_penalty=0` the score of a finished hypothesis is ln P by the model, plus
    `lm_weight` * ln P of its words and end by the mixture, as a rescoring has it, plus `word_bonus`
    for each word, plus `bias_weight` * the weight of its phrases. A hypothesis that `generate` cuts
    off lacks its last word and its end.

    Args:
        tokenizer: The model's tokenizer.
        mixture: LMs and n-grams, prepared by sentences where pretrained LMs choose their text form
            by them; None: there are none.
        lm_weight: Weight of ln P by the mixture.
        word_bonus: Score of each word, in nats of the model, where there is a mixture.
        bias: Phrases of every utterance, in a list, a mapping to weights of their own, or a file;
            an empty list: `set_bias` gives them. None: there are none.
        bias_weight: Weight of a phrase, in nats of the model.
        normalize: Steps that each word goes through before it is paid, as `lower,punct`.

    Raises:
        InputError: The tokens make no words, or nothing is to be paid.

    Attributes:
        mixture: The LMs and n-grams.
        has_bias: True if it takes bias lists.
        weights: The weights, by their names.
        payments: Words of the tokens, and what they are paid.
    """

    def __init__(
        self,
        tokenizer: Any,
        mixture: Optional[Mixture] = None,
        *,
        lm_weight: float = LM_WEIGHT,
        word_bonus: float = WORD_BONUS,
        bias: Any = None,
        bias_weight: float = BIAS_WEIGHT,
        normalize: str = "",
    ):
        if mixture is None and bias is None:
            raise InputError("neither a mixture nor a bias list", remedy="Give one of them.")
        self.normalization = Normalization(normalize)
        self.normalization.check_by_word("WordFusion")
        self._own = TokenWords(text_tokens(tokenizer))
        self.payments = WordPayments(self._own, self.normalization)
        self.mixture, self.has_bias = mixture, bias is not None
        if mixture is not None:
            mixture.prepare([])
        self.set_weights(lm_weight=lm_weight, word_bonus=word_bonus, bias_weight=bias_weight)
        self._end = tokenizer.eos_token_id
        if self._end is None:
            raise InputError("the tokenizer has no token of the end (eos_token)")
        self._bias = self._checked(bias or ())
        self.set_bias(None)

    def set_weights(self, *, lm_weight: float, word_bonus: float, bias_weight: float) -> None:
        """Set the weights of the next searches, as of the constructor.

        Raises:
            InputError: A weight is no finite number, or below 0.
        """
        weights = {"lm_weight": lm_weight, "word_bonus": word_bonus, "bias_weight": bias_weight}
        for name, value in weights.items():
            if not math.isfinite(value) or (value < 0 and name != "word_bonus"):
                least = "" if name == "word_bonus" else " from 0"
                raise InputError(f"{name}={value:g}: a finite number{least} was expected")
        self.weights = weights
        self._words: Any = None
        if self.mixture is not None:
            self._words = _WeightedWords(self.mixture, lm_weight, word_bonus)

    def _checked(self, bias: Any) -> BiasList:
        """Bias list, normalised as words are."""
        return checked_bias(bias, self._own, self.normalization)

    def set_bias(self, lists: Optional[Sequence[Any]]) -> None:
        """Set the bias lists of the next searches.

        Args:
            lists: Phrases of each utterance of a batch, in the order of the batch; a `BiasList` is
                normalised already. None: the list of the constructor, for every utterance.

        Raises:
            InputError: A list is none, or no token has the letters of its phrases.
        """
        if isinstance(lists, (str, bytes)) or any(isinstance(x, str) for x in lists or ()):
            raise InputError("phrases, and a list of them for each utterance was expected")
        given = lists or [self._bias]
        self._lists = [x if isinstance(x, BiasList) else self._checked(x) for x in given]
        self._trees = [BiasTree(x, self.payments.spelled) if len(x) else None for x in self._lists]
        self._num_beams = 0
        self._texts: Dict[Row, PaidText] = {}

    def set_begin_index(self, begin_index: int) -> None:
        """Begin a new search, whose prompt has so many tokens; Whisper's `generate` calls it."""
        self._texts = {}

    def text_score(self, text: str, utterance: int = 0) -> FusedScore:
        """Score that a finished hypothesis has beside ln P by the model, without a search.

        Args:
            text: The decoded text.
            utterance: Place of the utterance in the batch, whose bias list is taken.
        """
        words = self.normalization.words(text.split())
        bias = self.weights["bias_weight"] * self._lists[utterance].total(words)
        if self.mixture is None:
            return FusedScore(None, bias, bias)
        lm_score = float(self.mixture.word_scores([words])[0].log_probs.sum())
        total = bias + self.weights["word_bonus"] * len(words)
        if self.weights["lm_weight"]:
            total += self.weights["lm_weight"] * lm_score
        return FusedScore(lm_score, bias, total)

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores of each next token, (N, V), with payments; `input_ids` has the tokens, (N, L)."""
        utterances = self._utterances(len(input_ids))
        tokens = input_ids.cpu().numpy()
        rows = [(utt, row.tobytes()) for utt, row in zip(utterances, tokens, strict=True)]
        place = {row: n for n, row in enumerate(rows)}  # equal hypotheses are paid once
        texts = self._moved([*place], tokens[[*place.values()]])
        if texts is None:
            if bool((scores.logsumexp(-1) > ROUNDING).any()):
                problem = "WordFusion has logits in place of ln P: greedy search, or sampling"
                raise InputError(problem, remedy=BEAMS)
            begun = None if self._words is None else self._words.begin()
            texts = [self.payments.begin(begun, self._trees[utt]) for utt, _ in place]
        ends = scores[:, self._end]
        near = (ends >= scores.amax(-1) - END_MARGIN) & ~ends.isneginf()
        can_end: List[bool] = near[[*place.values()]].tolist()
        paid = self.payments.pay(texts, can_end, self._words)
        self._texts = dict(zip(place, paid.texts, strict=True))
        number = {row: n for n, row in enumerate(place)}
        return self._paid(scores, paid, can_end, [number[row] for row in rows])

    def _paid(
        self, scores: torch.Tensor, paid: Paid, can_end: Sequence[bool], of: Sequence[int]
    ) -> torch.Tensor:
        """Scores with payments; `of` has the hypothesis of each row."""
        weight = self.weights["bias_weight"]
        found = scores + scores.new_tensor(paid.shifts)[of, None]
        phrases = np.array([self.payments.end_gain(text) for text in paid.texts])
        ends = np.where(can_end, np.array(paid.ends) + weight * phrases, -np.inf)
        for n, hypothesis in enumerate(of):
            gains = paid.texts[hypothesis].gains
            if gains is not None:
                size = min(len(gains), found.shape[1])  # tokens after the tokenizer's are marks
                row = scores.new_tensor(weight * gains[:size])
                row[self._end] = 0.0
                found[n, :size] += row
        found[:, self._end] += scores.new_tensor(ends)[of]
        return found

    def _moved(self, rows: Sequence[Row], tokens: np.ndarray) -> Optional[List[PaidText]]:
        """Hypotheses after their last tokens; None where a search begins."""
        moved = []
        for (utt, _), row in zip(rows, tokens, strict=True):
            text = self._texts.get((utt, row[:-1].tobytes()))
            if text is None:
                return None
            known = row[-1] < len(self._own.texts)
            moved.append(self.payments.after(text, int(row[-1]), self._words) if known else text)
        return moved

    def _utterances(self, num_rows: int) -> List[int]:
        """Utterance of each row, by its place among the bias lists."""
        num_beams, rest = divmod(num_rows, len(self._trees))
        if rest or (len(self._trees) > 1 and num_beams != (self._num_beams or num_beams)):
            raise InputError(
                f"{num_rows} hypotheses, and there are bias lists of {len(self._trees)} utterances",
                remedy="Give one of each utterance of the batch: set_bias(lists).",
            )
        if num_beams == 1:
            raise InputError("WordFusion in a search without beams (num_beams=1)", remedy=BEAMS)
        self._num_beams = num_beams
        return [n // num_beams for n in range(num_rows)]
