"""A mixture of an LM and an n-gram over a recogniser's tokens: from plain text to the search."""

import json
import random

import models
import numpy as np
import pytest
import torch
import yaml
from pretrained.tiny_models import write_model
from tiny_training import words

from espnet_bayeslm.bin import export, interpolate, lattice, ngram, perplexity, rescore, train
from espnet_bayeslm.lm.ngram import NgramLM
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.pretrained.causal_lm import load_tokenizer
from espnet_bayeslm.scoring.interpolation import em_weights
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.files import read_keyed_lines, read_yaml_mapping

LM = {
    **{"lm": "bayes_lstm", "optim": "adam", "optim_conf": {"lr": 0.02}, "max_epoch": 1},
    "lm_conf": {"unit": 32, "nlayers": 1, "uncertainty": {"cell_input@1": "bayes"}},
    **{"num_iters_per_epoch": 100, "use_matplotlib": False},
}
LETTERS = [random.Random(n).choices("abcdny", k=n % 4 + 1) for n in range(30)]
VOCABULARY = ["banana", "bandana", "cab", "cabana", "daddy", "ban", *map("".join, LETTERS)]


def sentence(rng):
    """Words of which the first comes again and again, which no trigram knows."""
    words = rng.choices(VOCABULARY, k=rng.randrange(2, 8))
    return [words[0] if rng.random() < 0.4 else word for word in words]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with text, LMs over word pieces and a recogniser of these pieces."""
    folder, rng = tmp_path_factory.mktemp("tokens"), random.Random(1)
    for name, size in (("train", 300), ("little", 25), ("dev", 60)):
        lines = [" ".join(sentence(rng)) for _ in range(size)]
        (folder / f"{name}.txt").write_text("\n".join([*lines, ""]) + "\n")
    (folder / "lm.yaml").write_text(yaml.safe_dump(LM))
    texts = {"train_text": folder / "train.txt", "valid_text": folder / "dev.txt"}
    start, few = words(**texts, config=folder / "lm.yaml"), {"num_iters_per_epoch": 2}
    train.main([*start, *words(exp=folder / "lm", token_type="bpe", vocab_size=20)])
    train.main([*start, *words(exp=folder / "other", token_type="bpe", vocab_size=14, **few)])
    train.main([*start, *words(exp=folder / "char", token_type="char", **few)])
    config = read_yaml_mapping(folder / "lm" / "config.yaml")
    own = {"token_type": "bpe", "bpemodel": config["bpemodel"]}
    models.write_recogniser(folder / "asr", config["token_list"], **own)
    return folder


def make_ngram(place, arpa, **options):
    given = {"text": place / "train.txt", "arpa": arpa, "lmplz": "none", "order": 3}
    ngram.main(words(**{**given, "discount_fallback": "true", **options}))
    return arpa


def error(fails, tool, **options):
    return fails(tool.main, words(**options))


@pytest.fixture(scope="module")
def arpa(place):
    """Return an n-gram of little text, over the recogniser's tokens."""
    return make_ngram(
        place, place / "tokens.arpa", text=place / "little.txt", asr_exp=place / "asr"
    )


def unigrams(arpa):
    section = arpa.read_text().split("\\1-grams:\n")[1].split("\n\n")[0]
    return {line.split("\t")[1] for line in section.splitlines()}


@pytest.fixture(scope="module")
def tokens(place):
    return load_lm(place / "lm").tokens


def test_the_ngram_has_the_tokens_of_the_list(place, arpa, tokens, tmp_path):
    """All of them, and no others, also where the text lacks some or has more."""
    assert unigrams(arpa) == {"<unk>", "<s>", "</s>", *tokens[1:-1]}
    (tmp_path / "text").write_text("cab cad\ncab cab\nban caß\n" * 3)
    small = make_ngram(place, tmp_path / "b", asr_exp=place / "lm", text=tmp_path / "text")
    assert unigrams(small) == unigrams(arpa)
    for path in (arpa, small):
        lm = NgramLM(path, tokens)
        assert not lm.unknown
        contexts = torch.tensor([[len(tokens) - 1, 3, 4, 1, 5], [len(tokens) - 1, 7, 7, 7, 7]])
        sums = lm(contexts)[0][..., 1:].exp().sum(-1)
        assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)
    # the text has an unknown token after each `ca`
    (known,), (unknown,) = (NgramScorer(p).word_scores([["<unk>"]]) for p in (arpa, small))
    assert unknown.log_probs[0] > known.log_probs[0]


def test_the_ngram_is_that_of_the_text_in_pieces(place, tmp_path):
    lm = load_lm(place / "lm")
    lines = [lm.tokenize(line) for line in (place / "train.txt").read_text().splitlines()]
    assert {token for line in lines for token in line} == {*lm.tokens[2:-1]}
    (tmp_path / "pieces").write_text("".join(" ".join(line) + "\n" for line in lines))
    plain = make_ngram(place, tmp_path / "plain", text=tmp_path / "pieces")
    for name in ("lm", "asr"):
        cut = make_ngram(place, tmp_path / name, asr_exp=place / name)
        assert cut.read_bytes() == plain.read_bytes()


def test_lmplz_is_taken_where_the_text_has_all_tokens(place, fails, tmp_path):
    options = {"lmplz": "false", "asr_exp": place / "asr", "arpa": tmp_path / "a"}
    (tmp_path / "text").write_text("cab\nban cab\n")
    make_ngram(place, text=tmp_path / "text", **options)
    assert "ended with status 1" in error(fails, ngram, text=place / "train.txt", **options)


@pytest.fixture(scope="module")
def mixture(place, arpa):
    """Return options of an LM and an n-gram with the weights that are best for the text `dev`."""
    weights = place / "weights.yaml"
    options = {"lm": place / "lm", "ngram": arpa}
    interpolate.main(words(text=place / "dev.txt", unit="token", **options, output=weights))
    return {**options, "weights": weights}


@pytest.fixture(scope="module")
def exported(place, mixture):
    export.main(words(**mixture, output=place / "mixture"))
    return place / "mixture"


def by_token(place, arpa):
    """Token ids of the text `dev`, and ln p of each token and `</s>` by LM and n-gram."""
    lm = load_lm(place / "lm")
    end, scorer, ids, found = len(lm.tokens) - 1, NgramScorer(arpa), [], []
    for line in (place / "dev.txt").read_text().splitlines():
        pieces = lm.tokenize(line)
        ids.append(lm.ids(pieces))
        values = lm.lm(torch.tensor([[end, *ids[-1]]]), None)[0][0].log_softmax(-1)
        neural = values.gather(1, torch.tensor([*ids[-1], end])[:, None])[:, 0]
        (count,) = scorer.word_scores([pieces])
        found.append(np.stack([neural.detach().numpy(), count.log_probs], axis=1))
    return ids, found


def test_from_text_to_a_search(place, arpa, mixture, exported, capsys):
    """The weights are those of EM over tokens, and the exported LM is the sum by these weights."""
    ids, found = by_token(place, arpa)
    content = read_yaml_mapping(mixture["weights"])
    weights = [row["weight"] for row in content["components"]]
    every = np.concatenate(found)
    assert weights == pytest.approx(em_weights(every), abs=1e-4)
    assert min(weights) > 0.01 and content["unit"] == "token"
    mixed = [np.log(np.exp(log_probs) @ weights) for log_probs in found]
    loaded = load_lm(exported)
    end = len(loaded.tokens) - 1
    for sentence, expected in zip(ids, mixed, strict=True):
        states, ys = [None], [end]
        for token, value in zip([*sentence, end], expected, strict=True):
            scores, states = loaded.lm.batch_score(torch.tensor([ys]), states, None)
            assert scores[0, token].item() == pytest.approx(value, abs=1e-5)
            ys.append(token)
    best = float(np.exp(-np.concatenate(mixed).mean()))
    assert content["mixture"]["perplexity"] == pytest.approx(best, rel=1e-4)
    capsys.readouterr()
    perplexity.main(words(lm=exported, text=place / "dev.txt", output=place / "ppl.json"))
    told = read_yaml_mapping(place / "ppl.json")["components"][0]["perplexity"]["token"]
    assert told == pytest.approx(best, rel=1e-4)


def test_asr_inference_decodes_with_it(place, exported, launch, tmp_path):
    models.write_noise(tmp_path / "u1.wav")
    (tmp_path / "wav.scp").write_text(f"u1 {tmp_path}/u1.wav\n")
    files = {**models.files_of("asr", place / "asr"), **models.files_of("lm", exported)}
    files |= {"asr_model_file": place / "asr" / "valid.acc.ave.pth", "lm_weight": 0.7}
    files |= {"data_path_and_name_and_type": f"{tmp_path}/wav.scp,speech,sound", "beam_size": 3}
    done = launch("asr_inference", *words(**files, output_dir=tmp_path / "out", num_workers=0))
    assert done.returncode == 0, done.stderr
    assert "u1" in read_keyed_lines(tmp_path / "out" / "1best_recog" / "token")


def test_other_tokens_are_refused(place, arpa, fails, tmp_path):
    token = {"text": place / "dev.txt", "unit": "token", "output": tmp_path / "w"}
    over_words = make_ngram(place, tmp_path / "words.arpa")
    fewer = make_ngram(place, tmp_path / "fewer.arpa", asr_exp=place / "other")
    lm, other = place / "lm", place / "other"
    for more, said in (
        ({"lm": [lm, other]}, f"than in {lm}/config.yaml"),
        ({"lm": lm, "ngram": over_words}, " of its words ("),
        ({"lm": lm, "ngram": fewer}, "bayeslm ngram --asr_exp EXP"),
        ({"lm": other, "ngram": arpa}, "bayeslm ngram --asr_exp EXP"),
        ({"ngram": arpa}, "Give --lm EXP"),
        ({"lm": f"hf:{lm}"}, "Leave out --unit token"),
    ):
        assert said in error(fails, interpolate, **token, **more), more
    assert not (tmp_path / "w").exists()
    options = {"lm": lm, "ngram": over_words, "weights": "0.5,0.5", "output": tmp_path / "out"}
    assert "bayeslm ngram --asr_exp EXP" in error(fails, export, **options)


def test_text_of_other_letters_is_refused(place, fails, tmp_path):
    (tmp_path / "text").write_text("CAB CAD\nBAN\n")
    options = {"text": tmp_path / "text", "asr_exp": place / "asr", "arpa": tmp_path / "a"}
    said = error(fails, ngram, **options)
    assert f"{tmp_path}/text: " in said and "are not in the token list ('" in said
    assert not (tmp_path / "a").exists()


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_model(folder)
    return folder


def as_lattice(utt, words):
    """Return Kaldi's lattice of one path."""
    arcs = "".join(f"{n}\t{n + 1}\t{word}\t1,2,\n" for n, word in enumerate(words))
    return f"{utt}\n{arcs}{len(words)}\t0,0,\n\n"


def test_text_that_is_in_tokens_already(place, arpa, pretrained, fails, tmp_path):
    """All tools say so in one line: the weights and perplexities would be wrong."""
    plain = (place / "dev.txt").read_text().splitlines()
    said = "is in tokens ('"
    for name, kind in (("lm", "bpe"), ("char", "char")):
        lm = load_lm(place / name)
        text = tmp_path / kind
        text.write_text("".join(" ".join(lm.tokenize(line)) + "\n" for line in plain))
        given = {"text": text, "lm": place / name}
        assert said in error(fails, perplexity, **given)
        for unit in ("word", "token"):
            options = {**given, "ngram": arpa, "output": tmp_path / "w", "max_oov_rate": 1}
            assert said in error(fails, interpolate, **options, unit=unit)
        options = {"text": text, "asr_exp": place / name, "arpa": tmp_path / "a"}
        assert said in error(fails, ngram, **options)
        options = {"train_text": text, "valid_text": text, "config": place / "lm.yaml"}
        assert said in error(fails, train, **options, asr_exp=place / name, exp=tmp_path / "e")
        rows = text.read_text().splitlines()[:3]
        lists, lattices, segments = (tmp_path / f for f in ("l.jsonl", "l.lats", "segments"))
        found = [{"utt": f"u{n}", "hypotheses": [row]} for n, row in enumerate(rows)]
        lists.write_text("".join(json.dumps(row) + "\n" for row in found))
        segments.write_text("".join(f"u{n} r {n} {n + 1}\n" for n in range(3)))
        options = {"nbest": lists, "lm": place / name, "lmwt": 1, "output": tmp_path / "o"}
        options["max_oov_rate"] = 1
        assert said in error(fails, rescore, **options)
        options.update(context="previous", segments=segments)
        assert said in error(fails, rescore, **options)
        lattices.write_text("".join(as_lattice(f"u{n}", row.split()) for n, row in enumerate(rows)))
        options = {"lattices": lattices, "lm": place / name, "max_oov_rate": 1}
        assert said in error(fails, lattice, **options, output=tmp_path / "o")
    options = {"text": tmp_path / "hf", "text_form": "as_is", "lm": f"hf:{pretrained}"}
    cut = load_tokenizer(f"hf:{pretrained}").tokenize
    options["text"].write_text("".join(" ".join(cut(f" {line}")) + "\n" for line in plain))
    assert said in error(fails, perplexity, **options)
    # an n-gram over pieces reads them as they are
    perplexity.main(words(text=tmp_path / "bpe", ngram=arpa))


def test_words_are_tokens_too(place, tmp_path):
    """An LM over words and an n-gram of these have the weights that words have."""
    config = words(train_text=place / "train.txt", valid_text=place / "dev.txt")
    config += words(config=place / "lm.yaml", num_iters_per_epoch=10)
    train.main([*config, *words(exp=tmp_path / "lm")])
    arpa = make_ngram(place, tmp_path / "a", asr_exp=tmp_path / "lm")
    found = []
    for unit in ("word", "token"):
        given = {"text": place / "dev.txt", "lm": tmp_path / "lm", "ngram": arpa, "unit": unit}
        interpolate.main(words(**given, output=tmp_path / "w"))
        found.append([row["weight"] for row in read_yaml_mapping(tmp_path / "w")["components"]])
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    assert arpa.read_bytes() == make_ngram(place, tmp_path / "b").read_bytes()
