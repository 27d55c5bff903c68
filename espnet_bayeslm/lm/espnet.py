"""Any of ESPnet's own LMs with random weights: how a trained one becomes Bayesian."""

from __future__ import annotations

import inspect
from typing import Any, Callable, ClassVar, Dict, Mapping, Optional, Tuple, Type, Union

from espnet2.lm.abs_model import AbsLM
from torch import nn
from typeguard import TypeCheckError, typechecked

from espnet_bayeslm.bayes import Position, Weights
from espnet_bayeslm.layers import LSTM, Linear
from espnet_bayeslm.lm.projected import ProjectedLM
from espnet_bayeslm.utils.errors import InputError

BACKBONES: Dict[str, Type[BayesESPnetLM]] = {}
"""The LMs with one of ESPnet's as the backbone, by ESPnet's names."""
# Layers of torch -> this package's with the same parameters and options.
OURS: Dict[type, Type[nn.Module]] = {nn.Linear: Linear, nn.LSTM: LSTM}


def parameters(*layers: str) -> Tuple[str, ...]:
    """Names of weight and bias of some layers."""
    return tuple(f"{layer}.{name}" for layer in layers for name in ("weight", "bias"))


class BayesESPnetLM(ProjectedLM):
    """An ESPnet LM with random weights at the locations that the configuration names.

    The parameters have the names of ESPnet's LM. A checkpoint of ESPnet's LM is therefore a start
    (`--init_param`) and a prior (`model_conf: prior`), and the posterior mean is such a checkpoint.
    A new LM is of the class of its backbone, which builds ESPnet's LM, makes it random and runs it.
    This class has the methods that most backbones share.

    Args:
        vocab_size: Number of tokens.
        backbone: ESPnet's name of the LM: `seq_rnn`, `transformer` or `transformer_opt`;
            `bayeslm train --from` takes it, and its options, from a trained one.
        backbone_conf: Options of the backbone, as in ESPnet's `lm_conf`.
        uncertainty: `{POSITION@LAYERS: bayes}`; positions of `seq_rnn`: `input_gate`,
            `forget_gate`, `cell_input`, `output_gate` (GRU: `reset_gate`, `update_gate`,
            `new_gate`) or `all_gates`; positions of any other backbone: `attention` (query, key,
            value and output projections), `ffn`, `ffn_out` (the feed-forward net's two layers);
            positions of every backbone, without layers: `embedding` (the look-up: with tied weights
            the output projection keeps the mean) and `output` (the output projection, where it is
            not tied).
        prior_variance: Variance of the Gaussian prior, or `learn`, `learn_rows`: the one that makes
            the KL least, for a parameter or for each of its rows (default: as in the paper, IV-A:
            1 for `seq_rnn`, else 1e-3).
        init_std: Standard deviation of the weights' posterior at the start.
        init_std_unit: Unit of init_std: `absolute`, `weights` (their standard deviation) or
            `prior`.
        num_samples: Number of weight samples over which a beam search averages the probability of a
            token; 0: the posterior mean.

    Attributes:
        backbone: ESPnet's name of the LM. A backbone's class sets this and the following
            attributes.
        espnet_class: ESPnet's class.
        usual_prior_variance: The prior's variance unless the configuration says otherwise.
        parameters_at: {position: patterns of parameter names}, `{k}` for the layer, from 0.
        num_layers: Gives the number of layers.
    """

    # ESPnet's transducer search wants an LM that needs no more than the last token
    rnn_type = "espnet"
    backbone: str
    espnet_class: Any
    usual_prior_variance = 1e-3
    num_layers: Callable[[], int]
    parameters_at: ClassVar[Mapping[str, Tuple[str, ...]]]

    def __init_subclass__(cls) -> None:
        """Make a backbone's class known; one that names none is its parent's in other words."""
        if "backbone" in vars(cls):
            BACKBONES[cls.backbone] = cls

    def __new__(cls, *args: Any, **kwargs: Any) -> BayesESPnetLM:
        """An LM of the class of its backbone."""
        backbone: Any = kwargs.get("backbone", args[1] if len(args) > 1 else None)
        chosen = BACKBONES.get(backbone, cls) if cls is BayesESPnetLM else cls
        return super().__new__(chosen)

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
        if backbone not in BACKBONES:
            raise InputError(
                f"backbone {backbone!r}: valid are {', '.join(BACKBONES)}",
                remedy="" if backbone else "`bayeslm train --from EXP` takes it from a trained LM.",
            )
        prior_variance = self.usual_prior_variance if prior_variance is None else prior_variance
        super().__init__(vocab_size, prior_variance=prior_variance, num_samples=num_samples)
        self.take_over(self.build(vocab_size, backbone_conf))
        start = {"init_std": init_std, "init_std_unit": init_std_unit}
        self.make_uncertain(uncertainty, num_layers=self.num_layers(), **start)

    def take_over(self, lm: nn.Module) -> None:
        """Make an LM's layers and plain attributes this LM's own."""
        torchs = vars(nn.Module())
        for name, value in vars(lm).items():
            if name not in torchs:
                setattr(self, name, value)
        for name, child in lm.named_children():
            self.add_module(name, child)
        # faster where no gradient is wanted, and trained under autocast on any CPU
        for owner in list(self.modules()):
            for name, child in list(owner.named_children()):
                if type(child) in OURS:
                    layer = OURS[type(child)].__new__(OURS[type(child)])
                    vars(layer).update(vars(child))  # the same parameters and options
                    setattr(owner, name, layer)

    @classmethod
    def build(cls, vocab_size: int, conf: Optional[Mapping[str, Any]]) -> AbsLM:
        """ESPnet's LM."""
        try:
            return cls.espnet_class(vocab_size, **(conf or {}))
        except (TypeCheckError, TypeError, ValueError, AssertionError, ImportError) as error:
            reason = str(error) or type(error).__name__
            raise InputError(f"backbone_conf: ESPnet's {cls.backbone} says: {reason}") from error

    def positions(self) -> Mapping[str, Position]:
        """Random positions of a Transformer, by name."""
        return {
            name: Position(weights=tuple(map(Weights, patterns)), layered="{k}" in patterns[0])
            for name, patterns in self.parameters_at.items()
        }


# Python takes the options of a class from `__new__` where it has one
_init = inspect.signature(BayesESPnetLM.__init__)
BayesESPnetLM.__signature__ = _init.replace(  # type: ignore[attr-defined]
    parameters=[p for name, p in _init.parameters.items() if name != "self"]
)
