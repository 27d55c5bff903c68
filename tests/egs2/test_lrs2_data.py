"""Text of the LRS2 recipe, from a small directory of the corpus's layout."""

import shutil

import pytest
from lrs2_layout import make_corpus, sentence, write_clip
from recipe_files import files_of
from written_files import write

SETS = ("train", "val", "test")


@pytest.fixture
def data(local):
    return local("lrs2", "lrs2_data")


@pytest.fixture
def reader(local):
    return local("lrs2", "lrs2_corpus")


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path)


@pytest.fixture
def prepare(data, corpus, tmp_path):
    """Return a function: options -> the folder of the sets."""

    def run(*options):
        data.main(["--lrs2", str(corpus), "--output", str(tmp_path / "data"), *options])
        return tmp_path / "data"

    return run


def rewrite(corpus, listed, words, *times):
    """Give the first clip of a list other words; return its id."""
    clip = (corpus / f"{listed}.txt").read_text().split()[0]
    write_clip(corpus / "main" / f"{clip}.txt", words, *times)
    return f"lrs2-{clip.replace('/', '-')}"


def read(folder, name="text"):
    return [line.split() for line in (folder / name).read_text().splitlines()]


def test_the_sets_are_kaldi_texts_with_statistics(prepare, corpus):
    output = prepare()
    for name in SETS:
        lines = read(output / name)
        ids = [line[0] for line in lines]
        assert ids == sorted(set(ids)) and "," not in "".join(ids)
        assert [line[1:] for line in lines] == read(output / name, "text.plain")
        text = " ".join(word for line in lines for word in line[1:])
        assert text == text.lower() and all(len(line) > 1 for line in lines)
    assert len(read(output / "val")) == len(read(output / "test")) == 10
    train = dict((line[0], line[1:]) for line in read(output / "train"))
    # 20 pieces before and 20 after the silence, 20 sentences of main
    assert len(train) == 60
    first, second = train["lrs2-pretrain-5500-00000-000"], train["lrs2-pretrain-5500-00000-001"]
    assert len(first) == len(second) == 6
    assert [word.upper() for word in first + second] == sentence(0, 12)
    assert train["lrs2-6201-00000"] == [word.lower() for word in sentence(3, 3)]
    words = {word for line in train.values() for word in line}
    assert (output / "lexicon_words.txt").read_text().split() == sorted(words)
    assert "it's" in words and "1960s" in words
    rows = [line for line in (output / "statistics.txt").read_text().splitlines() if "|" in line]
    cells = {row[0]: row[1:] for row in ([c.strip() for c in r.split("|")[1:-1]] for r in rows)}
    assert [cells[name][0] for name in SETS] == ["60", "10", "10"]
    for name in SETS:
        words = [word for line in read(output / name, "text.plain") for word in line]
        assert cells[name][1:3] == [str(len(words)), str(len(set(words)))]
    num_words = int(cells["val"][1])
    assert cells["val"][3] == f"{100 * 10 / num_words:.2f}"  # one ZEBRA a sentence
    assert cells["train"][3] == cells["test"][3] == "0.00"
    utt = rewrite(corpus, "val", ["A", "GOOD", "HOUSE"])
    # all others hold ZEBRA
    assert read(prepare() / "val", "text.known") == [[utt, "a", "good", "house"]]


@pytest.mark.parametrize("pause, pieces", [("0", 20), ("0.79", 40), ("0.81", 20)])
def test_pretrain_is_cut_at_silences_longer_than_the_option_says(prepare, pause, pieces):
    lines = [line for line in read(prepare("--pause", pause) / "train") if "pretrain" in line[0]]
    assert len(lines) == pieces
    assert sum(len(line) - 1 for line in lines) == 240
    assert any(line[0] == "lrs2-pretrain-5500-00000" for line in lines) == (pieces == 20)


def test_a_table_that_is_not_the_texts_cuts_nothing_and_is_reported(prepare, corpus, caplog):
    path = corpus / "pretrain" / "5500" / "00000.txt"
    path.write_text(path.read_text().replace("Text:  ", "Text:  OH "))
    with caplog.at_level("WARNING"):
        lines = {line[0]: line[1:] for line in read(prepare() / "train")}
    assert len(lines["lrs2-pretrain-5500-00000"]) == 13
    assert "pretrain: 1 clips without times" in caplog.text


def test_main_clips_are_utterances_without_marks(prepare, corpus):
    utt = rewrite(corpus, "test", ["GOOD", "TOWN"], [0.0, 9.0])
    assert [utt, "good", "town"] in read(prepare() / "test")
    rewrite(corpus, "test", ["{NS}"])
    assert len(read(prepare() / "test")) == 9


@pytest.mark.parametrize(
    "text, words",
    [
        ("IT'S THE WORKERS' 1960S", "it's the workers' 1960s"),
        ("{NS} OH [LAUGHTER] YES (SIC) <UNK>", "oh yes"),
        ("IT\u2019S CAF\u00c9S, TWENTY-ONE", "it's cafes twenty one"),
        ("{NS} ' -", ""),
    ],
)
def test_words_are_lower_case_with_apostrophes_and_digits_and_without_marks(reader, text, words):
    assert reader.normalise(text) == words.split()


def test_test_sentences_that_stand_in_the_training_text_are_counted(prepare, corpus):
    # across the silence: what is compared is the whole clip
    rewrite(corpus, "test", sentence(4, 12)[1:12])
    said = (prepare() / "statistics.txt").read_text()
    assert "In train stand 0 of 6 sentences of 6 or more words (0 %) of val." in said
    assert "In train stand 1 of 4 sentences of 6 or more words (25 %) of test." in said


def test_utterances_are_sorted_by_id_whatever_the_clips_are_called(data, reader):
    cut, whole = reader.Clip("a-1", [["x"], ["y"]]), reader.Clip("a-1-0", [["z"]])
    assert list(data.utterances([cut, whole])) == ["a-1-0", "a-1-000", "a-1-001"]
    with pytest.raises(ValueError, match="two clips have the id a-1-001"):
        data.utterances([cut, reader.Clip("a-1-001", [["z"]])])


def test_the_lists_may_lie_beside_the_archives_folder_or_elsewhere(prepare, corpus, tmp_path):
    inside = files_of(prepare())
    lists = tmp_path / "lists"
    lists.mkdir()
    for name in ("pretrain", "train", "val", "test"):
        shutil.copy(corpus / f"{name}.txt", lists)
        shutil.move(corpus / f"{name}.txt", tmp_path)
    # the folder above is found from there, too
    beside = prepare("--lrs2", str(tmp_path), "--output", str(tmp_path / "beside"))
    for name in ("pretrain", "train", "val", "test"):
        (tmp_path / f"{name}.txt").unlink()
    elsewhere = prepare("--filelists", str(lists), "--output", str(tmp_path / "elsewhere"))
    assert inside == files_of(beside) == files_of(elsewhere)


def test_no_path_or_a_wrong_one_is_said_with_what_was_looked_for(data, tmp_path, fails):
    output = tmp_path / "data"
    error = fails(data.main, ["--output", output])
    assert "Set LRS2 in db.sh" in error and "main and pretrain" in error
    error = fails(data.main, ["--lrs2", tmp_path / "nowhere", "--output", output])
    assert "nowhere: no such folder" in error and "main and pretrain" in error
    (tmp_path / "trainval").mkdir()
    error = fails(data.main, ["--lrs2", tmp_path, "--output", output])
    assert "found here: trainval" in error and "main and pretrain" in error
    assert not output.exists()


@pytest.mark.parametrize("pause", ["-1", "nan", "inf"])
def test_a_pause_is_a_length_of_time(data, corpus, tmp_path, fails, pause):
    error = fails(data.main, ["--lrs2", corpus, "--output", tmp_path / "d", f"--pause={pause}"])
    assert "--pause" in error


def overwrite(path, text):
    return lambda corpus: (corpus / path).write_text(text)


TEXT = "main/6201/00000.txt"
TABLE = "pretrain/5500/00000.txt"


@pytest.mark.parametrize(
    "damage, expected",
    [
        (
            lambda corpus: [(corpus / f"{name}.txt").unlink() for name in ("val", "test")],
            "no file list val.txt, test.txt",
        ),
        (
            lambda corpus: [p.unlink() for p in sorted((corpus / "pretrain/5500").iterdir())[1:]],
            "pretrain/5500/00003.txt; 6 of the 20 clips listed",
        ),
        (overwrite("train.txt", "6231/00003\n"), "the clip 6231/00003 stands already in"),
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
    data, prepare, corpus, fails, damage, expected
):
    output = prepare()
    write(output / "nbest" / "conditions", "clean\n")
    before = files_of(output)
    damage(corpus)
    assert expected in fails(data.main, ["--lrs2", corpus, "--output", output])
    assert files_of(output) == before
