"""Attention + CTC + LM in `asr_inference`, and rescoring of what it found without an LM."""

import dataclasses

import homophones
import models
import pytest
import soundfile

from espnet_bayeslm.bin import rescore
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


@dataclasses.dataclass(frozen=True)
class Fused:
    """A hypothesis of ESPnet's beam search, without its states."""

    tokens: tuple
    ids: list
    parts: dict
    total: float


def fused(result):
    """Return one of the results of ESPnet's `Speech2Text`."""
    _, tokens, ids, hyp = result
    parts = {name: float(score) for name, score in hyp.scores.items()}
    return Fused(tuple(tokens), ids, parts, float(hyp.score))


@pytest.fixture(scope="session")
def fuse(recogniser, speech):
    """Return a function: an LM's experiment -> {utterance: its 10-best list}."""
    from espnet2.bin.asr_inference import Speech2Text

    kept = {}

    def run(experiment):
        if experiment not in kept:
            files = models.files_of("asr", recogniser) | models.files_of("lm", experiment)
            decode = Speech2Text(**files, **SEARCH, lm_weight=LM_WEIGHT)
            recordings = (line.split() for _, line in read_lines(speech / "wav.scp"))
            kept[experiment] = {
                utt: list(map(fused, decode(soundfile.read(path)[0]))) for utt, path in recordings
            }
        return kept[experiment]

    return run


def best(found):
    """Return the best hypotheses, as sentences, in the order of the recordings."""
    return [" ".join(found[utt][0][0]) for utt in sorted(found)]


def test_alone_the_recogniser_writes_the_wrong_homophones(first_pass, read_nbest):
    assert not set(WRONG) & set(homophones.SENTENCES)
    lists = read_nbest(first_pass)
    assert best(lists) == WRONG
    assert all(len(found) == 10 for found in lists.values())


@pytest.mark.parametrize("name", models.OURS)
def test_the_lm_decides_between_homophones(name, lm, fuse):
    found = fuse(lm(name))
    assert [" ".join(found[utt][0].tokens) for utt in sorted(found)] == homophones.SENTENCES


@pytest.mark.parametrize("name", [*models.OURS, *models.ESPNETS])
def test_the_lm_part_is_the_hypothesis_probability(name, lm, fuse):
    lists = [found for _, found in sorted(fuse(lm(name)).items())]
    assert all(len(found) >= 5 for found in lists)
    scores = score_hypotheses(load_lm(lm(name)).lm, [[hyp.ids for hyp in found] for found in lists])
    for found, expected in zip(lists, scores, strict=True):
        assert [hyp.parts["lm"] for hyp in found] == pytest.approx(expected, abs=TOLERANCE)
        totals = [sum(w * hyp.parts[k] for k, w in WEIGHTS.items()) for hyp in found]
        assert [hyp.total for hyp in found] == pytest.approx(totals, abs=TOLERANCE)


@pytest.mark.parametrize("name", models.OURS)
def test_rescoring_the_first_pass_gives_what_fusion_gave(
    name, lm, fuse, first_pass, read_nbest, tmp_path
):
    command = ["--nbest", first_pass, "--nbest_format", "espnet", "--lm", lm(name)]
    rescore.main([str(word) for word in (*command, "--output", tmp_path / "rescored")])
    costs = read_keyed_lines(tmp_path / "rescored" / "lmwt.nn")
    num_common = 0
    for utt, hypotheses in read_nbest(first_pass).items():
        by_words = {hyp.tokens: hyp.parts["lm"] for hyp in fuse(lm(name))[utt]}
        for rank, (words, _) in enumerate(hypotheses, 1):
            if words in by_words:
                rescored = -float(costs[f"{utt}-{rank}"][1])
                assert rescored == pytest.approx(by_words[words], abs=TOLERANCE)
                num_common += 1
    assert num_common >= len(homophones.SENTENCES)


def test_as_a_recipe_calls_it(lm, decode, launch, recogniser, speech, tmp_path):
    """`${python} -m espnet2.bin.asr_inference` in a process of its own."""

    def run(program, *words):
        result = launch(program, *words)
        assert result.returncode == 0, result.stderr

    (tmp_path / "keys").write_text("u00\nu01\n")
    options = {"lm": lm("bayes_transformer"), "lm_weight": LM_WEIGHT, "key_file": tmp_path / "keys"}
    found = decode("asr_inference", tmp_path / "out", recogniser, run=run, **SEARCH, **options)
    assert best(found) == homophones.SENTENCES[:2]
