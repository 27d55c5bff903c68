"""Parts of lists: each utterance in one, units whole, sizes alike."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.nbest.segments import Segment
from espnet_bayeslm.nbest.types import Hypothesis, NBest, whole_units
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.workflows.adapt_parts import LEAST_LISTS, LITTLE, divide


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
