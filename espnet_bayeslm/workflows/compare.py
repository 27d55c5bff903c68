"""Point estimate against Bayesian LM on any text: a table of perplexities with intervals.

For each seed a half-trained point-estimate LM is the start of several LMs: point-estimate LMs with
several rates of dropout, and the Bayesian LM of the shipped configuration. The validation text
chooses among the point-estimate LMs. The half-trained LM is one of them, because with little text
more steps only overfit. The validation text also gives the interpolation weights.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.configs import find_config
from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.evaluation.text_checks import warn_leakage
from espnet_bayeslm.loading.experiment import check_exp
from espnet_bayeslm.report.score_results import ComponentPerplexity
from espnet_bayeslm.scoring.perplexity import read_sentences
from espnet_bayeslm.utils.cli import device_of, parse_numbers
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_yaml_mapping, write_yaml
from espnet_bayeslm.utils.folders import check_folder, folder_lock
from espnet_bayeslm.utils.options import option
from espnet_bayeslm.workflows.commands import (
    MixtureCommands,
    OwnLMs,
    read_components,
    read_perplexity,
)
from espnet_bayeslm.workflows.compare_table import (
    BOTH,
    HALF,
    KNOWN_ONLY,
    ROWS,
    SYSTEMS,
    TWO,
    Choice,
    Dropout,
    Results,
    Values,
    pairs,
)
from espnet_bayeslm.workflows.runner import HEAVY, Tool, run_steps
from espnet_bayeslm.workflows.steps import Step

QUIET = dict(num_workers=0, num_att_plot=0, use_tensorboard="false", use_matplotlib="false")
# Every unknown word is left out of the figures, however many there are.
ANY_OOV = 1.0
# Size -> backbone -> its `lm_conf`
SIZES: Dict[str, Dict[str, Dict[str, Any]]] = {
    "tiny": {
        "lstm": {"dropout_rate": 0.1, "unit": 16, "nlayers": 2},
        "transformer": {"dropout_rate": 0.1, "att_unit": 16, "head": 2, "unit": 32, "layer": 3},
    },
    "small": {
        "lstm": {"dropout_rate": 0.1, "unit": 200, "nlayers": 2},
        "transformer": {"dropout_rate": 0.1, "att_unit": 128, "head": 4, "unit": 512, "layer": 3},
    },
    "paper": {
        "lstm": {"dropout_rate": 0.2, "unit": 1024, "nlayers": 2},
        "transformer": {"dropout_rate": 0.2, "att_unit": 512, "head": 8, "unit": 4096, "layer": 6},
    },
}
COUNTS = ("sentences", "words", "excluded", "known_sentences")
# Components of the mixture of all, in the order of its file
BOTH_ROWS = ("Bayesian alone", "point alone", "3-gram", BOTH)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(EngineOptions):
    """Options of `bayeslm compare`: texts and LMs that are compared."""

    train_text: Path = option("Training text, a sentence a line")
    valid_text: Path = option("Text to tune dropout and weights on, a sentence a line")
    test_text: Path = option("Text that is only scored, a sentence a line")
    size: str = option("Size of the LMs", "small", choices=("small", "paper", "tiny"))
    lm: str = option("Backbone of the LMs", "transformer", choices=("transformer", "lstm"))
    token_type: str = option("Tokens of the LMs", "word", choices=("word", "bpe", "char"))
    vocab_size: Optional[int] = option(
        "Number of tokens; default: all words, or 5000 BPE pieces", None
    )
    epochs: int = option("Epochs of each training; 0: as the configurations say", 0)
    autocast: Optional[str] = option(
        "Precision of the products in training: faster where the CPU or GPU has it",
        None,
        choices=("bfloat16",),
    )
    ngpu: int = option("The number of gpus. 0: CPU mode", 0)
    exp: Path = option("Folder to write", Path("exp/compare"))
    seeds: str = option("Seeds of the trainings, two or more", "1 2 3")
    dropout_rates: str = option("Rates of the point-estimate LM to try", "0.1 0.2 0.3 0.5")


def compare(options: CompareOptions, *, tool: Tool) -> str:
    """Table of perplexities; EXP/RESULTS.md and results.json have it too.

    `tool` runs a command line of `bayeslm`. A run that was stopped goes on.
    """
    exp = options.exp
    seeds = [*parse_numbers("--seeds", options.seeds)]
    rates = [*parse_numbers("--dropout_rates", options.dropout_rates, float)]
    if len(seeds) < 2:
        raise InputError(f"--seeds {seeds}: expected two or more, for an interval over them")
    if not rates or not all(0 <= rate < 1 for rate in rates):
        raise InputError(f"--dropout_rates {rates}: expected one or more of at least 0, below 1")
    workers = options.pool(trains=True, preload=HEAVY)
    if options.engine == "local":
        device_of(options.ngpu)
    check_exp(exp, ",:")
    check_texts(options)
    check_folder(exp)
    with folder_lock(exp):
        work = Work(options, seeds, rates)
        with workers as pool:
            for name, steps in work.stages():
                print(name, file=sys.stderr, flush=True)
                run_steps(pool, steps, exp / "log", tool)
        return work.results().write(exp)


def check_texts(what: CompareOptions) -> None:
    """Check that there is text, and that its lines do not begin with utterance ids."""
    from espnet_bayeslm.training.text import check_plain_texts  # imports torch

    train = what.train_text
    for path in (train, what.valid_text, what.test_text):
        texts = read_sentences(path, keyed=False).values()
        if not any(texts):
            raise InputError("no words", path=path, remedy="Give one sentence per line.")
        if path is not train:
            check_plain_texts(train, path)
            warn_leakage(list(texts), train, what=str(path))


def half_config(what: CompareOptions) -> Dict[str, Any]:
    """The point-estimate phase of the shipped configuration, in a size and with its dropout."""
    config = read_yaml_mapping(find_config(f"bayes_{what.lm}"))
    # each is one pass: where more only overfit, a point estimate would start from what is spoilt
    epochs = what.epochs or config["model_conf"]["warmup_epochs"]
    lm_conf = {"tie_weights": True, "uncertainty": {}, **SIZES[what.size][what.lm]}
    model_conf = {"autocast": what.autocast} if what.autocast else {}
    del config["model"]
    return {**config, "lm_conf": lm_conf, "model_conf": model_conf, "max_epoch": epochs}


class Work(OwnLMs):
    """Steps of a comparison, and their results."""

    def __init__(self, what: CompareOptions, seeds: Sequence[int], rates: Sequence[float]):
        self.what, self.seeds, self.rates = what, list(seeds), sorted(rates)
        # of two seeds there is one pair of starts
        self.systems = [
            (seed, name)
            for seed in seeds
            for name in SYSTEMS
            if name != TWO or seed in pairs(seeds)
        ]
        training: Dict[str, Any] = dict(**QUIET, ngpu=what.ngpu, max_epoch=what.epochs or None)
        training["model_conf"] = f"autocast={what.autocast}" if what.autocast else None
        texts = {"train": what.train_text, "valid": what.valid_text, "test": what.test_text}
        super().__init__(what.exp, texts, training, dict(max_oov_rate=ANY_OOV, ngpu=what.ngpu))

    def stages(self) -> Iterator[Tuple[str, List[Step]]]:
        """Yield each stage's name and the steps that are run side by side in it."""
        what, half = self.what, self.exp / "half.yaml"
        write_yaml(half, half_config(what))
        tokens: Dict[str, Any] = dict(token_type=what.token_type, vocab_size=what.vocab_size)
        first = [self.train(self.lm(n, HALF), half, seed=n, **tokens) for n in self.seeds]
        yield "a 3-gram, and a half-trained point-estimate LM a seed", [self.estimate(), *first]
        second = [step for seed in self.seeds for step in self._second_halves(seed)]
        yield "the second half: point estimates by rate of dropout, and the Bayesian LM", second
        mixtures = [self.system(*system) for system in self.systems]
        steps = [
            Step(mix.key, [mix.estimate(what.valid_text), self.measure(mix)]) for mix in mixtures
        ]
        yield "interpolation weights and perplexities", steps

    def _second_halves(self, seed: int) -> Iterator[Step]:
        """Yield the Bayesian LM, and point estimates with their perplexity of validation text."""
        options: Dict[str, Any] = dict(seed=seed, source=self.lm(seed, HALF))
        config = f"bayes_{self.what.lm}"
        yield self.train(self.lm(seed, "bayes"), config, **options)
        for rate in self.rates:
            # the same steps, without uncertainty
            conf = ["uncertainty={}", f"dropout_rate={rate}"]
            step = self.train(self.lm(seed, rate), config, **options, lm_conf=conf)
            yield step.then(self._validated(seed, rate))
        yield self._validated(seed, HALF)

    def _validated(self, seed: int, choice: Choice) -> Step:
        """The perplexity of the validation text."""
        lm = MixtureCommands(self.exp, "", [self.lm(seed, choice)], (), self.scoring)
        valid = dict(text=self.what.valid_text, output=self._valid(seed, choice))
        return Step(f"seed{seed}_valid_{choice}", [lm.scored("perplexity", **valid)])

    def system(self, seed: int, name: str) -> MixtureCommands:
        """LMs of a system and the 3-gram, with point estimates as they were chosen."""
        other = pairs(self.seeds)[seed][1] if name == TWO else seed
        seeds = {"bayes": seed, "point": seed, "other": other}
        lms = [
            self.lm(seeds[lm], "bayes" if lm == "bayes" else self.dropout(seeds[lm]).chosen)
            for lm in SYSTEMS[name]
        ]
        return self.mixture([f"seed{seed}", *SYSTEMS[name]], lms)

    def lm(self, seed: int, choice: Choice) -> Path:
        """Folder of an LM: `bayes`, `half`, or the point estimate with a rate of dropout."""
        name = choice if isinstance(choice, str) else f"point_{choice}"
        return self.exp / f"seed{seed}" / name

    def _valid(self, seed: int, choice: Choice) -> Path:
        return self.exp / f"seed{seed}" / f"valid_point_{choice}.json"

    def dropout(self, seed: int) -> Dropout:
        """The best point estimate of a seed; of equally good ones the first, with less training."""
        choices: Tuple[Choice, ...] = (HALF, *self.rates)
        valid = {choice: read_perplexity(self._valid(seed, choice)) for choice in choices}
        return Dropout(min(choices, key=lambda choice: valid[choice]), valid)

    def results(self) -> Results:
        """Figures of all seeds."""
        found = {
            system: read_components(self.system(*system).perplexity) for system in self.systems
        }
        text = found[self.systems[0]][-1]
        return Results(
            **{name: getattr(text, name) for name in COUNTS},
            seeds=self.seeds,
            dropout={seed: self.dropout(seed) for seed in self.seeds},
            perplexity=by_system(found, "perplexity_without_oov"),
            perplexity_of_known_sentences=by_system(found, KNOWN_ONLY),
        )


def by_system(
    found: Mapping[Tuple[int, str], Sequence[ComponentPerplexity]], figure: str
) -> Dict[str, Values]:
    """{system: {seed: a figure of the test text}}.

    LMs alone are taken from the mixture of all, so that every figure leaves out the same words:
    the words that a component of this mixture does not know.
    """
    of_system: Dict[str, Values] = {name: {} for name in ROWS}
    for (seed, name), components in found.items():
        rows = BOTH_ROWS if name == BOTH else (name,)
        for row, component in zip(rows, components[-len(rows) :], strict=True):
            value = getattr(component, figure)["word"]
            of_system[row][seed] = math.nan if value is None else value
    return of_system
