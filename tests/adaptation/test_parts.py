"""Parts of lists: nothing in both, units whole, sizes near the share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.adaptation.parts import divide
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError


def lists_of(units, speaker=False):
    lists = [
        NBest(f"{unit}-{k}", (Hypothesis(("a",)),), speaker=unit if speaker else None)
        for k, unit in enumerate(units)
    ]
    return lists, {item.utt: ("w",) * (1 + k % 3) for k, item in enumerate(lists)}


@given(st.lists(st.sampled_from("pqrstu"), min_size=2, max_size=40), st.floats(0.1, 0.9))
def test_a_recording_is_in_one_part(units, share):
    lists, refs = lists_of(units)
    recordings = {item.utt: item.utt[0] for item in lists}
    parts = divide(lists, refs, recordings, share=share)
    assert parts.adapting and parts.tuning
    key = {item.utt: n for n, item in enumerate(lists)}
    places = [[key[item.utt] for item in part] for part in parts[:2]]
    assert sorted(places[0] + places[1]) == list(range(len(lists)))
    assert all(part == sorted(part) for part in places)
    if len({*units}) > 1:
        assert parts.units == "recordings"
        of_parts = [{recordings[item.utt] for item in part} for part in parts[:2]]
        assert not of_parts[0] & of_parts[1]
    else:
        assert parts.units == "utterances"


def test_speakers_stay_whole_where_recordings_are_not_known():
    lists, refs = lists_of("ppqqrr", speaker=True)
    parts = divide(lists, refs, {})
    assert parts.units == "speakers"
    assert not {x.speaker for x in parts.adapting} & {x.speaker for x in parts.tuning}


def test_parts_have_their_share_of_the_words_and_are_the_same_again():
    lists, refs = lists_of([f"r{n}" for n in range(200)])
    parts = divide(lists, refs, {})
    words = sum(len(refs[item.utt]) for item in parts.adapting)
    assert words / sum(map(len, refs.values())) == pytest.approx(0.6, abs=0.02)
    assert divide(lists, refs, {}) == parts
    # not the first ones: a set is often in an order
    assert parts.adapting != lists[: len(parts.adapting)]


def test_one_list_cannot_be_divided():
    lists, refs = lists_of("p")
    with pytest.raises(InputError, match="two or more were expected"):
        divide(lists, refs, {})
