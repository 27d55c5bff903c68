"""`bayeslm export`: the exported LM says what the trained one says, in ESPnet's programs too."""

import sys

import pytest
import torch
import yaml
from command_lines import SHORT, contents
from espnet2.main_funcs.pack_funcs import unpack
from espnet2.tasks.lm import LMTask
from tiny_training import words

from espnet_bayeslm.bin import train
from espnet_bayeslm.bin.export import main
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.launch import run_program


def test_a_subtracted_lm(point, seq_rnn, ngram, tmp_path):
    """Three files become one LM for the search; its own files are replaced."""
    subtract = {"subtract_lm": [seq_rnn, ngram], "subtract_weight": [-0.3, -0.2]}
    for _ in range(2):
        main(words(lm=point, **subtract, output=tmp_path / "less"))
    lm, ids = load_lm(tmp_path / "less").lm, torch.tensor([[12, 3, 4, 2]])
    assert lm.weights == [1.0, -0.3, -0.2] and lm.names == ["point", "seq_rnn", "bigram"]
    for component, exp in zip(lm.components[:2], (point, seq_rnn), strict=True):
        assert torch.equal(component(ids, None)[0], load_lm(exp).lm(ids, None)[0])


BPE = {"lm": "bayes_lstm", "lm_conf": {"unit": 8, "uncertainty": {"cell_input@1": "bayes"}}}
BPE |= {"optim": "adam", **SHORT, "max_epoch": 1}


@pytest.fixture
def recipe(plain_text, tmp_path, monkeypatch):
    """Make the present folder a recipe's, with a Bayesian LM over sentencepiece tokens in `exp`."""
    folder = tmp_path / "recipe"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "lm.yaml").write_text(yaml.safe_dump(BPE))
    texts = {f"{part}_text": plain_text / f"{part}.txt" for part in ("train", "valid")}
    train.main(words(**texts, config="lm.yaml", exp="exp", token_type="bpe", vocab_size=20))
    return folder


def test_espnets_pack(recipe, plain_text, tmp_path, monkeypatch):
    """Of the trained LM and of what is exported."""
    main(["--lm", "exp", "--output", "out"])
    before = load_lm("exp")
    sentence = (plain_text / "valid.txt").read_text().splitlines()[0]
    ids = before.ids(before.tokenize(sentence))
    text, lengths = torch.tensor([ids]), torch.tensor([len(ids)])
    with torch.no_grad():
        expected = before.model.nll(text, lengths)[0]
    weights = before.model.state_dict()
    monkeypatch.setattr(sys, "argv", [])
    for source in ("exp", "out"):
        config = f"{source}/config.yaml"
        bpemodel = yaml.safe_load((recipe / config).read_text())["bpemodel"]
        given = {"lm_train_config": config, "lm_file": f"{source}/valid.loss.ave.pth"}
        pack = words(**given, option=bpemodel, outpath=tmp_path / f"{source}.zip")
        run_program("espnet2.bin.pack", ["asr", *pack])
    recipe.rename(tmp_path / "gone")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for source in ("exp", "out"):
        paths = unpack(tmp_path / f"{source}.zip", source)
        model, _ = LMTask.build_model_from_file(paths["lm_train_config"], paths["lm_file"])
        with torch.no_grad():
            found = model.eval().nll(text, lengths)[0]
        # two ways to compute the same in single precision
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
        after = load_lm(paths["lm_file"])
        assert after.ids(after.tokenize(sentence)) == ids


def test_a_folder_with_something_else(bayes, point, fails):
    before = contents(point)
    error = fails(main, ["--lm", bayes, "--output", point])
    assert "which is nothing that was exported. Give a new folder" in error
    assert "is the LM's own folder" in fails(main, ["--lm", point, "--output", point])
    assert contents(point) == before
