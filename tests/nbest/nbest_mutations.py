"""Hypotheses, valid files of lists and lattices of every format, and random damage to them."""

import gzip
import itertools

from espnet_bayeslm.nbest.types import Hypothesis

# Whatever a mutation may put into a file
PIECES = [
    *[b"nan", b"NaN", b"-Infinity", b"inf", b"1e999", b"-1e-999", b"1_0", b"0x1F", b"+.5e+1"],
    *[b"\n", b"\n\n", b"\r\n", b"\r", b"\0", b"\t", b" ", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8"],
    *[b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xff\xfe", b"-", b"-1", b"-0", b"-01", b"-999999999999"],
    *["\u0661\u0662".encode(), "é".encode(), "\U0001f600".encode(), b"<s>", b"</s>", b"-pau-"],
    *[b"NBestList1.0\n", b"NBestList2.0\n", b"(-513) ", b"tensor(", b")", b"tensor(nan)"],
    *[b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"\\ud800", b"\\"],
    *[b"J=9 S=0 E=3 W=x a=-1 l=-1", b"W=", b"=", b"S=3 E=0", b"a=1e308", b"base=2 ", b"base=0 "],
    *[b"-1e10", b"-4.9e9", b"-Inf", b"l=-inf", b"Infinity,", b"1e10,"],
    *[b"0 3 x 1,1,\n", b"3 0 x 1,1,\n", b"4\n", b",,", b"\\", b"'", b"\n\nz\n0 1 a\n1\n"],
    b'"utt": "x",',
    b"[" * 3000,
    b"9" * 5000,
]

KALDI = {
    "words_text": "a-1-1 well i'm 3\na-1-2\na-1-3 ü\na-1 x\na-2 x-1 yes\né-1 -1\n",
    "acwt": "a-1-1 10.5\na-1-2 1e1\na-1-3 -3\na-1 .5\na-2 7.\né-1 0\n",
    "lmwt.nolm": "a-1-1 0\na-1-2 0\na-1-3 1.5\na-1 2\na-2 0\né-1 0\n",
    "lmwt.withlm": "a-1-1 9.25\na-1-2 8\na-1-3 7\na-1 6\na-2 5\né-1 4\n",
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
HYPORADISE = {
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
NEMO_BEAMS = {
    "manifest.json": '{"audio_filepath": "a/a-1.wav", "text": "well", "pred_text": "well i\'m 3",'
    ' "beams": [["well i\'m 3", -10.5], ["", -11], ["ü", -1e1]]}\n'
    '{"audio_filepath": "b/é.wav", "pred_text": "x", "beams": [["x", 0.5]]}\n',
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


HTK = {
    "a-1.lat": "VERSION=1.0\nlmscale=2 wdpenalty=-.5\nstart=0\nend=3\nN=4 L=4\n"
    "I=0 t=0.0 W=!NULL\nI=1 t=.5 W=well\nI=2 t=0.75 W=i'm\nI=3 t=1e0 W=!NULL\n"
    "J=0 S=0 E=1 a=-10.5 l=-1\nJ=1 S=0 E=2 a=-3 l=-2.5\nJ=2 S=1 E=2 a=-1e1 l=0\n"
    "J=3 S=2 E=3 a=.25 l=-7.\n",
    "zero.lat": "start=0 end=2\r\nN=4 L=4\r\nI=0\r\nI=1\r\nI=2\r\nI=3\r\n"
    "J=0 S=0 E=1 W=red a=-1 l=-.5\r\nJ=1 S=1 E=2 W=kite a=-2 l=-.7\r\n"
    "J=2 S=1 E=3 W=zoo a=-2 l=-inf\r\nJ=3 S=3 E=2 W=!NULL a=-1e10 l=0",
    "b_01.slf": "# on links\nbase=10\nI=0\nI=1\nI=2\n"
    'J=0 S=0 E=1 W="x" a=-1 l=-1\nJ=1 S=0 E=1 W=x-1 a=-1.5 l=-.5\nJ=2 S=1 E=2 W=!NULL a=0 l=0\n',
    "é.htk": "start=5 end=4\nI=4 W=é\nI=5 W=3\nJ=0 S=5 E=4 a=-2 l=-3\n",
}
KALDI_LATTICE = {
    "lat.1.ark": "a-1 \n0 1 well 10.5,9.25,1_1_2\n0 2 i'm 1e1,-3,\n1 2 <eps> .5,7.,3\n"
    "2 3 3 0,0,4\n2 1.5,0.25,\n3 1,1,9\n\nb_01 \n5 2 x 1,2,\n5 2 x-1 1,3,\n2\n\n",
    "lat.2.ark": "é\n0 1 yes\n1 0,0,\n\n",
    "lat.3.ark": "zero\r\n0 1 yes 1,inf,\r\n0 2 no 1,2,\r\n1 0,0,\r\n2\r\n"
    "3 Infinity,Infinity,\r\n2 3 no 1e10,0,3\r\n\r\n",
}


def hyp(text, *scores, **fields):
    return Hypothesis(tuple(text.split()), *scores, **fields)


def packed(files, suffix=".gz", compress=lambda content: gzip.compress(content, mtime=0)):
    return {f"{name}{suffix}": compress(content) for name, content in files.items()}


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


def _kinds(texts):
    """{name: (format, {file: bytes})}, each format's files as they stand and packed."""
    kinds = {}
    for format, files in texts.items():
        plain = {name: content.encode() for name, content in files.items()}
        kinds[format] = format, plain
        kinds[f"{format} packed"] = format, packed(split(plain) if format == "kaldi" else plain)
    return kinds


KINDS = _kinds(
    {
        **{"kaldi": KALDI, "espnet": ESPNET, "srilm": SRILM, "jsonl": JSONL},
        **{"hyporadise": HYPORADISE, "nemo": NEMO, "vosk": VOSK, "beams": BEAMS},
        **{"htk": HTK, "kaldi_lattice": KALDI_LATTICE},
    }
)
KINDS["nemo uneven"] = "nemo", {name: text.encode() for name, text in NEMO_UNEVEN.items()}
KINDS["nemo beams"] = "nemo", {name: text.encode() for name, text in NEMO_BEAMS.items()}
KINDS["kaldi split"] = "kaldi", split(KINDS["kaldi"][1])


def _join(rng, lines):
    i = rng.randrange(len(lines))
    return [*lines[:i], lines[i].rstrip(b"\n"), *lines[i + 1 :]]


LINES = {
    "shuffle lines": lambda rng, lines: rng.sample(lines, len(lines)),
    "drop lines": lambda rng, lines: rng.sample(lines, rng.randrange(len(lines))),
    "double a line": lambda rng, lines: [*lines, rng.choice(lines)],
    "join lines": _join,
    "empty line": lambda rng, lines: [*lines, b"\n"],
    "crlf": lambda rng, lines: [line.replace(b"\n", b"\r\n") for line in lines],
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
    "mark": lambda rng, data: b"\xef\xbb\xbf" + data,
    "utf-16": lambda rng, data: data.decode("utf-8", "replace").encode("utf-16"),
    "noise": lambda rng, data: _at(rng, data, 0, rng.randbytes(rng.choice([1, 4, 40]))),
    "end": lambda rng, data: data.rstrip(b"\n"),
    "empty": lambda rng, data: b"",
}


def damage(rng, data):
    """Return the name of a mutation and what it makes of a text."""
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
