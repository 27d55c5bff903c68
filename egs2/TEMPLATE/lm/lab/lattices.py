"""Lattices to N-best archives, by Kaldi's programs.

As Kaldi's rnnlm/lmrescore_nbest.sh: the best paths are taken out, then the first-pass LM's cost
is taken off them, so that the graph's cost is known without and with it.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, Optional, Sequence

from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_write, keyed_lines

PROGRAMS = ("lattice-to-nbest", "nbest-to-linear")
FST_PROGRAMS = ("lattice-scale", "lattice-compose", "lattice-1best", "fstproject")
CARPA_PROGRAMS = ("lattice-lmrescore-const-arpa",)


@dataclass(frozen=True)
class Decoding:
    """Decoding of the lattices, and the search for N-best lists in them.

    Attributes:
        lang: Kaldi's lang folder: words.txt, G.carpa (which comes first, as in Kaldi) or G.fst.
        num_best: Hypotheses of an utterance, at most.
        acoustic_scale: Of the acoustic costs while the best paths are looked for.
        num_jobs: Archives worked on at the same time.
    """

    lang: Optional[Path]
    num_best: int = 20
    acoustic_scale: float = 0.1
    num_jobs: int = 1

    def __post_init__(self) -> None:
        for name, value in (("num_best", self.num_best), ("nj", self.num_jobs)):
            if value < 1:
                raise InputError(f"--{name} {value}: expected a number from 1 on")
        if not 0 < self.acoustic_scale < float("inf"):
            raise InputError(f"--acoustic_scale {self.acoustic_scale}: expected a positive number")


def linear_lists(lattices: Sequence[Path], decoding: Decoding, work: Path) -> None:
    """Write archives.1 ... of the best paths of lattices into the folder `work`.

    Args:
        lattices: lat.1.gz, ...
        decoding: Decoding of the lattices.
        work: An empty folder.

    Raises:
        InputError: Kaldi or the lang folder is missing, or a program fails.
    """
    grammar = _find_grammar(decoding.lang, lattices[0].parent)
    _need_programs(grammar, lattices[0])
    assert decoding.lang is not None
    symbols = read_symbols(decoding.lang / "words.txt")
    if grammar.name == "G.fst":
        grammar = _project(grammar, work / "G.fst")

    def make(number: int, lattice: Path) -> None:
        part = work / f"archives.{number}"
        part.mkdir()
        _take_apart(lattice, grammar, decoding, part)
        with atomic_write(part / "words_text") as f:
            f.writelines(f"{line}\n" for line in _spelt(part / "words", symbols))

    with (
        ThreadPoolExecutor(decoding.num_jobs) as pool,
        progress(desc=lattices[0].parent.name, unit="lat", total=len(lattices)) as bar,
    ):
        for _ in pool.map(make, range(1, len(lattices) + 1), lattices):
            bar.update()


def _find_grammar(lang: Optional[Path], lattices: Path) -> Path:
    """First-pass LM's file in a lang folder."""
    remedy = "Give the lang folder that the lattices were decoded with (--lang, or NBEST_LANG)."
    if lang is None:
        raise InputError(
            "holds lattices, and no lang folder is given", path=lattices, remedy=remedy
        )
    if not (lang / "words.txt").is_file():
        raise InputError("words.txt is not there", path=lang, remedy=remedy)
    for name in ("G.carpa", "G.fst"):
        if (lang / name).is_file():
            return lang / name
    raise InputError(
        "neither G.carpa nor G.fst is there: the first-pass LM's cost cannot be told from the"
        " graph's",
        path=lang,
        remedy=remedy,
    )


def _need_programs(grammar: Path, lattice: Path) -> None:
    """Check that the programs are on the PATH."""
    programs = CARPA_PROGRAMS if grammar.suffix == ".carpa" else FST_PROGRAMS
    missing = [name for name in (*PROGRAMS, *programs) if shutil.which(name) is None]
    if missing:
        raise InputError(
            f"lattices need Kaldi's programs, and {', '.join(missing)} is not on the PATH",
            path=lattice,
            remedy="Install Kaldi and source its path.sh, or make N-best archives where it is"
            " (rnnlm/lmrescore_nbest.sh writes archives.1, ...) and give those.",
        )


def _project(grammar: Path, output: Path) -> Path:
    """Write the projection of G.fst on its words: its input side has the back-off symbol."""
    # OpenFst renamed the option
    for option in ("--project_type=output", "--project_output=true"):
        command = ["fstproject", option, str(grammar), str(output)]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if result.returncode == 0:
            return output
    raise _failed(command, result.stderr, grammar)


def _take_apart(lattice: Path, grammar: Path, decoding: Decoding, part: Path) -> None:
    """Write words (as numbers), acwt, lmwt.nolm and lmwt.withlm of a lattice archive."""
    with tempfile.TemporaryDirectory(dir=part) as folder:
        paths, bare = f"ark:{folder}/with", f"ark:{folder}/without"
        nbest = ["lattice-to-nbest", f"--acoustic-scale={decoding.acoustic_scale:g}"]
        _run([*nbest, f"--n={decoding.num_best}", "ark:-", paths], lattice, _unpacked(lattice))
        if grammar.suffix == ".carpa":
            rescore = ["lattice-lmrescore-const-arpa", "--lm-scale=-1.0"]
            _run([*rescore, paths, str(grammar), bare], lattice)
        else:
            # the best path through the LM is that of the highest cost once signs are changed
            scale = ["lattice-scale", "--acoustic-scale=-1", "--lm-scale=-1"]
            scaled, composed, best = (f"ark:{folder}/{n}" for n in range(3))
            _run([*scale, paths, scaled], lattice)
            _run(["lattice-compose", scaled, str(grammar), composed], lattice)
            _run(["lattice-1best", composed, best], lattice)
            _run([*scale, best, bare], lattice)
        none = "ark:/dev/null"
        columns = [f"ark,t:{part / name}" for name in ("words", "lmwt.nolm", "acwt")]
        _run(["nbest-to-linear", bare, none, *columns], lattice)
        graph = f"ark,t:{part / 'lmwt.withlm'}"
        _run(["nbest-to-linear", paths, none, none, graph, none], lattice)


def _unpacked(lattice: Path) -> bytes:
    """Content of a lattice archive."""
    try:
        return gzip.decompress(lattice.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"gzip failed: {error}", path=lattice) from error


def _run(command: Sequence[str], lattice: Path, content: bytes = b"") -> None:
    """Run a program on some input.

    Raises:
        InputError: It fails; the error has the last lines that it wrote.
    """
    result = subprocess.run(command, input=content, capture_output=True)
    if result.returncode:
        raise _failed(command, result.stderr.decode(errors="replace"), lattice)


def _failed(command: Sequence[str], said: str, path: Path) -> InputError:
    """Error of a program that failed."""
    last = " | ".join(said.strip().splitlines()[-3:]) or "it wrote no message"
    return InputError(f"{command[0]} failed: {last[:500]}", path=path)


def read_symbols(path: Path) -> Dict[str, str]:
    """{number: word} of Kaldi's words.txt.

    Raises:
        InputError: A line is not `word number`, or there is none.
    """
    symbols = {}
    for line, word, number in keyed_lines(path):
        if not number.isdecimal():
            raise InputError(f"expected `word number`, got {number!r}", path=path, line=line)
        symbols[number] = word
    if not symbols:
        raise InputError("no words", path=path)
    return symbols


def _spelt(path: Path, symbols: Dict[str, str]) -> Iterator[str]:
    """Lines of an archive of numbers, in words."""
    for line, key, numbers in keyed_lines(path):
        words = [symbols.get(number, "") for number in numbers.split()]
        if "" in words:
            raise InputError(
                f"the word {numbers.split()[words.index('')]} of {key} is not in words.txt",
                path=path,
                line=line,
                remedy="Is it the lang folder that the lattices were decoded with?",
            )
        yield " ".join([key, *words])
