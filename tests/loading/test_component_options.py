"""Options of components: the recording of each list by any of its sources."""

import pytest

from espnet_bayeslm.loading.component_options import RecordingOptions
from espnet_bayeslm.nbest.segments import Segment
from espnet_bayeslm.nbest.types import Hypothesis, NBest


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"recording_of": "^([a-z]+)-"}, ("meeting", 2.5)),
        ({"segments": {"meeting-3": Segment("of segments", 7.0)}}, ("of segments", 7.0)),
        ({"utt2spk": {"meeting-3": "of speakers"}}, ("of speakers", 2.5)),
    ],
)
def test_each_source_of_recordings_is_asked(given, expected):
    item = NBest("meeting-3", (Hypothesis(("a",)),), recording="its own", start=2.5)
    assert RecordingOptions(**given).place_of(item) == Segment(*expected)


def test_without_a_source_no_place_is_asked_for():
    assert RecordingOptions().place_of is None
