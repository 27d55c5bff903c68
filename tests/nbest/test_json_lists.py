"""Lists in JSON: our lines, and those of Whisper, NeMo, Vosk and beams."""

import json

import pytest
from nbest_mutations import hyp, packed, write_files
from oracles.refused import check_refused

from espnet_bayeslm.nbest.formats import CheckedLists, read_nbest, write_nbest
from espnet_bayeslm.nbest.json_lists import json_items
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError

HYPORADISE = [
    {"input": ["it's a test", "it is a test"], "output": "it is a test"},
    {"input": ["hello"], "output": "", "dataset": "cv"},
]
BEAMS = "it's a test\t-3.5\nit is a test\t-4\n\t-1.0\nhello\t-2e0\n"
MANIFEST = [
    {"audio_filepath": "/data/wav/a.wav", "duration": 1.5, "text": "it is a test"},
    {"audio_filepath": "/data/wav/b.wav", "text": "hello", "speaker": "s1"},
]
RESULT = [{"end": 1.11, "start": 0.87, "word": "hello"}]
VOSK = [
    {"confidence": 228.631027, "result": RESULT, "text": "hello"},
    {"confidence": 227.5, "text": "hallo"},
]


def read(path, format="jsonl"):
    return list(read_nbest(path, format))


def lines(*objects):
    """Return JSON lines; a string is one as it stands."""
    return "".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in objects)


def write_nemo_files(folder, beams=BEAMS, manifest=MANIFEST, name="preds_out_width128_alpha1.0"):
    (folder / f"{name}.tsv").write_text(beams)
    (folder / "test_manifest.json").write_text(lines(*manifest))


@pytest.mark.parametrize("format", ["hyporadise", "whisper", None])
def test_hyporadise(format, tmp_path):
    """Also by the name that it had, and by its contents."""
    (tmp_path / "test_cv.json").write_text(json.dumps(HYPORADISE, indent=2))
    test = hyp("it is a test")
    assert read(tmp_path / "test_cv.json", format) == [
        NBest("test_cv-000001", (hyp("it's a test"), test), test.words),
        NBest("test_cv-000002", (hyp("hello"),), (), extra={"dataset": "cv"}),
    ]


HYPORADISE_SCORES = [
    {"scores": [-1.5, -2]},
    {"score": [-1.5, -2]},
    {"am_score": [-1.5, -2], "score": [-7, -8]},
    {"scores": [-1.5, -2], "am_score": [-7, -8], "score": 1},
    {"am_score": 3, "score": [-1.5, -2]},
]


@pytest.mark.parametrize("keys", HYPORADISE_SCORES)
def test_hyporadise_scores_have_several_names_and_keep_them(keys, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"input": ["a", "b"], **keys}]))
    (found,) = read_nbest(tmp_path / "a.json", "hyporadise")
    assert [hyp.am_score for hyp in found.hypotheses] == [-1.5, -2]
    assert found.extra == {key: value for key, value in keys.items() if key != "scores"}


def test_nemo_lists_keep_what_the_manifest_holds(tmp_path):
    write_nemo_files(tmp_path)
    first, second = read_nbest(tmp_path, "nemo")
    assert [(hyp.words, hyp.am_score) for hyp in second.hypotheses] == [((), -1), (("hello",), -2)]
    assert (first.ref, second.speaker) == (("it", "is", "a", "test"), "s1")
    assert first.extra == {"audio_filepath": "/data/wav/a.wav", "duration": 1.5}
    (tmp_path / "preds_out_width64.tsv").write_text(BEAMS)
    with pytest.raises(InputError, match=r"2 files .*tsv"):
        read(tmp_path, "nemo")
    assert read(tmp_path / "preds_out_width64.tsv", "nemo") == [first, second]
    (tmp_path / "preds_out_width64.tsv").unlink()
    manifest = [{"audio_filepath": f"/data/{s}/1.wav"} for s in ("s1", "s2")]
    write_nemo_files(tmp_path, manifest=manifest)
    assert [nbest.utt for nbest in read_nbest(tmp_path, "nemo")] == ["s1/1", "s2/1"]


# name of the beam file, scores of its lines, manifest's counts, sizes of the lists; None: refused
COUNTS = {
    "uneven, of a total that can be divided": ("beams", [-3.5, -4.1, -5, -2.2], [None, None], None),
    "uneven, as the manifest says": ("beams", [-3.5, -4.1, -5, -2.2], [3, 1], [3, 1]),
    "the manifest says too little": ("beams", [-3.5, -4.1, -5, -2.2], [3, None], None),
    "the manifest says something else": ("beams", [-3.5, -4.1, -5, -2.2], [2, 1], None),
    "no score rises at the border": ("beams", [-1, -2, -3, -4], [None, None], None),
    "scores rise within lists": ("beams", [-4, -3, -6, -5], [None, None], None),
    "even, and the scores agree": ("beams", [-1, -2, -1.5, -4], [None, None], [2, 2]),
    "lists are full": ("preds_out_width2_alpha1.0", [-4, -3, -6, -7], [None, None], [2, 2]),
    "lists are not full": ("preds_out_width4_alpha1.0", [-1, -2, -3, -4], [None, None], None),
    "a list is longer than the beam": ("preds_width2", [-3, -4, -5, -2], [3, 1], [3, 1]),
    "one utterance": ("beams", [-3, -1, -2], [None], [3]),
    "one line each": ("beams", [-1, -2, -3], [None] * 3, [1, 1, 1]),
    "fewer lines than utterances": ("beams", [-1, -2], [None] * 3, None),
}


@pytest.mark.parametrize("case", COUNTS)
def test_nemo_lists_are_told_apart_or_refused(case, tmp_path):
    name, scores, counts, sizes = COUNTS[case]
    beams = "".join(f"w{n}\t{score}\n" for n, score in enumerate(scores))
    manifest = [
        {"audio_filepath": f"{n}.wav"} | ({"num_hypotheses": count} if count else {})
        for n, count in enumerate(counts)
    ]
    write_nemo_files(tmp_path, beams, manifest, name)
    if sizes is None:
        message = r"tsv: \d lines, and \d utterances in .*json.*num_hypotheses"
        check_refused(lambda: read(tmp_path, "nemo"), message, tmp_path)
        return
    lists = read(tmp_path, "nemo")
    assert [len(nbest.hypotheses) for nbest in lists] == sizes
    assert [hyp.am_score for nbest in lists for hyp in nbest.hypotheses] == scores


TRANSCRIBED = [
    {**MANIFEST[0], "pred_text": "it is", "beams": [["it is", -1.5], ["", -2]]},
    {**MANIFEST[1], "pred_text_ctc": "hello", "beams": [("hello", None), ("hallo", None)]},
]


def test_a_manifest_of_nemo_may_hold_the_lists(tmp_path):
    """As transcribe_speech.py writes it with extract_nbest=true."""
    file = tmp_path / "manifest_ctc.json"
    file.write_text(lines(*TRANSCRIBED))
    first, second = read(file, "nemo")
    assert first.hypotheses == (hyp("it is", -1.5), hyp("", -2))
    assert (first.utt, first.ref) == ("a", ("it", "is", "a", "test"))
    assert first.extra["pred_text"] == "it is" and "beams" not in first.extra
    assert [h.am_score for h in second.hypotheses] == [None, None] and second.speaker == "s1"
    assert list(read_nbest(file)) == list(read_nbest(tmp_path)) == [first, second]
    # beside the manifest that NeMo was given, the file has to be named
    (tmp_path / "manifest.json").write_text(lines(*MANIFEST))
    with pytest.raises(InputError, match=r"2 files \*\.json.*name the file"):
        read(tmp_path, "nemo")
    assert read(file, "nemo") == [first, second]


@pytest.mark.parametrize(
    "beams, message",
    [
        (None, "beams are missing, and a list of one or more"),
        ([], "beams are \\[\\]"),
        (["a b"], "a beam is 'a b', and a text with a score was expected"),
        ([["a", -1, -2]], "a beam is .*, and a text with a score"),
        ([["a", "x"]], "a score is 'x', and a finite number"),
        ([["a", float("nan")]], "a score is nan"),
        ([[3, -1]], "a hypothesis is 3, and a string"),
        ([["a", -1], ["b", None]], "1 of 2 hypotheses have a score"),
    ],
)
def test_bad_beams_of_a_manifest(tmp_path, beams, message):
    (tmp_path / "out.json").write_text(lines(TRANSCRIBED[0], {**MANIFEST[1], "beams": beams}))
    for path in (tmp_path, tmp_path / "out.json"):
        check_refused(lambda path=path: read(path, "nemo"), rf"out\.json:2: {message}", tmp_path)


def test_vosk_a_file_for_each_utterance_and_all_in_one(tmp_path):
    text = json.dumps({"alternatives": VOSK}, indent=2)
    write_files(tmp_path, {"one/u10.json": text, "one/u2.json": text, "all.json": text + text})
    hypotheses = hyp("hello", 228.631027, extra={"result": RESULT}), hyp("hallo", 227.5)
    one, every = (read(tmp_path / name, "vosk") for name in ("one", "all.json"))
    assert one == [NBest("u2", hypotheses), NBest("u10", hypotheses)]
    assert every == [NBest("all-000001", hypotheses), NBest("all-000002", hypotheses)]


def test_what_other_formats_keep_does_not_stand_in_for_what_is_read(tmp_path):
    odd = NBest("u", (hyp("a", extra={"text": 3, "score": "x"}),), extra={"utt": 1})
    write_nbest([odd], tmp_path, format="jsonl")
    line = json.loads((tmp_path / "nbest.jsonl").read_text())
    assert line == {"utt": "u", "hypotheses": [{"text": "a", "score": "x"}]}


def test_beams_of_brain_to_text_and_of_pyctcdecode(tmp_path):
    """The LM's part of pyctcdecode's total is what the logits leave of it."""
    triples = [["it is", -3.5, -8.25], ["its", -4, -7.5]]
    beams = [[text, None, [["it", [0, 4]]], am, am + lm] for text, am, lm in triples]
    hyps = hyp("it is", -3.5, -8.25), hyp("its", -4.0, -7.5)
    file, every = tmp_path / "lists.json", [triples, beams, [b[:1] + b[2:] for b in beams]]
    file.write_text(json.dumps(every))
    assert list(read_nbest(file)) == [NBest(f"lists-{n:06d}", hyps) for n in (1, 2, 3)]
    file.write_text(json.dumps({"b": triples, "a": beams}))
    assert list(read_nbest(file)) == [NBest("b", hyps), NBest("a", hyps)]


BAD_NEMO = [
    ("a b -1\n" * 2, MANIFEST, r"tsv:1: no tab in 'a b -1'"),
    ("a\tx\nb\t1\n", MANIFEST, r"tsv:1: 'x' stands where one number"),
    ("a\t1\n" * 3, MANIFEST, r"tsv: 3 lines, and 2 utterances in .*manifest.json"),
    ("", MANIFEST, r"tsv: 0 lines, and 2 utterances"),
    (BEAMS, [], r"manifest.json: no utterances"),
    (BEAMS, [{**MANIFEST[0], "utt": 1.5}] * 2, r"manifest.json:1: utt is 1.5, and a string"),
    (BEAMS, [{**MANIFEST[0], "utt": "a"}] * 2, r"manifest.json:2: the utterance 'a' stands"),
    (BEAMS, [{}, {}], r"manifest.json:1: audio_filepath is missing"),
    (BEAMS, [MANIFEST[0]] * 2, r"manifest.json:2: .* stands already in .*json:1"),
    (BEAMS, [{**m, "num_hypotheses": 3} for m in MANIFEST], r"tsv: 4 lines, .* 6 hypotheses"),
    (BEAMS, [{**m, "num_hypotheses": -1} for m in MANIFEST], r"json:1: num_hypotheses is -1"),
]


@pytest.mark.parametrize("beams, manifest, message", BAD_NEMO)
def test_bad_beam_files(beams, manifest, message, tmp_path):
    write_nemo_files(tmp_path, beams, manifest)
    check_refused(lambda: read(tmp_path, "nemo"), message, tmp_path)


GOOD = {
    "utt": "u-1",
    "hypotheses": [{"text": "a b", "am_score": -1.5}, {"text": "", "am_score": 2}],
}


def test_strings_totals_ranks_speakers_and_unknown_keys(tmp_path, caplog):
    caplog.set_level("INFO")
    objects = [
        {"utt": "u1", "hypotheses": ["a b", {"text": "c"}, ""], "speaker": "s 1", "wer": [0.5, 1]},
        {"utt": "u2", "hypotheses": [{"text": "a", "score": -2, "tokens": ["a"]}]},
        {"utt": "u3", "hypotheses": [{"text": "b", "rank": 2}, {"text": "a", "rank": 1}]},
        {"utt": "u4", "hypotheses": [{"text": "b", "rank": 2, "am_score": 1, "score": 3}]},
    ]
    expected = [
        NBest("u1", (hyp("a b"), hyp("c"), hyp("")), speaker="s 1", extra={"wer": [0.5, 1]}),
        NBest("u2", (hyp("a", -2.0, extra={"score": -2, "tokens": ["a"]}),)),
        NBest("u3", (hyp("a", extra={"rank": 1}), hyp("b", extra={"rank": 2}))),
        NBest("u4", (hyp("b", 1.0, extra={"rank": 2, "score": 3}),)),
    ]
    (tmp_path / "lists.jsonl").write_text(lines(*objects))
    lists = read(tmp_path / "lists.jsonl")
    assert lists == expected
    assert "kept, and not used: tokens, wer" in caplog.text
    write_nbest(lists, tmp_path / "again.jsonl", format="jsonl")
    assert read(tmp_path / "again.jsonl") == expected


def test_recordings_and_starts(tmp_path, caplog):
    """They are written again as they came."""
    caplog.set_level("INFO")
    objects = [
        {"utt": f"u{n}", "hypotheses": [{"text": "a"}], "recording": "r 1", "start": start}
        for n, start in enumerate([3, 2.5, -1, 1e300])
    ]
    objects.append({"utt": "u4", "hypotheses": [{"text": "a"}], "start": 0})
    (tmp_path / "lists.jsonl").write_text(lines(*objects))
    lists = read(tmp_path / "lists.jsonl")
    assert [item.start for item in lists] == [3, 2.5, -1, 1e300, 0]
    assert [item.recording for item in lists] == ["r 1"] * 4 + [None]
    write_nbest(lists, tmp_path / "again.jsonl", format="jsonl")
    assert (tmp_path / "again.jsonl").read_text() == lines(*objects)
    assert not caplog.text


@pytest.mark.parametrize(
    "format, text",
    [
        ("jsonl", {"utt": 7, "hypotheses": ["a"], "speaker": 1, "recording": 2}),
        ("hyporadise", {"id": 7, "input": ["a"], "speaker": 1}),
        ("vosk", {"utt": 7, "alternatives": [{"text": "a", "confidence": -1}], "speaker": 1}),
        ("nemo", {"audio_filepath": "a.wav", "utt": 7, "beams": [["a", -1]], "speaker": 1}),
    ],
)
def test_ids_that_are_integers_are_read_as_text(format, text, tmp_path):
    path = tmp_path / ("a.jsonl" if format == "jsonl" else "a.json")
    path.write_text(json.dumps(text))
    (found,) = read(path, format)
    assert (found.utt, found.speaker) == ("7", "1")
    assert found.recording == ("2" if format == "jsonl" else None)


@pytest.mark.parametrize("placeholder", ["-", " -- ", "...", "_"])
@pytest.mark.parametrize("has_beams", [True, False])
def test_nemos_placeholder_is_no_reference(placeholder, has_beams, tmp_path):
    """A reference is a text with a letter or digit, or an empty one beside others."""
    manifest = [{**MANIFEST[0], "text": placeholder}, {**MANIFEST[1], "text": ""}, MANIFEST[0]]
    for n, entry in enumerate(manifest):
        manifest[n] = {**entry, "utt": f"u{n}", **({"beams": [["a", -1]]} if has_beams else {})}
    if has_beams:
        (tmp_path / "manifest.json").write_text(lines(*manifest))
    else:
        write_nemo_files(tmp_path, "a\t-1\n" * 3, manifest)
    assert [item.ref for item in read(tmp_path, "nemo")] == [None, (), ("it", "is", "a", "test")]


@pytest.mark.parametrize("refs", [["-", "-"], ["", ""], ["-", ""], ["", "...!"]])
def test_references_without_a_word_count_as_none(refs, tmp_path, caplog):
    objects = [{"utt": f"u{n}", "hypotheses": ["a"], "ref": ref} for n, ref in enumerate(refs)]
    (tmp_path / "a.jsonl").write_text(lines(*objects))
    assert CheckedLists(tmp_path / "a.jsonl").refs == {}
    assert "a.jsonl: no reference has a word: they count as none" in caplog.text
    objects.append({**objects[0], "utt": "u2", "ref": "5"})
    (tmp_path / "a.jsonl").write_text(lines(*objects))
    assert len(CheckedLists(tmp_path / "a.jsonl").refs) == 3


@pytest.mark.parametrize("refs, warns", [(["<unk>"] * 2, True), ("ab", False), ("a", False)])
def test_references_that_are_one_text_are_told(refs, warns, tmp_path, caplog):
    objects = [{"utt": f"u{n}", "hypotheses": ["a"], "ref": ref} for n, ref in enumerate(refs)]
    (tmp_path / "a.jsonl").write_text(lines(*objects))
    assert len(CheckedLists(tmp_path / "a.jsonl").refs) == len(refs)
    assert ("a.jsonl: all 2 references are '<unk>'" in caplog.text) == warns
    assert ("placeholder" in caplog.text) == warns


@pytest.mark.parametrize("name, file", [
    ("new", "new/nbest.jsonl"), ("a.jsonl", "a.jsonl"), ("b.jsonl.gz", "b.jsonl.gz")
])  # fmt: skip
def test_where_it_is_written(tmp_path, name, file):
    lists = [NBest("é", (hyp("a", -1.0, graph_score=0.0),), ("b",))]
    write_nbest(lists, tmp_path / name, format="jsonl")
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()] == [file]
    assert read(tmp_path / name) == lists
    if file.endswith("gz"):
        before = (tmp_path / file).read_bytes()
        write_nbest(lists, tmp_path / name, format="jsonl")
        assert (tmp_path / file).read_bytes() == before


def item(**content):
    return {"utt": "u", "hypotheses": [{"text": "a", **content}]}


BAD_LINES = [
    ([], r"a.json: no utterances"),
    ([GOOD, ""], r":2: not JSON \(Expecting value at column 1\)"),
    (['{"utt": "a", "hypo'], r":1: not JSON \(Unterminated string .* column 14\)"),
    (["{} {}"], r":1: not JSON \(Extra data at column 4\)"),
    ([[GOOD]], r":1: the line is .*, and an object was expected"),
    ([{"hypotheses": [{"text": "a"}]}], r":1: utt is missing, and a string"),
    ([{**GOOD, "utt": "a b"}], r":1: 'a b' cannot be an utterance id"),
    ([{**GOOD, "utt": "\ud800"}], r":1: '\\ud800' cannot be an utterance id"),
    ([item(text="\udfff")], r":1: text is '\\udfff', and a string"),
    ([GOOD, GOOD], r":2: the utterance 'u-1' stands already in .*a.json:1"),
    ([{"utt": "u"}], r":1: hypotheses are missing"),
    ([{"utt": "u", "hypotheses": [["a"]]}], r":1: a hypothesis is \['a'\]"),
    ([{"utt": "u", "hypotheses": [{"text": "a", "rank": 1}] * 2}], r":1: two .* of one rank"),
    ([{**GOOD, "speaker": True}], r":1: speaker is True, and a string"),
    ([{**GOOD, "recording": [3]}], r":1: recording is \[3\], and a string"),
    ([{**GOOD, "start": "0.5"}], r":1: start is '0.5', and a finite number"),
    (['{"utt": "u", "hypotheses": ["a"], "start": NaN}'], r":1: start is nan, and a finite number"),
    ([{**GOOD, "x": "\ud800"}], r":1: .* cannot be kept"),
    ([json.dumps(item(x=7)).replace("7", "1e999")], r":1: .* cannot be kept"),
    ([{"utt": "u", "hypotheses": [{}]}], r":1: text is missing"),
    ([item(am_score="-1")], r":1: am_score is '-1', and a finite number"),
    ([item(lm_score=True)], r":1: lm_score is True, and a finite number"),
    ([item(lm_score=float("nan"))], r":1: lm_score is nan, and a finite number"),
    ([json.dumps(item(am_score=7)).replace("7", "1e999")], r":1: am_score is inf"),
    ([f'{{"utt": {"1" * 10**6}}}'], r":1: not JSON \(Exceeds the limit"),
    (['{"utt": "u", "utt": "v"}'], r":1: a key comes twice"),
    ([{"utt": "u", "hypotheses": [{"text": "", "am_score": 1}, ""]}], r":1: 1 of 2 .*have a score"),
    (["[" * 10**6], r":1: brackets are nested too deeply"),
]  # fmt: skip
BAD = {
    "hyporadise": [
        ("{", r"a.json:1: not JSON"),
        ("[]", r"a.json: no utterances"),
        ('[{"input": ["a"]}]\nx', r"a.json:1: not JSON \(',' or the end"),
        ('[{"input": ["a"]},\n{"input": "a"}]', r"a.json:2: input are 'a', and a list"),
        ('[{"input": [3]}]', r"a.json:1: a hypothesis is 3, and a string"),
        ('[{"input": ["a"], "scores": [1, 2]}]', r"a.json:1: 1 hypotheses and 2 scores"),
        ('[{"input": ["a"], "scores": -3, "score": 1}]', r"a.json:1: scores are -3, and a list"),
        ('[{"input": ["a"], "am_score": ["x"]}]', r"a.json:1: am_score is 'x', and a finite"),
        ('[{"input": ["a", "b"], "scores": [1, null]}]', r"a.json:1: 1 of 2 hypotheses have a"),
        ('[{"input": ["a"], "id": "x"},\n{"input": ["a"], "id": "x"}]', r"a.json:2: .*already"),
    ],
    "beams": [
        ("[]", r"a.json: no utterances"),
        ('[["a", -1, -2]]', r"a.json:1: a hypothesis is 'a', and a text with two scores"),
        ('[[["a", -1, -2]],\n[["a", -1]]]', r"a.json:2: a hypothesis is \['a', -1\], and a text"),
        ('[[["a", null, -2]]]', r"a.json:1: a hypothesis is .*, and two numbers were expected"),
        ("[[]]", r"a.json:1: hypotheses are \[\], and a list of one or more was"),
    ],
    "jsonl": [(lines(*objects), message) for objects, message in BAD_LINES],
    "vosk": [
        ('{"text": "a"}', r"a.json:1: alternatives are missing"),
        ("3", r"a.json:1: it is 3, and an object"),
        ("", r"a.json: no utterances"),
    ],
}


@pytest.mark.parametrize("format", BAD)
def test_bad_json_is_one_error_with_file_and_line(format, tmp_path):
    for text, message in BAD[format]:
        (tmp_path / "a.json").write_text(text)
        check_refused(lambda: read(tmp_path / "a.json", format), message, tmp_path)


def test_a_folder_has_its_files_read_in_natural_order(tmp_path):
    with pytest.raises(InputError, match=r"no \*\.jsonl in it"):
        read(tmp_path)
    names = ("part.10.jsonl", "part.2.jsonl", "other.json", "text", "part.1.jsonl")
    files = {name: json.dumps({**GOOD, "utt": name}).encode() for name in names}
    zipped = packed({"part.1.jsonl": files.pop("part.1.jsonl")})
    write_files(tmp_path, files | zipped)
    utts = [nbest.utt for nbest in read(tmp_path)]
    assert utts == ["part.1.jsonl", "part.2.jsonl", "part.10.jsonl"]


@pytest.mark.parametrize("text", ["[1, 2,]", "[1, 2,\n]", "[1, 2", "[1 2]", "[1] 2"])
def test_a_list_that_is_not_json(text, tmp_path):
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(InputError, match="',' or the end of the list was expected"):
        list(json_items(tmp_path / "list.json", remedy="Write a list."))


def test_parts_of_one_recording_in_a_manifest_are_named_after_their_offsets(tmp_path):
    path = tmp_path / "manifest.json"
    rows = [
        {"audio_filepath": "wav/a.wav", "offset": offset, "beams": [["x", -1]]}
        for offset in (0, 1.5, 12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [nbest.utt for nbest in read_nbest(path, "nemo")] == ["a-0", "a-1.5", "a-12"]
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, rows[0])))
    with pytest.raises(InputError, match=r":4: the utterance 'wav/a-0' stands already"):
        list(read_nbest(path, "nemo"))
