"""The recipe of speechocean762: its data, tables, and all stages on tiny models."""

import importlib.util
import json
import random
import shutil
import sys

import numpy as np
import pytest
import soundfile
from recipe_files import RECIPES, ROOT, run_script
from written_files import write

RECIPE = RECIPES / "speechocean762" / "asr1"
sys.path.insert(0, str(ROOT / "tests" / "decoding"))
WORDS = "so we could put it there the remote is on table yes".split()  # noqa: SIM905


def module(name):
    """Return a module of the recipe's local/."""
    spec = importlib.util.spec_from_file_location(f"of_{name}", RECIPE / "local" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def write_set(folder, texts, paths):
    """Write text and wav.scp of {utterance: sentence} and {utterance: what reads it}."""
    write(folder / "text", "".join(f"{utt}\t{text}\n" for utt, text in texts.items()))
    write(folder / "wav.scp", "".join(f"{utt}\t{paths[utt]}\n" for utt in texts))


def rows_of(path):
    """Return {key: rest of the line}."""
    return dict(line.partition(" ")[::2] for line in path.read_text().splitlines())


def prepared(folder, *options):
    """Prepare data in a folder, and return the folder."""
    module("data").main(["--source", str(folder), "--output", str(folder / "out"), *options])
    return folder / "out"


def test_the_corpus_own_layout(tmp_path):
    """Dev has every fifth speaker of train, whose sentences are in no other set."""
    texts, speakers, paths = {"train": {}, "test": {}}, {}, {}
    for speaker in range(12):
        for number in range(3):
            utt = f"{speaker:04d}{number:05d}"
            part = "test" if speaker % 2 else "train"
            texts[part][utt] = f"SENTENCE {'A' * (speaker + 1)}, {'B' * (number + 1)}"
            speakers[utt] = f"{speaker:04d}"
            paths[utt] = f"WAVE/SPEAKER{speaker:04d}/{utt}.WAV"
            write(tmp_path / paths[utt], "")
    texts["train"]["000200009"] = texts["test"]["000100001"]  # of test too
    texts["train"]["000400009"] = texts["train"]["000000001"]  # of dev too
    for utt in ("000200009", "000400009"):
        speakers[utt], paths[utt] = utt[:4], paths["000000000"]
    for part in texts:
        write_set(tmp_path / part, texts[part], paths)
        write(tmp_path / part / "utt2spk", "".join(f"{u} {speakers[u]}\n" for u in texts[part]))
    out = prepared(tmp_path)
    dev, test = (rows_of(out / name / "text") for name in ("dev", "test"))
    assert {speakers[utt] for utt in dev} == {"0000", "0010"} and dev.keys() == {
        utt for utt in texts["train"] if speakers[utt] in ("0000", "0010")
    }
    assert test.keys() == texts["test"].keys() and test["000100001"] == "sentence aa bb"
    assert rows_of(out / "test" / "wav.scp")["000100001"] == str(tmp_path / paths["000100001"])
    train = (out / "train.txt").read_text().splitlines()
    expected = {t.lower().replace(",", "") for u, t in texts["train"].items() if u not in dev}
    assert set(train) == expected - {*test.values()} - {*dev.values()} and len(train) == 4 * 3


def test_folders_of_kaldi(tmp_path, fails):
    """Sentences of test leave dev; paths are seen from the source, the folder, or a command."""
    for name in ("a.flac", "dev_other/b.wav", "c.flac"):
        write(tmp_path / name, "")
    texts = {"d1": "Yes.", "d2": "the TEST", "d3": "", "d4": "more"}
    paths = dict.fromkeys(texts, "a.flac") | {"d4": "b.wav"}
    write_set(tmp_path / "dev_other", texts, paths)
    command = f"flac -c -d -s {tmp_path}/c.flac |"
    write_set(tmp_path / "test", {"t1": "The test!"}, {"t1": command})
    write(tmp_path / "train" / "text", "x YES\ny the end\nz The END\n")
    out = prepared(tmp_path, "--dev", "dev_other")
    assert rows_of(out / "dev" / "text") == {"d1": "yes", "d4": "more"}
    assert rows_of(out / "dev" / "wav.scp")["d4"] == str(tmp_path / "dev_other/b.wav")
    assert rows_of(out / "test" / "wav.scp") == {"t1": str(tmp_path / "c.flac")}
    assert (out / "train.txt").read_text() == "the end\n"
    (tmp_path / "c.flac").unlink()
    words = ["--source", str(tmp_path), "--output", "x", "--dev", "dev_other"]
    assert "wav.scp:1: no audio file in 'flac -c" in fails(module("data").main, words)


def test_decoys_lack_what_was_said(tmp_path):
    write(tmp_path / "ref", "u1 anna came\nu2 no one\n")
    rows = [{"utt": "u1", "words": ["anna", "bob"]}, {"utt": "u2", "words": ["anna", "bob"]}]
    write(tmp_path / "lists", "".join(json.dumps(row) + "\n" for row in rows))
    words = ("--ref", "ref", "--bias", "lists", "--output", "decoys")
    done = run_script(tmp_path, "-c", f"$PYTHON -m lab.bias_lists decoys {' '.join(words)}")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line)["words"] for line in (tmp_path / "decoys").read_text().splitlines()]
    assert found == [["bob"], ["anna", "bob"]]


def test_tables(tmp_path):
    """Counted by hand: errors, utterances that are better and worse, populations, seconds."""
    exp = tmp_path / "exp"
    write(tmp_path / "ref", "96a one two anna\nb one two\nc one\n")
    write(tmp_path / "bias", '{"utt": "96a", "words": ["anna"]}\n')
    write(exp / "first", "96a one two Ana\nb one\nc one\n")
    write(exp / "names", "96a one two anna\nb one\nc won\n")
    write(exp / "decoys", "96a one two\nb one two\nc one\n")
    write(exp / "seconds" / "first_test.00", "4.0\n")
    write(exp / "seconds" / "first_test.01", "2.0\n")
    rows = [
        {"system": "first", "text": "first", "seconds": ["first_test"]},
        {"system": "names", "text": "names", "seconds": [], "against": "first", "decoys": "decoys"},
        {"system": "not run", "text": "nothing", "seconds": []},
    ]
    write(tmp_path / "plan", json.dumps(rows))
    files = {"plan": "plan", "ref": "ref", "bias": "bias", "output": "out", "exp": "exp"}
    words = [f"--{name}={tmp_path / file}" for name, file in files.items()]
    module("table").main([*words, "--population", "^96"])
    lines = (tmp_path / "out").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    assert cells[2] == ["1", "first", "2", "33.33", "", "", ""]
    assert cells[3][:6] == ["2", "names", "2", "33.33", "1", "1"]
    assert cells[6] == ["1", "first", "", "", "20.00", "100.00", ""]
    assert [cells[7][n] for n in (0, 1, 2, 4, 5)] == ["2", "names", "1", "40.00", "0.00"]
    assert cells[10] == ["1", "first", "33.33", "33.33", "", "2.00"]
    assert cells[11] == ["2", "names", "0.00", "66.67", "16.67", ""]
    assert len(cells) == 12 and lines[0].startswith("3 utterances, 6 words")


def write_speech(folder, rng):
    """Write dev and test with recordings of noise, and a training text."""
    sentences = {" ".join(rng.choices(WORDS, k=rng.randint(2, 5))) for _ in range(80)}
    sentences = sorted(sentences)
    for name, count in (("dev", 24), ("test", 6)):
        texts = {f"{name}{n:02d}": sentences.pop() for n in range(count)}
        for utt in texts:
            noise = np.random.default_rng(len(utt) + int(utt[-2:])).uniform(-0.3, 0.3, 8000)
            write(folder / name / f"{utt}.wav", "")
            soundfile.write(folder / name / f"{utt}.wav", noise, 16000)
        write_set(folder / name, texts, {utt: f"{utt}.wav" for utt in texts})
    write(folder / "train.txt", "".join(f"{sentence}\n" for sentence in sentences * 3))


@pytest.mark.slow
def test_all_stages_on_tiny_models(tmp_path):
    """The table has all rows; a second run does nothing again."""
    import transformers
    from pretrained.tiny_models import write_model
    from tiny_whisper import FEATURES, tiny_tokenizer, tiny_whisper

    write_speech(tmp_path / "speech", random.Random(1))
    tokenizer = tiny_tokenizer()
    extractor = transformers.WhisperFeatureExtractor(feature_size=FEATURES, chunk_length=2)
    transformers.WhisperProcessor(extractor, tokenizer).save_pretrained(tmp_path / "whisper")
    tiny_whisper(tokenizer, length=60).save_pretrained(tmp_path / "whisper")
    write_model(tmp_path / "llm")
    root = tmp_path / "egs2" / "speechocean762" / "asr1"
    shutil.copytree(RECIPE, root, ignore=shutil.ignore_patterns("data", "exp"))
    (tmp_path / "egs2" / "TEMPLATE").symlink_to(RECIPES / "TEMPLATE")
    write(tmp_path / "more.txt", "the remote is on the table\nyes we could\n" * 4)
    options = {"data": tmp_path / "speech", "model": tmp_path / "whisper", "precision": "float32"}
    options |= {"smollm2": tmp_path / "llm", "lm_text": tmp_path / "more.txt", "num_tune": 12}
    options |= {"num_common": 6, "population": "[05]$", "num_adapt": 20}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = run_script(root, "run.sh", *words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    table = (root / "exp" / "RESULTS.md").read_text()
    plan = (RECIPE / "conf" / "plan.yaml").read_text().splitlines()
    assert table.count("\n| 15 | ") == 3 and len([x for x in plan if x.startswith("-")]) == 15
    assert " | 0.00 |\n" not in table.partition("| s |")[2]
    made = {path: path.stat().st_mtime_ns for path in root.glob("exp/*/*") if path.is_file()}
    again = run_script(root, "run.sh", "--stage", 3, *words)
    assert again.returncode == 0 and (root / "exp" / "RESULTS.md").read_text() == table
    kept = [path for path in made if path.parent.name in ("lists", "seconds", "encoded")]
    assert kept and all(path.stat().st_mtime_ns == made[path] for path in kept)
