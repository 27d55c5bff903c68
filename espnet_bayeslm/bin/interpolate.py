"""`bayeslm interpolate`: weights of a mixture of LMs and n-grams, by EM on held-out text."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping

from espnet_bayeslm.bin.perplexity import ScoredTextOptions, check_plain, print_table, read_text
from espnet_bayeslm.evaluation.interpolation import estimate_weights
from espnet_bayeslm.evaluation.perplexity import TextScores, score_components
from espnet_bayeslm.loading.components import TrainTextOptions
from espnet_bayeslm.utils.cli import Tool, device_of
from espnet_bayeslm.utils.files import write_yaml
from espnet_bayeslm.utils.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterpolateOptions(ScoredTextOptions, TrainTextOptions):
    """Options of `bayeslm interpolate`."""

    output: str = option("The weights.yaml to write")


def interpolate(options: InterpolateOptions) -> None:
    """Write the weights that are best for a text."""
    sentences = read_text(options)
    lines, context = list(sentences.values()), options.context
    components = options.components(device_of(options.ngpu), context=context)
    options.warn_leakage(options.lms, lines, what=options.text)
    most = options.max_oov_rate
    scores = score_components(components, lines, max_oov_rate=most, context=context)
    if not options.keyed:
        check_plain(lines, scores)
    weights = estimate_weights(scores)
    summaries = TextScores(components, sentences, scores, weights).summaries()
    rows = []
    # the mixture's figures come last, and it has no weight
    for row, weight, component in zip(summaries, weights, components, strict=False):
        named = {"name": row["name"], "kind": row["kind"], "weight": float(weight)}
        rows.append({**named, **figures(row), "fingerprint": component.fingerprint})
        if component.pretrained is not None:
            rows[-1]["text_form"] = str(component.pretrained.prepare(lines).form)
    last = summaries[-1]
    counts = {"words": last["words"], "excluded_oovs": last["excluded"]}
    content = {"components": rows, "mixture": {**figures(last), **counts}}
    write_yaml(options.output, content)
    print_table(summaries)
    for row in rows:
        print(f"weight {row['weight']:.4f}  {row['name']}")


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
