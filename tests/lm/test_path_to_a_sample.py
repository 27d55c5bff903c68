"""How many functions a reader goes through from `lm_conf` to a sampled weight."""

from entered import entered
from lm_cases import BATCH, VOCAB

from espnet_bayeslm.lm import BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

SIZES = dict(att_unit=4, head=2, unit=6, layer=1)
# More than the point-estimate LM enters.
MOST_FUNCTIONS, MOST_FILES = 25, 6


def path_of(uncertainty):
    """Functions that building an LM and one training pass with its KL enter."""
    with entered() as found:
        lm = BayesTransformerLM(VOCAB, **SIZES, uncertainty=uncertainty)
        BayesLanguageModel(lm, VOCAB, num_train_tokens=50).train()(*BATCH)
    return found


def test_the_path_from_lm_conf_to_a_sampled_weight():
    # once before, since what is cached or imported late is entered once
    for uncertainty in ({"ffn@1": "bayes"}, {}):
        path_of(uncertainty)
    point, bayes = path_of({}), path_of({"ffn@1": "bayes"})
    more = bayes - point
    assert any(file == "bayes/weights.py" and "sample_with_kl" in name for file, name in more)
    assert len(more) <= MOST_FUNCTIONS, sorted(more)
    files = {file for file, _ in more}
    assert len(files) <= MOST_FILES, sorted(files)
