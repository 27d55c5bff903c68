"""`bayeslm interpolate`: weights of a mixture of LMs and n-grams, by EM on held-out text."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from espnet_bayeslm.bin.perplexity import (
    ScoredTextOptions,
    print_table,
    read_text,
    score_text,
)
from espnet_bayeslm.evaluation.interpolation import estimate_weights
from espnet_bayeslm.evaluation.perplexity import TextScores
from espnet_bayeslm.loading.training_texts import TrainTextOptions
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
    components = options.components(device_of(options.ngpu), context=options.context)
    options.warn_leakage(options.lms, sentences.values(), what=options.text)
    scores = score_text(
        components,
        sentences,
        keyed=options.keyed,
        max_oov_rate=options.max_oov_rate,
        context=options.context,
    )
    weights = estimate_weights(scores)
    summaries = TextScores(components, sentences, scores, weights).summaries()
    digests = [component.fingerprint for component in components]
    write_yaml(options.output, weights_content(summaries, weights, digests))
    print_table(summaries)
    for row, weight in zip(summaries, weights, strict=False):
        print(f"weight {weight:.4f}  {row['name']}")


def weights_content(
    summaries: Sequence[Mapping[str, Any]], weights: np.ndarray, digests: Sequence[str]
) -> Dict[str, Any]:
    """Content of weights.yaml: per component its name, kind, weight, perplexity and fingerprint.

    The mixture's figures are the last of the summaries.
    """

    def figures(row: Mapping[str, Any]) -> Dict[str, float]:
        return {
            "perplexity": round(row["perplexity"]["word"], 4),
            "perplexity_without_oov": round(row["perplexity_without_oov"]["word"], 4),
        }

    components: List[Dict[str, Any]] = [
        {"name": row["name"], "kind": row["kind"], "weight": float(weight), **figures(row)}
        | {"fingerprint": digest}
        # the mixture has no weight
        for row, weight, digest in zip(summaries, weights, digests, strict=False)
    ]
    last = summaries[-1]
    counts = {"words": last["words"], "excluded_oovs": last["excluded"]}
    return {"components": components, "mixture": {**figures(last), **counts}}


TOOL = Tool(
    "interpolate",
    "EM weights of a mixture of LMs on held-out text",
    interpolate,
    InterpolateOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
