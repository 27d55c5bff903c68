"""Several LMs and n-grams with weights as one scorer of words, here or on workers; no search."""

from typing import TYPE_CHECKING

from espnet_bayeslm.utils.imports import lazy_names

if TYPE_CHECKING:
    from espnet_bayeslm.loading.component_options import MixtureOptions as MixtureOptions
    from espnet_bayeslm.mixture.facts import MixtureFacts as MixtureFacts
    from espnet_bayeslm.mixture.word_mixture import Mixture as Mixture

__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.loading.component_options": ["MixtureOptions"],
        "espnet_bayeslm.mixture.facts": ["MixtureFacts"],
        "espnet_bayeslm.mixture.word_mixture": ["Mixture"],
    },
)
