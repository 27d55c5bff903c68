"""Text of the AMI recipe: annotations by lhotse, plain text, and what is no such thing."""

import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "egs2" / "ami" / "lm"
NITE = 'xmlns:nite="http://nite.sourceforge.net/"'


@pytest.fixture
def data(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPE / "local"))
    yield importlib.import_module("ami_data")
    for name in ("ami_data", "ami_annotations", "fisher_data"):
        sys.modules.pop(name, None)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(folder):
    """Return {file below a folder: its lines}."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_text().splitlines() for path in files}


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    write(folder / "train.txt", "Okay  then\n\nmm hmm it's\n")
    write(folder / "dev.txt", "okay it's\n okay so \n")
    write(folder / "eval.txt", "then\n")
    return folder


def test_plain_text_becomes_kaldi_text(data, texts, tmp_path):
    write(tmp_path / "out" / "token_list", "is another's")
    data.main(["--ami_text", str(texts), "--output", str(tmp_path / "out")])
    written = read(tmp_path / "out")
    statistics = written.pop("statistics.txt")
    assert written == {
        # the empty line is counted, and left out
        "train/text": ["ami-train-0000000 okay then", "ami-train-0000002 mm hmm it's"],
        "train/text.plain": ["okay then", "mm hmm it's"],
        "dev/text": ["ami-dev-0000000 okay it's", "ami-dev-0000001 okay so"],
        "dev/text.plain": ["okay it's", "okay so"],
        "dev/text.known": ["ami-dev-0000000 okay it's"],
        "eval/text": ["ami-eval-0000000 then"],
        "eval/text.plain": ["then"],
        "lexicon_words.txt": ["hmm", "it's", "mm", "okay", "then"],
        "token_list": ["is another's"],
    }
    assert "| train | 2 | 5 | 5 | 0.00 |" in statistics
    assert "| dev | 2 | 4 | 3 | 25.00 |" in statistics


def word(number, begin, end, text, **attributes):
    extra = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<w nite:id="{number}" starttime="{begin}" endtime="{end}"{extra}>{text}</w>'


# seconds of the words, which follow one another; segments are their turns
WORDS = {
    ("ES2002a", "A"): [
        word(0, 1.0, 1.2, "Okay"),
        word(1, 1.2, 1.2, ".", punc="true"),
        '<vocalsound nite:id="2" starttime="1.2" endtime="1.4" type="laugh"/>',
        word(3, 1.4, 1.6, "Mm-hmm"),
        word(4, 1.6, 1.6, ",", punc="true"),
        word(5, 1.6, 1.8, "the"),
        word(6, 1.8, 2.0, "T_V_"),
        word(7, 2.0, 2.2, "rem", trunc="true"),
        word(8, 2.2, 2.4, "anti-trust"),
        word(9, 2.4, 2.4, ".", punc="true"),
        word(10, 9.0, 9.2, "Outside"),
    ],
    ("ES2002a", "B"): [word(0, 0.5, 0.7, "That'll"), word(1, 0.7, 0.9, "do")],
    ("ES2011a", "A"): [word(0, 1.0, 1.2, "Okay"), word(1, 1.2, 1.4, "do")],
    ("ES2004a", "A"): [word(0, 1.0, 1.2, "Finished"), word(1, 1.2, 1.2, "?", punc="true")],
}
SPEAKERS = {"A": "FEE005", "B": "MEE006"}


@pytest.fixture
def annotations(tmp_path):
    """Return a folder of the annotations' own layout: one meeting of each set."""
    folder = tmp_path / "ami_public_manual_1.6.2"
    meetings = []
    for meeting in sorted({meeting for meeting, _ in WORDS}):
        speakers = "".join(
            f'<speaker nite:id="{agent}" nxt_agent="{agent}" global_name="{name}" channel="{n}"/>'
            for n, (agent, name) in enumerate(SPEAKERS.items())
        )
        meetings.append(f'<meeting nite:id="m" observation="{meeting}">{speakers}</meeting>')
    write(
        folder / "corpusResources" / "meetings.xml",
        f"<nite:root {NITE}>{''.join(meetings)}</nite:root>",
    )
    for (meeting, agent), lines in WORDS.items():
        for part, content in (
            ("words", "".join(lines)),
            ("segments", '<segment nite:id="s" transcriber_start="0.2" transcriber_end="3.0"/>'),
        ):
            write(
                folder / part / f"{meeting}.{agent}.{part}.xml",
                '<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?>\n'
                f"<nite:root {NITE}>{content}</nite:root>",
            )
    write(folder / "abstractive" / "not_read.xml", "no XML")
    return folder


SENTENCES = {
    "train": [
        "ami-train-ES2002a-00000-MEE006 that'll do",
        "ami-train-ES2002a-00001-FEE005 okay",
        "ami-train-ES2002a-00002-FEE005 mm-hmm the t v rem anti trust",
    ],
    "dev": ["ami-dev-ES2011a-00000-FEE005 okay do"],
    "eval": ["ami-eval-ES2004a-00000-FEE005 finished"],
}


@pytest.mark.parametrize("form", ["folder", "parent", "zip", "zip_with_folder", "zip_in_folder"])
def test_annotations_are_parsed_by_lhotse(data, annotations, tmp_path, caplog, form):
    pytest.importorskip("lhotse", reason="lhotse parses the annotations (pip install lhotse)")
    given = {"folder": annotations, "parent": tmp_path}.get(form)
    if given is None:
        given = tmp_path / "zips" / "ami_public_manual_1.7.zip"
        given.parent.mkdir()
        with zipfile.ZipFile(given, "w") as archive:
            top = tmp_path if form == "zip_with_folder" else annotations
            for path in annotations.rglob("*"):
                archive.write(path, path.relative_to(top))
        before = sorted(tmp_path.rglob("*"))
        given = given.parent if form == "zip_in_folder" else given
    data.main(["--ami", str(given), "--output", str(tmp_path / "out")])
    written = read(tmp_path / "out")
    assert {name: written[f"{name}/text"] for name in SENTENCES} == SENTENCES
    assert "train are not there" in caplog.text  # of a hundred meetings one is
    if form.startswith("zip"):  # nothing is unpacked into the corpus
        assert [path for path in sorted(tmp_path.rglob("*")) if path in before] == before
        assert not (tmp_path / "zips" / "words").exists()


def test_the_parser_is_named_where_it_is_missing(data, annotations, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lhotse.recipes", None)
    assert "pip install lhotse" in failure(data, capsys, "--ami", annotations)


def failure(data, capsys, *options):
    """Return the one line in which a call with these options ends."""
    with pytest.raises(SystemExit) as stopped:
        data.main(list(map(str, options)))
    assert stopped.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("local/data.sh: error: ")
    return line


def break_annotations(folder, how):
    if how == "words.xml":
        write(folder / "words" / "ES2011a.A.words.xml", "<nite:root")
    elif how == "no words":
        (folder / "words" / "ES2011a.A.words.xml").unlink()
    elif how == "set":
        for part in ("words", "segments"):
            (folder / part / f"ES2011a.A.{part}.xml").unlink()


@pytest.mark.parametrize(
    "how, said",
    [
        ("words.xml", "ES2011a.A.words.xml: lhotse cannot parse"),
        ("no words", "lhotse cannot parse this (KeyError: ('ES2011a', 'FEE005', 0)"),
        ("set", "no sentences of dev"),
    ],
)
def test_damaged_annotations(data, annotations, tmp_path, capsys, how, said):
    pytest.importorskip("lhotse", reason="lhotse parses the annotations (pip install lhotse)")
    break_annotations(annotations, how)
    write(tmp_path / "out" / "train" / "text", "of before")
    options = ("--ami", annotations, "--output", tmp_path / "out")
    assert said in failure(data, capsys, *options)
    assert read(tmp_path / "out") == {"train/text": ["of before"]}


def test_a_corpus_that_is_not_there(data, texts, tmp_path, capsys):
    write(tmp_path / "empty" / "words" / "x", "")
    said = failure(data, capsys)
    assert "AMI" in said and "AMI_TEXT" in said and "groups.inf.ed.ac.uk/ami" in said
    assert "both" in failure(data, capsys, "--ami", "x", "--ami_text", texts)
    assert "no such file" in failure(data, capsys, "--ami", tmp_path / "nowhere")
    said = failure(data, capsys, "--ami", tmp_path / "empty")
    assert "corpusResources/meetings.xml, segments, words" in said
    assert "zip" in failure(data, capsys, "--ami", texts / "dev.txt")
    assert "no such folder" in failure(data, capsys, "--ami_text", tmp_path / "nowhere")
    (texts / "dev.txt").unlink()
    said = failure(data, capsys, "--ami_text", texts)
    assert "dev.txt not there" in said and "train.txt, dev.txt and eval.txt" in said


def test_a_zip_of_something_else(data, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("words/x.xml", "")
    said = failure(data, capsys, "--ami", tmp_path / "x.zip")
    assert "x.zip: does not hold corpusResources/meetings.xml" in said


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "no words"),
        ("\n \n", "no words"),
        ("yes\nyes, no\n", "dev.txt:2: ','"),
        ("[laughter] yes\n", "dev.txt:1: '['"),
        ("new words\n", "each sentence of dev"),
    ],
)
def test_text_that_cannot_be_used(data, texts, tmp_path, capsys, text, said):
    write(texts / "dev.txt", text)
    options = ("--ami_text", texts, "--output", tmp_path / "out")
    assert said in failure(data, capsys, *options)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def place(tmp_path):
    """Return a copy of the recipe's scripts, whose path.sh finds the repository."""
    folder = tmp_path / "recipe"
    (folder / "local").mkdir(parents=True)
    for name in ("ami_data.py", "ami_annotations.py", "fisher_data.py", "data.sh"):
        shutil.copy(RECIPE / "local" / name, folder / "local")
    path = (ROOT / "egs2" / "sotu" / "lm" / "path.sh").read_text()
    write(folder / "path.sh", path.replace('$(dirname "${BASH_SOURCE[0]}")/../../..', str(ROOT)))
    shutil.copy(RECIPE / "db.sh", folder)
    return folder


def run(place, *options, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("AMI", "AMI_TEXT", "FISHER")}
    environment.update(variables, PYTHON=sys.executable)
    command = ["bash", "local/data.sh", *map(str, options)]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)


def test_options_win_over_the_environment_and_that_over_db_sh(place, texts):
    for name in ("of_db", "of_environment", "of_option"):
        shutil.copytree(texts, place / name)
        write(place / name / "eval.txt", f"{name}\n")
    result = run(place)
    assert result.returncode == 1 and "neither AMI" in result.stderr
    db = (place / "db.sh").read_text()
    write(place / "db.sh", db.replace("AMI_TEXT=\n", "AMI_TEXT=of_db\n"))
    for said, options, variables in (
        ("of_db", [], {}),
        ("of_environment", [], {"AMI_TEXT": "of_environment"}),
        ("of_option", ["--ami_text", "of_option"], {"AMI_TEXT": "of_environment"}),
    ):
        result = run(place, *options, **variables)
        assert result.returncode == 0, result.stderr
        assert (place / "data" / "eval" / "text.plain").read_text() == f"{said}\n"
