"""Kaldi N-best archives: a folder of text files with the keys `<utt>-<n>`, n from 1, costs (-ln).

`words_text` holds the words, `acwt` the acoustic cost; `lmwt.nolm` and `lmwt.withlm`, where they
are there, the graph cost without and with the first-pass LM, whose cost is the difference.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Tuple

from espnet_bayeslm.rescoring.nbest import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_keyed_lines

KEY = re.compile(r"(.+)-([1-9][0-9]*)", re.ASCII)
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", re.ASCII)
Entries = Dict[str, Tuple[int, str]]


def key_of(utt: str, rank: int) -> str:
    """Return the key of the hypothesis `rank` (from 1)."""
    return f"{utt}-{rank}"


def read_kaldi(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a folder, in the order of their first lines in `words_text`.

    Raises:
        InputError: A line, a key or a score that cannot be used (file, line, remedy).
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError("not a folder of Kaldi N-best archives", path=folder)
    text = read_keyed_lines(folder / "words_text")
    if not text:
        raise InputError("no hypotheses", path=folder / "words_text")
    ranks = _ranks(folder / "words_text", text)
    acoustic = _read_costs(folder / "acwt", text)
    nolm, withlm = _read_graph_costs(folder, text)
    _check_ranks(folder / "words_text", text, ranks=ranks)
    for utt, keys in ranks.items():
        hypotheses = []
        for _, key in sorted(keys.items()):
            graph, both = nolm.get(key), withlm.get(key)
            hypotheses.append(
                Hypothesis(
                    words=tuple(text[key][1].split()),
                    am_score=-acoustic[key],
                    lm_score=None if both is None or graph is None else graph - both,
                    graph_score=None if graph is None else -graph,
                )
            )
        yield NBest(utt, tuple(hypotheses))


def _read_graph_costs(folder: Path, text: Entries) -> Tuple[Dict[str, float], Dict[str, float]]:
    """Return the costs of `lmwt.nolm` and `lmwt.withlm`, empty where the files are not there."""
    nolm, withlm = folder / "lmwt.nolm", folder / "lmwt.withlm"
    if withlm.exists() and not nolm.exists():
        raise InputError(
            f"missing, and {withlm.name} alone does not tell the LM's cost from the graph's",
            path=nolm,
            remedy="Write both, or neither.",
        )
    return (
        _read_costs(nolm, text) if nolm.exists() else {},
        _read_costs(withlm, text) if withlm.exists() else {},
    )


def _read_costs(path: Path, text: Entries) -> Dict[str, float]:
    """Return {key: cost} of a file that must have the keys of `words_text`."""
    entries = read_keyed_lines(path)
    for missing, where, other, source in (
        ([key for key in text if key not in entries], path, "words_text", text),
        (
            [key for key in entries if key not in text],
            path.parent / "words_text",
            path.name,
            entries,
        ),
    ):
        if missing:
            raise InputError(
                f"{len(missing)} of the {len(source)} keys of {other} are missing, the first"
                f" {missing[0]!r} ({other}:{source[missing[0]][0]})",
                path=where,
                remedy="All files of an archive must have the same keys; write them anew together.",
            )
    return {key: _cost(value, path, line) for key, (line, value) in entries.items()}


def _cost(value: str, path: Path, line: int) -> float:
    """Return the number that a line holds."""
    problem = ""
    if NUMBER.fullmatch(value):
        cost = float(value)
        problem = "" if math.isfinite(cost) else "is too large a number"
    elif value.lower().lstrip("+-") in ("inf", "infinity", "nan"):
        problem = "is not a finite number"
    else:
        problem = "stands where one number was expected"
    if problem:
        raise InputError(
            f"{value[:80]!r} {problem}",
            path=path,
            line=line,
            remedy="Lines are `utterance-n cost`.",
        )
    return cost


def _ranks(path: Path, text: Entries) -> Dict[str, Dict[int, str]]:
    """Return {utterance: {rank: key}}."""
    ranks: Dict[str, Dict[int, str]] = {}
    for key, (line, _) in text.items():
        match = KEY.fullmatch(key)
        if not match:
            raise InputError(
                f"the key {key!r} is not of the form `utterance-n` with n from 1",
                path=path,
                line=line,
                remedy="Kaldi's N-best keys end in -1, -2, ...; is this a plain `text`?",
            )
        ranks.setdefault(match[1], {})[int(match[2])] = key
    return ranks


def _check_ranks(path: Path, text: Entries, *, ranks: Dict[str, Dict[int, str]]) -> None:
    """Check that each utterance's ranks go from 1 to N."""
    for utt, keys in ranks.items():
        if max(keys) != len(keys):
            gap = next(n for n in range(1, len(keys) + 1) if n not in keys)
            raise InputError(
                f"the hypothesis {key_of(utt, gap)!r} is missing, {len(keys)} others of its"
                f" utterance are there, up to {keys[max(keys)]!r}",
                path=path,
                line=text[keys[max(keys)]][0],
                remedy="Ranks must go from 1 to N without gaps: was the file cut or filtered?",
            )


def write_kaldi(nbests: Iterable[NBest], folder: Path) -> None:
    """Write the archives of N-best lists; reading them gives the same lists.

    Args:
        nbests: The lists; all hypotheses have the same kinds of scores.
        folder: An existing folder.

    Raises:
        ValueError: Some hypotheses have an LM or a graph score, and some have not.
    """
    columns: Dict[str, List[str]] = {}
    num_hypotheses = 0
    for nbest in nbests:
        for rank, hyp in enumerate(nbest.hypotheses, 1):
            key = key_of(nbest.utt, rank)
            num_hypotheses += 1
            for name, value in _columns(hyp).items():
                columns.setdefault(name, []).append(f"{key} {value}".rstrip())
    for name, lines in columns.items():
        if len(lines) != num_hypotheses:
            raise ValueError(f"{len(lines)} of {num_hypotheses} hypotheses have a cost {name}")
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _columns(hyp: Hypothesis) -> Dict[str, str]:
    """Return {file name: what stands there for the hypothesis}."""
    values = {"words_text": " ".join(hyp.words), "acwt": _number(0.0 - hyp.am_score)}
    if hyp.graph_score is not None or hyp.lm_score is not None:
        graph_cost = 0.0 - (hyp.graph_score or 0.0)
        values["lmwt.nolm"] = _number(graph_cost)
        if hyp.lm_score is not None:
            values["lmwt.withlm"] = _sum_cost(graph_cost, hyp.lm_score)
    return values


def _number(value: float) -> str:
    """Return a number in few digits where they are exact."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


def _sum_cost(graph_cost: float, lm_score: float) -> str:
    """Return graph + LM cost, in few digits where the difference still gives the LM cost back."""
    cost = graph_cost - lm_score
    short = f"{cost:.12g}"
    return short if graph_cost - float(short) == lm_score else repr(cost)


def write_costs(path: Path, costs: Iterable[Tuple[str, Iterable[float]]]) -> None:
    """Write lines `key cost [cost ...]`.

    Args:
        path: The file.
        costs: Keys and their costs (-ln).
    """
    with open(path, "w", encoding="utf-8") as f:
        for key, values in costs:
            f.write(" ".join([key, *(f"{value:.6f}" for value in values)]) + "\n")
