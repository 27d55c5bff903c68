"""`<unk>` stands for the same number of words in tools, `load()`, exports and mixtures."""

import shutil

import numpy as np
import pytest

from espnet_bayeslm.loading.components import ComponentOptions
from espnet_bayeslm.loading.experiment import UNKNOWN_WORDS, read_unk_size
from espnet_bayeslm.loading.export import export_lm, write_mixture
from espnet_bayeslm.loading.trained_lm import load_lm

SENTENCE = ["a", "nobody-knows-it", "b"]


def with_size(exp, folder, size):
    """Copy an experiment, with a counted number of unknown words."""
    shutil.copytree(exp, folder)
    (folder / UNKNOWN_WORDS).parent.mkdir()
    (folder / UNKNOWN_WORDS).write_text(f"unk_size: {size}\n")
    return folder


@pytest.fixture
def counted(point, tmp_path):
    return with_size(point, tmp_path / "counted", 500.0)


def word_log_probs(exp, **options):
    """Return ln p of each word of a sentence, as the tools compute it."""
    [component] = ComponentOptions(lms=[exp], **options).components()
    return component.scorer.word_scores([SENTENCE])[0].log_probs


def test_an_export_keeps_the_size(counted, tmp_path):
    export_lm(counted, tmp_path / "out")
    assert load_lm(tmp_path / "out").unk_size == 500
    assert word_log_probs(tmp_path / "out") == pytest.approx(word_log_probs(counted))


def test_an_unknown_word_has_its_share_of_unk(counted):
    shift = word_log_probs(counted, unk_size=1) - word_log_probs(counted)
    assert shift == pytest.approx([0.0, np.log(500.0), 0.0, 0.0])
    [scores] = load_lm(counted).word_scores([SENTENCE])
    assert scores.log_probs.tolist() == word_log_probs(counted).tolist()


@pytest.mark.parametrize("sizes", [(500.0, 500.0), (100.0, 900.0)], ids=["one text", "two texts"])
def test_a_mixture_has_the_size_of_its_lms(point, tmp_path, sizes):
    """The same LM twice, so that the mixture of the tools is known in closed form."""
    exps = [with_size(point, tmp_path / f"lm{n}", size) for n, size in enumerate(sizes)]
    write_mixture(tmp_path / "m", lms=exps, weights="0.25,0.75")
    parts = [word_log_probs(exp) for exp in exps]
    expected = np.logaddexp(parts[0] + np.log(0.25), parts[1] + np.log(0.75))
    assert word_log_probs(tmp_path / "m") == pytest.approx(expected, rel=1e-5)
    write_mixture(tmp_path / "m", lms=[point])
    assert read_unk_size(tmp_path / "m") is None
