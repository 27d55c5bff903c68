"""A pretrained LM in the tools: perplexity, interpolation, lists, lattices, `load`."""

import json
import shutil

import numpy as np
import pytest
from oracles.lattice_paths import random_lattice, write_htk
from tiny_models import write_model
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import export, lattice, perplexity, rescore
from espnet_bayeslm.nbest.formats import read_nbest

LISTS = {
    "u1": ["so we could put the remote", "so we could put a remote", "so"],
    "u2": ["i think that's okay", "i think that is okay"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("lm") / "tiny")


@pytest.fixture
def files(tmp_path):
    with (tmp_path / "nbest.jsonl").open("w") as f:
        for utt, texts in LISTS.items():
            hyps = [{"text": text, "am_score": -float(n)} for n, text in enumerate(texts)]
            print(json.dumps({"utt": utt, "hypotheses": hyps, "ref": texts[1]}), file=f)
    (tmp_path / "text").write_text("".join(f"{texts[0]}\n" for texts in LISTS.values()))
    return tmp_path


def test_perplexity_is_the_models_own(model, files):
    out, given = files / "ppl.json", {"lm": f"hf:{model}", "text_form": "lower"}
    perplexity.main(words(**given, text=files / "text", output=out))
    (row,) = json.loads(out.read_text())["components"]
    lm = espnet_bayeslm.load(f"hf:{model}", text_form="lower")
    texts = [texts[0] for texts in LISTS.values()]
    total = sum(lm.score(text) for text in texts)
    count = sum(len(text.split()) + 1 for text in texts)
    assert row["perplexity"]["word"] == pytest.approx(np.exp(-total / count), rel=1e-4)


def test_lists_and_the_front_door(model, files):
    nbest, output = files / "nbest.jsonl", files / "out"
    given = {"lm": f"hf:{model}", "text_form": "sentence"}
    rescore.main(words(**given, nbest=nbest, lmwt=1, output=output))
    lm = espnet_bayeslm.load(model, text_form="sentence")
    found, loaded = (
        espnet_bayeslm.rescore(read_nbest(nbest, "jsonl"), lms=[given], text_form="sentence")
        for given in (model, lm)
    )
    loaded = [item.lm_scores for item in loaded]
    assert lm.tokens[lm.tokenizer.eos_token_id] == "<|end|>"
    lines = (output / "lmwt.nn").read_text().splitlines()
    costs = {key: float(cost) for key, cost in map(str.split, lines)}
    for item, again in zip(found, loaded, strict=True):
        assert item.lm_scores == pytest.approx(again, abs=1e-4)
        utt = item.nbest.utt
        scores = [s.log_probs.sum() for s in lm.word_scores(LISTS[utt])]
        assert item.lm_scores == pytest.approx(scores, abs=1e-3)
        kept = [-costs[f"{utt}-{n}"] for n in range(1, len(scores) + 1)]
        assert kept == pytest.approx(scores, abs=1e-3)


def test_lattices(model, files):
    """The best path of a rescored lattice is that of its rescored list."""
    written = random_lattice(np.random.default_rng(1), words="abc", utt="u1")
    write_htk([written], files / "lattices")
    given = {"lattices": files / "lattices", "lm": model, "text_form": "lower"}
    exact = {"lmwt": 1, "merge_order": 20, "beam": "inf", "prune": "inf", "nbest_size": 5}
    lattice.main(words(**given, **exact, output=files / "out"))
    (item,) = read_nbest(files / "out" / "nbest", "jsonl")
    lm = espnet_bayeslm.load(model, text_form="lower")
    for hyp in item.hypotheses[:3]:
        expected = lm.word_scores([hyp.words])[0].log_probs.sum()
        assert hyp.lm_score == pytest.approx(expected, abs=1e-3)


def test_an_exported_folder_is_the_lm(model, tmp_path, fails):
    """But for the rounding to float16; what it cannot be made of, or would replace, is refused."""
    command = words(format="hf", output=tmp_path / "half")
    for _ in range(2):  # its own files are replaced
        export.main([*command, "--lm", f"hf:{model}"])
    ours, theirs = espnet_bayeslm.load(f"hf:{model}"), espnet_bayeslm.load(tmp_path / "half")
    assert theirs.score("so we could") == pytest.approx(ours.score("so we could"), rel=1e-2)
    assert theirs.tokens == ours.tokens
    shutil.copytree(model, tmp_path / "card")
    (tmp_path / "card/README.md").write_text("---\nlicense: mit\n---\nMore.\n")
    export.main(words(format="hf", output=tmp_path / "mit", lm=f"hf:{tmp_path}/card"))
    assert (tmp_path / "mit/README.md").read_text() == "---\nlicense: mit\n---\n"
    assert "for a pretrained LM" in fails(export.main, [*command, "--lm", tmp_path])
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes").write_text("")
    for output in (model, tmp_path / "other"):
        command = words(format="hf", output=output, lm=f"hf:{model}")
        assert "holds other files already" in fails(export.main, command)
