"""Scores of given tokens by the parts of an ESPnet search, as it scores what it finds."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import torch
from torch.nn.functional import ctc_loss

Step = Callable[[List[List[int]], List[Any]], Tuple[np.ndarray, List[Any]]]
"""Tokens so far and states of some sequences -> scores of each next token, (N, V), and states."""


@torch.no_grad()
def scores_of_tokens(
    search: Any, encoded: torch.Tensor, rows: Sequence[Sequence[int]]
) -> List[Dict[str, float]]:
    """Unweighted score of each part of a search, for whole token sequences with their ends.

    A decoder and an LM read the tokens one after another. CTC sums over all alignments; it is -inf
    for tokens that have no room in the recording.

    Args:
        search: ESPnet's beam search.
        encoded: Output of the encoder, (T, D).
        rows: Token ids of each sequence, without start and end.

    Returns:
        Part of the search -> score, for each sequence.
    """
    if not rows:
        return []
    columns: Dict[str, np.ndarray] = {}
    for name, scorer in search.full_scorers.items():
        columns[name] = _read(_step_of(scorer, encoded), _begun(scorer, encoded), search, rows)
    for name, scorer in search.part_scorers.items():
        if name == "ctc":
            columns[name] = _ctc(scorer.ctc.log_softmax(encoded[None]), rows)
    names, values = [*columns], np.array([*columns.values()]).T.tolist()
    return [dict(zip(names, own, strict=True)) for own in values]


def _begun(scorer: Any, encoded: torch.Tensor) -> Any:
    """State of a part before the first token."""
    begin = getattr(scorer, "batch_init_state", scorer.init_state)
    return begin(encoded)


def _step_of(scorer: Any, encoded: torch.Tensor) -> Step:
    """One step of a part, in a batch where it takes one."""

    def at_once(rows: List[List[int]], states: List[Any]) -> Tuple[np.ndarray, List[Any]]:
        xs = encoded.expand(len(rows), *encoded.shape)
        ys = torch.tensor(rows, device=encoded.device)
        scores, after = scorer.batch_score(ys, states, xs)
        # a bonus of length has no states
        return scores.float().cpu().numpy(), after or states

    def one_by_one(rows: List[List[int]], states: List[Any]) -> Tuple[np.ndarray, List[Any]]:
        ys = torch.tensor(rows, device=encoded.device)
        found = [scorer.score(y, s, encoded) for y, s in zip(ys, states, strict=True)]
        scores, after = zip(*found, strict=True)
        return torch.stack(scores).float().cpu().numpy(), [*after]

    return at_once if hasattr(scorer, "batch_score") else one_by_one


def _read(step: Step, begun: Any, search: Any, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Sum of a part's scores of each sequence, (N,)."""
    # s2t's marks of language and task are given
    start = [*(getattr(search, "hyp_primer", None) or [search.sos])]
    paths = [[*start, *row, search.eos] for row in rows]
    states, totals = [begun] * len(paths), np.zeros(len(paths))
    for place in range(len(start), max(map(len, paths), default=0)):
        going = [n for n, path in enumerate(paths) if len(path) > place]
        scores, after = step([paths[n][:place] for n in going], [states[n] for n in going])
        totals[going] += scores[range(len(going)), [paths[n][place] for n in going]]
        for n, state in zip(going, after, strict=True):
            states[n] = state
    return totals


def _ctc(log_probs: torch.Tensor, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Ln P of each sequence by CTC, whose blank is token 0, (N,)."""
    frames, count = log_probs.shape[1], len(rows)
    sizes = torch.tensor([*map(len, rows)])
    tokens = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    spread = log_probs.transpose(0, 1).expand(-1, count, -1).float().cpu()
    lengths = torch.full((count,), frames)
    losses = ctc_loss(spread, tokens, lengths, sizes, blank=0, reduction="none")
    return -losses.double().numpy()
