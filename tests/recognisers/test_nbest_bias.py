"""Bias lists in ESPnet's search by `nbest`, `export` and `tune_fusion`."""

import json

import numpy as np
import pytest
import yaml
from test_nbest_tool import asr, audio, command, error, trained_lm
from tiny_training import words

from espnet_bayeslm.bin import export, nbest, ngram, rescore, tune_fusion
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer

__all__ = ["asr", "audio", "error", "trained_lm"]


@pytest.fixture
def phrases(asr, audio, tmp_path):
    """Return bias lists of two utterances, with words of the recogniser's lists and others."""
    nbest.main(command("espnet", audio, tmp_path / "plain", model=asr))
    words_of = {
        item.utt: [*dict.fromkeys(w for h in item.hypotheses for w in h.words)]
        for item in read_nbest(tmp_path / "plain")
    }
    lists = {"u1": words_of["u1"][:3], "u2": ["zz", *words_of["u2"][-2:]]}
    rows = [json.dumps({"utt": utt, "words": own}) for utt, own in lists.items()]
    (tmp_path / "bias.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path / "bias.jsonl", {utt: BiasList((w, None) for w in lists[utt]) for utt in lists}


@pytest.mark.parametrize("weight", [None, 1.5])
def test_bias_lists_of_utterances_in_espnets_search(weight, phrases, asr, audio, tmp_path):
    """Without an LM: scores add up to the search's order, and to what a rescoring adds."""
    path, lists = phrases
    given = {} if weight is None else {"bias_weight": weight}
    out = tmp_path / "out"
    nbest.main(command("espnet", audio, out, model=asr, bias=path, **given))
    found = {item.utt: item.hypotheses for item in read_nbest(out)}
    plain = {item.utt: item.hypotheses for item in read_nbest(tmp_path / "plain")}
    assert found.keys() == plain.keys() == lists.keys()
    for utt, hyps in found.items():
        weights = [lists[utt].total(hyp.words) * (weight or 3.0) for hyp in hyps]
        assert [hyp.extra["bias_score"] for hyp in hyps] == pytest.approx(weights)
        totals = np.add([hyp.am_score for hyp in hyps], weights)
        assert all(hyp.lm_score is None for hyp in hyps) and (np.diff(totals) < 1e-4).all()
        known = {hyp.words: hyp.am_score for hyp in plain[utt]}
        for hyp in hyps:
            if hyp.words in known:
                assert hyp.am_score == pytest.approx(known[hyp.words], abs=1e-4)
    assert max(hyp.extra["bias_score"] for hyps in found.values() for hyp in hyps) > 0
    given = {"nbest": out, "bias": path, "output": tmp_path / "rescored", **given}
    rescore.main(words(**given))
    best = dict(line.split(maxsplit=1) for line in (tmp_path / "rescored/text").open())
    for utt, hyps in found.items():
        assert best[utt].split() == [*hyps[0].words]


def test_bias_lists_in_a_fusion(phrases, asr, audio, tmp_path, corpus):
    """With an n-gram, and its own list where no other is given; scores stand apart."""
    path, lists = phrases
    (tmp_path / "names").write_text(f"{' '.join(next(iter(lists['u1'].weights)).split())}\t2\n")
    arpa = {name: tmp_path / f"{name}.arpa" for name in ("words", "tokens")}
    (tmp_path / "text").write_text("a b c\n" * 3)
    build_ngram(tmp_path / "text", arpa["words"], order=2, discount_fallback=True)
    tokens = ["--asr_exp", str(asr), "--text", str(corpus / "train.txt"), "--order", "2"]
    ngram.main([*tokens, "--arpa", str(arpa["tokens"]), "--discount_fallback", "true"])
    given = {"format": "fusion", "asr_exp": asr, "ngram": arpa["words"], "ahead": arpa["tokens"]}
    given |= {"text": tmp_path / "text", "max_oov_rate": 1}
    export.main(words(**given, bias=tmp_path / "names", output=tmp_path / "fusion"))
    how = {"model": asr, "lm": tmp_path / "fusion", "lm_weight": 0.5}
    scorer = NgramScorer(arpa["words"])
    own = BiasList([(next(iter(lists["u1"].weights)), 2.0)])
    for options, of, weight in (
        ({}, dict.fromkeys(lists, own), 1.5),
        ({"bias": path, "bias_weight": 2.5}, lists, 2.5),
    ):
        nbest.main(command("espnet", audio, tmp_path / "out", **how, **options))
        for item in read_nbest(tmp_path / "out"):
            longest, num_ended = max(len(hyp.words) for hyp in item.hypotheses), 0
            for hyp in item.hypotheses:
                held = weight * of[item.utt].total(hyp.words)
                assert hyp.extra["bias_score"] == pytest.approx(held)
                (scores,) = scorer.word_scores([hyp.words])
                # ESPnet pays no end of those that it cuts off
                if len(hyp.words) < longest:
                    num_ended += 1
                    assert hyp.lm_score == pytest.approx(scores.log_probs.sum(), abs=1e-4)
            assert num_ended


@pytest.mark.parametrize(
    "recogniser, options, part",
    [
        ("espnet", {"bias_weight": 2}, "--bias_weight without --bias"),
        ("espnet", {"normalize": "lower"}, "--normalize without --bias"),
        (
            "pocketsphinx",
            {"bias": "x"},
            "--bias with --recogniser pocketsphinx, whose search takes",
        ),
        ("espnet", {"bias": "x", "lm": "x", "normalize": "lower"}, "--normalize with a fusion"),
    ],
)
def test_options_of_bias_lists_that_have_no_meaning(recogniser, options, part, error):
    model = {} if recogniser == "pocketsphinx" else {"model": "x"}
    assert part in error(recogniser, **model, **options)


def test_a_bias_list_and_an_lm_that_is_no_fusion(asr, trained_lm, error, tmp_path):
    (tmp_path / "names").write_text("a\n")
    message = error("espnet", model=asr, lm=trained_lm, bias=tmp_path / "names")
    assert "--bias, and the LM of the search is no fusion" in message
    (tmp_path / "names").write_text("日本\n")
    assert "no token has, as '日本'" in error("espnet", model=asr, bias=tmp_path / "names")
    (tmp_path / "names").write_text("\n")
    assert "no phrases" in error("espnet", model=asr, bias=tmp_path / "names")


@pytest.mark.parametrize("with_lm", [False, True])
def test_the_weight_of_bias_lists_is_tuned(with_lm, phrases, asr, audio, tmp_path, capsys, fails):
    """In the search, with decoys; the weight that is written is that of a search."""
    (tmp_path / "ref").write_text("u1 a b c\nu2 b c d\n")
    files = {"asr_exp": asr, "audio": audio, "ref": tmp_path / "ref", "output": tmp_path / "tuned"}
    if with_lm:
        (tmp_path / "names").write_text("".join(f"{w}\n" for w in phrases[1]["u1"].weights))
        names = {"asr_exp": asr, "bias": tmp_path / "names", "bias_weight": 2}
        export.main(words(format="fusion", **names, output=tmp_path / "fusion"))
        files["lm"] = tmp_path / "fusion"
    else:
        files["bias"] = phrases[0]
    tune_fusion.main(words(**files, num_rounds=2, beam_size=3))
    table = capsys.readouterr().out
    rows = [line for line in table.splitlines() if line.startswith(("without the", "decoys"))]
    assert "bias" in table and len(rows) == 2 and "round 1" in table
    assert "  2.000" in table if with_lm else "  3.000" in table
    conf = yaml.safe_load((tmp_path / "tuned/config.yaml").read_text())["lm_conf"]
    decode = yaml.safe_load((tmp_path / "tuned/decode.yaml").read_text())
    assert conf["bias_weight"] >= 0 and conf["bias"] == (
        dict(phrases[1]["u1"].weights) if with_lm else {}
    )
    how = {"lm": tmp_path / "tuned", "lm_weight": decode["lm_weight"] or 1, "bias": phrases[0]}
    nbest.main(command("espnet", audio, tmp_path / "lists", model=asr, **how))
    for item in read_nbest(tmp_path / "lists"):
        for hyp in item.hypotheses:
            total = conf["bias_weight"] * phrases[1][item.utt].total(hyp.words)
            assert hyp.extra["bias_score"] == pytest.approx(how["lm_weight"] * total)
    bare = {name: value for name, value in files.items() if name not in ("lm", "bias")}
    assert "neither --lm nor --bias" in fails(tune_fusion.main, words(**bare))
