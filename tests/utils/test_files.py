import gzip
import os

import pytest

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    atomic_directory,
    atomic_write,
    read_keyed_lines,
    read_lines,
    staged,
)


def test_error_says_where_what_and_the_remedy():
    error = InputError("got 3 fields", path="a/b.txt", line=7, remedy="Write two.")
    assert str(error) == "a/b.txt:7: got 3 fields. Write two."
    assert str(InputError("got nothing")) == "got nothing"
    assert isinstance(error, ValueError)


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "out.txt"
    with atomic_write(path) as f:
        f.write("whole\n")
    with pytest.raises(KeyError), atomic_write(path) as f:
        f.write("half")
        raise KeyError
    assert path.read_text() == "whole\n"
    assert os.listdir(path.parent) == ["out.txt"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out"
    for text in ("first", "second"):
        with atomic_directory(path) as folder:
            (folder / text).write_text(text)
    with pytest.raises(KeyError), atomic_directory(path) as folder:
        (folder / "third").write_text("half")
        raise KeyError
    assert os.listdir(path) == ["second"]
    assert os.listdir(tmp_path) == ["out"]


def test_what_is_staged_moves_into_a_folder_or_is_not_written(tmp_path):
    path = tmp_path / "new" / "out"
    with staged(path) as folder:
        (folder / "a").mkdir()
        (folder / "a" / "one").write_text("1")
    (path / "kept").write_text("kept")
    with pytest.raises(KeyError), staged(path) as folder:
        (folder / "b").write_text("half")
        raise KeyError
    with staged(path) as folder:
        (folder / "a").mkdir()
        (folder / "a" / "two").write_text("2")
    assert sorted(str(p.relative_to(path)) for p in path.rglob("*")) == ["a", "a/two", "kept"]
    assert os.listdir(path.parent) == ["out"]
    umask = os.umask(0)
    os.umask(umask)
    assert (path / "a" / "two").stat().st_mode & 0o777 == 0o666 & ~umask
    with pytest.raises(InputError, match="a file, where a folder"), staged(path / "kept"):
        pass


def test_lines_are_numbered_and_lose_their_ends(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("one\r\ntwo\u2028still two\n\nfour".encode())
    assert list(read_lines(path)) == [(1, "one"), (2, "two\u2028still two"), (3, ""), (4, "four")]


def test_zipped_lines_and_one_byte_order_mark(tmp_path):
    content = "\ufeffone\r\n\ufefftwo\nthree".encode()
    lines = [(1, "one"), (2, "\ufefftwo"), (3, "three")]
    (tmp_path / "text").write_bytes(content)
    (tmp_path / "text.gz").write_bytes(gzip.compress(content[:10]) + gzip.compress(content[10:]))
    assert list(read_lines(tmp_path / "text")) == lines
    assert list(read_lines(tmp_path / "text.gz")) == lines


def test_a_gzip_file_cut_short_at_any_byte(tmp_path):
    path = tmp_path / "text.gz"
    content = gzip.compress(b"u1 a\nu2 b\n" * 9)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"text\.gz: cannot be read \(.+\)") as error:
            list(read_lines(path))
        assert "\n" not in str(error.value)
    for other in (b"no gzip", content + b"x", content[:-5] + b"\xff" + content[-4:]):
        path.write_bytes(other)
        with pytest.raises(InputError, match=r"text\.gz: cannot be read"):
            list(read_lines(path))


@pytest.mark.parametrize(
    "content, words",
    [
        (b"u1 a\n\nu2 b\n", [":2:", "empty line"]),
        (b"u1 a\nu2 b\nu1 c\n", [":3:", "'u1'", "line 1"]),
        (b"u1 a\nu2 b \xff\n", [":2:", "not UTF-8", "at byte 5 of the line"]),
        ("u1 a\n".encode("utf-16"), [":1:", "not UTF-8"]),
        ("u1 a\n\ufeffu2 b\n".encode(), [":2:", "a byte order mark within the file"]),
    ],
)
def test_bad_keyed_lines(tmp_path, content, words):
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_keyed_lines(path)
    assert all(word in str(error.value) for word in [str(path), *words])


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            list(read_lines(path))


def test_keyed_lines(tmp_path):
    path = tmp_path / "text"
    path.write_text("u1 a  b\nu2\n")
    assert read_keyed_lines(path) == {"u1": (1, "a  b"), "u2": (2, "")}
