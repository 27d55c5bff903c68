"""Scores of a sequence from the logits of one sentence alone."""

import torch


@torch.no_grad()
def naive(lm, ids, eos, before=()):
    """Return (n + 1,) ln p of each token and </s>, after all that was said before."""
    logits, _ = lm.eval()(torch.tensor([[*before, eos, *ids]]), None)
    log_probs = logits[0, len(before) :].double().log_softmax(-1)
    return log_probs[range(len(ids) + 1), [*ids, eos]].numpy()
