"""ESPnet's beam search, which newer releases have elsewhere."""

try:
    from espnet2.legacy.nets.batch_beam_search import BatchBeamSearch
    from espnet2.legacy.nets.scorer_interface import BatchScorerInterface
    from espnet2.legacy.nets.scorers.ctc import CTCPrefixScorer
except ImportError:
    from espnet.nets.batch_beam_search import BatchBeamSearch
    from espnet.nets.scorer_interface import BatchScorerInterface
    from espnet.nets.scorers.ctc import CTCPrefixScorer

__all__ = ["BatchBeamSearch", "BatchScorerInterface", "CTCPrefixScorer"]
