"""`bayeslm lattice`: word lattices in, rescored ones, their N best and their oracle out."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from functools import partial
from typing import TYPE_CHECKING, Callable, Iterable, Iterator, List, Mapping, Optional

from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.evaluation.bias_lists import BiasLists, read_bias, warn_of_text
from espnet_bayeslm.evaluation.normalization import Normalization, normalize_option
from espnet_bayeslm.evaluation.wer import (
    NO_WORDS,
    Counted,
    check_same_utterances,
    closest_reading,
    read_transcripts,
    word_errors,
)
from espnet_bayeslm.loading.component_options import PRELOAD, SubtractOptions, ngpu_option
from espnet_bayeslm.nbest.biased_lattice import biased_lattice
from espnet_bayeslm.nbest.formats import (
    LATTICE_READERS,
    LATTICE_WRITERS,
    NBEST_SIZE,
    WRITERS,
    find_format,
    nbest_writer,
)
from espnet_bayeslm.nbest.lattice import (
    Lattice,
    PathScales,
    best_paths,
    kaldi_scales,
    nbest_list,
    normalized_lattice,
    oracle_words,
    pruned,
    restored_lattice,
)
from espnet_bayeslm.nbest.lattice_builder import MAX_ARCS
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.report.score_results import error_text
from espnet_bayeslm.rescoring.rescore_options import BIAS_WEIGHT, NO_LMWT
from espnet_bayeslm.scoring import BEAM, MAX_HYPS, MERGE_ORDER, PRUNE
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import check_seekable, write_json
from espnet_bayeslm.utils.folders import check_output, files_in, staged
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, nested, option

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.lattices import MergeOptions

LISTS, LATTICES, BEST = "nbest", "lattices", "text"
"""Names of the output in --output."""
MANIFEST = "lattice.json"
"""The names of these files: by it a later run knows what it may replace."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatticeOptions(ToolOptions):
    """Options of `bayeslm lattice`."""

    work: EngineOptions = nested(EngineOptions)
    ngpu: int = ngpu_option()
    mixture: SubtractOptions = nested(SubtractOptions)
    lattices: str = option("A folder, or a file")
    lattice_format: Optional[str] = option(
        "Format of --lattices (default: as names or contents of the files say, else htk)",
        None,
        choices=sorted(LATTICE_READERS),
    )
    words: Optional[str] = option("Kaldi's words.txt, where words are ids", None)
    max_arcs: int = option("Lattices of more arcs are refused", MAX_ARCS)
    normalize: str = normalize_option("the words of arcs and references")
    output: Optional[str] = option("The folder to write", None)
    nbest_format: str = option("Format of the written lists", "jsonl", choices=sorted(WRITERS))
    nbest_size: int = option("Hypotheses of a list, at most", NBEST_SIZE, least=1)
    write_lattices: bool = option("Write the lattices too", False)
    ref: Optional[str] = option("References, a Kaldi `text` or a trn", None)
    lmwt: Optional[float] = option(
        "Divisor of the acoustic score (default: the scales of the lattices)", None
    )
    word_penalty: Optional[float] = option("Cost per word, with --lmwt", None)
    bias: Optional[str] = option(
        "Words and phrases that an utterance may hold, in any form of `rescore --bias`", None
    )
    bias_weight: Optional[float] = option(
        f"Weight of each phrase that a path holds, in nats of the LM (default: {BIAS_WEIGHT:g})",
        None,
        least=0,
    )
    merge_order: int = option(
        "Number of last words by which hypotheses at a node are merged", MERGE_ORDER, least=1
    )
    beam: float = option(
        "Drop hypotheses whose path is worse than the best one by more (nats of the LM)",
        BEAM,
        least=0,
        most=math.inf,
    )
    prune: Optional[float] = option(
        "First drop arcs whose best path is worse by more; where lattices have no LM scores,"
        " these are estimated: the best of a word after any one word; default:"
        f" {PRUNE:g} with --lm or --ngram, else inf",
        None,
        least=0,
        most=math.inf,
    )
    max_hyps_per_node: Optional[int] = option(
        "The most hypotheses of a node, and states of a bias list, 0: no limit; default:"
        f" {MAX_HYPS}, 0 with --beam inf, and for a bias list alone",
        None,
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        lmwt, penalty = self.lmwt, self.word_penalty
        if self.output is None and self.ref is None:
            raise InputError("nothing to do", remedy="Give --output DIR, --ref TEXT, or both.")
        if self.mixture.subtract_lms and not self.rescored:
            raise InputError("--subtract_lm without --lm or --ngram", remedy="Give one of them.")
        if self.bias_weight is not None and self.bias is None:
            raise InputError("--bias_weight without --bias", remedy="Give the bias list.")
        if lmwt is None and penalty is not None:
            raise InputError(NO_LMWT, remedy="Give both.")
        if lmwt is not None and not (0 < lmwt < math.inf and math.isfinite(penalty or 0.0)):
            raise InputError(f"--lmwt {lmwt} --word_penalty {penalty}: LMWT must be positive")

    @property
    def rescored(self) -> bool:
        """True if LMs or n-grams rescore the lattices."""
        return bool(self.mixture.lms or self.mixture.ngrams)

    def merging(self) -> MergeOptions:
        """Merging and pruning of hypotheses."""
        from espnet_bayeslm.scoring.lattices import MergeOptions

        prune, most = self.prune, self.max_hyps_per_node
        if prune is None:
            prune = PRUNE if self.rescored else math.inf
        if most is None:
            most = 0 if math.isinf(self.beam) else MAX_HYPS
        return MergeOptions(self.merge_order, self.beam, prune, most)


def lattice(options: LatticeOptions) -> None:
    """Rescore lattices and take their N best."""
    # 1. Whatever can be wrong is found before the long work
    workers = options.work.pool(preload=PRELOAD)
    inputs = {"--lattices": options.lattices, "--ref": options.ref, "--words": options.words}
    replaces: List[str] = []
    if options.output is not None:
        replaces = check_output(options.output, MANIFEST, tool="lattice", inputs=inputs)
    for path in filter(None, (options.lattices, options.words)):
        check_seekable(path)
    scales = None
    if options.lmwt is not None:
        scales = kaldi_scales(options.lmwt, options.word_penalty or 0.0)
    lattice_format = options.lattice_format or find_format(options.lattices)
    if lattice_format not in LATTICE_READERS:
        lattice_format = "htk"
    read = partial(LATTICE_READERS[lattice_format], options.lattices, max_arcs=options.max_arcs)
    if lattice_format == "kaldi_lattice":
        read = partial(read, words=options.words)
    normalization = Normalization(options.normalize)
    refs = None if options.ref is None else normalization.text(read_transcripts(options.ref))
    # all are read once: no fault comes to light after hours
    num_arcs = {item.utt: len(item.arcs) for item in read()}
    total = len(num_arcs)
    LOG.info(f"{options.lattices}: {total} lattices, {sum(num_arcs.values())} arcs")
    if refs is not None:
        check_same_utterances(refs, num_arcs, ref_path=options.ref or "", hyp_path=options.lattices)
    errors = {"1-best": NO_WORDS, "oracle": NO_WORDS}
    size = options.nbest_size if options.output else 1

    def read_normalized() -> Iterable[Lattice]:
        return (normalized_lattice(item, normalization) for item in read())

    every = read_normalized()
    if options.bias is not None:
        bias = read_bias(options.bias, normalization, utts=num_arcs)
        firsts = (best_paths(x, scales or x.scales, 1)[0].words for x in read_normalized())
        warn_of_text(bias, firsts if refs is None else refs.values())
        # which have all scales
        every, scales = biased_lattices(options, every, bias, scales), None
    text_forms: Mapping[str, str] = {}
    with contextlib.ExitStack() as stack:
        # 2. Rescore: a stream of lattices
        if options.rescored:
            from espnet_bayeslm.rescoring.lattice_worker import rescored_lattices

            pool = stack.enter_context(workers)
            rescoring = rescored_lattices(
                *(pool, every, options.mixture, options.merging(), scales),
                ngpu=options.ngpu,
                output=options.output,
                total=total,
            )
            every, text_forms = stack.enter_context(rescoring)
        elif options.prune is not None and options.prune < math.inf:
            every = (pruned(item, scales or item.scales, options.prune) for item in every)
        # 3. Write as they come, and report
        add = writer_of(stack, options, lattice_format, replaces)
        for item in every:
            own = restored_lattice(item) if normalization.steps else item
            nbest = nbest_list(own, size, scales)
            add(own, nbest)
            if refs is not None:
                best = normalization.each(nbest.hypotheses[0].words)
                oracle = oracle_words(item, closest_reading(refs[item.utt], best))
                errors["1-best"] += word_errors(refs[item.utt], best)
                errors["oracle"] += word_errors(refs[item.utt], oracle)
    if refs is not None:
        counted = Counted(normalize=normalization.steps, text_forms=dict(text_forms))
        print(error_text(errors, counted=counted))


def biased_lattices(
    options: LatticeOptions,
    lattices: Iterable[Lattice],
    bias: BiasLists,
    scales: Optional[PathScales],
) -> Iterator[Lattice]:
    """Yield lattices whose arcs and scales have the bias of their lists."""
    weight = BIAS_WEIGHT if options.bias_weight is None else options.bias_weight
    most = options.merging().max_hyps if options.rescored else options.max_hyps_per_node or 0
    for item in lattices:
        own = bias.of(item.utt)
        yield biased_lattice(item, own, weight, scales or item.scales, max_states=most)


def writer_of(
    stack: contextlib.ExitStack, options: LatticeOptions, lattice_format: str, replaces: List[str]
) -> Callable[[Lattice, NBest], None]:
    """Writer of lattices and their lists to --output, all or nothing, until the stack is closed."""
    if options.output is None:
        return lambda item, nbest: None
    folder = stack.enter_context(staged(options.output, replaces=replaces))
    # when all others are whole
    stack.callback(lambda: write_json(folder / MANIFEST, {"files": files_in(folder)}))
    add_list = stack.enter_context(nbest_writer(folder / LISTS, format=options.nbest_format))
    add_lattice: Callable[[Lattice], None] = lambda item: None  # noqa: E731
    if options.write_lattices:
        add_lattice = stack.enter_context(LATTICE_WRITERS[lattice_format](folder / LATTICES))
    text = stack.enter_context((folder / BEST).open("w", encoding="utf-8"))

    def add(item: Lattice, nbest: NBest) -> None:
        add_list(nbest)
        add_lattice(item)
        text.write(" ".join((nbest.utt, *nbest.hypotheses[0].words)) + "\n")

    return add


TOOL = Tool(
    "lattice",
    "Word lattices: N best distinct hypotheses with separate scores, 1-best and oracle WER;"
    " rescoring of the lattices themselves by LMs and n-grams. --output DIR gets the lists"
    " (nbest/), the 1-best (text) and the lattices (lattices/). Weights are not tuned"
    " here: take those that `bayeslm rescore --tune_ref` has found on N-best lists.",
    lattice,
    LatticeOptions,
    stopped=": the same command continues from the finished blocks",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
