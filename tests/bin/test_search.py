"""`bayeslm search`: texts in, ranked architectures out, and what they are trained by themselves."""

import json
import math
import os
import shlex
import signal
import subprocess
import time

import pytest
import torch
import yaml
from command_lines import SHORT, is_whole_png

from espnet_bayeslm.bayes import parse_uncertainty
from espnet_bayeslm.bin import search as tool
from espnet_bayeslm.bin import train as train_tool
from espnet_bayeslm.bin.search import main, without_confs
from espnet_bayeslm.bin.train import best_of
from espnet_bayeslm.lm.lstm import POSITIONS
from espnet_bayeslm.supernet import rank, shares
from espnet_bayeslm.training.load import load_lm
from espnet_bayeslm.training.supernets import load_supernet

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
OPTIONS = ["--lm_conf", "unit=8", "--max_epoch", "1"]


def run(*command):
    main([str(part) for part in command])


@pytest.fixture(scope="module")
def texts(plain_text):
    return [f"--{part}_text={plain_text}/{part}.txt" for part in ("train", "valid")]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("conf") / "search.yaml"
    path.write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def searched(texts, config, point, tmp_path_factory):
    """Return the folder of a search with two seeds whose best two were trained."""
    exp = tmp_path_factory.mktemp("search") / "exp"
    command = [*texts, "--config", config, "--exp", exp, "--from", point, "--seeds", "0,1"]
    run(*command, "--top", "2", "--retrain", "true", *OPTIONS)
    return exp


def test_options_are_left_out_with_their_values():
    words = ["--a", "1", "--lm_conf", "x=1", "--model_conf=y=2", "--lm_confs", "3"]
    assert without_confs(words) == ["--a", "1", "--lm_confs", "3"]


def read_json(path):
    return json.loads(path.read_text())


def test_weights_are_those_of_the_last_step(searched):
    runs = read_json(searched / "search.json")["runs"]
    assert [(r["name"], r["seed"]) for r in runs] == [("seed0", 0), ("seed1", 1)]
    for item in runs:
        folder = searched / item["name"]
        state = torch.load(folder / "checkpoint.pth", weights_only=False)["model"]
        last = json.loads((folder / "architecture.jsonl").read_text().splitlines()[-1])
        assert list(item["weights"]) == LOCATIONS
        for location, kinds in item["weights"].items():
            expected = state[f"lm.search.{location}.weights"].tolist()
            assert list(kinds.values()) == expected
        assert item["weights"] == last["weights"]
        assert item["shares"] == shares(item["weights"])
    assert runs[0]["weights"] != runs[1]["weights"]


def test_the_ranking_is_that_of_the_weights(searched):
    content = read_json(searched / "search.json")
    assert content["num_architectures"] == 8
    expected = rank([r["weights"] for r in content["runs"]], 2)
    for number, (row, item) in enumerate(zip(content["ranking"], expected, strict=True), 1):
        assert row["rank"] == number and row["config"] == f"top{number}.yaml"
        assert row["choices"] == item.choices
        assert row["probability"] == pytest.approx(math.exp(item.mean_log_prob))
        assert tuple(row["ranks"]) == item.ranks and row["mean_rank"] == item.mean_rank


def test_each_yaml_is_its_architecture_and_builds_it(searched):
    for row in read_json(searched / "search.json")["ranking"]:
        text = (searched / row["config"]).read_text()
        content = yaml.safe_load(text)
        kinds = parse_uncertainty(
            content["lm_conf"]["uncertainty"], positions=POSITIONS, num_layers=2
        )
        found = {str(place): kind.name for place, kind in kinds.items()}
        assert found.pop("output_gate@1") == "bayes"
        assert found == {name: k for name, k in row["choices"].items() if k != "point"}
        for place, kind in kinds.items():
            if kind.name == "gp":
                assert kind.options == {"random": ["coefficients"]}, place
        assert content["lm_conf"]["unit"] == 8 and content["max_epoch"] == 1
        same = ("lm", "optim", "optim_conf", "batch_type", "batch_size", "num_att_plot")
        assert {k: content[k] for k in same} == {k: CONFIG[k] for k in same}
        assert "architecture_lr" not in content.get("model_conf", {})
        assert not {"seed", "output_dir", "init_param", "token_list"} & set(content)
        assert text.startswith(f"# Rank {row['rank']} of 8 ")


def test_figures_are_whole(searched):
    assert is_whole_png(searched / "architecture.png") and is_whole_png(searched / "history.png")


def test_the_best_are_trained_from_the_super_network(searched, point):
    results = read_json(searched / "retrain.json")
    ranking = read_json(searched / "search.json")["ranking"]
    assert [r["rank"] for r in results] == [1, 2]
    prior = str((point / "valid.loss.ave.pth").resolve())
    for result, row in zip(results, ranking, strict=True):
        folder = searched / f"top{result['rank']}"
        trained = load_lm(folder)
        expected = {"output_gate@1", *(n for n, k in row["choices"].items() if k != "point")}
        assert set(trained.lm.locations()) == expected
        written = yaml.safe_load((folder / "config.yaml").read_text())
        probabilities = row["probabilities"]
        seed = probabilities.index(max(probabilities))
        assert result["start"] == [str((searched / f"seed{seed}" / "1epoch.pth").resolve())]
        assert written["init_param"] == result["start"]
        assert written["model_conf"]["prior"] == prior and written["seed"] == 0
        assert (result["valid_ppl"], result["epoch"], result["num_epochs"]) == best_of(folder)
        assert 1 < result["valid_ppl"] < len(trained.token_list)


def test_the_command_in_the_yaml_trains_it(searched, plain_text, tmp_path):
    comment = [x for x in (searched / "top1.yaml").read_text().splitlines() if x.startswith("#")]
    first = next(n for n, line in enumerate(comment) if "bayeslm train" in line)
    words = shlex.split(" ".join(line.strip("# \\") for line in comment[first:]))
    assert words[:2] == ["bayeslm", "train"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    options |= {"--exp": f"{tmp_path}/exp", "--seed": "0"}
    options |= {f"--{part}_text": f"{plain_text}/{part}.txt" for part in ("train", "valid")}
    train_tool.main([word for option in options.items() for word in option])
    one, other = (
        load_lm(folder).model.state_dict() for folder in (tmp_path / "exp", searched / "top1")
    )
    assert all(torch.equal(one[key], other[key]) for key in other)


def times(folder):
    return {p.name: p.stat().st_mtime_ns for p in folder.glob("*epoch.pth")}


def test_super_networks_that_a_recipe_trained(searched, tmp_path, capsys):
    before = times(searched / "seed1")
    capsys.readouterr()
    folders = [searched / "seed1", searched / "seed0"]
    run("--supernet", folders[0], "--supernet", folders[1], "--exp", tmp_path, "--top", "100")
    assert times(searched / "seed1") == before
    found, expected = (read_json(f / "search.json") for f in (tmp_path, searched))
    assert [r["name"] for r in found["runs"]] == ["seed1", "seed0"]
    assert len(found["ranking"]) == 8 == len(list(tmp_path.glob("top*.yaml")))
    for row, other in zip(found["ranking"], expected["ranking"], strict=False):
        assert row["choices"] == other["choices"]
        assert row["ranks"] == other["ranks"][::-1]
    one, other = (yaml.safe_load((f / "top1.yaml").read_text()) for f in (tmp_path, searched))
    assert one == other
    out = capsys.readouterr().out
    assert "The best of 8 architectures" in out and "hidden_input@2 gp" in out
    assert not (tmp_path / "retrain.json").exists()


def test_another_architecture_in_the_folder(searched, texts, tmp_path, fails):
    run("--supernet", searched / "seed0", "--exp", tmp_path, "--top", "2")
    (tmp_path / "top1").mkdir()
    other = yaml.safe_load((searched / "seed0" / "config.yaml").read_text())
    (tmp_path / "top1" / "config.yaml").write_text(yaml.safe_dump(other))
    command = ["--supernet", searched / "seed0", "--exp", tmp_path, "--retrain", "true", *texts]
    assert "another architecture" in fails(main, command)


def test_a_search_that_was_killed_goes_on(texts, config, tmp_path, monkeypatch):
    command = [*texts, "--config", config, "--exp", tmp_path / "exp", "--seeds", "0, 1", *OPTIONS]
    train = tool.train

    def killed(**options):
        if "1" in options["espnet_options"][-1:]:
            raise KeyboardInterrupt
        train(**options)

    with monkeypatch.context() as patch:
        patch.setattr(tool, "train", killed)
        with pytest.raises(SystemExit) as stopped:
            run(*command)
    assert stopped.value.code == 130
    assert not (tmp_path / "exp" / "search.json").exists()
    before = times(tmp_path / "exp" / "seed0")
    run(*command)
    assert times(tmp_path / "exp" / "seed0") == before
    runs = read_json(tmp_path / "exp" / "search.json")["runs"]
    assert [r["name"] for r in runs] == ["seed0", "seed1"]


def test_a_search_killed_in_an_epoch_goes_on_with_the_same_weights(python, texts, config, tmp_path):
    command = ["search", *texts, "--config", str(config), "--max_epoch", "5"]
    broken, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    tool = [python, "-m", "espnet_bayeslm.bin.bayeslm", *command, "--exp", str(broken)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FORKED_PID": str(tmp_path / "pid")}
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(tool, stderr=log, env=environment)
        while not (broken / "seed0" / "2epoch.pth").exists() and process.poll() is None:
            time.sleep(0.005)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    assert not (broken / "search.json").exists()
    for exp in (broken, unbroken):
        run(*command[1:], "--exp", exp)
    found = [read_json(exp / "search.json")["runs"][0]["weights"] for exp in (broken, unbroken)]
    assert found[0] == found[1]
    histories = [(exp / "seed0" / "architecture.jsonl").read_text() for exp in (broken, unbroken)]
    assert histories[0] == histories[1]


@pytest.fixture
def space(tmp_path):
    """Return a function that writes a configuration with this `uncertainty`."""

    def write(uncertainty):
        lm_conf = {**CONFIG["lm_conf"], "uncertainty": uncertainty}
        (tmp_path / "conf.yaml").write_text(yaml.safe_dump({**CONFIG, "lm_conf": lm_conf}))
        return tmp_path / "conf.yaml"

    return write


@pytest.mark.parametrize("uncertainty", [None, {}, {"cell_input@1": "bayes"}, "search"])
def test_nothing_to_search(uncertainty, space, texts, tmp_path, refused):
    command = [*texts, "--config", space(uncertainty), "--exp", tmp_path / "exp"]
    refused(main, command, "empty search space", "conf.yaml")


def test_a_super_network_without_a_search(bayes, tmp_path, refused):
    refused(main, ["--supernet", bayes, "--exp", tmp_path], "empty search space")


@pytest.mark.parametrize(
    "options, words",
    [
        (["--top", "0"], "--top 0"),
        (["--top", "-3"], "--top -3"),
        *((["--seeds", s], "--seeds") for s in ("", ",", "a", "1,", "-1", "1.5", "0,0", "0-2")),
        (["--seed", "1"], "--seeds"),
        (["--seed=1"], "--seeds"),
        (["--output_dir", "x"], "--exp"),
        (["--supernet", "x"], "--config, "),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--from", "missing"], "missing"),
    ],
)
def test_options_that_make_no_sense(options, words, config, texts, tmp_path, refused):
    refused(main, [*texts, "--config", config, "--exp", tmp_path / "exp", *options], words)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--train_text", "x"], "--train_text"),
        (["--max_epoch", "3"], "--max_epoch"),
        (["--seeds", "0"], "--seeds"),
        (["--from", "x"], "--from"),
        (["--retrain", "true"], "--train_text"),
        (["--retrain", "true", "--train_text", "x"], "--valid_text"),
    ],
)
def test_options_that_make_no_sense_with_super_networks(options, words, tmp_path, refused):
    refused(main, ["--supernet", "missing", "--exp", tmp_path / "exp", *options], words)


@pytest.mark.parametrize("given", ["train_text", "config"])
def test_what_is_missing_is_named(given, tmp_path, refused):
    command = [f"--{given}", "x", "--exp", tmp_path / "exp"]
    refused(main, command, "--valid_text", "--supernet")


@pytest.mark.parametrize("name", ["config.yaml", "checkpoint.pth"])
def test_a_folder_that_holds_no_super_network(name, searched, tmp_path, refused):
    for file in {"config.yaml", "checkpoint.pth"} - {name}:
        (tmp_path / file).write_bytes((searched / "seed0" / file).read_bytes())
    refused(main, ["--supernet", tmp_path, "--exp", tmp_path / "exp"], name, str(tmp_path))


@pytest.fixture
def weigh(searched, tmp_path):
    """Return a function that gives the first path of a super-network in tmp_path this weight."""

    def write(weight):
        (tmp_path / "config.yaml").write_text((searched / "seed0" / "config.yaml").read_text())
        state = torch.load(searched / "seed0" / "checkpoint.pth", weights_only=False)["model"]
        state["lm.search.cell_input@1.weights"][0] = weight
        torch.save({"model": state}, tmp_path / "checkpoint.pth")

    return write


def test_weights_that_are_no_numbers(weigh, tmp_path, refused):
    weigh(math.nan)
    command = ["--supernet", tmp_path, "--exp", tmp_path / "exp"]
    refused(main, command, "checkpoint.pth", "cell_input@1")


def test_a_share_of_zero_is_valid_json(weigh, tmp_path):
    weigh(-math.inf)
    assert load_supernet(tmp_path).history == []
    run("--supernet", tmp_path, "--exp", tmp_path / "exp", "--top", "5")
    content = read_json(tmp_path / "exp" / "search.json")
    assert content["runs"][0]["weights"]["cell_input@1"]["point"] is None
    assert content["ranking"][4]["probability"] == 0
    assert not (tmp_path / "exp" / "history.png").exists()
