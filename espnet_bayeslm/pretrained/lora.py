"""LoRA adapters of peft: options, and the folder that peft reads."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

from espnet_bayeslm.pretrained.names import ADAPTER, PREFIX, is_pretrained
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write


def need_peft(path: Any = None) -> None:
    """Raise an InputError where peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise InputError(
            "an adapter needs the package peft",
            path=path,
            remedy="Install it: pip install 'espnet_bayeslm[pretrained]'.",
        )


def add_adapter(model: Any, conf: Optional[Mapping[str, Any]]) -> Any:
    """Peft's model around a causal LM: the LoRA adapter (Hu et al. 2022) is trained alone.

    Args:
        model: The causal LM.
        conf: Options: `r` (rank, default 16), `alpha` (the adapter's product is scaled by
            alpha / r; default 2 r), `dropout` (at the adapter's input) and `target_modules` (names
            of layers, default `all-linear`).

    Raises:
        InputError: peft is not installed, an option is unknown or out of its range, or no layer has
            a name of `target_modules`.
    """
    options = {"r": 16, "alpha": None, "dropout": 0.0, "target_modules": "all-linear"}
    if not isinstance(conf or {}, Mapping) or set(conf or {}) - set(options):
        raise InputError(f"lora: expected a mapping of {', '.join(options)}, got {conf!r}")
    r, alpha, dropout, targets = {**options, **(conf or {})}.values()
    for name, value, ok in (("r", r, r >= 1), ("dropout", dropout, 0 <= dropout < 1)):
        if not ok:
            raise InputError(f"lora: {name} {value} is out of range")
    need_peft()
    from peft import LoraConfig, get_peft_model

    kinds = {"target_modules": targets, "task_type": "CAUSAL_LM"}
    alpha = 2 * r if alpha is None else alpha
    try:
        config = LoraConfig(r=r, lora_alpha=alpha, lora_dropout=dropout, **kinds)
        return get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"lora: {str(error).splitlines()[0][:300]}") from error


def is_adapter(source: PathLike) -> bool:
    """True for a folder that holds an adapter of peft."""
    return (Path(str(source).removeprefix(PREFIX)) / ADAPTER).is_file()


def read_adapter_config(folder: PathLike) -> Tuple[Any, str]:
    """Configuration of a peft adapter, by peft, and its base model as `--lm` names it.

    Raises:
        InputError: peft is not installed, or the adapter names no base model.
    """
    need_peft(folder)
    from peft import PeftConfig

    config = PeftConfig.from_pretrained(str(folder).removeprefix(PREFIX))
    base = config.base_model_name_or_path
    if not base:
        raise InputError("the adapter names no base model", path=folder)
    return config, base if is_pretrained(base) else f"{PREFIX}{base}"


def adapter_conf(folder: PathLike) -> Dict[str, Any]:
    """`lm_conf` of the LM that a peft adapter makes of its base.

    Raises:
        InputError: It is no plain LoRA adapter.
    """
    config, base = read_adapter_config(folder)
    if config.peft_type != "LORA":
        raise InputError(f"an adapter of the type {config.peft_type}; expected LORA", path=folder)
    targets = config.target_modules
    targets = targets if isinstance(targets, str) else sorted(targets)
    lora = {"r": config.r, "alpha": config.lora_alpha, "dropout": config.lora_dropout}
    return {"model": base, "lora": {**lora, "target_modules": targets}}


def write_start(folder: PathLike, path: Path) -> Path:
    """Write the weights of a peft adapter to `path`, as a checkpoint to start a training from.

    Raises:
        InputError: The folder holds no weights.
    """
    import torch
    from safetensors.torch import load_file

    weights = Path(str(folder).removeprefix(PREFIX)) / "adapter_model.safetensors"
    if not weights.is_file():
        raise InputError("found no adapter_model.safetensors", path=folder)
    state = {
        "lm.model." + re.sub(r"\.(lora_[AB])\.", r".\1.default.", name): value
        for name, value in load_file(str(weights)).items()
    }
    with atomic_write(path, "wb") as f:
        torch.save(state, f)
    return path


def write_adapter(model: Any, folder: Path, *, base: str, licence: str) -> None:
    """Write an adapter as peft reads it.

    Args:
        model: peft's model.
        folder: The folder, which is there.
        base: The base model, as `--lm` names it.
        licence: The base model's licence; "": unknown.
    """
    from safetensors.torch import save_file

    tensors = {
        name.replace(".default.", "."): value.detach().float().cpu().contiguous()
        for name, value in model.named_parameters()
        if name.endswith((".lora_A.default.weight", ".lora_B.default.weight"))
    }
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    config = model.peft_config["default"]
    config.base_model_name_or_path = base.removeprefix(PREFIX)
    config.inference_mode = True
    config.save_pretrained(str(folder))
    named = f"license: {licence}\n" if licence else ""
    card = f"---\nbase_model: {config.base_model_name_or_path}\n{named}library_name: peft\n---\n"
    (folder / "README.md").write_text(card, encoding="utf-8")
