"""`bayeslm perplexity`: perplexity of a text under LMs, n-grams and their mixture."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence

from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.evaluation.normalization import normalize_option
from espnet_bayeslm.loading.component_options import PRELOAD, MixtureOptions, ngpu_option
from espnet_bayeslm.mixture.mixture_worker import score_text
from espnet_bayeslm.report.table import Table
from espnet_bayeslm.scoring.perplexity import (
    BEYOND_SENSE,
    MAX_SENSIBLE,
    NO_IDS,
    UNITS,
    TextPerplexity,
    UnknownWords,
    check_no_ids,
    perplexity_text,
    read_sentences,
    text_perplexities,
    total,
)
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.files import atomic_write, write_json
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, nested, option

KEYED = "Lines begin with an utterance id, as in a Kaldi `text`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredTextOptions(ToolOptions):
    """A text that LMs and n-grams score."""

    text: str = option("The text, one sentence per line")
    keyed: bool = option(KEYED, False)
    normalize: str = normalize_option("the text")
    context: int = option(
        "Number of earlier sentences that LMs read before each sentence, joined by <sos/eos>:"
        " for LMs that were trained on such lines; n-grams take each sentence by itself",
        0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerplexityOptions(ToolOptions):
    """Options of `bayeslm perplexity`."""

    work: EngineOptions = nested(EngineOptions)
    ngpu: int = ngpu_option()
    mixture: MixtureOptions = nested(MixtureOptions)
    scored: ScoredTextOptions = nested(ScoredTextOptions)
    per_sentence: Optional[str] = option("Write a table of the sentences here", None)
    output: Optional[str] = option("Write the figures here, as JSON", None)


def print_table(summaries: Sequence[Mapping[str, Any]], *, unit: str = "word") -> None:
    """Print one row for each component: perplexity by unit, with OOVs and without.

    If the `unit` is a token, the words of the summaries are tokens, and the only unit.
    """
    columns = dict(zip(("word", "token", "char"), UNITS, strict=True))
    columns = columns if unit == "word" else {unit: "word"}
    units = [f"{name}{part}" for name in columns for part in ("", "-oov")]
    rows = []
    for row in summaries:
        keys = ("perplexity", "perplexity_without_oov")
        values = [row[key][u] for u in columns.values() for key in keys]
        oovs = [f"{row['oovs']}", f"{100 * row['oov_rate']:.2f}"]
        rows.append([row["name"], *map(perplexity_text, values), *oovs])
    print(Table("", ["perplexity per", *units, "OOVs", "OOV %"], rows).text())
    print(
        f"{summaries[0]['sentences']} sentences, {summaries[0]['words']} {unit}s; </s> is counted;"
        f" -oov: without the {summaries[0]['excluded']} {unit}s that some component does not know"
    )
    if summaries[0]["excluded"]:
        values = [(r["name"], r["perplexity_of_known_sentences"]["word"]) for r in summaries]
        print(
            f"per {unit} in the {summaries[0]['known_sentences']} sentences without such a {unit}:",
            ", ".join(f"{name} {perplexity_text(value)}" for name, value in values),
        )
    if any(value > MAX_SENSIBLE for row in summaries for value in row["perplexity"].values()):
        print(BEYOND_SENSE)


def perplexity(options: PerplexityOptions) -> None:
    """Print the perplexity of a text under LMs, n-grams and their mixture."""
    workers, mixture, scored = options.work.pool(preload=PRELOAD), options.mixture, options.scored
    text, keyed = scored.text, scored.keyed
    sentences = read_sentences(text, keyed=keyed, normalize=scored.normalize)
    LOG.info("read %d sentences from %s", len(sentences), text)
    lines = list(sentences.values())
    where: Any = dict(ngpu=options.ngpu, context=scored.context, output=options.output)
    with workers as pool:
        facts, scores, tokens = score_text(pool, mixture, lines, **where)
    counts = [UnknownWords(name, mixture.max_oov_rate) for name, *_ in facts.components]
    for count, of_component in zip(counts, scores, strict=True):
        count.add(lines, of_component)
        count.check(lambda words: [], report=True)
    if not keyed:
        check_no_ids(lines, lambda word: any(word not in c.words for c in counts), remedy=NO_IDS)
    weights = None if mixture.weights is None else facts.weights
    texts = text_perplexities(facts.components, lines, scores, tokens, weights)
    if options.per_sentence is not None:
        write_per_sentence(options.per_sentence, list(sentences), texts)
    summaries = [text.summary() for text in texts]
    if options.output is not None:
        write_json(options.output, {"text": text, "components": summaries})
    print_table(summaries)


def write_per_sentence(path: str, keys: Sequence[str], texts: Sequence[TextPerplexity]) -> None:
    """Write a table with tabs: one line for each component and sentence."""
    names = "component key log_prob words tokens characters excluded perplexity"
    with atomic_write(path) as f:
        print(names.replace(" ", "\t"), file=f)
        for text in texts:
            for key, *parts in zip(keys, text.known, text.excluded, strict=True):
                sums = total(parts)
                row = (text.name, key, f"{sums.log_prob:.6f}", sums.words, sums.tokens)
                rest = (sums.characters, parts[1].words, f"{sums.perplexity():.4f}")
                print(*row, *rest, sep="\t", file=f)


TOOL = Tool(
    "perplexity",
    "Perplexity of a text; </s> is counted, <s> is not",
    perplexity,
    PerplexityOptions,
    signed="output",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
