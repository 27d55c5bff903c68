"""A pretrained LM as a scorer of words, beside our own LMs and n-grams."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

import numpy as np

from espnet_bayeslm.pretrained.causal_lm import CausalLM
from espnet_bayeslm.pretrained.causal_trees import CausalTreeLM
from espnet_bayeslm.pretrained.text_forms import (
    AUTO,
    Reader,
    TextForm,
    candidates,
    first_sentences,
)
from espnet_bayeslm.scoring.scorer import LMScorer
from espnet_bayeslm.utils.log import LOG


class PretrainedScorer(LMScorer):
    """Scores words by a pretrained LM, in a form of the text that sentences may choose.

    Args:
        lm: The LM.
        **options: Options of `LMScorer`.

    Attributes:
        chooses: True if sentences choose the form, unless one is known from an earlier choice.
    """

    reader: Reader

    def __init__(self, lm: CausalLM, **options: Any):
        self._readers = [lm.reader] if lm.reader else candidates(lm.tokenizer, lm.text_form)
        self.chooses = len(self._readers) > 1
        tree_lm = CausalTreeLM(lm.model, lm.sampled, lm.name)
        super().__init__(lm, self._readers[0], tree_lm, **options)
        self._is_chosen = False
        if lm.reader and lm.text_form != AUTO:
            given, own = TextForm.parse(lm.text_form), lm.reader.form
            if given != own:
                LOG.warning(
                    f"{lm.name}: --text_form {given}, and the adapter was trained with --text_form"
                    f" {own}, in which it reads the text"
                )

    def prepare(self, sentences: Sequence[Sequence[str]], kept: Optional[str] = None) -> Reader:
        """Reader of the text form, which is chosen if it is not chosen yet.

        The form is the one that the LM was loaded with. For `auto` it is `kept`, from an earlier
        choice, else the sentences choose.
        """
        if not self._is_chosen:
            if kept is not None and self.chooses:
                self.reader = Reader(self.lm.tokenizer, TextForm.parse(kept))
            elif len(self._readers) > 1:
                self.reader = self.choose(sentences, self._readers)
            self._is_chosen = True
            if not self.tree_lm.takes_trees:
                LOG.info(f"{self.name}: its model reads no prefix trees; padded batches are used")
        return self.reader

    def read_as(self, form: TextForm) -> None:
        """Read sentences in a form from now on."""
        if not self._is_chosen or self.reader.form != form:
            self.reader, self._is_chosen = Reader(self.lm.tokenizer, form), True

    def choose(self, sentences: Sequence[Sequence[str]], readers: Sequence[Reader]) -> Reader:
        """Reader of the lowest perplexity on the first sentences; the first reader without any."""
        some = first_sentences(sentences)
        if len(readers) == 1 or not some:
            return readers[0]
        costs = []
        for reader in readers:
            self.reader = reader
            encoded = [self.reader.encode(words) for words in some]
            scores = self._scores(encoded, [self._passage(item) for item in encoded])
            costs.append(-sum(float(score.log_probs.sum()) for score in scores))
        best, count = int(np.argmin(costs)), sum(len(words) + 1 for words in some)
        LOG.info(
            f"{self.name}: text form: --text_form {readers[best].form}"
            f" (perplexity {math.exp(min(costs[best] / count, 700)):.1f} on {count} words; the"
            f" worst of {len(costs)} forms has {math.exp(min(max(costs) / count, 700)):.1f})"
        )
        return readers[best]
