"""`bayeslm rescore`: N-best lists in, LM scores and a new 1-best out."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import Dict, Mapping, Optional, Sequence

import numpy as np

from espnet_bayeslm.bin.rescore_options import NO_LMWT, SCALES, RescoreCommand
from espnet_bayeslm.bin.rescore_output import describe, report, write_settings
from espnet_bayeslm.evaluation.counting import warn_without_blanks
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import check_same_utterances, read_transcripts
from espnet_bayeslm.loading.components import PRELOAD
from espnet_bayeslm.nbest.formats import CheckedLists, written_format
from espnet_bayeslm.rescoring.decision import Scales, Weighting
from espnet_bayeslm.rescoring.list_worker import rescored_on
from espnet_bayeslm.rescoring.output_files import (
    JOB,
    RescoredFiles,
    check_jobs,
    merged_lists,
    subtracted_of_job,
    write_job,
)
from espnet_bayeslm.rescoring.pipeline import Rescoring
from espnet_bayeslm.rescoring.subtraction import subtracted_weights
from espnet_bayeslm.rescoring.tally import ConfidenceTally, ErrorTally, UnknownTally
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import check_output, staged

Refs = Mapping[str, Sequence[str]]


def rescore(options: RescoreCommand) -> None:
    """Rescore N-best lists and write the result."""
    # 1. Whatever can be wrong is found before the long work
    options.check_engine()
    inputs = {"--nbest": options.nbest}
    replaces = check_output(options.output, SCALES, tool="rescore", inputs=inputs)
    given = options.given_scales()
    normalization = Normalization(options.normalize, kept=options.counting.ignored)
    lists = CheckedLists(
        options.nbest,
        options.nbest_format,
        size=options.nbest_size,
        normalization=normalization,
    )
    logging.info("read %d N-best lists (%s) from %s", len(lists.utts), lists.format, lists.path)
    if (written := written_format(lists.format)) != lists.format:
        logging.info("lists of the format %s are written as %s", lists.format, written)
    may_tune = given is None and options.num_jobs == 1
    refs = read_references(options.tune_ref, lists) if may_tune else None
    if lists.scales and options.word_penalty is not None and options.lmwt is None:
        raise InputError(NO_LMWT, remedy="Give both.")
    if lists.scales and given is None and refs is None:
        given = lattice_scales(lists)
    if refs is None and given is None:
        logging.warning("scales are not tuned, and none are given: the defaults are used")
    elif refs is not None and options.tune_ref is None:
        logging.info("the weights of the scores are tuned on the lists' own references")
    scored = read_references(options.ref or options.tune_ref, lists)
    warn_without_blanks(scored or {}, options.counting)
    if scored is not None:
        options.warn_leakage(options.lms, scored.values(), what=options.ref or "the references")
    # 2. Scores and choices, a stream of lists
    work = dataclasses.replace(
        options, scales=given, normalize="", ignore_words=options.counting.ignored
    )
    with contextlib.ExitStack() as stack:
        if options.merge:
            rescoring = merged_jobs(lists, work, refs)
        else:
            pool = stack.enter_context(options.pool(preload=PRELOAD))
            found = rescored_on(
                pool,
                lists,
                work,
                refs=refs,
                ngpu=options.ngpu,
                output=options.output,
                total=len(lists.utts),
            )
            rescoring = stack.enter_context(found)
        # 3. Write them as they come, and report
        write(rescoring, lists, options, scored, replaces=replaces)


def lattice_scales(lists: CheckedLists) -> Scales:
    """Scales that come with lattices."""
    found = {Scales.of_lattice(*key): utt for key, utt in lists.scales.items()}
    if len(found) > 1:
        (first, utt), (second, other) = list(found.items())[:2]
        raise InputError(
            f"lattices with different scales: {utt[:80]!r} has {first}, {other[:80]!r} {second}",
            path=lists.path,
            remedy="Give --lmwt, --scales or --tune_ref.",
        )
    return next(iter(found))


def read_references(path: Optional[str], lists: CheckedLists) -> Optional[Refs]:
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


def merged_jobs(lists: CheckedLists, options: RescoreCommand, refs: Optional[Refs]) -> Rescoring:
    """The rescored lists of jobs, put together."""
    if refs is None:
        options.check_untuned()
    folders = [Path(folder) for folder in options.merge]
    check_jobs(folders, digest=lists.digest)
    known = subtracted_of_job(folders[0])
    scores = merged_lists(lists, folders, token_scores=options.token_scores, subtracted=len(known))
    scales = options.scales if isinstance(options.scales, Scales) else Scales()
    jobs_own = known if any(row.weight for row in known) else ()
    weights = subtracted_weights(
        known,
        scales.subtracted or jobs_own,
        options.subtract_weights,
        tuned=refs is not None,
    )
    scales = dataclasses.replace(scales, subtracted=weights)
    weighting = Weighting(["merged"], np.ones(1), "linear", scales, confidence=options.confidence)
    return Rescoring(scores, weighting.deciding(options.decision), options, refs=refs)


def write(
    rescoring: Rescoring,
    lists: CheckedLists,
    options: RescoreCommand,
    refs: Optional[Refs],
    *,
    replaces: Sequence[str],
) -> None:
    """Write the lists, their scores and best hypotheses as they come, then print the errors."""
    weighting, counting = rescoring.weighting, options.counting
    unknown = UnknownTally([*weighting.names, *weighting.subtracted], counting)
    errors = None if refs is None else ErrorTally(refs, counting)
    sure = None if refs is None else ConfidenceTally(refs)
    with staged(options.output, replaces=replaces, last=(SCALES, JOB)) as folder:
        files = RescoredFiles(
            folder,
            format=written_format(lists.format),
            token_scores=options.token_scores,
            subtracted=bool(weighting.subtracted),
        )
        tallies = [tally for tally in (unknown, errors, sure) if tally is not None]
        with files:
            for item in rescoring:
                files.add(item)
                for tally in tallies:
                    tally.add(item)
        counts = {} if errors is None else errors.errors
        confidence = None if sure is None else sure.calibration()
        facts: Dict[str, object] = dict(counting.facts())
        if rescoring.tuned is not None:
            facts["tuned_on"] = options.tune_ref or options.nbest
        if lists.normalization:
            facts["normalize"] = ",".join(lists.normalization.steps)
        write_settings(folder, weighting, rescoring.tuned, counts, confidence, facts)
        if options.num_jobs > 1:
            of = {"job": options.job, "num_jobs": options.num_jobs}
            write_job(folder, **of, lists=lists.digest, settings=describe(weighting))
    tests = {} if errors is None else errors.tests()
    report(weighting, rescoring.tuned, counts, tests, confidence, unknown, unit=options.unit)


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
