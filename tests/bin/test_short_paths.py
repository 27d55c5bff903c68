"""Few modules and functions stand between a list or a sentence and its scores."""

import pytest
from entered import entered

from espnet_bayeslm.bin.perplexity import PerplexityOptions, perplexity
from espnet_bayeslm.loading.components import ComponentOptions
from espnet_bayeslm.nbest.formats import CheckedLists
from espnet_bayeslm.rescoring.list_worker import score_lists
from espnet_bayeslm.rescoring.scales import Scales, Weighting
from espnet_bayeslm.rescoring.tuning import Rescoring

# The LM's own layers, and what the whole package stands on
BELOW = {"lm", "layers", "kernels", "bayes", "kinds", "utils"}


def crossed(call):
    """Return the (file, function) pairs above the LM that a second call enters.

    What is imported late is entered once.
    """
    call()
    with entered() as found:
        call()
    return {(file, name) for file, name in found if file.split("/")[0] not in BELOW}


@pytest.mark.parametrize("name", ["point", "bayes"])
def test_a_sentence(name, request, tmp_path):
    (tmp_path / "text").write_text("a b c\n")
    lms = (str(request.getfixturevalue(name)),)
    options = PerplexityOptions(text=str(tmp_path / "text"), lms=lms)
    pairs = crossed(lambda: perplexity(options))
    files = {file for file, _ in pairs}
    assert not {file for file in files if file.startswith(("nbest", "training", "rescoring"))}
    assert {"bin/perplexity.py", "loading/trained_lm.py", "scoring/neural.py"} <= files
    # bounds, to be lowered as the path gets shorter; six of them print the report's table
    assert len(files) <= 20 and len(pairs) <= 104, sorted(pairs)


def test_a_list(point, nbest):
    components = ComponentOptions(lms=[str(point)]).components()
    weighting = Weighting.of(components, None, Scales(lmwt=10.0))

    def rescore():
        found = score_lists(CheckedLists(nbest / "dev"), components, weighting)
        assert len(list(Rescoring(found, weighting))) == 30

    files = {file for file, _ in crossed(rescore)}
    assert {"nbest/kaldi.py", "scoring/neural.py", "rescoring/decision.py"} <= files
    # options, units, blocks and formats that are inferred are modules of their own
    assert len(files) <= 16, sorted(files)
