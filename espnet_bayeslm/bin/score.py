"""`bayeslm score`: word error rates with S/D/I, their significance, the oracle of N-best lists."""

from __future__ import annotations

import argparse
import logging
from typing import Dict, Mapping, Optional, Sequence, Tuple, TypeVar

from espnet_bayeslm.bin.conditions import ConditionFiles, condition_files
from espnet_bayeslm.bin.lm_options import (
    FORMAT_HELP,
    add_counting_options,
    add_normalize_option,
)
from espnet_bayeslm.evaluation.bootstrap import NUM_REPLICATES
from espnet_bayeslm.evaluation.comparison import ScoredSet, Scores, compare_systems, score_set
from espnet_bayeslm.evaluation.counting import Counting, warn_without_blanks
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import (
    NO_WORDS,
    ErrorCounts,
    Words,
    check_same_utterances,
    oracle_errors,
    read_transcripts,
)
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.report.html_input import Repeated
from espnet_bayeslm.report.scores import FIRST_PASS, ORACLE, RESERVED, print_scores, scores_json
from espnet_bayeslm.utils.cli import add_flag, run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_json

T = TypeVar("T")


def score(
    *,
    ref: Repeated,
    hyp: Repeated,
    nbest: Repeated,
    nbest_format: Optional[str],
    normalize: str,
    unit: str,
    ignore_words: Optional[str],
    partial_ref: bool,
    baseline: Optional[str],
    num_replicates: int,
    seed: int,
    output: Optional[str],
) -> None:
    """Print tables of word errors and of their significance; options as `get_parser` explains."""
    files = condition_files(ref, hyp, nbest)
    counting = Counting.of(unit, ignore_words)
    normalization = Normalization(normalize, kept=counting.ignored)
    compared = choose_baseline(files[0], baseline)
    if num_replicates < 1:
        raise InputError(f"--num_replicates {num_replicates}", remedy="Give 1 or more.")
    # 1. Word errors, utterance by utterance
    read = [
        read_condition(item, nbest_format, normalization, counting, partial_ref) for item in files
    ]
    sets = [item for item, _ in read]
    oracles = [oracle for _, oracle in read if oracle is not None]

    # 2. Totals and tests, for each condition and pooled
    def compare(sets: Sequence[ScoredSet], oracles: Sequence[ErrorCounts]) -> Scores:
        scores = compare_systems(sets, num_replicates=num_replicates, seed=seed)
        if oracles:
            scores.errors[ORACLE] = sum(oracles, NO_WORDS)
        return scores

    pooled = compare(sets, oracles)
    conditions = {files[0].name: pooled}
    if len(files) > 1:
        conditions = {
            condition.name: compare(sets[n : n + 1], oracles[n : n + 1])
            for n, condition in enumerate(files)
        }
    # 3. Write and print
    if output is not None:
        write_json(output, scores_json(conditions, pooled, baseline=compared, unit=unit))
    print_scores(conditions, pooled, baseline=compared, unit=unit)
    first = pooled.errors.get(FIRST_PASS)
    for name in files[0].hyps:
        if first is not None and pooled.errors[name].errors > first.errors:
            worse = f"{100 * pooled.errors[name].rate:.2f} > {100 * first.rate:.2f} %"
            logging.warning("%s is worse than the first pass: %s", name, worse)


def choose_baseline(files: ConditionFiles, baseline: Optional[str]) -> Optional[str]:
    """System that the others are compared with: the first, unless another is named.

    Raises:
        InputError: There is no such system, or a system has a name that the JSON needs.
    """
    reserved = [*RESERVED, *([ORACLE, FIRST_PASS] if files.nbest else [])]
    for name in files.hyps:
        if name in reserved:
            raise InputError(f"--hyp {name}: a name with a meaning", remedy="Choose another NAME.")
    systems = [*([FIRST_PASS] if files.nbest else []), *files.hyps]
    if baseline is not None and baseline not in systems:
        names = ", ".join(systems)
        raise InputError(
            f"--baseline {baseline}: no such system", remedy=f"Give a NAME of --hyp: {names}."
        )
    return baseline or next(iter(systems), None)


def read_condition(
    files: ConditionFiles,
    format: Optional[str],
    normalization: Normalization,
    counting: Counting,
    partial_ref: bool,
) -> Tuple[ScoredSet, Optional[ErrorCounts]]:
    """Word errors of all systems in one condition, and of the oracle of its N-best lists.

    Args:
        files: The condition.
        format: That of the lists, whose first hypotheses are a system; None: as they say.
        normalization: What references and outputs go through.
        counting: How errors are counted.
        partial_ref: Whether outputs without a reference are left out.
    """
    refs = read_transcripts(files.ref)
    normalised = normalization.text(refs)
    warn_without_blanks(normalised, counting)
    known = counting.text(normalised)

    def with_reference(found: Mapping[str, T], path: str) -> Dict[str, T]:
        kept = {utt: item for utt, item in found.items() if utt in refs or not partial_ref}
        if len(kept) < len(found):
            logging.warning("%s: %d of %d have a reference", path, len(kept), len(found))
        check_same_utterances(refs, kept, ref_path=files.ref, hyp_path=path)
        return kept

    hyps: Dict[str, Mapping[str, Words]] = {}
    oracle = None
    if files.nbest is not None:
        read = {
            item.utt: [counting.units(normalization.words(hyp.words)) for hyp in item.hypotheses]
            for item in read_nbest(files.nbest, format)
        }
        lists = with_reference(read, files.nbest)
        hyps[FIRST_PASS] = {utt: hypotheses[0] for utt, hypotheses in lists.items()}
        oracle = oracle_errors(known, lists)
    for name, path in files.hyps.items():
        texts = normalization.text(with_reference(read_transcripts(path), path))
        hyps[name] = counting.text(texts)
    return score_set(known, hyps), oracle


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm score`."""
    parser = tool_parser(
        "score",
        "Word error rates (unit costs for S, D and I). Of two and more systems also, between every"
        " pair, the bootstrap interval of the difference (A - B) and the MAPSSWE test. Several"
        " conditions, each tested by itself and all of them pooled: --ref ihm=REF1 --ref sdm=REF2"
        " --hyp lstm:ihm=TEXT1 --hyp lstm:sdm=TEXT2 --hyp bayes:ihm=TEXT3 --hyp bayes:sdm=TEXT4.",
    )
    parser.add_argument(
        "--ref",
        action="append",
        default=[],
        help="References, a Kaldi `text` or a trn: TEXT, or CONDITION=TEXT for each condition",
    )
    parser.add_argument(
        "--hyp",
        action="append",
        default=[],
        help="Output of a system, a Kaldi `text` or a trn (repeatable): NAME=TEXT, or"
        " NAME:CONDITION=TEXT for each condition",
    )
    parser.add_argument(
        "--baseline",
        help="The NAME that others are compared with: a dagger marks those with significantly"
        " fewer errors, a double dagger those with more; without it, the first pass of --nbest,"
        " else the first --hyp",
    )
    parser.add_argument(
        "--nbest",
        action="append",
        default=[],
        help="N-best lists, for the first pass and the oracle: DIR, or CONDITION=DIR for each",
    )
    parser.add_argument("--nbest_format", help=FORMAT_HELP)
    add_flag(
        parser, "--partial_ref", "Score the utterances that have a reference, where some have none"
    )
    add_normalize_option(parser, "references, outputs and hypotheses")
    add_counting_options(parser)
    parser.add_argument(
        "--num_replicates",
        type=int,
        default=NUM_REPLICATES,
        help="How often the bootstrap draws the utterances",
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the bootstrap")
    parser.add_argument("--output", help="Write all numbers here, as JSON")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm score`."""
    run_tool(get_parser(), score, cmd, signed="output")


if __name__ == "__main__":
    main()
