"""Digest of a pretrained LM: of all that its probabilities depend on, from whatever file it came.

Scores in a cache, finished blocks of a stopped run and the base of an adapter are found by it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any, List, Mapping

import torch

# Entries of a configuration that say where a model is from, or how it is stored
RECORDS = {"architectures", "auto_map", "dtype", "quantization_config", "transformers_version"}
RECORDS |= {"torch_dtype", "use_cache"}
# The same of an adapter's
RECORDS |= {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version"}
RECORDS |= {"revision", "task_type"}
# Entries of a tokenizer that its last call has left
CALLS = {"padding", "truncation"}


def digest_of_model(model: Any, tokenizer: Any) -> str:
    """Digest of all weights, of the configuration and of the tokenizer.

    Files of any precision have one digest if they hold the same values.

    Args:
        model: A model of `transformers` in the precision in which it was loaded, or a peft model.
        tokenizer: A fast tokenizer of `transformers`.
    """
    configs = [model.config, *getattr(model, "peft_config", {}).values()]
    settings = [*map(_options, configs), _tokenizer_options(tokenizer)]
    # a GB takes half a second where the CPU has instructions for it
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    seen = set()
    for name, value in model.state_dict(keep_vars=True).items():
        # tied weights have several names
        if isinstance(value, torch.Tensor) and id(value) not in seen:
            seen.add(id(value))
            digest.update(f"\n{name} {tuple(value.shape)}\n".encode())
            digest.update(_bytes(value))
    return digest.hexdigest()


def _bytes(value: torch.Tensor) -> Any:
    """Values of a weight or buffer; of floating-point numbers in float32 or better."""
    exact = value.dtype
    if value.is_floating_point():
        exact = torch.promote_types(exact, torch.float32)
    flat = value.detach().to("cpu", exact).contiguous().view(-1)
    return flat.view(torch.uint8).numpy()


def _options(config: Any) -> List[Any]:
    """Class of a configuration, and its options that differ from the defaults.

    An option that a later version of the library adds changes no digest.
    """
    usual: Any = {}
    if not getattr(config, "has_no_defaults_at_init", False):
        with contextlib.suppress(TypeError, ValueError):  # a class may need some of its options
            usual = type(config)().to_dict()
    given = {name: v for name, v in config.to_dict().items() if v != usual.get(name)}
    return [type(config).__name__, _plain(given)]


def _plain(value: Any) -> Any:
    """Value of a configuration as JSON has it, without its records."""
    if isinstance(value, Mapping):
        pairs = ((str(name), v) for name, v in value.items())
        return {n: _plain(v) for n, v in pairs if n not in RECORDS and not n.startswith("_")}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [*map(_plain, value)]
    return value if isinstance(value, (bool, int, float)) or value is None else str(value)


def _tokenizer_options(tokenizer: Any) -> List[Any]:
    """All that a tokenizer makes tokens by, and its marks."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    marks = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id
    return [{name: v for name, v in rules.items() if name not in CALLS}, *marks]
