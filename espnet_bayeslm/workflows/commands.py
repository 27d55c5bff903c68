"""Command lines of LMs and n-grams that are used together, and what the tools found."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, List, Mapping, Sequence

from espnet_bayeslm.evaluation.wer import FIRST_PASS
from espnet_bayeslm.report.score_results import ComponentPerplexity, read_perplexities
from espnet_bayeslm.rescoring.decision import WITHOUT_LM
from espnet_bayeslm.utils.files import read_yaml_mapping
from espnet_bayeslm.workflows.steps import Step, words

TUNED_FIRST_PASS = f"{FIRST_PASS}, tuned"
"""The control: the recogniser's own scores, tuned as those of the systems are."""
SCORES = "score.json"


@dataclasses.dataclass(frozen=True)
class MixtureCommands:
    """LMs and n-grams that score together, and command lines of the tools that score with them.

    Attributes:
        exp: Folder of the workflow.
        key: Name of its files.
        lms: The LMs, as `--lm` takes them.
        ngrams: Files of the n-grams.
        options: Further options of all tools that score.
    """

    exp: Path
    key: str
    lms: Sequence[object]
    ngrams: Sequence[object]
    options: Mapping[str, Any]

    @property
    def weights(self) -> Path:
        """File of the weights of LMs and n-grams."""
        return self.exp / "weights" / f"{self.key}.yaml"

    @property
    def perplexity(self) -> Path:
        """File of the perplexity of the test text."""
        return self.exp / "perplexity" / f"{self.key}.json"

    def rescored(self, part: str = "eval") -> Path:
        """Folder of rescored lists."""
        return self.exp / "rescored" / self.key / part

    def scored(self, tool: str, **options: Any) -> List[str]:
        """Command line of a tool that scores with the LMs and n-grams."""
        cache = self.exp / "cache"
        return words(tool, lm=self.lms, ngram=self.ngrams, cache=cache, **self.options, **options)

    def weighed(self, tool: str, **options: Any) -> List[str]:
        """Command line of a tool that scores with the weights."""
        return self.scored(tool, weights=self.weights, **options)

    def estimate(self, text: Path, **options: Any) -> List[str]:
        """Command line of the EM weights on a text."""
        return self.scored("interpolate", text=text, output=self.weights, **options)


class OwnLMs:
    """Command lines of a 3-gram and of LMs that are trained on one text, in the folder `exp`.

    `texts` are `train`, `valid` and `test`. Every training has the options `training`, and every
    command that scores with LMs the options `scoring`.
    """

    def __init__(
        self,
        exp: Path,
        texts: Mapping[str, Path],
        training: Mapping[str, Any],
        scoring: Mapping[str, Any] = {},
    ):
        self.exp, self.texts, self.training, self.scoring = exp, texts, training, scoring
        self.ngram = exp / "3gram.arpa"

    def estimate(self) -> Step:
        """Estimation of the 3-gram."""
        options = dict(order=3, arpa=self.ngram, discount_fallback="true")
        return Step("ngram", [words("ngram", text=self.texts["train"], **options)])

    def train(self, folder: Path, config: object, *, source: object = None, **options: Any) -> Step:
        """Training of an LM, perhaps on from another LM."""
        texts = {f"{name}_text": self.texts[name] for name in ("train", "valid")}
        common = {"config": config, "exp": folder, "from": source, **texts, **self.training}
        name = "_".join(folder.relative_to(self.exp).parts)
        return Step(name, [words("train", **common, **options)])

    def mixture(self, names: Sequence[str], lms: Sequence[object]) -> MixtureCommands:
        """LMs, and the 3-gram; names make the names of files."""
        key = "_".join([*names, "3gram"])
        return MixtureCommands(self.exp, key, lms, [self.ngram], self.scoring)

    def measure(self, mixture: MixtureCommands) -> List[str]:
        """Command line of the perplexity of the test text."""
        return mixture.weighed("perplexity", text=self.texts["test"], output=mixture.perplexity)


def evaluation(
    exp: Path,
    rescored: Mapping[str, Path],
    title: str,
    *,
    counting: Mapping[str, Any],
    report: Mapping[str, Any],
    prefix: str = "",
) -> Step:
    """Word errors of systems and of the control, EXP/score.json, with tests; EXP/report.html.

    Args:
        exp: Folder of the workflow.
        rescored: System -> folder of its lists; the first also has those of the control.
        title: Title of the report.
        counting: Options of `score`.
        report: More options of the report.
        prefix: Beginning of the names of both files and of the step.
    """
    texts = {TUNED_FIRST_PASS: next(iter(rescored.values())) / WITHOUT_LM}
    texts.update((name, folder / "text") for name, folder in rescored.items())
    scores, page = exp / f"{prefix}{SCORES}", exp / f"{prefix}report.html"
    shown = dict(rescored=by_name(rescored), **report, title=title, output=page)
    lines = [
        words("score", hyp=by_name(texts), output=scores, **counting),
        words("report", score=scores, **shown),
    ]
    return Step(f"{prefix}report", lines)


def by_name(paths: Mapping[str, Path]) -> List[str]:
    """Words NAME=PATH of an option that may be repeated."""
    return [f"{name}={path}" for name, path in paths.items()]


def read_components(path: Path) -> List[ComponentPerplexity]:
    """Figures that `bayeslm perplexity` wrote, of the mixture last."""
    return read_perplexities([("", str(path))])[0].rows


def read_perplexity(path: Path) -> float:
    """Perplexity per word of a mixture or the only LM, as `perplexity` or `interpolate` wrote it.

    It is nan where no word is counted.
    """
    if path.suffix == ".yaml":
        figure = read_yaml_mapping(path)["mixture"]["perplexity_without_oov"]
    else:
        figure = read_components(path)[-1].per_word
    return math.nan if figure is None else figure
