"""`bayeslm lattice`: word lattices in, rescored ones, their N best and their oracle out."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
from functools import partial
from pathlib import Path
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
)

import numpy as np
from espnet2.utils.types import float_or_none, int_or_none

from espnet_bayeslm.bin.lm_options import add_component_options, add_normalize_option
from espnet_bayeslm.bin.rescore_options import NO_LMWT
from espnet_bayeslm.evaluation.counting import UnknownWords
from espnet_bayeslm.evaluation.markup import closest_reading
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import (
    ERRORS_HEADER,
    NO_WORDS,
    ErrorCounts,
    check_same_utterances,
    format_errors,
    read_transcripts,
    word_errors,
)
from espnet_bayeslm.evaluation.word_scores import Component, WordScores
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.nbest.detection import find_format
from espnet_bayeslm.nbest.formats import (
    LATTICE_READERS,
    LATTICE_WRITERS,
    NBEST_SIZE,
    WRITERS,
    nbest_writer,
)
from espnet_bayeslm.nbest.lattice import Lattice, kaldi_scales, nbest_list, oracle_words, pruned
from espnet_bayeslm.nbest.lattice_builder import MAX_ARCS
from espnet_bayeslm.nbest.normalized_lists import normalized_lattice, restored_lattice
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.decision import COMBINATIONS, Weighting, combined
from espnet_bayeslm.scoring.cache import uncached
from espnet_bayeslm.scoring.limits import BEAM, MAX_HYPS, MERGE_ORDER, PRUNE
from espnet_bayeslm.utils.cli import add_flag, device_of, run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    check_outside,
    check_seekable,
    entries,
    files_in,
    staged,
    write_json,
)

LISTS, LATTICES, BEST = "nbest", "lattices", "text"
"""What is written into --output."""
MANIFEST = "lattice.json"
"""The names of these files: by it a later run knows what it may replace."""


def lattice(
    *,
    lattices: str,
    lattice_format: Optional[str],
    words: Optional[str],
    max_arcs: int,
    normalize: str,
    output: Optional[str],
    nbest_format: str,
    nbest_size: int,
    write_lattices: bool,
    ref: Optional[str],
    lm: Sequence[str],
    ngram: Sequence[str],
    weights: Optional[str],
    combine: str,
    lmwt: Optional[float],
    word_penalty: Optional[float],
    merge_order: int,
    beam: float,
    prune: Optional[float],
    max_hyps_per_node: Optional[int],
    max_oov_rate: float,
    ngpu: int,
    **options: Any,
) -> None:
    """Rescore lattices and take their N best; options as `get_parser` explains them."""
    from espnet_bayeslm.scoring.lattices import MergeOptions, check_merging, rescore_lattices

    # 1. Whatever can be wrong is found before the long work
    check_options(output, ref, nbest_size=nbest_size, lmwt=lmwt, penalty=word_penalty)
    replaces = check_output(output, {"--lattices": lattices, "--ref": ref, "--words": words})
    for path in filter(None, (lattices, words)):
        check_seekable(path)
    if lattice_format is None:
        found = find_format(lattices)
        lattice_format = found if found in LATTICE_READERS else "htk"
    rescored = bool(lm or ngram)
    if prune is None:
        prune = PRUNE if rescored else math.inf
    if max_hyps_per_node is None:
        max_hyps_per_node = 0 if math.isinf(beam) else MAX_HYPS
    merging = MergeOptions(merge_order, beam, prune, max_hyps_per_node)
    check_merging(merging)
    scales = None if lmwt is None else kaldi_scales(lmwt, word_penalty or 0.0)
    read = partial(LATTICE_READERS[lattice_format], lattices, max_arcs=max_arcs)
    if lattice_format == "kaldi_lattice":
        read = partial(read, words=words)
    normalization = Normalization(normalize)
    refs = None if ref is None else normalization.text(read_transcripts(ref))
    check_lattices(read(), lattices, refs, ref)
    # 2. Rescore: a stream of lattices
    every: Iterable[Lattice] = (normalized_lattice(item, normalization) for item in read())
    if not rescored and prune < math.inf:
        every = (pruned(item, scales or item.scales, prune) for item in every)
    if rescored:
        device = device_of(ngpu)
        components = load_components(lm, ngram, device=device, **options)
        weighting = Weighting.of(components, weights, None, combine=combine)
        every = rescore_lattices(
            counted(every, components, max_oov_rate),
            [uncached(component.scorer) for component in components],
            partial(combined, weights=weighting.weights, combine=combine),
            scales=scales,
            options=merging,
        )
    # 3. Write as they come, and report
    errors: Dict[str, List[ErrorCounts]] = {"1-best": [], "oracle": []}
    written = lattice_format if write_lattices else None
    with outputs(output, nbest_format, written, replaces=replaces) as add:
        for item in every:
            own = restored_lattice(item) if normalization else item
            nbest = nbest_list(own, nbest_size if output else 1, scales)
            add(own, nbest)
            if refs is not None:
                best = normalization.each(nbest.hypotheses[0].words)
                oracle = oracle_words(item, closest_reading(refs[item.utt], best))
                errors["1-best"].append(word_errors(refs[item.utt], best))
                errors["oracle"].append(word_errors(refs[item.utt], oracle))
    if refs is not None:
        print(ERRORS_HEADER)
        for name, counts in errors.items():
            print(format_errors(name, sum(counts, NO_WORDS)))


def check_options(
    output: Optional[str],
    ref: Optional[str],
    *,
    nbest_size: int,
    lmwt: Optional[float],
    penalty: Optional[float],
) -> None:
    """Raise an InputError where options ask for nothing, or for what cannot be."""
    if output is None and ref is None:
        raise InputError("nothing to do", remedy="Give --output DIR, --ref TEXT, or both.")
    if nbest_size < 1:
        raise InputError(f"--nbest_size {nbest_size}: 1 or more hypotheses were expected")
    if lmwt is None and penalty is not None:
        raise InputError(NO_LMWT, remedy="Give both.")
    if lmwt is not None and not (0 < lmwt < math.inf and math.isfinite(penalty or 0.0)):
        raise InputError(f"--lmwt {lmwt} --word_penalty {penalty}: LMWT must be positive")


def check_output(output: Optional[str], inputs: Mapping[str, Optional[str]]) -> List[str]:
    """Check that the output folder is new, or has what an earlier run has written and no input.

    Returns:
        The files in it that an earlier run has written.

    Raises:
        InputError: It has something else.
    """
    if output is None or not Path(output).exists():
        return []
    folder = Path(output)
    if not folder.is_dir() or (entries(folder) and not (folder / MANIFEST).exists()):
        raise InputError(
            f"is there, without the {MANIFEST} that says what `bayeslm lattice` may replace",
            path=output,
            remedy="Give --output a new folder.",
        )
    check_outside(output, inputs)
    if not entries(folder):
        return []
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return [str(name) for name in content["files"]]
    except (ValueError, KeyError, TypeError) as error:
        remedy = "Give --output a new folder."
        raise InputError("no names of files", path=folder / MANIFEST, remedy=remedy) from error


def check_lattices(
    lattices: Iterable[Lattice], path: str, refs: Optional[Dict[str, Any]], ref: Optional[str]
) -> None:
    """Read all lattices once: what is wrong with them must not come to light after hours.

    Raises:
        InputError: They cannot be used, or other utterances have references.
    """
    utts: Dict[str, None] = {}
    num_nodes, num_arcs = 0, 0
    for item in lattices:
        utts[item.utt] = None
        num_nodes, num_arcs = num_nodes + item.num_nodes, num_arcs + len(item.arcs)
    count = len(utts)
    logging.info(
        f"{path}: {count} lattices, {num_nodes / count:.0f} nodes, {num_arcs / count:.0f} arcs each"
    )
    if refs is not None:
        check_same_utterances(refs, utts, ref_path=ref or "", hyp_path=path)


def counted(
    lattices: Iterable[Lattice], components: Sequence[Component], max_oov_rate: float
) -> Iterator[Lattice]:
    """Yield the lattices while the unknown words of their arcs, each once a lattice, are counted.

    Raises:
        InputError: A component knows too few of them.
    """
    unknown = [UnknownWords(c.name, max_oov_rate=max_oov_rate) for c in components]
    for item in lattices:
        words = list(dict.fromkeys(arc.label for arc in item.arcs if arc.word is not None))
        for component, count in zip(components, unknown, strict=True):
            scorer: Any = uncached(component.scorer)  # of an n-gram or a neural LM
            oov = np.array([*scorer.unknown(words), False])
            count.add([words], [WordScores(np.zeros(len(oov)), oov)])
        yield item
    for count in unknown:
        count.check(report=True)


@contextlib.contextmanager
def outputs(
    output: Optional[str],
    nbest_format: str,
    lattice_format: Optional[str],
    *,
    replaces: Sequence[str],
) -> Iterator[Callable[[Lattice, NBest], None]]:
    """Write N-best lists, 1-best and, where a format is given, lattices; all or nothing.

    Args:
        output: The folder; None: nothing is written.
        nbest_format: That of the lists.
        lattice_format: That of the lattices, or None.
        replaces: What an earlier run has written there.

    Yields:
        What adds a lattice with its list.
    """
    if output is None:
        yield lambda item, nbest: None
        return
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(staged(output, replaces=replaces))
        # when all others are whole
        stack.callback(lambda: write_json(folder / MANIFEST, {"files": files_in(folder)}))
        add_list = stack.enter_context(nbest_writer(folder / LISTS, format=nbest_format))
        writer: ContextManager[Callable[[Lattice], None]]
        writer = contextlib.nullcontext(lambda item: None)
        if lattice_format is not None:
            writer = LATTICE_WRITERS[lattice_format](folder / LATTICES)
        add_lattice = stack.enter_context(writer)
        text = stack.enter_context((folder / BEST).open("w", encoding="utf-8"))

        def add(item: Lattice, nbest: NBest) -> None:
            add_list(nbest)
            add_lattice(item)
            text.write(" ".join((nbest.utt, *nbest.hypotheses[0].words)) + "\n")

        yield add


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm lattice`."""
    parser = tool_parser(
        "lattice",
        "Word lattices: N best distinct hypotheses with separate scores, 1-best and oracle WER;"
        " rescoring of the lattices themselves by LMs and n-grams. --output DIR gets the lists"
        " (nbest/), the 1-best (text) and the lattices (lattices/).",
    )
    parser.add_argument("--lattices", required=True, help="A folder, or a file")
    parser.add_argument(
        "--lattice_format",
        choices=sorted(LATTICE_READERS),
        help="Their format (default: as names or contents of the files say, else htk)",
    )
    parser.add_argument("--words", help="Kaldi's words.txt, where words are ids")
    parser.add_argument(
        "--max_arcs", type=int, default=MAX_ARCS, help="Lattices of more arcs are refused"
    )
    add_normalize_option(parser, "the words of arcs and references")
    parser.add_argument("--output", help="The folder to write")
    parser.add_argument(
        "--nbest_format", default="jsonl", choices=sorted(WRITERS), help="That of the lists"
    )
    parser.add_argument(
        "--nbest_size", type=int, default=NBEST_SIZE, help="Hypotheses of a list, at most"
    )
    add_flag(parser, "--write_lattices", "Write the lattices too")
    parser.add_argument("--ref", help="References, a Kaldi `text` or a trn")
    parser.add_argument(
        "--lmwt",
        type=float_or_none,
        help="What divides the acoustic score; default: the scales of the lattices",
    )
    parser.add_argument("--word_penalty", type=float_or_none, help="Cost per word, with --lmwt")
    add_component_options(parser)
    parser.add_argument(
        "--combine", default="linear", choices=COMBINATIONS, help="As of `bayeslm rescore`"
    )
    parser.add_argument(
        "--merge_order",
        type=int,
        default=MERGE_ORDER,
        help="Hypotheses at a node that share so many last words are merged",
    )
    parser.add_argument(
        "--beam",
        type=float,
        default=BEAM,
        help="Hypotheses worse than the best, as whole paths, by more (nats of the LM) are dropped",
    )
    parser.add_argument(
        "--prune",
        type=float_or_none,
        help="First drop arcs whose best path is worse by more; where lattices have no LM scores,"
        " these are estimated: the best of a word after any one word; default:"
        f" {PRUNE:g} with --lm or --ngram, else inf",
    )
    parser.add_argument(
        "--max_hyps_per_node",
        type=int_or_none,
        help=f"The most hypotheses of a node, 0: no limit; default: {MAX_HYPS}, 0 with --beam inf",
    )
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm lattice`."""
    run_tool(get_parser(), lattice, cmd)


if __name__ == "__main__":
    main()
