"""Options of tiny trainings, and what they reported."""

import torch

from espnet_bayeslm.loading.checkpoint import load_state, read_checkpoint

LSTM = ["--lm", "bayes_lstm", "--lm_conf", "unit=8", "--lm_conf", "dropout_rate=0.0"]
TRANSFORMER = ["--lm", "bayes_transformer", "--lm_conf", "att_unit=8"]
TRANSFORMER += ["--lm_conf", "head=2", "--lm_conf", "unit=8", "--lm_conf", "layer=2"]
TRANSFORMER += ["--lm_conf", "dropout_rate=0.0"]
FFN = ["--lm_conf", "uncertainty.ffn@1=bayes"]
ADAM = ["--optim", "adam", "--optim_conf", "lr=0.01"]
SGD = ["--optim", "sgd", "--optim_conf", "lr=0.1"]
STILL = ["--optim", "sgd", "--optim_conf", "lr=0.0"]
IVON = ["--optim", "ivon", "--optim_conf", "lr=1.0"]
CELL = ["--lm_conf", "uncertainty.cell_input@1-2=bayes"]
# A standard deviation of 3e-9: the draws change nothing that is compared.
QUIET = ["--lm_conf", "init_std=3.0e-9"]
SEARCH = ["--lm_conf", "uncertainty.cell_input@1-2.kind=search"]
SEARCH += ["--lm_conf", "uncertainty.cell_input@1-2.candidates=[point,bayes]"]
FFN_SEARCH = ["--lm_conf", "uncertainty.ffn@*.kind=search"]


def batch():
    """Return padded token ids of three sentences, one longer than each, and their lengths."""
    lengths = torch.tensor([5, 1, 3])
    text = torch.randint(2, 12, (3, 6), generator=torch.Generator().manual_seed(2))
    return text * (torch.arange(6) < lengths.unsqueeze(1)), lengths


def assert_same(checkpoint, other, **tolerance):
    """Check that two checkpoints hold the same tensors, to the last bit where nothing is said."""
    tolerance = tolerance or dict(rtol=0, atol=0)
    torch.testing.assert_close(load_state(checkpoint), load_state(other), **tolerance)


def stats(output, epoch=1, part="train"):
    return read_checkpoint(output / "checkpoint.pth")["reporter"]["stats"][epoch][part]
