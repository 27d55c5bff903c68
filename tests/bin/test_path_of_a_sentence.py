"""Scoring one sentence needs neither lists nor training, and few functions."""

import pytest
from entered import entered

from espnet_bayeslm.bin.perplexity import PerplexityOptions, perplexity

# Parts of the package that a sentence must not pass through
OTHERS = {"nbest", "training", "rescoring"}
# The LM's own layers, and what the whole package stands on
BELOW = {"lm", "layers", "kernels", "bayes", "kinds", "utils"}
# Bounds, to be lowered as the path gets shorter.
MOST_FILES, MOST_FUNCTIONS = 22, 105


@pytest.mark.parametrize("name", ["point", "bayes"])
def test_a_sentence_passes_through_few_modules(name, request, tmp_path):
    (tmp_path / "text").write_text("a b c\n")
    lms = (str(request.getfixturevalue(name)),)
    options = PerplexityOptions(text=str(tmp_path / "text"), lms=lms)
    # once before, since what is imported late is entered once
    perplexity(options)
    with entered() as found:
        perplexity(options)
    files = {file for file, _ in found}
    assert not {file for file in files if file.split("/")[0] in OTHERS}
    crossed = {file for file in files if file.split("/")[0] not in BELOW}
    assert {"bin/perplexity.py", "loading/trained_lm.py", "scoring/neural.py"} <= crossed
    assert len(crossed) <= MOST_FILES, sorted(crossed)
    functions = sorted(pair for pair in found if pair[0] in crossed)
    assert len(functions) <= MOST_FUNCTIONS, functions
