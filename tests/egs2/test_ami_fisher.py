"""The transcripts of Fisher, as more training text of the AMI recipe."""

import importlib
import sys
from pathlib import Path

import pytest

from espnet_bayeslm.utils.errors import InputError

RECIPE = Path(__file__).parents[2] / "egs2" / "ami" / "lm"


@pytest.fixture
def ami_script(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPE / "local"))
    yield importlib.import_module
    for name in ("ami_data", "ami_annotations", "fisher_data"):
        sys.modules.pop(name, None)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def fisher(tmp_path):
    folder = tmp_path / "fisher"
    write(
        folder / "fe_03_p1_tran" / "data" / "trans" / "000" / "fe_03_00001.txt",
        "# fe_03_00001.sph\n# Transcribed at the LDC\n\n"
        "0.06 0.97 A: and I generally (( prefer ))\n\n"
        "1.00 2.00 B: [laughter]\n\n2.00 3.00 B: [[skip]] uh-huh t._v. wor- 'kay well-known ' \n",
    )
    write(
        folder / "fe_03_p2_tran" / "data" / "trans" / "058" / "fe_03_05851.txt",
        "10.5 11.5 A: <german (( ja wohl )) > mm-hmm\nnothing\n",
    )
    return folder


def test_fisher_is_added_to_the_training_text(ami_script, fisher, tmp_path, caplog):
    data = ami_script("ami_data")
    texts = tmp_path / "texts"
    for name, text in (
        ("train", "okay then\nmm-hmm it's\n"),
        ("dev", "okay it's\nokay so\n"),
        ("eval", "then\n"),
    ):
        write(texts / f"{name}.txt", text)
    options = ["--ami_text", str(texts), "--output", str(tmp_path / "out")]
    data.main([*options, "--fisher", str(fisher)])
    lines = {
        str(path.relative_to(tmp_path / "out")): path.read_text().splitlines()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert lines["train/text"] == [
        "ami-train-0000000 okay then",
        "ami-train-0000001 mm-hmm it's",
        "fisher-fe_03_00001-0000-A and i generally prefer",
        "fisher-fe_03_00001-0001-B uh huh t v wor 'kay well known",
        "fisher-fe_03_05851-0000-A mm-hmm",  # whole, as in the meetings
    ]
    assert lines["dev/text.known"] == ["ami-dev-0000000 okay it's"]
    assert "prefer" in lines["lexicon_words.txt"]
    assert "| train: Fisher | 3 | 13 | 13 | 0.00 |" in lines["statistics.txt"]
    assert "| train | 5 | 17 | 16 | 0.00 |" in lines["statistics.txt"]
    assert "1 lines not of the form" in caplog.text and "fe_03_05851.txt:2" in caplog.text
    data.main([*options, "--fisher", str(fisher / "fe_03_p2_tran")])
    assert (tmp_path / "out" / "train" / "text").read_text().count("\n") == 3


def test_fisher_that_is_not_there(ami_script, fisher, tmp_path):
    reader = ami_script("fisher_data")
    with pytest.raises(InputError, match="no such folder"):
        reader.read_fisher(tmp_path / "nowhere", set())
    with pytest.raises(InputError, match=r"no data/trans/\*/\*.txt there.*LDC2004T19"):
        reader.read_fisher(fisher / "fe_03_p1_tran" / "data" / "trans", set())
    only = fisher / "fe_03_p1_tran" / "data" / "trans" / "000" / "fe_03_00001.txt"
    again = write(fisher / "copy" / "data" / "trans" / "000" / only.name, only.read_text())
    with pytest.raises(InputError, match="same conversation"):
        reader.read_fisher(fisher, set())
    write(again, "# nothing\nelse\n")
    with pytest.raises(InputError, match="no line `START END A: words`"):
        reader.read_fisher(fisher / "copy", set())
