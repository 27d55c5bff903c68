"""Figures of Xue et al. 2022 beside those of conf/tuning/lines.txt.

Perplexities and average WERs in %, `dev/eval` of AMI (Tables III, IV, V), of the test set alone of
LRS2 (Table VI).
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

# A line as the paper has it: backbone, kind, location or nasN.
Key = Tuple[str, str, str]
# (perplexity, WER)
Figures = Tuple[str, str]
NOTHING: Figures = ("-", "-")
LRS2_TABLE = "6"

# The line's LM, interpolated with the n-gram and the point-estimate LM.
_AMI: Dict[Key, Figures] = {
    ("lstm", "l1", "-"): ("53.2/54.2", "24.5/27.0"),
    ("lstm", "l2", "-"): ("52.3/53.1", "24.4/26.9"),
    ("lstm", "map", "-"): ("51.4/52.4", "24.4/26.9"),
    ("lstm", "bayes", "all_gates@2"): ("47.4/48.3", "24.2/26.6"),
    ("lstm", "bayes", "cell_input@1-2"): ("47.1/47.3", "24.1/26.6"),
    ("lstm", "bayes", "nas1"): ("47.1/47.3", "24.1/26.6"),
    ("lstm", "gp", "cell_input@1-2"): ("48.2/48.6", "24.2/26.8"),
    ("lstm", "gp", "nas1"): ("47.6/49.2", "24.1/26.7"),
    ("lstm", "variational", "hidden_output@1-2"): ("51.4/52.4", "24.3/26.8"),
    ("transformer", "l1", "-"): ("46.8/48.1", "24.4/26.9"),
    ("transformer", "l2", "-"): ("46.7/48.1", "24.4/26.9"),
    ("transformer", "map", "-"): ("46.8/48.1", "24.4/26.9"),
    ("transformer", "bayes", "ffn@1"): ("46.6/47.2", "24.3/26.8"),
    ("transformer", "bayes", "ffn@1-2"): ("46.9/47.8", "24.3/26.8"),
    ("transformer", "bayes", "nas1"): ("46.9/47.8", "24.3/26.8"),
    ("transformer", "gp", "ffn@1"): ("46.4/47.2", "24.3/26.8"),
    ("transformer", "gp", "nas1"): ("46.6/47.2", "24.3/26.8"),
    ("transformer", "variational", "hidden_output@1"): ("47.3/48.4", "24.4/26.9"),
}
_LRS2: Dict[Key, Figures] = {
    ("lstm", "l1", "-"): ("65.2", "10.5"),
    ("lstm", "l2", "-"): ("65.0", "10.4"),
    ("lstm", "map", "-"): ("64.9", "10.4"),
    ("lstm", "bayes", "all_gates@2"): ("64.4", "10.0"),
    ("lstm", "bayes", "nas1"): ("64.4", "10.0"),
    ("lstm", "gp", "cell_input@1,2"): ("64.5", "10.0"),
    ("lstm", "gp", "nas1"): ("63.9", "10.0"),
    ("lstm", "variational", "hidden_output@1,2"): ("62.3", "10.1"),
    ("transformer", "l1", "-"): ("65.7", "10.3"),
    ("transformer", "l2", "-"): ("65.2", "10.3"),
    ("transformer", "map", "-"): ("65.0", "10.3"),
    ("transformer", "bayes", "ffn@1"): ("65.9", "10.1"),
    ("transformer", "bayes", "nas1"): ("64.0", "9.9"),
    ("transformer", "gp", "ffn@1"): ("63.8", "9.9"),
    ("transformer", "gp", "nas1"): ("64.7", "10.1"),
    ("transformer", "variational", "hidden_output@1"): ("64.7", "10.1"),
}
# The n-gram, and the fewest errors that the lists allow.
NGRAM: Dict[str, Figures] = {"ami": ("81.9/93.6", "26.5/29.1"), "lrs2": ("77.0", "14.7")}
ORACLE: Dict[str, Figures] = {"ami": ("-", "16.8/18.9"), "lrs2": ("-", "4.5")}
# Table VII: median signal-to-noise ratio over the share of the training text in %.
SNR_BY_SHARE: Dict[str, Dict[int, float]] = {
    "lstm": {5: 0.3, 10: 0.4, 25: 0.5, 50: 0.7, 100: 1.1},
    "transformer": {5: 0.6, 10: 0.8, 25: 1.1, 50: 2.0, 100: 3.3},
}
# ... and over the width: of the embedding and the hidden layers, of the feed-forward modules.
SNR_BY_UNIT: Dict[str, Dict[int, float]] = {
    "lstm": {128: 5.1, 256: 2.6, 512: 1.4, 1024: 1.1, 2048: 2.0},
    "transformer": {512: 8.2, 1024: 4.3, 2048: 3.0, 4096: 3.3, 8192: 3.7},
}


def corpus(table: str) -> str:
    """Return the corpus of the paper that a table's figures are of: `ami` or `lrs2`."""
    return "lrs2" if table == LRS2_TABLE else "ami"


def with_point(
    table: str, lm: str, kind: str, where: str, options: Optional[Mapping[str, str]] = None
) -> Figures:
    """Return the paper's figures of a line + n-gram + point-estimate LM; dashes where it has none.

    Args:
        table: The table's name.
        lm: The line's backbone.
        kind: Its kind.
        where: Its location, or `nas`.
        options: Its options; the paper has such a line only without any but `nas`.
    """
    rest = dict(options or {})
    rank = rest.pop("nas", None)
    if rest:
        return NOTHING
    key = (lm, kind, where if rank is None else f"nas{rank}")
    return (_LRS2 if corpus(table) == "lrs2" else _AMI).get(key, NOTHING)
