"""Lists from CTC logits, `bayeslm nbest --recogniser ctc`, and `build_ctcdecoder` in Python."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from pretrained.tiny_models import write_model
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import nbest, rescore
from espnet_bayeslm.decoding.ctc_decoder import BeamSearchDecoderCTC
from espnet_bayeslm.decoding.ctc_lists import CTCOptions, confidences_of_best, search_vocabulary
from espnet_bayeslm.decoding.ctc_search import FoundText
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import CTCFusion
from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.nbest.ctm import times_of
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.utils.errors import InputError

sys.path.insert(0, str(Path(__file__).parent))

from test_ctc_search import spoken

LABELS = ["<pad>", "|", *"abdefhiklmnoprstu"]
TEXTS = {"u2": "the remote is on the table", "u1": "put the red remote on the table"}
TRAINED = [*TEXTS.values(), "the table is red", "put it on the shelf", "so the remote is there"] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with logits, tokens, n-grams, a pretrained LM and references."""
    folder = tmp_path_factory.mktemp("ctc")
    (folder / "text").write_text("".join(f"{line}\n" for line in TRAINED))
    for order, name in ((3, "3.arpa"), (2, "2.arpa.gz")):
        build_ngram(folder / "text", folder / name, order=order, discount_fallback=True)
    rows = {
        utt: spoken(text, LABELS, seed=n, margin=5.5) for n, (utt, text) in enumerate(TEXTS.items())
    }
    np.savez(folder / "logits.npz", **{utt: row.astype(np.float32) for utt, row in rows.items()})
    (folder / "tokens.txt").write_text("".join(f"{label}\n" for label in LABELS))
    (folder / "ref").write_text("".join(f"{utt} {text}\n" for utt, text in TEXTS.items()))
    (folder / "hot").write_text("red remote :3\nmud\n")
    (folder / "known").write_text("\n".join(dict.fromkeys(" ".join(TRAINED).split())))
    write_model(folder / "llama")
    return folder


def command(folder, output, **options):
    given = {"logits": folder / "logits.npz", "tokens": folder / "tokens.txt", **options}
    return words(recogniser="ctc", output=output, **given)


def read(path):
    return {item.utt: item.hypotheses for item in read_nbest(path)}


def errors(hypotheses):
    return sum(" ".join(hyps[0].words) != TEXTS[utt] for utt, hyps in hypotheses.items())


LMS = {
    "n-gram": lambda f: {"ngram": [f / "3.arpa"]},
    "pretrained": lambda f: {"lm": [f"hf:{f / 'llama'}"], "text_form": "lower"},
    "mixture": lambda f: {
        "lm": [f"hf:{f / 'llama'}"],
        "ngram": [f / "3.arpa", f / "2.arpa.gz"],
        "weights": "0.2,0.4,0.4",
        "unigrams": f / "known",
    },
}


def check_scores(tmp_path, **options):
    """Compare the scores of the lists in `out` with those that rescoring gives."""
    lists = read(tmp_path / "out")
    how = {"nbest": tmp_path / "out", "lmwt": 1, **options}
    rescore.main(words(**how, output=tmp_path / "rescored"))
    costs = [line.split() for line in (tmp_path / "rescored" / "lmwt.nn").read_text().splitlines()]
    found = {f"{utt}-{n}": h for utt, hyps in lists.items() for n, h in enumerate(hyps, 1)}
    assert found.keys() == {key for key, _ in costs}
    for key, cost in costs:
        assert found[key].lm_score == pytest.approx(-float(cost), abs=1e-4)
        assert found[key].am_score < 0


@pytest.mark.parametrize("lm", LMS)
def test_lists_have_the_scores_that_rescoring_gives(folder, lm, tmp_path):
    options = LMS[lm](folder)
    given = {"beam_size": 20, "beam_prune_logp": -30, "nbest": 5, **options}
    nbest.main(command(folder, tmp_path / "out", **given))
    lists = read(tmp_path / "out")
    assert list(lists) == list(TEXTS) and all(1 < len(hyps) <= 5 for hyps in lists.values())
    options.pop("unigrams", None)
    check_scores(tmp_path, **options)


def test_an_ngram_lowers_the_errors(folder, tmp_path):
    nbest.main(command(folder, tmp_path / "without"))
    without = read(tmp_path / "without")
    assert all(hyp.lm_score is None and not hyp.extra for hyps in without.values() for hyp in hyps)
    nbest.main(command(folder, tmp_path / "with", ngram=[folder / "3.arpa"]))
    assert errors(read(tmp_path / "with")) == 0 < errors(without)


def test_hotwords_have_a_score_of_their_own(folder, tmp_path):
    given = {"hotwords": folder / "hot", "hotword_weight": 2}
    nbest.main(command(folder, tmp_path / "out.jsonl", **given))
    for hyps in read(tmp_path / "out.jsonl").values():
        for hyp in hyps:
            text = f" {' '.join(hyp.words)} "
            hot = 6.0 * (" red remote " in text) + 2.0 * (" mud " in text)
            assert hyp.extra == {"hotword_score": hot}


def test_words_in_lower_case_fit_the_lm(folder, tmp_path, fails):
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(
        "".join(f"{label if label == '<pad>' else label.upper()}\n" for label in LABELS)
    )
    given = {"tokens": tokens, "ngram": [folder / "3.arpa"]}
    message = fails(nbest.main, command(folder, tmp_path / "out", **given))
    assert "have letters that no token has" in message and "--lower true" in message
    nbest.main(command(folder, tmp_path / "out", **given, lower="true"))
    assert errors(read(tmp_path / "out")) == 0


def test_kaldis_archives_can_be_written(folder, tmp_path):
    given = {"ngram": [folder / "3.arpa"], "nbest_format": "kaldi"}
    nbest.main(command(folder, tmp_path / "out", **given))
    nbest.main(command(folder, tmp_path / "out.jsonl", ngram=[folder / "3.arpa"]))
    kaldi, lines = read(tmp_path / "out"), read(tmp_path / "out.jsonl")
    for utt, hyps in lines.items():
        assert [h.words for h in hyps] == [h.words for h in kaldi[utt]]
        scores = [[(h.am_score, h.lm_score) for h in lists[utt]] for lists in (lines, kaldi)]
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-4)


def test_a_form_of_the_text_is_chosen_by_best_paths(folder, tmp_path, caplog):
    caplog.set_level("INFO")
    nbest.main(command(folder, tmp_path / "out", lm=[f"hf:{folder / 'llama'}"], beam_size=5))
    assert "text form: --text_form" in caplog.text


@pytest.fixture
def refused(folder, fails, tmp_path):
    """Return a function that runs the tool, which must write nothing, and returns its error."""

    def refused(**options):
        message = fails(nbest.main, command(folder, tmp_path / "out", **options))
        assert not any((tmp_path / "out").rglob("*"))
        return message

    return refused


def test_bad_inputs_of_the_tool(folder, refused, tmp_path):
    (tmp_path / "few").write_text("<pad>\n|\na\n")
    message = refused(tokens=tmp_path / "few")
    assert f"{folder}/logits.npz: u2: 19 columns, and 3 were expected for 3 tokens" in message
    (tmp_path / "no_blank").write_text("".join(f"{n}\n" for n in "|abcdefghijklmnopqr"))
    assert "Give --blank TOKEN" in refused(tokens=tmp_path / "no_blank")
    for name, rows, part in (
        ("nan", np.full((3, 19), np.nan), "u1: the largest logit of frame 0 is nan"),
        ("none", np.zeros((0, 19)), "u1: the logits are 0 frames x 19 tokens"),
        ("batch", np.zeros((2, 3, 19)), "u1: the logits are an array 2x3x19"),
    ):
        np.savez(tmp_path / f"{name}.npz", u1=rows)
        assert f"{name}.npz: {part}" in refused(logits=tmp_path / f"{name}.npz")
    (tmp_path / "hot").write_text("Quiz\n")
    assert "hot:1: the hotword 'Quiz' has 'Qz'" in refused(hotwords=tmp_path / "hot")
    assert "--blank 'x' is none" in refused(blank="x")


def test_bad_options_of_the_tool(folder, refused, fails, tmp_path):
    message = fails(nbest.main, words(recogniser="ctc", output="x", tokens="y"))
    assert "--logits is needed with --recogniser ctc" in message
    assert "--audio has no meaning with --recogniser ctc" in refused(audio="wav")
    assert "--beam_size 0" in refused(beam_size=0)
    assert "--beam_prune_logp 1.0: expected -inf to 0" in refused(beam_prune_logp=1.0)
    assert "--lm_weight -1.0" in refused(lm_weight=-1.0)
    two = [folder / "3.arpa", folder / "2.arpa.gz"]
    assert "no --weights for the 2 components" in refused(ngram=two)
    assert "no such n-gram file" in refused(ngram=[tmp_path / "none.arpa"])
    message = fails(
        nbest.main, words(recogniser="pocketsphinx", output="x", audio="y", ngram=["z"])
    )
    assert "--ngram has no meaning with --recogniser pocketsphinx" in message
    message = fails(
        nbest.main, words(recogniser="pocketsphinx", output="x", audio="y", lm=["a", "b"])
    )
    assert "2 LMs with --recogniser pocketsphinx, which takes one" in message


@pytest.mark.parametrize(
    "fault, part",
    [
        (lambda rows: np.where(rows == rows[7, 2], np.nan, rows), "frame 7 is nan"),
        (lambda rows: rows[None], "an array 1x"),
        (lambda rows: rows[:, 1:], "18 columns, and 19 were expected"),
        (lambda rows: rows * 0, "all tokens are alike in each of the"),
    ],
)
def test_one_utterance_that_cannot_be_searched(folder, fault, part, tmp_path, caplog, refused):
    """It is named before the search, and the others' lists are those without it."""
    with np.load(folder / "logits.npz") as arrays:
        rows = dict(arrays)
    np.savez(tmp_path / "some.npz", **{**rows, "u3": fault(rows["u1"])})
    nbest.main(command(folder, tmp_path / "lists"))
    expected = read(tmp_path / "lists")
    caplog.clear()
    nbest.main(command(folder, tmp_path / "some", logits=tmp_path / "some.npz"))
    assert read(tmp_path / "some") == expected
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith(f"{tmp_path}/some.npz: left out: u3: ") and part in warning
    most = {"u1": rows["u1"], **{utt: fault(rows["u1"]) for utt in ("u3", "u4")}}
    np.savez(tmp_path / "most.npz", **most)
    message = refused(logits=tmp_path / "most.npz")
    assert f"most.npz: u3: {warning.split('u3: ')[1]} (2 of 3 utterances" in message


def test_padding_is_left_out_and_told(folder, tmp_path, caplog):
    nbest.main(command(folder, tmp_path / "lists", ngram=[folder / "3.arpa"]))
    assert "left out" not in caplog.text
    with np.load(folder / "logits.npz") as arrays:
        padded = {utt: np.pad(rows, ((0, 30), (0, 0))) for utt, rows in arrays.items()}
    np.savez(tmp_path / "padded.npz", **padded)
    given = {"logits": tmp_path / "padded.npz", "ngram": [folder / "3.arpa"]}
    nbest.main(command(folder, tmp_path / "padded", **given))
    assert read(tmp_path / "padded") == read(tmp_path / "lists")
    num_frames = sum(map(len, padded.values()))
    assert f"padded.npz: 60 of {num_frames} frames are left out" in caplog.text


def test_an_lm_that_knows_too_few_words_is_refused(folder, refused, tmp_path):
    (tmp_path / "text").write_text("zz zq\nqq zz\n" * 5)
    build_ngram(tmp_path / "text", tmp_path / "lm.arpa", order=2, discount_fallback=True)
    given = {"ngram": [tmp_path / "lm.arpa"], "unigrams": folder / "known"}
    assert "have letters that no token has" in refused(ngram=[tmp_path / "lm.arpa"])
    assert "lm: all 11 words are unknown, as 'the'" in refused(**given)
    mixed = {"lm": [f"hf:{folder / 'llama'}"], "weights": "0.5,0.5", "beam_size": 5, **given}
    message = refused(**mixed)
    assert "lm does not know 13 of 13 words (100.00 %" in message and "--lower true" in message


def test_known_words(folder, caplog):
    tokens = CTCTokens(LABELS)

    def known(unigrams, *names):
        lms = [f"hf:{folder / name}" for name in names if name == "llama"]
        paths = [folder / name for name in names if name != "llama"]
        options = ComponentOptions(lms=lms, ngrams=paths)
        return search_vocabulary(unigrams, Mixture.load(options) if names else None, tokens)

    trained = set(" ".join(TRAINED).split())
    assert known(None, "3.arpa").words == known(None, "3.arpa", "2.arpa.gz").words == trained
    assert known(["the", "that"], "3.arpa").words == {"the"}
    assert known(["the", "that"]).words == {"the", "that"} and known(None) is None
    assert not caplog.text
    assert known(["the", "señor", "that"]).words == {"the", "that"}
    assert "1 of the 3 words that the search knows" in caplog.text
    assert "as 'señor' (ñ): they are never found" in caplog.text
    assert known(["that"], "3.arpa", "llama").words == {"that"}
    assert known(None, "3.arpa", "llama") is None
    assert "llama: no list of its words" in caplog.text and "--unigrams" in caplog.text


def test_times_of_words(folder, tmp_path):
    """They are those of the beams in Python, also with padding before the words."""
    with np.load(folder / "logits.npz") as arrays:
        padded = {utt: np.pad(arrays[utt], ((5, 0), (0, 0))) for utt in arrays.files}
    np.savez(tmp_path / "logits.npz", **padded)
    given = {"logits": tmp_path / "logits.npz", "ctm": tmp_path / "ctm", "frame_shift": 0.02}
    nbest.main(command(folder, tmp_path / "out", **given))
    decoder, expected = espnet_bayeslm.build_ctcdecoder(LABELS), []
    for utt, logits in padded.items():
        for word, (start, end) in decoder.decode_beams(logits)[0].text_frames:
            expected.append(f"{utt} 1 {start / 50:.3f} {(end - start) / 50:.3f} {word}")
    found = (tmp_path / "ctm").read_text().splitlines()
    assert [line.rpartition(" ")[0] for line in found] == expected
    for own in read_nbest(tmp_path / "out", "jsonl"):
        assert len(own.hypotheses) > 1
        best, *others = [times_of(hyp) for hyp in own.hypotheses]
        lines = [line for line in expected if line.startswith(f"{own.utt} ")]
        assert [line.rpartition(" ")[0] for line in lines] == [
            f"{own.utt} 1 {begin:.3f} {end - begin:.3f}" for begin, end in best
        ]
        assert all(begin < end for times in others for begin, end in times)
    with pytest.raises(InputError, match="--ctm without --frame_shift"):
        CTCOptions(ctm="ctm")


def test_confidences_of_words():
    """Shares of the posterior of the texts that have the word at its place."""
    texts = ["a b c", "a c", "x b c", "a b c d"]
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    found = [
        FoundText(tuple(text.split()), 0.0, None, 0.0, score, None, None)
        for text, score in zip(texts, np.log(shares) + 5, strict=True)
    ]
    assert confidences_of_best(found) == pytest.approx([0.8, 0.7, 1.0])
    assert confidences_of_best([found[0]._replace(words=())]) == []


def test_an_lm_over_words_lists_them(train_lm, tmp_path):
    exp = train_lm(tmp_path / "exp", *words(lm="bayes_lstm", lm_conf=["unit=8"]))
    letters = ["<pad>", "|", *"abcdefghijk"]
    mixture = Mixture.load(ComponentOptions(lms=[exp]))
    assert search_vocabulary(None, mixture, CTCTokens(letters)).words == {*"abcdefghij"}
    np.savez(tmp_path / "logits.npz", u1=spoken("a b c d", letters))
    (tmp_path / "tokens.txt").write_text("\n".join(letters))
    nbest.main(command(tmp_path, tmp_path / "out", lm=[exp], beam_prune_logp=-20))
    (hypotheses,) = read(tmp_path / "out").values()
    assert len(hypotheses) > 5
    check_scores(tmp_path, lm=[exp], max_oov_rate=1)


def test_pythons_decoder_has_the_tools_scores(folder, tmp_path):
    decoder = espnet_bayeslm.build_ctcdecoder(LABELS, str(folder / "3.arpa"))
    nbest.main(command(folder, tmp_path / "out", ngram=[folder / "3.arpa"], nbest=100))
    lists = read(tmp_path / "out")
    with np.load(folder / "logits.npz") as arrays:
        for utt in arrays.files:
            beams = decoder.decode_beams(arrays[utt], beam_width=100)
            assert [beam.text.split() for beam in beams] == [[*h.words] for h in lists[utt]]
            for beam, hyp in zip(beams, lists[utt], strict=True):
                assert beam.logit_score == pytest.approx(hyp.am_score, abs=1e-5)
                assert beam.log_prob == pytest.approx(hyp.lm_score, abs=1e-5)
                total = beam.logit_score + 0.5 * beam.log_prob + 1.5 * len(hyp.words)
                assert beam.lm_score == pytest.approx(total, abs=1e-4)
            assert decoder.decode(arrays[utt]) == beams[0].text == TEXTS[utt]


def test_pythons_decoder_takes_hotwords_and_other_lms(folder, caplog):
    with np.load(folder / "logits.npz") as arrays:
        logits = arrays["u1"]
    plain = espnet_bayeslm.build_ctcdecoder(LABELS)
    assert plain.decode_beams(logits)[0].log_prob is None
    assert plain.decode_beams(logits, hotwords="red  remote") == plain.decode_beams(
        logits, hotwords=["red remote"]
    )
    some = plain.decode_beams(logits, hotwords=["put", "red  remote"], hotword_weight=3.0)
    assert some[0].hotword_score == 9.0
    assert plain.decode_beams(logits)[0].hotword_score == 0.0
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.tensor(logits, dtype=dtype, requires_grad=True)
        expected = plain.decode_beams(tensor.detach().double().numpy())
        assert plain.decode_beams(tensor) == expected
    assert plain.decode(logits, hotwords=["Quiz"]) == plain.decode(logits)
    assert "left out: the hotword 'Quiz'" in caplog.text
    with pytest.raises(InputError, match="18 columns, and 19"):
        plain.decode(logits[:, :-1])
    lm = espnet_bayeslm.load(f"hf:{folder / 'llama'}", text_form="lower")
    mixed = espnet_bayeslm.build_ctcdecoder(
        LABELS, folder / "3.arpa", " ".join(TRAINED).split(), 1.0, lms=[lm], weights=[0.1, 0.9]
    )
    best = mixed.decode_beams(logits, beam_width=10)[0]
    assert best.text == TEXTS["u1"] and best.log_prob < 0


@pytest.mark.parametrize(
    "labels",
    [
        tuple(LABELS),
        dict(enumerate(LABELS)),
        {label: n for n, label in sorted(enumerate(LABELS), reverse=True)},
        np.array(LABELS),
    ],
)
def test_labels_of_pythons_decoder(folder, labels):
    with np.load(folder / "logits.npz") as arrays:
        expected = espnet_bayeslm.build_ctcdecoder(LABELS).decode_beams(arrays["u1"])
        assert espnet_bayeslm.build_ctcdecoder(labels).decode_beams(arrays["u1"]) == expected


@pytest.mark.parametrize("lm", [None, "3.arpa"])
def test_known_words_of_pythons_decoder(folder, lm):
    """They rule other words out, with and without an LM, in a list and in a file."""
    labels = [*"abdefhiklmnoprstu", " "]
    logits = spoken("the red remote", LABELS, margin=9.0, noise=0.1)
    logits = np.concatenate([logits[:, 2:], logits[:, 1:2], logits[:, :1]], axis=1)
    rows = logits.argmax(1) == labels.index("d")
    logits[rows, labels.index("m")] = logits[rows].max(1) + 0.5
    lm = lm and folder / lm
    decode = espnet_bayeslm.build_ctcdecoder(labels).decode(logits)
    assert decode == "the rem remote"
    known = (folder / "known").read_text().split()
    for unigrams in (known, folder / "known", str(folder / "known")):
        decoder = espnet_bayeslm.build_ctcdecoder(labels, lm, unigrams, lm_score_boundary=True)
        assert decoder.decode(logits) == "the red remote"


@pytest.mark.parametrize("hotwords", [[None], [None, ["red"], ["mud"]]])
def test_threads_that_share_a_decoder(folder, hotwords, monkeypatch):
    """Each call gives the beams that it gives alone, whatever hotwords others have."""
    utterances = [spoken(text, LABELS, seed=n, margin=3.0) for n, text in enumerate(TRAINED[:4])]
    calls = [(logits, hot) for logits in utterances for hot in hotwords]

    def beams(call, decoder=None):
        decoder = decoder or espnet_bayeslm.build_ctcdecoder(LABELS, folder / "3.arpa")
        return decoder.decode_beams(call[0], beam_width=5, hotwords=call[1])

    alone = [beams(call) for call in calls]

    def yielding(function):
        """Let other threads run first."""
        return lambda *args: [time.sleep(0), function(*args)][1]

    for name in ("ahead", "complete"):
        monkeypatch.setattr(CTCFusion, name, yielding(getattr(CTCFusion, name)))
    searches = property(
        yielding(lambda self: self.kept), lambda self, value: setattr(self, "kept", value)
    )
    monkeypatch.setattr(BeamSearchDecoderCTC, "_searches", searches, raising=False)
    shared = espnet_bayeslm.build_ctcdecoder(LABELS, folder / "3.arpa")
    beams(calls[-1], shared)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda call: beams(call, shared), calls * 2)) == alone * 2
