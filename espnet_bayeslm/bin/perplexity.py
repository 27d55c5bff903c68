"""`bayeslm perplexity`: perplexity of a text under LMs, n-grams and their mixture."""

from __future__ import annotations

import argparse
import json
import logging
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from espnet2.utils.types import str2bool

from espnet_bayeslm.bin.components import (
    Component,
    add_component_options,
    load_components,
    read_weights,
    score_components,
)
from espnet_bayeslm.evaluation.perplexity import Perplexity, sentence_perplexity, token_counts
from espnet_bayeslm.evaluation.text import read_sentences
from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.rescoring.mixture import MixtureScorer, mix
from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_write

UNITS = {"word": "words", "token": "tokens", "character": "characters"}
Sentences = Mapping[str, Sequence[str]]


class TextScores:
    """The scores of a text under components and, where there are weights, their mixture.

    "Without OOVs" leaves out the words that any of the components does not know: the same words
    for all of them. The tokens of a mixture are words.

    Args:
        components: The components.
        sentences: Key -> words.
        scores: The components' scores.
        weights: (K,), or None.
    """

    def __init__(
        self,
        components: Sequence[Component],
        sentences: Sentences,
        scores: Sequence[Sequence[WordScores]],
        weights: Optional[np.ndarray] = None,
    ):
        self.sentences = sentences
        self.components = list(components)
        self.scores = list(scores)
        self._excluded = [np.logical_or.reduce([s.oov for s in row]) for row in zip(*scores)]
        if weights is not None and len(components) > 1:
            mixture = MixtureScorer([c.scorer for c in components], weights)
            self.components.append(Component(mixture.name, "mixture", mixture))
            self.scores.append(mix(scores, weights))

    def perplexities(self, index: int) -> List[Perplexity]:
        """Return the perplexity of each sentence under a component (the mixture comes last)."""
        scorer = self.components[index].scorer
        rows = zip(self.sentences.values(), self.scores[index], self._excluded, strict=True)
        return [
            sentence_perplexity(words, score, tokens=token_counts(scorer, words), excluded=excluded)
            for words, score, excluded in rows
        ]

    def num_oovs(self, index: int) -> int:
        """Return how many words a component itself does not know."""
        return int(sum(score.oov.sum() for score in self.scores[index]))

    def summary(self, index: int) -> Dict[str, Any]:
        """Return a component's figures over the whole text."""
        total = sum(self.perplexities(index), Perplexity())
        num_words = total.all.words - total.sentences
        num_oovs = self.num_oovs(index)
        return {
            "name": self.components[index].name,
            "kind": self.components[index].kind,
            "log_prob": total.all.log_prob,
            "words": num_words,
            "sentences": total.sentences,
            "tokens": total.all.tokens,
            "characters": total.all.characters,
            "oovs": num_oovs,
            "oov_rate": num_oovs / num_words if num_words else 0.0,
            "excluded": total.oov.words,
            "perplexity": {u: total.all.perplexity(n) for u, n in UNITS.items()},
            "perplexity_without_oov": {u: total.known.perplexity(n) for u, n in UNITS.items()},
        }

    def summaries(self) -> List[Dict[str, Any]]:
        """Return the figures of every component, the mixture last."""
        return [self.summary(index) for index in range(len(self.components))]


def print_table(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print one row for each component: perplexity by unit, with OOVs and without."""
    columns = [f"{unit}{part}" for unit in ("word", "token", "char") for part in ("", "-oov")]
    print(f"{'perplexity per':<24}", *(f"{c:>10}" for c in columns), "   OOVs  OOV %")
    for row in summaries:
        values = [row[key][u] for u in UNITS for key in ("perplexity", "perplexity_without_oov")]
        print(
            f"{row['name']:<24}",
            *(f"{value:10.2f}" for value in values),
            f"{row['oovs']:7d} {100 * row['oov_rate']:6.2f}",
        )
    print(
        f"{summaries[0]['sentences']} sentences, {summaries[0]['words']} words; </s> is counted;"
        f" -oov: without the {summaries[0]['excluded']} words that some component does not know"
    )


def check_not_keyed(sentences: Sentences, scores: Sequence[Sequence[WordScores]]) -> None:
    """Check that plain text does not look like text with keys.

    Raises:
        InputError: No component knows the first word of any line, and all are different.
    """
    pairs = [
        (words[0], all(s.oov[0] for s in row))
        for words, row in zip(sentences.values(), zip(*scores), strict=True)
        if words
    ]
    if len(pairs) >= 10 and len(dict(pairs)) == len(pairs) and all(oov for _, oov in pairs):
        raise InputError(
            f"the first words of all lines are unknown and different ({pairs[0][0]!r}, ...)",
            remedy="If they are utterance ids, say --keyed true.",
        )


def perplexity(
    *,
    text: str,
    keyed: bool,
    lm: Sequence[str],
    ngram: Sequence[str],
    weights: Optional[str],
    num_samples: int,
    max_tokens: int,
    ngpu: int,
    cache: Optional[str],
    max_oov_rate: float,
    per_sentence: Optional[str],
    output: Optional[str],
) -> None:
    """Print the perplexity of a text; options as `get_parser` explains them."""
    sentences = read_sentences(text, keyed=keyed)
    logging.info("read %d sentences from %s", len(sentences), text)
    components = load_components(
        lm, ngram, num_samples=num_samples, max_tokens=max_tokens, ngpu=ngpu, cache=cache
    )
    mixture_weights = read_weights(weights, components)
    rows = list(sentences.values())
    scores = score_components(components, rows, max_oov_rate=max_oov_rate)
    if not keyed:
        check_not_keyed(sentences, scores)
    result = TextScores(components, sentences, scores, mixture_weights)
    summaries = result.summaries()
    if per_sentence is not None:
        write_per_sentence(per_sentence, result)
    if output is not None:
        with atomic_write(output) as f:
            json.dump({"text": text, "components": summaries}, f, indent=1)
    print_table(summaries)


def write_per_sentence(path: str, result: TextScores) -> None:
    """Write a table with tabs: one line for each component and sentence."""
    header = [
        "component",
        "key",
        "log_prob",
        "words",
        "tokens",
        "characters",
        "excluded",
        "perplexity",
    ]
    with atomic_write(path) as f:
        print(*header, sep="\t", file=f)
        for index, component in enumerate(result.components):
            pairs: zip[Tuple[str, Perplexity]] = zip(
                result.sentences, result.perplexities(index), strict=True
            )
            for key, value in pairs:
                sums = value.all
                print(
                    *(component.name, key, f"{sums.log_prob:.6f}", sums.words, sums.tokens),
                    *(sums.characters, value.oov.words, f"{sums.perplexity():.4f}"),
                    sep="\t",
                    file=f,
                )


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which text is read, and how."""
    parser.add_argument("--text", required=True, help="The text, one sentence per line")
    parser.add_argument(
        "--keyed",
        type=str2bool,
        default=False,
        help="Whether lines begin with an utterance id, as in a Kaldi `text`",
    )


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of `bayeslm perplexity`."""
    parser = tool_parser("perplexity", "Perplexity of a text; </s> is counted, <s> is not")
    add_text_options(parser)
    add_component_options(parser)
    parser.add_argument(
        "--weights", default=None, help="weights.yaml of `bayeslm interpolate`, or W,W,.."
    )
    parser.add_argument("--per_sentence", default=None, help="Write a table of the sentences here")
    parser.add_argument("--output", default=None, help="Write the figures here, as JSON")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm perplexity`."""
    run_tool(get_parser(), perplexity, cmd)


if __name__ == "__main__":
    main()
