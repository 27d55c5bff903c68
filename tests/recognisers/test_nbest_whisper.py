"""`bayeslm nbest --recogniser whisper` with LMs and bias lists in the search."""

import functools
import json
import logging
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml
from test_nbest_tool import audio, command, error
from tiny_training import words

from espnet_bayeslm.bin import nbest, tune_fusion
from espnet_bayeslm.decoding.generate import WordFusion
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import word_errors
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.recognisers.recordings import read_samples
from espnet_bayeslm.recognisers.whisper import FEWEST_TOKENS, WhisperSearch
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer

sys.path.insert(0, str(Path(__file__).parents[1] / "decoding"))
sys.path.insert(0, str(Path(__file__).parents[1] / "pretrained"))

from tiny_models import write_model
from tiny_whisper import FEATURES, tiny_tokenizer, tiny_whisper

__all__ = ["audio", "error"]

STEPS = Normalization("lower,punct")
LISTS = {"u1": ["we", "the remote", "so so"], "u2": ["table", "zz"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a tiny Whisper."""
    folder, tokenizer = tmp_path_factory.mktemp("whisper"), tiny_tokenizer()
    extractor = transformers.WhisperFeatureExtractor(feature_size=FEATURES, chunk_length=2)
    transformers.WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    tiny_whisper(tokenizer, length=60).save_pretrained(folder)
    return folder


@pytest.fixture
def files(tmp_path):
    """Return an n-gram and bias lists."""
    (tmp_path / "text").write_text("so we could put it there\nthe remote is on the table\n" * 4)
    build_ngram(tmp_path / "text", tmp_path / "arpa", order=2, discount_fallback=True)
    rows = [json.dumps({"utt": utt, "words": words}) for utt, words in LISTS.items()]
    (tmp_path / "bias").write_text("\n".join(rows) + "\n")
    return {"ngram": tmp_path / "arpa", "bias": tmp_path / "bias"}


@pytest.mark.parametrize("parts", [(), ("ngram",), ("bias",), ("ngram", "bias")])
def test_lists_have_the_parts_of_their_totals(parts, model, files, audio, tmp_path):
    """In the order of the totals; texts differ after the normalisation."""
    given = {name: files[name] for name in parts} | {"normalize": "lower,punct", "max_oov_rate": 1}
    given |= {"bias_weight": 2.5} if "bias" in parts else {}
    given |= {"lm_weight": 0.2, "word_bonus": 0.3} if "ngram" in parts else {}
    nbest.main(command("whisper", audio, tmp_path / "out", model=model, nbest=12, **given))
    scorer, held = NgramScorer(tmp_path / "arpa"), 0.0
    for item in read_nbest(tmp_path / "out"):
        texts = [STEPS.words(hyp.words) for hyp in item.hypotheses]
        assert len({*texts}) == len(texts) > 1
        totals = np.array([hyp.am_score for hyp in item.hypotheses])
        if "ngram" in parts:
            log_probs = [scores.log_probs.sum() for scores in scorer.word_scores(texts)]
            assert [h.lm_score for h in item.hypotheses] == pytest.approx(log_probs, abs=1e-4)
            totals += np.multiply(log_probs, 0.2) + 0.3 * np.array([*map(len, texts)])
        if "bias" in parts:
            own = BiasList((phrase, None) for phrase in LISTS[item.utt])
            weights = [2.5 * own.total(text) for text in texts]
            assert [h.extra["bias_score"] for h in item.hypotheses] == pytest.approx(weights)
            totals, held = totals + weights, held + max(weights)
        assert (np.diff(totals) < 1e-4).all()
    assert ("bias" in parts) == (held > 0)


def test_a_pretrained_lm_whose_form_the_first_texts_choose(model, audio, tmp_path, caplog):
    llama = f"hf:{write_model(tmp_path / 'llama')}"
    with caplog.at_level(logging.INFO, logger="espnet_bayeslm"):
        given = {"model": model, "lm": llama, "max_oov_rate": 1}
        nbest.main(command("whisper", audio, tmp_path / "out", **given))
    assert all(hyp.lm_score for item in read_nbest(tmp_path / "out") for hyp in item.hypotheses)
    assert "text form: --text_form" in caplog.text


def best_texts(folder):
    """Return the normalised best text of each list."""
    return {item.utt: STEPS.words(item.hypotheses[0].words) for item in read_nbest(folder)}


@pytest.mark.parametrize("parts", [("ngram",), ("bias",), ("ngram", "bias")])
def test_weights_are_tuned_and_nbest_takes_them(
    parts, model, files, audio, tmp_path, capsys, monkeypatch
):
    """References are texts that the search finds with some weights; the encoder hears it once."""
    given = {name: files[name] for name in parts} | {"normalize": "lower,punct", "max_oov_rate": 1}
    how = given | ({"bias_weight": 5} if "bias" in parts else {})
    how |= {"lm_weight": 0.5, "word_bonus": 0.5} if "ngram" in parts else {}
    nbest.main(command("whisper", audio, tmp_path / "true", model=model, nbest=5, **how))
    refs = best_texts(tmp_path / "true")
    rows = [f"{utt} {' '.join(ref).upper()}\n" for utt, ref in refs.items()]
    (tmp_path / "ref").write_text("".join(rows))
    heard, encode = [], WhisperSearch._encode
    monkeypatch.setattr(WhisperSearch, "_encode", lambda *args: (heard.append(1), encode(*args))[1])
    dev = {"recogniser": "whisper", "model": model, "audio": audio, "ref": tmp_path / "ref"}
    tune_fusion.main(words(**dev, **given, output=tmp_path / "tuned"))
    table = capsys.readouterr().out
    assert len(heard) == len(refs) and f"normalisation {given['normalize']}" in table
    header = next(line for line in table.splitlines() if line.startswith("search"))
    assert ("lm_weight  word_bonus" in header, "  bias" in header) == tuple(
        part in parts for part in ("ngram", "bias")
    )
    rows = re.findall(r"^(no LM|round .|smaller bias)( \*)?  .*?([\d.]+) +[\d.]+$", table, re.M)
    rates = {name: float(rate) for name, _, rate in rows}
    (best,) = (float(rate) for _, star, rate in rows if star)
    assert best == min(rates.values()) < rates["no LM"]
    lists = {"output": tmp_path / "lists", "audio": audio}
    lists |= {"bias": files["bias"]} if "bias" in parts else {}
    nbest.main(words(config=tmp_path / "tuned/decode.yaml", **lists))
    errors = [
        word_errors(refs[utt], text).errors for utt, text in best_texts(lists["output"]).items()
    ]
    assert 100 * sum(errors) / sum(map(len, refs.values())) == pytest.approx(best, abs=0.01)
    decode = yaml.safe_load((tmp_path / "tuned/decode.yaml").read_text())
    assert ("bias_weight" in decode, "lm_weight" in decode) == ("bias" in parts, "ngram" in parts)


def test_outputs_of_the_encoder_are_kept(model, audio, tmp_path, monkeypatch):
    """Another search of the same recordings, by the same model, is the same."""
    given = {"model": model, "encoded": tmp_path / "kept", "nbest": 4}
    nbest.main(command("whisper", audio, tmp_path / "first", **given))
    assert len([*(tmp_path / "kept").iterdir()]) == 2
    with monkeypatch.context() as patch:
        patch.setattr(WhisperSearch, "_encode", None)
        nbest.main(command("whisper", audio, tmp_path / "again", **given))
    first, again = ([*read_nbest(tmp_path / name)] for name in ("first", "again"))
    assert first == again
    tiny_whisper(tiny_tokenizer(), length=60, seed=4).save_pretrained(tmp_path / "other")
    for path in model.iterdir():
        if not (tmp_path / "other" / path.name).exists():
            shutil.copy(path, tmp_path / "other")
    nbest.main(command("whisper", audio, tmp_path / "out", **given | {"model": tmp_path / "other"}))
    assert len([*(tmp_path / "kept").iterdir()]) == 4


def test_hypotheses_that_do_not_end(model, caplog):
    """They are left out beside others; a text of a second has at most so many tokens."""
    search = WhisperSearch(model, language="en", size=6, token_rate=2.0)
    noise = np.random.default_rng(0).uniform(-0.2, 0.2, 16000).astype(np.float32)
    found, limits, end = search._searched, [], search._model.config.eos_token_id

    def searched(hidden, limit, *, cut):
        limits.append(limit)
        tokens = found(hidden, limit)
        tokens[:cut] = torch.where(tokens[:cut] == end, 0, tokens[:cut])
        return tokens

    for cut, warned in ((0, False), (1, False), (6, True)):
        caplog.clear()
        search._searched = functools.partial(searched, cut=cut)
        assert search(noise) and warned == ("give a higher --token_rate" in caplog.text)
    assert limits == [FEWEST_TOKENS + 2] * 3


@pytest.mark.parametrize(
    "options, part",
    [
        ({"hotwords": "x"}, "--hotwords has no meaning with --recogniser whisper"),
        ({"bias_weight": 2}, "--bias_weight without --bias"),
        ({"normalize": "numbers"}, "--recogniser whisper: --normalize numbers reads"),
        ({"ngram": "x.arpa"}, "x.arpa"),
        ({"bias": "none.txt"}, "none.txt"),
    ],
)
def test_bad_options(options, part, model, error):
    assert part in error("whisper", model=model, **options)


def test_near_words_have_ln_p_by_the_model(model, audio, tmp_path):
    """As of a search that finds the texts; capitals and marks around a phrase go."""
    search = WhisperSearch(model, language="en", size=6, normalization=STEPS)
    samples = read_samples(audio / "u1.flac")
    search.lm = WordFusion(search.tokenizer, bias=[], normalize="lower,punct", bias_weight=2.0)
    plain, bias = search(samples), BiasList([("zz", None)])
    search.near_texts = lambda hyps, own: {("we", "zz"): ("zz",), plain[0].words: ("it",)}
    found = search(samples, bias)
    (new,) = [hyp for hyp in found if hyp.extra.get("near_words") == ["zz"]]
    ids = search._tokens_of([" we zz"])
    (log_prob,) = search._log_probs(search._encoded(samples), ids)
    assert new.am_score == pytest.approx(log_prob, abs=1e-4)
    assert new.extra["bias_score"] == 2.0
    totals = [hyp.am_score + hyp.extra["bias_score"] for hyp in found]
    assert totals == sorted(totals, reverse=True) and len(found) == len(plain) + 1


@pytest.mark.parametrize(
    "options, part",
    [
        ({}, "neither --lm nor --bias"),
        ({"bias": "x", "asr_exp": "x"}, "--asr_exp has no meaning with --recogniser whisper"),
        ({"bias": "x", "model": None}, "--model is needed with --recogniser whisper"),
        ({"bias": "x", "recogniser": "espnet"}, "--asr_exp is needed with --recogniser espnet"),
        (
            {"ngram": "x", "recogniser": "espnet", "model": None, "asr_exp": "x"},
            "--recogniser espnet takes one --lm, and no --ngram",
        ),
    ],
)
def test_bad_options_of_a_tuning(options, part, fails):
    given = {"recogniser": "whisper", "model": "m", "audio": "a", "ref": "r", "output": "o"}
    given = {name: value for name, value in (given | options).items() if value is not None}
    assert part in fails(tune_fusion.main, words(**given))
