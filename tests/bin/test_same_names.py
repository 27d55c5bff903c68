"""Components of one name, and files that change: a weight or a score is never another file's."""

import pytest
import yaml
from command_lines import perplexities
from tiny_training import words

from espnet_bayeslm.bin import interpolate
from espnet_bayeslm.loading.experiment import fingerprint
from espnet_bayeslm.loading.export import write_mixture
from espnet_bayeslm.loading.weights_file import NamedWeight, match_weights
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.utils.errors import InputError


@pytest.fixture(scope="module")
def named(plain_text, tmp_path_factory):
    """Return two n-grams of one name, of the text and of its letters in a wrong order."""
    paths = []
    text = (plain_text / "train.txt").read_text()
    for name in ("A", "B"):
        folder = tmp_path_factory.mktemp(name)
        (folder / "text").write_text(text)
        build_ngram(folder / "text", folder / "2.arpa", order=2, discount_fallback=True)
        paths.append(folder / "2.arpa")
        text = "".join(" ".join(sorted(line.split())[::-1]) + "\n" for line in text.splitlines())
    return paths


@pytest.fixture(scope="module")
def weights(named, point, plain_text, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "w.yaml"
    text = plain_text / "valid.txt"
    interpolate.main(words(text=text, lm=point, ngram=named, output=path))
    return path


def weight_of(path):
    return [row["weight"] for row in yaml.safe_load(path.read_text())["components"]]


def test_weights_go_by_what_the_files_hold(named, point, weights, plain_text, tmp_path):
    assert abs(weight_of(weights)[1] - weight_of(weights)[2]) > 0.1
    expected = yaml.safe_load(weights.read_text())["mixture"]["perplexity"]
    for paths in (named, named[::-1]):
        text = {"text": plain_text / "valid.txt", "output": tmp_path / "ppl"}
        rows = perplexities(**text, lm=point, ngram=paths, weights=weights)
        assert rows["mixture"]["perplexity"]["word"] == pytest.approx(expected, abs=1e-3)


def test_matching():
    def rows(*triples):
        return [NamedWeight(*triple) for triple in triples]

    plain = rows(("a", 0.3), ("b", 0.7))
    assert match_weights(plain, ["b", "a"]) == [0.7, 0.3]
    assert match_weights(plain, ["b", "a"], ["x", "y"]) == [0.7, 0.3]
    signed = rows(("n", 0.3, "x"), ("n#2", 0.7, "y"))
    assert match_weights(signed, ["n", "n#2"], ["y", "x"]) == [0.7, 0.3]
    assert match_weights(signed, ["other", "n"], ["y", "x"]) == [0.7, 0.3]  # under any name
    assert match_weights(signed, ["n", "n#2"], ["z", "x"]) == [0.7, 0.3]  # one was trained anew
    same = rows(("n", 0.3, "x"), ("n#2", 0.7, "x"))
    assert sorted(match_weights(same, ["n", "n#2"], ["x", "x"])) == [0.3, 0.7]
    with pytest.raises(InputError, match="several components are named n"):
        match_weights(signed, ["n", "n#2"], ["z", "u"])
    for names in (["a"], ["a", "c"], ["a", "b", "c"], ["a", "b", "b#2"]):
        with pytest.raises(InputError, match="has weights for a, b, but the components are"):
            match_weights(plain, names)


def test_the_cache_knows_all_that_is_read(named, point, plain_text, tmp_path):
    exp = tmp_path / "mixture"
    write_mixture(exp, lms=[point], ngrams=[named[0]], weights="0.2,0.8")
    found = []
    text = {"text": plain_text / "valid.txt", "output": tmp_path / "out"}
    for cache in ({"cache": tmp_path / "cache"}, {"cache": tmp_path / "cache"}, {}):
        (row,) = perplexities(**text, lm=exp, **cache).values()
        found.append(row["perplexity"]["word"])
        (exp / "ngrams" / "2.arpa").write_bytes(named[1].read_bytes())
    assert found[1] == pytest.approx(found[2]) and abs(found[0] - found[1]) > 0.1
    config, digests = exp / "config.yaml", set()
    config.write_text(config.read_text() + f"bpemodel: {tmp_path}/bpe\n")
    for content in ("one", "two"):
        (tmp_path / "bpe").write_text(content)
        digests.add(fingerprint(exp))
    assert len(digests) == 2
