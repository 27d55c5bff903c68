"""The format of lists and lattices, from names and contents."""

import nbest_mutations
import pytest
from nbest_mutations import write_files

from espnet_bayeslm.nbest.formats import READERS, CheckedLists, find_format, read_nbest
from espnet_bayeslm.utils.errors import InputError

KINDS = nbest_mutations.KINDS | nbest_mutations.LATTICE_KINDS
UNKNOWN = {
    "nothing": {},
    "text": {"text": "u1 a\n"},
    "no lists": {"config.json": '{"a": 1}', "bad.json": "{", "empty.json": ""},
    "two formats": {"a.score": "-1 -1 1 a\n", "b.jsonl": '{"utt": "u", "hypotheses": ["a"]}\n'},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_format_of_a_folder_and_of_its_files(kind, tmp_path):
    format, files = KINDS[kind]
    write_files(tmp_path, files)
    assert find_format(tmp_path) == format
    assert list(read_nbest(tmp_path)) == list(read_nbest(tmp_path, format))
    if format not in ("kaldi", "espnet", "nemo"):  # these are folders
        assert {find_format(tmp_path / name) for name in files} == {format}
    if format == "nemo":
        (beams,) = (name for name in files if ".tsv" in name)
        assert find_format(tmp_path / beams) == "nemo"


@pytest.mark.parametrize("format", READERS)
def test_what_a_rescoring_writes_beside_its_lists(format, tmp_path):
    write_files(tmp_path, nbest_mutations.KINDS[format][1])
    lists = list(read_nbest(tmp_path))
    beside = "sweep.json text trn scales.yaml lmwt.nn confidence.ndjson"
    write_files(tmp_path, dict.fromkeys(beside.split(), "{}"))
    assert find_format(tmp_path) == format
    assert list(read_nbest(tmp_path)) == lists


def test_other_names_that_say_it(tmp_path):
    lattices = {"a.lat": "# SLF\nN=1 L=0\n", "b.lat.gz": b"", "c.lat": "\n\nu\n0 1 a\n1\n"}
    write_files(tmp_path, lattices | {"d.json": '{"utt": "u", "hypotheses": ["a"]}\n'})
    write_files(tmp_path, {"e.jsonl": "", "f.jsonl.gz": b"", "g.jsonl": '{"input": ["a"]}'})
    found = {path.name: find_format(path) for path in tmp_path.iterdir()}
    expected = {"a.lat": "htk", "b.lat.gz": None, "c.lat": "kaldi_lattice", "d.json": "jsonl"}
    expected |= {"e.jsonl": "jsonl", "f.jsonl.gz": "jsonl", "g.jsonl": "whisper"}
    assert found == expected


@pytest.mark.parametrize("files", UNKNOWN.values(), ids=UNKNOWN)
def test_what_says_nothing_is_asked_for(files, tmp_path):
    write_files(tmp_path, files)
    with pytest.raises(InputError, match=r"no format of .* --nbest_format"):
        read_nbest(tmp_path)
    with pytest.raises(InputError, match=r"nosuch: no such file or folder"):
        CheckedLists(tmp_path / "nosuch")
