"""Few modules and functions stand between a list, a sentence or `lm_conf` and its scores."""

import sys
from pathlib import Path

import pytest
from lm_cases import BATCH, VOCAB

import espnet_bayeslm
from espnet_bayeslm.bin.perplexity import PerplexityOptions, perplexity
from espnet_bayeslm.lm import BayesTransformerLM
from espnet_bayeslm.loading.components import ComponentOptions
from espnet_bayeslm.nbest.formats import CheckedLists
from espnet_bayeslm.rescoring.list_worker import ListWorker, blocks_of, checked
from espnet_bayeslm.rescoring.scales import Scales, Weighting
from espnet_bayeslm.rescoring.tuning import AS_USUAL, Rescoring
from espnet_bayeslm.training.model import BayesLanguageModel

PACKAGE = Path(espnet_bayeslm.__file__).parent


# The LM's own layers, and what the whole package stands on
BELOW = {"lm", "layers", "kernels", "bayes", "kinds", "utils"}


def entered(call, *, below=frozenset()):
    """Return (file, function) of each function of the package that a second call enters.

    What is cached or imported late is entered once. Parts `below` are left out.
    """
    call()
    found = set()

    def see(frame, event, arg):
        path = Path(frame.f_code.co_filename)
        # of a method with its class; Python 3.10 knows only its own name
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        # a comprehension or a lambda is a part of the function around it
        named = not frame.f_code.co_name.startswith("<")
        if event == "call" and named and path.is_relative_to(PACKAGE):
            found.add((str(path.relative_to(PACKAGE)), name))

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return {(file, name) for file, name in found if file.split("/")[0] not in below}


@pytest.mark.parametrize("name", ["point", "bayes"])
def test_a_sentence(name, request, tmp_path):
    (tmp_path / "text").write_text("a b c\n")
    lms = (str(request.getfixturevalue(name)),)
    options = PerplexityOptions(text=str(tmp_path / "text"), lms=lms)
    pairs = entered(lambda: perplexity(options), below=BELOW)
    files = {file for file, _ in pairs}
    assert not {file for file in files if file.startswith(("nbest", "training", "rescoring"))}
    assert {"bin/perplexity.py", "loading/trained_lm.py", "scoring/scorer.py"} <= files
    # bounds, to be lowered as the path gets shorter; six of them print the report's table
    assert len(files) <= 20 and len(pairs) <= 106, sorted(pairs)


def test_a_list(point, nbest):
    components = ComponentOptions(lms=[str(point)]).components()
    weighting = Weighting.of(components, None, Scales(lmwt=10.0))

    def rescore():
        first, work = blocks_of(CheckedLists(nbest / "dev"), AS_USUAL, chooses=False)
        worker = ListWorker(components, weighting, AS_USUAL, first)
        found = checked(map(worker.score, work))
        assert len(list(Rescoring(found, weighting))) == 30

    files = {file for file, _ in entered(rescore, below=BELOW)}
    assert {"nbest/kaldi.py", "scoring/scorer.py", "rescoring/decision.py"} <= files
    # options, units, blocks, forms of text and inferred formats are modules of their own
    assert len(files) <= 17, sorted(files)


SIZES = dict(att_unit=4, head=2, unit=6, layer=1)
# More than the point-estimate LM enters.
MOST_FUNCTIONS, MOST_FILES = 25, 6


def train(uncertainty):
    """Build an LM and go through one training pass with its KL."""
    lm = BayesTransformerLM(VOCAB, **SIZES, uncertainty=uncertainty)
    BayesLanguageModel(lm, VOCAB, num_train_tokens=50).train()(*BATCH)


def test_the_path_from_lm_conf_to_a_sampled_weight():
    more = entered(lambda: train({"ffn@1": "bayes"})) - entered(lambda: train({}))
    assert any(file == "bayes/weights.py" and "sample_with_kl" in name for file, name in more)
    assert len(more) <= MOST_FUNCTIONS, sorted(more)
    files = {file for file, _ in more}
    assert len(files) <= MOST_FILES, sorted(files)
