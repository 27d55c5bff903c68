"""Tables of the recipe's results, from hand-written outputs."""

import json

import pytest
import yaml

torch = pytest.importorskip("torch")


@pytest.fixture
def outputs(tmp_path):
    """Return (exp, data) with a 3-gram's and an LSTM's outputs."""
    exp, data = tmp_path / "exp", tmp_path / "data"
    components = {"3gram": ["3gram"], "lstm": ["point_lstm", "3gram"]}
    for name in ("dev", "test"):
        for voice in ("us", "gb"):
            folder = data / "nbest" / f"{name}_{voice}"
            folder.mkdir(parents=True)
            (folder / "text").write_text("u a b c d\n")
            (folder / "words_text").write_text("u-1 a b\nu-2 a b c x\nu-3 a b c d\n")
            (folder / "acwt").write_text("u-1 1\nu-2 2\nu-3 3\n")
            for system, hyp in (("3gram", "a b"), ("lstm", "a b c x")):
                rescored = exp / "rescore" / system / f"{name}_{voice}"
                rescored.mkdir(parents=True)
                (rescored / "text").write_text(f"u {hyp}\n")
                (rescored / "scales.yaml").write_text("lmwt: 11.5\nword_penalty: -0.5\n")
        for system, names in components.items():
            rows = [(n, 90.0 + len(n)) for n in names] + [("mixture", 80.04)] * (len(names) > 1)
            path = exp / "perplexity" / system / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                json.dumps(
                    {
                        "components": [
                            {"name": n, "perplexity_without_oov": {"word": v}} for n, v in rows
                        ]
                    }
                )
            )
    (exp / "weights").mkdir()
    for system, names in components.items():
        entries = [{"name": n, "weight": 1 / len(names)} for n in names]
        (exp / "weights" / f"{system}.yaml").write_text(yaml.safe_dump({"components": entries}))
    for kind in ("half", "point", "bayes", "gp", "variational"):
        for family in ("lstm", "transformer"):
            (exp / f"{kind}_{family}").mkdir()
            train = {"nll": 5.0, "kl": 0.25, "loss": 5.25}
            stats = {e: {"train": train, "valid": {"ppl": 200.0 / e, "kl": 0.5}} for e in (1, 2)}
            state = {"reporter": {"stats": stats, "epoch": 2}}
            torch.save(state, exp / f"{kind}_{family}" / "checkpoint.pth")
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
    assert "synthetic speech" in text and "Tuned on dev" in text
    assert (exp / "images" / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_commands_of_stage_6_run_in_one_process(script, monkeypatch, capsys):
    batch = script("batch")
    called = []
    monkeypatch.setattr(batch.bayeslm, "main", called.append)
    batch.main(["bayeslm score --hyp 'a b=x'\n", "\n", "# no command\n", "ngram --order 3\n"])
    assert called == [["score", "--hyp", "a b=x"], ["ngram", "--order", "3"]]
    assert capsys.readouterr().out.startswith("$ bayeslm score --hyp 'a b=x'\n")


def test_only_what_was_trained_is_plotted(script, outputs):
    exp, data = outputs
    for name in ("gp_transformer", "variational_transformer"):
        (exp / name / "checkpoint.pth").unlink()
        (exp / name).rmdir()
    options = ["--exp", str(exp), "--data", str(data), "--systems", "3gram", "lstm"]
    script("results").main(options)
    assert (exp / "images" / "learning_curves.png").exists()
