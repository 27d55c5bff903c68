"""Bayesian, Gaussian-process and variational language models for ESPnet."""

__version__ = "0.1.0"


def register() -> None:
    """Add the LMs and the model `bayes_lm` to ESPnet's LM task (idempotent)."""
    from espnet_bayeslm.training.register import register as register_classes

    register_classes()


__all__ = ["__version__", "register"]
