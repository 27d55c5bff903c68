"""Numbers in words: one line of `data/spoken_numbers.txt` for each rule of docs/lists.md."""

from pathlib import Path

import pytest

from espnet_bayeslm.evaluation.normalization import spoken_numbers
from espnet_bayeslm.utils.errors import InputError

SPOKEN = (Path(__file__).parent / "data" / "spoken_numbers.txt").read_text(encoding="utf-8")

UNTOUCHED = """
mp3 b2b x2 h2o 3d 5k 10km 1,234km 3.5km v1.2 747s 5s B-52s
ordinary words, stay. as they are
\u0661\u0662 \u0967\u0968 \uff11\uff10 a\u0661 \u00bd x\u00b2
XIV iv MMXX
"""


@pytest.mark.parametrize("line", SPOKEN.splitlines())
def test_each_rule(line):
    text, expected = (part.strip() for part in line.split(" | "))
    assert spoken_numbers(text) == expected
    assert spoken_numbers(f"so {text} ok") == f"so {expected} ok"


@pytest.mark.parametrize("text", UNTOUCHED.strip().splitlines())
def test_what_stays(text):
    assert spoken_numbers(text) == text


def test_a_number_without_a_name():
    with pytest.raises(InputError, match="cannot be written in words"):
        spoken_numbers("9" * 400)
