"""The N-best lists of a report: alignments, errors, uncertainties, size."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.alignments import edit_distance
from oracles.html_reader import Page

from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists
from espnet_bayeslm.evaluation.comparison import mapsswe
from espnet_bayeslm.evaluation.wer import count_errors, word_errors
from espnet_bayeslm.nbest.formats import write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.report.nbest_section import nbest_section, operations
from espnet_bayeslm.report.page import page
from espnet_bayeslm.report.rescored_lists import read_references, read_rescored
from espnet_bayeslm.utils.errors import InputError

WORDS = st.lists(st.sampled_from("abc\0"), max_size=8)
LISTS = {
    "u1": ["a b c", "a x c", "b c"],
    "u2": ["d", "d e", ""],
    "u3": ["<script>document.title='hacked'</script> &amp;", "f"],
}
REFS = {"u1": ("a", "x", "c"), "u2": ("d",), "u3": ("f", "g")}
BEST = {"u1": 1, "u2": 1, "u3": 0}


def blocks(section):
    found = Page(section.body)
    return {key: json.loads(text) for key, text in found.scripts}


@given(WORDS, WORDS)
def test_operations_are_the_fewest_and_lead_to_the_hypothesis(ref, hyp):
    steps = operations(ref, hyp)
    counts = word_errors(ref, hyp)
    assert len(steps) - steps.count(".") == edit_distance(ref, hyp) == counts.errors
    assert len(ref) == len(steps) - steps.count("i")
    assert len(hyp) == len(steps) - steps.count("d")
    refs, hyps = iter(ref), iter(hyp)
    for step in steps:
        pair = (step != "i" and next(refs), step != "d" and next(hyps))
        assert step not in ".s" or (pair[0] == pair[1]) == (step == ".")


def test_data_of_the_page(rescored):
    section = nbest_section([rescored("lm", LISTS, best=BEST, uncertain=True)], REFS)
    data = blocks(section)
    texts, view = data["nbest-texts"], data["nbest-view-0"]
    assert view["name"] == "lm" and view["references"] is True
    for entry in view["lists"]:
        assert [texts[place][0] for place in entry["hyps"]] == LISTS[entry["utt"]]
        assert entry["best"] == BEST[entry["utt"]] and entry["ref"] == " ".join(REFS[entry["utt"]])
        assert [texts[place][1] for place in entry["hyps"]] == [
            operations(REFS[entry["utt"]], text.split()) for text in LISTS[entry["utt"]]
        ]
        # the first pass' best and the new best
        assert set(entry["words"]) == {"0", str(entry["best"])}
    first = view["lists"][0]
    assert first["scores"] == {
        "acoustic": [-100.0, -101.0, -102.0],
        "graph": [-0.25] * 3,
        "first LM": [-5.5, -6.5, -7.5],
        "new LM": [-7.5] * 3,
        "total": [-10 - 0.25 - 7.5 - 1.5, -10.1 - 7.75 - 1.5, -10.2 - 7.75 - 1.0],
    }
    assert first["words"]["1"]["entropy"] == [1, 2, 3, 4]
    assert all(value >= 0 for value in first["words"]["1"]["log_prob"])
    assert Page(section.body).text.count("counted: words; normalisation none; ") == 1
    cells = Page(section.body).cells
    # first pass: b for x, f and g missed, two added; rescored: e added
    assert cells[9:18] == ["lm", "first pass", "50.00", "–", "–", "3", "0", "0", "6"]
    assert cells[18:27] == ["lm", "rescored", "50.00", "0.00", "0.0", "2", "0", "1", "6"]
    assert cells[27:36] == ["lm", "oracle", "16.67", "−33.33", "−66.7", "0", "1", "0", "6"]


def test_the_control_stands_between_the_first_pass_and_the_rescoring(rescored):
    own = {utt: texts[-1] for utt, texts in LISTS.items()}
    files = {"text_without_lm": "".join(f"{utt} {own[utt]}\n" for utt in own)}
    item = rescored("lm", LISTS, best=BEST, files=files)
    assert item.control == {utt: len(texts) - 1 for utt, texts in LISTS.items()}
    cells = Page(nbest_section([item], REFS).body).cells
    rows = [cells[place + 1] for place in (9, 18, 27, 36)]
    assert rows == ["first pass", "without the LM", "rescored", "oracle"]
    before = {utt: text.split() for utt, text in own.items()}
    assert cells[20] == f"{100 * count_errors(REFS, before).rate:.2f}"
    new = {utt: LISTS[utt][place].split() for utt, place in BEST.items()}
    place, test = cells.index("without the LM − rescored"), mapsswe(REFS, before, new)
    assert cells[place + 1 : place + 3] == [f"{test.z:.2f}", f"{test.p:.2g}"]


def test_words_of_bias_lists_are_named_and_counted(rescored):
    files = {"text_without_bias": "".join(f"{utt} {texts[0]}\n" for utt, texts in LISTS.items())}
    item = rescored("lm", LISTS, best=BEST, files=files)
    bias = BiasLists({"u1": BiasList([("x", 2.0), ("nobody", None)])}, BiasList([("d e", None)]))
    section = nbest_section([item], REFS, bias)
    lists = blocks(section)["nbest-view-0"]["lists"]
    assert [entry["biased"] for entry in lists] == [["x"], ["d", "e"], []]
    totals = [entry["scores"]["bias"] for entry in lists]
    assert totals == [[0.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0]]
    cells = Page(section.body).cells
    place = cells.index("U-WER %") - 2
    assert [cells[n : n + 6] for n in range(place + 6, place + 24, 6)] == [
        # the inserted e is biased
        ["lm", "first pass", "50.00", "50.00", "2 of 4", "1 of 2"],
        ["lm", "without the bias list", "50.00", "50.00", "2 of 4", "1 of 2"],
        ["lm", "rescored", "50.00", "50.00", "2 of 4", "1 of 2"],
    ]
    assert "without the bias list − rescored" in cells
    assert "in the bias list" in Page(section.body).text
    assert "in the bias list" not in Page(nbest_section([item], REFS).body).text


def test_words_of_the_new_best_are_judged(rescored):
    section = nbest_section([rescored("lm", LISTS, best=BEST, uncertain=True)], REFS)
    cells = Page(section.body).cells
    row = cells.index("entropy")
    # right: 1, 2, 3 (u1), 1 (u2); wrong: 2 (u2), 1, 2 (u3)
    assert cells[row + 1 : row + 3] == ["1.75", "1.67"]
    # of 12 pairs of a wrong and a right word: 2 wins of four and half a tie; 2 ties; as the first
    assert cells[row + 3] == f"{(2.5 + 1 + 2.5) / 12:.3f}"


def test_several_systems_share_their_texts(rescored):
    bests = {"one": BEST, "two": dict.fromkeys(LISTS, 0)}
    items = [rescored(name, LISTS, best=best) for name, best in bests.items()]
    section = nbest_section(items, REFS)
    data = blocks(section)
    assert len(data["nbest-texts"]) == sum(map(len, LISTS.values()))
    hyps = [[entry["hyps"] for entry in data[f"nbest-view-{n}"]["lists"]] for n in (0, 1)]
    assert hyps[0] == hyps[1]
    cells = Page(section.body).cells
    assert cells[9:45:9] == ["all", "one", "two", "all"]
    # what two systems make of one first pass stands side by side
    start = cells.index("reference")
    assert cells[start : start + 6] == [
        "reference", "recognised", "first pass", "one", "two", "one of them",
    ]  # fmt: skip
    errors = [cells[n : n + 6] for n in range(start + 6, len(cells), 6)]
    assert errors == [
        ["f", LISTS["u3"][0].split()[0], "1", "1", "1", "u3"],
        ["g", "&amp;", "1", "1", "1", "u3"],
        ["x", "b", "1", "0", "1", "u1"],
        ["—", "e", "0", "1", "0", "u2"],
    ]
    assert "#utt=u3" in Page(section.body).addresses


def test_each_first_pass_has_its_errors(rescored):
    """Lists of one set by two recognisers."""
    other = {utt: texts[::-1] for utt, texts in LISTS.items()}
    items = [
        rescored(name, lists, best=dict.fromkeys(LISTS, 0))
        for name, lists in (("one", LISTS), ("two", other))
    ]
    cells = Page(nbest_section(items, REFS).body).cells
    start = cells.index("reference")
    columns = ["first pass", "one", "first pass of two", "two"]
    assert cells[start : start + 6] == ["reference", "recognised", *columns[:2], *columns[2:]]
    row = cells.index("x", start)
    assert cells[row : row + 6] == ["x", "b", "1", "1", "0", "0"]


def test_lists_of_other_formats(tmp_path):
    lists = [
        NBest(utt, tuple(Hypothesis(tuple(t.split()), -1.0) for t in texts), REFS[utt])
        for utt, texts in LISTS.items()
    ]
    folder = tmp_path / "lm"
    folder.mkdir()
    write_nbest(lists, folder / "nbest.jsonl", format="jsonl")
    # other JSON lines are no lists
    (folder / "uncertainty.ndjson").write_text("")
    (folder / "text").write_text("".join(f"{u} {t[BEST[u]]}\n" for u, t in LISTS.items()))
    item = read_rescored("lm", folder, "jsonl")
    assert read_references([], [item], [("lm", str(folder))]) == REFS
    assert item.best == BEST and "total" not in item.scores["u1"]
    view = blocks(nbest_section([item], REFS))["nbest-view-0"]
    assert list(view["lists"][0]["scores"]) == ["acoustic"]


@pytest.mark.parametrize("num_lists", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_size_of_a_large_report(rescored, num_lists):
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) for _ in range(5000)]
    lists = {
        f"speaker{n % 40:02d}_recording_{n:06d}": [
            " ".join(rng.choices(vocabulary, k=20)) for _ in range(20)
        ]
        for n in range(num_lists)
    }
    best = {utt: rng.randrange(20) for utt in lists}
    refs = {utt: tuple(texts[1].split()) for utt, texts in lists.items()}
    item = rescored("lm", lists, best=best, uncertain=True)
    html = page("large", [nbest_section([item], refs)])
    assert len(html.encode()) < 7500 * num_lists
    # what is shown is made by the page's program: beside tables the page itself stays small
    assert html.count("<") < 800


def line(**values):
    row = {"utt": "u1", "rank": 1, "words": ["a", "b", "c"], "entropy": [1, 2, 3, 4]}
    return json.dumps({**row, **values}) + "\n"


BAD = {
    "another best": ("text", "u1 q\nu2 d\nu3 f\n", "the best of 'u1' is none of its list's 3"),
    "no best": ("text", "u1 a b c\n", "2 utterances have no hypothesis (first: 'u2')"),
    "a cost that is none": ("lmwt.nn", "u1-1 x\n", "lmwt.nn:1: 'x' stands where one number"),
    "missing costs": ("lmwt.nn", "u1-1 1\n", "no cost of 'u1-2'"),
    "another number of costs": ("lmwt.subtracted", "u1-1 1\n", "1 costs, 2 were expected"),
    "scales": ("scales.yaml", "lmwt: []\n", "no usable `lmwt`"),
    "not JSON": ("uncertainty.ndjson", "{\n", "uncertainty.ndjson:1: not JSON"),
    "no object": ("uncertainty.ndjson", "[]\n", "uncertainty.ndjson:1: expected utt, rank, words"),
    "unknown utterance": ("uncertainty.ndjson", line(utt="u9"), "no hypothesis 1 of 'u9'"),
    "unknown rank": ("uncertainty.ndjson", line(rank=9), "no hypothesis 9 of 'u1'"),
    "utterance of another type": ("uncertainty.ndjson", line(utt=[1]), "expected utt, rank"),
    "other words": ("uncertainty.ndjson", line(words=["a"]), "its words are not those"),
    "too few values": ("uncertainty.ndjson", line(entropy=[1]), "1 values of entropy, not 3 + 1"),
    "not a number": ("uncertainty.ndjson", line(entropy=[1, 2, 3, None]), "is not a number"),
    "NaN": ("uncertainty.ndjson", line(entropy=[1, 2, 3, float("nan")]), "is not a number"),
    "no list": ("uncertainty.ndjson", line(entropy=5), "is not a list"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folders(rescored, tmp_path, name):
    file, content, message = BAD[name]
    files = {file: content}
    if file == "lmwt.subtracted":
        files["scales.yaml"] = "lmwt: 10.0\nword_penalty: 0.5\nsubtracted: {a: -0.1, b: -0.2}\n"
    with pytest.raises(InputError) as error:
        rescored("lm", LISTS, best=BEST, files=files)
    assert message in str(error.value) and f"{tmp_path}/lm" in str(error.value)


def test_references_that_do_not_fit(rescored, tmp_path):
    item = rescored("lm", LISTS, best=BEST)
    folders = [("lm", f"{tmp_path}/lm")]
    (tmp_path / "short").write_text("u1 a\n")
    (tmp_path / "other").write_text("u1 b\n")
    with pytest.raises(InputError, match="2 utterances have no reference"):
        read_references(f"{tmp_path}/short", [item], folders)
    with pytest.raises(InputError, match="other: a second, different reference of 'u1'"):
        read_references([f"{tmp_path}/short", f"{tmp_path}/other"], [item], folders)
    scales = {"scales.yaml": "lmwt: 10.0\nword_penalty: 0.5\nunit: char\n"}
    characters = rescored("characters", LISTS, best=BEST, files=scales)
    with pytest.raises(InputError, match="rescored with other --unit or --ignore_words"):
        read_references([], [item, characters], folders)
