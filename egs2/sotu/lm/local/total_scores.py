#!/usr/bin/env python3
"""Lists with one score for each hypothesis, as an end-to-end recogniser gives them.

    local/total_scores.py FOLDER LISTS.jsonl

The score is acoustic score / 9.5 + LM score: PocketSphinx's own total, up to its word penalty.
"""

from __future__ import annotations

import dataclasses
import sys

from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest

LANGUAGE_WEIGHT = 9.5


def with_total(item: NBest) -> NBest:
    """Return the list with the total in place of the separate scores."""
    hyps = tuple(
        Hypothesis(hyp.words, (hyp.am_score or 0.0) / LANGUAGE_WEIGHT + (hyp.lm_score or 0.0))
        for hyp in item.hypotheses
    )
    return dataclasses.replace(item, hypotheses=hyps)


def main(folder: str, output: str) -> None:
    """Write the lists of a Kaldi folder with its references."""
    refs = read_transcripts(f"{folder}/text")
    lists = (with_total(item) for item in read_nbest(folder, "kaldi"))
    whole = (dataclasses.replace(item, ref=tuple(refs[item.utt])) for item in lists)
    write_nbest(whole, output, format="jsonl")


if __name__ == "__main__":
    main(*sys.argv[1:])
