"""Kernels, synchronisations and copies of a step on a GPU, counted without one.

Tensors say that they are on CUDA and are on the CPU: the code takes the ways that it takes on CUDA,
with real values, and each operator that is called on them is counted. Operators that only look at a
tensor in another way are no kernels. A layer of torch's own LSTM counts as two kernels a step, as
cuDNN has them. Of dropout inside of attention nothing is counted: CUDA's kernels have it in them.

    python bench/kernels.py
"""

from __future__ import annotations

import collections
import contextlib
import unittest.mock
import warnings
from typing import Any, Callable, Counter, Dict, Iterator, List, Mapping, Tuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.lm.tree import build_tree
from espnet_bayeslm.training.model import BayesLanguageModel

CUDA = torch.device("cuda", 0)
# The host waits for what these find.
SYNCS = frozenset(
    (
        *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive"),
        *("unique_dim", "equal", "bincount"),
    )
)
# These launch nothing.
FREE = frozenset(
    (
        *("detach", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"),
        *("_unsafe_view", "lift_fresh", "alias", "_reshape_alias"),
    )
)
LSTM, LSTM_BACKWARD = "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"


class Counts:
    """What a piece of work did on the device.

    Attributes:
        kernels: By the operator's name.
        syncs: Where the host waited for the device, by the operator's name.
        copies: From the host to the device, by the operator's name.
    """

    def __init__(self) -> None:
        self.kernels: Counter[str] = collections.Counter()
        self.syncs: Counter[str] = collections.Counter()
        self.copies: Counter[str] = collections.Counter()

    def add(self, func: Any, args: Any, kwargs: Any) -> None:
        """Count an operator."""
        name = func._schema.name.partition("::")[2]
        flat = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        foreign = [x for x in flat if not isinstance(x, OnDevice) and x.dim() > 0]
        if name == "copy_" and not isinstance(args[0], OnDevice):
            self.syncs["copy to the host"] += 1
            return
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [x for x in args[1] if x is not None]
            self.syncs["mask"] += any(x.dtype == torch.bool for x in indices)
        # zeros that a backward pass makes by itself, in C++, are where they belong
        if foreign and torch._C._current_graph_task_id() < 0:
            known = name.startswith(("index", "copy_", "_index"))
            assert known, f"{name}: tensors of the host and of the device"
            self.copies[name] += len(foreign)
        self.syncs[name] += name in SYNCS
        if name in (LSTM, LSTM_BACKWARD):
            steps = args[0].size(0)
            self.kernels[name] += 2 * steps + (1 if name == LSTM else 4)
        elif not (func.is_view or name in FREE or name in SYNCS):
            self.kernels[name] += 1


_counts: List[Counts] = [Counts()]


class OnDevice(torch.Tensor):
    """A tensor that says that it is on CUDA, and is on the CPU."""

    elem: torch.Tensor

    @staticmethod
    def __new__(cls, elem: torch.Tensor) -> OnDevice:
        """Wrap a tensor of the CPU."""
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device="cpu",
        )
        tensor.elem = elem
        return tensor

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """What the code asks for."""
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """What the code asks for."""
        return True

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        copied = OnDevice(self.elem.clone())
        return nn.Parameter(copied) if isinstance(self, nn.Parameter) else copied

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the operator and do it."""
        kwargs = kwargs or {}
        _counts[-1].add(func, args, kwargs)
        plain = tree_map_only(OnDevice, lambda x: x.elem, (args, kwargs))
        result = func(*plain[0], **plain[1])
        wrapped = tree_map_only(torch.Tensor, OnDevice, result)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def run_backward(loss: torch.Tensor) -> None:
    """As `torch.autograd.backward`."""
    engine = torch.autograd.Variable._execution_engine
    options = dict(allow_unreachable=True, accumulate_grad=True)
    engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), **options)


def is_cuda(device: Any) -> bool:
    """Return whether this names a CUDA device."""
    return device is not None and torch.device(device).type == "cuda"


class Placement(TorchFunctionMode):
    """Puts what is made on CUDA or moved there, and counts what the host has to do with it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what was asked for."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        counts = _counts[-1]
        if name == "scaled_dot_product_attention":
            kwargs["dropout_p"] = 0.0
        if name == "backward":
            # torch's own would leave this mode for all that it calls
            with self:
                return run_backward(*args[0])
        if name == "to" and isinstance(args[0], torch.Tensor):
            return self._to(args, kwargs)
        if name in ("cpu", "tolist", "numpy") and isinstance(args[0], OnDevice):
            counts.syncs[name] += 1
            found = getattr(args[0].detach().elem, name)()
            return found
        if name == "new_tensor" and isinstance(args[0], OnDevice):
            counts.copies[name] += 1
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            counts.syncs[name] += isinstance(args[-1], OnDevice)
        wants_cuda = is_cuda(kwargs.get("device"))
        if not wants_cuda:
            return func(*args, **kwargs)
        kwargs["device"] = "cpu"
        result = func(*args, **kwargs)
        if isinstance(result, OnDevice):
            return result
        if name in ("tensor", "as_tensor"):
            counts.copies[name] += 1
        elif name not in FREE:
            counts.kernels[name] += 1
        return on_device(result)

    def _to(self, args: Any, kwargs: Any) -> torch.Tensor:
        x, *rest = args
        target = next((a for a in rest if isinstance(a, torch.Tensor)), None)
        devices = [a for a in rest if isinstance(a, (str, torch.device))]
        device = kwargs.pop("device", None) or (devices or [None])[0]
        kwargs.pop("non_blocking", None)
        dtype = kwargs.pop("dtype", next((a for a in rest if isinstance(a, torch.dtype)), None))
        if target is not None:
            device, dtype = target.device, target.dtype
        moved = x if dtype is None else torch.Tensor.to(x, dtype)
        if device is None:
            return moved
        if is_cuda(device) and not isinstance(x, OnDevice):
            _counts[-1].copies["to"] += 1
            return on_device(moved)
        if not is_cuda(device) and isinstance(x, OnDevice):
            _counts[-1].syncs["to"] += 1
            return moved.detach().elem
        return moved


def on_device(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a parameter, as it is on the device; it shares its storage."""
    if isinstance(x, OnDevice):
        return x
    moved = OnDevice(x.detach())
    return (
        nn.Parameter(moved, requires_grad=x.requires_grad) if isinstance(x, nn.Parameter) else moved
    )


def move(model: nn.Module) -> nn.Module:
    """Put a model's parameters and buffers on the device, in place."""
    moved: Dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                moved.setdefault(id(tensor), on_device(tensor))
                setattr(module, name, moved[id(tensor)])
    return model


class HostGenerator(torch.Generator):
    """A generator of the CPU, whatever the device."""

    def __new__(cls, device: Any = "cpu") -> HostGenerator:
        """Return a new one."""
        return super().__new__(cls, "cpu")


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """Let tensors be made on the device that is not there."""
    patch = unittest.mock.patch.object
    with (
        patch(torch, "Generator", HostGenerator),
        warnings.catch_warnings(),
        Placement(),
    ):
        warnings.filterwarnings("ignore", message="User provided device_type of 'cuda'")
        yield


@contextlib.contextmanager
def counting() -> Iterator[Counts]:
    """Count what is done within; in `pretended`."""
    _counts.append(Counts())
    try:
        yield _counts[-1]
    finally:
        _counts.pop()


VOCAB, BATCH, LENGTH = 500, 8, 35
SIZES: Dict[str, Dict[str, Any]] = {
    "lstm": dict(unit=32, nlayers=2),
    "transformer": dict(att_unit=32, head=4, unit=64, layer=4),
}
CASES: Dict[str, Dict[str, Dict[str, Any]]] = {
    "lstm": {
        "point": {},
        "bayes embedding": {"embedding": "bayes"},
        "bayes cell_input@1-2": {"cell_input@1-2": "bayes"},
        "bayes all_gates@1-2": {"all_gates@1-2": "bayes"},
        "gp layer_input@1-2": {"layer_input@1-2": "gp"},
        "gp cell_input@1-2": {"cell_input@1-2": "gp"},
        "gp all_gates@1-2": {"all_gates@1-2": "gp"},
        "gp cell_state@1-2": {"cell_state@1-2": "gp"},
        "gp hidden_input@1-2": {"hidden_input@1-2": "gp"},
        "variational@1-2": {"hidden_output@1-2": "variational"},
    },
    "transformer": {
        "point": {},
        "bayes embedding": {"embedding": "bayes"},
        "bayes ffn@*": {"ffn@*": "bayes"},
        "bayes attention@*": {"attention@*": "bayes"},
        "gp ffn@*": {"ffn@*": "gp"},
        "variational@*": {"hidden_output@*": "variational"},
    },
}


def make_model(
    family: str, uncertainty: Mapping[str, Any], *, model_conf: Mapping[str, Any] = {}, **lm: Any
) -> BayesLanguageModel:
    """Return a model in ESPnet's, on the CPU."""
    make = BayesLSTMLM if family == "lstm" else BayesTransformerLM
    conf = {"dropout_rate": 0.2, "tie_weights": True, **SIZES[family], **lm}
    inner = make(VOCAB, uncertainty=uncertainty, **conf)
    return BayesLanguageModel(inner, VOCAB, num_train_tokens=100_000, **model_conf)


def make_batch() -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the padded tokens and the lengths of a batch, on the CPU."""
    lengths = torch.randint(1, LENGTH, (BATCH,))
    lengths[0] = LENGTH
    text = torch.randint(2, VOCAB - 1, (BATCH, LENGTH))
    return text * (torch.arange(LENGTH) < lengths.unsqueeze(1)), lengths


def train(model: nn.Module) -> Callable[[], Any]:
    """Return the work of a training step without the optimizer."""
    text, lengths = (on_device(x) for x in make_batch())
    model.train()

    def work() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        loss, _, _ = model(text, lengths)
        torch.autograd.backward(loss)

    return work


def score(model: nn.Module) -> Callable[[], Any]:
    """Return the work of a validation batch."""
    text, lengths = (on_device(x) for x in make_batch())
    model.eval()

    def work() -> None:
        with torch.no_grad():
            model(text, lengths)

    return work


def along_trees(model: nn.Module) -> Callable[[], Any]:
    """Return the work of rescoring a list over its prefix tree."""
    text, lengths = make_batch()
    lists = [sorted(row[:n].tolist() for row, n in zip(text, lengths.tolist(), strict=True))]
    tree = build_tree(lists, VOCAB - 1, CUDA)[0]
    model.eval()

    def work() -> None:
        with torch.no_grad():
            model.lm.tree_outputs(tree)

    return work


def beam(model: nn.Module) -> Callable[[], Any]:
    """Return the work of a step of a beam search."""
    model.eval()
    ys = on_device(make_batch()[0].clamp(min=2))
    states: List[Any] = [None] * BATCH
    _, states = model.lm.batch_score(ys[:, :3], states, ys)

    def work() -> None:
        model.lm.batch_score(ys[:, :4], states, ys)

    return work


PHASES: Dict[str, Callable[[nn.Module], Callable[[], Any]]] = {
    "train": train,
    "valid": score,
    "tree": along_trees,
    "beam": beam,
}


def count(model: nn.Module, phase: str) -> Counts:
    """Return what a phase does on the device, after a first time; the model is moved there."""
    with pretended():
        work = PHASES[phase](move(model))
        work()
        with counting() as counts:
            work()
    return counts


def main() -> None:
    """Print a row for each LM: kernels / synchronisations / copies of each phase."""
    print(f"kernels / synchronisations / copies; {BATCH} x {LENGTH} tokens")
    print(f"{'':40}", *(f"{phase:>18}" for phase in PHASES))
    for family in CASES:
        for name, case in CASES[family].items():
            cells = []
            for phase in PHASES:
                torch.manual_seed(0)
                c = count(make_model(family, case), phase)
                totals = (c.kernels.total(), c.syncs.total(), c.copies.total())
                cells.append(f"{' / '.join(map(str, totals)):>18}")
            print(f"{family + ' ' + name:40}", *cells, flush=True)


if __name__ == "__main__":
    main()
