"""`bayeslm rescore`: N-best lists in, LM scores and a new 1-best out."""

from __future__ import annotations

import hashlib
import itertools
import logging
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import yaml

from espnet_bayeslm.bin.components import load_components, read_weights
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
from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.rescoring.combination import check_combination
from espnet_bayeslm.rescoring.components import Component
from espnet_bayeslm.rescoring.decision import Scales
from espnet_bayeslm.rescoring.output_files import (
    JOB,
    RescoredFiles,
    check_jobs,
    merged_lists,
    write_job,
)
from espnet_bayeslm.rescoring.pipeline import (
    Mixture,
    make_scorer,
    prepared,
    rescored,
    score_blocks,
    uncertain_scorer,
    with_uncertainty,
)
from espnet_bayeslm.rescoring.recordings import blocks, by_recording, of_job, read_segments
from espnet_bayeslm.rescoring.tuning import ErrorTally, Tuned, tune_mixture
from espnet_bayeslm.utils.cli import run_tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import files_in, staged


def rescore(
    *,
    nbest: str,
    nbest_format: str,
    output: str,
    weights: Optional[str],
    combine: str,
    tune_ref: Optional[str],
    tune_weights: bool,
    scales: Optional[str],
    lmwt: Optional[float],
    word_penalty: Optional[float],
    ref: Optional[str],
    token_scores: bool,
    segments: Optional[str],
    context: str,
    uncertainty: bool,
    job: int,
    num_jobs: int,
    merge: Sequence[str],
    max_oov_rate: float,
    lm: Sequence[str],
    ngram: Sequence[str],
    **options: Any,
) -> None:
    """Rescore N-best lists; options as `get_parser` explains them."""
    # 1. Whatever can be wrong is found before the long work
    replaces = check_output(output, nbest)
    check_work(
        tune_ref=tune_ref,
        tune_weights=tune_weights,
        num_jobs=num_jobs,
        merge=merge,
        job=job,
        context=context,
        segments=segments,
        uncertainty=uncertainty,
        num_samples=options["num_samples"],
    )
    fixed = fixed_scales(tune_ref, scales, lmwt=lmwt, word_penalty=word_penalty)
    tally = read_tally(ref or tune_ref)
    digest = check_lists(nbest, nbest_format, tally)
    # 2. The LMs' scores, word by word: a stream of lists
    if merge:
        folders = [Path(folder) for folder in merge]
        check_jobs(folders, digest=digest)
        mixture = Mixture(["merged"], np.ones(1), "linear", fixed)
        lists = merged_lists(read_nbest(nbest, nbest_format), folders, token_scores=token_scores)
    else:
        components = load_components(lm, ngram, **options)
        mixture = read_mixture(components, weights, combine, fixed)
        recordings = by_recording(
            read_nbest(nbest, nbest_format),
            None if segments is None else read_segments(segments),
            path=segments or "",
        )
        scorer = make_scorer(components, mixture, context, max_oov_rate)
        every = blocks(recordings)
        if options["self_normalized"]:
            every = prepared(every, components)
        work = of_job(every, job=job, num_jobs=num_jobs)
        lists = score_blocks(scorer, work)
        if uncertainty:
            lists = with_uncertainty(lists, uncertain_scorer(components))
    # 3. The best scales and weights need all lists
    tuned = None
    if tune_ref is not None:
        known = list(lists)
        tuned = tune_mixture(
            known,
            read_transcripts(tune_ref),
            mixture.weights,
            combine=combine,
            tune_weights=tune_weights,
        )
        mixture = mixture._replace(weights=tuned.weights, scales=tuned.scales)
        lists = iter(known)
    # 4. Write the lists as they come, and report
    with staged(output, replaces=replaces, last=(SCALES, JOB)) as folder:
        wanted = {"token_scores": token_scores, "uncertainty": uncertainty}
        with RescoredFiles(folder, **wanted) as files:
            stream = rescored(lists, mixture, files, tally)
            first = next(stream, None)
            # of many jobs the last may have no work
            if first is not None:
                write_nbest(itertools.chain([first], stream), folder, format=nbest_format)
        errors = {} if tally is None else tally.errors
        write_settings(folder, mixture, tuned, errors, tune_ref)
        if num_jobs > 1:
            work_of = {"job": job, "num_jobs": num_jobs, "lists": digest}
            write_job(folder, **work_of, settings=describe(mixture))
    report(mixture, tuned, errors)


def read_tally(ref: Optional[str]) -> Optional[ErrorTally]:
    """Return what counts the errors, where there are references."""
    return None if ref is None else ErrorTally(read_transcripts(ref), ref)


def check_lists(nbest: str, nbest_format: str, tally: Optional[ErrorTally]) -> str:
    """Read all lists once: what is wrong with them must not come to light after hours.

    Returns:
        What tells their words from those of other lists.

    Raises:
        InputError: They cannot be used, or other utterances have references.
    """
    utts: Dict[str, None] = {}
    digest = hashlib.sha256()
    for item in read_nbest(nbest, nbest_format):
        utts[item.utt] = None
        digest.update(repr((item.utt, [hyp.words for hyp in item.hypotheses])).encode())
    logging.info("read %d N-best lists from %s", len(utts), nbest)
    if tally is not None:
        tally.check(utts, nbest)
    return digest.hexdigest()


def read_mixture(
    components: Sequence[Component], weights: Optional[str], combine: str, scales: Scales
) -> Mixture:
    """Return the weights of the options, or those that were tuned with the scales.

    Raises:
        InputError: Several components have no weights, or the weights do not fit.
    """
    names = [component.name for component in components]
    if weights is None and scales.weights is not None:
        known = dict(scales.weights)
        if set(known) != set(names):
            raise InputError(
                f"--scales has weights for {', '.join(known)}, the components are"
                f" {', '.join(names)}",
                remedy="Give the same --lm and --ngram as where they were tuned.",
            )
        values: Any = [known[name] for name in names]
    else:
        values = read_weights(weights, components, check=combine == "linear")
    if values is None:
        raise InputError(
            f"{len(components)} components and no --weights",
            remedy="Estimate them with `bayeslm interpolate`.",
        )
    return Mixture(names, check_combination(combine, values, len(names)), combine, scales)


def describe(mixture: Mixture) -> Dict[str, Any]:
    """Return what `--scales` reads, as yaml has it."""
    scales = {"lmwt": mixture.scales.lmwt, "word_penalty": mixture.scales.word_penalty}
    pairs = zip(mixture.names, mixture.weights.tolist(), strict=True)
    return {**scales, "combine": mixture.combine, "components": dict(pairs)}


def write_settings(
    folder: Path,
    mixture: Mixture,
    tuned: Optional[Tuned],
    errors: Mapping[str, ErrorCounts],
    tune_ref: Optional[str],
) -> None:
    """Write what `--scales` reads, remarks for people, and the sweep."""
    content = describe(mixture)
    if tuned is not None:
        from espnet_bayeslm.report.sweep import write_sweep  # imports matplotlib

        content["tuned_on"] = tune_ref
        if len(tuned.tried) > 1:
            content["weights"] = content["components"]
        total = max(errors["rescored"].words, 1) if errors else 1
        tried: List[Any] = [
            (dict(zip(mixture.names, w.tolist(), strict=True)), round(100 * fewest / total, 3))
            for w, fewest in tuned.tried
        ]
        write_sweep(folder, tuned.sweep, tuned.scales, errors, tried)
    if errors:
        content["wer"] = {name: round(100 * c.rate, 3) for name, c in errors.items()}
    # by these a later run knows what it may replace
    content["files"] = sorted({*files_in(folder), SCALES})
    text = yaml.safe_dump(content, sort_keys=False)
    (folder / SCALES).write_text(text, encoding="utf-8")


def report(mixture: Mixture, tuned: Optional[Tuned], errors: Mapping[str, ErrorCounts]) -> None:
    """Print what was chosen, and the errors."""
    print(f"LMWT {mixture.scales.lmwt:g}, word penalty {mixture.scales.word_penalty:g}")
    if tuned is not None and len(tuned.tried) > 1:
        pairs = zip(mixture.names, mixture.weights, strict=True)
        print("weights", ", ".join(f"{name} {weight:.3f}" for name, weight in pairs))
    if errors:
        print(ERRORS_HEADER)
        print("\n".join(format_errors(name, counts) for name, counts in errors.items()))


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm rescore`."""
    run_tool(get_parser(), rescore, cmd)


if __name__ == "__main__":
    main()
