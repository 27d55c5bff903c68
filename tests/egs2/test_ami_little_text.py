"""local/little_text.py: parts of the text, and word error rates beside `bayeslm compare`."""

import pytest
from recipe_scripts import write
from small_corpus import write_lists, write_text

from espnet_bayeslm.utils.errors import InputError


@pytest.fixture
def little(local):
    return local("ami", "little_text")


@pytest.fixture
def data(tmp_path):
    """Texts as stage 1 leaves them."""
    write_text(tmp_path / "texts", {"train": 600, "dev": 40, "eval": 30})
    for name in ("train", "dev", "eval"):
        lines = (tmp_path / "texts" / f"{name}.txt").read_text()
        write(tmp_path / "data" / name / "text.plain", lines)
    return tmp_path / "data"


def test_parts_are_the_same_at_each_call(little, data, tmp_path):
    paths = little.write_parts(data, tmp_path / "a", percent=10, sentences=7)
    again = little.write_parts(data, tmp_path / "b", percent=10, sentences=7)
    parts = [path.read_text().splitlines() for path in paths]
    assert parts == [path.read_text().splitlines() for path in again]
    assert [len(part) for part in parts] == [60, 7, 7]
    train, dev = ((data / n / "text.plain").read_text().splitlines() for n in ("train", "dev"))
    assert set(parts[0]) <= set(train) and parts[0] != train[:60]
    assert parts[1] == [dev[n] for n in (0, 5, 11, 17, 22, 28, 34)]


@pytest.mark.parametrize("options", [dict(percent=0, sentences=1), dict(percent=10, sentences=0)])
def test_no_part(little, data, tmp_path, options):
    with pytest.raises(InputError, match="expected 1 to 100, at least 1"):
        little.write_parts(data, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_from_text_to_both_tables(little, data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("dev", "eval")):
        lines = (data / name / "text.plain").read_text().splitlines()
        refs = {f"u{n:02}": line.split() for n, line in enumerate(lines[:20])}
        write_lists(data / "nbest" / f"{name}_far", refs, seed=seed)
    options = ["--size", "tiny", "--epochs", "1", "--seeds", "1 2", "--dropout_rates", "0.1"]
    little.main(options)
    exp = tmp_path / "exp" / "little_text" / "transformer_tiny_10"
    rows = (exp / "WER.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| 1", "far"], ["| 2", "far"]]
    assert (exp / "WER.md").read_text() in capsys.readouterr().out
    for row in rows:
        point, both, difference = (float(cell) for cell in row.split(" | ")[2:5])
        assert difference == pytest.approx(both - point, abs=0.011)
        assert 0 < point < 100
