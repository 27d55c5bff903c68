"""Text of the AMI recipe: annotations by lhotse, plain text, Fisher, and what is no such thing."""

import shutil
import sys
import zipfile

import pytest
from recipe_files import files_of, run_script
from written_files import write

from espnet_bayeslm.utils.errors import InputError

NITE = 'xmlns:nite="http://nite.sourceforge.net/"'


@pytest.fixture
def data(local):
    return local("ami", "ami_data")


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
    written = files_of(tmp_path / "out")
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
    written = files_of(tmp_path / "out")
    assert {name: written[f"{name}/text"] for name in SENTENCES} == SENTENCES
    assert "train are not there" in caplog.text  # of a hundred meetings one is
    if form.startswith("zip"):  # nothing is unpacked into the corpus
        assert [path for path in sorted(tmp_path.rglob("*")) if path in before] == before
        assert not (tmp_path / "zips" / "words").exists()


def test_the_parser_is_named_where_it_is_missing(data, annotations, fails, monkeypatch):
    monkeypatch.setitem(sys.modules, "lhotse.recipes", None)
    assert "pip install lhotse" in fails(data.main, ["--ami", annotations])


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda words, _: words.write_text("<nite:root"), "ES2011a.A.words.xml: lhotse cannot"),
        (lambda words, _: words.unlink(), "cannot parse this (KeyError: ('ES2011a', 'FEE005', 0)"),
        (lambda *both: [path.unlink() for path in both], "no sentences of dev"),
    ],
)
def test_damaged_annotations(data, annotations, tmp_path, fails, damage, said):
    pytest.importorskip("lhotse", reason="lhotse parses the annotations (pip install lhotse)")
    damage(*(annotations / part / f"ES2011a.A.{part}.xml" for part in ("words", "segments")))
    write(tmp_path / "out" / "train" / "text", "of before")
    options = ("--ami", annotations, "--output", tmp_path / "out")
    assert said in fails(data.main, options)
    assert files_of(tmp_path / "out") == {"train/text": ["of before"]}


def test_a_corpus_that_is_not_there(data, texts, tmp_path, fails):
    write(tmp_path / "empty" / "words" / "x", "")
    said = fails(data.main, [])
    assert "AMI" in said and "AMI_TEXT" in said and "groups.inf.ed.ac.uk/ami" in said
    assert "both" in fails(data.main, ["--ami", "x", "--ami_text", texts])
    assert "no such file" in fails(data.main, ["--ami", tmp_path / "nowhere"])
    said = fails(data.main, ["--ami", tmp_path / "empty"])
    assert "corpusResources/meetings.xml, segments, words" in said
    assert "zip" in fails(data.main, ["--ami", texts / "dev.txt"])
    assert "no such folder" in fails(data.main, ["--ami_text", tmp_path / "nowhere"])
    (texts / "dev.txt").unlink()
    said = fails(data.main, ["--ami_text", texts])
    assert "dev.txt not there" in said and "train.txt, dev.txt and eval.txt" in said
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("words/x.xml", "")
    said = fails(data.main, ["--ami", tmp_path / "x.zip"])
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
def test_text_that_cannot_be_used(data, texts, tmp_path, fails, text, said):
    write(texts / "dev.txt", text)
    options = ("--ami_text", texts, "--output", tmp_path / "out")
    assert said in fails(data.main, options)
    assert not (tmp_path / "out").exists()


def test_options_win_over_the_environment_and_that_over_db_sh(place, texts):
    place = place("ami", "db.sh")
    for name in ("of_db", "of_environment", "of_option"):
        shutil.copytree(texts, place / name)
        write(place / name / "eval.txt", f"{name}\n")
    result = run_script(place, "local/data.sh")
    assert result.returncode == 1 and "neither AMI" in result.stderr
    write(place / "db.sh", (place / "db.sh").read_text().replace("AMI_TEXT=\n", "AMI_TEXT=of_db\n"))
    for said, options, variables in (
        ("of_db", [], {}),
        ("of_environment", [], {"AMI_TEXT": "of_environment"}),
        ("of_option", ["--ami_text", "of_option"], {"AMI_TEXT": "of_environment"}),
    ):
        result = run_script(place, "local/data.sh", *options, **variables)
        assert result.returncode == 0, result.stderr
        assert (place / "data" / "eval" / "text.plain").read_text() == f"{said}\n"


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


def test_fisher_is_added_to_the_training_text(data, texts, fisher, tmp_path, caplog):
    write(texts / "train.txt", "okay then\nmm-hmm it's\n")
    options = ["--ami_text", str(texts), "--output", str(tmp_path / "out")]
    data.main([*options, "--fisher", str(fisher)])
    lines = files_of(tmp_path / "out")
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


def test_fisher_that_is_not_there(local, fisher, tmp_path):
    reader = local("ami", "fisher_data")
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
