"""What an error of a bad input must be."""

import re

import pytest

from espnet_bayeslm.utils.errors import InputError


def check_refused(read, message, start, *, remedy=True):
    """Check that a call ends in one line that begins with a file and says what to do."""
    with pytest.raises(InputError, match=message) as error:
        read()
    text = str(error.value)
    assert text.startswith(str(start)) and "\n" not in text and len(text) < 500
    assert not remedy or re.search(r"[.;] [A-Z].*[.?]$", text), f"no remedy: {text}"
