"""ESPnet LMs with uncertain locations."""

import espnet_bayeslm.kinds.search  # noqa: F401 (makes the kind `search` known)
from espnet_bayeslm.lm.espnet import BayesESPnetLM
from espnet_bayeslm.lm.lstm import BayesLSTMLM
from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.lm.transformer import BayesTransformerLM
from espnet_bayeslm.lm.uncertain import UncertainLM

__all__ = ["BayesESPnetLM", "BayesLSTMLM", "BayesTransformerLM", "MixtureLM", "UncertainLM"]
