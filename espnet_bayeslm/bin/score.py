"""`bayeslm score`: word error rates with S/D/I, and the oracle of N-best lists."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Dict, Optional, Sequence

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
from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_write


def score(
    *,
    ref: str,
    hyp: Sequence[str],
    nbest: Optional[str],
    nbest_format: str,
    output: Optional[str],
) -> None:
    """Print a table of word errors; options as `get_parser` explains them."""
    refs = read_transcripts(ref)
    errors: Dict[str, ErrorCounts] = {}
    for option in hyp:
        name, separator, path = option.partition("=")
        if not separator or not name or not path or name in errors:
            raise InputError(f"--hyp {option}", remedy="Give NAME=TEXT, each with its own NAME.")
        hyps = read_transcripts(path)
        check_same_utterances(refs, hyps, ref_path=ref, hyp_path=path)
        errors[name] = count_errors(refs, hyps)
    if nbest is not None:
        errors["oracle"] = nbest_oracle(refs, nbest, format=nbest_format, ref=ref)
    if not errors:
        raise InputError("nothing to score", remedy="Give --hyp NAME=TEXT or --nbest DIR.")
    if output is not None:
        with atomic_write(output) as f:
            json.dump({name: as_json(counts) for name, counts in errors.items()}, f, indent=1)
    print(ERRORS_HEADER)
    print("\n".join(format_errors(name, counts) for name, counts in errors.items()))


def nbest_oracle(refs: Dict[str, Words], path: str, *, format: str, ref: str) -> ErrorCounts:
    """Return the errors of the hypotheses with the fewest, one for each utterance."""
    from espnet_bayeslm.rescoring.formats import read_nbest  # imports torch

    lists = {item.utt: [hyp.words for hyp in item.hypotheses] for item in read_nbest(path, format)}
    check_same_utterances(refs, lists, ref_path=ref, hyp_path=path)
    return oracle_errors(refs, lists)


def as_json(counts: ErrorCounts) -> Dict[str, float]:
    """Return the counts and the rate in percent."""
    return {**dataclasses.asdict(counts), "errors": counts.errors, "wer": 100 * counts.rate}


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of `bayeslm score`."""
    parser = tool_parser("score", "Word error rates; unit costs for S, D and I")
    parser.add_argument("--ref", required=True, help="References, a Kaldi `text` or a trn")
    parser.add_argument(
        "--hyp", action="append", default=[], help="NAME=TEXT, a Kaldi `text` or a trn (repeatable)"
    )
    parser.add_argument("--nbest", default=None, help="N-best lists for the oracle")
    parser.add_argument("--nbest_format", default="kaldi", help="Their format")
    parser.add_argument("--output", default=None, help="Write the counts here, as JSON")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm score`."""
    run_tool(get_parser(), score, cmd)


if __name__ == "__main__":
    main()
