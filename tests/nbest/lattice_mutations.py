"""Valid files of lattices, and plain readers that say which paths are left in damaged ones."""

import gzip
import math

from nbest_mutations import PIECES, packed

PIECES += [
    *[b"J=9 S=0 E=3 W=x a=-1 l=-1", b"W=", b"=", b"S=3 E=0", b"a=1e308", b"base=2 ", b"base=0 "],
    *[b"-1e10", b"-4.9e9", b"-Inf", b"l=-inf", b"Infinity,", b"1e10,"],
    *[b"0 3 x 1,1,\n", b"3 0 x 1,1,\n", b"4\n", b",,", b"\\", b"'", b"\n\nz\n0 1 a\n1\n"],
]

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
KALDI = {
    "lat.1.ark": "a-1 \n0 1 well 10.5,9.25,1_1_2\n0 2 i'm 1e1,-3,\n1 2 <eps> .5,7.,3\n"
    "2 3 3 0,0,4\n2 1.5,0.25,\n3 1,1,9\n\nb_01 \n5 2 x 1,2,\n5 2 x-1 1,3,\n2\n\n",
    "lat.2.ark": "é\n0 1 yes\n1 0,0,\n\n",
    "lat.3.ark": "zero\r\n0 1 yes 1,inf,\r\n0 2 no 1,2,\r\n1 0,0,\r\n2\r\n"
    "3 Infinity,Infinity,\r\n2 3 no 1e10,0,3\r\n\r\n",
}


KINDS = {
    f"{format}{kind}": (format, make({name: text.encode() for name, text in files.items()}))
    for format, files in (("htk", HTK), ("kaldi_lattice", KALDI))
    for kind, make in (("", dict), (" packed", packed))
}
"""{name: (format, {file: bytes})}."""

SILENT = {
    "",
    "!NULL",
    "!SENT_START",
    "!SENT_END",
    "!ENTER",
    "!EXIT",
    "<eps>",
    "<s>",
    "</s>",
    "-pau-",
}


def _lines(data, name):
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode("utf-8-sig")
    return text.split("\n")


def _paths(arcs, start, end):
    """Return the sorted (words, acoustic score, LM score) of all paths without a log of zero."""
    arcs, found = [arc for arc in arcs if min(arc[3:]) > -5e9], []

    def walk(node, words, am, lm):
        if node == end:
            found.append((words, am, lm))
        for source, target, label, a, b in arcs:
            if source == node:
                walk(target, words if label in SILENT else (*words, label), am + a, lm + b)

    walk(start, (), 0.0, 0.0)
    return sorted(found)


def _slf_fields(line):
    """Yield (key, value) of a line, character by character."""
    line = line.strip()
    while line:
        key, _, rest = line.partition("=")
        value, quote = "", ""
        if rest[:1] in ("'", '"') and _closed(rest):
            quote, rest = rest[0], rest[1:]
        raw = bytearray()
        while rest and (rest[0] != quote if quote else not rest[0].isspace()):
            if rest[0] == "\\" and len(rest) > 1 and (quote or not rest[1].isspace()):
                octal = rest[1:4]
                if len(octal) == 3 and set(octal) <= set("01234567"):
                    raw.append(int(octal, 8) & 0xFF)
                    rest = rest[4:]
                    continue
                rest = rest[1:]
            raw += rest[0].encode()
            rest = rest[1:]
        value = raw.decode()
        yield key.strip(), value
        line = (rest[1:] if quote else rest).strip()


def _closed(text):
    """Return whether a quotation that the text begins with ends before white space."""
    position = 1
    while position < len(text) and text[position] != text[0]:
        position += 2 if text[position] == "\\" else 1
    return position < len(text) and (text[position + 1 : position + 2] or " ").isspace()


def htk_content(files):
    """Return {utterance: its paths}."""
    content = {}
    for name, data in files.items():
        header, nodes, arcs = {}, {}, []
        for line in _lines(data, name):
            fields = {} if line.startswith("#") else dict(_slf_fields(line))
            if "I" in fields:
                nodes[int(fields["I"])] = fields.get("W")
            elif "J" in fields:
                arcs.append(fields)
            else:
                header |= fields
        base = float(header.get("base", math.e))

        def log(text, base=base):
            if base == 0:
                return math.log(float(text)) if float(text) else -math.inf
            return float(text) * math.log(base)

        links = [
            (
                int(f["S"]),
                int(f["E"]),
                f["W"] if "W" in f else nodes[int(f["E"])],
                log(f.get("a", "1" if not base else "0")),
                log(f.get("l", "1" if not base else "0")),
            )
            for f in arcs
        ]
        (start,) = (
            {int(header["start"])} if "start" in header else set(nodes) - {a[1] for a in links}
        )
        (end,) = {int(header["end"])} if "end" in header else set(nodes) - {a[0] for a in links}
        if nodes[start] is not None:
            links.append((-1, start, nodes[start], 0.0, 0.0))
            start = -1
        utt = name.removesuffix(".gz").rsplit(".", 1)[0]
        assert utt not in content
        content[utt] = _paths(links, start, end)
    return content


def kaldi_content(files):
    """Return {utterance: its paths}."""
    content = {}
    for name, data in files.items():
        utt, arcs = None, []
        for line in [*_lines(data, name), ""]:
            fields = line.split()
            if not fields and utt is not None:
                content[utt] = _paths(arcs, arcs[0][0], "end")
                utt = None
            elif fields and utt is None:
                (utt,) = fields
                assert utt not in content
                arcs = []
            elif fields:
                arc = len(fields) > 2
                weight = fields[3 if arc else 1 :] or ["0,0,"]
                lm, am, _ = weight[0].split(",")
                target, label = (int(fields[1]), fields[2]) if arc else ("end", "")
                label = "" if label == "<eps>" else label
                arcs.append((int(fields[0]), target, label, -float(am), -float(lm)))
    return content


CONTENT = {"htk": htk_content, "kaldi_lattice": kaldi_content}
