"""Training on a few sampled tokens in place of the whole vocabulary."""

from __future__ import annotations

import argparse
import collections
import itertools
from typing import Any, Counter, Dict, Optional, Tuple

import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.bayes import noise_generator, process_rank
from espnet_bayeslm.layers.sampled import Proposal, sampled_loss
from espnet_bayeslm.training.nll import LogZ, TokenBatch, batch_nll, nll_and_log_z, spread
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import keyed_lines, split_files

# Of the counts: below 1, it makes rare tokens less rare among the noise tokens.
POWER = 0.5
# Added to the run's seed, which is below it: noise tokens apart from the weights' noise.
STREAM = 1 << 64
# The token of padding, which no text has.
BLANK = 0


class SampledSoftmax:
    """The model's option `sampled_softmax`: where noise tokens come from, and the loss on them.

    Noise tokens are drawn by the counter (seed, rank, step). ESPnet sets the seed anew at each
    epoch, and the steps are counted from there: a resumed run draws what an unbroken one would
    have drawn. Drawn as rarely as they come, rare tokens' rows have few and large gradients, of
    which Adam makes too large steps: noise tokens are drawn by the square root of the counts.

    Args:
        num_samples: Noise tokens per batch, on average.
        vocab_size: Number of tokens.
    """

    def __init__(self, num_samples: int, vocab_size: int):
        if not 1 <= num_samples < vocab_size:
            raise InputError(
                f"sampled_softmax {num_samples}: expected 1 to {vocab_size - 1}, less than the"
                " vocabulary has"
            )
        self.num_samples = num_samples
        self.proposal: Optional[Proposal] = None
        self.log_inclusions: Dict[torch.device, torch.Tensor] = {}
        self.seed, self.step = -1, 0

    def set_counts(self, counts: torch.Tensor) -> None:
        """Take the tokens' counts in the training text, (V,)."""
        weights = (counts.double() + 1) ** POWER
        weights[BLANK] = 0
        self.proposal, self.log_inclusions = Proposal(weights.cpu(), self.num_samples), {}

    def draw(self, device: torch.device) -> Tuple[torch.Tensor, torch.Tensor]:
        """Noise tokens of this step (C,), and ln of all inclusion probabilities (V,).

        Raises:
            RuntimeError: The tokens were not counted.
        """
        if self.proposal is None:
            raise RuntimeError(
                "sampled_softmax: the training text's tokens are not counted: train with"
                " `python -m espnet_bayeslm -m espnet2.bin.lm_train`, or call"
                " model.sampler.set_counts(counts) before the first step"
            )
        seed = torch.initial_seed()
        if seed != self.seed:
            self.seed, self.step = seed, 0
        if device not in self.log_inclusions:
            self.log_inclusions[device] = self.proposal.log_inclusion.to(device)
        # on the host, since nobody there would know how many a device has drawn
        candidates = self.proposal.draw(noise_generator(seed + STREAM, process_rank(), self.step))
        self.step += 1
        return candidates.to(device, non_blocking=True), self.log_inclusions[device]

    def nll_and_spread(
        self, model: ESPnetLanguageModel, batch: TokenBatch
    ) -> Tuple[torch.Tensor, LogZ]:
        """Estimate of the sum of -ln p over a batch's tokens, and of ln Z's spread.

        The first is an NLL in value, and its gradient is that of the objective (`sampled_loss`).
        The variance of ln Z has the estimate's own in it, which training holds down with it.
        """
        projected = model.lm.outputs(batch.inputs)
        if projected is None:
            raise InputError(
                "sampled_softmax: the LM's logits are not those of one linear layer without noise",
                remedy="Leave sampled_softmax out, or use another LM or uncertainty.",
            )
        candidates = self.draw(batch.inputs.device)
        outputs, bias = batch.counted(projected[0]), model.lm.decoder.bias
        loss = sampled_loss(outputs, projected[1], bias, batch.targets, *candidates)
        objective, nll = loss.objective.sum(), loss.nll.detach().sum()
        return nll + (objective - objective.detach()), spread(loss.log_z)


def batch_loss(
    model: ESPnetLanguageModel, batch: TokenBatch
) -> Tuple[torch.Tensor, Optional[LogZ]]:
    """Sum of -ln p over a batch's tokens, and ln Z's spread where the loss has it.

    Both are exact, except in training with `sampled_softmax`.
    """
    wants_spread = model.self_normalization > 0
    if model.training and model.sampler is not None:
        total, log_z_spread = model.sampler.nll_and_spread(model, batch)
        return total, log_z_spread if wants_spread else None
    if not wants_spread:
        return batch_nll(model, batch), None
    nll, log_z = nll_and_log_z(model, batch)
    return nll.sum(), spread(log_z)


def count_text_tokens(args: argparse.Namespace, preprocess: Any) -> torch.Tensor:
    """Counts of each token as a target in the training text, (V,)."""
    data = args.train_data_path_and_name_and_type
    paths = [(path, kind) for path, name, kind in data if name == "text"]
    kinds = {kind for _, kind in paths}
    if preprocess is None or kinds != {"text"}:
        raise InputError(
            f"sampled_softmax: cannot count the tokens of training data of type"
            f" {', '.join(sorted(kinds)) or 'none'}"
            + ("" if preprocess is not None else " with --use_preprocessor false"),
            remedy="Give the data as PATH,text,text, or leave sampled_softmax out.",
        )
    words: Counter[str] = collections.Counter()
    sentences = 0
    cleaner, tokenizer = preprocess.text_cleaner, preprocess.tokenizer
    for path in itertools.chain.from_iterable(split_files(path) for path, _ in paths):
        for _, _, text in keyed_lines(path):
            words.update(tokenizer.text2tokens(cleaner(text)))
            sentences += 1
    counts = torch.zeros(len(args.token_list), dtype=torch.double)
    ids = torch.tensor(preprocess.token_id_converter.tokens2ids(words), dtype=torch.long)
    counts.index_add_(0, ids, torch.tensor(list(words.values()), dtype=torch.double))
    counts[-1] += sentences
    return counts
