"""Few modules and functions stand between a list, a sentence or `lm_conf` and its scores."""

import sys
from pathlib import Path

import pytest
from lm_cases import BATCH, VOCAB
from pretrained.tiny_models import write_model
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import perplexity, rescore
from espnet_bayeslm.lm import BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

PACKAGE = Path(espnet_bayeslm.__file__).parent


def entered(call):
    """Return (file, function) of each function of the package that a second call enters.

    What is cached or imported late is entered once.
    """
    call()
    codes, found = set(), set()

    def see(frame, event, arg):
        if event == "call":
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    for code in codes:
        path = Path(code.co_filename)
        # a comprehension or a lambda is a part of the function around it
        if path.is_relative_to(PACKAGE) and not code.co_name.startswith("<"):
            # of a method with its class; Python 3.10 knows only its own name
            name = getattr(code, "co_qualname", code.co_name)
            found.add((str(path.relative_to(PACKAGE)), name))
    return found


# Most functions and files from a command line to what it prints and writes, the parser and all
# folders of the package among them: bounds to be lowered as the paths get shorter.
SENTENCE = {"point": (105, 26), "bayes": (130, 28), "pretrained": (84, 20)}
LIST = (308, 56)


def check_path(pairs, most):
    files = {file for file, _ in pairs}
    assert len(pairs) <= most[0] and len(files) <= most[1], sorted(pairs)


@pytest.fixture
def pretrained(tmp_path):
    return f"hf:{write_model(tmp_path / 'model')}"


@pytest.mark.parametrize("name", SENTENCE)
def test_a_sentence(name, request, tmp_path):
    (tmp_path / "text").write_text("a b c\n")
    cmd = words(text=tmp_path / "text", lm=request.getfixturevalue(name))
    cmd += ["--text_form", "lower,newline,blank"] * (name == "pretrained")
    pairs = entered(lambda: perplexity.main(cmd))
    assert not {file for file, _ in pairs if file.startswith(("nbest", "training", "rescoring"))}
    check_path(pairs, SENTENCE[name])


def test_a_list(point, ngram, nbest, tmp_path):
    cmd = words(nbest=nbest / "dev", lm=point, ngram=ngram, weights="0.5,0.5")
    cmd += words(tune_ref=nbest / "dev.ref", output=tmp_path / "rescored")
    pairs = entered(lambda: rescore.main(cmd))
    check_path(pairs, LIST)


SIZES = dict(att_unit=4, head=2, unit=6, layer=1)
# More than the point-estimate LM enters.
MOST_FUNCTIONS, MOST_FILES = 25, 6


def train(uncertainty):
    """Build an LM and go through one training pass with its KL."""
    lm = BayesTransformerLM(VOCAB, **SIZES, uncertainty=uncertainty)
    BayesLanguageModel(lm, VOCAB, num_train_tokens=50).train()(*BATCH)


def test_the_path_from_lm_conf_to_a_sampled_weight():
    more = entered(lambda: train({"ffn@1": "bayes"})) - entered(lambda: train({}))
    assert any(file == "kinds/bayes.py" and "sample_with_kl" in name for file, name in more)
    assert len(more) <= MOST_FUNCTIONS, sorted(more)
    files = {file for file, _ in more}
    assert len(files) <= MOST_FILES, sorted(files)
