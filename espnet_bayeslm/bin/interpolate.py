"""`bayeslm interpolate`: weights of a mixture of LMs and n-grams, by EM on held-out text."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Tuple

from espnet_bayeslm.bin.perplexity import ScoredTextOptions, print_table
from espnet_bayeslm.loading.component_options import ComponentOptions, TrainTextOptions, ngpu_option
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.nbest.segments import read_utt2lm
from espnet_bayeslm.scoring.interpolation import estimate_weights
from espnet_bayeslm.scoring.perplexity import Sentences, read_sentences, text_perplexities
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.cli import Tool, device_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, write_yaml
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, nested, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterpolateOptions(ToolOptions):
    """Options of `bayeslm interpolate`."""

    trained: TrainTextOptions = nested(TrainTextOptions)
    ngpu: int = ngpu_option()
    mixture: ComponentOptions = nested(ComponentOptions)
    scored: ScoredTextOptions = nested(ScoredTextOptions)
    unit: str = option(
        "Unit that is scored and mixed; token: the tokens of the LMs, which are the same, for a"
        " recogniser's search, with n-grams of `bayeslm ngram --asr_exp`",
        "word",
        choices=("word", "token"),
    )
    utt2lm: Optional[PathLike] = option(
        "Lines `UTT LM`, as of `rescore`: the LM that scores a sentence of a --keyed text in place"
        " of the first --lm",
        None,
    )
    output: str = option("The weights.yaml to write")


def interpolate(options: InterpolateOptions) -> None:
    """Write the weights that are best for a text."""
    scored, lms, ngrams = options.scored, options.mixture.lms, options.mixture.ngrams
    text, keyed = scored.text, scored.keyed
    sentences: Sentences = read_sentences(text, keyed=keyed, normalize=scored.normalize)
    LOG.info("read %d sentences from %s", len(sentences), text)
    seen_by = lms if options.utt2lm is None else lms[1:]
    options.trained.warn_leakage(seen_by, sentences.values(), what=text)
    if options.unit == "token":
        sentences = in_tokens(options, sentences)
    lines, device = list(sentences.values()), device_of(options.ngpu)
    if options.utt2lm is not None:
        mixture, scores = scored_by_utt2lm(options, sentences, device)
    else:
        mixture = Mixture.load(options.mixture, device, context=scored.context, unit=options.unit)
        scores = mixture.each(lines, checked=options.unit != "token")
    if options.unit == "token":
        from espnet_bayeslm.loading.token_text import check_knows

        for path, found in zip(ngrams, scores[len(lms) :], strict=True):
            check_knows(path, lines, found)
    elif not keyed:
        mixture.check_no_ids(lines, scores)
    weights, components = estimate_weights(scores), [*mixture.facts.components]
    if options.utt2lm is not None:  # LMs of one name have no digest in common
        components[0] = components[0]._replace(fingerprint="")
    tokens = mixture.token_counts_of_each(lines)
    texts = text_perplexities(components, lines, scores, tokens, weights)
    summaries = [text.summary() for text in texts]
    rows = []
    # the mixture's figures come last, and it has no weight
    for row, weight, of in zip(summaries, weights, components, strict=False):
        named = {"name": row["name"], "kind": row["kind"], "weight": float(weight)}
        rows.append({**named, **figures(row), "fingerprint": of.fingerprint})
        if of.text_form:
            rows[-1]["text_form"] = of.text_form
    last = summaries[-1]
    counts = {"words": last["words"], "excluded_oovs": last["excluded"]}
    content = {"unit": options.unit, "components": rows, "mixture": {**figures(last), **counts}}
    write_yaml(options.output, content)
    print_table(summaries, unit=options.unit)
    for row in rows:
        print(f"weight {row['weight']:.4f}  {row['name']}")


def scored_by_utt2lm(
    options: InterpolateOptions, sentences: Sentences, device: str
) -> Tuple[Mixture, List[List[WordScores]]]:
    """Mixture of one of the LMs, and scores of sentences, each by its own LM."""
    scored, lms = options.scored, options.mixture.lms
    if not (scored.keyed and lms and options.unit == "word") or scored.context:
        raise InputError(
            "--utt2lm is for a --keyed text, whose words an --lm scores without --context",
            remedy="Give --keyed true and --lm, and leave out --unit and --context.",
        )
    known = read_utt2lm(options.utt2lm or "")
    of_lms: Dict[Any, List[str]] = {}
    for key in sentences:
        of_lms.setdefault(known.get(key, lms[0]), []).append(key)
    rows: Dict[str, List[WordScores]] = {}
    for lm, keys in of_lms.items():
        own = dataclasses.replace(options.mixture, lms=[lm, *lms[1:]])
        mixture, lines = Mixture.load(own, device), [sentences[key] for key in keys]
        scores = mixture.each(lines, checked=True)
        rows.update(zip(keys, map(list, zip(*scores, strict=True)), strict=True))
    columns = zip(*(rows[key] for key in sentences), strict=True)
    return mixture, [list(column) for column in columns]


def in_tokens(options: InterpolateOptions, sentences: Sentences) -> Sentences:
    """Sentences in the tokens of the LMs, which the n-grams have too."""
    from espnet_bayeslm.loading.token_text import check_ngram, shared_tokens  # imports torch

    mixture = options.mixture
    tokens = shared_tokens(mixture.lms)
    cut = {key: tokens.cut(words) for key, words in sentences.items()}
    tokens.check(options.scored.text, max_unknown=mixture.max_oov_rate)
    if tokens.token_type != "word":
        for path in mixture.ngrams:
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
