"""`bayeslm rescore`: N-best lists in, LM scores and a new 1-best out."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import (
    IO,
    Any,
    Dict,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import yaml

from espnet_bayeslm.evaluation.biased_words import BIASED, UNBIASED
from espnet_bayeslm.evaluation.wer import (
    FIRST_PASS,
    Counted,
    check_same_utterances,
    read_transcripts,
    warn_without_blanks,
)
from espnet_bayeslm.loading.component_options import PRELOAD, TrainTextOptions
from espnet_bayeslm.nbest.ctm import TIMES, ctm_lines, times_of
from espnet_bayeslm.nbest.fields import hypothesis_key
from espnet_bayeslm.nbest.formats import NBEST_SIZE, CheckedLists, format_option, nbest_writer
from espnet_bayeslm.report.counted_outputs import SCALES
from espnet_bayeslm.report.score_results import error_text
from espnet_bayeslm.rescoring.decision import (
    BEST,
    BEST_LISTS,
    BEST_TRN,
    CONFIDENCE,
    COSTS,
    CTM,
    DIGITS,
    MEASURES,
    NO_LM,
    RESCORED,
    SUBTRACTED_COSTS,
    UNCERTAINTY,
    WITHOUT_BIAS,
    WITHOUT_LM,
    WORD_COSTS,
    ListTally,
    RescoredList,
    calibration_text,
)
from espnet_bayeslm.rescoring.features import LM
from espnet_bayeslm.rescoring.rescore import RescoredLists, Rescoring
from espnet_bayeslm.rescoring.rescore_options import NO_LMWT, SharedRescoreOptions
from espnet_bayeslm.rescoring.scales import Scales, scales_of
from espnet_bayeslm.rescoring.tuning import Refs, held_out_line
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.folders import check_output, files_in, staged
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, nested, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class RescoreCommand(ToolOptions):
    """Options of `bayeslm rescore`: those of a rescoring, and the files it reads and writes."""

    trained: TrainTextOptions = nested(TrainTextOptions)
    job: SharedRescoreOptions = nested(SharedRescoreOptions)
    nbest: str = option("The N-best lists")
    nbest_format: Optional[str] = format_option()
    nbest_size: int = option("Hypotheses taken of each lattice, at most", NBEST_SIZE)
    output: str = option("The folder to write")
    tune_ref: Optional[str] = option(
        "Tune the weights of the scores on these references (default: the lists' own, where"
        " no scales are given)",
        None,
    )
    ref: Optional[str] = option(
        "References, a Kaldi `text` or a trn (default: --tune_ref, or the lists' own)", None
    )
    token_scores: bool = option(
        "Write the costs of the words too (lmwt.nn.words, </s> last)", False
    )
    write_best: Optional[int] = option(
        "Write the N best hypotheses of each list too, the best first, for a slower LM"
        " (OUTPUT/best)",
        None,
        least=1,
    )


def write_settings(
    folder: Path, rescoring: RescoredLists, tally: ListTally, counted: Counted
) -> None:
    """Write what `--scales` reads, remarks for people (`counted`, ..), and the sweep."""
    tuned = rescoring.tuned
    content = rescoring.scales.settings(rescoring.mixture)
    # what differs from the defaults, as the report reads it
    facts: Dict[str, Any] = {"unit": counted.unit, "ignore_words": [*counted.ignored]}
    facts["tuned_on"] = None if tuned is None else counted.tuned_on
    facts["normalize"] = ",".join(counted.normalize)
    content.update((k, value) for k, value in facts.items() if value not in ("word", [], None, ""))
    content["counted"] = dataclasses.asdict(counted)
    if tuned is not None:
        from espnet_bayeslm.report.weight_sweep import write_sweep  # imports matplotlib

        # copies: yaml would write what stands in two places as a reference
        by_risk = {} if tuned.risk_errors is None else {"mbr": tuned.risk_errors}
        with_lm, without_lm = (
            {"kept": w.kept, "errors": {**w.errors, **more}, "held_out_errors": {**w.held_out}}
            for w, more in ((tuned.chosen, by_risk), (tuned.control, {}))
        )
        unused = {"unused": tuned.unused} if tuned.unused else {}
        decoys = {"decoys": dict(tuned.decoys)} if tuned.decoys else {}
        content["tuning"] = {**unused, **with_lm, **decoys}
        content["tuning"].update(words=tuned.words, without_lm=without_lm)
        write_sweep(folder, tuned)
        if tuned.bias is not None:
            from espnet_bayeslm.report.bias_plot import write_bias_sweep

            write_bias_sweep(folder, tuned.bias)
    if tally.errors:
        content["wer"] = {name: round(100 * c.rate, 3) for name, c in tally.errors.items()}
    if confidence := tally.calibration():
        content["confidence"] = {name: round(value, 5) for name, value in confidence.items()}
    # by these a later run knows what it may replace
    content["files"] = sorted({*files_in(folder), SCALES})
    text = yaml.safe_dump(content, sort_keys=False)
    (folder / SCALES).write_text(text, encoding="utf-8")


def print_report(rescoring: RescoredLists, tally: ListTally, counted: Counted) -> None:
    """Print what was chosen, the errors, and their test against the first pass."""
    scales, tuned = rescoring.scales, rescoring.tuned
    if tuned is not None and tuned.folds:
        print("\n".join(tuned.fold_lines()))
    else:
        print(scales)
        if tuned is not None:
            print(f"{held_out_line(tuned.chosen)}\n{NO_LM}: {held_out_line(tuned.control)}")
    if tuned is not None and tuned.risk_errors is not None:
        counts = f"{tuned.chosen.errors['tuned']} by max, {tuned.risk_errors} by mbr"
        print(f"errors on the tuning lists: {counts}")
    if tuned is not None and tuned.decoys:
        counts = ", ".join(f"{count} {name}" for name, count in tuned.decoys.items())
        print(f"errors on the tuning lists: {counts}")
    if errors := tally.errors:
        print(error_text(errors, counted.unit, counted=counted))
        for name, parts in tally.parts.items():
            outside, inside = (100 * own.rate for own in parts)
            shown = f"{UNBIASED} {outside:.2f} %, {BIASED} {inside:.2f} %"
            print(f"{name}: {shown} of {parts.biased.words} words")
        for name, test in tally.tests().items():
            print(f"{name} - rescored: MAPSSWE z = {test.z:.2f}, p = {test.p:.2g}")
        if scales.control is not None and NO_LM not in errors:
            LOG.warning("%s: the lists lack a score that its scales weigh", NO_LM)
        first, rescored = errors[FIRST_PASS], errors[RESCORED]
        if rescored.errors > first.errors:
            LOG.warning(
                "rescored is worse than the first pass: %.2f > %.2f %%; does the LM fit?",
                100 * rescored.rate,
                100 * first.rate,
            )
    if confidence := tally.calibration():
        print(f"confidence of {confidence['words']} words: {calibration_text(confidence)}")


class Inputs(NamedTuple):
    """Checked inputs of a rescoring.

    Attributes:
        lists: The lists.
        refs: References to count errors with, where there are some.
        replaces: Files of an earlier output.
    """

    lists: CheckedLists
    refs: Optional[Refs]
    replaces: Sequence[str]


def prepared(job: Rescoring, options: RescoreCommand) -> Inputs:
    """Inputs of a rescoring: whatever can be wrong is found before the long work."""
    inputs, given = {"--nbest": options.nbest}, job.options
    replaces = check_output(options.output, SCALES, tool="rescore", inputs=inputs)
    how: Any = dict(size=options.nbest_size, normalization=job.normalization)
    lists = CheckedLists(options.nbest, options.nbest_format, **how)
    LOG.info("read %d N-best lists (%s) from %s", len(lists.utts), lists.format, lists.path)
    if lists.written_format != lists.format:
        LOG.info("lists of the format %s are written as %s", lists.format, lists.written_format)
    tuning_refs = references_of(options.tune_ref, lists) if job.scales is None else None
    if lists.scales and given.word_penalty is not None and given.lmwt is None:
        raise InputError(NO_LMWT, remedy="Give both.")
    if lists.scales and job.scales is None and tuning_refs is None:
        job.scales = lattice_scales(lists)
    if tuning_refs is None and job.scales is None:
        LOG.warning("scales are not tuned, and none are given: the defaults are used")
    elif tuning_refs is not None and options.tune_ref is None:
        LOG.info("the weights of the scores are tuned on the lists' own references")
    # a pipe is read once
    is_same = options.ref is None and tuning_refs is not None
    refs = tuning_refs if is_same else references_of(options.ref, lists)
    warn_without_blanks(refs or {}, given.errors.counting)
    job.prepare(lists, tuning_refs, utts=lists.utts, firsts=lists.firsts.texts, known=refs)
    if refs is not None:
        lms = given.mixture.lms if given.utt2lm is None else given.mixture.lms[1:]
        options.trained.warn_leakage(lms, refs.values(), what=options.ref or "the references")
    return Inputs(lists, refs, replaces)


def rescore(options: RescoreCommand) -> None:
    """Rescore N-best lists and write the result."""
    job = Rescoring(options.job, *["--tune_ref"] * (options.tune_ref is not None))
    workers = options.job.work.pool(preload=PRELOAD)
    lists, refs, replaces = prepared(job, options)
    errors = job.options.errors
    where: Any = dict(ngpu=options.job.ngpu, output=options.output, total=len(lists.utts))
    tally = ListTally(refs, errors.counting, job.options.bias)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(workers)
        found = stack.enter_context(job.run(pool, **where))
        mixture, scales = found.mixture, found.scales
        here = options.tune_ref or options.nbest
        counted = Counted(
            *(errors.unit, lists.normalization.steps, tuple(sorted(errors.counting.ignored))),
            text_forms=mixture.text_forms,
            tuned_on=scales.tuned_on if found.tuned is None else here,
        )
        with staged(options.output, replaces=replaces, last=(SCALES,)) as folder:
            for item in written_lists(
                folder,
                found.lists,
                format=lists.written_format,
                token_scores=options.token_scores,
                has_lm=bool(mixture.components),
                subtracted=bool(mixture.subtracted),
                write_best=options.write_best,
            ):
                tally.add(item)
            write_settings(folder, found, tally, counted)
        print_report(found, tally, counted)


def lattice_scales(lists: CheckedLists) -> Scales:
    """Scales that come with lattices."""
    first_utts: Dict[Scales, str] = {}
    for (weights, scores), utt in lists.scales.items():
        own = {"am_score": weights.am, LM: weights.lm, "words": weights.word}
        if has_graph := "graph_score" in scores:
            own["graph_score"] = weights.graph
        first_utts[scales_of(own, has_graph=has_graph)] = utt
    if len(first_utts) > 1:
        (first, utt), (second, other) = list(first_utts.items())[:2]
        raise InputError(
            f"lattices with different scales: {utt[:80]!r} has {first}, {other[:80]!r} {second}",
            path=lists.path,
            remedy="Give --lmwt, --scales or --tune_ref.",
        )
    return next(iter(first_utts))


def references_of(path: Optional[str], lists: CheckedLists) -> Optional[Refs]:
    """References of a file, or the lists' own; None where there are none."""
    if path is not None:
        refs = read_transcripts(path)
        check_same_utterances(refs, lists.utts, ref_path=path, hyp_path=lists.path)
        return lists.normalization.text(refs)
    if 0 < len(lists.refs) < len(lists.utts):
        without = next(utt for utt in lists.utts if utt not in lists.refs)
        raise InputError(
            f"{len(lists.refs)} of {len(lists.utts)} lists have a reference, {without[:80]!r}"
            " has none, and all or none were expected",
            path=lists.path,
            remedy="Give --tune_ref or --ref FILE, or references in all lists.",
        )
    return lists.refs or None


def lines_of(item: RescoredList, *, token_scores: bool, has_lm: bool) -> Iterator[Tuple[str, str]]:
    """Yield the lines of a rescored list, each with the name of its file."""
    utt, hyps = item.nbest.utt, item.nbest.hypotheses
    costs: Dict[str, Iterable[Iterable[float]]] = {}
    if has_lm:
        costs[COSTS] = ([score] for score in item.lm_scores)
    if has_lm and token_scores:
        costs[WORD_COSTS] = (row.tolist() for row in item.word_log_probs)
    if item.subtracted:
        costs[SUBTRACTED_COSTS] = zip(*item.subtracted.values(), strict=True)
    for name, rows in costs.items():
        for rank, row in enumerate(rows, 1):
            values = (f"{-value:.{DIGITS}f}" for value in row)
            yield name, " ".join((hypothesis_key(utt, rank), *values))
    for rank, (hyp, uncertainty) in enumerate(zip(hyps, item.uncertainty, strict=False), 1):
        shown = {name: getattr(uncertainty, of) for name, of in MEASURES.items()}
        yield UNCERTAINTY, json_line(utt, hyp.words, shown, rank=rank)
    if item.masses is not None:
        shown = {"confidence": item.confidences, "posterior": item.masses}
        expected = round(item.expected_errors or 0.0, DIGITS)
        yield CONFIDENCE, json_line(utt, item.words, shown, expected_errors=expected)
    as_came = (item.nbest.source or item.nbest).hypotheses
    for name, place in ((WITHOUT_LM, item.control), (WITHOUT_BIAS, item.unbiased)):
        if place is not None:
            yield name, " ".join((utt, *as_came[place].words))
    best = as_came[item.best]
    if TIMES in best.extra and (times := times_of(best)) is not None:
        sure = None if item.nbest.source is not None else item.confidences
        for line in ctm_lines(utt, best.words, times, sure):
            yield CTM, line
    yield BEST, " ".join((utt, *best.words))
    yield BEST_TRN, " ".join((*best.words, f"({utt})"))


def json_line(utt: str, words: Sequence[str], values: Mapping[str, Any], **more: Any) -> str:
    """Line of JSON: words, and rounded values of each."""
    rounded = {name: array.round(DIGITS).tolist() for name, array in values.items()}
    return json.dumps({"utt": utt, **more, "words": list(words), **rounded})


def written_lists(
    folder: Path,
    items: Iterable[RescoredList],
    *,
    format: str,
    token_scores: bool,
    subtracted: bool = False,
    has_lm: bool = True,
    write_best: Optional[int] = None,
) -> Iterator[RescoredList]:
    """Write rescored lists to a folder (`lmwt.nn`, `text`, `trn`, ..), and yield each when written.

    With `token_scores` there are the costs of the words too, with `subtracted` those under
    subtracted LMs, a column for each, and with `write_best` lists of so many hypotheses. Without an
    LM there are no costs.
    """
    partly, untimed = set(), 0
    files: Dict[str, IO[str]] = {}
    # these are there without a list too
    costs = [COSTS, *[WORD_COSTS] * token_scores, *[SUBTRACTED_COSTS] * subtracted]
    names = [BEST, BEST_TRN, *costs * has_lm]
    with contextlib.ExitStack() as stack:
        for name in names:
            files[name] = stack.enter_context((folder / name).open("w", encoding="utf-8"))
        add_list = stack.enter_context(nbest_writer(folder, format=format))
        if write_best is not None:
            add_best = stack.enter_context(nbest_writer(folder / BEST_LISTS, format=format))
        for item in items:
            add_list(item.nbest.source or item.nbest)
            if write_best is not None:
                add_best(item.best_hypotheses(write_best))
            written = set()
            for name, line in lines_of(item, token_scores=token_scores, has_lm=has_lm):
                written.add(name)
                if name not in files:
                    files[name] = stack.enter_context((folder / name).open("w", encoding="utf-8"))
                files[name].write(f"{line}\n")
            places = {WITHOUT_LM: item.control, WITHOUT_BIAS: item.unbiased}
            partly |= {name for name, place in places.items() if place is None}
            untimed += CTM not in written and bool(item.text)
            yield item
    if CTM in files and untimed:
        LOG.warning("%s: %d best hypotheses have no times of words, and are left out", CTM, untimed)
    for name in partly:
        (folder / name).unlink(missing_ok=True)


TOOL = Tool(
    "rescore",
    "Rescores N-best lists: am_score / LMWT + graph_score + ln P_LM - word_penalty * words,"
    " or a tuned sum of features, is maximised. --output holds the lists with lmwt.nn added"
    " (-ln P_LM), the new best as text and trn, and scales.yaml.",
    rescore,
    RescoreCommand,
    signed="output",
    stopped=": the same command continues from the finished blocks",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
