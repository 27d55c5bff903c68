"""A folder with a plan of one table of a few lines."""

from pathlib import Path

import pytest
import yaml
from written_files import write

from lab.plan import Settings, read_plan

PLAN = """
sets: {dev: dev, test: eval}
paper: ami
studies:
    data_size: {parts: [5, 25]}
    model_size: {units: {lstm: [100]}}
tables:
    some:
        1: {lm: lstm, kind: point, ppl: 60.4/59.6, wer: 24.7/27.3}
        2: {lm: lstm, kind: map, ppl: 52.5/53.7, wer: 24.5/27.0}
        3: {lm: lstm, kind: bayes, where: cell_input@1-2, ppl: 46.0/47.1, wer: 24.2/26.7,
            mixed_ppl: 47.1/47.3, mixed_wer: 24.1/26.6}
        4: {lm: lstm, kind: bayes, where: nas, nas: 1}
        5: {lm: transformer, kind: point, ppl: 46.9/48.4, wer: 24.5/27.0}
        6: {lm: transformer, kind: variational, where: hidden_output@1}
        7: {kind: mix, where: point_lstm + point_transformer, ppl: 54.8/55.1, wer: 24.2/26.8}
"""


@pytest.fixture
def plan(monkeypatch, tmp_path):
    """Return a function that changes the plan of the working folder: {key: value}, {line: row}."""
    path = write(tmp_path / "conf" / "plan.yaml", PLAN)
    monkeypatch.chdir(tmp_path)

    def change(lines=None, **changes):
        content = yaml.safe_load(path.read_text())
        content["tables"]["some"].update(lines or {})
        path.write_text(yaml.safe_dump({**content, **changes}))

    return change


@pytest.fixture
def settings(plan):
    """Return a function: table -> its settings in the working folder."""

    def make(table):
        lines = yaml.safe_load(Path("conf/plan.yaml").read_text())["tables"]["some"]
        plan(tables={"some": lines, table: lines})
        return Settings(
            read_plan(Path("conf/plan.yaml")), table, "small", (1, 2), Path("exp"), Path("data")
        )

    return make
