"""Adapters of peft: around a new base, from their folder, as the start of a training, written."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.pretrained.loaded_weights import (
    embedding_rows,
    find_pointer,
    places_error,
    pointer_error,
)
from espnet_bayeslm.pretrained.names import (
    ADAPTER,
    PREFIX,
    check_is_base,
    from_card,
    is_adapter,
    is_pretrained,
    need,
    other_options,
)
from espnet_bayeslm.pretrained.text_forms import TextForm
from espnet_bayeslm.utils.errors import InputError, one_line
from espnet_bayeslm.utils.files import PathLike, atomic_write

WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
IS_LORA = re.compile(r"\.(lora_[AB])\.weight$")
# Key of an adapter's card for the form in which it was trained
FORM_KEY = "text_form"
FITTING = "Give the base that it was trained on, or save the adapter again by the installed peft."


def check_type(config: Any, folder: Path) -> None:
    """Raise an InputError where an adapter has no weights beside those of its base."""
    if config.is_prompt_learning:
        raise InputError(
            f"an adapter of the type {config.peft_type.value}, whose virtual tokens are not read",
            path=folder,
            remedy="Give an adapter of weights, such as LoRA.",
        )


def put_on(model: Any, folder: Path, config: Any) -> Any:
    """Peft's model around a causal LM, with the adapter of a folder.

    Where the adapter has tokens of its own, the embedding of the causal LM is resized for them.

    Args:
        model: The causal LM, which is changed in place.
        folder: The adapter's folder.
        config: The adapter's configuration, by peft.
    """
    from peft import get_peft_model

    config.inference_mode = True
    before, tensors = embedding_rows(model), read_tensors(folder)
    try:
        rows = _rows(model, tensors, config)
        if rows != before:
            _resize(model, rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a base with another name, as by --base
            adapted = get_peft_model(model, config)
        state = adapted.state_dict()
        places = {name.replace(".default", ""): value for name, value in state.items()}
        both = [(name, value, places[name]) for name, value in tensors.items() if name in places]
        shapes = [(name, a.shape, b.shape) for name, a, b in both if a.shape != b.shape]
        if shapes:
            raise places_error((), (), shapes, path=folder, remedy=FITTING)
        names = getattr(model, "_checkpoint_conversion_mapping", None)
        found = adapted.load_adapter(str(folder), "default", key_mapping=names)
    except InputError:
        raise
    except Exception as error:  # adapters may fail to fit in many ways
        reason = one_line(str(error)) or type(error).__name__
        raise InputError(
            f"the adapter does not fit its base {model.name_or_path}: {reason[:300]}",
            path=folder,
            remedy=FITTING,
        ) from error
    missing = _unloaded(state, [name for name in found.missing_keys if "default" in name])
    # of new tokens peft writes some tensors twice, under the names of two of its classes
    twice = {name for name, value, own in both if torch.equal(own, value.to(own))}
    others = set(found.unexpected_keys) - twice
    if missing or others:
        raise places_error(missing, others, path=folder, model="adapter's base", remedy=FITTING)
    _check_new_rows(adapted, folder, before)
    return adapted


def _unloaded(state: Mapping[str, torch.Tensor], missing: Sequence[str]) -> List[str]:
    """Missing tensors that are not loaded under another name either."""
    loaded = {value.data_ptr() for name, value in state.items() if name not in set(missing)}
    return [name for name in missing if state[name].data_ptr() not in loaded]


def _rows(model: Any, tensors: Mapping[str, torch.Tensor], config: Any) -> int:
    """Number of rows that the embedding had when an adapter was trained."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    names = [name for name, module in model.named_modules() if any(module is end for end in ends)]
    ending = rf"\.({'|'.join(map(re.escape, names))})\.(token_adapter\.)?(base_layer\.)?weight"
    if saved := [len(v) for name, v in tensors.items() if re.search(f"{ending}$", name)]:
        return max(saved)
    indices = getattr(config, "trainable_token_indices", None) or ()
    indices = indices or getattr(config, "token_indices", None) or ()
    lists = indices.values() if isinstance(indices, dict) else [indices]
    return max([embedding_rows(model), *(index + 1 for one in lists for index in one)])


@torch.no_grad()
def _resize(model: Any, rows: int) -> None:
    """Resize the embedding of a causal LM; new rows are NaN until an adapter fills them."""
    before = embedding_rows(model)
    model.resize_token_embeddings(rows, mean_resizing=False)
    for end in (model.get_input_embeddings(), model.get_output_embeddings()):
        for value in end.parameters():
            value[before:] = math.nan


@torch.no_grad()
def _check_new_rows(adapted: Any, folder: Path, before: int) -> None:
    """Check that an adapter has filled the rows of its own tokens, from `before` on."""
    inputs = adapted.get_input_embeddings()
    rows = embedding_rows(adapted)
    if rows <= before:
        return
    new = torch.arange(before, rows).unsqueeze(0)
    found = [inputs(new), adapted(input_ids=new[:, :1], use_cache=False).logits]
    if not all(value.isfinite().all() for value in found):
        raise InputError(
            f"the adapter was trained with {rows} tokens, its base's embedding has {before} rows,"
            " and the adapter has no weights for the others",
            path=folder,
            remedy="Save the whole model where it was trained, by merge_and_unload.",
        )
    for end in (inputs, adapted.get_output_embeddings()):
        for value in end.parameters():  # rows beneath those that the adapter puts in their place
            value[before:].nan_to_num_(0.0)


def add_adapter(model: Any, conf: Optional[Mapping[str, Any]]) -> Any:
    """Peft's model around a causal LM: the LoRA adapter (Hu et al. 2022) is trained alone.

    Args:
        model: The causal LM.
        conf: Options: `r` (rank, default 16), `alpha` (the adapter's product is scaled by
            alpha / r; default 2 r), `dropout` (at the adapter's input) and `target_modules` (names
            of layers, default `all-linear`).
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


def read_adapter_config(folder: PathLike, base: Optional[str] = None) -> Tuple[Any, str]:
    """Configuration of a peft adapter, by peft, and its base model as `--lm` names it.

    A `base` takes the place of the one that the configuration names.
    """
    need("peft", "an adapter", folder)
    from peft import PeftConfig

    try:
        config = PeftConfig.from_pretrained(str(folder).removeprefix(PREFIX))
    except (KeyError, OSError, TypeError, ValueError) as error:
        path = Path(str(folder).removeprefix(PREFIX)) / ADAPTER
        if find_pointer(path):
            raise pointer_error(path) from error
        raise InputError(
            f"{ADAPTER} is none that the installed peft reads ({error!r:.300})",
            path=folder,
            remedy="Restore the file, or install the peft that has written it.",
        ) from error
    base = base or config.base_model_name_or_path
    if not base:
        raise InputError(
            "the adapter names no base model",
            path=folder,
            remedy=f"Write its path at base_model_name_or_path in {ADAPTER}, or give --base.",
        )
    check_is_base(base)
    return config, base if is_pretrained(base) else f"{PREFIX}{base}"


def adapter_form(folder: PathLike) -> str:
    """Text form that the card of a peft adapter names; empty if the card names none."""
    path = Path(str(folder).removeprefix(PREFIX))
    form = from_card(path, FORM_KEY) if is_adapter(path) else ""
    try:
        return str(TextForm.parse(form, FORM_KEY)) if form else ""
    except InputError as error:
        raise InputError(str(error), path=path / "README.md") from None


def adapter_conf(folder: PathLike, base: Optional[str] = None) -> Dict[str, Any]:
    """`lm_conf` of the LM that a plain LoRA adapter of peft makes of its base, or of `base`."""
    config, base = read_adapter_config(folder, base)
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


def read_tensors(folder: PathLike) -> Dict[str, torch.Tensor]:
    """Tensors of a peft adapter, by their names in its file."""
    from peft.utils import load_peft_weights

    place = Path(str(folder).removeprefix(PREFIX))
    if not any((place / name).is_file() for name in WEIGHTS):
        raise InputError(f"found no {' or '.join(WEIGHTS)}", path=folder, remedy="Restore it.")
    try:
        tensors: Dict[str, torch.Tensor] = load_peft_weights(str(place), device="cpu")
    except Exception as error:  # damaged bytes may end in any
        if pointer := find_pointer(place):
            raise pointer_error(place / pointer) from error
        raise InputError(
            f"the adapter's weights cannot be read ({str(error).splitlines()[0]:.300})",
            path=folder,
            remedy="Restore the file.",
        ) from error
    return tensors


def write_start(folder: PathLike, path: Path) -> Path:
    """Write the weights of a peft adapter to `path`, as a checkpoint to start a training from."""
    tensors = read_tensors(folder)
    others = {name: value for name, value in tensors.items() if not IS_LORA.search(name)}
    if others:
        name, value = next(iter(others.items()))
        raise InputError(
            f"{len(others)} tensors of the adapter are neither lora_A nor lora_B of a layer (the"
            f" first: {name}, {list(value.shape)}), and training starts from these alone",
            path=folder,
            remedy="Give it as it is by --lm, or start from the base.",
        )
    state = {
        "lm.model." + IS_LORA.sub(r".\1.default.weight", name): value
        for name, value in tensors.items()
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
