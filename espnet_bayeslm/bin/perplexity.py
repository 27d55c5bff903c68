"""`bayeslm perplexity`: perplexity of a text under LMs, n-grams and their mixture."""

from __future__ import annotations

import argparse
import logging
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.bin.lm_options import add_component_options, add_normalize_option
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.perplexity import (
    BEYOND_SENSE,
    MAX_SENSIBLE,
    UNITS,
    Sentences,
    TextScores,
    perplexity_text,
    score_components,
)
from espnet_bayeslm.evaluation.text import check_no_ids, read_sentences
from espnet_bayeslm.evaluation.word_scores import Component, WordScores
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.loading.weights_file import read_weights
from espnet_bayeslm.utils.cli import add_flag, device_of, run_tool, tool_parser
from espnet_bayeslm.utils.files import atomic_write, write_json


def print_table(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print one row for each component: perplexity by unit, with OOVs and without."""
    columns = [f"{unit}{part}" for unit in ("word", "token", "char") for part in ("", "-oov")]
    print(f"{'perplexity per':<24}", *(f"{c:>10}" for c in columns), "   OOVs  OOV %")
    for row in summaries:
        values = [row[key][u] for u in UNITS for key in ("perplexity", "perplexity_without_oov")]
        print(
            f"{row['name']:<24}",
            *(f"{perplexity_text(value):>10}" for value in values),
            f"{row['oovs']:7d} {100 * row['oov_rate']:6.2f}",
        )
    print(
        f"{summaries[0]['sentences']} sentences, {summaries[0]['words']} words; </s> is counted;"
        f" -oov: without the {summaries[0]['excluded']} words that some component does not know"
    )
    if summaries[0]["excluded"]:
        values = [(r["name"], r["perplexity_of_known_sentences"]["word"]) for r in summaries]
        print(
            f"per word in the {summaries[0]['known_sentences']} sentences without such a word:",
            ", ".join(f"{name} {perplexity_text(value)}" for name, value in values),
        )
    if any(value > MAX_SENSIBLE for row in summaries for value in row["perplexity"].values()):
        print(BEYOND_SENSE)


def read_inputs(
    *, text: str, keyed: bool, normalize: str, ngpu: int, **options: Any
) -> Tuple[Sentences, List[Component]]:
    """Sentences of a text, and the LMs and n-grams that score them.

    Args:
        text: The file.
        keyed: Whether its lines begin with an utterance id.
        normalize: Steps of `evaluation.normalization.STEPS`.
        ngpu: The number of gpus.
        **options: Of `load_components`.

    Raises:
        InputError: See `read_sentences` and `load_components`.
    """
    sentences = Normalization(normalize).text(read_sentences(text, keyed=keyed))
    logging.info("read %d sentences from %s", len(sentences), text)
    return sentences, load_components(device=device_of(ngpu), **options)


def score_text(
    components: Sequence[Component], sentences: Sentences, *, keyed: bool, max_oov_rate: float
) -> List[List[WordScores]]:
    """Scores of a text's sentences by each component.

    Raises:
        InputError: Too many words are unknown, or plain text looks like text with keys: no
            component knows the first word of any line, and all are different.
    """
    lines = list(sentences.values())
    scores = score_components(components, lines, max_oov_rate=max_oov_rate)
    if not keyed:
        rows = zip(lines, zip(*scores, strict=True), strict=True)
        known = {
            word
            for words, row in rows
            for n, word in enumerate(words)
            if not all(score.oov[n] for score in row)
        }
        check_no_ids(lines, known, remedy="If they are utterance ids, say --keyed true.")
    return scores


def perplexity(
    *,
    text: str,
    keyed: bool,
    weights: Optional[str],
    max_oov_rate: float,
    per_sentence: Optional[str],
    output: Optional[str],
    **options: Any,
) -> None:
    """Print the perplexity of a text; options as `get_parser` explains them.

    Raises:
        InputError: See `read_inputs`, `read_weights` and `score_text`.
    """
    sentences, components = read_inputs(text=text, keyed=keyed, **options)
    names, digests = [c.name for c in components], [c.fingerprint for c in components]
    mixture_weights = read_weights(weights, names, fingerprints=digests)
    scores = score_text(components, sentences, keyed=keyed, max_oov_rate=max_oov_rate)
    result = TextScores(components, sentences, scores, mixture_weights)
    summaries = result.summaries()
    if per_sentence is not None:
        write_per_sentence(per_sentence, result)
    if output is not None:
        write_json(output, {"text": text, "components": summaries})
    print_table(summaries)


def write_per_sentence(path: str, result: TextScores) -> None:
    """Write a table with tabs: one line for each component and sentence."""
    names = "component key log_prob words tokens characters excluded perplexity"
    with atomic_write(path) as f:
        print(names.replace(" ", "\t"), file=f)
        for index, component in enumerate(result.components):
            perplexities = result.perplexities(index)
            for key, value in zip(result.sentences, perplexities, strict=True):
                sums = value.all
                print(
                    *(component.name, key, f"{sums.log_prob:.6f}", sums.words, sums.tokens),
                    *(sums.characters, value.oov.words, f"{sums.perplexity():.4f}"),
                    sep="\t",
                    file=f,
                )


def add_keyed_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that says whether a text has utterance ids."""
    what = "Whether lines begin with an utterance id, as in a Kaldi `text`"
    add_flag(parser, "--keyed", what)


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which text is read, and how."""
    parser.add_argument("--text", required=True, help="The text, one sentence per line")
    add_keyed_option(parser)
    add_normalize_option(parser, "the text")
    parser.add_argument(
        "--context",
        type=int,
        default=0,
        help="Score runs of so many sentences after the so many before them, joined by <sos/eos>:"
        " for LMs that were trained on such lines; n-grams take each sentence by itself",
    )


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm perplexity`."""
    parser = tool_parser("perplexity", "Perplexity of a text; </s> is counted, <s> is not")
    add_text_options(parser)
    add_component_options(parser)
    parser.add_argument("--per_sentence", help="Write a table of the sentences here")
    parser.add_argument("--output", help="Write the figures here, as JSON")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm perplexity`."""
    run_tool(get_parser(), perplexity, cmd, signed="output")


if __name__ == "__main__":
    main()
