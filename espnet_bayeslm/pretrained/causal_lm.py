"""Causal LMs of `transformers` from a folder, a GGUF file, a peft adapter or a hub name.

A local copy is used where there is one; a hub is asked only for a name that no local copy has.
Code from a model's folder is never run.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import torch

from espnet_bayeslm.pretrained.digest import digest_of_model
from espnet_bayeslm.pretrained.names import (
    ADAPTER,
    PREFIX,
    is_adapter,
    is_pretrained,
    other_options,
)
from espnet_bayeslm.pretrained.scorer import PretrainedLM
from espnet_bayeslm.pretrained.text_forms import AUTO, Reader, TextForm, check_form
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write
from espnet_bayeslm.utils.log import LOG

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Key of an adapter's card for the form in which it was trained
FORM_KEY = "text_form"


def load_causal_lm(
    source: PathLike, *, device: str = "cpu", precision: str = "float32", text_form: str = AUTO
) -> PretrainedLM:
    """Causal LM in evaluation mode.

    Args:
        source: `hf:FOLDER`, `hf:NAME`, a folder, a GGUF file, or a folder of a peft adapter.
        device: Device of the weights.
        precision: One of `PRECISIONS`.
        text_form: As of `PretrainedLM`.

    Raises:
        InputError: It is not found, not a causal LM, has no tokenizer, or needs code of its own.
    """
    check_form(text_form)
    if precision not in PRECISIONS:
        raise InputError(f"precision {precision!r}: valid are {', '.join(PRECISIONS)}")
    named = str(source)
    path = Path(named.removeprefix(PREFIX))
    if is_adapter(path):
        model, tokenizer = _read_adapter(path)
    else:
        model, tokenizer = _read(_model, named), load_tokenizer(named)
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{named}: its tokenizer does not say where tokens stand in the text",
            remedy="Use a model with a fast tokenizer (tokenizer.json).",
        )
    licence = _from_card(path, "license")
    LOG.info(
        f"Loaded {named}: {model.config.model_type}, {len(tokenizer)} tokens,"
        f" {sum(p.numel() for p in model.parameters())} weights,"
        f" licence: {licence or 'not named by its card'}"
    )
    name, digest = path.stem if path.is_file() else path.name, digest_of_model(model, tokenizer)
    placed = model.to(device, PRECISIONS[precision]).eval()
    form = adapter_form(path)
    reader = Reader(tokenizer, TextForm.parse(form)) if form else None
    return PretrainedLM(
        name, placed, tokenizer, digest, licence, text_form=text_form, reader=reader
    )


def load_tokenizer(source: PathLike) -> Any:
    """Tokenizer of a pretrained LM that is no adapter, without the LM's weights."""
    path = Path(str(source).removeprefix(PREFIX))
    files = [path] if path.is_file() else sorted(path.glob("*token*"))
    return _last_tokenizer(str(source), tuple(file.stat().st_mtime_ns for file in files))


@functools.lru_cache(maxsize=1)
def _last_tokenizer(named: str, _times: Tuple[int, ...]) -> Any:
    """Tokenizer, read once for a training: a GGUF file's takes seconds."""
    from transformers import AutoTokenizer

    return _read(functools.partial(AutoTokenizer.from_pretrained, trust_remote_code=False), named)


def _read(load: Callable[..., Any], named: str) -> Any:
    """Result of a loader of transformers, from a local copy if there is one."""
    target = named.removeprefix(PREFIX)
    path, options = Path(target), {}
    # a hub's are MODEL or ORGANISATION/MODEL
    is_name = re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", target)
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InputError(
                "there is no such GGUF file", path=path, remedy="Check the path of --lm FILE.gguf."
            )
        need("gguf", "reading a GGUF file", path)
        target, options = str(path.parent), {"gguf_file": path.name}
    elif not path.is_dir() and not is_name:
        raise InputError(
            "there is no such folder of a pretrained LM",
            path=target,
            remedy="Give a folder with config.json, a .gguf file, or hf:ORGANISATION/MODEL.",
        )
    is_offline = path.exists() or os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
    try:
        try:
            return load(target, local_files_only=True, **options)
        except OSError:
            if is_offline:
                raise
            LOG.info(f"{named}: no local copy; asking the hub")
            return load(target, local_files_only=False, **options)
    except InputError:
        raise
    except Exception as error:
        raise _read_error(named, error) from error


def _model(target: str, **options: Any) -> Any:
    """Model by transformers' own loader, without code of the model's folder."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as their_logging

    their_logging.disable_progress_bar()

    config = AutoConfig.from_pretrained(target, trust_remote_code=False, **options)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{target}: an encoder-decoder ({config.model_type}), where a causal LM was expected"
        )
    return AutoModelForCausalLM.from_pretrained(
        target, config=config, trust_remote_code=False, dtype=torch.float32, **options
    )


def _read_error(shown: str, error: Exception) -> InputError:
    """One line for what transformers says in many."""
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
    remedy = "Give a folder that `save_pretrained` of model and tokenizer has written."
    if "trust_remote_code" in str(error):
        reason = "the model needs code of its own, which is never run"
        remedy = "Use a model of an architecture that transformers knows."
    elif "gated" in str(error).lower() or "401" in str(error):
        reason = "the model is gated, or does not exist"
        remedy = "Ask for access on its page, download it, and give the folder."
    elif "connect" in str(error).lower() or "offline" in str(error).lower():
        reason = "there is no local copy, and the hub cannot be reached"
        remedy = "Download it where there is a network, and give hf:FOLDER."
    return InputError(f"{shown}: {reason[:300]}", remedy=remedy)


def _read_adapter(folder: Path) -> Tuple[Any, Any]:
    """A base model with a peft adapter on it, and its tokenizer."""
    config, base = read_adapter_config(folder)
    if config.is_prompt_learning:
        raise InputError(
            f"an adapter of the type {config.peft_type.value}, whose virtual tokens are not read",
            path=folder,
            remedy="Give an adapter of weights, such as LoRA.",
        )
    from peft import PeftModel

    own = load_causal_lm(base)
    try:
        return PeftModel.from_pretrained(own.model, str(folder)), own.tokenizer
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the adapter does not fit its base {base}: {reason[:300]}", path=folder
        ) from error


def _from_card(path: Path, key: str) -> str:
    """Value of the model card in a folder, as `license`; empty if the card has none."""
    card = (path if path.is_dir() else path.parent) / "README.md"
    if not card.is_file():
        return ""
    found = re.search(rf"^{key}:\s*(\S+)", card.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


def adapter_form(folder: PathLike) -> str:
    """Text form that the card of a peft adapter names; empty if the card names none."""
    path = Path(str(folder).removeprefix(PREFIX))
    form = _from_card(path, FORM_KEY) if is_adapter(path) else ""
    try:
        return str(TextForm.parse(form, FORM_KEY)) if form else ""
    except InputError as error:
        raise InputError(str(error), path=path / "README.md") from None


def need(package: str, what: str, path: Any = None) -> None:
    """Raise an InputError where a package of the extra `pretrained` is not installed."""
    if importlib.util.find_spec(package) is None:
        remedy = "Install it: pip install 'espnet_bayeslm[pretrained]'."
        raise InputError(f"{what} needs the package {package}", path=path, remedy=remedy)


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
    need("peft", "an adapter")
    from peft import LoraConfig, get_peft_model

    kinds = {"target_modules": targets, "task_type": "CAUSAL_LM"}
    alpha = 2 * r if alpha is None else alpha
    try:
        config = LoraConfig(r=r, lora_alpha=alpha, lora_dropout=dropout, **kinds)
        return get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"lora: {str(error).splitlines()[0][:300]}") from error


def read_adapter_config(folder: PathLike) -> Tuple[Any, str]:
    """Configuration of a peft adapter, by peft, and its base model as `--lm` names it."""
    need("peft", "an adapter", folder)
    from peft import PeftConfig

    try:
        config = PeftConfig.from_pretrained(str(folder).removeprefix(PREFIX))
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise InputError(
            f"{ADAPTER} is none that the installed peft reads ({error!r:.300})",
            path=folder,
            remedy="Restore the file, or install the peft that has written it.",
        ) from error
    base = config.base_model_name_or_path
    if not base:
        raise InputError("the adapter names no base model", path=folder)
    return config, base if is_pretrained(base) else f"{PREFIX}{base}"


def adapter_conf(folder: PathLike) -> Dict[str, Any]:
    """`lm_conf` of the LM that a plain LoRA adapter of peft makes of its base."""
    config, base = read_adapter_config(folder)
    if others := other_options(config):
        raise InputError(
            f"an adapter with {', '.join(others)}, where plain LoRA was expected",
            path=folder,
            remedy="Give it as it is by --lm, or start from the base.",
        )
    targets = config.target_modules
    targets = targets if isinstance(targets, str) else sorted(targets)
    lora = {"r": config.r, "alpha": config.lora_alpha, "dropout": config.lora_dropout}
    form = adapter_form(folder)
    known = {"text_form": form} if form else {}
    return {"model": base, "lora": {**lora, "target_modules": targets}, **known}


def write_start(folder: PathLike, path: Path) -> Path:
    """Write the weights of a peft adapter to `path`, as a checkpoint to start a training from."""
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


def write_adapter(model: Any, folder: Path, *, base: str, licence: str, form: TextForm) -> None:
    """Write the adapter of peft's model; its card has base model, licence if known, text form."""
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
    named += f"{FORM_KEY}: {form}\n"
    card = f"---\nbase_model: {config.base_model_name_or_path}\n{named}library_name: peft\n---\n"
    (folder / "README.md").write_text(card, encoding="utf-8")
