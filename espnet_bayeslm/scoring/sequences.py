"""Ln p of token sequences under any LM, over weight samples, alone or after a recording so far.

An LM reads a recording as one text, `<sos/eos> w1 .. wn <sos/eos> v1 ..`: a sentence's end is the
next one's beginning. A recurrent LM continues from its state after the last word; a Transformer
reads the last tokens again, the first of them at position 0. An LM that was trained on single
sentences has never seen a `<sos/eos>` in the middle: try on dev whether context helps.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import numpy as np
import torch

from espnet_bayeslm.lm.scoring import has_trees, is_random
from espnet_bayeslm.lm.tree import TokenTree, build_tree
from espnet_bayeslm.scoring import MAX_CONTEXT, MAX_TOKENS
from espnet_bayeslm.scoring.log_probs import (
    Ids,
    along_paths,
    log_probs_of_logits,
    log_probs_of_outputs,
    padded_batches,
    targets_of,
    tree_batches,
)
from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

Result = TypeVar("Result")
State = Tuple[torch.Tensor, torch.Tensor]


class Normalizer(NamedTuple):
    """Distribution of ln Z, the log of the softmax's sum, over contexts, in nats."""

    mean: float
    std: float


class History(NamedTuple):
    """State of an LM after the recording so far; None stands for a recording's beginning.

    Attributes:
        tokens: The last tokens, with a `<sos/eos>` before each sentence; of a recurrent LM none.
        states: h and c of a recurrent LM after the recording so far, (nlayers, unit), for each
            sample.
    """

    tokens: Ids = ()
    states: Tuple[State, ...] = ()


Histories = Sequence[Optional[History]]


def score_hypotheses(
    lm: Any,
    hypotheses: Sequence[Sequence[Sequence[int]]],
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
    normalizer: Optional[Normalizer] = None,
) -> List[List[float]]:
    """Ln P(hypothesis, `</s>`), in nats, for each hypothesis of each utterance.

    Args:
        lm: An `AbsLM`; its last token is `<sos/eos>`.
        hypotheses: Token ids per utterance and hypothesis, without `<sos/eos>`: sequences of
            integers, or tensors or arrays of them.
        max_tokens: The most distinct prefixes of a batch; a longer hypothesis goes alone. An LM of
            another package gets a quarter of it, padding counted, since it holds all logits.
        num_samples: Number of weight samples over which each token's probability is averaged, the
            same samples for all hypotheses; 0: the posterior mean.
        normalizer: Normalizer (`measure_normalizer`) whose mean is taken for the ln Z of every
            context, which then is not computed (self-normalised scoring).

    Raises:
        InputError: A token is no integer or out of the vocabulary, or the LM has no weights to
            sample.
    """
    flat = [ids for utterance in hypotheses for ids in utterance]
    found = token_log_probs(
        lm, flat, max_tokens=max_tokens, num_samples=num_samples, normalizer=normalizer
    )
    scores = iter(found)
    return [[float(next(scores).sum()) for _ in utterance] for utterance in hypotheses]


def token_log_probs(
    lm: Any,
    sequences: Sequence[Sequence[int]],
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
    normalizer: Optional[Normalizer] = None,
    openings: Optional[torch.Tensor] = None,
) -> List[np.ndarray]:
    """(n + 1,) float64 ln p of the n tokens and `</s>` of each sequence, in nats.

    Equal sequences are scored once. With `openings`, (V,) bool, True for the tokens that end the
    word before them, results are (2, n + 1): the second row is ln P(one of these tokens) in the
    same contexts.
    """
    known = token_ids(sequences)
    LOG.info("scoring %d distinct of %d token sequences", len(set(known)), len(known))
    if has_trees(lm):
        how: Any = dict(max_tokens=max_tokens, num_samples=num_samples, normalizer=normalizer)
        return score_in_context(lm, [known], [None], openings=openings, **how)[0]
    if normalizer is not None:
        require_tree(lm, "self-normalised scoring")
    eos = vocab_size(lm) - 1
    check_tokens(known, eos + 1)
    texts = [(eos, *ids) for ids in known]
    unique = sorted(set(texts), key=lambda ids: (len(ids), ids))

    def score(_: int) -> Iterator[Tuple[Ids, np.ndarray]]:
        for batch in padded_batches(unique, max_tokens=tokens_with_logits(max_tokens)):
            yield from zip(batch, _batch_log_probs(lm, batch, openings), strict=True)

    scores = mean_log_probs(lm, num_samples, score, total=len(unique))
    return [scores[ids] for ids in texts]


def score_in_context(
    lm: Any,
    groups: Sequence[Sequence[Sequence[int]]],
    histories: Histories,
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
    normalizer: Optional[Normalizer] = None,
    openings: Optional[torch.Tensor] = None,
) -> List[List[np.ndarray]]:
    """(n + 1,) ln p of the tokens and `</s>` of hypotheses, given the recording before.

    A group has the token ids of the hypotheses of an utterance, in one of some recordings. Its
    history is None at the recording's beginning. All else is as for `token_log_probs`, where a
    Transformer's context counts among the prefixes.
    """
    require_tree(lm, "context")
    for group in groups:
        check_tokens(group, vocab_size(lm))
    sos = vocab_size(lm) - 1
    log_z = None if normalizer is None else normalizer.mean
    if openings is not None:
        openings = openings.to(lm.decoder.weight.device)
    # tokens that are read before the hypotheses: the root of their tree, and more
    before = [(*(history.tokens if history else ()), sos) for history in histories]
    texts = [
        [(number, *prefix[1:], *ids) for ids in group]
        for number, (group, prefix) in enumerate(zip(groups, before, strict=True))
    ]
    unique = sorted(set(itertools.chain(*texts)))

    def score(index: int) -> Iterator[Tuple[Ids, np.ndarray]]:
        for batch in tree_batches(unique, max_tokens=max_tokens):
            trees = {
                number: [text[1:] for text in of_group]
                for number, of_group in itertools.groupby(batch, key=lambda text: text[0])
            }
            tree, paths = build_tree([*trees.values()], sos)
            # the roots are the first nodes
            tree.tokens[: len(trees)] = torch.tensor([before[number][0] for number in trees])
            starts = [len(before[text[0]]) - 1 for text in batch]
            states = _stacked(lm, [histories[number] for number in trees], index)
            tree = tree.to(lm.decoder.weight.device)
            found = _tree_log_probs(lm, tree, paths, starts, states, log_z=log_z, openings=openings)
            yield from zip(batch, found, strict=True)

    scores = mean_log_probs(lm, num_samples, score, total=len(unique))
    return [[scores[text] for text in group] for group in texts]


def _tree_log_probs(
    lm: Any,
    tree: TokenTree,
    paths: Sequence[np.ndarray],
    starts: Sequence[int],
    states: Optional[State],
    **options: Any,
) -> Iterator[np.ndarray]:
    """Yield ln p of the tokens and `</s>` of each path after its node number `starts`, (n + 1,)."""
    contexts, targets = targets_of(tree, paths, lm.vocab_size - 1)
    outputs = lm.tree_outputs(tree) if states is None else lm.tree_outputs(tree, states)
    wanted: Any = slice(None)
    rows, which = wanted, contexts
    if any(starts):
        # the part before a start needs no softmax
        own = np.zeros(len(tree) + len(paths), dtype=bool)
        own[len(tree) :] = True
        for path, start in zip(paths, starts, strict=True):
            own[path[start + 1 :]] = True
        wanted = torch.from_numpy(np.flatnonzero(own[tree.level_sizes[0] :])).to(contexts.device)
        rows, which = contexts[wanted].unique(return_inverse=True)
    decoder = lm.decoder.weight, lm.decoder.bias
    found = log_probs_of_outputs(outputs[rows], which, targets[wanted], *decoder, **options)
    values = found.new_zeros(*found.shape[:-1], len(contexts))
    values[..., wanted] = found
    every = along_paths(values.to("cpu", torch.float64).numpy(), tree, paths)
    for start, log_probs in zip(starts, every, strict=True):
        yield log_probs[..., start:]


def extend(
    lm: Any,
    histories: Histories,
    chosen: Sequence[Sequence[int]],
    *,
    num_samples: int = 0,
    max_context: int = MAX_CONTEXT,
) -> List[History]:
    """Histories after one more utterance of each recording, whose token ids are `chosen`.

    A Transformer reads at most `max_context` tokens again.
    """
    require_tree(lm, "context")
    check_tokens(chosen, vocab_size(lm))
    sos = vocab_size(lm) - 1
    if not lm.continues_trees:
        before = [() if history is None else history.tokens for history in histories]
        texts = [(*old, sos, *ids) for old, ids in zip(before, chosen, strict=True)]
        return [History(tokens=text[max(0, len(text) - max_context) :]) for text in texts]
    if not chosen:
        return []
    tree, paths = build_tree([[tuple(ids)] for ids in chosen], sos)
    tree = tree.to(lm.decoder.weight.device)
    ends = [int(path[-1]) for path in paths]

    def read(index: int) -> List[State]:
        h, c = lm.tree_states(tree, _stacked(lm, histories, index))
        return lm.split_state((h[:, ends], c[:, ends]))

    states = over_draws(lm, num_samples, read)
    return [History(states=of_draws) for of_draws in zip(*states, strict=True)]


def _stacked(lm: Any, histories: Histories, index: int) -> Optional[State]:
    """States h and c of a sample before the roots, (nlayers, G, unit) each; None: as at a start."""
    if not lm.continues_trees or not any(histories):
        return None
    return lm.stack_states([lm.zero_state() if h is None else h.states[index] for h in histories])


def running_log_probs(
    lm: Any, sequences: Sequence[Sequence[int]], *, context: int, **options: Any
) -> List[np.ndarray]:
    """(n + 1,) float64 ln p of the n tokens and `</s>` of each sentence, in nats.

    Runs of `context` sentences are scored at once, after the `context` sentences before the run. A
    sentence thus sees at least `context` sentences before it, fewer than twice as many, and at the
    text's start all earlier ones. Sentences are joined by `<sos/eos>`, which is `</s>` of one
    sentence and `<s>` of the next. The LM should have been trained on lines that are joined in this
    way.
    """
    end = vocab_size(lm) - 1
    begins = range(0, len(sequences), context)
    texts = [sequences[max(0, begin - context) : begin + context] for begin in begins]
    joined = [[token for ids in text for token in (*ids, end)][:-1] for text in texts]
    scores: List[np.ndarray] = []
    for text, values in zip(texts, token_log_probs(lm, joined, **options), strict=True):
        edges = np.cumsum([len(ids) + 1 for ids in text])[:-1]
        # the sentences before the run are all earlier ones, or `context` of them
        scores += np.split(values, edges, axis=-1)[min(context, len(scores)) :]
    return scores


def _batch_log_probs(
    lm: torch.nn.Module, batch: Sequence[Ids], openings: Optional[torch.Tensor]
) -> Iterator[np.ndarray]:
    """Yield ln p of the tokens and `</s>` of each sequence of a batch, after its `<sos/eos>`."""
    texts = [torch.tensor([*ids, ids[0]]) for ids in batch]
    # (B, L + 1), <sos> w1 w2 <eos>, padded with 0 as in ESPnet
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    padded = padded.to(next(lm.parameters()).device)
    # logits: (B, L, V)
    logits, _ = lm(padded[:, :-1], None)
    values, log_z = log_probs_of_logits(logits, padded[:, 1:])
    if openings is not None:
        masses = logits[..., openings].to(log_z.dtype).logsumexp(-1)
        values = torch.stack([values, masses - log_z], dim=1)
    log_probs = values.double().cpu().numpy()
    for row, ids in zip(log_probs, batch, strict=True):
        yield row[..., : len(ids)]


def tokens_with_logits(max_tokens: int) -> int:
    """Number of tokens of a batch where the logits of all are held at once."""
    return max(1, max_tokens // 4)


def vocab_size(lm: torch.nn.Module) -> int:
    """Number of tokens of an LM; the last of them is `<sos/eos>`."""
    size = getattr(lm, "vocab_size", None)
    if size is None:
        embeddings = (m for m in lm.modules() if isinstance(m, torch.nn.Embedding))
        size = next(embeddings).num_embeddings
    return int(size)


def token_ids(sequences: Sequence[Any]) -> List[Ids]:
    """Sequences of token ids as tuples of int; they may be tensors or arrays of integers."""
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
    """Check that all tokens are in a vocabulary of this size."""
    for ids in sequences:
        if ids and not 0 <= min(ids) <= max(ids) < size:
            raise InputError(
                f"token ids from {min(ids)} to {max(ids)} in {ids[:10]}, but the LM has 0 to"
                f" {size - 1}",
                remedy="Use the token list that the LM was trained with.",
            )


def check_finite(log_probs: np.ndarray) -> None:
    """Check that scores are numbers."""
    if not np.isfinite(log_probs).all():
        raise InputError(
            "a log-probability of the LM is not a finite number",
            remedy="Its training has diverged: use an earlier checkpoint.",
        )


def num_draws(lm: Any, num_samples: int) -> int:
    """Number of samples that are needed: none for LMs of this package where nothing is random."""
    if num_samples < 0:
        raise InputError(f"num_samples is {num_samples} where 0 or more was expected")
    if num_samples and not hasattr(lm, "sampled"):
        raise InputError(
            f"num_samples is {num_samples}, but {type(lm).__name__} has no random weights",
            remedy="Use num_samples 0 for a point-estimate LM.",
        )
    return num_samples if is_random(lm) else 0


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
    """Results of a computation with each weight sample held; 0: once, with the posterior mean.

    The LM is in evaluation mode, without gradients. `compute` gets the sample's number, and must
    not return an iterator, which would run too late.
    """
    draws = num_draws(lm, num_samples)
    found = []
    with evaluating(lm):
        for index in range(max(draws, 1)):
            with lm.sampled(index) if draws else contextlib.nullcontext():
                found.append(compute(index))
    return found


def mean_log_probs(
    lm: Any,
    num_samples: int,
    score: Callable[[int], Iterable[Tuple[Ids, np.ndarray]]],
    *,
    total: int,
) -> Dict[Ids, np.ndarray]:
    """Ln of the mean probability over weight samples of `total` items, by their keys."""
    draws = max(num_draws(lm, num_samples), 1)
    found: Dict[Ids, np.ndarray] = {}
    with progress(desc="scoring", unit="seq", total=total * draws) as bar:

        def add(index: int) -> None:
            for key, log_probs in score(index):
                check_finite(log_probs)
                before = found.get(key)
                found[key] = log_probs if before is None else np.logaddexp(before, log_probs)
                bar.update(1)

        over_draws(lm, num_samples, add)
    return {key: log_probs - np.log(draws) for key, log_probs in found.items()}


def require_tree(lm: Any, what: str) -> Any:
    """The LM, which computes prefix trees."""
    if not has_trees(lm):
        raise InputError(
            f"{what} needs an LM of espnet_bayeslm, got {type(lm).__name__}",
            remedy="Train bayes_lstm, bayes_transformer, or bayes_espnet around an LSTM or"
            " Transformer of ESPnet's; without uncertainty they are point-estimate LMs.",
        )
    return lm
