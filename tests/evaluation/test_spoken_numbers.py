"""Numbers in words: one line for each rule of the table in docs/lists.md."""

import pytest

from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.spoken_numbers import spoken_numbers
from espnet_bayeslm.utils.errors import InputError

SPOKEN = """
0                   | zero
5,                  | five,
21                  | twenty one
101                 | one hundred one
1,234               | one thousand two hundred thirty four
1,000,067.89        | one million sixty seven point eight nine
1,2                 | one,two
12345               | twelve thousand three hundred forty five
007                 | zero zero seven
3.5                 | three point five
3.50.               | three point five zero.
0.05                | zero point zero five
.5                  | point five
.25                 | point two five
1.2.3               | one point two point three
1st                 | first
22nd                | twenty second
the 21ST,           | the twenty first,
1,000th             | one thousandth
1900th              | one thousand nine hundredth
5%                  | five percent
3.5%                | three point five percent
5 %                 | five percent
1%                  | one percent
-5                  | minus five
\u22125             | minus five
(-3.5)              | (minus three point five)
5-10                | five-ten
COVID-19            | COVID-nineteen
-$5                 | minus five dollars
$0                  | zero dollars
$1                  | one dollar
$1.00               | one dollar
£1                  | one pound
€1                  | one euro
5€                  | five euros
$5.                 | five dollars.
$21                 | twenty one dollars
$1.50               | one dollar fifty cents
$1.01               | one dollar one cent
$0.50               | fifty cents
$.01                | one cent
£2.01               | two pounds one penny
£2.50               | two pounds fifty pence
$2.5                | two point five dollars
$1,234.05           | one thousand two hundred thirty four dollars five cents
$1 million          | one million dollars
$1.5 billion        | one point five billion dollars
$1984               | one thousand nine hundred eighty four dollars
5 million           | five million
1984                | nineteen eighty four
in 1905,            | in nineteen oh five,
1900                | nineteen hundred
2000                | two thousand
2005                | two thousand five
2010                | twenty ten
2026                | twenty twenty six
1,984               | one thousand nine hundred eighty four
1066                | one thousand sixty six
2100                | two thousand one hundred
1990s               | nineteen nineties
the '90s            | the 'nineties
80s                 | eighties
2010s               | twenty tens
2000s               | two thousands
1900s               | nineteen hundreds
10:30               | ten thirty
10:05               | ten oh five
10:00               | ten o'clock
10:00 am            | ten am
10:30pm             | ten thirty pm
5pm                 | five pm
13:00               | thirteen hundred
09:15               | nine fifteen
25:00               | twenty five:zero zero
3:1                 | three:one
"""

UNTOUCHED = """
mp3 b2b x2 h2o 3d 5k 10km 1,234km 3.5km v1.2 747s 5s B-52s
ordinary words, stay. as they are
\u0661\u0662 \u0967\u0968 \uff11\uff10 a\u0661 \u00bd x\u00b2
XIV iv MMXX
"""


@pytest.mark.parametrize("line", SPOKEN.strip().splitlines())
def test_each_rule(line):
    text, expected = (part.strip() for part in line.split(" | "))
    assert spoken_numbers(text) == expected
    assert spoken_numbers(f"so {text} ok") == f"so {expected} ok"


@pytest.mark.parametrize("text", UNTOUCHED.strip().splitlines())
def test_what_stays(text):
    assert spoken_numbers(text) == text


def test_signs_are_read_before_they_are_taken_away():
    normalization = Normalization("lower,numbers,punct")
    text = "At 10:00, -5 of 5-10 for $1.50 (COVID-19)."
    expected = "at ten o'clock minus five of five ten for one dollar fifty cents covid nineteen"
    assert " ".join(normalization.words(text.split())) == expected


def test_a_number_without_a_name():
    with pytest.raises(InputError, match="cannot be written in words"):
        spoken_numbers("9" * 400)
