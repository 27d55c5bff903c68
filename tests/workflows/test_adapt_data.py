"""Lists of an adaptation: their parts, the texts that train and tune, and what is refused."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import Counting
from espnet_bayeslm.nbest.segments import Segment, place_finder
from espnet_bayeslm.nbest.types import Hypothesis, NBest, whole_units
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.workflows.adapt_data import (
    LEAST_LISTS,
    LITTLE,
    Data,
    Parts,
    divide,
    learnt,
    texts_of,
    write_texts,
    write_utt2lm,
)
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
    monkeypatch.setattr("espnet_bayeslm.workflows.adapt_data.VALID", 1)
    found = texts_of(data({**REFS, "u0": ()}))
    assert found["valid1.txt"] == "[noise]\n"


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


def lists_of(recordings, speakers=None):
    """A list for each recording and speaker; None is unknown."""
    speakers = speakers or [None] * len(recordings)
    return [
        NBest(f"u{k}", (Hypothesis(("a",)),), recording=recording, speaker=speaker)
        for k, (recording, speaker) in enumerate(zip(recordings, speakers, strict=True))
    ]


@given(st.lists(st.sampled_from("pqrstuv"), min_size=LEAST_LISTS, max_size=60))
def test_a_recording_is_in_one_part(names):
    lists = lists_of(names)
    utts = [item.utt for item in lists]
    parts = divide(utts, whole_units(lists))
    assert sorted(parts.part_of) == sorted(utts)
    assert {*parts.part_of.values()} == {*range(1, parts.number + 1)}
    if len({*names}) > 1:
        assert parts.units == "recordings"
        assert len({(item.recording, parts.part_of[item.utt]) for item in lists}) == len({*names})
    assert divide(utts, whole_units(lists)) == parts


@pytest.mark.parametrize(("count", "expected"), [(LITTLE - 1, 3), (LITTLE, 2)])
def test_little_text_has_more_parts_of_one_size(count, expected):
    lists = lists_of([None] * count)
    parts = divide([item.utt for item in lists], whole_units(lists))
    sizes = Counter(parts.part_of.values())
    assert parts.units == "utterances" and len(sizes) == expected
    assert max(sizes.values()) - min(sizes.values()) <= 1
    # drawn at random: a set is often in an order
    first = [parts.part_of[item.utt] for item in lists[: count // expected]]
    assert len({*first}) > 1


@pytest.mark.parametrize("count", [1, 2, 3, LEAST_LISTS - 1])
def test_few_lists_are_refused_with_the_number_that_is_needed(count):
    lists = lists_of([None] * count)
    with pytest.raises(InputError, match=rf"{count} lists .*{LEAST_LISTS} or more"):
        divide([item.utt for item in lists], whole_units(lists))


class TestWholeUnits:
    def test_recordings_come_before_speakers(self):
        units = whole_units(lists_of("aabb", "xyxy"))
        assert units.name == "recordings"
        assert units.of == {"u0": "a", "u1": "a", "u2": "b", "u3": "b"}

    @pytest.mark.parametrize("recordings", ["aaaa", [None] * 4])
    def test_speakers_stay_whole_where_there_are_not_several_recordings(self, recordings):
        units = whole_units(lists_of(recordings, "xyxy"))
        assert units.name == "speakers" and units.of["u1"] == units.of["u3"] == "y"

    @pytest.mark.parametrize("kind", ["recording", "speaker"])
    def test_a_list_that_does_not_say_its_unit_is_one_of_its_own(self, kind, caplog):
        known = ["a", "b", "a", None]
        lists = lists_of(known) if kind == "recording" else lists_of([None] * 4, known)
        units = whole_units(lists)
        assert units.name == f"{kind}s" and units.of["u0"] == units.of["u2"] == "a"
        assert len({*units.of.values()}) == 3
        assert f"1 of 4 lists do not say their {kind}, 'u3'" in caplog.text

    def test_what_is_given_counts_more_than_what_lists_say(self, caplog):
        units = whole_units(lists_of("aabb"), lambda item: Segment(item.utt[-1]))
        assert units.of == {f"u{k}": str(k) for k in range(4)}
        assert not caplog.text
