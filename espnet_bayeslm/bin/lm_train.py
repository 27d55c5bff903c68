"""LM training with ESPnet's own options."""

from __future__ import annotations

import argparse
import sys
from typing import Optional, Sequence

from espnet_bayeslm.configs import expand_config
from espnet_bayeslm.utils.errors import one_line_errors

# ESPnet's own help has 540 lines, and takes seconds to import.
HELP = """\
usage: bayeslm lm_train [options of espnet2.bin.lm_train]

Train an LM with ESPnet's own options, with the LMs of this package known to it.

  --config CONFIG        a yaml file of options, or a name of `bayeslm configs`
  --size small|paper     the sizes of bayes_lstm or bayes_transformer, for --config
  --lm NAME              bayes_lstm, bayes_transformer, bayes_espnet, seq_rnn, transformer, ...
  --lm_conf KEY=VALUE    an option of the LM, as unit=650 or uncertainty.ffn@1=bayes; repeatable
  --model_conf KEY=VALUE an option of the objective, as kl_weight=1.0 or prior=EXP/CHECKPOINT
  --output_dir EXP       the experiment's folder
  --token_list, --token_type, --bpemodel, --train_data_path_and_name_and_type, ...: as in ESPnet

  --help_all             all of ESPnet's options
  --print_config         their values, as yaml
"""


def get_parser() -> argparse.ArgumentParser:
    """ESPnet's parser for LM training."""
    from espnet_bayeslm.training.task import BayesLMTask

    return BayesLMTask.get_parser()


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Train an LM; options as `espnet2.bin.lm_train`."""
    words = list(sys.argv[1:] if cmd is None else cmd)
    # as an ESPnet program (see `launch`) it has ESPnet's help
    if cmd is not None and words[:1] in (["-h"], ["--help"]):
        print(HELP, end="")
        raise SystemExit(0)
    from espnet_bayeslm.training.task import BayesLMTask

    words = ["--help" if word == "--help_all" else word for word in words]
    BayesLMTask.main(cmd=expand_config(words))


if __name__ == "__main__":
    with one_line_errors("bayeslm lm_train"):
        main()
