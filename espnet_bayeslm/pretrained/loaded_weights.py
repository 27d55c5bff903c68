"""Checks of a model that `transformers` or peft has read: each weight, each token has its place."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Collection, Tuple

import torch
from torch import nn

from espnet_bayeslm.utils.errors import InputError

# Masks, positions and rotary tables, which older files hold and models compute
COMPUTED = re.compile(
    r"(^|\.)(attn|attention|self_attn|self_attention)\.(masked_)?bias$"
    r"|(^|\.)(inv_freq|position_ids|cos_cached|sin_cached)$"
    r"|^rope_(freqs|factors_long|factors_short)\.weight$"
)
# Largest difference of logits by rounding alone, relative to their spread
LOGIT_TOLERANCE = 1e-3
POINTER = b"version https://git-lfs"

Shapes = Collection[Tuple[str, Any, Any]]
"""Name, shape in the file and shape in the model of each weight whose shapes differ."""


def places_error(
    missing: Collection[str],
    left_over: Collection[str],
    shapes: Shapes = (),
    *,
    path: Any,
    model: str = "model",
    remedy: str,
) -> InputError:
    """Error of a file that lacks weights of a model, or has others.

    Args:
        missing: Names of the weights that the file lacks.
        left_over: Names of the weights that only the file has.
        shapes: Weights whose shapes differ.
        path: The file or folder.
        model: Name of the thing in which left-over weights have no place.
        remedy: Advice for the user.
    """
    found = []
    if missing:
        are = "weights are" if len(missing) > 1 else "weight is"
        found.append(f"{len(missing)} {are} not in the file (the first: {min(missing)})")
    if left_over:
        have = "weights of the file have" if len(left_over) > 1 else "weight of the file has"
        first = min(left_over)
        found.append(f"{len(left_over)} {have} no place in the {model} (the first: {first})")
    if shapes:
        have = "weights have" if len(shapes) > 1 else "weight has"
        name, given, expected = min(shapes, key=lambda item: item[0])
        found.append(
            f"{len(shapes)} {have} another shape (the first: {name} has {list(given)} in the file,"
            f" expected {list(expected)})"
        )
    return InputError(", and ".join(found), path=path, remedy=remedy)


@torch.no_grad()
def check_finite(model: Any, shown: str) -> None:
    """Raise an InputError where a weight is NaN or infinite."""
    for name, value in model.named_parameters():
        if value.numel() and not all(map(math.isfinite, torch.aminmax(value))):
            raise InputError(
                f"{shown}: weights are not finite (the first: {name})",
                remedy="Restore the file, or give weights from before the training diverged.",
            )


def check_tokens(tokenizer: Any, model: Any, shown: str) -> None:
    """Raise an InputError where a token that text may have is beyond the embedding.

    An embedding may be larger, and marks that no text has, as for padding, need no row of it.
    """
    rows = embedding_rows(model)
    beyond = {name: index for name, index in tokenizer.get_vocab().items() if index >= rows}
    marks = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    marks -= {tokenizer.bos_token_id, tokenizer.eos_token_id}
    needed = sorted((index, name) for name, index in beyond.items() if index not in marks)
    if needed:
        size = max(tokenizer.get_vocab().values()) + 1
        raise InputError(
            f"{shown}: the tokenizer has {size} tokens, and the model's embedding {rows} rows (the"
            f" first token without a row: {needed[0][1]!r})",
            remedy="Use the model's own tokenizer, or resize the embedding and train its new rows.",
        )


def embedding_rows(model: Any) -> int:
    """Number of tokens that a model's embedding and output projection both have."""
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    return min(len(end.weight) for end in ends if end is not None)


@torch.no_grad()
def projects_linearly(causal: Any) -> bool:
    """True if the logits are the output projection of the last hidden state, and no more."""
    decoder = causal.get_output_embeddings()
    if not isinstance(decoder, nn.Linear):
        return False
    ids = torch.tensor([[1, 2, 3]], device=decoder.weight.device)
    hidden = getattr(causal.base_model(input_ids=ids, use_cache=False), "last_hidden_state", None)
    if hidden is None or hidden.size(-1) != decoder.in_features:
        return False
    expected = causal(input_ids=ids, use_cache=False).logits.float()
    found = decoder(hidden).float()
    return bool((found - expected).abs().max() <= LOGIT_TOLERANCE * expected.std())


def find_pointer(path: Path) -> str:
    """Name of a file that is a pointer of git-lfs, of a folder or a file; "" if there is none."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            with file.open("rb") as f:
                if f.read(len(POINTER)) == POINTER:
                    return file.name
    return ""


def pointer_error(path: Path) -> InputError:
    """Error of a file that is a pointer of git-lfs."""
    return InputError(
        "a pointer of git-lfs, which is not the file itself",
        path=path,
        remedy="Run `git lfs pull` in its folder.",
    )
