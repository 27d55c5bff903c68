"""Tables of the recipe's results, from hand-written outputs."""

import json

import pytest
import torch
import yaml


def write_system(exp, system, names, hyp):
    """Write the perplexities, weights and rescored lists of LMs that are interpolated."""
    rows = [(n, 90.0 + len(n)) for n in names] + [("mixture", 80.04)] * (len(names) > 1)
    write_perplexities(exp, system, rows)
    entries = [{"name": n, "weight": 1 / len(names)} for n in names]
    (exp / "weights").mkdir(exist_ok=True)
    if len(names) > 1:  # as `bayeslm experiment` does: one component has nothing to weigh
        (exp / "weights" / f"{system}.yaml").write_text(yaml.safe_dump({"components": entries}))
    for name in ("dev_us", "dev_gb", "test_us", "test_gb"):
        rescored = exp / "rescore" / system / name
        rescored.mkdir(parents=True)
        (rescored / "text").write_text(f"u {hyp}\n")
        (rescored / "scales.yaml").write_text("lmwt: 11.5\nword_penalty: -0.5\n")


def write_perplexities(exp, folder, rows):
    """Write what `bayeslm perplexity` says of components."""
    content = [{"name": n, "perplexity_without_oov": {"word": v}} for n, v in rows]
    for name in ("dev", "test"):
        path = exp / "perplexity" / folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"components": content}))


def write_training(folder):
    """Write the checkpoint of a training."""
    folder.mkdir(parents=True)
    train = {"nll": 5.0, "kl": 0.25, "loss": 5.25}
    stats = {e: {"train": train, "valid": {"ppl": 200.0 / e, "kl": 0.5}} for e in (1, 2)}
    torch.save({"reporter": {"stats": stats, "epoch": 2}}, folder / "checkpoint.pth")


@pytest.fixture
def outputs(tmp_path):
    """Return (exp, data) with a 3-gram's and an LSTM's outputs."""
    exp, data = tmp_path / "exp", tmp_path / "data"
    for name in ("dev_us", "dev_gb", "test_us", "test_gb"):
        folder = data / "nbest" / name
        folder.mkdir(parents=True)
        (folder / "text").write_text("u a b c d\n")
        (folder / "words_text").write_text("u-1 a b\nu-2 a b c x\nu-3 a b c d\n")
        (folder / "acwt").write_text("u-1 1\nu-2 2\nu-3 3\n")
    exp.mkdir()
    write_system(exp, "3gram", ["3gram"], "a b")
    write_system(exp, "lstm", ["point_lstm", "3gram"], "a b c x")
    for kind in ("half", "point", "bayes", "gp", "variational"):
        for family in ("lstm", "transformer"):
            write_training(exp / f"{kind}_{family}")
    row = {"location": "hidden_output@1", "median_snr": 2.345, "median_std": 0.0123}
    row |= {"snr_percentiles": {"5": 0.1, "95": 30.0}, "median_std_ratio": 1.234}
    (exp / "snr" / "gp_lstm").mkdir(parents=True)
    (exp / "snr" / "gp_lstm" / "snr.json").write_text(json.dumps({"lms": {"gp_lstm": [row]}}))
    (data / "statistics.txt").write_text("size: small\n")
    return exp, data


def test_results(script, outputs, capsys):
    exp, data = outputs
    options = ["--exp", str(exp), "--data", str(data), "--systems", "3gram", "lstm"]
    script("results").main(options)
    text = (exp / "RESULTS.md").read_text()
    assert capsys.readouterr().out.strip() == text.strip()
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if "|" in line}
    assert rows["first pass"].split(" | ")[3:] == ["50.00 (0/2/0)"] * 3 + ["50.00 (0/2/0) |"]
    assert "80.0 | 80.0 | 25.00 (1/0/0)" in text  # LSTM + 3-gram
    assert "| LSTM | 100.0 | 100.0 |" in text
    assert "| Bayesian LSTM | 5.000 | 0.250 | 5.250 | 100.0 |" in text
    assert "| GP LSTM | hidden_output@1 | 0.500 | 2.35 | 0.0123 | 0.1 to 30 | 1.23 |" in text
    assert rows["oracle"].count(" 0.00 (0/0/0)") == 4
    assert "point_lstm 0.500, 3gram 0.500 | 11.5, -0.5 | 11.5, -0.5" in text
    assert "| 3-gram |  | 11.5, -0.5 | 11.5, -0.5 |" in text
    assert "synthetic speech" in text and "Tuned on dev" in text
    assert "search" not in text
    assert (exp / "images" / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_results_of_an_architecture_search(script, outputs):
    exp, data = outputs
    write_training(exp / "search_lstm" / "top1")
    write_perplexities(exp, "search_lstm_top1", [("top1", 111.1)])
    write_system(exp, "search_lstm", ["top1", "3gram"], "a b c d")
    runs = [
        {"seed": seed, "shares": {"cell_input@1": {"point": 1 - share, "bayes": share}}}
        for seed, share in ((0, 0.25), (3, 0.5))
    ]
    best = {"rank": 1, "choices": {"cell_input@1": "point"}, "probability": 0.6123}
    ranking = [best | {"ranks": [1, None]}]
    (exp / "search_lstm" / "search.json").write_text(json.dumps({"runs": runs, "ranking": ranking}))
    script("results").main(["--exp", str(exp), "--data", str(data)])
    text = (exp / "RESULTS.md").read_text()
    assert "| LSTM, top 1 of the search + 3-gram | 80.0 | 80.0 | 0.00 (0/0/0)" in text
    assert "| LSTM, top 1 of the search | 111.1 | 111.1 |" in text
    assert "| LSTM, top 1 of the search | 5.000 | 0.250 | 5.250 | 100.0 |" in text
    assert "| LSTM, top 1 of the search + 3-gram | top1 0.500, 3gram 0.500 |" in text
    assert "|  | mean share | seed 0 | seed 3 |" in text
    assert "| cell_input@1 bayes | 0.375 | 0.250 | 0.500 |" in text
    assert "| LSTM, top 1 of the search | point at all locations | 0.612 | 1, - |" in text


def test_only_what_was_trained_is_plotted(script, outputs):
    exp, data = outputs
    for name in ("gp_transformer", "variational_transformer"):
        (exp / name / "checkpoint.pth").unlink()
        (exp / name).rmdir()
    options = ["--exp", str(exp), "--data", str(data), "--systems", "3gram", "lstm"]
    script("results").main(options)
    assert (exp / "images" / "learning_curves.png").exists()
