"""This package's CTC search where programs of others import pyctcdecode."""

from __future__ import annotations

import importlib.machinery
import re
import sys
import types
from typing import Any, Dict

from espnet_bayeslm.decoding import ctc_alphabet, ctc_decoder, ctc_language_model
from espnet_bayeslm.decoding.ctc_decoder import DEFAULTS
from espnet_bayeslm.decoding.ctc_tokens import UNKNOWN, UNKNOWN_TEXT
from espnet_bayeslm.decoding.hotwords import HOTWORD_WEIGHT
from espnet_bayeslm.scoring.reader import WORD_MARK

NAME = "pyctcdecode"
CONSTANTS: Dict[str, Any] = {
    "DEFAULT_ALPHA": 0.5,
    "DEFAULT_BETA": 1.5,
    "DEFAULT_UNK_LOGP_OFFSET": -10.0,
    "DEFAULT_BEAM_WIDTH": DEFAULTS.beam_size,
    "DEFAULT_HOTWORD_WEIGHT": HOTWORD_WEIGHT,
    "DEFAULT_PRUNE_LOGP": DEFAULTS.beam_prune_logp,
    "DEFAULT_PRUNE_BEAMS": False,
    "DEFAULT_MIN_TOKEN_LOGP": DEFAULTS.token_min_logp,
    "DEFAULT_SCORE_LM_BOUNDARY": True,
}
MODULES: Dict[str, Dict[str, Any]] = {
    "alphabet": {
        "Alphabet": ctc_alphabet.Alphabet,
        "BPE_TOKEN": WORD_MARK,
        "UNK_TOKEN": UNKNOWN_TEXT,
        "UNK_BPE_TOKEN": ctc_alphabet.UNKNOWN_PIECE,
        "BLANK_TOKEN_PTN": re.compile(r"[<\[]pad[>\]]$", re.IGNORECASE),
        "UNK_TOKEN_PTN": re.compile(f"{UNKNOWN.pattern}$", re.IGNORECASE),
    },
    "language_model": {"LanguageModel": ctc_language_model.LanguageModel},
    "decoder": {
        "BeamSearchDecoderCTC": ctc_decoder.BeamSearchDecoderCTC,
        "build_ctcdecoder": ctc_decoder.build_ctcdecoder,
    },
    "constants": CONSTANTS,
}
"""The modules of pyctcdecode that others import, and names in them."""


def in_place_of_pyctcdecode() -> None:
    """Let `import pyctcdecode` give this package's search, in this process.

    It serves programs that cannot be changed, such as `Wav2Vec2ProcessorWithLM` of transformers.
    Call it before they run; pyctcdecode need not be installed.
    """
    package = _module(NAME)
    package.__path__ = []
    for name, content in MODULES.items():
        module = _module(f"{NAME}.{name}")
        vars(module).update(content)
        setattr(package, name, module)
        if name != "constants":
            vars(package).update({key: each for key, each in content.items() if key[1].islower()})


def _module(name: str) -> types.ModuleType:
    """A new module where imports look."""
    module = types.ModuleType(name, "This package's CTC search, in place of pyctcdecode.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = module
    return module
