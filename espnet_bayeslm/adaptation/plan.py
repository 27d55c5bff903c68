"""Command lines that adapt a pretrained LM, rescore lists with it, and count errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.pretrained.names import is_pretrained
from espnet_bayeslm.quickstart.steps import Step, words
from espnet_bayeslm.rescoring.decision import WITHOUT_LM

FIRST, CONTROL = "first pass", "first pass, tuned"
AS_IT_IS, ADAPTED, IN_CONTEXT = "as it is", "adapted", "{}, in context"
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
        lm: The LM, as `--lm` has it.
        in_context: True if it goes on from the utterances before.
    """

    name: str
    lm: str
    in_context: bool = False

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
        max_epoch: Epochs, at most.
        others: LMs that are interpolated with the LM.
        ngrams: n-grams that are.
        precision: Of the LM's weights.
        text_form: Form in which the LM reads text, which has been chosen; None: each command
            chooses it.
        counting: Options of `rescore` and `score` that say what is counted.
        context: Options of `--context previous`, which say what utterances belong together; none:
            each utterance is read by itself.
    """

    folder: Path
    lm: str
    configs: Sequence[str]
    max_epoch: int = MAX_EPOCH
    base: Optional[str] = None
    others: Sequence[str] = ()
    ngrams: Sequence[str] = ()
    precision: str = "float32"
    text_form: Optional[str] = None
    counting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def data(self, name: str) -> Path:
        """File of the divided lists.

        adapt.txt and valid.txt train; tune.txt, tune.jsonl and tune.ref measure and tune.
        """
        return self.folder / "data" / name

    def exp(self, config: str) -> Path:
        """Experiment of an adapter."""
        return self.folder / Path(config).stem

    @property
    def logs(self) -> Path:
        """Folder of the logs and marks of steps."""
        return self.folder / "log"

    @property
    def scores(self) -> Path:
        """File of all word errors."""
        return self.folder / "score.json"

    def adapter(self, config: str) -> Step:
        """Training of an adapter, until the tuning text no longer gains, and its perplexity."""
        little = dict(SHIPPED.get(config, {}))
        options: Dict[str, Any] = {
            "config": config,
            "exp": self.exp(config),
            "from": self.lm,
            "base": self.base,
            "train_text": self.data("adapt.txt"),
            "valid_text": self.data("valid.txt"),
            "context": RUN if self.context else None,
            "max_epoch": self.max_epoch,
            "patience": PATIENCE,
            **little,
            "lm_conf": [*little.get("lm_conf", ()), *self._reading()],
            # the adapter's products too, whose weights stay in float32
            "model_conf": "autocast=bfloat16" if self.precision == "bfloat16" else None,
        }
        # of the average of epochs that is used, which may be worse than the best of them
        lm = str(self.exp(config))
        text = {**self._scoring(lm), "text": self.data("tune.txt")}
        measure = words("perplexity", **text, output=self.perplexity_of(lm))
        return Step(self.exp(config).name, [words("train", **options), measure])

    def _reading(self) -> Iterator[str]:
        """Options of `lm_conf` for how the base model reads text."""
        yield f"precision={self.precision}"
        if self.text_form:
            yield f"text_form={self.text_form}"

    def rescored(self, system: System) -> Path:
        """Folder of the lists that a system has rescored."""
        return self.folder / "rescored" / system.key

    def weights(self, system: System) -> Optional[Path]:
        """File of the weights of LMs and n-grams; None where the LM is alone."""
        is_alone = not (self.others or self.ngrams)
        return None if is_alone else self.folder / "weights" / f"{system.key}.yaml"

    def perplexity(self, system: System) -> Optional[Path]:
        """File with the perplexity of the tuning text's sentences by themselves, once for each LM.

        It is that of the weights, where there are some.
        """
        if system.in_context and system.lm == self.lm:
            return None
        return self.weights(system) or self.perplexity_of(system.lm)

    def perplexity_of(self, lm: str) -> Path:
        """File with the perplexity of the tuning text by the LM as it is, or an adapter, alone."""
        name = System(AS_IT_IS, lm).key if lm == self.lm else Path(lm).name
        return self.folder / "perplexity" / f"{name}.json"

    def _scoring(self, lm: str) -> Dict[str, Any]:
        """Options of a tool that scores with an LM."""
        return {
            "lm": lm,
            "base": self.base if lm == self.lm else None,
            "precision": self.precision,
            "text_form": self.text_form,
            "cache": self.folder / "cache",
        }

    def systems(self, adapter: str) -> List[System]:
        """All systems, with the adapter of a configuration."""
        as_it_is, adapted = System(AS_IT_IS, self.lm), System(ADAPTED, str(self.exp(adapter)))
        if not self.context:
            return [as_it_is, adapted]
        in_context = (
            System(IN_CONTEXT.format(system.name), system.lm, in_context=True)
            for system in (as_it_is, adapted)
        )
        return [as_it_is, *in_context]

    def rescoring(self, system: System) -> Step:
        """Weights of a system, its perplexity, and lists that it rescored, each in its fold."""
        scoring = {**self._scoring(system.lm), "lm": [system.lm, *self.others]}
        scoring["ngram"] = [*self.ngrams]
        if any(map(is_pretrained, self.others)):
            scoring["text_form"] = None  # it would hold for these too
        weights = self.weights(system)
        text = {**scoring, "text": self.data("tune.txt")}
        lines: List[List[str]] = []
        if weights is not None:
            lines.append(words("interpolate", **text, output=weights))
        elif system == System(AS_IT_IS, self.lm):
            # that of an adapter was measured after its training
            lines.append(words("perplexity", **text, output=self.perplexity(system)))
        lines.append(
            words(
                "rescore",
                **scoring,
                **self.counting,
                **(self.context if system.in_context else {}),
                nbest=self.data("tune.jsonl"),
                tune_ref=self.data("tune.ref"),
                weights=weights,
                folds=FOLDS,
                output=self.rescored(system),
            )
        )
        return Step(system.key, lines)

    def evaluation(self, systems: Sequence[System]) -> Step:
        """Word errors of all systems with their tests, and a report."""
        texts = {CONTROL: self.rescored(systems[0]) / WITHOUT_LM}
        texts.update((system.name, self.rescored(system) / "text") for system in systems)
        named = [f"{system.name}={self.rescored(system)}" for system in systems]
        score = words(
            "score",
            ref=self.data("tune.ref"),
            hyp=[f"{name}={path}" for name, path in texts.items()],
            nbest=self.data("tune.jsonl"),
            **self.counting,
            output=self.scores,
        )
        report = words(
            "report",
            score=self.scores,
            rescored=named,
            ref=self.data("tune.ref"),
            title="bayeslm adapt",
            output=self.folder / "report.html",
        )
        return Step("report", [score, report])
