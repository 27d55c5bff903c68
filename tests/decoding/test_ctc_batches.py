"""Decoders of CTC logits in pools and from their parts, and input that is none."""

import gzip
import json
import multiprocessing
import pickle
import sys
from pathlib import Path

import kenlm
import numpy as np
import pytest
import torch

from espnet_bayeslm.decoding import (
    Alphabet,
    BeamSearchDecoderCTC,
    LanguageModel,
    build_ctcdecoder,
    ctc_decoder,
)
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.utils.errors import InputError

sys.path.insert(0, str(Path(__file__).parent))

from test_ctc_search import LETTERS, TEXTS, spoken


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "text").write_text("".join(f"{line}\n" for line in TEXTS))
    build_ngram(folder / "text", folder / "3.arpa", order=3, discount_fallback=True)
    return folder / "3.arpa"


@pytest.fixture
def heard():
    return [spoken(text, LETTERS, seed=n) for n, text in enumerate(["ab a", "bb ab a", "a", "ba"])]


class LoadedOnce(LanguageModel):
    """An LM that may be loaded once in a process."""

    count = 0

    def __init__(self, *args, **kwargs):
        type(self).count += 1
        assert self.count == 1
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_load_an_lm_once_in_a_process(method, arpa, heard, monkeypatch):
    monkeypatch.setattr(ctc_decoder, "LanguageModel", LoadedOnce)
    monkeypatch.setattr(LoadedOnce, "count", 0)
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:  # before the decoder
        decoder = build_ctcdecoder(LETTERS, arpa, alpha=0.3)
        tensors = [torch.tensor(logits, requires_grad=True) for logits in heard]
        for weights in ({}, {"alpha": 2.0, "beta": -1.0}):
            decoder.reset_params(**weights)
            expected = [decoder.decode(logits) for logits in heard]
            for batch in (heard, tensors):
                assert decoder.decode_batch(pool, batch, beam_width=100) == expected
            assert decoder.decode_batch(pool, np.stack(heard[:1] * 2)) == expected[:1] * 2
            beams = decoder.decode_beams_batch(pool, heard, hotwords=["ab"])
            assert beams == decoder.decode_beams_batch(None, heard, hotwords=["ab"])
            assert [found[0].text for found in beams] == decoder.decode_batch(
                None, heard, hotwords=["ab"]
            )


def test_a_decoder_that_is_pickled_is_the_same_in_its_process(arpa):
    decoder = build_ctcdecoder(LETTERS, arpa)
    assert pickle.loads(pickle.dumps(decoder)) is decoder


def test_ngrams_of_all_sorts_give_the_same(arpa, heard, tmp_path):
    packed = tmp_path / "lm.arpa.gz"
    packed.write_bytes(gzip.compress(arpa.read_bytes()))
    expected = build_ctcdecoder(LETTERS, arpa).decode_beams(heard[1])
    for model in (packed, str(packed), kenlm.Model(str(arpa))):
        assert build_ctcdecoder(LETTERS, model).decode_beams(heard[1]) == expected
    folder = tmp_path / "decoder"
    build_ctcdecoder(LETTERS, packed).save_to_dir(folder)
    assert sorted(path.name for path in (folder / "language_model").iterdir()) == [
        "attrs.json",
        "lm.arpa",
        "unigrams.txt",
    ]
    assert BeamSearchDecoderCTC.load_from_dir(folder).decode_beams(heard[1]) == expected


def test_chunks_go_on_from_the_words_before(arpa):
    """Ln P of two chunks are those of the whole, where no end is scored between them."""
    decoder = build_ctcdecoder(LETTERS, arpa, None, 1.0, 0.0)
    whole, first, second = (
        spoken(text, LETTERS, margin=12.0) for text in ("ab a bb", "ab a", "bb")
    )
    (expected,) = (b for b in decoder.decode_beams(whole) if b.text == "ab a bb")
    decoder.reset_params(lm_score_boundary=False)
    start = LanguageModel(arpa).get_start_state()
    before = decoder.decode_beams(first, lm_start_state=start)[0]
    decoder.reset_params(lm_score_boundary=True)
    after = decoder.decode_beams(second, lm_start_state=before.last_lm_state)[0]
    assert before.log_prob + after.log_prob == pytest.approx(expected.log_prob, abs=1e-4)
    assert decoder.decode(second, lm_start_state=before.last_lm_state) == "bb"


@pytest.mark.parametrize("with_lm", [False, True])
@pytest.mark.parametrize("empty", [np.empty((0, 4)), [], torch.empty(0, 4), np.empty(0)])
def test_no_frames_are_an_empty_text(with_lm, empty, arpa):
    decoder = build_ctcdecoder(LETTERS, arpa if with_lm else None)
    (beam,) = decoder.decode_beams(empty)
    assert (beam.text, beam.text_frames, beam.logit_score) == ("", [], 0.0)
    assert decoder.decode(empty) == ""
    assert decoder.decode_batch(None, [empty, spoken("a", LETTERS)]) == ["", "a"]


@pytest.mark.parametrize(
    "logits, part",
    [
        (np.zeros((3, 5)) + np.eye(3, 5), "5 columns, and 4 were expected"),
        (np.where(np.eye(3, 4) > 0, np.nan, 0.0), "the largest logit of frame 0 is nan"),
        (np.zeros((2, 3, 4)), "an array 2x3x4"),
        (np.array(3.0), "an array no of float64"),
        (None, "an array no of object"),
        ([[0.0, 1.0], [1.0]], "frames x tokens of numbers were expected"),
    ],
)
def test_logits_that_are_none(logits, part):
    with pytest.raises(InputError) as error:
        build_ctcdecoder(LETTERS).decode(logits)
    assert part in str(error.value)


@pytest.mark.parametrize(
    "hotwords, weight, part",
    [(["ab", "x"], 5.0, "'x'"), (["ab", "  "], 0.0, "weight 0"), (["ab"], -2.0, "weight -2")],
)
def test_hotwords_that_change_nothing_are_left_out(hotwords, weight, part, heard, caplog):
    decoder = build_ctcdecoder(LETTERS)
    kept = ["ab"] if weight > 0 else []
    expected = decoder.decode_beams(heard[0], hotwords=kept, hotword_weight=max(weight, 1.0))
    assert not caplog.text
    assert decoder.decode_beams(heard[0], hotwords=hotwords, hotword_weight=weight) == expected
    assert part in caplog.text and "left out" in caplog.text


def test_frames_without_a_word_keep_their_numbers():
    """Padding is left out of the search, and counts in the frames of words."""
    logits = spoken("ab a", LETTERS, margin=12.0)
    padded = np.concatenate([np.zeros((4, 4)), logits[:7], np.zeros((5, 4)), logits[7:]])
    decoder = build_ctcdecoder(LETTERS)
    frames = decoder.decode_beams(logits)[0].text_frames
    moved = [(w, tuple(n + (4 if n < 8 else 9) for n in span)) for w, span in frames]
    assert decoder.decode_beams(padded)[0].text_frames == moved


@pytest.mark.parametrize(
    "labels, is_bpe, expected",
    [
        (["<pad>", "|", "a", "[UNK]"], False, ["", " ", "a", "\u2047"]),
        (["a", "b", " "], False, ["a", "b", " ", ""]),
        (["a", "<space>", "<blank>"], False, ["a", " ", ""]),
        (["[PAD]", "the", "##s", "[UNK]"], True, ["", "\u2581the", "s", "\u2581\u2047\u2581"]),
        (["<unk>", "\u2581a", "b"], True, ["\u2581\u2047\u2581", "\u2581a", "b", ""]),
    ],
)
def test_alphabets(labels, is_bpe, expected):
    alphabet = Alphabet.build_alphabet(labels)
    assert (alphabet.labels, alphabet.is_bpe) == (expected, is_bpe)
    again = Alphabet.loads(alphabet.dumps())
    assert (again.labels, again.is_bpe) == (expected, is_bpe)
    for name in ("opens", "texts"):
        assert getattr(again.tokens.words, name) == getattr(alphabet.tokens.words, name)
    assert again.tokens.blank == alphabet.tokens.blank


def test_a_folder_of_a_decoder_that_writes_lower_case(arpa, tmp_path):
    labels = [*LETTERS[:2], "A", "B", "<s>"]
    build_ctcdecoder(labels, arpa, lower=True).save_to_dir(tmp_path)
    loaded = BeamSearchDecoderCTC.load_from_dir(tmp_path)
    assert loaded._alphabet.labels == ["", " ", "a", "b", "<s>"]
    assert loaded.decode(spoken("ab a", [*LETTERS, "<s>"], margin=12.0)) == "ab a"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"labels": ["a"]}', '{"labels": 3, "is_bpe": 1}']
)
def test_alphabets_that_are_none(text):
    with pytest.raises(InputError):
        Alphabet.loads(text)


def test_folders_that_are_none(tmp_path, arpa):
    with pytest.raises(InputError, match=r"a folder without alphabet\.json"):
        BeamSearchDecoderCTC.load_from_dir(tmp_path)
    build_ctcdecoder(LETTERS, arpa).save_to_dir(tmp_path)
    attributes = tmp_path / "language_model" / "attrs.json"
    attributes.write_text(json.dumps({"alpha": 1.0}))
    with pytest.raises(InputError, match="expected alpha, beta"):
        BeamSearchDecoderCTC.load_from_dir(tmp_path)
    attributes.write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        BeamSearchDecoderCTC.load_from_dir(tmp_path)
    attributes.unlink()
    with pytest.raises(InputError, match=r"attrs\.json, unigrams\.txt and an n-gram were expected"):
        BeamSearchDecoderCTC.load_from_dir(tmp_path)


def test_the_hub_is_asked_for_what_is_not_here(arpa, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    build_ctcdecoder(LETTERS, arpa, beta=0.25).save_to_dir(tmp_path / "copy")
    asked = []

    def download(name, *, cache_dir, local_files_only=False):
        asked.append(local_files_only)
        if asked == [True]:
            raise FileNotFoundError("no copy")
        return str(cache_dir / "copy")

    monkeypatch.setattr(hub, "snapshot_download", download)
    for expected in ([True, False], [True, False, True]):
        decoder = BeamSearchDecoderCTC.load_from_hf_hub("someone/lm", cache_dir=tmp_path)
        assert decoder.model_container[decoder._model_key].beta == 0.25
        assert asked == expected


def test_weights_of_an_lm(arpa, heard):
    decoder = build_ctcdecoder(LETTERS, arpa)
    for how in ({"alpha": 1.5}, {"beta": -2.0}, {"unk_score_offset": -1.0}):
        decoder.reset_params(**how)
    decoder.reset_params(lm_score_boundary=False)
    whole = build_ctcdecoder(LETTERS, arpa, None, 1.5, -2.0, -1.0, False)
    assert decoder.decode_beams(heard[1]) == whole.decode_beams(heard[1])
    lm = decoder.model_container[decoder._model_key]
    best, state, total = whole.decode_beams(heard[1])[0], lm.get_start_state(), 0.0
    for word in best.text.split():
        score, state = lm.score(state, word)
        total += score
    assert best.lm_score == pytest.approx(best.logit_score + total, abs=1e-4)
    with pytest.raises(InputError, match="no weight 'gamma'"):
        lm.reset_params(gamma=1.0)
    decoder.cleanup()
    assert decoder.decode_beams(heard[1])[0].log_prob is None
