"""Any of ESPnet's own LMs with random weights: how a trained one becomes Bayesian."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Union

import torch
from torch import nn
from typeguard import typechecked

from espnet_bayeslm.bayes import Position
from espnet_bayeslm.layers.conversion import make_uncertain
from espnet_bayeslm.lm.backbones import get_backbone
from espnet_bayeslm.lm.uncertain import Projected, UncertainLM


def _of_backbone(name: str) -> Callable[..., Any]:
    """Method that is the backbone's of this name."""
    return lambda self, *args: getattr(self._backbone, name)(self, *args)


class BayesESPnetLM(UncertainLM):
    """An ESPnet LM as it is, and its weights random where the configuration says so.

    Its parameters have the names of ESPnet's LM, so that a checkpoint of that LM is its start
    (`--init_param`) and its prior (`model_conf: prior`), and its means are a checkpoint of that LM.

    Args:
        vocab_size: Number of tokens.
        backbone: ESPnet's name of the LM: `seq_rnn`, `transformer` or `transformer_opt`;
            `bayeslm train --from` takes it, and its options, from a trained one.
        backbone_conf: Its options, those of ESPnet's `lm_conf`.
        uncertainty: `{POSITION@LAYERS: bayes}`; positions of `seq_rnn`: `input_gate`,
            `forget_gate`, `cell_input`, `output_gate` (GRU: `reset_gate`, `update_gate`,
            `new_gate`) or `all_gates`; of the others: `attention` (query, key, value and output
            projections), `ffn`, `ffn_out` (the feed-forward net's two layers); of all, without
            layers: `embedding` (the look-up: with tied weights the output projection keeps the
            mean) and `output` (the output projection, where it is not tied).
        prior_variance: Variance of the Gaussian prior, or `learn`, `learn_rows`: the one that makes
            the KL least, for a parameter or for each of its rows (default: as in the paper, IV-A:
            1 for `seq_rnn`, else 1e-3).
        init_std: Standard deviation of the weights' posterior at the start.
        init_std_unit: What init_std is relative to: `absolute`, `weights` (their standard
            deviation) or `prior`.
        num_samples: Weight draws over which a beam search averages the probability of a token;
            0: the posterior mean.
    """

    # ESPnet's transducer search wants an LM that needs no more than the last token
    rnn_type = "espnet"

    @typechecked
    def __init__(
        self,
        vocab_size: int,
        backbone: Optional[str] = None,
        backbone_conf: Any = None,
        uncertainty: Any = None,
        prior_variance: Union[float, str, None] = None,
        init_std: float = 0.01,
        init_std_unit: str = "absolute",
        num_samples: int = 0,
    ):
        used = get_backbone(backbone)
        prior_variance = used.prior_variance if prior_variance is None else prior_variance
        super().__init__(vocab_size, prior_variance=prior_variance, num_samples=num_samples)
        self._backbone = used
        self._take_over(used.build(vocab_size, backbone_conf))
        self.make_uncertain(
            uncertainty,
            num_layers=used.num_layers(self),
            prior_variance=prior_variance,
            init_std=init_std,
            init_std_unit=init_std_unit,
        )

    def positions(self) -> Mapping[str, Position]:
        """The positions of the backbone, by name."""
        return self._backbone.positions(self)

    def _take_over(self, lm: nn.Module) -> None:
        """Make an LM's layers and plain attributes this LM's own."""
        torchs = vars(nn.Module())
        for name, value in vars(lm).items():
            if name not in torchs:
                setattr(self, name, value)
        for name, child in lm.named_children():
            self.add_module(name, child)
        # without random weights they are the plain ones, but faster where no gradient is wanted,
        # and trained under autocast on any CPU
        for owner in list(self.modules()):
            for name, child in list(owner.named_children()):
                if isinstance(child, (nn.Linear, nn.LSTM)):
                    make_uncertain(owner, name)

    def outputs(self, input: torch.Tensor) -> Optional[Projected]:
        """See `UncertainLM.outputs`; not every backbone has them."""
        if not self._backbone.keeps_projection(self):
            return None
        with self.drawn():
            return self._backbone.outputs(self, input), self.decoder.weight

    @property
    def computes_trees(self) -> bool:  # type: ignore[override]
        """See `UncertainLM.computes_trees`."""
        return self._backbone.computes_trees(self)

    @property
    def continues_trees(self) -> bool:  # type: ignore[override]
        """See `UncertainLM.continues_trees`."""
        return self.computes_trees and self._backbone.continues_trees

    # See `IncrementalLM` and `TreeLM`
    compute, zero_state = _of_backbone("compute"), _of_backbone("zero_state")
    begin, advance = _of_backbone("begin"), _of_backbone("advance")
    tree_outputs, tree_states = _of_backbone("tree_outputs"), _of_backbone("tree_states")
    stack_states, split_state = _of_backbone("stack_states"), _of_backbone("split_state")
