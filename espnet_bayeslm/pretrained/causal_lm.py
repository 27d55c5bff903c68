"""Causal LMs of `transformers` from a folder, a GGUF file, a peft adapter or a hub name.

A local copy is used where there is one; a hub is asked only for a name that no local copy has.
Code from a model's folder is never run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import torch

from espnet_bayeslm.pretrained.adapters import adapter_form, check_type, put_on, read_adapter_config
from espnet_bayeslm.pretrained.loaded_lm import CausalLM
from espnet_bayeslm.pretrained.loaded_weights import (
    COMPUTED,
    check_finite,
    check_tokens,
    find_pointer,
    places_error,
    pointer_error,
)
from espnet_bayeslm.pretrained.names import (
    ADAPTER,
    PREFIX,
    ModelNotFound,
    base_not_found,
    from_card,
    need,
    source_type,
)
from espnet_bayeslm.pretrained.pretrained_scorer import CausalTreeLM
from espnet_bayeslm.pretrained.text_forms import AUTO, Reader, TextForm
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# One of them is in the folder of a tokenizer
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
# Methods whose weights cannot be made float32 or bfloat16
QUANTISED = ("bitsandbytes", "gptq", "awq")
# Entries of a configuration that say where a model is from, or how it is stored
RECORDS = {"architectures", "auto_map", "dtype", "quantization_config", "transformers_version"}
RECORDS |= {"torch_dtype", "use_cache"}
# The same of an adapter's
RECORDS |= {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version"}
RECORDS |= {"revision", "task_type"}
# Entries of a tokenizer that its last call has left
CALLS = {"padding", "truncation"}
RESTORE = "Restore the file, or write it again by the model's own save_pretrained."
# The tokenizer that was read last: a training asks for it often, and a GGUF file's takes seconds
LAST_TOKENIZER: Dict[Tuple[Any, ...], Any] = {}


def load_causal_lm(
    source: PathLike,
    *,
    device: str = "cpu",
    precision: str = "float32",
    text_form: str = AUTO,
    base: Optional[str] = None,
) -> CausalLM:
    """Causal LM in evaluation mode.

    Args:
        source: `hf:FOLDER`, `hf:NAME`, a folder, a GGUF file, or a folder of a peft adapter.
        device: Device of the weights.
        precision: One of `PRECISIONS`.
        text_form: As of `CausalLM`.
        base: Base model of an adapter, in place of the one that its configuration names.
    """
    if text_form != AUTO:
        TextForm.parse(text_form)
    if precision not in PRECISIONS:
        raise InputError(f"precision {precision!r}: valid are {', '.join(PRECISIONS)}")
    named = str(source)
    path, is_adapter = Path(named.removeprefix(PREFIX)), source_type(source) == "adapter"
    if is_adapter:
        model, tokenizer = _read_adapter(path, base)
    else:
        with _gguf_read_once() if path.suffix.lower() == ".gguf" else contextlib.nullcontext():
            model, tokenizer = _read(_model, named), load_tokenizer(named)
    check_finite(model, named)
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{named}: its tokenizer does not say where tokens stand in the text",
            remedy="Use a model with a fast tokenizer (tokenizer.json).",
        )
    check_tokens(tokenizer, model, named)
    licence = from_card(path, "license")
    LOG.info(
        f"Loaded {named}: {model.config.model_type}, {len(tokenizer)} tokens,"
        f" {sum(p.numel() for p in model.parameters())} weights,"
        f" licence: {licence or 'not named by its card'}"
    )
    name, digest = path.stem if path.is_file() else path.name, digest_of_model(model, tokenizer)
    placed = model.to(device, PRECISIONS[precision]).eval()
    form = adapter_form(path) if is_adapter else ""
    reader = Reader(tokenizer, TextForm.parse(form)) if form else None
    return CausalLM(name, placed, tokenizer, digest, licence, text_form=text_form, reader=reader)


def load_tokenizer(source: PathLike) -> Any:
    """Tokenizer of a pretrained LM that is no adapter, without the LM's weights."""
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError:
        need("transformers", "a pretrained LM", source)
        raise

    named, path = str(source), Path(str(source).removeprefix(PREFIX))
    files = [path] if path.is_file() else sorted(path.glob("*token*"))
    key = (named, *(file.stat().st_mtime_ns for file in files))
    if key not in LAST_TOKENIZER:
        read = functools.partial(AutoTokenizer.from_pretrained, trust_remote_code=False)
        tokenizer = _read(read, named)
        LAST_TOKENIZER.clear()
        LAST_TOKENIZER[key] = tokenizer
    return LAST_TOKENIZER[key]


def digest_of_model(model: Any, tokenizer: Any) -> str:
    """Digest of all that probabilities depend on: weights, configuration and tokenizer.

    Files of any precision have one digest if they hold the same values. Scores in a cache, finished
    blocks of a stopped run and the base of an adapter are found by it.

    Args:
        model: A model of `transformers` in the precision in which it was loaded, or a peft model.
        tokenizer: A fast tokenizer of `transformers`.
    """
    settings: List[Any] = []
    for config in (model.config, *getattr(model, "peft_config", {}).values()):
        usual: Any = {}
        if not getattr(config, "has_no_defaults_at_init", False):
            with contextlib.suppress(TypeError, ValueError):  # a class may need some of its options
                usual = type(config)().to_dict()
        # an option that a later version of the library adds changes no digest
        given = {name: v for name, v in config.to_dict().items() if v != usual.get(name)}
        settings.append([type(config).__name__, _plain(given)])
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    marks = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id
    settings.append([{name: v for name, v in rules.items() if name not in CALLS}, *marks])
    # a GB takes half a second where the CPU has instructions for it
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    seen = set()
    for name, value in model.state_dict(keep_vars=True).items():
        # tied weights have several names
        if isinstance(value, torch.Tensor) and id(value) not in seen:
            seen.add(id(value))
            digest.update(f"\n{name} {tuple(value.shape)}\n".encode())
            exact = value.dtype
            if value.is_floating_point():  # float32 or better
                exact = torch.promote_types(exact, torch.float32)
            flat: Any = value.detach().to("cpu", exact).contiguous().view(-1)
            digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


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


def _read(load: Callable[..., Any], named: str) -> Any:
    """Result of a loader of transformers, from a local copy if there is one."""
    target = named.removeprefix(PREFIX)
    path, options = Path(target), {}
    # a hub's are MODEL or ORGANISATION/MODEL
    is_name = re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", target)
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelNotFound(
                "there is no such GGUF file", path=path, remedy="Check the path of --lm FILE.gguf."
            )
        need("gguf", "reading a GGUF file", path)
        target, options = str(path.parent), {"gguf_file": path.name}
    elif not path.is_dir() and not is_name:
        raise ModelNotFound(
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
        if isinstance(error, ModuleNotFoundError):
            need("transformers", "a pretrained LM", named)
        raise _read_error(named, error) from error


def _read_adapter(folder: Path, base: Optional[str]) -> Tuple[Any, Any]:
    """A base model with a peft adapter on it, and the tokenizer of both."""
    config, named = read_adapter_config(folder, base)
    check_type(config, folder)
    try:
        has_own = any((folder / name).is_file() for name in TOKENIZER_FILES)
        model, tokenizer = _read(_model, named), load_tokenizer(folder if has_own else named)
    except ModelNotFound as error:
        if base:
            raise
        raise base_not_found(named, folder / ADAPTER, "base_model_name_or_path") from error
    return put_on(model, folder, config), tokenizer


def _model(target: str, **options: Any) -> Any:
    """Model by transformers' own loader, without code of the model's folder."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as their_logging

    path = Path(target) / options.get("gguf_file", "")
    config = AutoConfig.from_pretrained(target, trust_remote_code=False, **options)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{target}: an encoder-decoder ({config.model_type}), where a causal LM was expected"
        )
    how = getattr(config, "quantization_config", None)
    quantised = _method_of(how) if how else ""
    if quantised.startswith(QUANTISED):
        raise _quantised(path, quantised)
    options.update(config=config, trust_remote_code=False, dtype=torch.float32)
    options.update(output_loading_info=True, ignore_mismatched_sizes=True)
    their_logging.disable_progress_bar()
    verbosity = their_logging.get_verbosity()
    their_logging.set_verbosity_error()  # its table of weights is an error of one line here
    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, found = load(target, **options)
    except (ImportError, RuntimeError, ValueError) as error:
        if quantised:
            raise _quantised(path, quantised) from error
        raise
    finally:
        their_logging.set_verbosity(verbosity)
    if quantised and getattr(model.config, "quantization_config", None):  # they stay as they are
        raise _quantised(path, quantised)
    missing, shapes = found["missing_keys"], found["mismatched_keys"]
    unread = _unread_tensors(model, path) if path.is_file() else found["unexpected_keys"]
    others = [name for name in unread if not COMPUTED.search(name)]
    if missing or others or shapes:
        CausalTreeLM(model.eval())  # an encoder is refused as one, whatever its file has
        raise places_error(missing, others, shapes, path=path, remedy=RESTORE)
    return model


@contextlib.contextmanager
def _gguf_read_once() -> Iterator[None]:
    """Let a GGUF file be read once within the block.

    transformers reads it for the configuration, the tokenizer and the weights, each time in seconds
    for its many words, and makes the table of names anew for each module.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):  # `_read` says what is missing
            import gguf

            class PlainReader(gguf.GGUFReader):
                """Its data are a plain array, whose parts are taken faster than a memmap's."""

                def __setattr__(self, name: str, value: Any) -> None:
                    super().__setattr__(name, value.view(np.ndarray) if name == "data" else value)

            once: Dict[str, Callable[..., Any]] = {"GGUFReader": PlainReader}
            once["get_tensor_name_map"] = gguf.get_tensor_name_map
            for name, made in once.items():
                stack.callback(setattr, gguf, name, getattr(gguf, name))
                setattr(gguf, name, functools.cache(made))
        yield


def _unread_tensors(model: Any, path: Path) -> List[str]:
    """Names of the tensors of a GGUF file that transformers leaves out, which it does not tell."""
    from gguf import GGUFReader

    try:
        from transformers.modeling_gguf_pytorch_utils import (
            TensorProcessor,
            get_gguf_hf_weights_map,
        )
    except ImportError:
        return []
    known = get_gguf_hf_weights_map(model, TensorProcessor(config=model.config.to_dict()))
    names = [tensor.name for tensor in GGUFReader(str(path)).tensors]  # as transformers
    # tensors of mixtures of experts have ways of their own
    return [name for name in names if name not in known and "exp" not in name]


def _method_of(how: Any) -> str:
    """Method by which weights are quantised, from the configuration of their quantisation."""
    options = how if isinstance(how, dict) else how.to_dict()
    method = options.get("quant_method", "")
    return str(getattr(method, "value", method) or "of an unknown method")


def _quantised(path: Path, method: str) -> InputError:
    return InputError(
        f"the weights are quantised ({method}), and float weights were expected",
        path=path,
        remedy="Give the model that they were made of, or a GGUF file of it.",
    )


def _read_error(shown: str, error: Exception) -> InputError:
    """One line for what transformers says in many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # the first line may announce the others
    reason = (" ".join(lines) if lines[0].endswith(":") else lines[0]) if lines else ""
    if " " not in reason:  # as the name of a key
        reason = f"its files cannot be read ({error!r})"
    path = Path(shown.removeprefix(PREFIX))
    if pointer := find_pointer(path):
        return pointer_error(path / pointer if path.is_dir() else path)
    remedy = "Give a folder that `save_pretrained` of model and tokenizer has written."
    kind = InputError
    if "trust_remote_code" in str(error):
        reason = "the model needs code of its own, which is never run"
        remedy = "Use a model of an architecture that transformers knows."
    elif "does not recognize this architecture" in str(error):
        remedy = "Install a newer transformers, or use a model of an older architecture."
    elif "gated" in str(error).lower() or "401" in str(error):
        reason, kind = "the model is gated, or does not exist", ModelNotFound
        remedy = "Ask for access on its page, download it, and give the folder."
    elif "connect" in str(error).lower() or "offline" in str(error).lower():
        reason, kind = "there is no local copy, and the hub cannot be reached", ModelNotFound
        remedy = "Download it where there is a network, and give hf:FOLDER."
    return kind(f"{shown}: {reason[:300]}", remedy=remedy)
