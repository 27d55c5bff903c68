"""A mixture inside a search: ESPnet's, or our own over CTC logits; it recognises no audio."""

from espnet_bayeslm.utils.imports import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.decoding.ctc_decoder": ["CTCBeam", "CTCDecoder"],
        "espnet_bayeslm.decoding.token_words": ["TokenWords"],
    },
)
