"""N-best lists of the AMI recipe: archives of several sets and conditions."""

import shutil

import pytest
from recipe_files import run_script
from written_files import write

from espnet_bayeslm.nbest.formats import read_nbest
from lab import lists


def write_archive(folder, utts, **more):
    """Write an archive of two hypotheses for each utterance, and its references."""
    columns = {"words_text": ("A B-b", ""), "acwt": ("10.5", "11.25")}
    columns |= {"lmwt.nolm": ("1", "1.5"), "lmwt.withlm": ("3.0", "4")}
    for name, values in columns.items():
        lines = [f"{utt}-{n} {value}" for utt in utts for n, value in enumerate(values, 1)]
        write(folder / name, "".join(f"{line.rstrip()}\n" for line in lines))
    write(folder / "text", "".join(f"{utt} A c\n" for utt in utts))


@pytest.fixture
def archives(tmp_path):
    for name in ("dev_ihm", "dev_sdm1", "eval_ihm", "eval_sdm1"):
        write_archive(tmp_path / "lists" / name, [f"{name}_U1", f"{name}_U2"])
    return tmp_path / "lists"


def test_archives_are_put_in_one_form(archives, tmp_path):
    # one of them in two parts, in a decode folder beside the lattices that it was made of
    decode = archives / "decode_dev_ihm"
    shutil.move(archives / "dev_ihm" / "text", write(decode / "num_jobs", "2\n").parent)
    shutil.rmtree(archives / "dev_ihm")
    write_archive(decode / "archives.1", ["dev_ihm_U1"])
    write_archive(decode / "archives.2", ["dev_ihm_U2"])
    write(decode / "lat.1.gz", "not read")
    write(archives / "README", "left out")
    output = tmp_path / "out"
    lists.main(["--nbest", str(archives), "--output", str(output)])
    assert (output / "conditions").read_text() == "ihm\nsdm1\n"
    assert sorted(path.name for path in output.iterdir()) == [
        *("conditions", "dev_ihm", "dev_sdm1", "eval_ihm", "eval_sdm1")
    ]
    written = {path.name: path.read_text() for path in (output / "dev_ihm").iterdir()}
    assert written == {
        "words_text": "dev_ihm_U1-1 a b-b\ndev_ihm_U1-2\ndev_ihm_U2-1 a b-b\ndev_ihm_U2-2\n",
        "acwt": "dev_ihm_U1-1 10.5\ndev_ihm_U1-2 11.25\ndev_ihm_U2-1 10.5\ndev_ihm_U2-2 11.25\n",
        "lmwt.nolm": "dev_ihm_U1-1 1\ndev_ihm_U1-2 1.5\ndev_ihm_U2-1 1\ndev_ihm_U2-2 1.5\n",
        "lmwt.withlm": "dev_ihm_U1-1 3\ndev_ihm_U1-2 4\ndev_ihm_U2-1 3\ndev_ihm_U2-2 4\n",
        "text": "dev_ihm_U1 a c\ndev_ihm_U2 a c\n",
    }
    lists.main(["--nbest", str(archives), "--output", str(output)])  # once more


def test_lattices_become_archives(archives, tmp_path):
    folder = archives / "dev_ihm"
    for name in ("words_text", "acwt", "lmwt.nolm", "lmwt.withlm"):
        (folder / name).unlink()
    # two paths, words as ids of words.txt
    arcs = "0 1 1 2.5,10.5,7\n0 1 2 3.5,10.5,7\n1 0.5,0,\n\n"
    write(folder / "all.lats", "".join(f"dev_ihm_U{n} \n{arcs}" for n in (1, 2)))
    write(folder / "words.txt", "<eps> 0\nYES 1\nno 2\n")
    output = tmp_path / "out"
    lists.main(["--nbest", str(archives), "--output", str(output), "--num_best", "1"])
    (found, _) = read_nbest(output / "dev_ihm", "kaldi")
    (best,) = found.hypotheses
    assert (best.words, best.am_score, best.lm_score) == (("yes",), -10.5, -3)


def test_references_of_their_own(archives, tmp_path, caplog):
    for path in archives.glob("*/text"):
        write(tmp_path / "refs" / path.parent.name / "text", path.read_text())
        path.unlink()
    options = ["--nbest", str(archives), "--output", str(tmp_path / "out")]
    options += ["--references", str(tmp_path / "refs")]
    # one text for all conditions of a set, with an utterance that has no list
    texts = [tmp_path / "refs" / f"dev_{name}" / "text" for name in ("ihm", "sdm1")]
    write(tmp_path / "refs" / "dev" / "text", "".join(t.read_text() for t in texts) + "U3 x\n")
    texts[1].unlink()
    lists.main(options)
    assert (tmp_path / "out" / "dev_sdm1" / "text").read_text() == (
        "dev_sdm1_U1 a c\ndev_sdm1_U2 a c\n"
    )
    assert "3 utterances have no list" in caplog.text
    assert (tmp_path / "out" / "eval_sdm1" / "text").read_text().count("\n") == 2


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda lists: shutil.rmtree(lists), "no such folder"),
        (lambda lists: [shutil.rmtree(p) for p in lists.iterdir()], "no lists of these sets"),
        (lambda lists: (lists / "dev_ihm" / "text").unlink(), "no references; looked for"),
        (lambda lists: write(lists / "dev_ihm" / "text", "other x\n"), "'dev_ihm_U1', which has"),
        (lambda lists: (lists / "decode_dev_ihm").mkdir(), "dev_ihm: decode_dev_ihm is there too"),
        (lambda lists: (lists / "dev_ihm" / "words_text").unlink(), "neither an N-best archive"),
        (lambda lists: write(lists / "dev_ihm" / "acwt", "dev_ihm_U1-1 x\n"), "acwt"),
    ],
)
def test_lists_that_cannot_be_used(archives, refused, change, said):
    change(archives)
    line = refused(archives)
    assert said in line and str(archives) in line


def test_bad_options_and_folders(archives, tmp_path, refused, fails):
    for options, said in (
        (["--sets", ""], "--sets ''"),
        (["--sets", "dev dev"], "each once"),
        (["--num_best", 0], "--num_best 0"),
        (["--nbest", ""], "no N-best lists given"),
    ):
        assert said in refused(archives, *options)
    write(tmp_path / "data" / "train" / "text", "a b\n")
    said = fails(lists.main, ["--nbest", archives, "--output", tmp_path / "data"])
    assert "does not hold lists" in said
    assert (tmp_path / "data" / "train" / "text").exists()
    shutil.rmtree(archives / "eval_sdm1")
    shutil.move(archives / "dev_ihm", archives / "dev_mdm8")
    said = refused(archives)
    assert "dev_ihm, eval_mdm8, eval_sdm1 missing" in said


def test_other_sets_through_the_shell_script(archives, place):
    place = place("lrs2", "db.sh")
    write(place / "db.sh", "NBEST=/nowhere\n")
    for path in archives.iterdir():
        path.rename(archives / path.name.replace("eval", "test").replace("dev", "val"))
    given = {"NBEST": str(archives)}
    result = run_script(place, "local/nbest.sh", "--sets", "val test", **given)
    assert result.returncode == 0, result.stderr
    output = place / "data" / "nbest"
    assert (output / "conditions").read_text() == "ihm\nsdm1\n"
    assert (output / "val_ihm" / "words_text").exists() and (output / "test_sdm1").is_dir()
