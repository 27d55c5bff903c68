"""Point estimate against Bayesian LM on any text: a table of perplexities with intervals.

For each seed a half-trained point-estimate LM is the start of point-estimate LMs with several rates
of dropout, and of the Bayesian LM by the shipped configuration as it is. Of the former and of the
half-trained LM as it came (with little text more steps only overfit) the validation text chooses
one. It also gives the interpolation weights.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import yaml

from espnet_bayeslm.configs import find_config
from espnet_bayeslm.configs.tables import paper_tables
from espnet_bayeslm.evaluation.text import check_no_ids, read_sentences
from espnet_bayeslm.loading.experiment import check_exp
from espnet_bayeslm.quickstart.compare_table import (
    BOTH,
    HALF,
    POINT,
    SYSTEMS,
    TWO,
    Choice,
    pairs,
    write_tables,
)
from espnet_bayeslm.quickstart.plan import words
from espnet_bayeslm.quickstart.steps import Step, Tool, run_steps
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import check_folder, sha256, write_json, write_yaml
from espnet_bayeslm.utils.locks import folder_lock

QUIET = dict(num_workers=0, num_att_plot=0, use_tensorboard="false", use_matplotlib="false")
# Every unknown word is left out of the figures, however many there are.
ANY_OOV = 1.0


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What is compared.

    Attributes:
        train_text: Training text, a sentence a line.
        valid_text: Text that dropout and weights are tuned on.
        test_text: Text that is only scored.
        size: Size of the LMs: `tiny`, `small` or `paper`.
        lm: `lstm` or `transformer`.
        token_type: `word`, `bpe` or `char`.
        vocab_size: At most so many tokens; None: all words, 5000 pieces.
        epochs: Of each training, in place of those of the configurations (0).
        ngpu: GPUs.
        autocast: Precision of the products in training, see `BayesLanguageModel`; None: single.
    """

    train_text: Path
    valid_text: Path
    test_text: Path
    size: str
    lm: str
    token_type: str
    vocab_size: Any
    epochs: int
    ngpu: int
    autocast: Optional[str] = None


def compare(
    what: Comparison, exp: Path, *, seeds: Sequence[int], rates: Sequence[float], tool: Tool
) -> str:
    """Table of perplexities; EXP/RESULTS.md, results.tsv and results.json have it too.

    Args:
        what: Texts and LMs.
        exp: The folder of all that is made. A run that was stopped goes on there.
        seeds: Of the trainings.
        rates: Rates of dropout of the point-estimate LM.
        tool: What runs a command line of `bayeslm`.

    Raises:
        InputError: A text cannot be used, there are too few seeds, or the folder is another
            comparison's.
    """
    if len(seeds) < 2:
        raise InputError(f"--seeds {seeds}: expected two or more, for an interval over them")
    if not rates or not all(0 <= rate < 1 for rate in rates):
        raise InputError(f"--dropout_rates {rates}: expected one or more of at least 0, below 1")
    check_exp(exp, ",:")
    check_texts(what)
    check_folder(exp)
    with folder_lock(exp):
        check_inputs(what, exp)
        work = Work(what, exp, seeds, rates)
        for name, steps in work.stages():
            print(name, file=sys.stderr, flush=True)
            run_steps(steps, exp / "log", tool)
        return write_tables(exp, work.results())


def check_texts(what: Comparison) -> None:
    """Check that there is text, and that its lines do not begin with utterance ids.

    Raises:
        InputError: A text is missing or has no words, or its lines do.
    """
    paths = (what.train_text, what.valid_text, what.test_text)
    train, *others = (list(read_sentences(path, keyed=False).values()) for path in paths)
    known = {word for sentence in train for word in sentence}
    for path, sentences in zip(paths, (train, *others), strict=True):
        if not any(sentences):
            raise InputError("no words", path=path, remedy="Give one sentence per line.")
        remedy = "If they are utterance ids, give the texts without them."
        check_no_ids(sentences, known, path=path, remedy=remedy)


def check_inputs(what: Comparison, exp: Path) -> None:
    """Note in the folder what is compared there; seeds and rates may be added later.

    Raises:
        InputError: Something else is compared there.
    """
    content = {name: str(value) for name, value in dataclasses.asdict(what).items()}
    del content["ngpu"]
    if what.autocast is None:
        del content["autocast"]  # a folder of before there was the option goes on
    for name in ("train_text", "valid_text", "test_text"):
        content[name] = sha256(content[name])
    path = exp / "inputs.json"
    if not path.exists():
        write_json(path, content)
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    names = dict.fromkeys([*content, *before])
    other = [f"--{name}" for name in names if before.get(name) != content.get(name)]
    if other:
        raise InputError(
            f"another comparison, of other {', '.join(other)}",
            path=exp,
            remedy="Give a new --exp.",
        )


def half_config(lm: str, size: str) -> Dict[str, Any]:
    """The point-estimate phase of the shipped configuration, in a size and with its dropout."""
    config = yaml.safe_load(find_config(f"bayes_{lm}").read_text(encoding="utf-8"))
    epochs = config["model_conf"]["warmup_epochs"]
    # each is one pass: where more only overfit, a point estimate would start from what is spoilt
    del config["model"], config["model_conf"]
    return {**config, "lm_conf": paper_tables().half(size, lm)["lm_conf"], "max_epoch": epochs}


class Work:
    """Steps of a comparison, and their results.

    Args:
        what: Texts and LMs.
        exp: The folder.
        seeds: Of the trainings.
        rates: Rates of dropout.
    """

    def __init__(self, what: Comparison, exp: Path, seeds: Sequence[int], rates: Sequence[float]):
        self.what, self.exp, self.seeds, self.rates = what, exp, tuple(seeds), sorted(rates)
        self.ngram, self.half = exp / "3gram.arpa", exp / "half.yaml"

    def stages(self) -> Iterator[Tuple[str, List[Step]]]:
        """What is done, in this order, and the steps of each, which are run side by side."""
        what, estimate = self.what, dict(order=3, arpa=self.ngram, discount_fallback="true")
        write_yaml(self.half, half_config(what.lm, what.size))
        ngram = Step("ngram", [words("ngram", text=what.train_text, **estimate)])
        halves = [self._train(seed, "half", self.half) for seed in self.seeds]
        yield "a 3-gram, and a half-trained point-estimate LM a seed", [ngram, *halves]
        lms = [step for seed in self.seeds for step in self._second_halves(seed)]
        yield "the second half: point estimates by rate of dropout, and the Bayesian LM", lms
        systems = [self._system(seed, name) for seed in self.seeds for name in self._systems(seed)]
        yield "interpolation weights and perplexities", systems

    def _train(self, seed: int, name: str, config: object, *conf: str) -> Step:
        """Training of an LM; all but the half-trained ones go on from that."""
        what, folder = self.what, self.exp / f"seed{seed}"
        options: Dict[str, Any] = dict(config=config, exp=folder / name, seed=seed, **QUIET)
        options.update(ngpu=what.ngpu, train_text=what.train_text, valid_text=what.valid_text)
        options["max_epoch"] = what.epochs or None
        options["model_conf"] = f"autocast={what.autocast}" if what.autocast else None
        if name == "half":
            options.update(token_type=what.token_type, vocab_size=what.vocab_size)
        else:
            options["from"] = folder / "half"
        return Step(f"seed{seed}_{name}", [words("train", **options, lm_conf=list(conf))])

    def _second_halves(self, seed: int) -> Iterator[Step]:
        """The Bayesian LM, and point estimates with their perplexity of the validation text."""
        yield self._train(seed, "bayes", f"bayes_{self.what.lm}")
        for rate in self.rates:
            # the same steps, without uncertainty
            conf = ("uncertainty={}", f"dropout_rate={rate}")
            step = self._train(seed, f"point_{rate}", f"bayes_{self.what.lm}", *conf)
            yield Step(step.name, [*step.commands, self._validated(seed, rate)])
        yield Step(f"seed{seed}_valid_{HALF}", [self._validated(seed, HALF)])

    def _validated(self, seed: int, choice: Choice) -> List[str]:
        """The perplexity of the validation text."""
        valid = dict(text=self.what.valid_text, output=self._valid(seed, choice))
        return self._scored("perplexity", [self._point(seed, choice)], **valid)

    def _scored(self, tool: str, lms: Sequence[Path], **options: object) -> List[str]:
        common = dict(max_oov_rate=ANY_OOV, ngpu=self.what.ngpu, cache=self.exp / "cache")
        return words(tool, lm=list(lms), **common, **options)

    def _systems(self, seed: int) -> Iterator[str]:
        yield from (name for name in SYSTEMS if name != TWO or seed in pairs(self.seeds))

    def _system(self, seed: int, name: str) -> Step:
        """Weights of a mixture by EM on the validation text, and its perplexity of the test."""
        lms, what = [self._lm(seed, key) for key in SYSTEMS[name]], self.what
        weights, output = self._weights(seed, name), self._output(seed, name)
        tune = dict(ngram=self.ngram, text=what.valid_text, output=weights)
        score = self.scored("perplexity", seed, name, text=what.test_text, output=output)
        return Step(output.stem, [self._scored("interpolate", lms, **tune), score])

    def scored(self, tool: str, seed: int, name: str, **options: object) -> List[str]:
        """Command line of a tool that takes the LMs of a system, the 3-gram and their weights."""
        lms = [self._lm(seed, key) for key in SYSTEMS[name]]
        return self._scored(
            tool, lms, ngram=self.ngram, weights=self._weights(seed, name), **options
        )

    def _lm(self, seed: int, key: str) -> Path:
        """Folder of an LM: `bayes`, `point` as it was chosen, or `other` seed's point."""
        if key == "bayes":
            return self.exp / f"seed{seed}" / "bayes"
        seed = pairs(self.seeds)[seed][1] if key == "other" else seed
        return self._point(seed, self._chosen(seed))

    def _point(self, seed: int, choice: Choice) -> Path:
        name = HALF if choice == HALF else f"point_{choice}"
        return self.exp / f"seed{seed}" / name

    def _valid(self, seed: int, choice: Choice) -> Path:
        return self.exp / f"seed{seed}" / f"valid_point_{choice}.json"

    def _weights(self, seed: int, name: str) -> Path:
        return self.exp / "weights" / f"seed{seed}_{'_'.join(SYSTEMS[name])}_3gram.yaml"

    def _output(self, seed: int, name: str) -> Path:
        return self.exp / "perplexity" / self._weights(seed, name).with_suffix(".json").name

    def _tuned(self, seed: int, figure: str = "perplexity_without_oov") -> Dict[Choice, float]:
        """{rate of dropout, or `half`: a figure of the validation text}."""
        choices: Tuple[Choice, ...] = (HALF, *self.rates)
        return {choice: _perplexities(self._valid(seed, choice), figure)[-1] for choice in choices}

    def _chosen(self, seed: int) -> Choice:
        """The best; of equally good ones the first, less training and then less dropout."""
        tuned = self._tuned(seed)
        return min(tuned, key=lambda choice: tuned[choice])

    def results(self) -> Dict[str, Any]:
        """Figures of all seeds.

        The LMs alone are taken from the mixture of all, so that every figure leaves out the same
        words, those that one of its components does not know.
        """
        last = _summaries(self._output(self.seeds[0], POINT))[-1]
        return {
            **{key: last[key] for key in ("sentences", "words", "excluded", "known_sentences")},
            "seeds": list(self.seeds),
            "dropout": {
                seed: {
                    "chosen": self._chosen(seed),
                    "valid": self._tuned(seed),
                    "valid_of_known_sentences": self._tuned(seed, "perplexity_of_known_sentences"),
                }
                for seed in self.seeds
            },
            "weights": {seed: self._all_weights(seed) for seed in self.seeds},
            "perplexity": self._test("perplexity_without_oov"),
            "perplexity_of_known_sentences": self._test("perplexity_of_known_sentences"),
        }

    def _test(self, figure: str) -> Dict[str, Dict[int, float]]:
        """{system: {seed: a figure of the test text}}."""
        perplexities: Dict[str, Dict[int, float]] = {}
        for seed in self.seeds:
            alone = _perplexities(self._output(seed, BOTH), figure)
            found = dict(zip(BOTH_ROWS, alone, strict=True))
            for name in self._systems(seed):
                found[name] = _perplexities(self._output(seed, name), figure)[-1]
            for name, value in found.items():
                perplexities.setdefault(name, {})[seed] = value
        return perplexities

    def _all_weights(self, seed: int) -> Mapping[str, List[float]]:
        """{system: weights}, the 3-gram's last."""
        found = {}
        for name in self._systems(seed):
            content = yaml.safe_load(self._weights(seed, name).read_text(encoding="utf-8"))
            found[name] = [row["weight"] for row in content["components"]]
        return found


# Rows of the file of the mixture of all: its components in their order
BOTH_ROWS = ("Bayesian alone", "point alone", "3-gram", BOTH)


def _summaries(path: Path) -> List[Dict[str, Any]]:
    """Rows that `bayeslm perplexity` wrote, the mixture's last."""
    rows: List[Dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["components"]
    return rows


def _perplexities(path: Path, figure: str = "perplexity_without_oov") -> List[float]:
    """Their perplexities per word, nan where nothing is counted."""
    found = (row[figure]["word"] for row in _summaries(path))
    return [math.nan if value is None else value for value in found]
