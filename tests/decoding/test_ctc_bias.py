"""Bias lists in the CTC search: per utterance, totals of whole texts, and what each finds."""

import json
import math
import random

import pytest
from mixtures import mixture_of
from test_ctc_lists import LABELS, TEXTS, command, folder, read
from test_ctc_search import LETTERS, PIECES, WIDE, arpa, expected_score, logits_of, spoken
from tiny_training import words

from espnet_bayeslm.bin import nbest, rescore
from espnet_bayeslm.decoding.bias_search import BiasTree
from espnet_bayeslm.decoding.ctc_search import BeamOptions, CTCSearch
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import CTCFusion, Vocabulary
from espnet_bayeslm.decoding.logits import log_probs_of
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer

__all__ = ["arpa", "folder"]

LISTS = [
    BiasList([("a", 0.8), ("ab a", 1.5), ("a a b", None)]),
    BiasList([("b", None), ("b b", 2.0)]),
    BiasList(),
]


BYTES = ["<blank>", "Ġ", "Ġa", "b", "a", "Ġab"]


@pytest.mark.parametrize("labels", [LETTERS, PIECES, BYTES])
@pytest.mark.parametrize("known", [None, ["a", "ab"]])
def test_whole_texts_with_lists_of_their_own_have_their_scores(arpa, known, labels):
    """One search after the other: first letters are kept, lists are not."""
    scorer, tokens = NgramScorer(arpa), CTCTokens(labels)
    lm = dict(mixture=mixture_of(scorer), vocabulary=Vocabulary(known) if known else None)
    fusion = CTCFusion(**lm, bias_weight=1.25)
    search = CTCSearch(tokens, fusion, WIDE)
    log_probs = log_probs_of(logits_of(5, len(tokens.tokens), seed=7))
    plain = {t.words: t.am_score for t in search(log_probs)}
    for bias in (*LISTS, LISTS[0]):
        found = search(log_probs, bias)
        assert {text.words for text in found} == plain.keys()
        for text in found:
            _, score = expected_score(text.words, plain[text.words], scorer, fusion)
            assert text.phrase_score == pytest.approx(1.25 * bias.total(text.words))
            assert text.score == pytest.approx(score + text.phrase_score, abs=1e-4)


@pytest.mark.parametrize("beam_size", [2, 9])
def test_what_other_utterances_had_changes_no_list(beam_size):
    options, tokens = BeamOptions(beam_size=beam_size), CTCTokens(LETTERS)
    utterances = [log_probs_of(logits_of(25, 4, seed=seed, scale=1.5)) for seed in range(4)]
    both = CTCSearch(tokens, CTCFusion(bias_weight=2.0), options)
    order = [(n, bias) for n in range(4) for bias in LISTS]
    random.Random(0).shuffle(order)
    for n, bias in order:
        tree = BiasTree(bias, tokens.words)
        alone = CTCSearch(tokens, CTCFusion(bias=tree, bias_weight=2.0), options)
        assert both(utterances[n], bias) == alone(utterances[n])


def test_a_name_that_only_the_list_finds():
    """Letters of the name are a little below others; without its list it stands in no hypothesis.

    The name pays once: where it was said, and not where it nearly was, again and again.
    """
    tokens, options = CTCTokens(LABELS), BeamOptions(beam_size=10)
    logits = spoken("the mudlark is on the table", LABELS, margin=8.0, noise=0.5)
    for place in (14, 20, 26):
        logits[place, LABELS.index("s")] = logits[place].max() + 4.0
    log_probs = log_probs_of(logits)
    search = CTCSearch(tokens, CTCFusion(bias_weight=14.0), options)
    plain = [text.words for text in search(log_probs)]
    assert not any("mudlark" in found for found in plain)
    names = BiasList([("mudlark", None), ("stork", None)])
    assert search(log_probs, names)[0].words == ("the", "mudlark", "is", "on", "the", "table")
    decoy = search(log_probs, BiasList([("stork", None)]))
    assert decoy[0].words == plain[0] and decoy[0].phrase_score == 0


def test_bias_lists_of_the_tool(folder, tmp_path):
    lists = {"u1": ["red remote", "mud"], "u2": {"the remote": 0.5, "quiz": 9.0}}
    rows = [json.dumps({"utt": utt, "words": own}) for utt, own in lists.items()]
    (tmp_path / "names").write_text("\n".join(rows) + "\n")
    given = {"bias": tmp_path / "names", "bias_weight": 4.0, "ngram": [folder / "3.arpa"]}
    nbest.main(command(folder, tmp_path / "out", **given, nbest=5, beam_prune_logp=-30))
    of = {"u1": BiasList((p, None) for p in lists["u1"]), "u2": BiasList(lists["u2"].items())}
    for utt, hyps in read(tmp_path / "out").items():
        held = [4.0 * of[utt].total(hyp.words) for hyp in hyps]
        assert [hyp.extra["bias_score"] for hyp in hyps] == pytest.approx(held)
        assert max(held) > 0
    # weight x feature of a rescoring: the same, as often as it is asked for
    how = {"nbest": tmp_path / "out", "bias": tmp_path / "names", "bias_weight": 4.0}
    rescore.main(words(**how, ngram=folder / "3.arpa", lmwt=1, output=tmp_path / "rescored"))
    texts = dict(line.split(maxsplit=1) for line in (tmp_path / "rescored/text").open())
    assert {utt: text.strip() for utt, text in texts.items()} == TEXTS


def test_options_of_bias_lists_that_have_no_meaning(folder, fails, tmp_path, caplog):
    (tmp_path / "names").write_text("Mud\n")

    def refused(**options):
        return fails(nbest.main, command(folder, tmp_path / "out", **options))

    both = {"bias": tmp_path / "names", "hotwords": folder / "hot"}
    assert "--bias and --hotwords" in refused(**both)
    assert "--normalize with --lower" in refused(bias=tmp_path / "names", normalize="lower")
    assert "1 of the 1 phrases of the bias lists" in refused(bias=tmp_path / "names")
    nbest.main(command(folder, tmp_path / "out", bias=tmp_path / "names", lower="true"))
    assert "letters that no token has" not in caplog.text


def test_near_words_have_the_scores_of_the_logits(folder, tmp_path):
    """Phrases that no hypothesis has stand among the others, in the order of the totals."""
    (tmp_path / "names").write_text("remoter\ntabled tea\n")
    given = {"bias": tmp_path / "names", "bias_weight": 4, "ngram": folder / "3.arpa"}
    given |= {"beam_size": 20, "lm_weight": 0.4, "word_bonus": 1, "max_oov_rate": 1}
    nbest.main(command(folder, tmp_path / "plain", **given))
    nbest.main(command(folder, tmp_path / "near", **given, near_words="true"))
    scorer, plain = NgramScorer(folder / "3.arpa"), read(tmp_path / "plain")
    for utt, hyps in read(tmp_path / "near").items():
        new = [hyp for hyp in hyps if "near_words" in hyp.extra]
        assert [hyp for hyp in hyps if hyp not in new] == [*plain[utt]] and new
        bias, totals = BiasList([("remoter", None), ("tabled tea", None)]), []
        for hyp in hyps:
            (scores,) = scorer.word_scores([hyp.words])
            assert hyp.lm_score == pytest.approx(scores.log_probs.sum(), abs=1e-4)
            assert hyp.extra["bias_score"] == pytest.approx(4 * bias.total(hyp.words))
            total = hyp.am_score + 0.4 * hyp.lm_score + hyp.extra["bias_score"]
            unknown = sum(word in ("remoter", "tabled", "tea") for word in hyp.words)
            totals.append(total + len(hyp.words) - unknown * 0.4 * 10 * math.log(10))
        assert totals == pytest.approx(sorted(totals, reverse=True), abs=1e-3)
        assert all(bias.held(hyp.words) for hyp in new)
