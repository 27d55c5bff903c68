"""Command lines that adapt a pretrained LM, rescore lists with it, and count errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.pretrained.names import is_pretrained
from espnet_bayeslm.workflows.commands import MixtureCommands, evaluation
from espnet_bayeslm.workflows.steps import Step, words

AS_IT_IS, ADAPTED, IN_CONTEXT = "as it is", "adapted", "{}, in context"
WITH_BIAS, BIAS_FILES = "{}, and the bias list", "bias_"
"""Name of a row with the bias list; beginning of the names of the files that compare it."""
FOLDS = 5
"""Parts of the tuning lists: each is rescored with weights that were tuned on the others."""

# Epochs at most, and those without a gain that do not end a training. The rate halves after each:
# in 19 trainings none gained after an epoch that did not, and the ninth to the twentieth nothing.
MAX_EPOCH, PATIENCE = 8, 0
# Tokens of consecutive sentences that are read as one where an adapter is trained in context
RUN = 256
# Of little text: a rank that underfits none of it, and small batches
_LITTLE = {"lm_conf": ["lora.r=64"], "batch_bins": 256}
SHIPPED: Mapping[str, Mapping[str, Any]] = {
    # dropout gains nothing, and takes a fifth of the time
    "lora": {**_LITTLE, "lm_conf": ["lora.r=64", "lora.dropout=0.0"]},
    # the noise of an adapter's product grows with its rank: half the deviation of rank 16
    "ivon_lora": {**_LITTLE, "optim_conf": "ess=40000000"},
    "bayes_lora": _LITTLE,
}
"""Configuration of an adapter -> what it has for a few hundred sentences."""
FEW = 1000
"""Sentences from which on `lora` predicts the validation text as well as `bayes_lora`, or better.

Source: egs2/ami/lm/RESULTS_adapters.md.
"""


def tried(sentences: int) -> Tuple[str, ...]:
    """Configurations that are tried on so many sentences, unless --adapter names some."""
    return ("bayes_lora" if sentences < FEW else "lora",)


class System(NamedTuple):
    """A way to rescore: an LM, and its options beside those of all.

    Attributes:
        name: Name in tables.
        config: Configuration of the adapter; None for the LM as it is.
        in_context: True if it goes on from the utterances before.
        biased: True if it weighs the bias list.
        has_lm: False for the bias list alone.
    """

    name: str
    config: Optional[str] = None
    in_context: bool = False
    biased: bool = False
    has_lm: bool = True

    @property
    def key(self) -> str:
        """Name of its files."""
        return self.name.replace(", ", "_").replace(" ", "_")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Command lines of an adaptation, whose files are in one folder.

    Attributes:
        folder: The folder; `data` in it has texts and lists.
        lm: The LM that is adapted, as `--from` has it.
        base: Base model of an adapter, where it is not at its path.
        configs: Configurations of the adapters that are tried; none: `tried` names them.
        parts: Number of parts of the references; an adapter learns all but one.
        max_epoch: Epochs, at most.
        others: LMs that are interpolated with the LM.
        ngrams: n-grams that are.
        precision: Of the LM's weights.
        text_form: Form in which the LM reads text, which has been chosen; None: each command
            chooses it.
        counting: Options of `rescore` and `score` that say what is counted.
        context: Options of `--context previous`, which say what utterances belong together; none:
            each utterance is read by itself.
        bias: File of the bias lists.
    """

    folder: Path
    lm: str
    configs: Sequence[str]
    parts: int = 2
    max_epoch: int = MAX_EPOCH
    base: Optional[str] = None
    others: Sequence[str] = ()
    ngrams: Sequence[str] = ()
    precision: str = "float32"
    text_form: Optional[str] = None
    counting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    bias: Optional[str] = None

    def data(self, name: str) -> Path:
        """File of the texts and lists.

        adaptN.txt and validN.txt train the adapter that did not see part N, adapt.txt chooses the
        text form; tune.text, tune.jsonl and tune.ref measure and tune.
        """
        return self.folder / "data" / name

    def exp(self, config: str, part: Optional[int] = None) -> Path:
        """Experiment of an adapter that did not see a part, or of the mean of all.

        Their folders have one name: weights belong to it.
        """
        place = self.folder if part is None else self.folder / "parts" / str(part)
        return place / Path(config).stem

    def utt2lm(self, config: str) -> Path:
        """File of the adapter that scores each utterance, one that did not see it."""
        return self.data(f"{Path(config).stem}.utt2lm")

    def adapters(self, config: str) -> List[Step]:
        """Trainings of the adapters of a configuration, until their part no longer gains."""
        return [self._training(config, part) for part in range(1, self.parts + 1)]

    def _training(self, config: str, part: int) -> Step:
        """Training of the adapter that does not see a part."""
        little, exp = dict(SHIPPED.get(config, {})), self.exp(config, part)
        reading = [f"precision={self.precision}"]
        reading += [f"text_form={self.text_form}"] if self.text_form else []
        options: Dict[str, Any] = {
            "config": config,
            "exp": exp,
            "from": self.lm,
            "base": self.base,
            "train_text": self.data(f"adapt{part}.txt"),
            "valid_text": self.data(f"valid{part}.txt"),
            "context": RUN if self.context else None,
            "max_epoch": self.max_epoch,
            "patience": PATIENCE,
            **little,
            "lm_conf": [*little.get("lm_conf", ()), *reading],
            # the adapter's products too, whose weights stay in float32
            "model_conf": "autocast=bfloat16" if self.precision == "bfloat16" else None,
        }
        return Step(f"{exp.name}_{part}", [words("train", **options)])

    def mixture(self, config: Optional[str]) -> MixtureCommands:
        """The LM as it is, or its adapters, with the LMs and n-grams that are interpolated."""
        options = {
            "utt2lm": None if config is None else self.utt2lm(config),
            "base": self.base if config is None else None,
            "precision": self.precision,
            # it would hold for other pretrained LMs too
            "text_form": None if any(map(is_pretrained, self.others)) else self.text_form,
        }
        key = System(AS_IT_IS).key if config is None else Path(config).stem
        lm = self.lm if config is None else str(self.exp(config, 1))
        return MixtureCommands(self.folder, key, [lm, *self.others], self.ngrams, options)

    def weights(self, config: Optional[str]) -> Optional[Path]:
        """File of the weights of LMs and n-grams; None where the LM is alone."""
        return self.mixture(config).weights if self.others or self.ngrams else None

    def measuring(self, config: Optional[str]) -> Step:
        """Weights of LMs and n-grams, and the perplexity of all references.

        Sentences are read by themselves, each by an LM that did not see it.
        """
        mixture = self.mixture(config)
        line = mixture.estimate(self.data("tune.text"), keyed="true")
        return Step(f"{mixture.key}_text", [line], reads=self.parts_of(config))

    def systems(self, config: str) -> List[System]:
        """All systems, with the adapters of a configuration."""
        as_it_is, adapted = System(AS_IT_IS), System(ADAPTED, config)
        if not self.context:
            return [as_it_is, adapted]
        in_context = (
            System(IN_CONTEXT.format(system.name), system.config, in_context=True)
            for system in (as_it_is, adapted)
        )
        return [as_it_is, *in_context]

    def rescored(self, system: System) -> Path:
        """Folder of the lists that a system has rescored."""
        return self.folder / "rescored" / system.key

    def rescoring(self, system: System) -> Step:
        """Lists that a system rescored, each in its fold, after its weights were measured."""
        alone = MixtureCommands(self.folder, system.key, (), (), {})
        mixture = self.mixture(system.config) if system.has_lm else alone
        line = mixture.scored(
            "rescore",
            **self.counting,
            **(self.context if system.in_context else {}),
            nbest=self.data("tune.jsonl"),
            tune_ref=self.data("tune.ref"),
            weights=self.weights(system.config) if system.has_lm else None,
            bias=self.bias if system.biased else None,
            folds=FOLDS,
            output=self.rescored(system),
        )
        return Step(system.key, [line], reads=self.parts_of(system.config))

    def parts_of(self, config: Optional[str]) -> List[Path]:
        """Experiments of the adapters that did not see a part, which `utt2lm` names."""
        return [] if config is None else [self.exp(config, n) for n in range(1, self.parts + 1)]

    def evaluation(self, systems: Sequence[System], prefix: str = "") -> Step:
        """Word errors of all systems with their tests, and a report.

        With the prefix `BIAS_FILES` words of the bias lists, and all others, are counted too.
        """
        rescored = {system.name: self.rescored(system) for system in systems}
        ref, bias = self.data("tune.ref"), self.bias if prefix else None
        counting = {"ref": ref, "nbest": self.data("tune.jsonl"), "bias": bias, **self.counting}
        how: Any = dict(counting=counting, report={"ref": ref, "bias": bias}, prefix=prefix)
        return evaluation(self.folder, rescored, "bayeslm adapt", **how)
