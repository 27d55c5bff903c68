"""ln p of tokens and words under an LM, interpolated or not, perplexity; no files are loaded."""

from typing import TYPE_CHECKING

from espnet_bayeslm.utils.imports import lazy_names

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.sequences import score_hypotheses as score_hypotheses
    from espnet_bayeslm.scoring.sequences import token_log_probs as token_log_probs
    from espnet_bayeslm.scoring.word_scores import END as END
    from espnet_bayeslm.scoring.word_scores import WordScorer as WordScorer
    from espnet_bayeslm.scoring.word_scores import WordScores as WordScores

# defaults that command lines name: their help needs no torch
MAX_TOKENS = 8192
"""The most distinct prefixes of a batch: more would make an LSTM no faster."""

MAX_CONTEXT = 64
"""Tokens before an utterance that a Transformer reads again."""

MERGE_ORDER = 4
BEAM = 6.0
PRUNE = 6.0
"""Limits of a lattice's search, in nats of the LM's scale."""

MAX_HYPS = 20
"""The most hypotheses of a lattice's node."""

__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.scoring.sequences": ["score_hypotheses", "token_log_probs"],
        "espnet_bayeslm.scoring.word_scores": ["END", "WordScorer", "WordScores"],
    },
)
