"""`<s>` and `</s>` around sentences: one rule for every reader of texts and lists."""

import json

import pytest

from espnet_bayeslm.evaluation.transcripts import read_sentences, read_transcripts
from espnet_bayeslm.nbest.formats import CheckedLists, read_nbest
from espnet_bayeslm.ngram.estimation import read_corpus
from espnet_bayeslm.training.text import write_keyed_text
from espnet_bayeslm.utils.errors import InputError


def as_kaldi(path, text):
    path.mkdir()
    for name, value in (("words_text", text), ("acwt", "-1"), ("lmwt.nolm", "2")):
        (path / name).write_text(f"u1-1 {value}\n")
    return next(iter(read_nbest(path, "kaldi"))).hypotheses[0].words


def as_checked(path, text):
    as_kaldi(path, "x")
    (path / "words_text").write_text(f"u1-1 {text}\n")
    return next(iter(CheckedLists(path, "kaldi"))).hypotheses[0].words


def as_jsonl(path, text):
    value = {"utt": "u1", "hypotheses": [{"text": "x"}], "ref": text}
    path.write_text(json.dumps(value) + "\n")
    return next(iter(read_nbest(path, "jsonl"))).ref


def as_srilm(path, text):
    path.mkdir()
    (path / "u1.score").write_text(f"-1 -2 {len(text.split())} {text}\n")
    return next(iter(read_nbest(path, "srilm"))).hypotheses[0].words


def as_plain(path, text):
    path.write_text(f"{text}\n")
    return read_sentences(path, keyed=False)["1"]


def as_text(path, text):
    path.write_text(f"u1 {text}\n")
    return read_transcripts(path)["u1"]


def as_trn(path, text):
    path.write_text(f"{text} (u-1)\n")
    return read_transcripts(path)["u-1"]


def as_ngram(path, text):
    path.write_text(f"{text}\n")
    corpus = read_corpus(path)
    return tuple(corpus.words[number] for number in corpus.ids[1:-1])


def as_training(path, text):
    path.write_text(f"{text}\n")
    write_keyed_text(path, path.with_name("train.txt"))
    return tuple(path.with_name("train.txt").read_text().split()[1:])


READERS = (
    as_kaldi, as_checked, as_jsonl, as_srilm, as_plain, as_text, as_trn, as_ngram, as_training,
)  # fmt: skip


@pytest.mark.parametrize("read", READERS)
def test_marks_around_a_sentence_are_no_words(tmp_path, read):
    assert read(tmp_path / "x", "<s> red kite </s>") == ("red", "kite")


@pytest.mark.parametrize("text", ["a <s> b", "<s> a </s> <s> b </s>"])
@pytest.mark.parametrize("read", READERS)
def test_marks_within_a_sentence_are_refused(tmp_path, read, text):
    with pytest.raises(InputError, match=r"<?/?s> stands in the text, where only ordinary words"):
        read(tmp_path / "x", text)
