"""Several LMs and n-grams with weights as one scorer of words, here or on workers; no search."""

from espnet_bayeslm.utils.imports import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.loading.component_options": ["MixtureOptions"],
        "espnet_bayeslm.mixture.facts": ["MixtureFacts"],
        "espnet_bayeslm.mixture.word_mixture": ["Mixture"],
    },
)
