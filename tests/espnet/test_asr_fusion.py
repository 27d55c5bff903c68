"""LMs in ESPnet's programs: fusion in `asr_inference`, rescoring, streaming, and LMs alone."""

import functools
import itertools
import wave

import homophones
import models
import pytest
import soundfile
import torch
from tiny_training import words

from espnet_bayeslm.bin import rescore
from espnet_bayeslm.lm.ngram import LogProbLM
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.rescoring import score_hypotheses
from espnet_bayeslm.utils.files import read_keyed_lines, read_lines

SEARCH = {"beam_size": 10, "nbest": 10, "ctc_weight": 0.3}
LM_WEIGHT = 0.8
WEIGHTS = {"decoder": 0.7, "ctc": 0.3, "lm": LM_WEIGHT}
TOLERANCE = 1e-4  # of sums over a hypothesis in float32
WRONG = [homophones.swapped(sentence) for sentence in homophones.SENTENCES]


@pytest.fixture(scope="session")
def first_pass(decode, recogniser, tmp_path_factory):
    """Return the folder of 10-best lists that were decoded without an LM."""
    folder = tmp_path_factory.mktemp("decoded") / "first_pass"
    decode("asr_inference", folder, recogniser, **SEARCH)
    return folder


def without_states(result):
    """Return tokens, ids, scores by part, and the total of a result of ESPnet's `Speech2Text`."""
    _, tokens, ids, hyp = result
    parts = {name: float(score) for name, score in hyp.scores.items()}
    return tuple(tokens), ids, parts, float(hyp.score)


@pytest.fixture(scope="session")
def fuse(recogniser, speech):
    """Return a function: an LM's experiment -> {utterance: its 10-best list}."""
    from espnet2.bin.asr_inference import Speech2Text

    @functools.cache
    def run(experiment):
        files = models.files_of("asr", recogniser) | models.files_of("lm", experiment)
        decode = Speech2Text(**files, **SEARCH, lm_weight=LM_WEIGHT)
        recordings = (line.split() for _, line in read_lines(speech / "wav.scp"))
        return {
            utt: [*map(without_states, decode(soundfile.read(path)[0]))] for utt, path in recordings
        }

    return run


def best(found):
    return [" ".join(found[utt][0][0]) for utt in sorted(found)]


def test_alone_the_recogniser_writes_the_wrong_homophones(first_pass, read_nbest):
    assert not set(WRONG) & set(homophones.SENTENCES)
    lists = read_nbest(first_pass)
    assert best(lists) == WRONG
    assert all(len(found) == 10 for found in lists.values())


@pytest.mark.parametrize("name", models.OURS)
def test_fusion_decides_between_homophones_as_rescoring_does(
    name, lm, fuse, first_pass, read_nbest, tmp_path
):
    found = fuse(lm(name))
    assert best(found) == homophones.SENTENCES
    options = {"nbest": first_pass, "nbest_format": "espnet", "lm": lm(name)}
    rescore.main(words(**options, output=tmp_path / "rescored"))
    costs = read_keyed_lines(tmp_path / "rescored" / "lmwt.nn")
    num_common = 0
    for utt, hypotheses in read_nbest(first_pass).items():
        by_words = {tokens: parts["lm"] for tokens, _, parts, _ in found[utt]}
        for rank, (hyp, _) in enumerate(hypotheses, 1):
            if hyp in by_words:
                rescored = -float(costs[f"{utt}-{rank}"][1])
                assert rescored == pytest.approx(by_words[hyp], abs=TOLERANCE)
                num_common += 1
    assert num_common >= len(homophones.SENTENCES)


@pytest.mark.parametrize("name", [*models.OURS, *models.ESPNETS])
def test_the_lm_part_is_the_hypothesis_probability(name, lm, fuse):
    lists = [found for _, found in sorted(fuse(lm(name)).items())]
    assert all(len(found) >= 5 for found in lists)
    scores = score_hypotheses(load_lm(lm(name)).lm, [[ids for _, ids, *_ in x] for x in lists])
    for found, expected in zip(lists, scores, strict=True):
        _, _, parts, totals = zip(*found, strict=True)
        assert [part["lm"] for part in parts] == pytest.approx(expected, abs=TOLERANCE)
        sums = [sum(w * part[k] for k, w in WEIGHTS.items()) for part in parts]
        assert totals == pytest.approx(sums, abs=TOLERANCE)


@pytest.mark.parametrize("name", [*models.OURS, "subtracted"])
def test_a_batch_of_utterances(name, lm, fuse, recogniser, speech):
    """The encoder sees padding, which changes a list a little, but no score of the LM."""
    from espnet2.bin.asr_inference import Speech2Text

    if not hasattr(Speech2Text, "batch_decode"):
        pytest.skip("the installed ESPnet decodes one utterance at a time")
    files = models.files_of("asr", recogniser) | models.files_of("lm", lm(name))
    decode = Speech2Text(**files, **SEARCH, lm_weight=LM_WEIGHT, batch_size=4)
    paths = sorted(line.split() for _, line in read_lines(speech / "wav.scp"))[:4]
    recordings = [soundfile.read(path)[0] for _, path in paths]
    lists = [[*map(without_states, found)] for found in decode.batch_decode(recordings)]
    alone = fuse(lm(name))
    for (utt, _), found in zip(paths, lists, strict=True):
        assert found[0][1] == alone[utt][0][1]
    scorer, eos = load_lm(lm(name)).lm, len(homophones.TOKENS) - 1
    for _, ids, parts, _ in itertools.chain(*lists):
        with torch.no_grad():
            log_probs = scorer(torch.tensor([[eos, *ids]]), None)[0][0]
        if not isinstance(scorer, LogProbLM):
            log_probs = log_probs.log_softmax(-1)
        expected = log_probs[range(len(ids) + 1), [*ids, eos]].sum().item()
        assert parts["lm"] == pytest.approx(expected, abs=TOLERANCE)


def test_as_a_recipe_calls_it(lm, decode, launch, recogniser, speech, tmp_path):
    """`${python} -m espnet2.bin.asr_inference` in a process of its own."""

    def run(program, *words):
        result = launch(program, *words)
        assert result.returncode == 0, result.stderr

    (tmp_path / "keys").write_text("u00\nu01\n")
    options = {"lm": lm("bayes_transformer"), "lm_weight": LM_WEIGHT, "key_file": tmp_path / "keys"}
    found = decode("asr_inference", tmp_path / "out", recogniser, run=run, **SEARCH, **options)
    assert best(found) == homophones.SENTENCES[:2]


# `asr_inference_streaming`: blocks of speech, and a search that goes back where it went wrong.


CHUNK = 8000  # samples
OPTIONS = {"beam_size": 5, "nbest": 5, "ctc_weight": 0.3, "lm_weight": 0.8}


@pytest.fixture(scope="session")
def long_recording(speech, tmp_path_factory):
    """Return the list of one recording, of several sentences: longer than the search's blocks."""
    folder = tmp_path_factory.mktemp("long")
    frames = b""
    for number in range(5):
        with wave.open(f"{speech}/u{number:02d}.wav") as f:
            frames += f.readframes(f.getnframes())
            parameters = f.getparams()
    with wave.open(f"{folder}/long.wav", "wb") as f:
        f.setparams(parameters)
        f.writeframes(frames)
    (folder / "wav.scp").write_text(f"long {folder}/long.wav\n")
    return folder / "wav.scp"


@pytest.mark.parametrize("name, chunk", [("bayes_lstm", 0), ("mixture", CHUNK)])
def test_streaming(name, chunk, lm, decode, recogniser, hypotheses, long_recording, tmp_path):
    experiment = lm(name)
    options = {**OPTIONS, "lm": experiment, "sim_chunk_length": chunk}
    decode("asr_inference_streaming", tmp_path / "short", recogniser, **options)
    data = f"{long_recording},speech,sound"
    options["data_path_and_name_and_type"] = data
    decode("asr_inference_streaming", tmp_path / "long", recogniser, **options)
    end = len(homophones.TOKENS) - 1
    complete = [hyp for hyp in hypotheses if int(hyp.yseq[-1]) == end]
    assert len(complete) > 5 * len(homophones.SENTENCES)
    assert max(len(hyp.yseq) for hyp in complete) > 12
    ids = [hyp.yseq[1:-1].tolist() for hyp in complete]
    expected = score_hypotheses(load_lm(experiment).lm, [ids])[0]
    assert [float(hyp.scores["lm"]) for hyp in complete] == pytest.approx(expected, abs=1e-4)


# ESPnet drops the first token of a prompt, since with sentencepieces it may be a space
PROMPT = "- <sos/eos> the two"


@pytest.fixture
def generate(espnet, tmp_path):
    """Return a function that goes on from a prompt and returns the folder of the results."""
    (tmp_path / "prompts").write_text(f"p {PROMPT}\n")
    values = {
        "data_path_and_name_and_type": f"{tmp_path}/prompts,text,text",
        **{"output_dir": tmp_path / "out", "num_workers": 0},
        **{"beam_size": 5, "nbest": 5, "maxlen": 10},
    }

    def run(experiment):
        files = models.files_of("lm", experiment)
        espnet("lm_inference", *words(**values, **files))
        return tmp_path / "out"

    return run


@pytest.mark.parametrize("name", models.LMS)
def test_generated_text_has_its_probability(name, lm, generate):
    output = generate(lm(name))
    scorer = load_lm(lm(name)).lm
    prompt = [homophones.TOKENS.index(token) for token in PROMPT.split()[1:]]
    for rank in range(1, 6):
        folder = output / f"{rank}best_recog"
        ids = list(map(int, read_keyed_lines(folder / "token_int")["p"][1].split()))
        score = read_keyed_lines(folder / "score")["p"][1]
        assert ids[: len(prompt)] == prompt and len(ids) > len(prompt)
        with torch.no_grad():
            log_probs = scorer(torch.tensor([ids]), None)[0][0].log_softmax(-1)
        following = [*ids[1:], len(homophones.TOKENS) - 1]
        expected = sum(float(log_probs[i, k]) for i, k in enumerate(following))
        given = sum(float(log_probs[i, k]) for i, k in enumerate(prompt[1:]))
        assert float(score.strip("tensor()")) == pytest.approx(expected - given, abs=2e-4)
