"""LM training with ESPnet's own options."""

from __future__ import annotations

import argparse
from typing import Optional, Sequence

from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.utils.errors import one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return ESPnet's parser for LM training."""
    return BayesLMTask.get_parser()


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Train an LM; options as `espnet2.bin.lm_train`."""
    BayesLMTask.main(cmd=cmd)


if __name__ == "__main__":
    with one_line_errors("bayeslm lm_train"):
        main()
