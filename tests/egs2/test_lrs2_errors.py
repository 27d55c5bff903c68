"""What the LRS2 recipe says of a corpus that it cannot use."""

import importlib
import sys
from pathlib import Path

import pytest
from lrs2_layout import make_corpus

LOCAL = Path(__file__).resolve().parents[2] / "egs2" / "lrs2" / "lm" / "local"


@pytest.fixture
def data(monkeypatch):
    monkeypatch.syspath_prepend(str(LOCAL))
    yield importlib.import_module("lrs2_data")
    for name in ("lrs2_data", "lrs2_corpus"):
        sys.modules.pop(name, None)


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path)


def files_of(folder):
    return {p.relative_to(folder): p.read_text() for p in folder.rglob("*") if p.is_file()}


def fails(data, capsys, *options):
    """Run, expect one line of error; return it."""
    with pytest.raises(SystemExit) as end:
        data.main([str(option) for option in options])
    assert end.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    return lines[0]


def test_no_path_or_a_wrong_one_is_said_with_what_was_looked_for(data, tmp_path, capsys):
    output = tmp_path / "data"
    error = fails(data, capsys, "--output", output)
    assert "Set LRS2 in db.sh" in error and "main and pretrain" in error
    error = fails(data, capsys, "--lrs2", tmp_path / "nowhere", "--output", output)
    assert "nowhere: no such folder" in error and "main and pretrain" in error
    (tmp_path / "trainval").mkdir()
    error = fails(data, capsys, "--lrs2", tmp_path, "--output", output)
    assert "found here: trainval" in error and "main and pretrain" in error
    assert not output.exists()


@pytest.mark.parametrize("pause", ["-1", "nan", "inf"])
def test_a_pause_is_a_length_of_time(data, corpus, tmp_path, capsys, pause):
    error = fails(data, capsys, "--lrs2", corpus, "--output", tmp_path / "d", f"--pause={pause}")
    assert "--pause" in error


def remove_lists(corpus):
    (corpus / "val.txt").unlink()
    (corpus / "test.txt").unlink()


def remove_texts(corpus):
    for path in sorted((corpus / "pretrain" / "5500").iterdir())[1:]:
        path.unlink()


def list_twice(corpus):
    clip = (corpus / "test.txt").read_text().split()[0]
    with (corpus / "train.txt").open("a") as f:
        f.write(clip + "\n")


def overwrite(path, text):
    return lambda corpus: (corpus / path).write_text(text)


TEXT = "main/6201/00000.txt"
TABLE = "pretrain/5500/00000.txt"


@pytest.mark.parametrize(
    "damage, expected",
    [
        (remove_lists, "no file list val.txt, test.txt"),
        (remove_texts, "pretrain/5500/00003.txt; 6 of the 20 clips listed"),
        (list_twice, "the clip 6231/00003 stands already in"),
        (overwrite("val.txt", "\n"), "val.txt: a file list without a clip"),
        (overwrite("val.txt", "6221/00002\nwords\n"), "val.txt:2: expected ID/NNNNN, got 'words'"),
        (overwrite("val.txt", "a,b/00002\n"), "val.txt:1: expected ID/NNNNN"),
        (overwrite(TEXT, "Text:  \nConf:  4\n"), f"{TEXT}:1: an empty text"),
        (overwrite(TEXT, ""), f"{TEXT}:1: expected `Text:  WORDS`, got ''"),
        (overwrite(TEXT, "HELLO YOU\n"), f"{TEXT}:1: expected `Text:  WORDS`, got 'HELLO YOU'"),
        (
            overwrite(TABLE, "Text:  OH\nConf:  4\n\nWORD START END ASDSCORE\nOH 0.1 end 3\n"),
            f"{TABLE}:5: expected WORD START END ASDSCORE, got 'OH 0.1 end 3'",
        ),
    ],
)
def test_damage_is_one_error_that_names_the_place_and_writes_nothing(
    data, corpus, tmp_path, capsys, damage, expected
):
    output = tmp_path / "data"
    data.main(["--lrs2", str(corpus), "--output", str(output)])
    (output / "nbest").mkdir()
    (output / "nbest" / "conditions").write_text("clean\n")
    before = files_of(output)
    damage(corpus)
    capsys.readouterr()
    assert expected in fails(data, capsys, "--lrs2", corpus, "--output", output)
    assert files_of(output) == before
