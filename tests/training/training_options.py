"""Options of tiny trainings, and what they reported."""

from espnet_bayeslm.training.checkpoint import read_checkpoint

LSTM = ["--lm", "bayes_lstm", "--lm_conf", "unit=8", "--lm_conf", "dropout_rate=0.0"]
TRANSFORMER = ["--lm", "bayes_transformer", "--lm_conf", "att_unit=8"]
TRANSFORMER += ["--lm_conf", "head=2", "--lm_conf", "unit=8", "--lm_conf", "layer=2"]
TRANSFORMER += ["--lm_conf", "dropout_rate=0.0"]
FFN = ["--lm_conf", "uncertainty.ffn@1=bayes"]
ADAM = ["--optim", "adam", "--optim_conf", "lr=0.01"]
CELL = ["--lm_conf", "uncertainty.cell_input@1-2=bayes"]
# A standard deviation of 3e-9: the draws change nothing that is compared.
QUIET = ["--lm_conf", "init_std=3.0e-9"]


def stats(output, epoch=1, part="train"):
    return read_checkpoint(output / "checkpoint.pth")["reporter"]["stats"][epoch][part]
