"""Text of a training as a pretrained LM's own tokenizer reads it."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, Mapping

import numpy as np
from espnet2.text.cleaner import TextCleaner
from espnet2.train.preprocessor import AbsPreprocessor

from espnet_bayeslm.pretrained.adapted import vocabulary
from espnet_bayeslm.pretrained.causal_lm import load_tokenizer
from espnet_bayeslm.pretrained.names import TOKEN_TYPE
from espnet_bayeslm.pretrained.text_forms import Reader, training_reader
from espnet_bayeslm.training.text import Tokens
from espnet_bayeslm.utils.errors import InputError


def reader_of(lm_conf: Mapping[str, Any]) -> Reader:
    """Reader of the sentences of an LM `pretrained`."""
    if not lm_conf.get("model"):
        raise InputError("lm pretrained: lm_conf has no `model`", remedy="Give --from hf:NAME.")
    tokenizer = load_tokenizer(lm_conf["model"])
    form, marks = lm_conf.get("text_form", "as_is"), lm_conf.get("marks", "newline")
    return training_reader(tokenizer, form, marks)


def pretrained_tokens(lm_conf: Mapping[str, Any]) -> Tokens:
    """Tokens of the base model of an LM `pretrained`."""
    reader = reader_of(lm_conf)
    return Tokens(TOKEN_TYPE, vocabulary(reader.tokenizer), reader=reader)


class SentencePreprocessor(AbsPreprocessor):
    """Reads sentences by a pretrained LM's tokenizer, after ESPnet's text cleaner."""

    def __init__(self, args: argparse.Namespace, *, train: bool):
        super().__init__(train)
        self.reader, self.clean = reader_of(args.lm_conf), TextCleaner(args.cleaner)

    def ids(self, sentence: str) -> List[int]:
        """Tokens of a sentence, without those of its end."""
        return self.reader.sentence_ids(self.clean(sentence).split())

    def __call__(self, uid: str, data: Dict[str, Any]) -> Dict[str, np.ndarray]:
        """Replace the sentence `text` by its token ids."""
        if isinstance(data.get("text"), str):
            data["text"] = np.array(self.ids(data["text"]), dtype=np.int64)
        return data
