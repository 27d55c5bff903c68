import bz2
import gzip
import json
import lzma
import math
import os
import re
import subprocess
import threading

import pytest

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    atomic_write,
    compressed_to,
    converted_by,
    read_keyed_lines,
    read_lines,
    write_json,
)
from espnet_bayeslm.utils.folders import check_folder, entries, files_in, staged


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "out.txt"
    with atomic_write(path) as f:
        f.write("whole\n")
    with pytest.raises(KeyError), atomic_write(path) as f:
        f.write("half")
        raise KeyError
    assert path.read_text() == "whole\n"
    assert os.listdir(path.parent) == ["out.txt"]
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_device_or_pipe_is_written_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR)
    write_json(tmp_path / "pipe", [1])
    assert (tmp_path / "pipe").is_fifo() and json.loads(os.read(reader, 99)) == [1]
    os.close(reader)


def test_json_has_no_nan(tmp_path):
    write_json(tmp_path / "out.json", {"a": [math.nan, 1.5, (2, math.nan)], "b": "nan", 3: None})
    found = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert found == {"a": [None, 1.5, [2, None]], "b": "nan", "3": None}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "strict.json", [math.nan], allow_nan=False)
    assert not (tmp_path / "strict.json").exists()


def test_what_others_put_into_a_folder_stays(tmp_path):
    path = tmp_path / "out"
    with staged(path) as folder:
        for name in ("old", "lists/one", "lists/two"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        ours = files_in(folder)
    assert ours == ["lists/one", "lists/two", "old"]
    (path / "note").write_text("mine")
    (path / "lists" / "note").write_text("mine")
    (tmp_path / "outside").write_text("mine")
    outside = ["../outside", str(tmp_path / "outside")]
    with staged(path, replaces=[*ours, *outside]) as folder:
        (folder / "new").write_text("new")
    assert files_in(path) == ["lists/note", "new", "note"] and (tmp_path / "outside").exists()
    (path / "lists" / "note").unlink()
    (path / "lists" / "one").write_text("ours")
    with staged(path, replaces=["lists/one", "new"]):
        pass
    assert entries(path) == ["note"]


def test_a_folder_is_written_where_a_link_leads_or_not_at_all(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "file").write_text("a file")
    check_folder(tmp_path / "link")
    with staged(tmp_path / "link") as folder:
        (folder / "a").write_text("a")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "a").read_text() == "a"
    problems = {
        "broken": "a link to nowhere, which does not exist",
        "file": "a file, where a folder",
        "file/out": "cannot be written",
    }
    for name, problem in problems.items():
        with pytest.raises(InputError, match=problem):
            check_folder(tmp_path / name)
        with pytest.raises(InputError, match=problem), staged(tmp_path / name):
            pytest.fail("the work began")
    check_folder(tmp_path / "new" / "out")
    assert entries(tmp_path) == ["broken", "file", "link", "there"]


def test_what_stands_in_the_way_is_kept(tmp_path):
    (tmp_path / "out" / "a").mkdir(parents=True)
    (tmp_path / "out" / "b").write_text("mine")
    for name in ("a", "b/c"):
        with pytest.raises(InputError, match="is in the way"), staged(tmp_path / "out") as new:
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text("ours")
            (new / "0").write_text("ours")
    assert entries(tmp_path / "out") == ["a", "b"]


def test_a_mark_is_there_only_with_all_files(tmp_path, monkeypatch):
    path, replace = tmp_path / "out", os.replace
    moved = []

    def watched(source, target):
        assert not (path / "mark").exists()
        moved.append(os.path.basename(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    for text in ("first", "second"):
        with staged(path, last=["mark"]) as folder:
            for name in ("z", "mark", "a"):
                (folder / name).write_text(text)
        assert {file.read_text() for file in path.iterdir()} == {text}
    assert moved == ["a", "z", "mark"]


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
    assert files_in(path) == ["a/one", "a/two", "kept"]
    assert os.listdir(path.parent) == ["out"]
    assert (path / "a" / "two").stat().st_mode == (path / "kept").stat().st_mode


def test_lines_are_numbered_or_keyed(tmp_path):
    content = "\ufeffone\r\n\ufefftwo\u2028still two\n\nfour".encode()
    lines = [(1, "one"), (2, "\ufefftwo\u2028still two"), (3, ""), (4, "four")]
    (tmp_path / "text").write_bytes(content)
    (tmp_path / "text.gz").write_bytes(gzip.compress(content[:10]) + gzip.compress(content[10:]))
    assert list(read_lines(tmp_path / "text")) == lines
    assert list(read_lines(tmp_path / "text.gz")) == lines
    path = tmp_path / "text"
    path.write_text("u1 a  b\nu2\n")
    assert read_keyed_lines(path) == {"u1": (1, "a  b"), "u2": (2, "")}
    for other in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            list(read_lines(other))


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read_under_any_name_and_from_a_pipe(tmp_path, suffix):
    lines = [(n, f"u{n} ü") for n in range(1, 20_000)]
    text = "".join(f"{line}\n" for _, line in lines).encode()
    compress = COMPRESS[suffix]
    for name in ("text", *(f"text{other}" for other in COMPRESS)):
        for content in (compress(text), compress(text[:9]) + compress(text[9:])):
            (tmp_path / name).write_bytes(content)
            assert list(read_lines(tmp_path / name)) == lines
    (tmp_path / f"empty{suffix}").write_bytes(compress(b""))
    assert list(read_lines(tmp_path / f"empty{suffix}")) == []
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(compress(text),))
    writer.start()
    assert list(read_lines(tmp_path / "pipe")) == lines
    # what it holds is not known before it is read
    advice = converted_by("tr a b", tmp_path / "pipe")
    assert advice == f"Convert it: `tr a b < {tmp_path}/pipe > NEW_FILE`."
    writer.join()


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_cut_short_at_any_byte(tmp_path, suffix):
    path = tmp_path / f"text{suffix}"
    content = COMPRESS[suffix](b"u1 a\nu2 b\n" * 9)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=rf"text{suffix}: cannot be read \(.+\)") as error:
            list(read_lines(path))
        assert "\n" not in str(error.value)
    damaged = bytes((*content[:-5], content[-5] ^ 0xFF, *content[-4:]))
    for other in (damaged, *([content + b"x"] if suffix == ".gz" else [])):
        path.write_bytes(other)
        with pytest.raises(InputError, match=rf"text{suffix}: cannot be read"):
            list(read_lines(path))


@pytest.mark.parametrize("suffix", ["", *COMPRESS, ".zst"])
def test_files_are_written_as_their_names_end(tmp_path, suffix):
    def write():
        path = tmp_path / f"out{suffix}"
        with atomic_write(path, "wb") as f, compressed_to(f, path) as out:
            out.write(b"a b\n" * 9)
        return path.read_bytes()

    if suffix == ".zst":
        with pytest.raises(InputError, match=r"out\.zst: \.zst is not written"):
            write()
    else:
        assert write() == write() and (len(write()) < 36 or suffix != ".gz")
        assert list(read_lines(tmp_path / f"out{suffix}")) == [(n, "a b") for n in range(1, 10)]


REFUSED = {
    "zstd": b"\x28\xb5\x2f\xfd\x24\x05",
    "compress": b"\x1f\x9d\x90",
    "zip": b"PK\x03\x04\x14\x00",
    "7-zip": b"7z\xbc\xaf\x27\x1c",
    "lz4": b"\x04\x22\x4d\x18\x64",
    "lzma": lzma.compress(b"u1 a", format=lzma.FORMAT_ALONE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_compressions_are_named(tmp_path, name):
    path = tmp_path / "a.txt"
    path.write_bytes(REFUSED[name])
    message = (
        rf"{path}: compressed by {name}, which is not read\. Decompress it first: `.* {path} >"
        r" NEW_FILE`\."
    )
    with pytest.raises(InputError, match=f"^{message}$"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_plain_file_of_a_compressed_name_is_read(tmp_path, suffix):
    path = tmp_path / f"text{suffix}"
    for content in (b"u", b"u1 a\n", b"u1 a\nu2 b\n" * 9):
        path.write_bytes(content)
        assert [line for _, line in read_lines(path)] == content.decode().splitlines()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_utf16_is_named_with_a_command_that_converts_it(tmp_path, encoding, suffix):
    path = tmp_path / f"a text{suffix}"
    text = "u1 a\nu2 b\n".encode(encoding)
    path.write_bytes(COMPRESS[suffix](text) if suffix else text)
    with pytest.raises(InputError, match=r":1: .*UTF-16.*; UTF-8 text was expected\.") as error:
        list(read_lines(path))
    if encoding != "utf-16-be":  # iconv takes the computer's order where no mark says it
        command = re.findall("`(.*)`", str(error.value))[0].replace("NEW_FILE", "new")
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)
        assert list(read_lines(tmp_path / "new")) == [(1, "u1 a"), (2, "u2 b")]


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_the_command_that_converts_line_ends_works(tmp_path, suffix):
    path = tmp_path / f"it's{suffix}"
    path.write_bytes(COMPRESS[suffix](b"u1 a\ru2 b") if suffix else b"u1 a\ru2 b")
    with pytest.raises(InputError) as error:
        list(read_lines(path))
    command = re.findall("`(.*)`", str(error.value))[0].replace("NEW_FILE", "new")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert list(read_lines(tmp_path / "new")) == [(1, "u1 a"), (2, "u2 b")]


def test_a_carriage_return_alone_is_named(tmp_path):
    path = tmp_path / "text"
    for content, line in ((b"u1 a\ru2 b\r", 1), (b"u1 a\r\nu2 b\r\r\nu3\rc\n", 3)):
        path.write_bytes(content)
        with pytest.raises(InputError) as error:
            list(read_lines(path))
        assert str(error.value).startswith(f"{path}:{line}: a carriage return alone")
        assert str(error.value).endswith(f"`tr '\\r' '\\n' < {path} > NEW_FILE`.")
    path.write_bytes(b"u1 a\r")
    assert list(read_lines(path)) == [(1, "u1 a")]


@pytest.mark.parametrize(
    "content, words",
    [
        (b"u1 a\n\nu2 b\n", [":2:", "empty line"]),
        (b"u1 a\nu2 b\nu1 c\n", [":3:", "'u1'", "line 1"]),
        (b"u1 a\nu2 b \xff\n", [":2:", "not UTF-8", "at byte 5 of the line"]),
        ("u1 a\n".encode("utf-16"), [":1:", "UTF-16"]),
        ("u1 a\n\ufeffu2 b\n".encode(), [":2:", "a byte order mark within the file"]),
    ],
)
def test_bad_keyed_lines(tmp_path, content, words):
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_keyed_lines(path)
    assert all(word in str(error.value) for word in [str(path), *words])
