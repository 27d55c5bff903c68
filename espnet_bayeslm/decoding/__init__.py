"""A mixture inside a search: ESPnet's, or our own over CTC logits; it recognises no audio."""

from espnet_bayeslm.utils.imports import lazy_names

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
