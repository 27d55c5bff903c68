"""Lists with references to an adapted LM, its weights and what they gain, in one command.

The references of one part of the lists train adapters. The other part says when they are trained
enough, which of them is used, and how much an LM counts: every figure is of lists whose references
no adapter has seen, and each is rescored with weights that were tuned on others of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.adaptation.parts import Parts, divide
from espnet_bayeslm.adaptation.plan import (
    CONTROL,
    FIRST,
    MAX_EPOCH,
    Plan,
    System,
    tried,
)
from espnet_bayeslm.engine.pool import EngineOptions, Pool
from espnet_bayeslm.evaluation.normalization import Normalization, normalize_option
from espnet_bayeslm.evaluation.text_checks import warn_leakage, warn_of_spelling
from espnet_bayeslm.evaluation.transcripts import read_transcripts
from espnet_bayeslm.evaluation.wer import Counted, CountingOptions, check_same_utterances
from espnet_bayeslm.loading.component_options import RecordingOptions
from espnet_bayeslm.nbest.formats import CheckedLists, format_option, write_nbest
from espnet_bayeslm.nbest.segments import SOURCES, PlaceOf, place_finder, recordings
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.pretrained.names import is_pretrained
from espnet_bayeslm.quickstart.steps import HEAVY, Tool, is_done, read_figures, run_steps
from espnet_bayeslm.report.counted_outputs import SCALES
from espnet_bayeslm.report.score_results import read_scores
from espnet_bayeslm.report.table import Table
from espnet_bayeslm.rescoring.adapted_folder import write_adapted
from espnet_bayeslm.training.plain_text import whole_name
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, read_yaml_mapping, write_text
from espnet_bayeslm.utils.folders import check_folder, folder_lock, staged
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import option

Refs = Mapping[str, Sequence[str]]
# A training step takes three times as long as scoring its tokens; of 20-best lists the hypotheses
# share about half of their tokens; loading LMs and choosing a text form take a minute in all
TRAINING, SHARED, STARTING = 3, 0.5, 1
USUAL_EPOCHS = 4
LEAST_PROBABILITY = 0.25
"""Bootstrap probability of fewer errors than a simpler system, from which a system is used."""
PROBE = 24
"""References that are scored to see how fast the LM is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptOptions(CountingOptions, RecordingOptions, EngineOptions):
    """Options of `bayeslm adapt`."""

    nbest: Optional[str] = option(
        "N-best lists, of some hundred utterances or more (default: none yet; the references train"
        " adapters, and the same command with lists goes on from there)",
        None,
    )
    nbest_format: Optional[str] = format_option()
    ref: Optional[str] = option(
        "Their references, a Kaldi `text` or a trn (default: the lists' own)", None
    )
    source: str = option(
        "The pretrained LM: hf:FOLDER, hf:NAME, a .gguf file or the folder of a peft adapter",
        name="from",
    )
    base: Optional[str] = option(
        "Base model of the adapter of --from, where it is not at the path that it names", None
    )
    texts: Sequence[PathLike] = option(
        "More text of the domain, a sentence a line, that adapters learn too (repeatable)",
        (),
        name="text",
    )
    lms: Sequence[str] = option(
        "Another LM, as of `rescore --lm`, that is interpolated with it (repeatable)",
        (),
        name="lm",
    )
    ngrams: Sequence[PathLike] = option(
        "An ARPA file or KenLM binary that is interpolated with the LM (repeatable)",
        (),
        name="ngram",
    )
    normalize: str = normalize_option("hypotheses and references")
    configs: Sequence[str] = option(
        "Configuration of an adapter that is tried (repeatable; default: bayes_lora, from 1,000"
        " sentences on lora); the tuning part chooses",
        (),
        name="adapter",
    )
    max_epoch: int = option("Epochs of an adapter, at most", MAX_EPOCH, least=1)
    precision: Optional[str] = option(
        "Precision of the LM (default: bfloat16 where this CPU is faster with it, else float32)",
        None,
        choices=("float32", "bfloat16"),
    )
    output: str = option("The folder to write, for `bayeslm rescore --adapted`")

    @property
    def normalization(self) -> Normalization:
        """Normalisation of hypotheses and references."""
        return Normalization(self.normalize, kept=self.counting.ignored)


class Result(NamedTuple):
    """A row of the table: a system on the tuning part.

    Attributes:
        name: Its name.
        wer: Word errors in %, of lists that its weights were not tuned on.
        p: Of the test against the row before; None of the first.
        perplexity: Of the tuning text, per word; None where it is not measured.
    """

    name: str
    wer: float
    p: Optional[float]
    perplexity: Optional[float] = None


def adapt(options: AdaptOptions, tool: Tool) -> None:
    """Adapt, tune, and print what it gains; a run that was stopped goes on."""
    begin, folder = time.monotonic(), Path(options.output)
    plan = planned(options)
    check_folder(folder)
    workers = options.pool(trains=True, preload=HEAVY)
    refs, items = checked_input(options)
    normalization = options.normalization
    place_of = options.place_of
    if options.context != "none" or all(item.recording is not None for item in items):
        place_of = place_of or place_finder()
    known = {} if place_of is None else {i.utt: place_of(i).recording for i in items}
    parts = divide(items, refs, known)
    with folder_lock(folder), contextlib.ExitStack() as stack:
        order = place_of if options.context != "none" else None
        write_texts(plan, parts, refs, normalization, options.texts, order)
        if options.nbest is not None:
            write_lists(plan.data("tune.jsonl"), parts.tuning)
        for name in ("perplexity", "weights"):
            (folder / name).mkdir(exist_ok=True)
        pool = stack.enter_context(workers)
        form, rate = measured(pool, plan)
        adapting = _sentences(plan.data("adapt.txt"))
        configs = plan.configs or tried(len(adapting))
        plan = dataclasses.replace(plan, text_form=form, configs=configs)
        announce(plan, parts, refs, adapting, workers=pool.workers, rate=rate)
        if options.nbest is None:
            run_steps(pool, [*map(plan.adapter, plan.configs)], plan.logs, tool)
            print(f"next: the same command with --nbest LISTS tunes, and writes {folder}")
            return
        chosen, results = carried_out(plan, pool, tool)
        text = gains_table(results, parts, chosen, read_scores(str(plan.scores)).counted)
        text += f"{(time.monotonic() - begin) / 60:.1f} minutes.\n"
        write_text(folder / "RESULTS.md", text)
        finish(plan, options, chosen)
    print(text)
    print(f"{folder}/report.html: every list beside its reference")
    print(f"next: bayeslm rescore --nbest LISTS --adapted {folder} --output DIR")


def planned(options: AdaptOptions) -> Plan:
    """Command lines of these options.

    Raises:
        InputError: The LM is not a pretrained one.
    """
    if not is_pretrained(options.source):
        raise InputError(
            f"--from {options.source} is no pretrained LM",
            remedy="Give hf:FOLDER, hf:NAME, a .gguf file or a peft adapter; an LM of ESPnet is"
            " adapted by `bayeslm train --config adapt_transformer`.",
        )
    given = {"unit": options.unit, "ignore_words": options.ignore_words}
    return Plan(
        folder=Path(options.output),
        lm=whole_name(options.source),
        base=options.base and whole_name(options.base),
        configs=tuple(options.configs),
        max_epoch=options.max_epoch,
        others=tuple(
            whole_name(lm) if is_pretrained(lm) else str(Path(lm).resolve()) for lm in options.lms
        ),
        ngrams=tuple(str(Path(path).resolve()) for path in options.ngrams),
        precision=options.precision or fast_precision(),
        counting={**given, "normalize": options.normalize or None},
        context={}
        if options.context == "none"
        else {"context": options.context, **{name: getattr(options, name) for name in SOURCES}},
    )


def fast_precision() -> str:
    """`bfloat16` if this CPU multiplies it faster than float32, and else `float32`."""
    import torch

    from espnet_bayeslm.kernels.product import has_onednn

    info = Path("/proc/cpuinfo")
    flags = info.read_text("utf-8").split() if info.is_file() else []
    # oneDNN emulates it on a CPU without these instructions, and may be held to fewer of them
    has_it = {"avx512_bf16", "amx_bf16"} & set(flags) and has_onednn(torch.bfloat16)
    return "bfloat16" if has_it else "float32"


def checked_input(options: AdaptOptions) -> Tuple[Refs, List[NBest]]:
    """References and, in their order, the lists; without lists a reference is its own hypothesis.

    Says what another normalisation would gain.

    Raises:
        InputError: A list has no reference, or none has words.
    """
    refs: Refs = {}
    if options.ref is not None:
        refs = read_transcripts(options.ref)
    if options.nbest is None:
        if options.ref is None:
            raise InputError("neither lists nor references", remedy="Give --nbest, --ref or both.")
        _check_words(refs, options.ref)
        return refs, [NBest(utt, (Hypothesis(tuple(words)),)) for utt, words in refs.items()]
    lists = CheckedLists(options.nbest, options.nbest_format)
    refs = refs or lists.refs
    _check_words(refs, options.ref or options.nbest)
    check_same_utterances(refs, lists.utts, ref_path=options.ref or "", hyp_path=options.nbest)
    LOG.info("read %d N-best lists (%s) from %s", len(lists.utts), lists.format, lists.path)
    normalization = options.normalization
    firsts = normalization.text(lists.firsts.texts) if normalization.steps else lists.firsts.texts
    warn_of_spelling(normalization.text(refs), firsts, options.counting, given=normalization.steps)
    by_utt = {item.utt: item for item in lists}
    return refs, [by_utt[utt] for utt in refs]


def _check_words(refs: Refs, path: PathLike) -> None:
    """Raise an InputError where no reference has words."""
    if not any(refs.values()):
        raise InputError("no references with words", path=path, remedy="Give --ref FILE.")


def write_texts(
    plan: Plan,
    parts: Parts,
    refs: Refs,
    normalization: Normalization,
    texts: Sequence[PathLike],
    order: Optional[PlaceOf] = None,
) -> None:
    """Write the texts of both parts, normalised, and the references of the tuning part.

    With the `order` of utterances, the texts of trainings have it, with a blank line between
    recordings.

    Raises:
        InputError: The folder holds parts of other lists.
    """
    files: Dict[str, str] = {}
    for name, part, place_of in (
        ("adapt", parts.adapting, order),
        ("valid", parts.tuning, order),
        ("tune", parts.tuning, None),
    ):
        runs = [part] if place_of is None else recordings(part, place_of)
        files[f"{name}.txt"] = "\n".join(
            _lines(normalization, {item.utt: refs[item.utt] for item in run}) for run in runs
        )
    for path in texts:
        more = {str(number): line.split() for number, line in read_lines(path)}
        files["adapt.txt"] += "\n" * (order is not None) + _lines(normalization, more)
    rows = (f"{item.utt} {' '.join(refs[item.utt])}".rstrip() for item in parts.tuning)
    files["tune.ref"] = "".join(f"{row}\n" for row in rows)
    target = plan.data("")
    if not target.exists():
        with staged(target) as place:
            for name, content in files.items():
                (place / name).write_text(content, encoding="utf-8")
    elif any(not _holds(plan.data(name), text) for name, text in files.items()):
        raise _of_others(target)
    heard = normalization.text({item.utt: refs[item.utt] for item in parts.tuning})
    warn_leakage(heard.values(), plan.data("adapt.txt"), what="the tuning part's references")


def write_lists(path: Path, lists: Sequence[NBest]) -> None:
    """Write the lists of the tuning part.

    Raises:
        InputError: The folder holds other lists.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        own = Path(folder) / path.name
        write_nbest(lists, own, format="jsonl")
        if not path.exists():
            own.replace(path)
        elif not _holds(path, own.read_text("utf-8")):
            raise _of_others(path)


def _of_others(path: Path) -> InputError:
    """Error of an output of another adaptation."""
    return InputError(
        "holds parts of other lists or texts than those given now",
        path=path,
        remedy="Give a new --output.",
    )


def _holds(path: Path, text: str) -> bool:
    """True if a file has this text."""
    return path.exists() and path.read_text("utf-8") == text


def _lines(normalization: Normalization, sentences: Refs) -> str:
    """Normalised sentences, a line each; those without words are left out."""
    text = normalization.text(sentences).values()
    return "".join(f"{' '.join(words)}\n" for words in text if words)


def measured(pool: Pool, plan: Plan) -> Tuple[str, float]:
    """Text form and speed of the LM (`form_and_speed`), which are measured once for each LM."""
    path, lm = plan.data("lm.json"), [plan.lm, plan.base, plan.precision]
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if known.get("lm") != lm:
        form, rate = pool.executor.submit(form_and_speed, plan).result()
        known = {"lm": lm, "text_form": form, "words_a_second": rate}
        write_text(path, json.dumps(known))
    return known["text_form"], known["words_a_second"]


def form_and_speed(plan: Plan) -> Tuple[str, float]:
    """Form in which the LM reads the tuning part best, and words that it scores in a second here.

    The form is one in which an adapter can be trained.
    """
    from espnet_bayeslm.engine.processes import set_threads
    from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
    from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer
    from espnet_bayeslm.pretrained.text_forms import training_readers

    set_threads(1)
    lm = load_causal_lm(plan.lm, base=plan.base, precision=plan.precision)
    scorer = PretrainedScorer(lm)
    sentences = _sentences(plan.data("valid.txt"))
    reader = lm.reader or scorer.choose(sentences, training_readers(lm.tokenizer))
    form, probe = str(reader.form), sentences[:PROBE]
    scorer.prepare([], form)
    scorer.word_scores(probe[:1])
    begin = time.perf_counter()
    scorer.word_scores(probe)
    return form, max(sum(map(len, probe)), 1) / max(time.perf_counter() - begin, 1e-6)


def _sentences(path: Path) -> List[List[str]]:
    """Words of the lines of a text that are not blank."""
    lines = (line.split() for _, line in read_lines(path))
    return [words for words in lines if words]


def announce(
    plan: Plan,
    parts: Parts,
    refs: Refs,
    adapting: Sequence[Sequence[str]],
    *,
    workers: int,
    rate: float,
) -> None:
    """Say how the lists are divided, and how long it will take about.

    The sentences `adapting` train, and one worker scores `rate` words a second.
    """
    hypotheses = sum(len(hyp.words) for item in parts.tuning for hyp in item.hypotheses)
    tuning = sum(len(refs[item.utt]) for item in parts.tuning)
    trained = min(USUAL_EPOCHS, plan.max_epoch) * (sum(map(len, adapting)) * TRAINING + tuning)
    trained *= math.ceil(len(plan.configs) / workers)
    # systems, of which those in context score the lists twice
    read = (5 if plan.context else 2) * SHARED * hypotheses / min(workers, 2)
    minutes = STARTING + (trained + read) / rate / 60
    LOG.info(
        "%d lists adapt and %d tune; %s stay whole. About %.0f minutes on %d process%s",
        *(len(parts.adapting), len(parts.tuning), parts.units, minutes),
        *(workers, "es" * (workers > 1)),
    )


def carried_out(plan: Plan, pool: Pool, tool: Tool) -> Tuple[System, List[Result]]:
    """The system to use, and the rows of the table, after all command lines have run."""
    adapters = [*map(plan.adapter, plan.configs)]
    every = plan.systems(plan.configs[0])
    as_they_are = [plan.rescoring(system) for system in every if system.lm == plan.lm]
    if not all(is_done(step, plan.logs) for step in adapters):
        run_steps(pool, [*adapters, *as_they_are], plan.logs, tool)
    paths = {name: plan.perplexity_of(str(plan.exp(name))) for name in plan.configs}
    perplexities = {name: read_figures(path)[-1] for name, path in paths.items()}
    for name, perplexity in perplexities.items():
        LOG.info("%s: perplexity %.2f per word of the tuning text", name, perplexity)
    every = plan.systems(min(perplexities, key=perplexities.__getitem__))
    run_steps(pool, [*as_they_are, plan.rescoring(every[-1])], plan.logs, tool)
    run_steps(pool, [plan.evaluation(every)], plan.logs, tool)
    results = read_results(plan, every)
    return used_system(every, read_pairs(plan)), results


def used_system(systems: Sequence[System], pairs: Mapping[Tuple[str, str], Any]) -> System:
    """System to use: each takes the place of a simpler one before it, unless it is probably worse.

    Adapting and context usually help, and some hundred lists cannot tell a small gain from none.
    """
    used = systems[0]
    for system in systems[1:]:
        if pairs[used.name, system.name]["bootstrap"]["improvement"] >= LEAST_PROBABILITY:
            used = system
    return used


def read_pairs(plan: Plan) -> Dict[Tuple[str, str], Any]:
    """Tests of each system, the recogniser's own scores too, against each later one."""
    content = json.loads(plan.scores.read_text("utf-8"))
    return {(pair["a"], pair["b"]): pair for pair in content["significance"]["pairs"]}


def read_results(plan: Plan, systems: Sequence[System]) -> List[Result]:
    """Rows of the table: the recogniser's own, its scores tuned, and the systems."""
    content, pairs = json.loads(plan.scores.read_text("utf-8")), read_pairs(plan)
    perplexities = {system.name: read_perplexity(plan, system) for system in systems}
    rows: List[Result] = []
    for name in (FIRST, CONTROL, *(system.name for system in systems)):
        p = None
        if rows:
            p = pairs[rows[-1].name, name]["mapsswe"]["p"]
        rows.append(Result(name, content[name]["wer"], p, perplexities.get(name)))
    return rows


def read_perplexity(plan: Plan, system: System) -> Optional[float]:
    """Perplexity per word of the tuning text: of the mixture, where the LM is not alone."""
    path = plan.perplexity(system)
    if path is None:
        return None
    if plan.weights(system) is None:
        return read_figures(path)[-1]
    mixture: float = read_yaml_mapping(path)["mixture"]["perplexity_without_oov"]
    return mixture


def gains_table(
    rows: Sequence[Result], parts: Parts, chosen: System, counted: Optional[Counted]
) -> str:
    """Table in Markdown, and what was chosen, in words."""
    cells = []
    for row in rows:
        perplexity = "" if row.perplexity is None else f"{row.perplexity:.1f}"
        p = "" if row.p is None else f"{row.p:.2g}"
        cells.append([row.name, perplexity, f"{row.wer:.2f}", p])
    header = ("tuning part", "perplexity", "WER %", "p against the row above")
    return "\n".join(
        [
            Table("", header, cells, counted=counted).markdown(),
            f"{len(parts.adapting)} lists adapted and {len(parts.tuning)} tuned, of other"
            f" {parts.units}. Each list is rescored with weights that were tuned on others; the LM"
            " was chosen by these lists, so its own figure is a little too good. Perplexity per"
            " word of sentences by themselves, </s> counted.",
            f"Used: {chosen.name} ({chosen.lm}).",
            "",
        ]
    )


def finish(plan: Plan, options: AdaptOptions, chosen: System) -> None:
    """Write what `rescore --adapted` takes."""
    adapted: Dict[str, Any] = {
        "lm": [chosen.lm, *plan.others],
        "ngram": plan.ngrams,
        "weights": plan.weights(chosen),
        "scales": plan.rescored(chosen) / SCALES,
        "precision": plan.precision,
        "normalize": options.normalize,
        "unit": options.unit,
        "ignore_words": options.ignore_words,
        "context": "previous" if chosen.in_context else None,
        "recording_of": options.recording_of if chosen.in_context else None,
    }
    write_adapted(plan.folder, adapted)
