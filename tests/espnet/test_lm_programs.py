"""ESPnet's programs for LMs alone: `lm_calc_perplexity` and `lm_inference`."""

import homophones
import models
import pytest
import torch
from tiny_training import words

from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.utils.files import read_keyed_lines

# ESPnet drops the first token of a prompt, since with sentencepieces it may be a space
PROMPT = "- <sos/eos> the two"


@pytest.fixture
def generate(espnet, tmp_path):
    """Return a function that goes on from a prompt and returns the folder of the results."""
    (tmp_path / "prompts").write_text(f"p {PROMPT}\n")
    values = {
        "data_path_and_name_and_type": f"{tmp_path}/prompts,text,text",
        **{"output_dir": tmp_path / "out", "num_workers": 0},
        **{"beam_size": 5, "nbest": 5, "maxlen": 10},
    }

    def run(experiment):
        files = models.files_of("lm", experiment)
        espnet("lm_inference", *words(**values, **files))
        return tmp_path / "out"

    return run


@pytest.mark.parametrize("name", models.LMS)
def test_generated_text_has_its_probability(name, lm, generate):
    output = generate(lm(name))
    scorer = load_lm(lm(name)).lm
    prompt = [homophones.TOKENS.index(token) for token in PROMPT.split()[1:]]
    for rank in range(1, 6):
        folder = output / f"{rank}best_recog"
        ids = list(map(int, read_keyed_lines(folder / "token_int")["p"][1].split()))
        score = read_keyed_lines(folder / "score")["p"][1]
        assert ids[: len(prompt)] == prompt and len(ids) > len(prompt)
        with torch.no_grad():
            log_probs = scorer(torch.tensor([ids]), None)[0][0].log_softmax(-1)
        following = [*ids[1:], len(homophones.TOKENS) - 1]
        expected = sum(float(log_probs[i, k]) for i, k in enumerate(following))
        given = sum(float(log_probs[i, k]) for i, k in enumerate(prompt[1:]))
        assert float(score.strip("tensor()")) == pytest.approx(expected - given, abs=2e-4)
