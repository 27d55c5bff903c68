"""Experiment with the shipped data: from text to word error rates and a report, in minutes."""

from espnet_bayeslm.quickstart.demo import run

__all__ = ["run"]
