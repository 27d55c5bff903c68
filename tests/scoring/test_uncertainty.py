"""Entropies, mutual information and latent Gaussians against the distributions of each token."""

import numpy as np
import pytest
import torch
from lm_cases import RANDOM, UNTIED, VOCAB, build, make_generic
from lm_cases import name as case_name
from test_scorer import make

from espnet_bayeslm.kinds.whole_posterior import add_whole_posterior
from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.scoring.log_probs import BLOCKS
from espnet_bayeslm.scoring.sequences import passages_of
from espnet_bayeslm.scoring.tree_lm import ESPnetTreeLM
from espnet_bayeslm.scoring.uncertainty import latent_moments
from espnet_bayeslm.scoring.uncertainty import token_uncertainty as uncertainty_of

EOS = VOCAB - 1
SOME = RANDOM[::2]
NAMES = list(map(case_name, SOME))
TEXTS = [[], [1, 2, 3], [1, 2, 4, 4, 5], [1, 2, 3], [7], [1, 2, 4, 4, 6, 7, 8]]


def token_uncertainty(lm, sequences, *, max_tokens=8192, **options):
    """Return the uncertainty of sequences of token ids."""
    tree_lm = ESPnetTreeLM(lm, max_tokens=max_tokens)
    return uncertainty_of(tree_lm, passages_of(tree_lm, sequences), **options)


def entropy(p):
    return -(p * np.log(p)).sum(-1)


@torch.no_grad()
def naive(lm, ids, num_samples):
    """Return ln p_k of each token, ln p, H[p] and the mutual information."""
    draws = []
    for index in range(num_samples):
        with lm.sampled(index):
            draws.append(lm.eval()(torch.tensor([[EOS, *ids]]))[0][0].softmax(-1).numpy())
    p = np.stack(draws)  # (K, n + 1, V)
    mean = p.mean(0)
    own = np.log(p[:, range(len(ids) + 1), [*ids, EOS]])
    log_probs = np.log(mean[range(len(ids) + 1), [*ids, EOS]])
    return own, log_probs, entropy(mean), entropy(mean) - entropy(p).mean(0)


def whole():
    """Return an LM with a posterior over all its weights: an output layer for each draw."""
    lm = make_generic(build((BayesLSTMLM, UNTIED, {})))
    add_whole_posterior(lm.posterior)
    for block in lm.posterior.blocks():
        block.tensor("_log_std").fill_(-1.5)
    return lm


@pytest.mark.parametrize("case", [*SOME, None], ids=[*NAMES, "whole"])
@pytest.mark.parametrize("max_tokens", [6, 4096])
def test_equals_the_distributions_of_each_draw(case, max_tokens, monkeypatch):
    monkeypatch.setitem(BLOCKS, "cpu", (3, 5))
    lm = whole() if case is None else make_generic(build(case))
    found = token_uncertainty(lm, TEXTS, num_samples=2, max_tokens=max_tokens)
    assert len(found) == len(TEXTS)
    for ids, values in zip(TEXTS, found, strict=True):
        own, log_probs, predictive, information = naive(lm, ids, 2)
        fields = (values.draws, values.log_probs, values.entropy, values.mutual_information)
        for a, b in zip(fields, (own, log_probs, predictive, information), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9, rtol=0)
        np.testing.assert_allclose(values.variance, own.var(0), atol=1e-9, rtol=0)
        # (the forget gate changes nothing before the second token)
        later = slice(1, None)
        assert (values.mutual_information[later] > 0).all() and (values.variance[later] > 0).all()
        assert (values.entropy <= np.log(VOCAB)).all()


def test_many_draws_have_small_batches(monkeypatch):
    """The outputs of all draws are held at once."""
    monkeypatch.setattr("espnet_bayeslm.scoring.uncertainty.MAX_OUTPUTS", 40)
    lm, sizes = make_generic(build(SOME[0])), []
    outputs = lm.tree_outputs
    monkeypatch.setattr(
        lm, "tree_outputs", lambda tree: sizes.append(len(tree.tokens)) or outputs(tree)
    )
    token_uncertainty(lm, TEXTS, num_samples=4)
    assert 1 < max(sizes) <= 10 < sum(sizes) / 4


def test_one_draw_or_none_knows_nothing_of_the_weights(caplog):
    for values in token_uncertainty(make_generic(build(SOME[1])), TEXTS, num_samples=1):
        assert not values.mutual_information.any() and not values.variance.any()
        assert (values.entropy > 0).all()
    found = token_uncertainty(build((BayesLSTMLM, UNTIED, {})), TEXTS, num_samples=4)
    assert "nothing in the LM is random" in caplog.text
    for values in found:
        assert values.draws.shape == (1, *values.entropy.shape)
        assert not values.mutual_information.any() and (values.entropy > 0).all()


def test_words_of_several_tokens_have_sums():
    (tokens,) = token_uncertainty(make_generic(build(SOME[0])), [[1, 2, 3]], num_samples=3)
    words = tokens.of_words([0, 2, 3])
    for name in ("log_probs", "entropy", "mutual_information"):
        a, b = getattr(tokens, name), getattr(words, name)
        np.testing.assert_allclose(b, [a[0] + a[1], a[2], a[3]])
    # of the word's own ln p, which is no sum of variances
    np.testing.assert_allclose(words.variance[0], tokens.draws[:, :2].sum(1).var())


UNCERTAINTY = {"hidden_output@1": "variational", "hidden_output@2": {"kind": "variational"}}
UNCERTAINTY["hidden_output@2"]["latent_dim"] = 3
SENTENCES = ["the cat sat", "the", "", "a dog", "the cat sat", "a cat met", "on on", "a", "a " * 6]


def test_all_tokens_of_all_sentences_and_no_padding(tmp_path):
    trained = make("word", tmp_path, uncertainty=UNCERTAINTY)
    lm, seen, shapes = trained.lm.double().eval(), {}, []
    for parameter in lm.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    sentences = [text.split() for text in SENTENCES]
    for location, layer in lm.latents():
        seen[location] = []
        layer.observer = lambda *moments, kept=seen[location]: kept.append(moments)
    with torch.no_grad():
        for words in sentences:
            lm(torch.tensor([[lm.vocab_size - 1, *trained.ids(words)]]), None)
    lm.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    found = latent_moments(trained, sentences, max_tokens=32)
    assert len(shapes) == 6  # of 1, 2, 3, 4, 4, 7 tokens a sentence
    assert all(shape[0] == 1 or shape.numel() <= 8 for shape in shapes)
    assert found.keys() == seen.keys() and found["hidden_output@2"][0][0].shape[-1] == 3
    for location, moments in found.items():
        for part in (0, 1):
            batched, single = (
                torch.cat([pair[part].flatten() for pair in pairs]).sort().values
                for pairs in (moments, seen[location])
            )
            torch.testing.assert_close(batched, single, rtol=0, atol=1e-12)
    assert all(layer.observer is None for _, layer in lm.latents())
