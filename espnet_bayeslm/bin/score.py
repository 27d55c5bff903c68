"""`bayeslm score`: word error rates with S/D/I, their significance, the oracle of N-best lists."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from espnet_bayeslm.evaluation.bias_lists import read_bias, warn_of_text
from espnet_bayeslm.evaluation.biased_words import check_bias_unit, score_parts
from espnet_bayeslm.evaluation.comparison import ScoredSet, Scores, compare_systems, score_set
from espnet_bayeslm.evaluation.normalization import Normalization, normalize_option
from espnet_bayeslm.evaluation.text_checks import (
    Subset,
    warn_of_placeholders,
    warn_of_spelling,
)
from espnet_bayeslm.evaluation.wer import (
    FIRST_PASS,
    NO_WORDS,
    ORACLE,
    Counted,
    CountingOptions,
    ErrorCounts,
    Words,
    check_same_utterances,
    oracle_errors,
    read_transcripts,
    warn_without_blanks,
)
from espnet_bayeslm.nbest.formats import format_option, read_nbest
from espnet_bayeslm.report.counted_outputs import of_all_systems, read_counted, warn_unless_alike
from espnet_bayeslm.report.inputs import Repeated, labelled_paths
from espnet_bayeslm.report.score_results import RESERVED, SystemScores, print_scores, scores_json
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_json
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import option

# The condition of a --ref that gives none.
UNNAMED = ""
COMMAND = "this command"


@dataclasses.dataclass(frozen=True)
class ConditionFiles:
    """The files of one condition, such as one microphone."""

    name: str
    ref: str
    hyps: Dict[str, str]
    nbest: Optional[str]


def condition_files(ref: Repeated, hyp: Repeated, nbest: Repeated) -> List[ConditionFiles]:
    """Files of each condition, in the order of the references.

    Args:
        ref: TEXT, or CONDITION=TEXT for each condition.
        hyp: NAME=TEXT, or NAME:CONDITION=TEXT for each system and condition.
        nbest: DIR, or CONDITION=DIR for each condition.
    """
    refs = _by_condition("--ref", ref)
    if not refs:
        raise InputError("no references", remedy="Give --ref TEXT.")
    systems: Dict[str, Dict[str, str]] = {}
    for value in [hyp] if isinstance(hyp, str) else hyp or []:
        label, _, path = value.partition("=")
        name, _, condition = label.rpartition(":")
        if len(refs) == 1 and (condition not in refs or not condition):
            name, condition = label, next(iter(refs))
        if not (name and path) or condition not in refs or condition in systems.get(name, {}):
            known = f": no condition of --ref ({', '.join(refs)})" * (condition not in refs)
            several = ":CONDITION" * (len(refs) > 1)
            raise InputError(
                f"--hyp {value}{known}", remedy=f"Give NAME{several}=TEXT, each with its own NAME."
            )
        systems.setdefault(name, {})[condition] = path
    lists = _by_condition("--nbest", nbest)
    if list(lists) == [UNNAMED] and len(refs) == 1:
        lists = {next(iter(refs)): lists[UNNAMED]}
    given = {f"--hyp {name}:": paths for name, paths in systems.items()}
    if lists:
        given["--nbest "] = lists
    if not given:
        raise InputError("nothing to score", remedy="Give --hyp NAME=TEXT or --nbest DIR.")
    for what, paths in given.items():
        for condition in (c for c in [*paths, *refs] if c not in paths or c not in refs):
            problem = "is missing" if condition in refs else "has no --ref"
            raise InputError(
                f"{what}{condition}{'=...' if condition else ''} {problem}",
                remedy="Every system needs an output in every condition, and N-best lists"
                " likewise.",
            )
    found = []
    for condition, path in refs.items():
        hyps = {name: paths[condition] for name, paths in systems.items()}
        found.append(ConditionFiles(condition, path, hyps, lists.get(condition)))
    return found


def _by_condition(option: str, values: Repeated) -> Dict[str, str]:
    """{condition: path}; a path by itself belongs to the condition `UNNAMED`."""
    paths: Dict[str, str] = {}
    for condition, path in labelled_paths(option, values, "CONDITION"):
        if condition in paths or (paths and UNNAMED in {condition, *paths}):
            raise InputError(
                f"{option} {path}",
                remedy=f"Of several, give {option} CONDITION=PATH, each with its own CONDITION.",
            )
        paths[condition] = path
    return paths


T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreOptions(CountingOptions):
    """Options of `bayeslm score`."""

    ref: Sequence[str] = option(
        "References, a Kaldi `text` or a trn: TEXT, or CONDITION=TEXT for each condition", ()
    )
    hyp: Sequence[str] = option(
        "Output of a system, a Kaldi `text` or a trn (repeatable): NAME=TEXT, or"
        " NAME:CONDITION=TEXT for each condition",
        (),
    )
    baseline: Optional[str] = option(
        "The NAME that others are compared with: a dagger marks those with significantly"
        " fewer errors, a double dagger those with more; without it, the first pass of --nbest,"
        " else the first --hyp",
        None,
    )
    nbest: Sequence[str] = option(
        "N-best lists, for the first pass and the oracle: DIR, or CONDITION=DIR for each", ()
    )
    nbest_format: Optional[str] = format_option()
    partial_ref: bool = option(
        "Score the utterances that have a reference, where some have none", False
    )
    normalize: str = normalize_option("references, outputs and hypotheses")
    bias: Optional[str] = option(
        "Bias lists: also count errors of words outside (U-WER) and inside (B-WER) of the"
        " utterance's list, and test both. JSON lines with `utt` and `words`, a Kaldi archive `UTT"
        " WORD WORD`, or plain text with a word or phrase of all utterances on each line",
        None,
        metavar="FILE",
    )
    output: Optional[str] = option("Write all numbers here, as JSON", None)


class ConditionTexts(NamedTuple):
    """Texts of one condition as they are compared.

    Attributes:
        refs: Utterance id -> words or characters.
        systems: System -> utterance id -> words or characters.
        oracle: Errors of the oracle of N-best lists, if there are lists.
    """

    refs: Dict[str, Words]
    systems: Dict[str, Dict[str, Words]]
    oracle: Optional[ErrorCounts]


def score(options: ScoreOptions) -> None:
    """Print tables of word errors and of their significance."""
    files = condition_files(options.ref, options.hyp, options.nbest)
    compared = choose_baseline(files[0], options.baseline)
    check_bias_unit(options.bias, options.unit)
    # 1. Word errors, utterance by utterance
    texts = [read_condition(item, options) for item in files]
    sets = [score_set(item.refs, item.systems) for item in texts]
    # 2. Totals and tests, for each condition and pooled
    names = [item.name for item in files]
    oracles = [item.oracle for item in texts if item.oracle is not None]
    parts = {
        rate: SystemScores(
            *compare_conditions(names, part, needs_words=False), compared, own_rate=rate
        )
        for rate, part in biased_parts(options, texts, sets).items()
    }
    counted = how_counted(files, options)
    results = compare_conditions(names, sets, oracles)
    found = SystemScores(*results, compared, options.unit, counted, parts=parts)
    # 3. Write and print
    if options.output is not None:
        write_json(options.output, scores_json(found))
    print_scores(found)
    errors = found.pooled.errors
    first = errors.get(FIRST_PASS)
    for name in files[0].hyps:
        if first is not None and errors[name].errors > first.errors:
            worse = f"{100 * errors[name].rate:.2f} > {100 * first.rate:.2f} %"
            LOG.warning("%s is worse than the first pass: %s", name, worse)


def compare_conditions(
    names: Sequence[str],
    sets: Sequence[ScoredSet],
    oracles: Sequence[ErrorCounts] = (),
    *,
    needs_words: bool = True,
) -> Tuple[Dict[str, Scores], Scores]:
    """Totals and tests of each condition, by name, and of all of them pooled."""

    def of(chosen: slice) -> Scores:
        scores = compare_systems(sets[chosen], needs_words=needs_words)
        if oracles:
            scores.errors[ORACLE] = sum(oracles[chosen], NO_WORDS)
        return scores

    conditions = {name: of(slice(n, n + 1)) for n, name in enumerate(names)}
    return conditions, of(slice(None)) if len(names) > 1 else conditions[names[0]]


def biased_parts(
    options: ScoreOptions, texts: Sequence[ConditionTexts], sets: Sequence[ScoredSet]
) -> Dict[str, List[ScoredSet]]:
    """Errors of unbiased and of biased words in each condition; nothing without bias lists."""
    if options.bias is None:
        return {}
    refs = {utt: words for item in texts for utt, words in item.refs.items()}
    normalization = Normalization(options.normalize, kept=options.counting.ignored)
    bias = read_bias(options.bias, normalization, utts=refs)
    is_told = warn_of_text(bias, refs.values())
    if not is_told and not any(bias.of(utt).words & {*words} for utt, words in refs.items()):
        LOG.warning(
            "%s: no word of the bias lists stands in the references. If it is written in another"
            " way there, give --normalize",
            options.bias,
        )
    pairs = zip(sets, texts, strict=True)
    found = [score_parts(whole, item.refs, item.systems, bias) for whole, item in pairs]
    return {rate: [part[rate] for part in found] for rate in found[0]}


def how_counted(files: Sequence[ConditionFiles], options: ScoreOptions) -> Counted:
    """Facts of how errors are counted; warns where an output of `bayeslm rescore` differs."""
    ignored, steps = options.counting.ignored, Normalization(options.normalize).steps
    own = Counted(options.unit, steps, tuple(sorted(ignored)))
    known = {}
    for item in files:
        for name, path in item.hyps.items():
            if (found := read_counted(path)) is not None:
                known[f"{name}:{item.name}" if len(files) > 1 else name] = found
    warn_unless_alike({**{f"--hyp {name}": found for name, found in known.items()}, COMMAND: own})
    return of_all_systems(own, known)


def choose_baseline(files: ConditionFiles, baseline: Optional[str]) -> Optional[str]:
    """System that the others are compared with: the first, unless another is named."""
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


def read_condition(files: ConditionFiles, options: ScoreOptions) -> ConditionTexts:
    """Texts of all systems in one condition, and the errors of the oracle of its N-best lists."""
    counting = options.counting
    normalization = Normalization(options.normalize, kept=counting.ignored)
    refs = read_transcripts(files.ref)
    warn_of_placeholders(refs, files.ref)
    normalised = normalization.text(refs)
    warn_without_blanks(normalised, counting)
    known = counting.text(normalised)

    def with_reference(found: Mapping[str, T], path: str) -> Dict[str, T]:
        kept = {utt: item for utt, item in found.items() if utt in refs or not options.partial_ref}
        if len(kept) < len(found):
            LOG.warning("%s: %d of %d have a reference", path, len(kept), len(found))
        check_same_utterances(refs, kept, ref_path=files.ref, hyp_path=path)
        return kept

    texts: Dict[str, Mapping[str, Words]] = {}
    oracle = None
    if files.nbest is not None:
        read = {
            item.utt: [normalization.words(hyp.words) for hyp in item.hypotheses]
            for item in read_nbest(files.nbest, options.nbest_format)
        }
        lists = with_reference(read, files.nbest)
        texts[FIRST_PASS] = {utt: hypotheses[0] for utt, hypotheses in lists.items()}
        units = {utt: [*map(counting.units, hypotheses)] for utt, hypotheses in lists.items()}
        oracle = oracle_errors(known, units)
    for name, path in files.hyps.items():
        texts[name] = normalization.text(with_reference(read_transcripts(path), path))
    for name, text in texts.items():
        given = normalization.steps
        if warn_of_spelling(normalised, some(text), counting, given=given, of=name):
            break  # others are mostly written alike
    systems = {name: counting.text(text) for name, text in texts.items()}
    return ConditionTexts(known, systems, oracle)


def some(texts: Mapping[str, Words]) -> Dict[str, Sequence[str]]:
    """Some of many texts, which are enough for a check."""
    subset = Subset()
    for utt, words in texts.items():
        subset.add(utt, words)
    return subset.texts


TOOL = Tool(
    "score",
    "Word error rates (unit costs for S, D and I). Of two and more systems also, between every"
    " pair, the bootstrap interval of the difference (A - B) and the MAPSSWE test. Several"
    " conditions, each tested by itself and all of them pooled: --ref ihm=REF1 --ref sdm=REF2"
    " --hyp lstm:ihm=TEXT1 --hyp lstm:sdm=TEXT2 --hyp bayes:ihm=TEXT3 --hyp bayes:sdm=TEXT4.",
    score,
    ScoreOptions,
    signed="output",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
