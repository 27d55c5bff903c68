"""Command lines that train, mix and score the LMs of one folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from espnet_bayeslm.quickstart.steps import Step

# Sets of lists: scales are tuned on the first
SETS = ("dev", "eval")
# Figures of `bayeslm perplexity`
WITHOUT_OOV, KNOWN_ONLY = "perplexity_without_oov", "perplexity_of_known_sentences"


def words(tool: str, **options: object) -> List[str]:
    """Command line of a tool; an option that has a list is repeated, None is left out."""
    line = [tool]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            line += [] if one is None else [f"--{name}", str(one)]
    return line


class Runner:
    """Command lines of a 3-gram, of LMs, and of mixtures of both, in the folder `exp`.

    `texts` are `train`, `valid` and `test`. Every training has the options `training`, and every
    command that scores with LMs the options `scoring`.
    """

    def __init__(
        self,
        exp: Path,
        texts: Mapping[str, Path],
        training: Mapping[str, Any],
        scoring: Mapping[str, Any],
    ):
        self.exp, self.texts, self.training = exp, texts, training
        self.scoring = {"cache": exp / "cache", **scoring}
        self.ngram = exp / "3gram.arpa"
        # of commands side by side, none may remove it as its own empty folder
        (exp / "perplexity").mkdir(parents=True, exist_ok=True)

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

    def scored(self, tool: str, lms: Sequence[object], **options: object) -> List[str]:
        """Command line of a tool that takes LMs."""
        return words(tool, lm=[*lms], **self.scoring, **options)

    def interpolated(self, key: str, lms: Sequence[object], **options: object) -> List[str]:
        """EM weights of LMs and 3-gram on the validation text."""
        given = dict(ngram=self.ngram, text=self.texts["valid"], output=self.weights(key))
        return self.scored("interpolate", lms, **given, **options)

    def mixture(self, key: str, lms: Sequence[object]) -> List[List[str]]:
        """EM weights of LMs and 3-gram, and their perplexity of the test text."""
        given = dict(ngram=self.ngram, text=self.texts["test"], weights=self.weights(key))
        measure = self.scored("perplexity", lms, **given, output=self.perplexity(key))
        return [self.interpolated(key, lms), measure]

    def rescoring(
        self, key: str, lms: Sequence[object], data: Path, **options: object
    ) -> List[List[str]]:
        """Rescored lists of DATA: scales of scores are tuned on dev and applied to eval."""
        common = dict(nbest_format="jsonl", ngram=self.ngram, weights=self.weights(key), **options)
        dev, test = (self.rescored(key, part) for part in SETS)
        tune = dict(nbest=data / "dev.jsonl", output=dev)
        apply = dict(nbest=data / "eval.jsonl", output=test, scales=dev / "scales.yaml")
        return [self.scored("rescore", lms, **common, **given) for given in (tune, apply)]

    def rescored(self, key: str, part: str = "eval") -> Path:
        """Folder of a mixture's rescored lists."""
        return self.exp / "rescored" / key / part

    def weights(self, key: str) -> Path:
        """File of a mixture's weights."""
        return self.exp / "weights" / f"{key}.yaml"

    def perplexity(self, key: str) -> Path:
        """File of a mixture's perplexity of the test text."""
        return self.exp / "perplexity" / f"{key}.json"


def mixture_key(lms: Sequence[str]) -> str:
    """Name of the files of LMs and 3-gram."""
    return "_".join([*lms, "3gram"])


def read_components(path: Path) -> List[Dict[str, Any]]:
    """Components that `bayeslm perplexity` wrote, the mixture last."""
    components: List[Dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["components"]
    return components


def read_perplexities(path: Path, figure: str = WITHOUT_OOV) -> List[float]:
    """Perplexity per word of each component, nan where nothing is counted."""
    values = (component[figure]["word"] for component in read_components(path))
    return [math.nan if value is None else value for value in values]
