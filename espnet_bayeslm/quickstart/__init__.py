"""From what the package ships to a table of word error rates and a report, in minutes."""

from espnet_bayeslm.quickstart.demo import run

__all__ = ["run"]
