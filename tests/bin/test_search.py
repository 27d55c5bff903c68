"""`bayeslm search`: texts in, ranked architectures out, and what they are trained by themselves."""

import json
import shlex
import shutil
import signal
import time

import pytest
import torch
import yaml
from command_lines import SHORT, is_whole_png
from training.forked import CONTEXT

from espnet_bayeslm.bin import train as train_tool
from espnet_bayeslm.bin.search import main, without_confs
from espnet_bayeslm.bin.train import best_of
from espnet_bayeslm.kinds.architectures import rank
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.utils.cli import parse_numbers
from espnet_bayeslm.utils.errors import InputError

GP = {"kind": "gp", "random": ["coefficients"]}
CONFIG = {
    "lm": "bayes_lstm",
    "lm_conf": {
        "unit": 6,
        "dropout_rate": 0.0,
        "uncertainty": {
            "cell_input@1-2": {"kind": "search", "candidates": ["point", "bayes"]},
            "hidden_input@2": {"kind": "search", "candidates": ["point", GP]},
            "output_gate@1": "bayes",
        },
    },
    "model_conf": {"architecture_lr": 0.05},
    "optim": "adam",
    "optim_conf": {"lr": 0.02},
    **SHORT,
}
LOCATIONS = ["cell_input@1", "cell_input@2", "hidden_input@2"]
# what differs from the file in all tests: the options of a command line must count
OPTIONS = ["--lm_conf", "unit=8", "--max_epoch", "1", "--seeds", "0,1"]


def run(*command):
    main([str(part) for part in command])


@pytest.fixture(scope="module")
def given(plain_text, point, tmp_path_factory):
    """Return the options that name texts, configuration and start."""
    path = tmp_path_factory.mktemp("conf") / "search.yaml"
    path.write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    texts = [f"--{part}_text={plain_text}/{part}.txt" for part in ("train", "valid")]
    return [*texts, "--config", path, "--from", point]


@pytest.fixture(scope="module")
def searched(given, tmp_path_factory):
    """Return the folder of a search with two seeds whose best two were trained."""
    exp = tmp_path_factory.mktemp("search") / "exp"
    run(*given, "--exp", exp, "--top", "2", "--retrain", "true", *OPTIONS)
    return exp


@pytest.fixture
def copied(searched, tmp_path):
    return shutil.copytree(searched, tmp_path / "copied", symlinks=True)


def read_json(path):
    return json.loads(path.read_text())


def times(folder):
    return {p.name: p.stat().st_mtime_ns for p in folder.glob("*epoch.pth")}


def test_the_ranking_is_that_of_the_last_step_and_has_a_yaml_each(searched, point):
    content = read_json(searched / "search.json")
    runs = content["runs"]
    assert [(r["name"], r["seed"]) for r in runs] == [("seed0", 0), ("seed1", 1)]
    for item in runs:
        folder = searched / item["name"]
        state = torch.load(folder / "checkpoint.pth", weights_only=False)["model"]
        last = json.loads((folder / "architecture.jsonl").read_text().splitlines()[-1])
        assert item["weights"] == last["weights"] and list(item["weights"]) == LOCATIONS
        for location, kinds in item["weights"].items():
            assert list(kinds.values()) == state[f"lm.search.{location}.weights"].tolist()
    ranking = rank([r["weights"] for r in runs], 2)
    assert [row["choices"] for row in content["ranking"]] == [item.choices for item in ranking]
    assert is_whole_png(searched / "architecture.png") and is_whole_png(searched / "history.png")
    for row in content["ranking"]:
        config = yaml.safe_load((searched / row["config"]).read_text())
        assert config["lm_conf"]["unit"] == 8 and config["max_epoch"] == 1
        assert config.items() >= {k: CONFIG[k] for k in ("lm", "optim_conf", "batch_size")}.items()
        prior = str((point / "valid.loss.ave.pth").resolve())
        assert config["model_conf"] == {"prior": prior}
        assert not {"seed", "output_dir", "init_param", "token_list"} & set(config)


def test_the_best_are_trained_from_the_super_network(searched, point):
    results = read_json(searched / "retrain.json")
    ranking = read_json(searched / "search.json")["ranking"]
    for result, row in zip(results, ranking, strict=True):
        folder = searched / f"top{row['rank']}"
        trained = load_lm(folder)
        expected = {"output_gate@1", *(n for n, k in row["choices"].items() if k != "point")}
        assert set(trained.lm.locations()) == expected
        written = yaml.safe_load((folder / "config.yaml").read_text())
        seed = row["probabilities"].index(max(row["probabilities"]))
        assert result["start"] == [str((searched / f"seed{seed}" / "1epoch.pth").resolve())]
        assert written["init_param"] == result["start"] and written["seed"] == 0
        assert written["model_conf"]["prior"] == str((point / "valid.loss.ave.pth").resolve())
        assert (result["valid_ppl"], result["epoch"], result["num_epochs"]) == best_of(folder)


def test_the_command_in_the_yaml_trains_it(searched, plain_text, tmp_path):
    comment = [x for x in (searched / "top1.yaml").read_text().splitlines() if x.startswith("#")]
    first = next(n for n, line in enumerate(comment) if "bayeslm train" in line)
    words = shlex.split(" ".join(line.strip("# \\") for line in comment[first:]))
    assert words[:2] == ["bayeslm", "train"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    options |= {"--exp": f"{tmp_path}/exp", "--seed": "0", "--use_matplotlib": "false"}
    options |= {f"--{part}_text": f"{plain_text}/{part}.txt" for part in ("train", "valid")}
    train_tool.main([word for option in options.items() for word in option])
    folders = (tmp_path / "exp", searched / "top1")
    one, other = (load_lm(folder).model.state_dict() for folder in folders)
    assert all(torch.equal(one[key], other[key]) for key in other)


def test_the_same_command_ranks_again(given, searched, copied, capsys, fails):
    before = times(copied / "seed1")
    run(*given, *OPTIONS, "--exp", copied, "--top", "100")
    assert times(copied / "seed1") == before
    found, expected = (read_json(f / "search.json")["ranking"] for f in (copied, searched))
    assert found[:2] == expected and len(found) == 8 == len(list(copied.glob("top*.yaml")))
    out = capsys.readouterr().out
    assert "The best of 8 architectures" in out and "hidden_input@2  gp" in out
    shutil.rmtree(copied / "top1")
    (copied / "top2").rename(copied / "top1")
    command = [*given, *OPTIONS, "--exp", copied, "--top", "2", "--retrain=true"]
    assert "another architecture" in fails(main, command)


def test_a_search_killed_in_an_epoch_goes_on_with_the_same_weights(given, tmp_path):
    command = [*map(str, given), "--lm_conf", "unit=8", "--max_epoch", "2"]
    broken, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    both = [*command, "--seeds", "0,1", "--exp", str(broken)]
    process = CONTEXT.Process(target=run, args=both)
    process.start()
    while not (broken / "seed1" / "1epoch.pth").exists() and process.is_alive():
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (broken / "search.json").exists()
    before = times(broken / "seed0")
    run(*command, "--seeds", "0,1", "--exp", broken)
    run(*command, "--seeds", "1", "--exp", unbroken)
    assert times(broken / "seed0") == before
    found = [read_json(exp / "search.json")["runs"][-1]["weights"] for exp in (broken, unbroken)]
    assert found[0] == found[1]
    histories = [(exp / "seed1" / "architecture.jsonl").read_text() for exp in (broken, unbroken)]
    assert histories[0] == histories[1]


@pytest.mark.parametrize(
    "options, words",
    [
        ("--top 0", "--top 0"),
        ("--seeds a", "--seeds 'a'"),
        ("--seed=1", "--seeds"),
        ("--output_dir x", "--exp"),
        ("--config missing.yaml", "missing.yaml"),
        ("--config bayes_lstm", "empty search space"),
        ("--from missing", "missing"),
    ],
)
def test_options_that_make_no_sense(options, words, given, tmp_path, refused):
    refused(main, [*given, "--exp", tmp_path / "exp", *options.split()], words)


def test_numbers_of_an_option():
    assert parse_numbers("--seeds", "0, 2,1") == (0, 2, 1)
    assert parse_numbers("--prune_steps", "0.5,0 1", float, most=1) == (0.5, 0, 1)
    assert parse_numbers("--prune_steps", 0, float, most=1) == (0,)  # as of a --config file
    for seeds in ("", "-1", "1.5", "0,0", "0-2"):
        with pytest.raises(InputError, match="--seeds"):
            parse_numbers("--seeds", seeds)


def test_options_are_left_out_with_their_values():
    words = ["--a", "1", "--lm_conf", "x=1", "--model_conf=y=2", "--lm_confs", "3"]
    assert without_confs(words) == ["--a", "1", "--lm_confs", "3"]
