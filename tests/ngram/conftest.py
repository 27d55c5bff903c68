from pathlib import Path

import pytest

from espnet_bayeslm.ngram.estimation import build_ngram

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def data():
    return DATA


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    """A 3-gram of the reference text, by our estimator."""
    path = tmp_path_factory.mktemp("ngram") / "reference.3g.arpa.gz"
    build_ngram(DATA / "reference.txt", path, lmplz="none")
    return path
