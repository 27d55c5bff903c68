"""Text of a training as a pretrained LM's own tokenizer reads it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import numpy as np
from espnet2.train.preprocessor import AbsPreprocessor

from espnet_bayeslm.configs import lm_conf_options
from espnet_bayeslm.loading.experiment import find_files, read_config
from espnet_bayeslm.pretrained.adapted import vocabulary
from espnet_bayeslm.pretrained.causal_lm import load_tokenizer
from espnet_bayeslm.pretrained.lora import adapter_conf, is_adapter
from espnet_bayeslm.pretrained.names import PREFIX, TOKEN_TYPE, is_adapted
from espnet_bayeslm.pretrained.text_forms import Reader, training_reader
from espnet_bayeslm.training.tokens import Tokens
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike


def reader_of(lm_conf: Mapping[str, Any]) -> Reader:
    """Reader of the sentences of an LM `pretrained`."""
    if not lm_conf.get("model"):
        raise InputError("lm pretrained: lm_conf has no `model`", remedy="Give --from hf:NAME.")
    tokenizer = load_tokenizer(lm_conf["model"])
    form, marks = lm_conf.get("text_form", "as_is"), lm_conf.get("marks", "newline")
    return training_reader(tokenizer, form, marks)


def base_options(source: PathLike) -> List[str]:
    """ESPnet's options that name the base model of an LM `pretrained`, and its adapter's sizes.

    The source is a base model, a peft adapter, or an LM `pretrained` that was trained before.
    """
    if is_adapted(source):
        conf = read_config(find_files(source)[0]).lm_conf
        conf = {k: conf[k] for k in ("model", "lora", "text_form", "marks") if k in conf}
    elif is_adapter(source):
        conf = adapter_conf(source)
    else:
        path = Path(str(source).removeprefix(PREFIX))
        # so that the experiment may be used from elsewhere
        conf = {"model": f"{PREFIX}{path.resolve()}" if path.is_dir() else str(source)}
        if path.is_file():
            conf = {"model": str(path.resolve())}
    # one line, as a word of a command line
    return lm_conf_options(conf)


def pretrained_tokens(lm_conf: Mapping[str, Any]) -> Tokens:
    """Tokens of the base model of an LM `pretrained`."""
    reader = reader_of(lm_conf)
    return Tokens(TOKEN_TYPE, vocabulary(reader.tokenizer), reader=reader)


class SentencePreprocessor(AbsPreprocessor):
    """Reads sentences by a pretrained LM's tokenizer, after ESPnet's text cleaner, if any."""

    def __init__(self, reader: Reader, clean: Optional[Any], *, train: bool):
        super().__init__(train)
        self.reader, self.clean = reader, clean

    @classmethod
    def of(cls, args: argparse.Namespace, *, train: bool) -> SentencePreprocessor:
        """The preprocessor of a training's options."""
        from espnet2.text.cleaner import TextCleaner

        clean = TextCleaner(args.cleaner) if args.cleaner else None
        return cls(reader_of(args.lm_conf), clean, train=train)

    def ids(self, sentence: str) -> List[int]:
        """Tokens of a sentence, without those of its end."""
        words = (self.clean(sentence) if self.clean else sentence).split()
        return self.reader.sentence_ids(words)

    def __call__(self, uid: str, data: Dict[str, Any]) -> Dict[str, np.ndarray]:
        """Replace the sentence `text` by its token ids."""
        if isinstance(data.get("text"), str):
            data["text"] = np.array(self.ids(data["text"]), dtype=np.int64)
        return data
