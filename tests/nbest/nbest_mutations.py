"""Valid N-best files, random damage to them, and plain readers that say what is left in them."""

import gzip
import itertools
import json
import math
import re

# Whatever a mutation may put into a file
PIECES = [
    *[b"nan", b"NaN", b"-Infinity", b"inf", b"1e999", b"-1e-999", b"1_0", b"0x1F", b"+.5e+1"],
    *[b"\n", b"\n\n", b"\r\n", b"\r", b"\0", b"\t", b" ", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8"],
    *[b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xff\xfe", b"-", b"-1", b"-0", b"-01", b"-999999999999"],
    *["\u0661\u0662".encode(), "é".encode(), "\U0001f600".encode(), b"<s>", b"</s>", b"-pau-"],
    *[b"NBestList1.0\n", b"NBestList2.0\n", b"(-513) ", b"tensor(", b")", b"tensor(nan)"],
    *[b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"\\ud800", b"\\"],
    b'"utt": "x",',
    b"[" * 3000,
    b"9" * 5000,
]
MEGABYTES = [b"a" * 2**20, b"1" * 2**20, b"a " * 2**19, b"[" * 2**20, b"-" * 2**20, b"1-" * 2**19]

KALDI = {
    "words_text": "a-1-1 well i'm 3\na-1-2\na-1-3 ü\nb_01-1 x\nb_01-2 x-1 yes\né-1 -1\n",
    "acwt": "a-1-1 10.5\na-1-2 1e1\na-1-3 -3\nb_01-1 .5\nb_01-2 7.\né-1 0\n",
    "lmwt.nolm": "a-1-1 0\na-1-2 0\na-1-3 1.5\nb_01-1 2\nb_01-2 0\né-1 0\n",
    "lmwt.withlm": "a-1-1 9.25\na-1-2 8\na-1-3 7\nb_01-1 6\nb_01-2 5\né-1 4\n",
}
ESPNET = {
    "output.1/1best_recog/text": "a-1 well i'm 3\nb_01 x\né \n",
    "output.1/1best_recog/score": "a-1 tensor(-10.5000)\nb_01 -.5\né 0.0\n",
    "output.1/2best_recog/text": "a-1 \né -1\n",
    "output.1/2best_recog/score": "a-1 tensor(-1.1e+01, device='cuda:0')\né tensor([-3.])\n",
    "output.2/1best_recog/text": "c yes\nd no no\n",
    "output.2/1best_recog/score": "c -3.25\nd -3.5\n",
}
SRILM = {
    "a-1.score": "-10.5 -9.25 3 well i'm 3\n-1e1 -8 0\n3 -7 1 ü\n",
    "b_01.score": "-.5 -6 2 <s> x </s> -pau-\n-7. -5 2 x-1 yes\n",
    "é.score": "0 -4 1 -1\n",
}
JSONL = {
    "nbest.jsonl": '{"utt": "a-1", "hypotheses": [{"text": "well i\'m 3", "am_score": -10.5,'
    ' "lm_score": -9}, {"text": "", "am_score": -10, "lm_score": null}], "ref": "well"}\n'
    '{"utt": "b_01", "hypotheses": [{"text": "x"}, {"text": "x-1 yes"}]}\n'
    '{"utt": "é", "hypotheses": [{"text": "-1", "am_score": 0.0, "graph_score": 0.001}]}\n',
}
WHISPER = {
    "a.json": '[{"input": ["well i\'m 3", ""], "output": "well", "id": "a-1"},\n'
    ' {"input": ["x", "x-1 yes"], "am_score": [-1.5, -2], "score": [1]}\n]\n',
    "b.json": '{"input": ["é"], "scores": [-1]}\n{"input": ["-1"], "output": null}',
}
NEMO = {
    "preds_out.tsv": "well i'm 3\t-1e1\n\t-10.5\nx-1 yes\t3\nx\t.5\n",
    "manifest.json": '{"audio_filepath": "a/a-1.wav", "text": "well", "duration": 1.5}\n'
    '{"audio_filepath": "b/é.wav"}\n',
}
NEMO_UNEVEN = {
    "preds_out.tsv": "well i'm 3\t-10.5\n\t-1e1\n\u2028ü\t-11\nx\t.5\né a\u0301\t-3\nb\t-2\n",
    "manifest.json": '{"audio_filepath": "a/a-1.wav", "num_hypotheses": 3, "text": "well"}\n'
    '{"audio_filepath": "b/é.wav", "num_hypotheses": 1}\n'
    '{"audio_filepath": "c.wav", "num_hypotheses": 2, "text": null}\n',
}
VOSK = {
    "a-1.json": '{\n "alternatives" : [{\n  "confidence" : 228.5,\n  "text" : "well i\'m 3"\n },'
    ' {"confidence": 7, "text": "", "result": [{"word": "a", "start": 0.5}]}]\n}\n',
    "b.json": '{"alternatives": [{"text": "x"}, {"text": "é yes"}]}\n'
    '{"alternatives": [{"text": "-1"}], "utt": "c"}\n',
}
BEAMS = {
    "a-1.json": '[[["well i\'m 3", -3.5, -8.25], ["", -4, 0]],\n'
    '[["\u00e9 yes", null, [["\u00e9", [0, 3]]], -2.5, -9.75]]]\n',
    "b.json": '{"c": [[" x  y", -1e1, -2]],\n "d": [["-1", -0.5, -1]]}\n',
}


def packed(files):
    """Return {name.gz: gzipped}."""
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}


def split(files, at=(3,)):
    """Return Kaldi's files as archives.1, archives.2, .., cut at some lines."""
    parts = {}
    for name, content in files.items():
        lines = content.splitlines(keepends=True)
        for number, (start, end) in enumerate(itertools.pairwise([0, *at, None]), 1):
            parts[f"archives.{number}/{name}"] = b"".join(lines[start:end])
    return parts


def write_files(folder, files):
    """Write files, or remove those that are None; return the folder."""
    for name, data in files.items():
        # A new file: a file system may flush one that is emptied and written anew, which takes long
        (folder / name).unlink(missing_ok=True)
        if data is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def _kinds():
    texts = {"kaldi": KALDI, "espnet": ESPNET, "srilm": SRILM, "jsonl": JSONL}
    texts |= {"whisper": WHISPER, "nemo": NEMO, "vosk": VOSK, "beams": BEAMS}
    plain = {
        format: {name: content.encode() for name, content in files.items()}
        for format, files in texts.items()
    }
    kinds = {format: (format, files) for format, files in plain.items()}
    kinds["nemo uneven"] = "nemo", {n: text.encode() for n, text in NEMO_UNEVEN.items()}
    kinds["kaldi split"] = "kaldi", split(plain["kaldi"])
    for format, files in plain.items():
        files = split(files) if format == "kaldi" else files
        kinds[f"{format} packed"] = format, packed(files)
    return kinds


KINDS = _kinds()
"""{name: (format, {file: bytes})}."""


def _swap(rng, lines):
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return lines


def _join(rng, lines):
    i = rng.randrange(len(lines))
    lines[i] = lines[i].rstrip(b"\n")
    return lines


LINES = {
    "swap lines": _swap,
    "shuffle lines": lambda rng, lines: rng.sample(lines, len(lines)),
    "drop lines": lambda rng, lines: rng.sample(lines, rng.randrange(len(lines))),
    "double a line": lambda rng, lines: [*lines, rng.choice(lines)],
    "join lines": _join,
    "empty line": lambda rng, lines: [*lines, b"\n"],
    "crlf": lambda rng, lines: [line.replace(b"\n", b"\r\n") for line in lines],
    "one crlf": lambda rng, lines: [lines[0].replace(b"\n", b"\r\n"), *lines[1:]],
}


def _at(rng, data, length, new=None):
    i = rng.randrange(len(data) + 1)
    return data[:i] + (data[i : i + length] * 2 if new is None else new) + data[i + length :]


BYTES = {
    "flip": lambda rng, data: _at(rng, data, 1, bytes([rng.randrange(256)])),
    "delete": lambda rng, data: _at(rng, data, rng.choice([1, 1, 2, 5, 30]), b""),
    "insert": lambda rng, data: _at(rng, data, 0, rng.choice(PIECES)),
    "replace": lambda rng, data: _at(rng, data, rng.randrange(6), rng.choice(PIECES)),
    "double": lambda rng, data: _at(rng, data, rng.choice([1, 3, 20, 200])),
    "cut": lambda rng, data: data[: rng.randrange(len(data) + 1)],
    "cut the start": lambda rng, data: data[rng.randrange(len(data) + 1) :],
    "mark": lambda rng, data: b"\xef\xbb\xbf" + data,
    "utf-16": lambda rng, data: data.decode("utf-8", "replace").encode("utf-16"),
    "noise": lambda rng, data: _at(rng, data, 0, rng.randbytes(rng.choice([1, 4, 40]))),
    "end": lambda rng, data: data.rstrip(b"\n"),
    "empty": lambda rng, data: b"",
}


def damage(rng, data):
    """Return the name of a mutation and what it makes of a text."""
    if rng.random() < 0.002:
        return "a megabyte", _at(rng, data, rng.randrange(3), rng.choice(MEGABYTES))
    if data and rng.random() < 0.3:
        name = rng.choice(list(LINES))
        return name, b"".join(LINES[name](rng, data.splitlines(keepends=True)))
    name = rng.choice(list(BYTES))
    return name, BYTES[name](rng, data)


def mutate(rng, files):
    """Return what was done, and {file: new bytes, or None where it is removed}."""
    done, changed = [], {}
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name = rng.choice(list(files))
        data = changed.get(name, files[name])
        if data is None:
            continue
        kind = "remove"
        if rng.random() < 0.01:
            changed[name] = None
        elif name.endswith(".gz") and name not in changed and rng.random() < 0.6:
            kind, text = damage(rng, gzip.decompress(data))
            changed[name] = gzip.compress(text, mtime=0)
        else:
            kind, changed[name] = damage(rng, data)
        done.append(f"{kind} in {name}")
    return "; ".join(done), changed


def _texts(files):
    """Yield (name without .gz, text) of {file: bytes}."""
    for name, data in sorted(files.items()):
        text = gzip.decompress(data) if name.endswith(".gz") else data
        yield name.removesuffix(".gz"), text.decode("utf-8-sig")


def _lines(files):
    """Yield (name without .gz, number, line) of {file: bytes}."""
    for name, text in _texts(files):
        lines = text.split("\n")
        for number, line in enumerate(lines[: -1 if lines[-1] == "" else None]):
            yield name, number, line


def kaldi_content(files):
    """Return {(utterance, rank from 0): (words, acoustic score)}."""
    words, costs = {}, {}
    for name, _, line in _lines(files):
        key, *rest = line.split()
        utt, _, rank = key.rpartition("-")
        if name.endswith("words_text"):
            assert (utt, int(rank) - 1) not in words
            words[utt, int(rank) - 1] = rest
        elif name.endswith("acwt"):
            costs[utt, int(rank) - 1] = -float(rest[0])
    return {key: (words[key], costs[key]) for key in words}


def espnet_content(files):
    """Return {(utterance, rank from 0): (words, score)}."""
    words, scores = {}, {}
    for name, _, line in _lines(files):
        utt, *rest = line.split()
        rank = int(re.search(r"(\d+)best_recog", name)[1]) - 1
        if name.endswith("/text"):
            assert (utt, rank) not in words
            words[utt, rank] = rest
        else:
            number = rest[0].removeprefix("tensor(").strip(",[]()")
            scores[utt, rank] = float(number)
    return {key: (words[key], scores[key]) for key in words}


def srilm_content(files):
    """Return {(utterance, rank from 0): (words but for marks, acoustic score)}."""
    content = {}
    for name, number, line in _lines(files):
        fields = line.split()
        words = [word for word in fields[3:] if word not in ("<s>", "</s>", "-pau-")]
        content[name.removesuffix(".score"), number] = words, float(fields[0]) * math.log(10)
    return content


def _once(pairs):
    content = dict(pairs)
    assert len(content) == len(pairs), "a key that comes twice"
    return content


def jsonl_content(files):
    """Return {(utterance, rank from 0): (words, acoustic score)}."""
    content = {}
    for _, _, line in _lines(files):
        item = json.loads(line, object_pairs_hook=_once)
        for rank, hyp in enumerate(item["hypotheses"]):
            assert (item["utt"], rank) not in content
            hyp = {"text": hyp} if isinstance(hyp, str) else hyp
            score = hyp.get("score") if hyp.get("am_score") is None else hyp["am_score"]
            content[item["utt"], rank] = hyp["text"].split(), score
    return content


def _values(text):
    """Return the items of a JSON list, or the values one after the other."""
    decoder, values, rest = json.JSONDecoder(object_pairs_hook=_once), [], text.strip(" \t\r\n")
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip(" \t\r\n")
    return values[0] if len(values) == 1 and isinstance(values[0], list) else values


def whisper_content(files):
    """Return {(utterance, rank from 0): (words, score or None)}."""
    content = {}
    for name, text in _texts(files):
        for number, item in enumerate(_values(text), 1):
            ids = [item[key] for key in ("id", "utt") if item.get(key) is not None]
            utt = str(ids[0]) if ids else f"{name.removesuffix('.json')}-{number:06d}"
            named = [item.get(key) for key in ("scores", "am_score", "score")]
            scores = next((s for s in named if isinstance(s, list)), [None] * len(item["input"]))
            for rank, (line, score) in enumerate(zip(item["input"], scores, strict=True)):
                content[utt, rank] = line.split(), score
    return content


def nemo_content(files):
    """Return {(utterance, rank from 0): (words, score)}."""
    texts = dict(_texts(files))
    (beams,) = (text for name, text in texts.items() if name.endswith(".tsv"))
    (manifest,) = (text for name, text in texts.items() if name.endswith(".json"))
    entries = [json.loads(line) for line in manifest.rstrip("\n").split("\n")]
    paths = [entry["audio_filepath"].rsplit(".", 1)[0] for entry in entries]
    names = [path.rsplit("/", 1)[-1] for path in paths]
    lines = beams.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    found = [(line.rpartition("\t")[0].split(), float(line.rpartition("\t")[2])) for line in lines]
    counts = [entry.get("num_hypotheses") for entry in entries]
    if None in counts:
        # one list, or one line each, or the scores fall within each list
        starts = [n for n, (_, score) in enumerate(found) if n and score > found[n - 1][1]]
        starts = {1: [], len(found): range(1, len(found))}.get(len(names), starts)
        counts = [b - a for a, b in itertools.pairwise([0, *starts, len(found)])]
        assert len(set(counts)) == 1
    assert sum(counts) == len(found) and len(counts) == len(names)
    keys = [
        (name, rank) for name, count in zip(names, counts, strict=True) for rank in range(count)
    ]
    return dict(zip(keys, found, strict=True))


def vosk_content(files):
    """Return {(utterance, rank from 0): (words, score or None)}."""
    content = {}
    for name, text in _texts(files):
        values, stem = _values(text), name.removesuffix(".json")
        for number, item in enumerate(values, 1):
            default = stem if len(values) == 1 else f"{stem}-{number:06d}"
            for rank, hyp in enumerate(item["alternatives"]):
                words = hyp["text"].split()
                content[item.get("utt", default), rank] = words, hyp.get("confidence")
    return content


def beams_content(files):
    """Return {(utterance, rank from 0): (words, acoustic score)}."""
    content = {}
    for name, text in _texts(files):
        number = 0
        for value in _values(text):
            items = value.items() if isinstance(value, dict) else [(None, value)]
            for key, rows in items:
                number += key is None
                utt = key if key is not None else f"{name.removesuffix('.json')}-{number:06d}"
                for rank, (hyp, *rest) in enumerate(rows):
                    content[utt, rank] = hyp.split(), rest[-2]
    return content


CONTENT = {
    "kaldi": kaldi_content,
    "espnet": espnet_content,
    "srilm": srilm_content,
    "jsonl": jsonl_content,
    "whisper": whisper_content,
    "nemo": nemo_content,
    "vosk": vosk_content,
    "beams": beams_content,
}
