"""The README's commands run as they stand, on a tiny corpus and with tiny models."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SMALL = {"unit": 8, "dropout_rate": 0.0}


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def write_nbest(folder, sentences):
    """Write a Kaldi archive of three hypotheses per sentence, the second one right."""
    folder.mkdir(parents=True)
    files = {name: [] for name in ("words_text", "acwt", "lmwt.nolm", "lmwt.withlm", "text")}
    for n, words in enumerate(sentences):
        files["text"].append(f"u{n:03d} {' '.join(words)}")
        for rank, hyp in enumerate(([*words, "a"], words, words[:-1]), 1):
            key = f"u{n:03d}-{rank}"
            files["words_text"].append(f"{key} {' '.join(hyp)}".rstrip())
            files["acwt"].append(f"{key} {100.0 + rank}")
            files["lmwt.nolm"].append(f"{key} 0")
            files["lmwt.withlm"].append(f"{key} {3.0 * len(hyp)}")
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture
def workplace(corpus, tmp_path):
    sentences = {
        part: [line.split()[1:] for line in (corpus / f"{part}.txt").read_text().splitlines()]
        for part in ("train", "valid")
    }
    for name, part in (("train", "train"), ("dev", "valid")):
        (tmp_path / f"{name}.txt").write_text("".join(" ".join(s) + "\n" for s in sentences[part]))
    write_nbest(tmp_path / "nbest" / "dev", sentences["valid"])
    write_nbest(tmp_path / "nbest" / "eval", sentences["train"][:40])
    (tmp_path / "conf").mkdir()
    for name in ("point_lstm", "bayes_lstm", "search_bayes_lstm"):
        config = yaml.safe_load((ROOT / "conf" / f"{name}.yaml").read_text())
        config["lm_conf"].update(SMALL)
        config.update(max_epoch=2, num_workers=0, use_matplotlib=False)
        (tmp_path / "conf" / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_commands_run(workplace, python):
    # in one process, since each would import ESPnet anew
    batch = ROOT / "egs2" / "sotu" / "lm" / "local" / "batch.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [python, batch],
        cwd=workplace,
        env=environment,
        input="\n".join(blocks("bash")),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert (workplace / "exp" / "eval" / "text").read_text().count("\n") == 40
    assert "rescored" in result.stdout
    assert (workplace / "exp" / "search" / "top2" / "valid.loss.ave.pth").exists()


def test_configuration_builds():
    from espnet_bayeslm.lm import BayesTransformerLM

    (block,) = blocks("yaml")
    config = yaml.safe_load(block)
    assert config["lm"] == "bayes_transformer"
    lm = BayesTransformerLM(50, **config["lm_conf"])
    assert lm.locations() == ["ffn@1", "ffn@2", "attention@6"]


def test_positions_are_those_of_the_lms():
    from espnet_bayeslm.lm import lstm, transformer

    for position in (*lstm.POSITIONS, *transformer.POSITIONS):
        assert f"`{position}`" in README


@pytest.mark.parametrize(
    "backbone, conf",
    [
        ("seq_rnn", {"rnn_type": "lstm"}),
        ("seq_rnn", {"rnn_type": "gru"}),
        ("transformer", {"att_unit": 4, "head": 1}),
    ],
)
def test_positions_are_those_of_espnets_lms(backbone, conf):
    from espnet_bayeslm.lm import BayesESPnetLM
    from espnet_bayeslm.lm.backbones import BACKBONES

    lm = BayesESPnetLM(10, backbone=backbone, backbone_conf={"unit": 4, **conf})
    for position in BACKBONES[backbone].positions(lm):
        assert f"`{position}`" in README
