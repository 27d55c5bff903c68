"""`bayeslm rescore`: N-best lists in, LM scores and a new 1-best out."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import yaml
from espnet2.utils.types import float_or_none, str2bool

from espnet_bayeslm.bin.components import (
    add_component_options,
    load_components,
    read_weights,
)
from espnet_bayeslm.evaluation.wer import (
    ERRORS_HEADER,
    ErrorCounts,
    Words,
    check_same_utterances,
    count_errors,
    format_errors,
    oracle_errors,
    read_transcripts,
)
from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.rescoring.components import Component, score_components
from espnet_bayeslm.rescoring.formats import READERS, read_nbest, write_nbest
from espnet_bayeslm.rescoring.kaldi import key_of, write_costs
from espnet_bayeslm.rescoring.mixture import mix
from espnet_bayeslm.rescoring.nbest import NBest
from espnet_bayeslm.rescoring.rescore import (
    Scales,
    best_hypotheses,
    distinct_hypotheses,
    first_pass,
    read_scales,
    scored_list,
)
from espnet_bayeslm.rescoring.sweep import tune
from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_directory

SCALES = "scales.yaml"


def rescore(
    *,
    nbest: str,
    nbest_format: str,
    output: str,
    weights: Optional[str],
    tune_ref: Optional[str],
    scales: Optional[str],
    lmwt: Optional[float],
    word_penalty: Optional[float],
    ref: Optional[str],
    token_scores: bool,
    max_oov_rate: float,
    lm: Sequence[str],
    ngram: Sequence[str],
    **options: Any,
) -> None:
    """Rescore N-best lists; options as `get_parser` explains them."""
    # 1. Whatever can be wrong is found before the long work
    check_output(output, nbest)
    fixed = fixed_scales(tune_ref, scales, lmwt=lmwt, word_penalty=word_penalty)
    nbests = list(read_nbest(nbest, nbest_format))
    logging.info("read %d N-best lists from %s", len(nbests), nbest)
    tune_refs = read_references(tune_ref, nbests, nbest_path=nbest)
    refs = read_references(ref, nbests, nbest_path=nbest)
    components = load_components(lm, ngram, **options)
    # 2. The LMs' scores, word by word, and their mixture
    scores = score_words(components, weights, distinct_hypotheses(nbests), max_oov_rate)
    log_probs = {words: float(score.log_probs.sum()) for words, score in scores.items()}
    lists = [scored_list(item, log_probs) for item in nbests]
    # 3. The new best
    chosen = fixed if tune_refs is None else tune(lists, tune_refs)
    best = best_hypotheses(lists, chosen)
    # 4. Report and write
    errors = compare(refs or tune_refs, nbests, best)
    with atomic_directory(output) as folder:
        write_nbest(nbests, folder, format=nbest_format)
        write_costs(folder / "lmwt.nn", costs(nbests, scores, summed=True))
        if token_scores:
            write_costs(folder / "lmwt.nn.words", costs(nbests, scores, summed=False))
        write_best(folder, best)
        tuned_on = {"tuned_on": tune_ref} if tune_refs is not None else {}
        write_scales(folder / SCALES, chosen, {**tuned_on, **wer_percent(errors)})
    print(f"LMWT {chosen.lmwt:g}, word penalty {chosen.word_penalty:g}")
    if errors:
        print(ERRORS_HEADER)
        print("\n".join(format_errors(name, counts) for name, counts in errors.items()))


def check_output(output: str, nbest: str) -> None:
    """Check that the output folder may be written, or replaced.

    Raises:
        InputError: It holds something else than an earlier output.
    """
    folder = Path(output)
    ours = (folder / SCALES).is_file() and folder.resolve() != Path(nbest).resolve()
    if folder.exists() and not ours and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(
            "is there, and is not the output of an earlier `bayeslm rescore`",
            path=output,
            remedy="Give --output a new folder.",
        )


def fixed_scales(
    tune_ref: Optional[str],
    scales: Optional[str],
    *,
    lmwt: Optional[float],
    word_penalty: Optional[float],
) -> Scales:
    """Return the scales that the options give, or the defaults.

    Raises:
        InputError: More than one option gives them.
    """
    given = {"--tune_ref": tune_ref, "--scales": scales, "--lmwt": lmwt}
    used = [option for option, value in given.items() if value is not None]
    if len(used) > 1 or (word_penalty is not None and used[:1] not in ([], ["--lmwt"])):
        raise InputError(
            f"more than one source of scales: {', '.join(used)} and --word_penalty {word_penalty}",
            remedy="Give --tune_ref, --scales, or --lmwt with --word_penalty.",
        )
    if scales is not None:
        return read_scales(scales)
    if not used:
        logging.warning("scales are not tuned: the defaults are used, as far as none are given")
    default = Scales()
    return Scales(
        default.lmwt if lmwt is None else lmwt,
        default.word_penalty if word_penalty is None else word_penalty,
    )


def read_references(
    path: Optional[str], nbests: Sequence[NBest], *, nbest_path: str
) -> Optional[Dict[str, Words]]:
    """Return the references of the lists' utterances, None where no file is given."""
    if path is None:
        return None
    refs = read_transcripts(path)
    utts = [item.utt for item in nbests]
    check_same_utterances(refs, dict.fromkeys(utts), ref_path=path, hyp_path=nbest_path)
    return refs


def score_words(
    components: Sequence[Component],
    weights: Optional[str],
    sentences: Sequence[Words],
    max_oov_rate: float,
) -> Dict[Words, WordScores]:
    """Return {words: the mixture's scores}.

    Raises:
        InputError: Several components have no weights, or words are unknown.
    """
    mixture_weights = read_weights(weights, components)
    if mixture_weights is None:
        raise InputError(
            f"{len(components)} components and no --weights",
            remedy="Estimate them with `bayeslm interpolate`.",
        )
    scores = score_components(components, sentences, max_oov_rate=max_oov_rate)
    return dict(zip(sentences, mix(scores, mixture_weights), strict=True))


def compare(
    refs: Optional[Mapping[str, Words]], nbests: Sequence[NBest], best: Mapping[str, Words]
) -> Dict[str, ErrorCounts]:
    """Return the errors of the first pass, the new best and the oracle, where references are."""
    if refs is None:
        return {}
    lists = {item.utt: [hyp.words for hyp in item.hypotheses] for item in nbests}
    return {
        "first pass": count_errors(refs, first_pass(nbests)),
        "rescored": count_errors(refs, best),
        "oracle": oracle_errors(refs, lists),
    }


def costs(
    nbests: Sequence[NBest], scores: Mapping[Words, WordScores], *, summed: bool
) -> Iterator[Tuple[str, List[float]]]:
    """Yield (key, -ln p of each word and `</s>`, or their sum) of each hypothesis."""
    for item in nbests:
        for rank, hyp in enumerate(item.hypotheses, 1):
            values = -scores[hyp.words].log_probs
            yield key_of(item.utt, rank), [float(values.sum())] if summed else values.tolist()


def write_best(folder: Path, best: Mapping[str, Words]) -> None:
    """Write the best hypotheses as a Kaldi `text` and as `trn`."""
    with open(folder / "text", "w", encoding="utf-8") as text:
        text.writelines(f"{' '.join((utt, *words))}\n" for utt, words in best.items())
    with open(folder / "trn", "w", encoding="utf-8") as trn:
        trn.writelines(f"{' '.join((*words, f'({utt})'))}\n" for utt, words in best.items())


def write_scales(path: Path, scales: Scales, remarks: Mapping[str, Any]) -> None:
    """Write what `--scales` reads, and remarks for people."""
    content = {"lmwt": scales.lmwt, "word_penalty": scales.word_penalty, **remarks}
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def wer_percent(errors: Mapping[str, ErrorCounts]) -> Dict[str, Dict[str, float]]:
    """Return the word error rates in percent, for people."""
    rates = {name: round(100 * counts.rate, 3) for name, counts in errors.items()}
    return {"wer": rates} if rates else {}


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of `bayeslm rescore`."""
    parser = tool_parser(
        "rescore",
        "Rescores N-best lists: am_score / LMWT + graph_score + ln P_LM - word_penalty * words"
        " is maximised. --output holds the lists with lmwt.nn added (-ln P_LM), the new"
        " best as text and trn, and scales.yaml.",
    )
    parser.add_argument("--nbest", required=True, help="The N-best lists")
    parser.add_argument(
        "--nbest_format", default="kaldi", help=f"Their format: {', '.join(READERS)}"
    )
    parser.add_argument("--output", required=True, help="The folder to write")
    add_component_options(parser)
    parser.add_argument(
        "--weights", default=None, help="weights.yaml of `bayeslm interpolate`, or W,W,.."
    )
    parser.add_argument(
        "--tune_ref", default=None, help="Tune LMWT and word penalty on these references"
    )
    parser.add_argument("--scales", default=None, help="scales.yaml of a tuned run")
    parser.add_argument("--lmwt", type=float_or_none, default=None, help="LMWT (default: 10)")
    parser.add_argument(
        "--word_penalty", type=float_or_none, default=None, help="Cost per word (default: 0)"
    )
    parser.add_argument("--ref", default=None, help="References, a Kaldi `text` or a trn")
    parser.add_argument(
        "--token_scores",
        type=str2bool,
        default=False,
        help="Write the costs of the words too (lmwt.nn.words, </s> last)",
    )
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm rescore`."""
    run_tool(get_parser(), rescore, cmd)


if __name__ == "__main__":
    main()
