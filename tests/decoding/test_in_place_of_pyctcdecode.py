"""A program that was written for pyctcdecode runs with one import changed, and finds the same."""

import importlib
import multiprocessing
import sys
from pathlib import Path

import kenlm
import numpy as np
import pytest

from espnet_bayeslm.ngram.estimation import build_ngram

sys.path.insert(0, str(Path(__file__).parent))

from test_ctc_search import spoken

OURS, THEIRS = "espnet_bayeslm.decoding", "pyctcdecode"
LABELS = ["<pad>", "|", *"abdefghiklmnoprstuwy"]
PIECES = ["<unk>", "\u2581the", "\u2581bug", "s", "\u2581bunny", "\u2581and", "\u2581a"]
SAID = ["the bugs and the bunny", "a bunny ran", "the fast bug", "looney bugs", "he said the word"]
TRAINED = [*SAID, "the bunny and a bug", "a fast bunny ran and ran", "bugs bunny"] * 3


def imported(name):
    if name == THEIRS:
        pytest.importorskip(THEIRS, reason="pyctcdecode is not installed")
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "text").write_text("".join(f"{line}\n" for line in TRAINED))
    build_ngram(folder / "text", folder / "3.arpa", order=3, discount_fallback=True)
    return str(folder / "3.arpa")


@pytest.fixture(scope="module")
def heard():
    """Logits of what was said, which end in a letter."""
    utterances = []
    for seed, text in enumerate(SAID):
        logits = spoken(text, LABELS, seed=seed, margin=6.0, noise=1.2)
        logits[-3:, LABELS.index("|")] = -30.0
        utterances.append(logits)
    return utterances


def pieces_of(words):
    """Logits of word pieces."""
    rows = []
    for piece in words:
        for target in (piece, len(PIECES)):
            row = np.random.default_rng(len(rows)).normal(0, 1, len(PIECES) + 1)
            row[target] += 6.0
            row[0] = -30.0  # pyctcdecode breaks words of other hypotheses after an unknown one
            rows.append(row)
    return np.array(rows)


def readme(ctc, arpa, heard):
    """Results of the steps of the README: an LM, word pieces, hotwords, a batch."""
    decoder = ctc.build_ctcdecoder(LABELS, kenlm_model_path=arpa, alpha=0.5, beta=1.0)
    yield [decoder.decode(logits) for logits in heard]
    pieces = ctc.build_ctcdecoder(PIECES, arpa)
    yield pieces.decode(pieces_of([1, 2, 3, 5, 6, 4]))
    words = ["looney", "bunny", "unheardof"]
    yield [decoder.decode(logits, hotwords=words, hotword_weight=10.0) for logits in heard]
    yield decoder.decode_batch(None, heard, 50, -8.0, -4.0, words)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        yield decoder.decode_batch(pool, heard)
        yield decoder.decode_batch(pool, heard, hotwords=words)


def tutorial(ctc, arpa, heard):
    """Results of the tutorial: beams, times, chunks, other weights, a decoder of its parts."""
    decoder = ctc.build_ctcdecoder(tuple(LABELS) if ctc.__name__ == OURS else LABELS, arpa)
    for how in ({}, {"prune_history": True}, {"beam_width": 20, "hotwords": ["fast"]}):
        yield [decoder.decode_beams(logits, **how) for logits in heard]
    yield decoder.decode_beams(heard[0], 30, -15.0, -7.0, False, ["bunny"], 4.0)
    first, second = decoder.decode_beams(heard[2])[0], []
    yield second + decoder.decode_beams(heard[1], lm_start_state=first[1])
    yield decoder.decode(heard[1], lm_start_state=first[1])
    decoder.reset_params(alpha=0.9, beta=0.1, unk_score_offset=-3.0, lm_score_boundary=False)
    yield [decoder.decode_beams(logits) for logits in heard]
    alphabet = ctc.Alphabet.build_alphabet(LABELS)
    lm = ctc.LanguageModel(kenlm.Model(arpa), sorted({*" ".join(TRAINED).split()}), alpha=0.7)
    parts = ctc.BeamSearchDecoderCTC(alphabet, lm)
    yield [parts.decode_beams(logits) for logits in heard]
    yield [ctc.BeamSearchDecoderCTC(alphabet).decode_beams(logits) for logits in heard]
    yield parts.decode_beams_batch(None, heard, beam_width=30)


def check_alike(ours, theirs):
    """The same texts, and scores within 1e-3.

    Frames are of pyctcdecode's first alignment and of our best one: they agree on clear logits.
    """
    if isinstance(theirs, int):
        assert isinstance(ours, int)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            check_alike(one, other)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=1e-3)
    else:
        assert ours == theirs


@pytest.mark.parametrize("program", [readme, tutorial])
def test_programs_for_pyctcdecode_find_the_same(program, arpa, heard):
    theirs = imported(THEIRS)
    ours = program(imported(OURS), arpa, heard)
    for one, other in zip(ours, program(theirs, arpa, heard), strict=True):
        check_alike(one, other)


def test_what_was_said_is_found(arpa, heard):
    """Also where pyctcdecode is not installed."""
    batches = list(readme(imported(OURS), arpa, heard))
    assert batches[0] == batches[4] == SAID
    assert batches[1] == "the bugs and a bunny"
    beams = list(tutorial(imported(OURS), arpa, heard))
    assert [found[0].text for found in beams[0]] == SAID


def test_frames_of_words_of_clear_logits(arpa):
    for seed, text in enumerate(SAID):
        logits = spoken(text, LABELS, seed=seed, margin=12.0)
        best = imported(OURS).build_ctcdecoder(LABELS, arpa).decode_beams(logits)[0]
        ends = np.cumsum([len(word) + 1 for word in text.split()]) - 1
        for (word, frames), end in zip(best.text_frames, ends, strict=True):
            assert frames == (3 * (end - len(word)) + 2, 3 * end)
        theirs = imported(THEIRS).build_ctcdecoder(LABELS, arpa).decode_beams(logits)[0]
        assert (best[0], best[2]) == (theirs[0], theirs[2])


@pytest.mark.parametrize("saves, loads", [(THEIRS, OURS), (OURS, THEIRS), (OURS, OURS)])
@pytest.mark.parametrize("with_lm", [True, False])
def test_folders_of_decoders(saves, loads, with_lm, arpa, heard, tmp_path):
    for labels, logits in ((LABELS, heard[0]), (PIECES, pieces_of([1, 2, 3, 5, 6, 4]))):
        folder = tmp_path / str(len(labels))
        folder.mkdir()
        lm = (arpa, None, 0.8, 0.9, -7.0, False) if with_lm else ()
        saved = imported(saves).build_ctcdecoder(labels, *lm)
        saved.save_to_dir(str(folder))
        loaded = imported(loads).BeamSearchDecoderCTC.load_from_dir(str(folder))
        assert loaded._alphabet.labels == saved._alphabet.labels
        assert loaded._alphabet.is_bpe == saved._alphabet.is_bpe
        check_alike(loaded.decode_beams(logits), saved.decode_beams(logits))


def test_a_kenlm_binary_without_unigrams():
    """Words that it does not know pay for that when they are complete."""
    binary = str(Path(__file__).parents[1] / "lm" / "data" / "tiny_3.probing.bin")
    logits = spoken("so we do", LABELS, margin=8.0)
    how = {"beam_prune_logp": -60.0, "beam_width": 1000}
    found = {}
    for name in (OURS, THEIRS):
        beams = imported(name).build_ctcdecoder(LABELS, binary).decode_beams(logits, **how)
        found[name] = {beam[0]: beam[-2:] for beam in beams}
    both = found[OURS].keys() & found[THEIRS].keys()
    assert len(both) > 10
    for text in both:
        assert found[OURS][text] == pytest.approx(found[THEIRS][text], abs=1e-3)
