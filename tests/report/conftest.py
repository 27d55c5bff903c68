"""Folders as `bayeslm rescore` writes them."""

import json
import random

import pytest

from espnet_bayeslm.nbest.formats import write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.report.rescored_lists import read_rescored


def write_rescored(folder, lists, *, best, uncertain=False):
    """Write Kaldi lists {utterance: texts}, {utterance: place of the new best}, and more files."""
    nbests = [
        NBest(
            utt,
            tuple(
                Hypothesis(tuple(text.split()), -100.0 - n, -5.5 - n, -0.25)
                for n, text in enumerate(texts)
            ),
        )
        for utt, texts in lists.items()
    ]
    write_nbest(nbests, folder)
    names = [f"{utt}-{n}" for utt, texts in lists.items() for n in range(1, len(texts) + 1)]
    (folder / "lmwt.nn").write_text("".join(f"{name} {7.5}\n" for name in names))
    lines = (f"{utt} {texts[best[utt]]}\n" for utt, texts in lists.items())
    (folder / "text").write_text("".join(lines))
    (folder / "scales.yaml").write_text("lmwt: 10.0\nword_penalty: 0.5\n")
    if uncertain:
        write_uncertainty(folder / "uncertainty.ndjson", lists)
    return folder


def write_uncertainty(path, lists):
    """Write an uncertainty.ndjson: of word n the entropy is n + 1, the other values are random."""
    rng = random.Random(0)
    with open(path, "w") as f:
        for utt, texts in lists.items():
            for rank, text in enumerate(texts, 1):
                words = text.split()
                places = range(len(words) + 1)
                row = {"utt": utt, "rank": rank, "words": words}
                row["log_prob"] = [-rng.expovariate(0.3) for _ in places]
                row["entropy"] = [n + 1.0 for n in places]
                row["mutual_information"] = [rng.random() / 10 for _ in places]
                row["variance"] = [rng.random() for _ in places]
                f.write(json.dumps(row) + "\n")


@pytest.fixture
def rescored(tmp_path):
    """Return a function that writes and reads a folder, some files of which may be others."""

    def read(name, lists, *, files=(), **options):
        folder = write_rescored(tmp_path / name, lists, **options)
        for file, content in dict(files).items():
            (folder / file).write_text(content)
        return read_rescored(name, str(folder), "kaldi")

    return read
