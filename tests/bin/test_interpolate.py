"""`bayeslm interpolate`: weights that are best for a text, and that other tools read."""

import numpy as np
import pytest
import yaml
from tiny_training import words

from espnet_bayeslm.bin.interpolate import main
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.rescoring import em_weights, token_log_probs


def run(**options):
    main(words(**options))
    return options["output"]


@pytest.fixture(scope="module")
def weights_file(plain_text, point, bayes, ngram, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "new" / "weights.yaml"
    return run(text=plain_text / "valid.txt", lm=[point, bayes], ngram=ngram, output=path)


def components(path):
    return {row["name"]: row for row in yaml.safe_load(path.read_text())["components"]}


def test_weights_are_those_of_em_over_all_words(weights_file, plain_text, point, bayes, ngram):
    columns = []
    sentences = [line.split() for line in (plain_text / "valid.txt").read_text().splitlines()]
    for exp in (point, bayes):
        trained = load_lm(exp)
        rows = token_log_probs(trained.lm, [trained.ids(sentence) for sentence in sentences])
        columns.append(np.concatenate(rows))
    rows = NgramScorer(ngram).word_scores(sentences)
    columns.append(np.concatenate([row.log_probs for row in rows]))
    expected = em_weights(np.stack(columns, axis=1))
    found = components(weights_file)
    assert list(found) == ["point", "bayes", "bigram"]
    assert [row["kind"] for row in found.values()] == ["lm", "lm", "ngram"]
    np.testing.assert_allclose([row["weight"] for row in found.values()], expected, atol=1e-4)
    mixture = yaml.safe_load(weights_file.read_text())["mixture"]
    assert mixture["perplexity"] <= min(row["perplexity"] for row in found.values()) + 1e-4
    assert mixture["excluded_oovs"] == 0
