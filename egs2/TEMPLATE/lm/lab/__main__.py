"""`python -m lab`: from a plan in yaml to trained LMs, rescored lists, tables and figures."""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path
from typing import Any, Optional, Sequence

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.utils.cli import parse_numbers, run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from lab.plan import Settings, check_parts, read_plan
from lab.run import Choice, Experiment, parse_units

STAGES = """
stages: 1 text, 2 n-gram, token list and statistics, 3 N-best lists, 4 training, 5 interpolation and
perplexity, 6 rescoring, 7 tables and figures, 8 HTML report
"""


def get_parser() -> Any:
    """Parser of `run.sh`."""
    parser = tool_parser("lab", __doc__.partition(": ")[2])
    parser.prog = "run.sh"
    parser.epilog = STAGES
    parser.add_argument("--plan", type=Path, default=Path("conf/plan.yaml"), help="The plan")
    parser.add_argument("--table", help="Of the plan; default: the plan's `table`")
    parser.add_argument("--size", default="small", help="Of the LMs: tiny, small, long or paper")
    parser.add_argument("--seeds", default="1 2", help="Of the trainings")
    parser.add_argument("--stage", type=int, default=1, help="The first")
    parser.add_argument("--stop_stage", type=int, default=8, help="The last")
    parser.add_argument("--ngpu", type=int, default=0, help="GPUs of a training")
    parser.add_argument("--nj", type=int, default=2, help="Trainings, or evaluations, at once")
    parser.add_argument("--lm", default="both", help="lstm, transformer or both")
    parser.add_argument("--only", default="", help="Names of some of the table's lines")
    parser.add_argument("--parts", default="", help="Of a study: '5 10 25 50' %% of the text")
    parser.add_argument("--units", default="", help="Of a study: 'lstm:50,100 transformer:128'")
    parser.add_argument(
        "--join",
        type=int,
        default=0,
        help="LMs that see so many sentences before (in EXPDIR/joinN; perplexities only)",
    )
    parser.add_argument("--lm_args", default="", help="More options of espnet2.bin.lm_train")
    parser.add_argument("--note", default="", help="A sentence for the head of the results")
    parser.add_argument("--data", type=Path, default=Path("data"), help="Folder of text and lists")
    parser.add_argument("--expdir", type=Path, default=Path("exp"), help="Folder of the LMs")
    parser.add_argument("--nbest", default="", help="Lists of another recogniser than db.sh's")
    parser.add_argument("--unit", default="", help="Train the LMs of SEED/VARIANT only (for jobs)")
    return parser


def experiment(
    *,
    plan: Path,
    table: Optional[str],
    size: str,
    seeds: str,
    stage: int,
    stop_stage: int,
    ngpu: int,
    only: str,
    parts: str,
    units: str,
    lm_args: str,
    note: str,
    data: Path,
    expdir: Path,
    unit: str,
    **options: Any,
) -> None:
    """Run stages of a plan; options as `get_parser` explains them.

    Those that are not named here are `Choice`'s.

    Raises:
        InputError: An option, the plan or an input cannot be used, or a job failed.
    """
    content = read_plan(plan)
    table = table or content.table
    lines = content.tables.table(table)
    content.tables.check_size(size)
    lm, nj, join = (options[name] for name in ("lm", "nj", "join"))
    if lm not in ("lstm", "transformer", "both"):
        raise InputError(f"--lm {lm}: expected lstm, transformer or both")
    numbers = parse_numbers("--seeds", seeds)
    if not numbers or nj < 1 or join < 0:
        raise InputError(f"--seeds {seeds!r} --nj {nj} --join {join}: expected numbers")
    if join and "parts" in content.studies.get(table, {}):
        raise InputError(f"--join {join}: not with --table {table}")
    study = content.studies.get(table, {})
    for option, given, key in (("--parts", parts, "parts"), ("--units", units, "units")):
        if given and key not in study:
            raise InputError(
                f"{option} {given}: the table {table} has no study of {key}",
                remedy=f"Give it `studies: {{{table}: {{{key}: ...}}}}` in the plan.",
            )
    exp = expdir / f"join{join}" if join else expdir
    percents = parse_numbers("--parts", parts)
    check_parts(percents)
    settings = Settings(content, table, size, numbers, exp, data)
    choice = Choice(
        only=tuple(only.split()),
        parts=percents,
        units=parse_units(units),
        options=("--ngpu", str(ngpu), *lm_args.split()),
        notes=(note,) if note else (),
        **options,
    )
    for name in choice.only:
        if name not in (known := [line.name for line in lines]):
            raise InputError(f"--only {name}: no line of the table; it has {', '.join(known)}")
    work = Experiment(settings, choice, expdir / "lm_stats", bayeslm.main)
    if unit:
        work.train_unit(unit)
        return
    for number, (what, do) in work.stages.items():
        if stage <= number <= stop_stage:
            logging.info(f"stage {number}: {what}")
            do()


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run stages of a plan."""
    words = tuple(sys.argv[1:] if cmd is None else cmd)
    run_tool(get_parser(), functools.partial(experiment, again=words), words)


if __name__ == "__main__":
    main()
