"""Which system is used, by errors of lists that were held out, and what the table says of it."""

import pytest
import yaml

from espnet_bayeslm.evaluation.comparison import Mapsswe, Scores, SystemPair, WerDifference
from espnet_bayeslm.evaluation.wer import FIRST_PASS, ErrorCounts
from espnet_bayeslm.rescoring.scales import NOT_USED
from espnet_bayeslm.workflows.adapt_choice import (
    Result,
    chosen_row,
    gains_table,
    kept_scales,
    notes,
    read_results,
    why_none,
)
from espnet_bayeslm.workflows.adapt_data import Parts
from espnet_bayeslm.workflows.adapt_systems import Plan, System
from espnet_bayeslm.workflows.commands import TUNED_FIRST_PASS

AS_IT_IS, IN_CONTEXT = System("as it is"), System("as it is, in context", None, True)
ADAPTED = System("adapted", "lora")
SCALES = {"features": {"am_score": 0.1, "log_prob": 1.0}, "control": {"features": {"rank": 1.0}}}


def rows(first=50, control=50, as_it_is=40, adapted=30, more=0.0, unused=()):
    """Rows of the table; `more`: probability that the adapter has more errors than each row."""
    plain = [Result(FIRST_PASS, first, 5.0), Result(TUNED_FIRST_PASS, control, 5.0)]
    lms = [
        Result("as it is", as_it_is, 4.0, system=AS_IT_IS, perplexity=600.0),
        Result("adapted", adapted, 3.0, system=ADAPTED, perplexity=20.0),
    ]
    lms = [row._replace(unused=NOT_USED * (row.name in unused)) for row in lms]
    return [
        *plain,
        *(row._replace(more=dict.fromkeys([FIRST_PASS, "as it is"], more)) for row in lms),
    ]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, "adapted"),
        # ties: a simpler LM gives way, and the first pass comes before its control
        (dict(as_it_is=40, adapted=40), "adapted"),
        (dict(as_it_is=60, adapted=60), FIRST_PASS),
        (dict(as_it_is=50, adapted=60), "as it is"),
        # probably worse than a simpler LM
        (dict(adapted=42, more=0.7), "adapted"),
        (dict(adapted=42, more=0.75), "adapted"),
        (dict(adapted=42, more=0.76), "as it is"),
        # no LM may have more errors than a row without one, however unsure that is
        (dict(as_it_is=51, adapted=51, more=0.51), FIRST_PASS),
        (dict(control=39, as_it_is=40, adapted=41, more=0.5), TUNED_FIRST_PASS),
        (dict(control=60, as_it_is=51, adapted=51), FIRST_PASS),
        (dict(as_it_is=51, adapted=49), "adapted"),
        # an LM without weight is no row of its own
        (dict(unused=["as it is", "adapted"], control=49), TUNED_FIRST_PASS),
        (dict(unused=["as it is", "adapted"], as_it_is=1, adapted=1), FIRST_PASS),
        (dict(unused=["adapted"], adapted=1), "as it is"),
        (dict(unused=["as it is"], as_it_is=1, adapted=50), "adapted"),
    ],
)
def test_a_row_replaces_simpler_ones_unless_it_is_worse(given, used):
    found = rows(**given)
    assert chosen_row(found).name == used


def test_the_table_says_why_no_lm_is_used_and_that_perplexity_did_not_decide():
    found = rows(unused=["as it is", "adapted"])
    text = "\n".join(notes(found, chosen_row(found)))
    assert f"as it is: {NOT_USED}; its lists are weighed as those of {TUNED_FIRST_PASS}" in text
    assert "adapted has the lowest perplexity, and that does not decide" in text
    assert why_none(found) == NOT_USED
    assert "more errors" in why_none(rows(as_it_is=60, adapted=60))
    assert not notes(rows(), chosen_row(rows()))
    # the same adapter has the lowest perplexity and is used in context
    context = Result("adapted, in context", 20, 2.0, system=System("in context", "lora", True))
    assert not notes([*rows(), context], context)


@pytest.fixture
def finished(tmp_path):
    """A plan whose tools have written figures that all differ."""
    plan = Plan(tmp_path, "hf:lm", ["lora"], ngrams=["a.arpa"])
    systems = [AS_IT_IS, IN_CONTEXT, ADAPTED]
    names = [FIRST_PASS, TUNED_FIRST_PASS, *(system.name for system in systems)]
    pairs = [
        SystemPair(
            a,
            b,
            Mapsswe(9, 0.0, 1.0, 0.0, (10 * i + j) / 100),
            WerDifference(0.0, 0.0, 0.0, 0.0, worsening=(10 * i + j) / 1000),
        )
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if i < j
    ]
    scores = Scores({name: ErrorCounts(50 - k, 0, 0, 1000) for k, name in enumerate(names)}, pairs)
    for system in systems:
        folder = plan.rescored(system)
        folder.mkdir(parents=True)
        scales = {**SCALES, "tuned_on": system.key, "files": ["text"]}
        if system == AS_IT_IS:
            unused = {"unused": "the LM is not used: 9 errors with it"}
            scales |= {"features": {"am_score": 1.0}, "tuning": unused}
        (folder / "scales.yaml").write_text(yaml.safe_dump(scales))
        path = plan.mixture(system.config).weights
        path.parent.mkdir(exist_ok=True)
        rows = [{"name": "lm", "perplexity_without_oov": 7.0}]
        mixture = {"perplexity_without_oov": 100.0 + (system.config is None)}
        path.write_text(yaml.safe_dump({"components": rows, "mixture": mixture}))
    return plan, systems, read_results(plan, systems, scores)


def test_each_figure_is_of_its_row(finished):
    _, _, found = finished
    assert [row.errors for row in found] == [50, 49, 48, 47, 46]
    # p of each row against the one above, more errors against each
    assert [row.p for row in found] == [None, 0.01, 0.12, 0.23, 0.34]
    assert found[-1].more == {row.name: (10 * i + 4) / 1000 for i, row in enumerate(found[:-1])}
    # of the mixture, once for an LM
    assert [row.perplexity for row in found] == [None, None, 101.0, None, 100.0]
    assert found[2].unused == f"{NOT_USED} (the LM is not used: 9 errors with it)"
    assert not found[3].unused and not found[4].unused
    table = gains_table(found, found[-1], Parts({"u": 1}, 2, "speakers"), None)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:7]]
    assert rows[2:] == [
        ["as it is", "101.0", "4.80", "0.12", "not used"],
        ["as it is, in context", "", "4.70", "0.23", "used"],
        ["adapted", "100.0", "4.60", "0.34", "used"],
    ]
    assert "Used: adapted." in table and "by speakers" in table


def test_scales_are_those_of_the_row_that_is_used(finished):
    plan, systems, found = finished
    kept = [kept_scales(plan, found, row) for row in found]
    assert kept[0] == {"features": {"is_first": 1.0}, "tuned_on": "as_it_is"}
    assert kept[1] == {"features": {"rank": 1.0}, "tuned_on": "as_it_is"}
    for content, system in zip(kept[2:], systems, strict=True):
        assert content["tuned_on"] == system.key and "files" not in content
