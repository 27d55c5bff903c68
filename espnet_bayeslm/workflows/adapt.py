"""Lists with references to an adapted LM, its weights and what they gain, in one command.

Cross-fitting takes all lists for both: adapters that learn the references of all parts but one
score the lists of this one. So every figure is of lists whose references no adapter has seen, and
each list is rescored with weights that were tuned on others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.nbest.formats import write_nbest
from espnet_bayeslm.nbest.segments import SOURCES
from espnet_bayeslm.pretrained.names import is_pretrained
from espnet_bayeslm.report.counted_outputs import SCALES
from espnet_bayeslm.report.score_results import read_scores
from espnet_bayeslm.rescoring.adapted_folder import write_adapted
from espnet_bayeslm.training.plain_text import whole_name
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines, write_text, write_yaml
from espnet_bayeslm.utils.folders import check_folder, folder_lock
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.workflows.adapt_choice import (
    Biased,
    Result,
    chosen_row,
    gains_table,
    kept_scales,
    read_biased,
    read_results,
    why_none,
)
from espnet_bayeslm.workflows.adapt_data import (
    AdaptOptions,
    Data,
    checked_data,
    write_texts,
    write_utt2lm,
)
from espnet_bayeslm.workflows.adapt_systems import BIAS_FILES, WITH_BIAS, Plan, System, tried
from espnet_bayeslm.workflows.commands import SCORES, read_perplexity
from espnet_bayeslm.workflows.runner import HEAVY, Tool, run_steps
from espnet_bayeslm.workflows.steps import Step

# A training step takes three times as long as scoring its tokens; of 20-best lists the hypotheses
# share about half of their tokens; loading LMs and choosing a text form take a minute in all
TRAINING, SHARED, STARTING = 3, 0.5, 1
USUAL_EPOCHS = 3
PROBE = 24
"""References that are scored to see how fast the LM is."""

Run = Callable[[Sequence[Step]], None]
"""A function that runs steps."""


def adapt(options: AdaptOptions, tool: Tool) -> None:
    """Adapt, tune, and print what it gains; a run that was stopped goes on."""
    begin, folder = time.monotonic(), Path(options.output)
    plan = planned(options)
    check_folder(folder)
    workers = options.work.pool(trains=True, preload=HEAVY)
    data = checked_data(options)
    with folder_lock(folder), contextlib.ExitStack() as stack:
        write_texts(plan, data)
        pool = stack.enter_context(workers)
        run = functools.partial(run_steps, pool, logs=folder / "log", tool=tool)
        plan = ready(plan, data, pool)
        if options.nbest is None:
            learn(plan, pool, run)
            print(f"next: the same command with --nbest LISTS tunes, and writes {folder}")
            return
        write_nbest(data.lists, plan.data("tune.jsonl"), format="jsonl")
        systems = measure(plan, run)
        scores = read_scores(str(folder / SCORES))
        results = read_results(plan, systems, scores.pooled)
        used = chosen_row(results)
        biased = None if plan.bias is None else with_bias(plan, systems, used, run)
        if used.config is not None:
            pool.executor.submit(average, plan, used.config).result()
        text = gains_table(results, used, data.parts, scores.counted, biased)
        text += f"{(time.monotonic() - begin) / 60:.1f} minutes.\n"
        write_text(folder / "RESULTS.md", text)
        finish(plan, options, results, used, biased)
    print(text)
    print(f"{folder}/report.html: every list beside its reference")
    more = " --bias THEIR_NAMES" if options.bias is not None else ""
    print(f"next: bayeslm rescore --nbest LISTS --adapted {folder}{more} --output DIR")


def learn(plan: Plan, pool: Pool, run: Run) -> None:
    """Train adapters on references that have no lists yet."""
    run([*itertools.chain(*map(plan.adapters, plan.configs))])
    if len(plan.configs) == 1:  # of several the lists' other LMs choose
        pool.executor.submit(average, plan, plan.configs[0]).result()


def average(plan: Plan, config: str) -> None:
    """Write the adapter that is used: the mean of those that each left out a part."""
    from espnet_bayeslm.loading.export import write_average

    write_average(plan.exp(config), plan.parts_of(config))


def measure(plan: Plan, run: Run) -> List[System]:
    """Systems whose lists are rescored, with word errors; the references choose their adapters."""
    weights = plan.measuring(None)
    as_it_is = [system for system in plan.systems(plan.configs[0]) if system.config is None]
    adapters = {config: plan.adapters(config) for config in plan.configs}
    run(
        [
            *itertools.chain(*adapters.values()),
            weights,
            *(plan.rescoring(system).needs(weights) for system in as_it_is),
            *(plan.measuring(config).needs(*own) for config, own in adapters.items()),
        ]
    )
    perplexities = {c: read_perplexity(plan.mixture(c).weights) for c in plan.configs}
    for config, perplexity in perplexities.items():
        LOG.info("%s: perplexity %.2f per word of the references", config, perplexity)
    systems = plan.systems(min(perplexities, key=perplexities.__getitem__))
    last = plan.rescoring(systems[-1])
    run([last, plan.evaluation(systems).needs(last)])
    return systems


def with_bias(plan: Plan, systems: Sequence[System], used: Result, run: Run) -> Biased:
    """Row of the system that is used, with the bias list: it is tuned and tested once more."""
    before = used.system or systems[0]  # whose lists have those of the control beside them
    own = used.system or System("", has_lm=False)
    system = own._replace(name=WITH_BIAS.format(used.name), biased=True)
    rescoring = plan.rescoring(system)
    run([rescoring, plan.evaluation([before, system], BIAS_FILES).needs(rescoring)])
    return read_biased(read_scores(str(plan.folder / f"{BIAS_FILES}{SCORES}")), used.name, system)


def ready(plan: Plan, data: Data, pool: Pool) -> Plan:
    """Plan with all that the data choose; says how long it will take about."""
    form, rate = measured(pool, plan)
    adapting = _sentences(plan.data("adapt.txt"))
    configs = plan.configs or tried(len(adapting))
    plan = dataclasses.replace(plan, text_form=form, configs=configs, parts=data.parts.number)
    for config in configs:
        write_utt2lm(plan, data.parts, config)
    announce(plan, data, adapting, workers=pool.workers, rate=rate)
    return plan


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
    recordings, errors = options.recordings, options.errors
    given = {"unit": errors.unit, "ignore_words": errors.ignore_words}
    sources = {name: getattr(recordings, name) for name in SOURCES}
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
        bias=options.bias and str(Path(options.bias).resolve()),
        context={} if recordings.context == "none" else {"context": recordings.context, **sources},
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
    """Form in which the LM reads the references best, and words that it scores in a second here.

    The form is one in which an adapter can be trained.
    """
    from espnet_bayeslm.engine.processes import set_threads
    from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
    from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer
    from espnet_bayeslm.pretrained.text_forms import training_readers

    set_threads(1)
    lm = load_causal_lm(plan.lm, base=plan.base, precision=plan.precision)
    scorer = PretrainedScorer(lm)
    sentences = _sentences(plan.data("adapt.txt"))
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
    plan: Plan, data: Data, adapting: Sequence[Sequence[str]], *, workers: int, rate: float
) -> None:
    """Say how the lists are divided, and how long it will take about.

    The sentences `adapting` train, and one worker scores `rate` words a second.
    """
    hypotheses = sum(len(hyp.words) for item in data.lists for hyp in item.hypotheses)
    parts = data.parts
    # each part is left out once, and is read after each epoch
    passes = (parts.number - 1) * TRAINING + 1
    epochs = min(USUAL_EPOCHS, plan.max_epoch) * math.ceil(len(plan.configs) / workers)
    # systems, of which those in context score the lists twice
    read = (5 if plan.context else 2) * SHARED * hypotheses / min(workers, 2)
    minutes = STARTING + (epochs * passes * sum(map(len, adapting)) + read) / rate / 60
    LOG.info(
        "%d lists of %d parts; %s stay whole. About %.0f minutes on %d process%s",
        *(len(data.lists), parts.number, parts.units, minutes, workers, "es" * (workers > 1)),
    )


def finish(
    plan: Plan,
    options: AdaptOptions,
    results: Sequence[Result],
    used: Result,
    biased: Optional[Biased] = None,
) -> None:
    """Write what `rescore --adapted` takes."""
    scales, system = kept_scales(plan, results, used, biased), used.system
    adapted: Dict[str, Any] = {
        "used": used.name if biased is None or biased.row.unused else biased.row.name,
        "scales": plan.folder / SCALES,
        "normalize": options.normalize,
        "unit": options.errors.unit,
        "ignore_words": options.errors.ignore_words,
    }
    if system is None:
        adapted["note"] = why_none(results)
    else:
        lm = plan.lm if used.config is None else str(plan.exp(used.config))
        adapted.update(
            lm=[lm, *plan.others],
            ngram=plan.ngrams,
            weights=plan.weights(used.config),
            precision=plan.precision,
        )
    if system is not None and system.in_context:
        adapted.update(context="previous", recording_of=options.recordings.recording_of)
    if used.config is not None:
        from espnet_bayeslm.loading.pretrained_lm import adapted_digest

        # the scales were tuned with adapters of the same name
        digest = adapted_digest(plan.exp(used.config))
        known = {Path(used.config).stem: digest, **scales.get("fingerprints", {})}
        scales["fingerprints"] = known
    write_yaml(plan.folder / SCALES, scales)
    write_adapted(plan.folder, adapted)
