"""`python -m lab`: from a plan in yaml to trained LMs, rescored lists, tables and figures."""

from __future__ import annotations

import argparse
import functools
import logging
import sys
from pathlib import Path
from typing import Any, Optional, Sequence

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.utils.cli import Tool, parse_numbers
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import add_options, described_fields
from lab.plan import TRAIN, Settings, check_parts, read_plan
from lab.run import Choice, Experiment

STAGES = """
stages: 1 text, 2 n-gram, token list and statistics, 3 N-best lists, 4 training, 5 interpolation and
perplexity, 6 rescoring, 7 tables and figures, 8 HTML report
"""


def get_parser(tool: Tool) -> argparse.ArgumentParser:
    """Parser of `run.sh`."""
    parser = tool.parser()
    parser.prog = "run.sh"
    parser.add_argument("--plan", type=Path, default=Path("conf/plan.yaml"), help="The plan")
    parser.add_argument("--table", help="Of the plan; default: the plan's `table`")
    parser.add_argument("--size", default="small", help="Of the LMs: tiny, small, long or paper")
    parser.add_argument("--seeds", default="1 2", help="Of the trainings")
    parser.add_argument("--stage", type=int, default=1, help="The first")
    parser.add_argument("--stop_stage", type=int, default=8, help="The last")
    parser.add_argument("--ngpu", type=int, default=0, help="GPUs of a training")
    parser.add_argument(
        "--lm", default="both", choices=("lstm", "transformer", "both"), help="Backbone of the LMs"
    )
    parser.add_argument("--only", default="", help="Names of some of the table's lines")
    parser.add_argument("--parts", default="", help="Of a study: '5 10 25 50' %% of the text")
    parser.add_argument("--lm_args", default="", help="More options of espnet2.bin.lm_train")
    parser.add_argument("--note", default="", help="A sentence for the head of the results")
    parser.add_argument("--data", type=Path, default=Path("data"), help="Folder of text and lists")
    parser.add_argument("--expdir", type=Path, default=Path("exp"), help="Folder of the LMs")
    parser.add_argument("--unit", default="", help="Train the LMs of SEED/VARIANT only (for jobs)")
    return add_options(parser, EngineOptions)


def experiment(**options: Any) -> None:
    """Run stages of a plan; `get_parser` explains the options."""
    args = argparse.Namespace(**options)
    settings = _settings(args)
    choice, stats = _choice(args, settings), args.expdir / "lm_stats"
    work = Experiment(settings, choice, stats, run=bayeslm.main, run_lab=main)
    if args.unit:
        work.train_unit(args.unit)
        return
    work.choice.engine.pool(trains=True)  # refuses options that cannot be used
    for number, (what, do) in work.stages.items():
        if args.stage <= number <= args.stop_stage:
            logging.info(f"stage {number}: {what}")
            do()


def _settings(args: argparse.Namespace) -> Settings:
    """Table, size, seeds and folders of the options."""
    plan = read_plan(args.plan)
    table = args.table or plan.table
    plan.tables.table(table)
    plan.tables.check_size(args.size)
    seeds = parse_numbers("--seeds", args.seeds)
    return Settings(plan, table, args.size, seeds, args.expdir, args.data)


def _choice(args: argparse.Namespace, settings: Settings) -> Choice:
    """Part of the table's work that the options ask for."""
    parts = parse_numbers("--parts", args.parts) if args.parts.strip() else ()
    check_parts(parts)
    if parts and settings.study != TRAIN:
        raise InputError(
            f"--parts {args.parts}: the table {settings.table} has no study of parts",
            remedy=f"Give it `studies: {{{settings.table}: {{parts: ...}}}}` in the plan.",
        )
    names = [line.name for line in settings.lines]
    only = tuple(args.only.split())
    for name in only:
        if name not in names:
            raise InputError(f"--only {name}: no line of the table; it has {', '.join(names)}")
    options = ("--ngpu", str(args.ngpu), *args.lm_args.split())
    own = described_fields(EngineOptions)
    engine = EngineOptions(**{name: getattr(args, name) for name in own})
    return Choice(args.lm, only, parts, options, engine, args.note, args.again)


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run stages of a plan."""
    words = tuple(sys.argv[1:] if cmd is None else cmd)
    run = functools.partial(experiment, again=words)
    tool = Tool("lab", __doc__.partition(": ")[2], run, epilog=STAGES)
    tool.main(words, get_parser(tool))
