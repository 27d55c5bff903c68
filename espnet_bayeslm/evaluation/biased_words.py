"""U-WER and B-WER: errors of the words outside and inside of an utterance's bias list.

Le et al., "Contextualized streaming end-to-end speech recognition with trie-based deep biasing and
shallow fusion", Interspeech 2021 (arXiv 2104.02194). Words are aligned as sclite aligns them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable, Container, Dict, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.comparison import (
    ScoredSet,
    align_all,
    find_segments,
    word_of_pair,
)
from espnet_bayeslm.evaluation.wer import Alignment, ErrorCounts, Words, align
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

UNBIASED, BIASED = "U-WER", "B-WER"


def check_bias_unit(bias: Optional[PathLike], unit: str) -> None:
    """Raise an InputError where there are bias lists, and characters are counted."""
    if bias is not None and unit != "word":
        raise InputError(
            f"--bias with --unit {unit}: bias lists hold words",
            remedy="Leave one of them out; texts need blanks between their words.",
        )


class PartErrors(NamedTuple):
    """Errors of unbiased and of biased words. Their sum may be more than the fewest errors.

    An error belongs to the reference word, and an insertion to the inserted word.
    """

    unbiased: ErrorCounts
    biased: ErrorCounts


def part_errors(ref: Sequence[str], hyp: Sequence[str], biased: Container[str]) -> PartErrors:
    """Errors of a hypothesis, by the biased words of its utterance."""
    alignment = align(ref, hyp)
    outside = _errors(alignment, lambda word: word not in biased)
    return PartErrors(outside, _errors(alignment, biased.__contains__))


def part_errors_of_list(
    ref: Sequence[str], hyps: Sequence[Sequence[str]], biased: Container[str]
) -> List[PartErrors]:
    """Errors of each hypothesis of an N-best list."""
    return [part_errors(ref, hyp, biased) for hyp in hyps]


def _errors(alignment: Alignment, counts: Callable[[str], bool]) -> ErrorCounts:
    """Errors of an alignment, of the words that count."""
    pairs = [pair for pair in alignment if counts(word_of_pair(*pair))]
    words = sum(ref is not None for ref, _ in pairs)
    deletions = sum(hyp is None for _, hyp in pairs)
    wrong = sum(ref != hyp for ref, hyp in pairs if ref is not None)
    return ErrorCounts(wrong - deletions, deletions, len(pairs) - words, words)


def score_parts(
    whole: ScoredSet,
    refs: Mapping[str, Words],
    hyps: Mapping[str, Mapping[str, Words]],
    bias: BiasLists,
) -> Dict[str, ScoredSet]:
    """{`UNBIASED`, `BIASED`: errors of these words in all systems, and the segments of every two}.

    Segments are those of all words, as far as one of the systems has such an error there.

    Args:
        whole: Errors of all words, by `score_set`.
        refs: Utterance id -> words.
        hyps: System -> utterance id -> words.
        bias: Bias lists of the utterances.
    """
    aligned = {name: align_all(refs, texts) for name, texts in hyps.items()}
    words = {utt: bias.of(utt).words for utt in refs}

    def part(counts: Callable[[str, str], bool]) -> ScoredSet:
        errors = {
            name: {utt: _errors(item, functools.partial(counts, utt)) for utt, item in of.items()}
            for name, of in aligned.items()
        }
        segments = {
            (a, b): find_segments(aligned[a], aligned[b], counts) for a, b in whole.segments
        }
        return dataclasses.replace(whole, errors=errors, segments=segments)

    return {
        UNBIASED: part(lambda utt, word: word not in words[utt]),
        BIASED: part(lambda utt, word: word in words[utt]),
    }
