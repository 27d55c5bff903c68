import gzip

import pytest

from espnet_bayeslm.ngram.estimation import read_corpus
from espnet_bayeslm.utils.errors import InputError


def corpus_of(tmp_path, content):
    path = tmp_path / "text"
    path.write_bytes(content)
    return read_corpus(path)


def test_stream_of_ids(tmp_path):
    corpus = corpus_of(tmp_path, b"b a\n\n  a\t b\r\n")
    assert corpus.words == ["<unk>", "<s>", "</s>", "b", "a"]
    assert corpus.ids.tolist() == [1, 3, 4, 2, 1, 2, 1, 4, 3, 2]
    assert corpus.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]
    assert (corpus.num_sentences, corpus.num_tokens) == (3, 4)


def test_last_lines_and_blanks(tmp_path, caplog):
    with_end, without = corpus_of(tmp_path, b"a b\nc\n"), corpus_of(tmp_path, b"a b\nc")
    assert with_end.ids.tolist() == without.ids.tolist()
    # a no-break space is no blank
    assert corpus_of(tmp_path, "a\u00a0b c\n".encode()).words[3:] == ["a\u00a0b", "c"]
    assert "1 words hold blanks that are none for lmplz, 'a\\xa0b' first" in caplog.text


def test_a_byte_order_mark_is_none_of_the_words(tmp_path, caplog):
    assert corpus_of(tmp_path, "\ufeffa b\n".encode()).words[3:] == ["a", "b"]
    assert not caplog.records


@pytest.mark.parametrize(
    "content, message",
    [
        (b"a\nb <s> c\n", r"text:2: <s> stands in the text"),
        (b"a </s>\n", r"text:1: </s> stands in the text"),
        (b"a\n\n<unk>\n", r"text:3: <unk> stands in the text"),
        (b"a\nb\xff c\n", r"text:2: not UTF-8 text .* at byte 1 of the line"),
        (b"", "text: no word in the text"),
        (b"\n \t\n", "text: no word in the text"),
    ],
)
def test_bad_text_is_one_clear_error(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        corpus_of(tmp_path, content)


def test_a_gzipped_text(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"b a\n"))
    assert read_corpus(path).words[3:] == ["b", "a"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"text\.gz: cannot be read"):
        read_corpus(path)
