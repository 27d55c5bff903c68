"""LoRA adapters of peft: options, and the folder that peft reads."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Union

from espnet_bayeslm.pretrained.names import ADAPTER, PREFIX, is_pretrained
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write


@dataclasses.dataclass(frozen=True)
class LoraOptions:
    """Options of a LoRA adapter (Hu et al. 2022).

    Attributes:
        r: Rank.
        alpha: The adapter's product is scaled by alpha / r; None: 2 r.
        dropout: Rate of dropout at the adapter's input.
        target_modules: Names of the layers that get an adapter, or `all-linear`.
    """

    r: int = 16
    alpha: Optional[int] = None
    dropout: float = 0.0
    target_modules: Union[str, List[str]] = "all-linear"


def lora_options(conf: Optional[Mapping[str, Any]]) -> LoraOptions:
    """Options of a LoRA adapter from a configuration's `lora`.

    Raises:
        InputError: An option is unknown, or out of its range.
    """
    valid = [field.name for field in dataclasses.fields(LoraOptions)]
    if not isinstance(conf or {}, Mapping) or set(conf or {}) - set(valid):
        raise InputError(f"lora: expected a mapping of {', '.join(valid)}, got {conf!r}")
    options = LoraOptions(**(conf or {}))
    for name, ok in (("r", options.r >= 1), ("dropout", 0 <= options.dropout < 1)):
        if not ok:
            raise InputError(f"lora: {name} {getattr(options, name)} is out of range")
    return options


def need_peft(path: Any = None) -> None:
    """Raise an InputError where peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise InputError(
            "an adapter needs the package peft",
            path=path,
            remedy="Install it: pip install 'espnet_bayeslm[pretrained]'.",
        )


def add_adapter(model: Any, options: LoraOptions) -> Any:
    """Peft's model around a causal LM: the adapter is trained, and nothing else.

    Raises:
        InputError: peft is not installed, or no layer has a name of `target_modules`.
    """
    need_peft()
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=options.r,
        lora_alpha=2 * options.r if options.alpha is None else options.alpha,
        lora_dropout=options.dropout,
        target_modules=options.target_modules,
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"lora: {str(error).splitlines()[0][:300]}") from error


def is_adapter(source: PathLike) -> bool:
    """True for a folder that holds an adapter of peft."""
    return (Path(str(source).removeprefix(PREFIX)) / ADAPTER).is_file()


def read_adapter_config(folder: PathLike) -> Dict[str, Any]:
    """Configuration of a peft adapter.

    Raises:
        InputError: It is no LoRA adapter, or names no base model.
    """
    path = Path(folder) / ADAPTER
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"not a JSON file ({error})", path=path) from error
    if not isinstance(content, dict) or not content.get("base_model_name_or_path"):
        raise InputError("the adapter names no base model", path=path)
    return content


def base_of(content: Mapping[str, Any]) -> str:
    """Base model that an adapter's configuration names, as `--lm` names it."""
    base = str(content["base_model_name_or_path"])
    return base if is_pretrained(base) else f"{PREFIX}{base}"


def adapter_conf(folder: PathLike) -> Dict[str, Any]:
    """`lm_conf` of the LM that a peft adapter makes of its base.

    Raises:
        InputError: It is no plain LoRA adapter.
    """
    content = read_adapter_config(folder)
    if content.get("peft_type") != "LORA":
        raise InputError(f"an adapter of the type {content.get('peft_type')}; expected LORA")
    lora = {
        "r": content["r"],
        "alpha": content["lora_alpha"],
        "dropout": content.get("lora_dropout", 0.0),
        "target_modules": content["target_modules"],
    }
    return {"model": base_of(content), "lora": lora}


def write_start(folder: PathLike, path: Path) -> Path:
    """Write the weights of a peft adapter as a checkpoint to start a training from.

    Returns:
        The checkpoint's path.

    Raises:
        InputError: The folder holds no weights.
    """
    import torch
    from safetensors.torch import load_file

    weights = Path(folder) / "adapter_model.safetensors"
    if not weights.is_file():
        raise InputError("found no adapter_model.safetensors", path=folder)
    names = {
        name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."): value
        for name, value in load_file(str(weights)).items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, "wb") as f:
        torch.save({f"lm.model.{name}": value for name, value in names.items()}, f)
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
