"""`bayeslm export`: the exported LM says what the trained one says, in ESPnet's programs too."""

import sys

import pytest
import torch
import yaml
from command_lines import SHORT, words
from espnet2.bin.lm_inference import GenerateText
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.main_funcs.pack_funcs import unpack
from espnet2.tasks.lm import LMTask

from espnet_bayeslm.bin import train
from espnet_bayeslm.bin.export import main
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.launch import run_program

ADAM = ["--optim", "adam", "--optim_conf", "lr=0.02"]
BACKBONE = ["--lm", "bayes_espnet", "--lm_conf", "backbone=transformer", "--lm_conf"]
BACKBONE += ["backbone_conf={embed_unit: 6, att_unit: 8, head: 2, unit: 12, layer: 2}"]
BACKBONE += ["--lm_conf", "uncertainty.ffn@1=bayes", "--lm_conf", "init_std=0.3"]
# <sos/eos> of the tiny corpus
SOS = 12
UNCERTAIN = ["bayes", "backbone"]


def run(*command):
    main([str(part) for part in command])


@pytest.fixture(scope="session")
def backbone(train_lm, tmp_path_factory):
    return train_lm(tmp_path_factory.mktemp("lms") / "backbone", *BACKBONE, *ADAM)


def decode(exp, prompts, **options):
    """Return the texts that ESPnet's beam search finds after each prompt."""
    generate = GenerateText(
        exp / "config.yaml", exp / "valid.loss.ave.pth", maxlen=25, minlen=5, **options
    )
    found = []
    for prompt in prompts:
        found += [(text, float(h.score)) for text, _, _, h in generate(torch.tensor(prompt))]
    return found


@pytest.mark.parametrize("name", UNCERTAIN)
def test_the_same_decoded_text(name, request, tmp_path, monkeypatch):
    # ESPnet's class for `model: lm` lacks what its own lm_inference asks for
    monkeypatch.setattr(ESPnetLanguageModel, "sos_ids", [SOS], raising=False)
    monkeypatch.setattr(ESPnetLanguageModel, "eos_id", SOS, raising=False)
    exp = request.getfixturevalue(name)
    run("--lm", exp, "--output", tmp_path / "out")
    prompts = [[SOS, 3], [SOS, 4, 9, 2], [SOS, 11, 11]]
    before, after = (decode(x, prompts, beam_size=5, nbest=3) for x in (exp, tmp_path / "out"))
    assert [text for text, _ in after] == [text for text, _ in before]
    assert [score for _, score in after] == pytest.approx([s for _, s in before], abs=1e-4)
    assert len({text for text, _ in before}) > 5


def test_a_subtracted_lm(point, seq_rnn, ngram, tmp_path):
    """ln p - 0.3 ln p of one LM - 0.2 ln p of the n-gram: three files, one LM for the search."""
    subtract = {"subtract_lm": [seq_rnn, ngram], "subtract_weight": [-0.3, -0.2]}
    for _ in range(2):
        main(words(lm=point, **subtract, output=tmp_path / "less"))
    lms = [load_lm(path).lm for path in (tmp_path / "less", point, seq_rnn)]
    ids = torch.tensor([[SOS, 3, 4, 2]])
    with torch.no_grad():
        found, *(first, second) = (lm(ids, None)[0] for lm in lms)
        assert lms[0].weights == [1.0, -0.3, -0.2]
        counts, _ = lms[0].components[2](ids, None)
    expected = first.log_softmax(-1) - 0.3 * second.log_softmax(-1) - 0.2 * counts
    torch.testing.assert_close(found[..., 1:], expected[..., 1:], rtol=0, atol=1e-5)


PLAIN_LM = {"lm": "bayes_lstm", "lm_conf": {"unit": 8, "uncertainty": {"cell_input@1": "bayes"}}}
BPE = {**PLAIN_LM, "optim": "adam", **SHORT, "max_epoch": 1}


@pytest.fixture
def recipe(plain_text, tmp_path, monkeypatch):
    """Make the present folder a recipe's, with a Bayesian LM over sentencepiece tokens in `exp`."""
    folder = tmp_path / "recipe"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for part in ("train", "valid"):
        (folder / part).write_text((plain_text / f"{part}.txt").read_text())
    (folder / "lm.yaml").write_text(yaml.safe_dump(BPE))
    command = ["--train_text", "train", "--valid_text", "valid", "--config", "lm.yaml"]
    train.main([*command, "--exp", "exp", "--token_type", "bpe", "--vocab_size", "20"])
    return folder


def test_espnets_pack(recipe, tmp_path, monkeypatch):
    """Of the trained LM and of what is exported."""
    run("--lm", "exp", "--output", "out")
    before = load_lm("exp")
    sentence = (recipe / "valid").read_text().splitlines()[0]
    ids = before.ids(before.tokenize(sentence))
    text, lengths = torch.tensor([ids]), torch.tensor([len(ids)])
    with torch.no_grad():
        expected = before.model.nll(text, lengths)[0]
    weights = before.model.state_dict()
    monkeypatch.setattr(sys, "argv", [])
    for source in ("exp", "out"):
        words = ["asr", "--lm_train_config", f"{source}/config.yaml"]
        bpemodel = yaml.safe_load((recipe / source / "config.yaml").read_text())["bpemodel"]
        words += ["--lm_file", f"{source}/valid.loss.ave.pth", "--option", bpemodel]
        run_program("espnet2.bin.pack", [*words, "--outpath", f"{tmp_path}/{source}.zip"])
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
    contents = {path: path.read_bytes() for path in point.iterdir() if path.is_file()}
    error = fails(main, ["--lm", bayes, "--output", point])
    assert "which is nothing that was exported. Give a new folder" in error
    error = fails(main, ["--lm", point, "--output", point])
    assert "is the LM's own folder" in error
    assert contents == {path: path.read_bytes() for path in point.iterdir() if path.is_file()}
