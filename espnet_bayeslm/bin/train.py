"""`bayeslm train`: plain text to a trained LM in one command."""

from __future__ import annotations

import re

from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.training.plain_text import best_of, train
from espnet_bayeslm.training.train_options import TrainOptions
from espnet_bayeslm.utils.cli import Tool


def train_and_tell(options: TrainOptions) -> None:
    """Train an LM as `train` does, and print how good it is and what to do with it."""
    from espnet_bayeslm.loading.experiment import find_files

    exp = options.exp
    train(**vars(options))
    perplexity, epoch, num_epochs = best_of(exp)
    print(f"validation perplexity {perplexity_text(perplexity)} (epoch {epoch} of {num_epochs})")
    checkpoint = find_files(exp)[1]
    averaged = re.search(r"ave_(\d+)best", checkpoint.resolve().name)
    number = int(averaged[1]) if averaged else 1
    of = f", the average of the {number} best epochs" if number > 1 else ""
    print(f"checkpoint: {checkpoint}{of}")
    print(f"next: bayeslm rescore --nbest LISTS --lm {exp} --output DIR")


TOOL = Tool(
    "train",
    "Train an LM on plain text. Training is ESPnet's; a run that was stopped goes on where it"
    " was, by the same command. All of the log is in EXP/train.log.",
    train_and_tell,
    TrainOptions,
    stopped="; the same command goes on after the last whole epoch",
    signed="exp",
    log_level="WARNING",
    trains=True,
    epilog="Other options are those of ESPnet's lm_train: --max_epoch 5, --ngpu 1, --optim_conf"
    " lr=0.1, ... --lm_conf KEY=VALUE sets an option of the LM (unit=650,"
    " uncertainty.ffn@1=bayes), --model_conf KEY=VALUE one of the objective (prior=zero;"
    " warmup_epochs=10 for ten point-estimate epochs first). The error of an unknown KEY names"
    " the valid ones.",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
