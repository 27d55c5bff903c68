"""Settings and errors of a rescoring: what scales.yaml holds, and what is printed."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import yaml

from espnet_bayeslm.bin.rescore_options import SCALES
from espnet_bayeslm.evaluation.mapsswe import Mapsswe
from espnet_bayeslm.evaluation.wer import ErrorCounts
from espnet_bayeslm.report.score_results import error_text
from espnet_bayeslm.rescoring.decision import Scales, Weighting
from espnet_bayeslm.rescoring.feature_tuning import TunedWeights
from espnet_bayeslm.rescoring.tally import Calibration, UnknownTally
from espnet_bayeslm.rescoring.tuning import CONTROL, Tuned, held_out_line
from espnet_bayeslm.utils.files import files_in

Errors = Mapping[str, ErrorCounts]
"""Whose errors -> their counts."""


def describe_scales(scales: Scales) -> Dict[str, Any]:
    """Weights of scores and the posterior over a list, as yaml has them."""
    features = dict(scales.features or ())
    found: Dict[str, Any] = {"features": features} if features else {}
    if scales.has_lmwt:
        found.update(lmwt=scales.lmwt, word_penalty=scales.word_penalty)
    if scales.posterior is not None:
        found["posterior"] = dataclasses.asdict(scales.posterior)
    if scales.subtracted:
        found["subtracted"] = {row.name: row.weight for row in scales.subtracted}
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
    others = {row.name: row.fingerprint for row in weighting.scales.subtracted if row.fingerprint}
    if any(weighting.fingerprints) or others:
        digests = zip(weighting.names, weighting.fingerprints, strict=False)
        content["fingerprints"] = {**dict(digests), **others}
    return content


def describe_tuning(tuned: Tuned) -> Dict[str, Any]:
    """Errors of a tuning, as yaml has them."""

    def of(found: TunedWeights) -> Dict[str, Any]:
        held_out = dict(found.held_out)
        return {"kept": found.kept, "errors": dict(found.errors), "held_out_errors": held_out}

    content = {**of(tuned.found), "words": tuned.words}
    if tuned.risk_errors is not None:
        content["errors"]["mbr"] = tuned.risk_errors
    if tuned.control is not None:
        content["without_lm"] = of(tuned.control)
    return content


def write_settings(
    folder: Path,
    weighting: Weighting,
    tuned: Optional[Tuned],
    errors: Errors,
    confidence: Optional[Calibration],
    facts: Mapping[str, Any],
) -> None:
    """Write what `--scales` reads, remarks for people (`facts`, ..), and the sweep."""
    content = {**describe(weighting), **facts}
    if tuned is not None:
        from espnet_bayeslm.report.weight_sweep import write_sweep  # imports matplotlib

        content["tuning"] = describe_tuning(tuned)
        write_sweep(folder, tuned)
    if errors:
        content["wer"] = {name: round(100 * counts.rate, 3) for name, counts in errors.items()}
    if confidence is not None:
        figures = dataclasses.asdict(confidence).items()
        content["confidence"] = {k: round(value, 5) for k, value in figures if value is not None}
    # by these a later run knows what it may replace
    content["files"] = sorted({*files_in(folder), SCALES})
    text = yaml.safe_dump(content, sort_keys=False)
    (folder / SCALES).write_text(text, encoding="utf-8")


def report(
    weighting: Weighting,
    tuned: Optional[Tuned],
    errors: Errors,
    tests: Mapping[str, Mapsswe],
    confidence: Optional[Calibration],
    unknown: UnknownTally,
    *,
    unit: str,
) -> None:
    """Print what was chosen, the errors, and their test against the first pass."""
    print("\n".join(choice_lines(weighting, tuned)))
    if errors:
        print(error_text(errors, unit))
        for name, test in tests.items():
            print(f"{name} - rescored: MAPSSWE z = {test.z:.2f}, p = {test.p:.2g}")
        if weighting.scales.control is not None and CONTROL not in errors:
            logging.warning("%s: the lists lack a score that its scales weigh", CONTROL)
        if errors["rescored"].errors > errors["first pass"].errors:
            logging.warning(
                "rescored is worse than the first pass: %.2f > %.2f %%; does the LM fit?",
                100 * errors["rescored"].rate,
                100 * errors["first pass"].rate,
            )
    if confidence is not None:
        print(f"confidence of {confidence.words} words: {confidence}")
    for line in unknown.lines():
        print(line)


def choice_lines(weighting: Weighting, tuned: Optional[Tuned]) -> List[str]:
    """Chosen scales and weights, and the errors of their tuning; for people."""
    if tuned is None:
        return [str(weighting.scales)]
    if tuned.folds:
        lines = tuned.fold_lines()
    else:
        lines = [str(weighting.scales), held_out_line(tuned.found)]
        if tuned.control is not None:
            lines.append(f"{CONTROL}: {held_out_line(tuned.control)}")
    if tuned.risk_errors is not None:
        counts = f"{tuned.found.errors['tuned']} by max, {tuned.risk_errors} by mbr"
        lines.append(f"errors on the tuning lists: {counts}")
    return lines
