"""Texts of an adaptation: what trains, what tunes, and inputs that have changed."""

import pytest

from espnet_bayeslm.adaptation.parts import Parts
from espnet_bayeslm.adaptation.plan import Plan
from espnet_bayeslm.adaptation.texts import check_same_files, learnt, write_texts, write_utt2lm
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import Counting
from espnet_bayeslm.nbest.segments import place_finder
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError

REFS = {
    "u0": ("The", "red", "lamp"),
    "u1": ("[noise]",),
    "u2": ("A", "<unk>", "table"),
    "u3": ("the", "end"),
}
PARTS = Parts({"u0": 1, "u1": 1, "u2": 2, "u3": 2}, 2, "utterances")
LISTS = [
    NBest(utt, (Hypothesis(words),), recording="rr"[: 1 + (utt > "u1")], start=9.0 - int(utt[1]))
    for utt, words in REFS.items()
]


@pytest.fixture
def plan(tmp_path):
    return Plan(tmp_path, "hf:lm", ["lora"])


def texts(plan, order=None):
    counting = Counting(ignored=frozenset(["[noise]", "<unk>"]))
    normalization = Normalization("lower", kept=counting.ignored)
    said = learnt(REFS, normalization, counting)
    more = [learnt({"1": ("More", "[noise]", "TEXT")}, normalization, counting)]
    write_texts(plan, PARTS, LISTS, REFS, said, more, order)
    return {path.name: path.read_text() for path in plan.data("").iterdir()}


def test_each_part_is_left_out_of_one_training(plan):
    found = texts(plan)
    assert found["valid1.txt"] == "the red lamp\n" and found["valid2.txt"] == "a table\nthe end\n"
    assert found["adapt1.txt"] == "a table\nthe end\nmore text\n"
    assert found["adapt2.txt"] == "the red lamp\nmore text\n"
    assert found["adapt.txt"] == "the red lamp\na table\nthe end\nmore text\n"
    assert found["tune.text"] == "u0 the red lamp\nu2 a table\nu3 the end\n"
    # counted as they came
    assert found["tune.ref"] == "u0 The red lamp\nu1 [noise]\nu2 A <unk> table\nu3 the end\n"


def test_texts_of_few_references_hold_as_many_with_words(plan, monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.adaptation.texts.SOME", 1)
    monkeypatch.setattr("espnet_bayeslm.adaptation.texts.VALID", 1)
    said = {**REFS, "u0": ()}
    write_texts(plan, PARTS, LISTS, REFS, said)
    found = {path.name: path.read_text() for path in plan.data("").iterdir()}
    assert found["some.txt"] == found["valid1.txt"] == "[noise]\n"


def test_in_context_recordings_are_in_order_of_time(plan):
    found = texts(plan, place_finder())
    assert found["valid2.txt"] == "the end\na table\n"
    assert found["adapt.txt"] == "the red lamp\n\nthe end\na table\n\nmore text\n"


def test_each_utterance_has_the_adapter_that_did_not_see_it(plan):
    texts(plan)
    write_utt2lm(plan, PARTS, "lora")
    rows = dict(line.split() for line in plan.utt2lm("lora").read_text().splitlines())
    for utt, words in REFS.items():
        part = rows[utt].split("/")[-2]
        sentence = " ".join(words).lower()
        assert f"{sentence}\n" not in plan.data(f"adapt{part}.txt").read_text()
    assert len(rows) == 4


def test_texts_of_other_lists_are_refused(plan):
    texts(plan)
    with pytest.raises(InputError, match="parts of other lists"):
        write_texts(plan, PARTS, LISTS, REFS, {**REFS, "u3": ("more",)})


@pytest.mark.parametrize("left", [{"u0"}, {"u2", "u3"}, set()])
def test_each_part_needs_words_to_learn(plan, left):
    """As where references are empty, or --ignore_words hold their words."""
    said = {utt: words if utt in left else () for utt, words in REFS.items()}
    with pytest.raises(InputError, match=f"{len(left)} of 4 references have words to learn"):
        write_texts(plan, PARTS, LISTS, REFS, said)
    assert not plan.data("").exists()


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_input_that_changed_in_place_is_refused(plan, tmp_path, is_folder):
    texts(plan)
    name = str(tmp_path / "a.arpa")
    file = tmp_path / "a.arpa"
    if is_folder:
        file.mkdir()
        name, file = f"hf:{name}", file / "weights"
    file.write_text("one")
    check_same_files(plan, ["hf:name-of-the-hub", name])
    check_same_files(plan, [name])
    for changed in ("two", "one"):
        file.write_text(changed)
        if is_folder and changed == "one":
            file.rename(file.with_name("other"))  # the name of a file in a folder counts
        if changed == "two" or is_folder:
            check_same_files(plan, ["hf:name-of-the-hub"])  # forgets nothing
            with pytest.raises(InputError, match=r"made with another .*a\.arpa.*a new --output"):
                check_same_files(plan, [name])
