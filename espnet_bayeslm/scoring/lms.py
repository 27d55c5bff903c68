"""What scoring does with any LM: its vocabulary, its mode and its weight draws."""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Callable, Dict, Hashable, Iterable, Iterator, List, Sequence, Tuple, TypeVar

import numpy as np
import torch

from espnet_bayeslm.utils.errors import InputError

# The most distinct prefixes of a batch: more would make an LSTM no faster
MAX_TOKENS = 8192
Ids = Tuple[int, ...]
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


def tokens_with_logits(max_tokens: int) -> int:
    """Return how many tokens a batch may have where the logits of all are held at once."""
    return max(1, max_tokens // 4)


def vocab_size(lm: torch.nn.Module) -> int:
    """Return the number of tokens of an LM; the last of them is `<sos/eos>`."""
    size = getattr(lm, "vocab_size", None)
    if size is None:
        embeddings = (m for m in lm.modules() if isinstance(m, torch.nn.Embedding))
        size = next(embeddings).num_embeddings
    return int(size)


def token_ids(sequences: Sequence[Any]) -> List[Ids]:
    """Return sequences of token ids as tuples of int; they may be tensors or arrays of integers.

    Raises:
        InputError: One is no sequence, or has something in it that is no whole number.
    """
    found = []
    for ids in sequences:
        values = ids.tolist() if hasattr(ids, "tolist") else ids
        try:
            found.append(tuple(map(operator.index, values)))
        except TypeError:
            raise InputError(
                f"expected a sequence of token ids, got {str(ids)[:80]}",
                remedy="Give whole numbers: a list, or a tensor or array of integers.",
            ) from None
    return found


def check_tokens(sequences: Sequence[Sequence[int]], size: int) -> None:
    """Check that all tokens are in a vocabulary of this size.

    Raises:
        InputError: One is not.
    """
    for ids in sequences:
        if ids and not 0 <= min(ids) <= max(ids) < size:
            raise InputError(
                f"token ids from {min(ids)} to {max(ids)} in {ids[:10]}, but the LM has 0 to"
                f" {size - 1}",
                remedy="Use the token list that the LM was trained with.",
            )


def check_finite(log_probs: np.ndarray) -> None:
    """Check that scores are numbers.

    Raises:
        InputError: One is not.
    """
    if not np.isfinite(log_probs).all():
        raise InputError(
            "the LM gives a log-probability that is not a finite number",
            remedy="Its training has diverged: use an earlier checkpoint.",
        )


def num_draws(lm: Any, num_samples: int) -> int:
    """Return how many draws are needed: none for our LMs where nothing is random.

    Raises:
        InputError: `num_samples` is negative, or the LM has no weights to draw.
    """
    if num_samples < 0:
        raise InputError(f"num_samples is {num_samples} where 0 or more was expected")
    if num_samples and not hasattr(lm, "sampled"):
        raise InputError(
            f"num_samples is {num_samples}, but {type(lm).__name__} has no random weights",
            remedy="Use num_samples 0 for a point-estimate LM.",
        )
    return num_samples if not hasattr(lm, "locations") or lm.locations() else 0


@contextlib.contextmanager
def held_draw(lm: Any, index: int, draws: int) -> Iterator[None]:
    """Hold draw number `index` of so many; the mean weights where there are no draws."""
    with lm.sampled(index) if draws else contextlib.nullcontext():
        if hasattr(lm, "before_scoring"):
            lm.before_scoring()
        yield


@contextlib.contextmanager
def evaluating(lm: torch.nn.Module) -> Iterator[None]:
    """Hold the LM in evaluation mode, without gradients."""
    training = lm.training
    lm.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        lm.train(training)


def over_draws(lm: Any, num_samples: int, compute: Callable[[int], Result]) -> List[Result]:
    """What is computed with each weight draw held, or once with the mean weights.

    Args:
        lm: The LM; it is held in evaluation mode, without gradients.
        num_samples: 0 for the mean weights; else the number of draws.
        compute: Gets the draw's number; an iterator would come too late.
    """
    draws = num_draws(lm, num_samples)
    found = []
    with evaluating(lm):
        for index in range(max(draws, 1)):
            with held_draw(lm, index, draws):
                found.append(compute(index))
    return found


def mean_log_probs(
    lm: Any, num_samples: int, score: Callable[[int], Iterable[Tuple[Key, np.ndarray]]]
) -> Dict[Key, np.ndarray]:
    """Ln of the mean probability over the weight draws, of each thing that is scored.

    Args:
        lm: The LM.
        num_samples: As in `over_draws`.
        score: Gets the draw's number and yields each thing once, with ln p of its tokens.

    Raises:
        InputError: A score is not a finite number.
    """
    found: Dict[Key, np.ndarray] = {}

    def add(index: int) -> None:
        for key, log_probs in score(index):
            check_finite(log_probs)
            before = found.get(key)
            found[key] = log_probs if before is None else np.logaddexp(before, log_probs)

    log_count = np.log(len(over_draws(lm, num_samples, add)))
    return {key: log_probs - log_count for key, log_probs in found.items()}


def require_tree(lm: Any, what: str) -> None:
    """Check that an LM can compute prefix trees.

    Raises:
        InputError: It cannot.
    """
    if not hasattr(lm, "tree_outputs"):
        raise InputError(
            f"{what} needs an LM of espnet_bayeslm, got {type(lm).__name__}",
            remedy="Train bayes_lstm, bayes_transformer, or bayes_espnet around an LSTM or"
            " Transformer of ESPnet's; without uncertainty they are point-estimate LMs.",
        )
