"""Rescoring of lattices against the exhaustive rescoring of all their paths."""

import dataclasses

import numpy as np
import pytest
import torch
from mixtures import mixture_of
from oracles.lattice_paths import all_paths, random_lattice
from test_scorer import make

from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.nbest.biased_lattice import biased_lattice
from espnet_bayeslm.nbest.lattice import Arc, Lattice, PathScales, best_paths, kaldi_scales
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.scoring.lattices import MergeOptions, WordPrefix, _estimates, rescore_lattices
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.scorer import token_scorer

WORDS = ("the", "cat", "dog", "zebra", "mat")
INF = float("inf")
EXACT = MergeOptions(100, beam=INF, prune=INF, max_hyps=0)
SCALES = kaldi_scales(4.0, 0.3)


@pytest.fixture(scope="module")
def lattices():
    return [
        random_lattice(np.random.default_rng(n), num_nodes=6 + n % 3, words=WORDS, utt=f"u{n}")
        for n in range(20)
    ]


@pytest.fixture(scope="module")
def ngrams(tmp_path_factory):
    """Return a folder of n-grams of random sentences, whose names are the orders."""
    folder, rng = tmp_path_factory.mktemp("ngrams"), np.random.default_rng(0)
    lines = [" ".join(rng.choice(["the", "cat", "dog", "mat", "sat"], 6)) for _ in range(50)]
    (folder / "text").write_text("\n".join(lines) + "\n")
    how = {"lmplz": "none", "discount_fallback": True}
    for order in (2, 3):
        build_ngram(folder / "text", folder / str(order), order=order, **how)
    return folder


def neural(token_type, folder, lm_class=BayesLSTMLM, num_samples=0, **conf):
    """Return the scorer of an LM of double precision whose weights say something."""
    trained = make(token_type, folder)
    if conf:
        trained.lm = lm_class(len(trained.token_list), **conf)
    trained.lm = trained.lm.double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in trained.lm.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data += 0.5 * noise * (num_samples == 0)
    return token_scorer(trained, num_samples=num_samples)


def exhaustive(lattice, scorers, weights, scales):
    """Return [(words, total, ln P)] of all word sequences, the best first."""
    paths = all_paths(lattice, scales._replace(lm=0.0))
    rows = [scorer.word_scores(list(paths)) for scorer in scorers]
    found = []
    for (words, path), *scores in zip(paths.items(), *rows, strict=True):
        log_probs = np.stack([score.log_probs for score in scores])
        mixed = np.logaddexp.reduce(log_probs + np.log(weights)[:, None], axis=0)
        log_prob = float(mixed.sum())
        found.append((words, path.total + scales.lm * log_prob, log_prob))
    return sorted(found, key=lambda item: -item[1])


def check_exact(lattices, scorers, weights, options, scales=SCALES, tolerance=1e-9):
    """Check that rescored lattices have the scores of all their word sequences."""
    mixture = mixture_of(*scorers, weights=weights)
    rescored = rescore_lattices(lattices, mixture, scales=scales, options=options)
    assert [item.utt for item in rescored] == [item.utt for item in lattices]
    for lattice, item in zip(lattices, rescored, strict=True):
        expected = exhaustive(lattice, scorers, weights, scales)
        found = best_paths(item, item.scales, 10**6)
        assert [path.words for path in found] == [words for words, *_ in expected]
        for path, (_, total, log_prob) in zip(found, expected, strict=True):
            assert path.total == pytest.approx(total, rel=tolerance)
            assert path.lm_score == pytest.approx(log_prob, rel=tolerance)


def test_ngrams_transformers_and_draws_are_exact(lattices, ngrams, tmp_path):
    trigram = NgramScorer(ngrams / "3")
    check_exact(lattices, [trigram], [1.0], EXACT._replace(order=2))
    check_exact(lattices, [trigram], [1.0], EXACT, PathScales(1.0, 7.0, 2.0, -1.0))
    options = {"att_unit": 8, "head": 2, "unit": 16, "layer": 2}
    scorer = neural("word", tmp_path, BayesTransformerLM, **options)
    check_exact(lattices[:6], [scorer], [1.0], EXACT)
    options = {"unit": 8, "nlayers": 1, "uncertainty": {"cell_input@1": "bayes"}}
    drawn = neural("word", tmp_path, num_samples=3, **options)
    # whatever a beam search would take
    drawn.lm.lm.num_samples = 2
    for num_samples in (3, 0):
        drawn.num_samples = num_samples
        check_exact(lattices[:6], [drawn], [1.0], EXACT)
    assert drawn.lm.lm.num_samples == 2
    conf = {**options, "num_samples": 2}
    part = {"name": "a", "kind": "lm", "weight": 1.0, "lm": "bayes_lstm", "lm_conf": conf}
    mixture = neural("word", tmp_path, MixtureLM, components=[part])
    check_exact(lattices[:6], [mixture], [1.0], EXACT)


@pytest.mark.parametrize("token_type", ["word", "bpe"])
def test_unknown_words_share_a_probability_as_in_lists(lattices, ngrams, token_type, tmp_path):
    lm = neural(token_type, tmp_path)
    assert any(lm.unknown(WORDS))
    scorers = [token_scorer(lm.lm, unk_size=30), NgramScorer(ngrams / "3", unk_size=7)]
    check_exact(lattices[:6], scorers, [0.7, 0.3], EXACT)


@pytest.mark.parametrize("weight", [0.0, 4.0])
def test_bias_lists_are_exact_beside_an_lm(lattices, ngrams, tmp_path, weight):
    """Hypotheses that share their last words are kept apart where they hold other phrases."""
    own = BiasList([("cat", None), ("the cat dog", 3.0), ("dog mat", 0.5), ("zebra", 2.0)])
    scorers = [neural("word", tmp_path), NgramScorer(ngrams / "2")]
    for scorer, order in zip(scorers, (100, 1), strict=True):
        for scales in (SCALES, PathScales(0.3, 7.0, 2.0, -1.0)):
            given = [biased_lattice(item, own, weight, scales) for item in lattices]
            options = EXACT._replace(order=order)
            found = rescore_lattices(given, scorer, options=options)
            for lattice, item in zip(lattices, found, strict=True):
                rows = [
                    (words, total + weight * scales.lm * own.total(words), own.total(words))
                    for words, total, _ in exhaustive(lattice, [scorer], [1.0], scales)
                ]
                rows.sort(key=lambda row: -row[1])
                (best,) = best_paths(item, item.scales, 1)
                assert best.words == rows[0][0]
                assert (best.total, best.bias) == pytest.approx(rows[0][1:])
                if order == 100:
                    paths = best_paths(item, item.scales, 10**6)
                    assert [path.words for path in paths] == [words for words, *_ in rows]
                # a beam keeps real paths, none of them better
                narrow = options._replace(beam=2.0, prune=2.0)
                (pruned_item,) = rescore_lattices([item], scorer, options=narrow)
                (path,) = best_paths(pruned_item, item.scales, 1)
                totals = {words: total for words, total, _ in rows}
                assert path.total == pytest.approx(totals[path.words])


def test_an_lm_of_espnet_itself(lattices, tmp_path):
    from espnet2.lm.seq_rnn_lm import SequentialRNNLM
    from espnet2.lm.transformer_lm import TransformerLM

    trained = make("char", tmp_path)
    size = len(trained.token_list)
    sizes = {"embed_unit": 8, "att_unit": 8, "head": 2, "unit": 8, "layer": 1}
    for lm in (
        SequentialRNNLM(size, unit=8, nlayers=1),
        TransformerLM(size, pos_enc="sinusoidal", **sizes),
    ):
        trained.lm = lm.double().eval()
        check_exact(lattices[:6], [token_scorer(trained)], [1.0], EXACT, tolerance=1e-6)


def test_a_short_order_and_a_beam_leave_less_and_nothing_better(lattices, tmp_path):
    lattices = lattices[:10]
    scorer = neural("word", tmp_path)
    # the LM outweighs the acoustics, and knows better than the scores that came
    scales = kaldi_scales(40.0, 0.3)
    every = [
        {words: total for words, total, _ in exhaustive(lattice, [scorer], [1.0], scales)}
        for lattice in lattices
    ]
    sizes = []
    for order, beam, limit in ((1, 0.0, 0), (1, 2.0, 0), (1, INF, 0), (2, INF, 0), (2, INF, 1)):
        options = EXACT._replace(order=order, beam=beam, max_hyps=limit)
        found = rescore_lattices(lattices, scorer, scales=scales, options=options)
        sizes.append(sum(len(item.arcs) for item in found))
        for expected, item in zip(every, found, strict=True):
            (best,) = best_paths(item, item.scales, 1)
            # the 1-best is a real path, with the score that its own words have
            assert best.total == pytest.approx(expected[best.words])
    assert sizes[:4] == sorted(set(sizes[:4])) and sizes[4] < sizes[3]


@pytest.mark.parametrize("order", [1, 2])
def test_the_beginning_of_a_sentence_is_merged_with_nothing(tmp_path, order):
    """Though later words are the same: an LM knows that the sentence has begun with them."""
    arcs, words = [Arc(0, 1, "dog"), Arc(0, 1, "")], ["cat", "the"][:order]
    arcs += [Arc(n, n + 1, word) for n, word in enumerate(words, 1)]
    lattice = Lattice("u", order + 2, order + 1, tuple(arcs), ("am_score",))
    scorer = neural("word", tmp_path)
    check_exact([lattice], [scorer], [1.0], EXACT._replace(order=order))


def words_on_nodes(seed):
    """Return a lattice without LM scores, where one word leads to each node."""
    drawn = random_lattice(np.random.default_rng(seed), num_nodes=9, density=0.4, utt=f"n{seed}")
    labels = np.random.default_rng(seed).choice(WORDS, drawn.num_nodes).tolist()
    arcs = tuple(arc._replace(label=labels[arc.target], lm_score=0.0) for arc in drawn.arcs)
    return dataclasses.replace(drawn, arcs=arcs, scores=("am_score", "graph_score"))


def test_the_look_ahead_of_a_bigram_is_exact_where_words_are_on_nodes(ngrams):
    """So the best path alone is left of each lattice, and it is the best of all."""
    given = [words_on_nodes(seed) for seed in range(30)]
    bigram = NgramScorer(ngrams / "2")
    for scales in (SCALES, PathScales(0.3, 7.0, 2.0, -1.0)):
        for beam, prune in ((0.0, INF), (INF, 0.0), (0.0, 0.0)):
            options = EXACT._replace(beam=beam, prune=prune)
            found = rescore_lattices(given, bigram, scales=scales, options=options)
            by_acoustics = []
            for lattice, item in zip(given, found, strict=True):
                expected = exhaustive(lattice, [bigram], [1.0], scales)
                (path,) = best_paths(item, scales, 1)
                assert (path.words, path.total) == (expected[0][0], pytest.approx(expected[0][1]))
                if prune == 0.0:
                    assert len(best_paths(item, scales, 10)) == 1
                (acoustic,) = best_paths(lattice, scales, 1)
                by_acoustics.append(acoustic.words == path.words)
            assert not all(by_acoustics)


def test_estimates_are_of_words_anywhere_in_a_sentence(ngrams):
    """The word before need not be the sentence's first, which a trigram tells apart."""
    trigram, lattice = NgramScorer(ngrams / "3"), words_on_nodes(0)
    labels = {arc.target: arc.label for arc in lattice.arcs}
    options = EXACT._replace(beam=1.0)
    roots = [WordPrefix(trigram.begin(anywhere=anywhere)) for anywhere in (False, True)]
    (found,) = _estimates([lattice], *roots, trigram, options)

    def after(node, word):
        state = trigram.begin(anywhere=node > 0)
        state = trigram.after(state, labels[node]) if node else state
        return float(trigram.next_words([state], [word])[0])

    for arc in found.arcs:
        at_end = after(arc.target, "</s>") if arc.target == lattice.end else 0.0
        assert arc.lm_score == pytest.approx(after(arc.source, arc.label) + at_end, abs=1e-9)


def test_estimates_pass_over_silences(lattices, ngrams):
    """Wide beams are exact, from lattices whose LM scores must be estimated."""
    known = ("am_score", "graph_score")
    without = [dataclasses.replace(item, scores=known) for item in lattices]
    wide = EXACT._replace(beam=1e4, prune=1e4)
    check_exact(without, [NgramScorer(ngrams / "2")], [1.0], wide)
