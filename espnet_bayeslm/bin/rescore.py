"""`bayeslm rescore`: N-best lists in, LM scores and a new 1-best out."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import yaml

import espnet_bayeslm
from espnet_bayeslm.bin.rescore_options import (
    SCALES,
    check_output,
    check_work,
    fixed_scales,
    get_parser,
)
from espnet_bayeslm.evaluation.wer import (
    ERRORS_HEADER,
    ErrorCounts,
    format_errors,
    read_transcripts,
)
from espnet_bayeslm.nbest.formats import CheckedLists, nbest_writer
from espnet_bayeslm.rescoring.decision import Scales
from espnet_bayeslm.rescoring.output_files import (
    JOB,
    RescoredFiles,
    check_jobs,
    merged_lists,
    write_job,
)
from espnet_bayeslm.rescoring.pipeline import Rescoring, Weighting
from espnet_bayeslm.rescoring.tuning import ErrorTally, Tuned
from espnet_bayeslm.utils.cli import run_tool
from espnet_bayeslm.utils.files import files_in, staged


def rescore(
    *,
    nbest: str,
    nbest_format: str,
    nbest_size: int,
    output: str,
    lm: Sequence[str],
    ngram: Sequence[str],
    scales: Optional[str],
    lmwt: Optional[float],
    word_penalty: Optional[float],
    tune_ref: Optional[str],
    ref: Optional[str],
    merge: Sequence[str],
    token_scores: bool,
    ngpu: int,
    **options: Any,
) -> None:
    """Rescore N-best lists; options as `get_parser` explains them.

    Those that are not named here are `espnet_bayeslm.rescore`'s.
    """
    # 1. Whatever can be wrong is found before the long work
    replaces = check_output(output, nbest)
    check_work(tune_ref=tune_ref, merge=merge, **options)
    fixed = fixed_scales(tune_ref, scales, lmwt=lmwt, word_penalty=word_penalty)
    tally = read_tally(ref or tune_ref)
    lists = CheckedLists(nbest, nbest_format, size=nbest_size)
    logging.info("read %d N-best lists from %s", len(lists.utts), nbest)
    if tally is not None:
        tally.check(lists.utts, nbest)
    # 2. Scores and choices, a stream of lists
    refs = None if tune_ref is None else read_transcripts(tune_ref)
    if merge:
        rescoring = of_jobs(lists, merge, fixed, token_scores=token_scores, refs=refs)
    else:
        rescoring = espnet_bayeslm.rescore(
            lists,
            lms=lm,
            ngrams=ngram,
            scales=fixed,
            tune=tune_ref is not None,
            refs=refs,
            device="cuda" if ngpu else "cpu",
            **options,
        )
    # 3. Write them as they come, and report
    with staged(output, replaces=replaces, last=(SCALES, JOB)) as folder:
        wanted = {"token_scores": token_scores, "uncertainty": options["uncertainty"]}
        write_lists(folder, rescoring, tally, format=nbest_format, **wanted)
        errors = {} if tally is None else tally.errors
        write_settings(folder, rescoring.weighting, rescoring.tuned, errors, tune_ref)
        if options["num_jobs"] > 1:
            work_of = {"job": options["job"], "num_jobs": options["num_jobs"]}
            settings = describe(rescoring.weighting)
            write_job(folder, **work_of, lists=lists.digest, settings=settings)
    report(rescoring.weighting, rescoring.tuned, errors)


def read_tally(ref: Optional[str]) -> Optional[ErrorTally]:
    """What counts the errors, where there are references."""
    return None if ref is None else ErrorTally(read_transcripts(ref), ref)


def of_jobs(
    lists: CheckedLists,
    merge: Sequence[str],
    scales: Scales,
    *,
    token_scores: bool,
    refs: Optional[Mapping[str, Sequence[str]]],
) -> Rescoring:
    """The rescored lists of jobs, put together.

    Raises:
        InputError: They are not all jobs of one rescoring of these lists.
    """
    folders = [Path(folder) for folder in merge]
    check_jobs(folders, digest=lists.digest)
    scores = merged_lists(lists, folders, token_scores=token_scores)
    return Rescoring(scores, Weighting(["merged"], np.ones(1), "linear", scales), refs=refs)


def write_lists(
    folder: Path,
    rescoring: Rescoring,
    tally: Optional[ErrorTally],
    *,
    format: str,
    token_scores: bool,
    uncertainty: bool,
) -> None:
    """Write the lists, their new scores and their best hypotheses; count the errors."""
    with contextlib.ExitStack() as stack:
        files = RescoredFiles(folder, token_scores=token_scores, uncertainty=uncertainty)
        stack.enter_context(files)
        add_list = None
        for item in rescoring:
            # of many jobs the last may have no work, and then no lists
            if add_list is None:
                add_list = stack.enter_context(nbest_writer(folder, format=format))
            add_list(item.nbest)
            files.add(item)
            if tally is not None:
                tally.add(item.nbest, item.words)


def describe(weighting: Weighting) -> Dict[str, Any]:
    """Return what `--scales` reads, as yaml has it."""
    scales = {"lmwt": weighting.scales.lmwt, "word_penalty": weighting.scales.word_penalty}
    pairs = zip(weighting.names, weighting.weights.tolist(), strict=True)
    content = {**scales, "combine": weighting.combine, "components": dict(pairs)}
    if any(weighting.fingerprints):
        digests = zip(weighting.names, weighting.fingerprints, strict=True)
        content["fingerprints"] = dict(digests)
    return content


def write_settings(
    folder: Path,
    weighting: Weighting,
    tuned: Optional[Tuned],
    errors: Mapping[str, ErrorCounts],
    tune_ref: Optional[str],
) -> None:
    """Write what `--scales` reads, remarks for people, and the sweep."""
    content = describe(weighting)
    if tuned is not None:
        from espnet_bayeslm.report.sweep import write_sweep  # imports matplotlib

        content["tuned_on"] = tune_ref
        if len(tuned.tried) > 1:
            content["weights"] = content["components"]
        total = max(errors["rescored"].words, 1) if errors else 1
        tried: List[Any] = [
            (dict(zip(weighting.names, w.tolist(), strict=True)), round(100 * fewest / total, 3))
            for w, fewest in tuned.tried
        ]
        write_sweep(folder, tuned.sweep, tuned.scales, errors, tried)
    if errors:
        content["wer"] = {name: round(100 * c.rate, 3) for name, c in errors.items()}
    # by these a later run knows what it may replace
    content["files"] = sorted({*files_in(folder), SCALES})
    text = yaml.safe_dump(content, sort_keys=False)
    (folder / SCALES).write_text(text, encoding="utf-8")


def report(weighting: Weighting, tuned: Optional[Tuned], errors: Mapping[str, ErrorCounts]) -> None:
    """Print what was chosen, and the errors."""
    print(f"LMWT {weighting.scales.lmwt:g}, word penalty {weighting.scales.word_penalty:g}")
    if tuned is not None and len(tuned.tried) > 1:
        pairs = zip(weighting.names, weighting.weights, strict=True)
        print("weights", ", ".join(f"{name} {weight:.3f}" for name, weight in pairs))
    if errors:
        print(ERRORS_HEADER)
        print("\n".join(format_errors(name, counts) for name, counts in errors.items()))


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm rescore`."""
    run_tool(get_parser(), rescore, cmd)


if __name__ == "__main__":
    main()
