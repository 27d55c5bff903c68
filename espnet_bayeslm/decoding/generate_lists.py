"""LMs and bias lists in the search of `nbest`, for recognisers that search by `generate`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Iterable, List, Optional, Sequence

from espnet_bayeslm.decoding.generate import WordFusion
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.pretrained.text_forms import WORDS_TO_CHOOSE
from espnet_bayeslm.recognisers.recordings import read_samples
from espnet_bayeslm.utils.errors import InputError


def fusion_of(
    search: Any,
    lms: MixtureOptions,
    recordings: Iterable[Path],
    *,
    device: str = "cpu",
    normalize: str = "",
    **options: Any,
) -> WordFusion:
    """LMs and bias lists for a recogniser's search.

    The first texts of the recogniser choose the form of the text that pretrained LMs read.

    Args:
        search: The recogniser, which has no LM yet.
        lms: LMs and n-grams, if there are any.
        recordings: Recordings of the utterances.
        device: Device of the LMs.
        normalize: Steps that each word goes through before it is paid.
        **options: As of `WordFusion`.
    """
    mixture: Optional[Mixture] = None
    if lms.lms or lms.ngrams:
        mixture = Mixture.load(lms, device)
        if not mixture.prepare(None):
            steps = Normalization(normalize)
            mixture.prepare([steps.words(words) for words in _first_texts(search, recordings)])
    return WordFusion(search.tokenizer, mixture, normalize=normalize, **options)


def _first_texts(search: Any, recordings: Iterable[Path]) -> List[Sequence[str]]:
    """Words of the first recordings, so many as choose a form."""
    texts: List[Sequence[str]] = []
    for path in recordings:
        if sum(map(len, texts)) >= WORDS_TO_CHOOSE:
            break
        with contextlib.suppress(InputError):  # the recording is left out, and told of, later
            texts.append(search(read_samples(path))[0].words)
    return texts
