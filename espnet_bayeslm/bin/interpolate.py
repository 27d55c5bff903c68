"""`bayeslm interpolate`: weights of a mixture of LMs and n-grams, by EM on held-out text."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping

from espnet_bayeslm.bin.perplexity import ScoredTextOptions, print_table
from espnet_bayeslm.loading.component_options import TrainTextOptions
from espnet_bayeslm.scoring.interpolation import estimate_weights
from espnet_bayeslm.scoring.perplexity import (
    Sentences,
    component_scores,
    read_sentences,
    score_components,
    text_perplexities,
)
from espnet_bayeslm.utils.cli import Tool, device_of
from espnet_bayeslm.utils.files import write_yaml
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterpolateOptions(ScoredTextOptions, TrainTextOptions):
    """Options of `bayeslm interpolate`."""

    unit: str = option(
        "Unit that is scored and mixed; token: the tokens of the LMs, which are the same, for a"
        " recogniser's search, with n-grams of `bayeslm ngram --asr_exp`",
        "word",
        choices=("word", "token"),
    )
    output: str = option("The weights.yaml to write")


def interpolate(options: InterpolateOptions) -> None:
    """Write the weights that are best for a text."""
    text, context = options.text, options.context
    sentences: Sentences = read_sentences(text, keyed=options.keyed, normalize=options.normalize)
    LOG.info("read %d sentences from %s", len(sentences), text)
    options.warn_leakage(options.lms, sentences.values(), what=text)
    if options.unit == "token":
        sentences = in_tokens(options, sentences)
    lines, device = list(sentences.values()), device_of(options.ngpu)
    components = options.components(device, context=context, unit=options.unit)
    if options.unit == "token":
        scores = [component_scores(c, lines, context=context) for c in components]
        from espnet_bayeslm.loading.token_text import check_knows

        for path, found in zip(options.ngrams, scores[len(options.lms) :], strict=True):
            check_knows(path, lines, found)
    else:
        most = options.max_oov_rate
        how: Any = dict(max_oov_rate=most, keyed=options.keyed, context=context)
        scores = score_components(components, lines, **how)
    weights = estimate_weights(scores)
    texts = text_perplexities(components, lines, scores, weights)
    summaries = [text.summary() for text in texts]
    rows = []
    # the mixture's figures come last, and it has no weight
    for row, weight, component in zip(summaries, weights, components, strict=False):
        named = {"name": row["name"], "kind": row["kind"], "weight": float(weight)}
        rows.append({**named, **figures(row), "fingerprint": component.fingerprint})
        if component.pretrained is not None:
            rows[-1]["text_form"] = str(component.pretrained.prepare(lines).form)
    last = summaries[-1]
    counts = {"words": last["words"], "excluded_oovs": last["excluded"]}
    content = {"unit": options.unit, "components": rows, "mixture": {**figures(last), **counts}}
    write_yaml(options.output, content)
    print_table(summaries, unit=options.unit)
    for row in rows:
        print(f"weight {row['weight']:.4f}  {row['name']}")


def in_tokens(options: InterpolateOptions, sentences: Sentences) -> Sentences:
    """Sentences in the tokens of the LMs, which the n-grams have too."""
    from espnet_bayeslm.loading.token_text import check_ngram, shared_tokens  # imports torch

    tokens = shared_tokens(options.lms)
    cut = {key: tokens.cut(words) for key, words in sentences.items()}
    tokens.check(options.text, max_unknown=options.max_oov_rate)
    if tokens.token_type != "word":
        for path in options.ngrams:
            check_ngram(path, tokens.token_list, whose=tokens.config)
    return cut


def figures(row: Mapping[str, Any]) -> Dict[str, float]:
    """Perplexities of a summary, as weights.yaml has them."""
    names = ("perplexity", "perplexity_without_oov")
    return {name: round(row[name]["word"], 4) for name in names}


TOOL = Tool(
    "interpolate",
    "EM weights of a mixture of LMs on held-out text",
    interpolate,
    InterpolateOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
