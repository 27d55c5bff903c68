"""Ends of hypotheses in ESPnet's transducer searches, which have no token for the end."""

from __future__ import annotations

from typing import Any, List

from espnet_bayeslm.decoding.fusion_lm import ALL_END, FusionLM
from espnet_bayeslm.utils.log import LOG

# Searches whose hypotheses keep the LM's state before their last token
SEARCHES = ("default_beam_search", "time_sync_decoding")


def pay_ends(search: Any) -> None:
    """Let a transducer's search pay the last word and the end of each hypothesis of a fusion.

    They are paid when all frames have been read, before the search sorts its hypotheses.

    Args:
        search: ESPnet's `BeamSearchTransducer`.
    """
    lm, sort = search.lm, search.sort_nbest
    if not isinstance(lm, FusionLM):
        return
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
