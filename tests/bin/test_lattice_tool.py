"""`bayeslm lattice`: N best, 1-best, oracle and rescored lattices on disk."""

import dataclasses
import math

import numpy as np
import pytest
from oracles.alignments import edit_distance
from oracles.lattice_paths import all_paths, random_lattice, write_htk, write_kaldi_lattices
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import rescore
from espnet_bayeslm.bin.lattice import MAX_HYPS, PRUNE, LatticeOptions, main
from espnet_bayeslm.evaluation import bias_lists
from espnet_bayeslm.evaluation.bias_lists import read_bias
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.nbest.htk import read_htk
from espnet_bayeslm.nbest.lattice import PathScales, best_paths, kaldi_scales, nbest_list
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.errors import InputError

LATTICES = [random_lattice(np.random.default_rng(n), words="abcde", utt=f"u{n}") for n in range(8)]
SCALES = kaldi_scales(5.0, 0.5)
OPTIONS = {"lmwt": 5, "word_penalty": 0.5}
EXACT = {"beam": "inf", "prune": "inf", "write_lattices": "true"}


@pytest.fixture
def folder(tmp_path):
    """Return a folder with `lattices/` and `ref`."""
    write_htk(LATTICES, tmp_path / "lattices")
    (tmp_path / "ref").write_text("".join(f"u{n} a b{' c' * n}\n" for n in range(8)))
    return tmp_path


def rates(text):
    """Return {row: errors} of a printed table."""
    *table, line = text.splitlines()
    assert line.startswith("counted: words; normalisation ") and "tuned on none" in line
    rows = (line.split() for line in table[1:])
    return {name: sum(map(int, counts[:3])) for name, _, *counts in rows}


@pytest.mark.parametrize(
    "options, prune, max_hyps",
    [
        ({"ngrams": ["x.arpa"]}, PRUNE, MAX_HYPS),
        ({"beam": math.inf}, math.inf, 0),
        ({"max_hyps_per_node": 5, "prune": 3.0}, 3.0, 5),
    ],
)
def test_how_hypotheses_are_merged(options, prune, max_hyps):
    merging = LatticeOptions.of(lattices="x", output="y", **options).merging()
    assert (merging.prune, merging.max_hyps) == (prune, max_hyps)


def test_lists_text_and_word_errors_are_those_of_enumeration(folder, capsys):
    given = {"lattices": folder / "lattices", "ref": folder / "ref"}
    main(words(**given, output=folder / "out", **OPTIONS, nbest_size=7))
    lists = list(read_nbest(folder / "out" / "nbest", "jsonl"))
    assert lists == [nbest_list(lattice, 7, SCALES) for lattice in LATTICES]
    best, fewest = 0, 0
    for n, lattice in enumerate(LATTICES):
        paths = list(all_paths(lattice, SCALES))
        ref = ["a", "b", *"c" * n]
        best += edit_distance(ref, paths[0])
        fewest += min(edit_distance(ref, words) for words in paths)
    assert rates(capsys.readouterr().out) == {"1-best": best, "oracle": fewest}
    lines = [" ".join([item.utt, *item.hypotheses[0].words]) for item in lists]
    assert (folder / "out" / "text").read_text().splitlines() == lines
    files = list(folder.rglob("*"))
    main(words(**given, **OPTIONS, max_hyps_per_node=3))
    assert rates(capsys.readouterr().out) == {"1-best": best, "oracle": fewest}
    assert list(folder.rglob("*")) == files


@pytest.mark.parametrize(
    "format, write", [("htk", write_htk), ("kaldi_lattice", write_kaldi_lattices)]
)
def test_rescored_lattices_hold_the_scores_of_the_mixture(folder, point, ngram, format, write):
    write(LATTICES, folder / "given")
    lms = {"lm": point, "ngram": ngram, "weights": "0.6,0.4", **EXACT, **OPTIONS}
    given = {"lattices": folder / "given", "lattice_format": format, "output": folder / "out"}
    main(words(**given, **lms, merge_order=100, nbest_size=1000))
    scorers = [
        c.scorer for c in load_components(ComponentOptions(lms=[str(point)], ngrams=[str(ngram)]))
    ]
    for nbest, lattice in zip(read_nbest(folder / "out" / "nbest", "jsonl"), LATTICES, strict=True):
        assert {hyp.words for hyp in nbest.hypotheses} == set(all_paths(lattice))
        for hyp in nbest.hypotheses:
            first, second = (np.exp(s.word_scores([hyp.words])[0].log_probs) for s in scorers)
            assert hyp.lm_score == pytest.approx(np.log(0.6 * first + 0.4 * second).sum(), rel=1e-4)
    again = list(read_nbest(folder / "out" / "lattices", format, size=1))
    text = [line.split()[1:] for line in (folder / "out" / "text").read_text().splitlines()]
    assert len(again) == len(text) == 8
    if format == "htk":  # which holds the scales
        assert [list(nbest.hypotheses[0].words) for nbest in again] == text


BIAS = "a b\t2\nc\nD\nb a b\t3.5\n"


@pytest.mark.parametrize("has_lm", [False, True])
def test_bias_lists_give_the_totals_of_rescored_lists(folder, ngram, has_lm):
    """And the best path is that of all paths, rescored as a list."""
    (folder / "bias").write_text(BIAS)
    given = {"bias": folder / "bias", "bias_weight": 2.5, "normalize": "lower", **OPTIONS}
    with_lm = {"ngram": ngram} if has_lm else {}
    exact = {**EXACT, "merge_order": 100, "nbest_size": 10**5}
    output, lists = folder / "out", folder / "out" / "nbest"
    main(words(lattices=folder / "lattices", **given, **with_lm, **exact, output=output))
    by_utt = {nbest.utt: nbest for nbest in read_nbest(lists, "jsonl")}
    own = read_bias(folder / "bias", Normalization("lower")).shared
    again = {**given, "lmwt": 5.0, "ngrams": [str(ngram)]}
    found = list(espnet_bayeslm.rescore([*by_utt.values()], **again))
    for lattice, item in zip(LATTICES, found, strict=True):
        nbest = by_utt[item.nbest.utt]
        assert {hyp.words for hyp in nbest.hypotheses} == {*all_paths(lattice)}
        assert [hyp.extra["bias"] for hyp in nbest.hypotheses] == [
            own.total(hyp.words) for hyp in nbest.hypotheses
        ]
        # the LM of the list in place of that of the lattice
        totals = [
            hyp.am_score / 5 + hyp.graph_score + lm - 0.5 * len(hyp.words) + 2.5 * hyp.extra["bias"]
            for hyp, lm in zip(nbest.hypotheses, item.lm_scores, strict=True)
        ]
        assert totals == pytest.approx(item.totals.tolist(), abs=1e-4)
        if has_lm:
            assert item.best == 0
            assert [h.lm_score for h in nbest.hypotheses] == pytest.approx(item.lm_scores, abs=1e-4)
    text = [line.split()[1:] for line in (output / "text").read_text().splitlines()]
    assert text == [list(by_utt[item.utt].hypotheses[0].words) for item in LATTICES]


def test_bias_lists_that_do_not_fit(folder, fails, caplog, monkeypatch):
    given = {"lattices": folder / "lattices", "output": folder / "out"}
    path = folder / "bias"
    path.write_text('{"utt": "u9", "words": ["a"]}\n')
    text = fails(main, words(**given, bias=path))
    assert "none of its 1 utterances (first: 'u9') is among the 8 that are read" in text
    path.write_text("a\tmuch\n")
    assert "the weight 'much' of 'a' is no number" in fails(main, words(**given, bias=path))
    path.write_bytes("caf\u00e9".encode("latin-1"))
    assert "bias" in fails(main, words(**given, bias=path))
    path.write_text("a\nb\nc\nd\n")
    monkeypatch.setattr(bias_lists, "FEWEST_COMMON", 1)
    main(words(**given, bias=path))
    assert "4 phrases of the bias lists are one letter" in caplog.text
    assert "they bias every sentence" in caplog.text
    path.write_text("")  # an empty list is none
    main(words(**given, bias=path))


def test_different_scales_are_refused(folder, fails, ngram):
    for n, item in enumerate(LATTICES[:2]):
        write_htk([dataclasses.replace(item, scales=PathScales(lm=n + 5.0))], folder / f"{n}")
    (folder / "1" / "u1.lat").rename(folder / "0" / "u1.lat")
    given = {"nbest": folder / "0", "nbest_format": "htk", "ngram": ngram, "output": folder / "out"}
    assert "0: lattices with different scales: 'u0' has am_score 1, log_prob 5" in fails(
        rescore.main, words(**given)
    )
    assert "--word_penalty without --lmwt" in fails(rescore.main, words(**given, word_penalty=1))
    rescore.main(words(**given, lmwt=7))


def test_rescoring_in_steps_with_pruning(folder, ngram):
    """What an n-gram has rescored is pruned by these scores."""
    first, second = folder / "first", folder / "second"
    main(words(lattices=folder / "lattices", output=first, **OPTIONS, ngram=ngram, **EXACT))
    again = {"lattices": first / "lattices", "write_lattices": "true", "ref": folder / "ref"}
    main(words(**again, output=second, **OPTIONS, prune=0))
    scorer = NgramScorer(ngram)
    for item, lattice in zip(read_htk(second / "lattices"), LATTICES, strict=True):
        (path,) = best_paths(item, SCALES, 5)
        assert path.lm_score == pytest.approx(scorer.word_scores([path.words])[0].log_probs.sum())
        assert path.words in all_paths(lattice)
    assert (first / "text").read_text() == (second / "text").read_text()


@pytest.mark.parametrize(
    "scales, num_scores",
    [
        (PathScales(), 2),
        (PathScales(1.0, 12.0, 1.0, -3.0), 2),
        (PathScales(0.5, 4.0, 1.0, 2.0), 3),
        (PathScales(1.0, 0.0, 1.0, 0.5), 3),
        (None, 2),
    ],
)
def test_rescore_and_lattice_have_the_same_scales(folder, ngram, scales, num_scores):
    """Those of the lattices, unless others are given; None: Kaldi's lattices, which hold none."""
    given = [
        dataclasses.replace(
            item,
            scales=scales or item.scales,
            scores=item.scores[:num_scores],
            # of paths with the same words the best stays the best under another LM
            arcs=tuple(a._replace(lm_score=0.0, graph_score=5 * a.graph_score) for a in item.arcs),
        )
        for item in LATTICES
    ]
    format = "kaldi_lattice" if scales is None else "htk"
    (write_kaldi_lattices if scales is None else write_htk)(given, folder / "given")
    lattices = {"lattices": folder / "given", "lattice_format": format, "output": folder / "a"}
    main(words(**lattices, ngram=ngram, beam="inf", prune="inf", merge_order=100))
    lists = {"nbest": folder / "given", "nbest_format": format, "nbest_size": 10**6}
    rescore.main(words(**lists, ngram=ngram, output=folder / "b"))
    assert (folder / "a" / "text").read_text() == (folder / "b" / "text").read_text()


def test_normalised_words_are_scored_and_counted_and_others_written(folder, ngram, fails, capsys):
    """Lattices in upper case give what those in the LM's own spelling give."""
    upper = [
        dataclasses.replace(
            item, arcs=tuple(arc._replace(label=arc.label.upper()) for arc in item.arcs)
        )
        for item in LATTICES
    ]
    write_htk(upper, folder / "upper")
    given = {"ref": folder / "ref", "ngram": ngram, "write_lattices": "true", "lmwt": 5}
    loud = {**given, "lattices": folder / "upper"}
    assert "does not know" in fails(main, words(**loud, output=folder / "bad"))
    lists = {}
    for name, options in {"lattices": given, "upper": {**loud, "normalize": "lower"}}.items():
        main(words(**{"lattices": folder / name, **options}, output=folder / f"{name}.out"))
        text = capsys.readouterr().out
        assert ("normalisation lower;" in text) == (name == "upper")
        errors = rates(text)
        items = read_nbest(folder / f"{name}.out" / "nbest", "jsonl")
        lists[name] = [(hyp.words, hyp.lm_score) for item in items for hyp in item.hypotheses]
        lists[name].append(errors)
    *plain, errors = lists["lattices"]
    shouted = [(tuple(word.upper() for word in hyp), score) for hyp, score in plain]
    assert lists["upper"] == [*shouted, errors]
    labels = {arc.label for item in read_htk(folder / "upper.out/lattices") for arc in item.arcs}
    assert labels <= {*"ABCDE", "", "!NULL"}


REFUSED = [
    ({}, "nothing to do"),
    ({"output": "x", "word_penalty": 1.0}, "--word_penalty without --lmwt"),
    ({"output": "x", "bias_weight": 1.0}, "--bias_weight without --bias"),
    ({"output": "x", "bias": "y", "bias_weight": -1.0}, "--bias_weight -1.0: expected 0 or more"),
    ({"output": "x", "lmwt": -1.0}, "LMWT must be positive"),
    ({"output": "x", "nbest_size": 0}, "--nbest_size 0: expected 1 or more"),
    ({"output": "x", "merge_order": 0}, "--merge_order 0: expected 1 or more"),
    ({"output": "x", "beam": float("nan")}, "--beam nan: expected 0 or more"),
    ({"output": "x", "prune": -1.0}, "--prune -1.0: expected 0 or more"),
    ({"output": "x", "max_hyps_per_node": -1}, "--max_hyps_per_node -1: expected 0 or more"),
]


@pytest.mark.parametrize("options, message", REFUSED)
def test_options_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        LatticeOptions.of(lattices="x", **options)
