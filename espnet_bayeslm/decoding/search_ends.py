"""Ends of hypotheses that a fusion pays when one of ESPnet's searches is over.

Transducers have no token for the end. In an attention search ends would ask a large LM at nearly
each step, where the look-ahead can stand in for it.
"""

from __future__ import annotations

from typing import Any, List

from espnet_bayeslm.decoding.word_payments import ALL_END
from espnet_bayeslm.utils.log import LOG

# Transducer searches whose hypotheses keep the LM's state before their last token
SEARCHES = ("default_beam_search", "time_sync_decoding")


def pay_ends(search: Any, lm: Any) -> None:
    """Let a search pay the end of each hypothesis of a fusion when it is over.

    Args:
        search: ESPnet's `BeamSearch`, or its `BeamSearchTransducer`.
        lm: The `FusionLM` in it.
    """
    if hasattr(search, "sort_nbest"):
        _pay_transducer(search, lm)
    elif lm.ahead is not None and lm.has_words:
        _pay_attention(search, lm)


def _pay_attention(search: Any, lm: Any) -> None:
    """Let ends wait while a search runs."""
    forward = search.forward

    def paying(*args: Any, **kwargs: Any) -> Any:
        """Best hypotheses of an utterance, or of each of a batch, after their ends are paid."""
        if lm.ends_wait:  # a search without hypotheses calls itself again
            return forward(*args, **kwargs)
        lm.ends_wait = True
        try:
            found = forward(*args, **kwargs)
        finally:
            lm.ends_wait = False
        if found and isinstance(found[0], list):
            return [_paid(search, lm, hypotheses) for hypotheses in found]
        return _paid(search, lm, found)

    search.forward = paying


def _paid(search: Any, lm: Any, hypotheses: List[Any]) -> List[Any]:
    """Best hypotheses of an utterance by all that they pay, the best first; a beam of them."""
    hypotheses = hypotheses[: search.beam_size]
    states = [hyp.states["lm"] for hyp in hypotheses]
    unread = [_unread(lm, hyp.yseq.tolist(), hyp.states["lm"]) for hyp in hypotheses]
    found = []
    for hyp, rest in zip(hypotheses, lm.end_rests(unread, states).tolist(), strict=True):
        scores = {**hyp.scores, "lm": hyp.scores["lm"] + rest}
        found.append(hyp._replace(score=hyp.score + search.weights["lm"] * rest, scores=scores))

    def rank(hyp: Any) -> float:
        """Score by which ESPnet sorts."""
        length = len(hyp.yseq) - 1 if getattr(search, "normalize_length", False) else 1
        return float(hyp.score) / length

    return sorted(found, key=rank, reverse=True)


def _unread(lm: Any, ids: List[int], state: Any) -> Any:
    """Last token, where a search had to end and the LM has not read it; else None."""
    token = ids[lm.prompt + state.text.length + 1]
    return None if token == lm.ids.eos else token


def _pay_transducer(search: Any, lm: Any) -> None:
    """Let a transducer's search pay ends when all frames have been read, before it sorts."""
    sort = search.sort_nbest
    lm.ends_apart = search.search_algorithm.__name__ in SEARCHES
    if not lm.ends_apart:
        LOG.warning("Searches alsd, nsc and maes pay no last word: default and tsd do.")
        return
    lm.end_margin = -ALL_END  # none within the search

    def sort_nbest(hypotheses: List[Any]) -> Any:
        """Best hypotheses, after their ends have been paid."""
        tokens = [hyp.yseq[-1] for hyp in hypotheses]
        ends = lm.end_scores(tokens, [hyp.lm_state for hyp in hypotheses])
        for hyp, end in zip(hypotheses, ends, strict=True):
            hyp.score += search.lm_weight * end
        return sort(hypotheses)

    search.sort_nbest = sort_nbest
