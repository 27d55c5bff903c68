"""Causal LMs of `transformers` from a folder, a GGUF file, a peft adapter or a hub name.

A local copy is used where there is one; a hub is asked only for a name that no local copy has.
Code from a model's folder is never run.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from pathlib import Path
from typing import Any, Callable, ContextManager, List, Optional, Tuple

import torch

from espnet_bayeslm.pretrained.adapters import (
    adapter_form,
    check_type,
    put_on,
    read_adapter_config,
)
from espnet_bayeslm.pretrained.causal_trees import CausalTreeLM
from espnet_bayeslm.pretrained.digest import digest_of_model
from espnet_bayeslm.pretrained.loaded_weights import (
    check_finite,
    check_places,
    check_tokens,
    find_pointer,
    left_over,
    pointer_error,
)
from espnet_bayeslm.pretrained.names import (
    ADAPTER,
    PREFIX,
    ModelNotFound,
    base_not_found,
    from_card,
    is_adapter,
    need,
    other_options,
)
from espnet_bayeslm.pretrained.text_forms import AUTO, Reader, TextForm
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# One of them is in the folder of a tokenizer
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
# Methods whose weights cannot be made float32 or bfloat16
QUANTISED = ("bitsandbytes", "gptq", "awq")
RESTORE = "Restore the file, or write it again by the model's own save_pretrained."


@dataclasses.dataclass(frozen=True)
class CausalLM:
    """A causal LM of `transformers` with its own tokenizer.

    Attributes:
        name: Its name in tables.
        model: A model of `transformers` in evaluation mode, or a peft model around one.
        tokenizer: Its tokenizer, with offsets.
        fingerprint: Digest of its weights, configuration and tokenizer.
        licence: Licence that its card names; empty if the card names none.
        sampled: (index) -> context that holds a sample of its random weights; None: there are none.
        text_form: Form in which it reads text, `FORM[,MARKS[,BLANK]]` (`text_forms.TextForm`), or
            `auto`: the form with the lowest perplexity on the first sentences that are scored.
        reader: Writes sentences in the form that an adapter was trained with; None: the form is
            chosen by `text_form`.
    """

    name: str
    model: Any
    tokenizer: Any
    fingerprint: str
    licence: str = ""
    sampled: Optional[Callable[[int], ContextManager[None]]] = None
    text_form: str = AUTO
    reader: Optional[Reader] = None

    @property
    def lm(self) -> Any:
        """The model of `transformers`."""
        return self.model

    @property
    def tokens(self) -> List[str]:
        """All tokens of its tokenizer; the index is the id."""
        found: List[str] = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        return found

    def at_mean(self) -> CausalLM:
        """The LM at its posterior mean, an adapter added to the weights that it adapts.

        It is as fast as its base. The model is changed in place. An adapter with options beyond
        LoRA's, or on an embedding, which may be the output projection too, stays beside its base.
        """
        model, configs = self.model, getattr(self.model, "peft_config", {})
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        adapts_ends = any(hasattr(end, "base_layer") for end in ends)
        if configs and not adapts_ends and not any(map(other_options, configs.values())):
            model = model.merge_and_unload().eval()
        return dataclasses.replace(self, model=model, sampled=None)


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

    Raises:
        InputError: It is not found, not whole, not a causal LM, has no tokenizer that fits, or
            needs code of its own.
    """
    if text_form != AUTO:
        TextForm.parse(text_form)
    if precision not in PRECISIONS:
        raise InputError(f"precision {precision!r}: valid are {', '.join(PRECISIONS)}")
    named = str(source)
    path = Path(named.removeprefix(PREFIX))
    if is_adapter(path):
        model, tokenizer = _read_adapter(path, base)
    else:
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
    form = adapter_form(path) if is_adapter(path) else ""
    reader = Reader(tokenizer, TextForm.parse(form)) if form else None
    return CausalLM(name, placed, tokenizer, digest, licence, text_form=text_form, reader=reader)


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
    from transformers import AutoConfig

    path = Path(target) / options.get("gguf_file", "")
    config = AutoConfig.from_pretrained(target, trust_remote_code=False, **options)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{target}: an encoder-decoder ({config.model_type}), where a causal LM was expected"
        )
    quantised = _quantised_by(config)
    if quantised.startswith(QUANTISED):
        raise _quantised(path, quantised)
    try:
        model, found = _weights(target, config, **options)
    except (ImportError, RuntimeError, ValueError) as error:
        if quantised:
            raise _quantised(path, quantised) from error
        raise
    if quantised and _quantised_by(model.config):  # they are not made float weights
        raise _quantised(path, quantised)
    unread = _unread_tensors(model, path) if path.is_file() else found["unexpected_keys"]
    missing, others = found["missing_keys"], left_over(unread)
    try:
        check_places(missing, others, found["mismatched_keys"], path=path, remedy=RESTORE)
    except InputError:
        CausalTreeLM(model.eval())  # an encoder is refused as one, whatever its file has
        raise
    return model


def _weights(target: str, config: Any, **options: Any) -> Any:
    """Model, and the names of weights that had no place: of the model and of the file."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as their_logging

    their_logging.disable_progress_bar()
    options.update(config=config, trust_remote_code=False, dtype=torch.float32)
    options.update(output_loading_info=True, ignore_mismatched_sizes=True)
    verbosity = their_logging.get_verbosity()
    their_logging.set_verbosity_error()  # its table of weights is an error of one line here
    try:
        return AutoModelForCausalLM.from_pretrained(target, **options)
    finally:
        their_logging.set_verbosity(verbosity)


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
    names = [tensor.name for tensor in GGUFReader(path).tensors]
    # tensors of mixtures of experts have ways of their own
    return [name for name in names if name not in known and "exp" not in name]


def _quantised_by(config: Any) -> str:
    """Method by which the weights of a model are quantised; "" if they are not."""
    how = getattr(config, "quantization_config", None) or {}
    how = how if isinstance(how, dict) else how.to_dict()
    method = how.get("quant_method", "")
    return str(getattr(method, "value", method) or ("of an unknown method" if how else ""))


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
