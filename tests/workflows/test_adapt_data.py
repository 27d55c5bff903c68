"""Texts of an adaptation: what trains, what tunes, and what is refused."""

import pytest

from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import Counting
from espnet_bayeslm.nbest.segments import place_finder
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.workflows.adapt_data import Data, learnt, texts_of, write_texts, write_utt2lm
from espnet_bayeslm.workflows.adapt_parts import Parts
from espnet_bayeslm.workflows.adapt_systems import Plan

REFS = {
    "u0": ("The", "red", "lamp"),
    "u1": ("[noise]",),
    "u2": ("A", "<unk>", "table"),
    "u3": ("the", "end"),
}
PARTS = Parts({"u0": 1, "u1": 1, "u2": 2, "u3": 2}, 2, "utterances")
LISTS = [
    NBest(utt, (Hypothesis(words),), recording="rr"[: 1 + (utt > "u1")], start=9.0 - int(utt[1]))
    for utt, words in REFS.items()
]


@pytest.fixture
def plan(tmp_path):
    return Plan(tmp_path, "hf:lm", ["lora"])


def data(said=None, order=None):
    counting = Counting(ignored=frozenset(["[noise]", "<unk>"]))
    how = Normalization("lower", kept=counting.ignored), counting
    more = [learnt({"1": ("More", "[noise]", "TEXT")}, *how)]
    return Data(REFS, learnt(REFS, *how) if said is None else said, LISTS, PARTS, order, more)


def test_each_part_is_left_out_of_one_training():
    found = texts_of(data())
    assert found["valid1.txt"] == "the red lamp\n" and found["valid2.txt"] == "a table\nthe end\n"
    assert found["adapt1.txt"] == "a table\nthe end\nmore text\n"
    assert found["adapt2.txt"] == "the red lamp\nmore text\n"
    assert found["adapt.txt"] == "the red lamp\na table\nthe end\nmore text\n"
    assert found["tune.text"] == "u0 the red lamp\nu2 a table\nu3 the end\n"
    # counted as they came
    assert found["tune.ref"] == "u0 The red lamp\nu1 [noise]\nu2 A <unk> table\nu3 the end\n"


def test_texts_of_few_references_hold_as_many_with_words(monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.workflows.adapt_data.SOME", 1)
    monkeypatch.setattr("espnet_bayeslm.workflows.adapt_data.VALID", 1)
    found = texts_of(data({**REFS, "u0": ()}))
    assert found["some.txt"] == found["valid1.txt"] == "[noise]\n"


def test_in_context_recordings_are_in_order_of_time():
    found = texts_of(data(order=place_finder()))
    assert found["valid2.txt"] == "the end\na table\n"
    assert found["adapt.txt"] == "the red lamp\n\nthe end\na table\n\nmore text\n"


def test_each_utterance_has_the_adapter_that_did_not_see_it(plan):
    write_texts(plan, data())
    write_utt2lm(plan, PARTS, "lora")
    rows = dict(line.split() for line in plan.utt2lm("lora").read_text().splitlines())
    for utt, words in REFS.items():
        part = rows[utt].split("/")[-2]
        sentence = " ".join(words).lower()
        assert f"{sentence}\n" not in plan.data(f"adapt{part}.txt").read_text()
    assert len(rows) == 4


def test_texts_of_other_lists_are_refused(plan):
    for _ in range(2):
        write_texts(plan, data())
    with pytest.raises(InputError, match="parts of other lists"):
        write_texts(plan, data({**REFS, "u3": ("more",)}))


@pytest.mark.parametrize("left", [{"u0"}, {"u2", "u3"}, set()])
def test_each_part_needs_words_to_learn(plan, left):
    """As where references are empty, or --ignore_words hold their words."""
    said = {utt: words if utt in left else () for utt, words in REFS.items()}
    with pytest.raises(InputError, match=f"{len(left)} of 4 references have words to learn"):
        write_texts(plan, data(said))
    assert not plan.data("").exists()
