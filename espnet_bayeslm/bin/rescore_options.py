"""Options of `bayeslm rescore`, and what is checked before the long work."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, List, Optional, Sequence

import yaml
from espnet2.utils.types import float_or_none, int_or_none

from espnet_bayeslm.bin.lm_options import (
    FORMAT_HELP,
    add_component_options,
    add_counting_options,
    add_normalize_option,
)
from espnet_bayeslm.nbest.formats import NBEST_SIZE
from espnet_bayeslm.rescoring.bayes_risk import DECISIONS
from espnet_bayeslm.rescoring.decision import COMBINATIONS, Scales, read_scales
from espnet_bayeslm.rescoring.feature_tuning import NUM_FOLDS
from espnet_bayeslm.scoring.limits import MAX_CONTEXT
from espnet_bayeslm.utils.cli import add_flag, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import check_folder, check_outside, entries

SCALES = "scales.yaml"
NO_LMWT = "--word_penalty without --lmwt, and lattices have scales of their own"


def check_output(output: str, nbest: str) -> List[str]:
    """Check that the output folder can be written.

    Returns:
        The files in it that an earlier run has written.

    Raises:
        InputError: It holds something else than an earlier output, or cannot be written.
    """
    folder = Path(output)
    there = entries(folder) if folder.is_dir() else []
    # a run that was killed while its files came into place has left a folder within
    ours = SCALES in there or (folder.is_dir() and len(os.listdir(folder)) > len(there))
    if ours:
        check_outside(output, {"--nbest": nbest})
    if (folder.exists() and not folder.is_dir()) or (there and not ours):
        raise InputError(
            "is there, and is not the output of an earlier `bayeslm rescore`",
            path=output,
            remedy="Give --output a new folder.",
        )
    check_folder(folder)
    return _files_of(folder / SCALES)


def _files_of(scales: Path) -> List[str]:
    """Files that scales.yaml says were written with it."""
    try:
        files = yaml.safe_load(scales.read_text(encoding="utf-8"))["files"]
        return [str(name) for name in files]
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError):
        return []


def fixed_scales(
    tune_ref: Optional[str],
    scales: Optional[str],
    *,
    lmwt: Optional[float],
    word_penalty: Optional[float],
) -> Optional[Scales]:
    """Scales that the options give; None: they give none.

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
    if lmwt is None and word_penalty is None:
        return None
    default = Scales()
    return Scales(
        default.lmwt if lmwt is None else lmwt,
        default.word_penalty if word_penalty is None else word_penalty,
    )


def check_work(
    *,
    tune_ref: Optional[str],
    tune_weights: bool,
    num_jobs: int,
    merge: Sequence[str],
    job: int,
    context: str,
    segments: Optional[str],
    uncertainty: bool,
    num_samples: int,
    tune_lms: bool,
    split: Optional[float],
    folds: Optional[int],
    tune_folds: int,
    **_: Any,
) -> None:
    """Raise an InputError where options ask for what cannot be done together."""
    if num_jobs > 1 and tune_ref is not None:
        raise InputError(
            f"--tune_ref with --num_jobs {num_jobs}: a job has a part of the lists only",
            remedy="Give --tune_ref where the jobs are merged.",
        )
    if merge and (num_jobs, job) != (1, 1):
        raise InputError("--merge with --job or --num_jobs", remedy="Merge all jobs at once.")
    if context != "none" and segments is None and not merge:
        raise InputError(
            f"--context {context} needs to know the recordings",
            remedy="Give --segments FILE, Kaldi's `segments` or utt2start.",
        )
    if uncertainty and (num_samples < 2 or merge):
        raise InputError(
            f"--uncertainty needs several weight draws, --num_samples is {num_samples}",
            remedy="Give --num_samples 10, say, and no --merge.",
        )
    if (tune_weights or tune_lms) and merge:
        raise InputError(
            "--tune_weights and --tune_lms need the scores of each LM",
            remedy="Tune in one job, without --merge.",
        )
    if split is not None and folds is not None:
        raise InputError("--split and --folds", remedy="Give one of them.")
    if split is not None and not 0 < split < 1:
        raise InputError(f"--split {split:g}: expected a share between 0 and 1")
    if min(tune_folds, 2 if folds is None else folds) < 2:
        raise InputError(f"--tune_folds {tune_folds}, --folds {folds}: expected 2 or more")


def check_tuning(*, split: Optional[float], folds: Optional[int], **options: Any) -> None:
    """Raise an InputError where options ask for tuning, and there is none."""
    asked = {"--split": split, "--folds": folds}
    asked.update({f"--{name}": options[name] or None for name in ("tune_weights", "tune_lms")})
    named = [name for name, value in asked.items() if value is not None]
    if named:
        raise InputError(
            f"{named[0]} needs references to tune on, and no other scales",
            remedy="Give --tune_ref, or lists that hold references (jsonl's `ref`).",
        )


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm rescore`."""
    parser = tool_parser(
        "rescore",
        "Rescores N-best lists: am_score / LMWT + graph_score + ln P_LM - word_penalty * words,"
        " or a tuned sum of features, is maximised. --output holds the lists (Kaldi's as archives,"
        " all others as nbest.jsonl), lmwt.nn (-ln P_LM), the new best as text and trn, and"
        " scales.yaml.",
    )
    parser.add_argument("--nbest", required=True, help="The N-best lists")
    parser.add_argument("--nbest_format", help=FORMAT_HELP)
    parser.add_argument(
        "--nbest_size",
        type=int,
        default=NBEST_SIZE,
        help="Hypotheses taken of each lattice, at most",
    )
    add_normalize_option(parser, "hypotheses and references")
    add_counting_options(parser)
    parser.add_argument("--output", required=True, help="The folder to write")
    add_component_options(parser)
    parser.add_argument(
        "--combine",
        choices=COMBINATIONS,
        help="linear: p = sum w p, word by word; loglinear: ln P = sum w ln P, as Kaldi (default:"
        " as --scales were tuned, or linear)",
    )
    parser.add_argument(
        "--tune_ref",
        help="Tune the weights of the scores on these references (default: the lists' own, where"
        " no scales are given)",
    )
    add_flag(parser, "--tune_lms", "Give each LM a weight of its own beside the mixture's")
    parser.add_argument(
        "--tune_folds",
        type=int,
        default=NUM_FOLDS,
        help="Folds of the cross-validation that chooses among the lists as they came, a few"
        " features, and all",
    )
    parser.add_argument(
        "--split",
        type=float_or_none,
        help="Tune on this share of the lists, and test on the others; recordings (--segments)"
        " or speakers stay whole",
    )
    parser.add_argument(
        "--folds",
        type=int_or_none,
        help="Rescore each of so many parts with weights that were tuned on the others",
    )
    what = "Tune the share of the first LM too, the others in proportion"
    add_flag(parser, "--tune_weights", what)
    parser.add_argument(
        "--scales", help="scales.yaml of a tuned run, with its weights where those were tuned"
    )
    parser.add_argument(
        "--lmwt",
        type=float_or_none,
        help="LMWT (default: 10; of lattices: the scales that come with them)",
    )
    parser.add_argument("--word_penalty", type=float_or_none, help="Cost per word (default: 0)")
    parser.add_argument(
        "--ref", help="References, a Kaldi `text` or a trn (default: --tune_ref, or the lists' own)"
    )
    parser.add_argument(
        "--decision",
        choices=DECISIONS,
        help="max: the highest total; mbr: the fewest expected word errors under the posterior over"
        " the list (default: as --scales were tuned, or max)",
    )
    flags = {
        "--confidence": "Write a confidence of each word of the new best (confidence.ndjson);"
        " --decision mbr does so always",
        "--token_scores": "Write the costs of the words too (lmwt.nn.words, </s> last)",
        "--self_normalized": "Take the mean ln Z for every context's: no softmax (LMs with"
        " self_normalization)",
        "--uncertainty": "Write how uncertain the first uncertain LM is of each word"
        " (uncertainty.ndjson)",
    }
    for name, what in flags.items():
        add_flag(parser, name, what)
    parser.add_argument(
        "--segments", help="Kaldi's `segments`, or utt2start: lists of a recording stay in one job"
    )
    parser.add_argument(
        "--context",
        default="none",
        choices=("none", "previous"),
        help="previous: an LM goes on from the best hypotheses so far of a recording",
    )
    parser.add_argument(
        "--max_context",
        type=int,
        default=MAX_CONTEXT,
        help="Tokens before an utterance that a Transformer reads again with --context previous",
    )
    parser.add_argument("--job", type=int, default=1, help="Rescore this part, from 1")
    parser.add_argument("--num_jobs", type=int, default=1, help="of so many")
    parser.add_argument(
        "--merge",
        action="append",
        default=[],
        help="Instead of scoring, join the output of this job (repeatable, all of them)",
    )
    return parser
