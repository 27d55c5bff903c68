"""`bayeslm rescore`: N-best lists in, LM scores and a new 1-best out."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np
import yaml

import espnet_bayeslm
from espnet_bayeslm.bin.rescore_options import (
    NO_LMWT,
    SCALES,
    check_output,
    check_tuning,
    check_work,
    fixed_scales,
    get_parser,
)
from espnet_bayeslm.evaluation.counting import Counting, warn_without_blanks
from espnet_bayeslm.evaluation.mapsswe import Mapsswe
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import (
    ErrorCounts,
    check_same_utterances,
    errors_header,
    format_errors,
    read_transcripts,
)
from espnet_bayeslm.nbest.formats import CheckedLists, nbest_writer, written_format
from espnet_bayeslm.nbest.normalized_lists import restored
from espnet_bayeslm.rescoring.decision import Scales, Weighting
from espnet_bayeslm.rescoring.output_files import (
    JOB,
    RescoredFiles,
    check_jobs,
    merged_lists,
    write_job,
)
from espnet_bayeslm.rescoring.pipeline import Rescoring, recordings_of
from espnet_bayeslm.rescoring.tally import ConfidenceTally, ErrorTally, UnknownTally
from espnet_bayeslm.rescoring.tuning import CONTROL, Tuned, Tuning
from espnet_bayeslm.utils.cli import device_of, run_tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import files_in, staged

# Part of the lists ("" for all) -> whose errors -> their counts
Parts = Mapping[str, Mapping[str, ErrorCounts]]


def rescore(
    *,
    nbest: str,
    nbest_format: Optional[str],
    nbest_size: int,
    normalize: str,
    unit: str,
    ignore_words: Optional[str],
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
    counting = Counting.of(unit, ignore_words)
    normalization = Normalization(normalize, kept=counting.ignored)
    lists = CheckedLists(nbest, nbest_format, size=nbest_size, normalization=normalization)
    logging.info("read %d N-best lists (%s) from %s", len(lists.utts), lists.format, nbest)
    if (written := written_format(lists.format)) != lists.format:
        logging.info("lists of the format %s are written as %s", lists.format, written)
    may_tune = fixed is None and options["num_jobs"] == 1
    refs = read_references(tune_ref, lists) if may_tune else None
    if lists.scales:
        fixed = lattice_scales(
            lists, fixed, lmwt=lmwt, penalty=word_penalty, tuned=refs is not None
        )
    scored = read_references(ref or tune_ref, lists)
    warn_without_blanks(scored or {}, counting)
    tally = None if scored is None else ErrorTally(scored, counting)
    if refs is None:
        check_tuning(**options)
        if fixed is None:
            logging.warning("scales are not tuned, and none are given: the defaults are used")
    elif tune_ref is None:
        logging.info("the weights of the scores are tuned on the lists' own references")
    # 2. Scores and choices, a stream of lists
    if merge:
        rescoring = of_jobs(
            lists, merge, fixed, counting, token_scores=token_scores, refs=refs, **options
        )
    else:
        rescoring = espnet_bayeslm.rescore(
            lists,
            lms=lm,
            ngrams=ngram,
            scales=fixed,
            tune=refs is not None,
            refs=refs,
            unit=unit,
            ignore_words=counting.ignored,
            device=device_of(ngpu),
            **options,
        )
    # 3. Write them as they come, and report
    unknown = UnknownTally(rescoring.weighting.names, counting)
    sure = None if tally is None else ConfidenceTally(tally.refs)
    with staged(output, replaces=replaces, last=(SCALES, JOB)) as folder:
        files = RescoredFiles(
            folder,
            token_scores=token_scores,
            uncertainty=options["uncertainty"],
            confidence=rescoring.weighting.sure,
            control=rescoring.weighting.scales.control is not None,
        )
        write_lists(folder, files, rescoring, tally, unknown, sure, format=written)
        parts = {} if tally is None else tally.parts()
        confidences = {} if sure is None else sure.parts()
        facts: Dict[str, Any] = dict(counting.facts())
        if rescoring.tuned is not None:
            facts["tuned_on"] = tune_ref or nbest
        if normalization:
            facts["normalize"] = ",".join(normalization.steps)
        write_settings(folder, rescoring.weighting, rescoring.tuned, parts, confidences, facts)
        if options["num_jobs"] > 1:
            work_of = {"job": options["job"], "num_jobs": options["num_jobs"]}
            settings = describe(rescoring.weighting)
            write_job(folder, **work_of, lists=lists.digest, settings=settings)
    tests = {} if tally is None else tally.tests()
    report(rescoring.weighting, rescoring.tuned, parts, tests, confidences, unknown, unit=unit)


def lattice_scales(
    lists: CheckedLists,
    given: Optional[Scales],
    *,
    lmwt: Optional[float],
    penalty: Optional[float],
    tuned: bool,
) -> Optional[Scales]:
    """Scales of lattices: those that are given, else those that come with the lattices.

    Args:
        lists: The N best of the lattices.
        given: The scales that options give.
        lmwt: The option.
        penalty: The option.
        tuned: True if scales are to be tuned.

    Returns:
        None where they are tuned.

    Raises:
        InputError: A penalty is given without an LMWT, or lattices have different scales.
    """
    if penalty is not None and lmwt is None:
        raise InputError(NO_LMWT, remedy="Give both.")
    if given is not None or tuned:
        return given
    found = {Scales.of_lattice(*key): utt for key, utt in lists.scales.items()}
    if len(found) > 1:
        (first, utt), (second, other) = list(found.items())[:2]
        raise InputError(
            f"lattices with different scales: {utt[:80]!r} has {first}, {other[:80]!r} {second}",
            path=lists.path,
            remedy="Give --lmwt, --scales or --tune_ref.",
        )
    return next(iter(found))


def read_references(
    path: Optional[str], lists: CheckedLists
) -> Optional[Mapping[str, Sequence[str]]]:
    """References of a file, or the lists' own; None where there are none.

    Raises:
        InputError: They are those of other lists, or of some lists only.
    """
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


def of_jobs(
    lists: CheckedLists,
    merge: Sequence[str],
    scales: Optional[Scales],
    counting: Counting,
    *,
    token_scores: bool,
    refs: Optional[Mapping[str, Sequence[str]]],
    segments: Optional[str],
    tune_folds: int,
    split: Optional[float],
    folds: Optional[int],
    decision: Optional[str],
    confidence: bool,
    **_: Any,
) -> Rescoring:
    """The rescored lists of jobs, put together.

    Raises:
        InputError: They are not all jobs of one rescoring of these lists.
    """
    folders = [Path(folder) for folder in merge]
    check_jobs(folders, digest=lists.digest)
    scores = merged_lists(lists, folders, token_scores=token_scores)
    weighting = Weighting(["merged"], np.ones(1), "linear", scales or Scales())
    return Rescoring(
        scores,
        weighting._replace(confidence=confidence).deciding(decision),
        refs=refs,
        tuning=Tuning(tune_folds, counting=counting),
        groups=recordings_of(segments),
        split=split,
        folds=folds,
    )


def write_lists(
    folder: Path,
    files: RescoredFiles,
    rescoring: Rescoring,
    tally: Optional[ErrorTally],
    unknown: UnknownTally,
    sure: Optional[ConfidenceTally],
    *,
    format: str,
) -> None:
    """Write the lists, their new scores and their best hypotheses; count the errors."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(files)
        add_list = None
        for item in rescoring:
            # of many jobs the last may have no work, and then no lists
            if add_list is None:
                add_list = stack.enter_context(nbest_writer(folder, format=format))
            add_list(restored(item.nbest))
            files.add(item)
            unknown.add(item)
            if tally is not None and sure is not None:
                tally.add(item)
                sure.add(item)


def describe_scales(scales: Scales) -> Dict[str, Any]:
    """Weights of scores and the posterior over a list, as yaml has them."""
    features = dict(scales.features or ())
    found: Dict[str, Any] = {"features": features} if features else {}
    if scales.has_lmwt:
        found.update(lmwt=scales.lmwt, word_penalty=scales.word_penalty)
    if scales.posterior is not None:
        found["posterior"] = dataclasses.asdict(scales.posterior)
    return found


def describe(weighting: Weighting) -> Dict[str, Any]:
    """Content of `--scales`' file, as yaml has it."""
    found = describe_scales(weighting.scales)
    if weighting.scales.control is not None:
        found["control"] = describe_scales(weighting.scales.control)
    pairs = zip(weighting.names, weighting.weights.tolist(), strict=True)
    content = {**found, "combine": weighting.combine, "components": dict(pairs)}
    if weighting.decision != "max":
        content["decision"] = weighting.decision
    if any(weighting.fingerprints):
        digests = zip(weighting.names, weighting.fingerprints, strict=True)
        content["fingerprints"] = dict(digests)
    return content


def write_settings(
    folder: Path,
    weighting: Weighting,
    tuned: Optional[Tuned],
    parts: Parts,
    confidences: Mapping[str, Mapping[str, float]],
    facts: Mapping[str, Any],
) -> None:
    """Write what `--scales` reads, remarks for people (`facts`, ..), and the sweep."""
    content = {**describe(weighting), **facts}
    if tuned is not None:
        from espnet_bayeslm.report.html_sweep import write_sweep  # imports matplotlib

        if tuned.tried:
            content["weights"] = content["components"]
        content["tuning"] = {
            "kept": tuned.found.kept,
            "words": tuned.words,
            "errors": dict(tuned.found.errors),
            "held_out_errors": dict(tuned.found.held_out),
        }
        if tuned.risk_errors is not None:
            content["tuning"]["errors"]["mbr"] = tuned.risk_errors
        if tuned.control is not None:
            content["tuning"]["without_lm"] = {
                "kept": tuned.control.kept,
                "errors": dict(tuned.control.errors),
                "held_out_errors": dict(tuned.control.held_out),
            }
        write_sweep(folder, tuned, names=weighting.names)
    if parts:
        wer = {
            part: {name: round(100 * c.rate, 3) for name, c in errors.items()}
            for part, errors in parts.items()
        }
        content["wer"] = wer.pop(list(parts)[-1])
        content.update({f"wer_of_{part}": rates for part, rates in wer.items()})
    for part, measures in confidences.items():
        name = "confidence" + (f"_of_{part}" if part == "tuning" else "")
        content[name] = {key: round(value, 5) for key, value in measures.items()}
    # by these a later run knows what it may replace
    content["files"] = sorted({*files_in(folder), SCALES})
    text = yaml.safe_dump(content, sort_keys=False)
    (folder / SCALES).write_text(text, encoding="utf-8")


def report(
    weighting: Weighting,
    tuned: Optional[Tuned],
    parts: Parts,
    tests: Mapping[str, Mapping[str, Mapsswe]],
    confidences: Mapping[str, Mapping[str, float]],
    unknown: UnknownTally,
    *,
    unit: str,
) -> None:
    """Print what was chosen, the errors, and their test against the first pass."""
    if tuned is not None and tuned.folds:
        print("\n".join(tuned.fold_lines()))
    else:
        print(weighting.scales)
    if tuned is not None:
        if not tuned.folds:
            print(tuned.held_out())
            if tuned.control is not None:
                print(f"{CONTROL}: {tuned.held_out_control()}")
        if tuned.risk_errors is not None:
            counts = f"{tuned.found.errors['tuned']} by max, {tuned.risk_errors} by mbr"
            print(f"errors on the tuning lists: {counts}")
        if tuned.tried:
            pairs = zip(weighting.names, weighting.weights, strict=True)
            print("weights", ", ".join(f"{name} {weight:.3f}" for name, weight in pairs))
    for part, errors in parts.items():
        print(f"{part:<24}{errors_header(unit)[24:]}")
        print("\n".join(format_errors(name, counts) for name, counts in errors.items()))
        for name, test in tests.get(part, {}).items():
            print(f"{name} - rescored: MAPSSWE z = {test.z:.2f}, p = {test.p:.2g}")
        if weighting.scales.control is not None and CONTROL not in errors:
            logging.warning("%s: the lists lack a score that its scales weigh", CONTROL)
        if errors["rescored"].errors > errors["first pass"].errors:
            logging.warning(
                "%srescored is worse than the first pass: %.2f > %.2f %%; does the LM fit?",
                f"{part}: " if part else "",
                100 * errors["rescored"].rate,
                100 * errors["first pass"].rate,
            )
    for part, measures in confidences.items():
        title = f"confidence of {measures['words']:g} words{part and ' of ' + part}"
        print(f"{title}: {before_and_after(measures)}")
    for line in unknown.lines():
        print(line)


def before_and_after(measures: Mapping[str, float]) -> str:
    """How calibration has changed confidences, in words."""
    kinds = (("ece", "calibration error"), ("auroc", "AUROC"))
    pairs = [
        (label, measures[f"{kind}_of_posterior"], measures[f"{kind}_of_confidence"])
        for kind, label in kinds
        if f"{kind}_of_posterior" in measures
    ]
    return ", ".join(f"{label} {before:.4f} -> {after:.4f}" for label, before, after in pairs)


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm rescore`."""
    run_tool(get_parser(), rescore, cmd, signed="output")


if __name__ == "__main__":
    main()
