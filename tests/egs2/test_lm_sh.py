"""lm.sh: its options, and its stages with programs that only record how they were called."""

import sys

import pytest
from recipe_files import RECIPES, run_script
from written_files import write

RECORDER = """#!{python}
import pathlib, sys
words = sys.argv[1:]
with open("calls", "a") as f:
    print("\\t".join(words), file=f)
def option(name):
    return words[words.index(name) + 1]
if "espnet2.bin.tokenize_text" in words:
    pathlib.Path(option("--output")).write_text("<blank>\\n<unk>\\na\\n<sos/eos>\\n")
elif "--collect_stats" in words:
    for name in ("train", "valid"):
        folder = pathlib.Path(option("--output_dir")) / name
        folder.mkdir(parents=True)
        keys = pathlib.Path(option(f"--{{name}}_shape_file")).read_text().splitlines()
        (folder / "text_shape").write_text("".join(key.split()[0] + " 1\\n" for key in keys))
elif "espnet2.bin.lm_calc_perplexity" in words:
    folder = pathlib.Path(option("--output_dir"))
    folder.mkdir(exist_ok=True)
    (folder / "ppl").write_text("12.5\\n")
print("an output")
sys.exit(3 if "--fail" in words else 0)
"""


@pytest.fixture
def lm_sh(tmp_path, monkeypatch):
    """Return a function that runs lm.sh in an empty folder with some text."""
    write(tmp_path / "recorder", RECORDER.format(python=sys.executable))
    write(tmp_path / "train" / "text", "u1 a a\nu2 a\nu3 b a\n")
    write(tmp_path / "dev" / "text", "v1 a\nv2 b\n")
    (tmp_path / "tiny.yaml").write_text("max_epoch: 1\n")
    for name in ("train_cmd", "cuda_cmd"):
        monkeypatch.delenv(name, raising=False)

    def run(*words, texts=True):
        command = [RECIPES / "sotu" / "lm" / "lm.sh", "--python", "./recorder", *words]
        if texts:
            command += ["--train_text", "train/text", "--valid_text", "dev/text"]
        return run_script(tmp_path, *command)

    run.folder = tmp_path
    return run


def calls(folder):
    return [line.split("\t") for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize("spelling", ["--lm_config", "--lm_conf", "--lm-config"])
def test_all_stages_with_either_spelling(lm_sh, spelling):
    done = lm_sh(spelling, "tiny.yaml", "--lm_args", "--max_epoch 2", "--nj", "2")
    assert done.returncode == 0, done.stderr
    programs = [words[1] for words in calls(lm_sh.folder)]
    bin = "espnet2.bin."
    assert programs == [
        bin + "tokenize_text",
        *[bin + "lm_train"] * 3,  # two jobs of statistics, and the training
        bin + "lm_calc_perplexity",
    ]
    train = calls(lm_sh.folder)[3]
    assert train[train.index("--config") + 1] == "tiny.yaml"
    assert train[-2:] == ["--max_epoch", "2"]
    assert train[train.index("--output_dir") + 1] == "exp/lm_tiny_max_epoch2_word"
    stats = lm_sh.folder / "exp" / "lm_stats_word" / "train"
    assert (stats / "text_shape").read_text() == "u1 1\nu2 1\nu3 1\n"
    assert (stats / "text_shape.word").read_text() == "u1 1,4\nu2 1,4\nu3 1,4\n"
    assert "perplexity: 12.5" in done.stdout
    assert (lm_sh.folder / "exp/lm_tiny_max_epoch2_word/train.log").read_text() == "an output\n"


def test_stages_alone_and_failures(lm_sh):
    assert lm_sh("--stage", "1", "--stop_stage", "1", "--token_type", "char").returncode == 0
    assert lm_sh("--stage", "2", "--stop_stage", "2", "--lm_conf", "tiny.yaml").returncode == 1
    assert len(calls(lm_sh.folder)) == 1
    lm_sh("--stop_stage", "1")
    done = lm_sh("--stage", "2", "--lm_config", "tiny.yaml", "--lm_args", "--fail")
    assert done.returncode == 1
    assert "an output" in done.stderr and "log:" in done.stderr
    assert not (lm_sh.folder / "exp" / "lm_stats_word").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--lm_cnofig", "x.yaml"], "unknown option '--lm_cnofig'"),
        (["--PATH", "x"], "unknown option '--PATH'"),
        (["tiny.yaml"], "expected --option value, got 'tiny.yaml'"),
        (["--nj"], "needs a value"),
        (["--token_type", "phone", "--lm_config", "tiny.yaml"], "expected word, bpe or char"),
        (["--lm_config", "tiny.yaml", "--lm_conf", "other.yaml"], "two names of one option"),
        (["--stage", "2", "--lm_config", "missing.yaml"], "no such file"),
    ],
)
def test_wrong_options_are_errors(lm_sh, words, message):
    done = lm_sh(*words, texts=words != ["--nj"])
    assert done.returncode == 1
    assert message in done.stderr
    assert not (lm_sh.folder / "calls").exists()


def test_inside_an_espnet_checkout_its_utils_and_cmd_sh_are_used(lm_sh):
    parse = 'echo parsed; while [ $# -gt 0 ]; do printf -v "${1#--}" "%s" "$2"; shift 2; done\n'
    write(lm_sh.folder / "utils" / "parse_options.sh", parse)
    (lm_sh.folder / "path.sh").write_text('PATH="$PWD/utils:$PATH"\n')
    (lm_sh.folder / "cmd.sh").write_text("train_cmd=run.pl\ncuda_cmd=run.pl\n")
    write(lm_sh.folder / "utils" / "run.pl", '#!/bin/sh\necho "$@" >> by_run_pl\n')
    lm_sh("--stop_stage", "1")
    done = lm_sh("--stage", "3", "--stop_stage", "3", "--lm_config", "tiny.yaml", "--ngpu", "1")
    assert done.returncode == 0, done.stderr
    assert "parsed" in done.stdout
    (line,) = (lm_sh.folder / "by_run_pl").read_text().splitlines()
    assert line.startswith("--gpu 1 exp/lm_tiny_word/train.log ./recorder -m espnet2.bin.lm_train")
