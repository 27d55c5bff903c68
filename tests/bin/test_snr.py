"""`bayeslm snr` on tiny trained LMs, against `bayeslm perplexity` and by hand."""

import hashlib
import json

import pytest
import torch
from command_lines import is_whole_png, perplexities
from written_files import write

from espnet_bayeslm.bin.snr import main
from espnet_bayeslm.evaluation.signal_to_noise import summarize_weights
from espnet_bayeslm.loading.trained_lm import load_lm


def run(*command):
    main([str(part) for part in command])


def save_lm(trained, state, folder):
    write(folder / "config.yaml", trained.config.read_text())
    torch.save(state, folder / "valid.loss.ave.pth")
    return folder


@pytest.fixture(scope="module")
def uneven(bayes, tmp_path_factory):
    """Return an LM whose standard deviations differ, as they do after a long training."""
    trained, generator = load_lm(bayes), torch.Generator().manual_seed(5)
    state = {
        key: value + torch.randn(value.shape, generator=generator)
        if key.endswith("_log_std")
        else value
        for key, value in trained.model.state_dict().items()
    }
    return save_lm(trained, state, tmp_path_factory.mktemp("lms") / "uneven")


def test_table_json_and_figure(uneven, tmp_path, capsys):
    run("--lm", uneven, "--lm", uneven / "valid.loss.ave.pth", "--output", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"snr.json", "snr.png", "command"}
    assert is_whole_png(tmp_path / "snr.png")
    content = json.loads((tmp_path / "snr.json").read_text())
    assert list(content["lms"]) == ["uneven", "uneven#2"]
    (row,) = content["lms"]["uneven"]
    (expected,) = summarize_weights(load_lm(uneven).lm.posterior.blocks())
    assert (row["location"], row["kind"]) == ("cell_input@1", "weights")
    assert row["count"] == sum(row["histogram"]) == expected.count
    assert len(row["histogram"]) == len(content["histogram_edges"]) - 1
    assert [*row["snr_percentiles"].values()] == pytest.approx(expected.percentiles, rel=1e-5)
    assert row["median_std_ratio"] == pytest.approx(expected.median_std_ratio, rel=1e-5)
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line[:3] == ["uneven", "cell_input@1", str(expected.count)]
    assert float(line[3]) == pytest.approx(row["median_snr"], rel=0.01)


def test_pruning_is_perplexity_of_the_pruned_lm(uneven, plain_text, tmp_path, capsys, caplog):
    text = plain_text / "valid.txt"
    digests = {p: hashlib.sha256(p.read_bytes()).digest() for p in uneven.glob("*.pth")}
    options = ["--text", text, "--prune", "true", "--prune_steps", "1,0,0.5"]
    caplog.set_level("INFO")
    run("--lm", uneven, *options, "--output", tmp_path / "out")
    assert is_whole_png(tmp_path / "out" / "prune.png")
    assert sum("does not know" in line for line in caplog.messages) == 1
    steps = json.loads((tmp_path / "out" / "prune.json").read_text())["lms"]["uneven"]
    found = {(s["criterion"], s["share"]): s["result"]["perplexity"]["word"] for s in steps}
    assert [s["share"] for s in steps] == [0, 0.5, 1] * 2

    trained = load_lm(uneven)
    figures = {"text": text, "output": tmp_path / "perplexity.json"}
    expected = {0: perplexities(**figures, lm=uneven)["uneven"]["perplexity"]["word"]}
    for block in trained.lm.posterior.blocks():
        block.mean.detach().zero_()
    zero = save_lm(trained, trained.model.state_dict(), tmp_path / "zero")
    expected[1] = perplexities(**figures, lm=zero)["zero"]["perplexity"]["word"]
    for criterion in ("snr", "magnitude"):
        for share, value in expected.items():
            assert found[criterion, share] == pytest.approx(value, rel=1e-12)
    assert found["snr", 0.5] != found["magnitude", 0.5]
    assert abs(expected[1] - expected[0]) > 0.1

    total = steps[2]["num_zeroed"]
    assert steps[1]["num_zeroed"] == round(total / 2)
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["100.0", f"{total}", *[f"{expected[1]:.2f}"] * 2] in table
    assert digests == {p: hashlib.sha256(p.read_bytes()).digest() for p in uneven.glob("*.pth")}


def test_latent_variables_need_a_text(latent, plain_text, tmp_path, capsys):
    run("--lm", latent, "--output", tmp_path / "a")
    assert "hidden_output@2  a Gaussian for each token: give --text" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "a" / "snr.json").read_text())["lms"]["latent"]
    assert row["kind"] == "latent" and "--text" in row["note"]
    assert not (tmp_path / "a" / "snr.png").exists()

    text = plain_text / "valid.txt"
    run("--lm", latent, "--text", text, "--output", tmp_path / "b")
    (row,) = json.loads((tmp_path / "b" / "snr.json").read_text())["lms"]["latent"]
    lines = text.read_text().splitlines()
    assert row["count"] == 8 * sum(len(line.split()) + 1 for line in lines)
    assert row["median_std_ratio"] is None and row["median_snr"] > 0
    assert is_whole_png(tmp_path / "b" / "snr.png")
