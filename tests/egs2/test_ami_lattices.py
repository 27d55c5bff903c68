"""Lattices of Kaldi as N-best lists of the AMI recipe, with stand-ins for Kaldi's programs."""

import gzip
import os
import shutil
import sys

import pytest
from recipe_scripts import write

from espnet_bayeslm.nbest.kaldi import read_kaldi
from lab import lists

# Stands in for Kaldi's programs. A path is a line `key word,word graph_cost acoustic_cost`, the
# grammar a cost for each word; a call is noted in $CALLS.
KALDI = """#!{python} -IS
import os, sys
name = os.path.basename(sys.argv[0])
options = dict(a[2:].split("=", 1) for a in sys.argv[1:] if a.startswith("--"))
args = [a for a in sys.argv[1:] if not a.startswith("--")]
with open(os.environ["CALLS"], "a") as f:
    f.write(" ".join([name, *sys.argv[1:]]) + "\\n")
def read(spec):
    path = spec.removeprefix("ark:")
    f = sys.stdin if path == "-" else open(path)
    return [line.split() for line in f]
def write(spec, lines):
    path = spec.split(":", 1)[1]
    f = sys.stdout if path == "-" else open(path, "w")
    f.writelines(" ".join(map(str, line)) + "\\n" for line in lines)
if name == "fstproject":
    if "project_type" in options:
        sys.exit("unknown option --project_type")
    open(args[1], "w").write(open(args[0]).read())
    sys.exit()
lines = read(args[0])
if any(line[0] == "BROKEN" for line in lines):
    print("ERROR (bad lattice)", file=sys.stderr)
    sys.exit(255)
split = [(k, [w for w in words.split(",") if w], float(g), float(a)) for k, words, g, a in lines]
def join(paths):
    return [(k, ",".join(w) + ",", g, a) for k, w, g, a in paths]
if name == "lattice-to-nbest":
    best, counts = [], {{}}
    for k, w, g, a in split:
        counts[k] = counts.get(k, 0) + 1
        if counts[k] <= int(options["n"]):
            best.append((f"{{k}}-{{counts[k]}}", w, g, a))
    write(args[1], join(best))
elif name == "lattice-scale":
    lm, ac = float(options["lm-scale"]), float(options["acoustic-scale"])
    write(args[1], join([(k, w, g * lm, a * ac) for k, w, g, a in split]))
elif name == "lattice-1best":
    write(args[1], join(split))
elif name in ("lattice-compose", "lattice-lmrescore-const-arpa"):
    cost = float(open(args[1]).read()) * float(options.get("lm-scale", 1))
    write(args[2], join([(k, w, g + cost * len(w), a) for k, w, g, a in split]))
elif name == "nbest-to-linear":
    for spec, column in zip(args[2:], ("words", "graph", "ac")):
        if spec != "ark:/dev/null":
            assert spec.startswith("ark,t:")
            write(spec, [(k, *(w if column == "words" else [g if column == "graph" else a]))
                         for k, w, g, a in split])
"""
PROGRAMS = [
    *("lattice-to-nbest", "nbest-to-linear", "lattice-scale", "lattice-compose", "lattice-1best"),
    *("fstproject", "lattice-lmrescore-const-arpa"),
]


@pytest.fixture
def kaldi(tmp_path, monkeypatch):
    """Put stand-ins on the PATH; return the file of their calls."""
    for name in PROGRAMS:
        program = write(tmp_path / "bin" / name, KALDI.format(python=sys.executable))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.fixture
def lattices(tmp_path):
    """Return Kaldi decode folders of one condition, with a lang folder beside them."""
    for name in ("dev", "eval"):
        folder = tmp_path / "decodes" / f"decode_{name}_ihm"
        folder.mkdir(parents=True)
        for job in (1, 2):
            lines = [f"{name}_U{job} {words} {graph} 70.5" for words, graph in
                     (("1,2", 9.5), ("1,", 6), (",", 2.25))]  # fmt: skip
            (folder / f"lat.{job}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        write(folder / "text", f"{name}_U1 yes NO\n{name}_U2 yes\n")
    write(tmp_path / "lang" / "words.txt", "<eps> 0\nYES 1\nno 2\n#0 3\n")
    write(tmp_path / "lang" / "G.fst", "2.0")
    return tmp_path / "decodes"


@pytest.mark.parametrize("grammar", ["G.fst", "G.carpa"])
def test_lattices_become_archives(lattices, kaldi, tmp_path, grammar):
    lang = tmp_path / "lang"
    shutil.move(lang / "G.fst", lang / grammar)
    output = tmp_path / "out"
    lists.main(["--nbest", str(lattices), "--output", str(output), "--lang", str(lang),
                "--num_best", "2", "--acoustic_scale", "0.125"])  # fmt: skip
    assert sorted(path.name for path in output.iterdir()) == ["conditions", "dev_ihm", "eval_ihm"]
    found = {item.utt: item.hypotheses for item in read_kaldi(output / "dev_ihm")}
    assert list(found) == ["dev_U1", "dev_U2"]
    first, second = found["dev_U2"]
    assert (first.words, second.words) == (("yes", "no"), ("yes",))
    # the LM costs 2 a word, which is taken off the graph's cost
    assert (first.am_score, first.graph_score, first.lm_score) == (-70.5, -5.5, -4)
    assert (second.graph_score, second.lm_score) == (-4, -2)
    assert (output / "eval_ihm" / "text").read_text() == "eval_U1 yes no\neval_U2 yes\n"
    calls = kaldi.read_text().splitlines()
    assert all("--acoustic-scale=0.125 --n=2 " in c for c in calls if c.startswith("lattice-to-n"))
    # an older OpenFst's option where the newer one is unknown
    assert any("--project_output=true" in c for c in calls) == (grammar == "G.fst")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda lang, d: (lang / "words.txt").unlink(), "words.txt is not there"),
        (lambda lang, d: (lang / "G.fst").unlink(), "neither G.carpa nor G.fst"),
        (lambda lang, d: write(lang / "words.txt", "YES 1\n"), "the word 2 of dev_U1-1 is not in"),
        (lambda lang, d: write(lang / "words.txt", "YES x\n"), "words.txt:1"),
        (lambda lang, d: (d / "lat.1.gz").unlink(), "lat.1.gz is missing"),
        (lambda lang, d: (d / "lat.2.gz").write_text("x"), "lat.2.gz: gzip failed"),
        (
            lambda lang, d: (d / "lat.2.gz").write_bytes(gzip.compress(b"BROKEN , 1 1\n")),
            "lat.2.gz: lattice-to-nbest failed: ERROR (bad lattice)",
        ),
    ],
)
def test_lattices_that_cannot_be_used(lattices, kaldi, tmp_path, refused, change, said):
    change(tmp_path / "lang", lattices / "decode_dev_ihm")
    assert said in refused(lattices, "--lang", tmp_path / "lang")


def test_lattices_need_kaldi_and_its_lang_folder(lattices, tmp_path, refused, monkeypatch):
    assert "no lang folder is given" in refused(lattices)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gzip").symlink_to(shutil.which("gzip"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    said = refused(lattices, "--lang", tmp_path / "lang")
    assert "lattice-to-nbest" in said and "nbest-to-linear" in said and "gzip" not in said
    assert "Install Kaldi" in said
