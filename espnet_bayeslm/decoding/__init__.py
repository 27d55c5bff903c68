"""A mixture inside a search: ESPnet's, or our own over CTC logits; it recognises no audio."""

from typing import TYPE_CHECKING

from espnet_bayeslm.utils.imports import lazy_names

if TYPE_CHECKING:
    from espnet_bayeslm.decoding.ctc_alphabet import Alphabet as Alphabet
    from espnet_bayeslm.decoding.ctc_decoder import BeamSearchDecoderCTC as BeamSearchDecoderCTC
    from espnet_bayeslm.decoding.ctc_decoder import build_ctcdecoder as build_ctcdecoder
    from espnet_bayeslm.decoding.ctc_language_model import LanguageModel as LanguageModel
    from espnet_bayeslm.decoding.ctc_output import OutputBeam as OutputBeam
    from espnet_bayeslm.decoding.ctc_output import OutputBeamMPSafe as OutputBeamMPSafe
    from espnet_bayeslm.decoding.ctc_stand_in import (
        in_place_of_pyctcdecode as in_place_of_pyctcdecode,
    )
    from espnet_bayeslm.decoding.token_words import TokenWords as TokenWords

__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.decoding.ctc_alphabet": ["Alphabet"],
        "espnet_bayeslm.decoding.ctc_decoder": [
            "BeamSearchDecoderCTC",
            "build_ctcdecoder",
        ],
        "espnet_bayeslm.decoding.ctc_language_model": ["LanguageModel"],
        "espnet_bayeslm.decoding.ctc_output": ["OutputBeam", "OutputBeamMPSafe"],
        "espnet_bayeslm.decoding.ctc_stand_in": ["in_place_of_pyctcdecode"],
        "espnet_bayeslm.decoding.token_words": ["TokenWords"],
    },
)
