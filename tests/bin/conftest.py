"""Tiny trained LMs, an n-gram and N-best lists for the command lines."""

import re

import pytest
from command_lines import perplexities, run
from tiny_training import words
from written_files import write_noisy_lists

from espnet_bayeslm.bin import score, snr
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.ngram.estimation import build_ngram

LSTM = ["--lm", "bayes_lstm", "--lm_conf", "unit=8", "--lm_conf", "dropout_rate=0.0"]
CELL = ["--lm_conf", "uncertainty.cell_input@1=bayes", "--lm_conf", "init_std=0.3"]
ESPNET = ["--lm", "seq_rnn", "--lm_conf", "unit=8", "--lm_conf", "nlayers=1"]
LATENT = ["--lm", "bayes_lstm", "--lm_conf", "unit=8"]
LATENT += ["--lm_conf", "uncertainty.hidden_output@2=variational"]
ADAM = ["--optim", "adam", "--optim_conf", "lr=0.02"]


def trained(name, *options):
    """Make a fixture of an LM that is trained for all tests."""

    @pytest.fixture(scope="session", name=name)
    def fixture(train_lm, tmp_path_factory):
        return train_lm(tmp_path_factory.mktemp("lms") / name, *options, *ADAM)

    return fixture


point, bayes = trained("point", *LSTM), trained("bayes", *LSTM, *CELL)
seq_rnn, latent = trained("seq_rnn", *ESPNET), trained("latent", *LATENT)


@pytest.fixture(scope="session")
def broken(bayes, tmp_path_factory):
    """Return an LM's folder whose checkpoint is none."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "config.yaml").write_text((bayes / "config.yaml").read_text())
    (folder / "valid.loss.ave.pth").write_bytes(b"no checkpoint")
    return folder


@pytest.fixture(scope="session")
def ngram(plain_text):
    path = plain_text / "bigram.arpa"
    build_ngram(plain_text / "train.txt", path, order=2, lmplz="none", discount_fallback=True)
    return path


@pytest.fixture(scope="session")
def nbest(corpus, tmp_path_factory):
    """Return a folder with the N-best lists `dev` and `test`, dev.ref and test.ref."""
    folder = tmp_path_factory.mktemp("nbest")
    for name, part, size, seed in (("dev", "valid", 30, 3), ("test", "train", 20, 4)):
        lines = (corpus / f"{part}.txt").read_text().splitlines()[:size]
        (folder / f"{name}.ref").write_text("\n".join(lines) + "\n")
        refs = {utt: words for utt, *words in map(str.split, lines)}
        write_noisy_lists(folder / name, refs, seed=seed)
    return folder


@pytest.fixture(scope="session")
def mixture(point, bayes, ngram):
    """Return options of a mixture."""
    return {"lm": [point, bayes], "ngram": ngram, "weights": "0.3,0.5,0.2"}


@pytest.fixture(scope="session")
def tuning(nbest):
    """Return options that tune on the lists `dev`."""
    return {"nbest": nbest / "dev", "tune_ref": nbest / "dev.ref"}


@pytest.fixture(scope="session")
def outputs(bayes, ngram, nbest, tuning, plain_text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    ref = nbest / "dev.ref"
    run(**tuning, ngram=ngram, output=folder / "ngram")
    run(nbest=nbest / "dev", ngram=ngram, lmwt=3, output=folder / "fixed")
    hyps = [f"{name}={folder}/{name}/text" for name in ("fixed", "ngram")]
    score.main(words(ref=ref, hyp=hyps, output=folder / "score.json"))
    perplexities(text=plain_text / "valid.txt", ngram=ngram, output=folder / "ppl.json")
    snr.main(words(lm=bayes, output=folder / "snr"))
    return folder


@pytest.fixture
def segments(nbest, tmp_path):
    """Return a `segments` of four recordings, in the order of the lists `dev`."""
    utts = [item.utt for item in read_nbest(nbest / "dev")]
    lines = [f"{utt} rec{n % 4} {n} {n + 1}\n" for n, utt in enumerate(utts)]
    (tmp_path / "segments").write_text("".join(lines))
    return tmp_path / "segments"


@pytest.fixture
def refused(fails, request, tmp_path):
    """Return a function: main(), a command line that ends in one error, parts of what is said.

    Nothing in `tmp_path` may change. `{NAME}` stands for the value of a fixture.
    """

    def filled(word):
        return re.sub(r"{(\w+)}", lambda match: str(request.getfixturevalue(match[1])), str(word))

    def tree():
        return {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}

    def run(main, command, *said):
        command, before = [filled(word) for word in command], tree()
        error = fails(main, command)
        module = main.__module__.rpartition(".")[2]
        tool = main.__self__.name if hasattr(main, "__self__") else module
        assert error.startswith(f"bayeslm {tool}: error: ")
        assert all(filled(words) in error for words in said), error
        assert tree() == before

    return run
