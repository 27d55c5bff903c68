"""The new best hypothesis of each N-best list: how its scores become one, how they are weighed."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import (
    TYPE_CHECKING,
    Any,
    Container,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np
import yaml

from espnet_bayeslm.evaluation.interpolation import combined
from espnet_bayeslm.evaluation.word_scores import Component
from espnet_bayeslm.loading.weights_file import NamedWeight, check_subtracted, read_weights
from espnet_bayeslm.nbest.lattice import PathScales
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.bayes_risk import (
    DECISIONS,
    Posterior,
    edit_distances,
    least_risk,
    list_posterior,
)
from espnet_bayeslm.rescoring.features import (
    FIRST_PASS,
    LM,
    SUBTRACTED,
    Features,
    best_place,
    hypothesis_features,
    totals,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_text

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.uncertainty import Uncertainty

# Digits after the point of a written cost. Choices are made with what is written, so that they
# can be made again from the files.
DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Scales:
    """Weights of the scores of a hypothesis.

    total = am_score / lmwt + graph_score + ln P_LM - word_penalty * words, to be maximised; or
    the weighted sum of named features, where there are `features`.

    Attributes:
        lmwt: Divisor of the acoustic score, Kaldi's LMWT.
        word_penalty: Kaldi's word insertion penalty, in nats per word.
        features: (name, weight) of features (`rescoring.features`); they stand in place of
            `lmwt` and `word_penalty`, which then are the ratios of three of them, for tables.
        posterior: Posterior over a list from its totals; None: not tuned.
        decision: Decision that the scales were tuned with; None: not known.
        control: Scales that were tuned in the same way without the scores of the new LMs; None:
            not tuned.
        subtracted: Weights of the subtracted LMs, at or below zero; they are added to both sums.

    Raises:
        ValueError: `lmwt` is not positive, one is not finite, or a subtracted LM has a weight
            above zero.
    """

    lmwt: float = 10.0
    word_penalty: float = 0.0
    features: Optional[Tuple[Tuple[str, float], ...]] = None
    posterior: Optional[Posterior] = None
    decision: Optional[str] = None
    control: Optional[Scales] = None
    subtracted: Tuple[NamedWeight, ...] = ()

    def __post_init__(self) -> None:
        if not (0 < self.lmwt < math.inf and math.isfinite(self.word_penalty)):
            raise ValueError(f"lmwt must be positive, and both finite: {self}")
        if self.features is not None:
            values = [weight for _, weight in self.features]
            if not values or not all(map(math.isfinite, values)):
                raise ValueError(f"weights of features must be finite: {self.features}")
        check_subtracted(self.subtracted)

    @classmethod
    def of_lattice(cls, weights: PathScales, scores: Container[str]) -> Scales:
        """Scales that weigh hypotheses as a lattice's weights do, with a new LM's ln P."""
        am, lm, graph, word = weights
        has_graph = "graph_score" in scores
        ratios = cls(lm / am, 0.0 - word / lm) if am > 0 and lm > 0 else None
        if ratios is not None and (graph == lm or not has_graph):
            return ratios
        features = {"am_score": am, LM: lm, "words": word}
        if has_graph:
            features["graph_score"] = graph
        return dataclasses.replace(ratios or cls(), features=tuple(features.items()))

    @property
    def weights_of_features(self) -> Dict[str, float]:
        """Weight of each feature, those of subtracted LMs among them."""
        own = {f"{SUBTRACTED}.{row.name}": row.weight for row in self.subtracted if row.weight}
        return {**dict(self.features or ()), **own}

    @property
    def has_lmwt(self) -> bool:
        """True if acoustic score and LM both have a positive weight, whose ratio is `lmwt`."""
        own = dict(self.features or (("am_score", 1.0), (LM, 1.0)))
        return own.get("am_score", 0.0) > 0 and own.get(LM, 0.0) > 0

    @property
    def of_each_lm(self) -> bool:
        """True if single LMs have a weight beside their mixture."""
        return any(name.startswith(f"{LM}.") for name, _ in self.features or ())

    def content(self) -> Dict[str, Any]:
        """Content of a yaml file that `read_scales` reads."""
        found: Dict[str, Any] = {"features": dict(self.features)} if self.features else {}
        if self.has_lmwt:
            found.update(lmwt=self.lmwt, word_penalty=self.word_penalty)
        if self.posterior is not None:
            found["posterior"] = dataclasses.asdict(self.posterior)
        if self.subtracted:
            found["subtracted"] = {row.name: row.weight for row in self.subtracted}
        if self.control is not None:
            found["control"] = self.control.content()
        return found

    def __str__(self) -> str:
        """Chosen scales, for people."""
        own = [f"{SUBTRACTED}.{row.name} {row.weight:.4g}" for row in self.subtracted]
        if self.features is None:
            return ", ".join([f"LMWT {self.lmwt:g}, word penalty {self.word_penalty:g}", *own])
        if self.features == FIRST_PASS:
            return "as it came"
        return ", ".join([*(f"{name} {weight:.4g}" for name, weight in self.features), *own])


@dataclasses.dataclass(frozen=True)
class ScoredList:
    """An N-best list with the scores of new LMs.

    Attributes:
        nbest: The list.
        log_probs: (N,) ln P of each hypothesis and `</s>` under the mixture, in nats.
        of_lms: Component -> (N,) the same under it alone, where that is wanted.
        subtracted: Subtracted LM -> (N,) the same under it.
    """

    nbest: NBest
    log_probs: np.ndarray
    of_lms: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    subtracted: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def features(self) -> Features:
        """Features of the hypotheses, (N,) each."""
        single = {f"{LM}.{name}": values for name, values in self.of_lms.items()}
        single.update({f"{SUBTRACTED}.{n}": values for n, values in self.subtracted.items()})
        return hypothesis_features(self.nbest, {LM: self.log_probs, **single})

    def totals(self, scales: Scales) -> np.ndarray:
        """Score that is maximised, (N,): logits of a posterior over the list, up to a factor."""
        if scales.features is not None:
            return totals(self.features(), scales.weights_of_features)
        am, graph = (self.nbest.scores(name) for name in ("am_score", "graph_score"))
        num_words = np.array([len(hyp.words) for hyp in self.nbest.hypotheses])
        found = self.log_probs if graph is None else self.log_probs + graph
        found = found - scales.word_penalty * num_words
        for row in scales.subtracted:
            if row.weight:
                found = found + row.weight * self.subtracted[row.name]
        return found if am is None else found + 1.0 / scales.lmwt * am

    def without_lm(self) -> ScoredList:
        """The list as an LM that knows nothing scores it."""
        return ScoredList(self.nbest, np.zeros_like(self.log_probs))

    @functools.cached_property
    def distances(self) -> np.ndarray:
        """Word errors of each hypothesis with each other one as the reference, (N, N)."""
        return edit_distances([hyp.words for hyp in self.nbest.hypotheses])

    def posterior(self, scales: Scales) -> np.ndarray:
        """Probabilities of the hypotheses at some scales, (N,)."""
        sharpness = (scales.posterior or Posterior()).sharpness
        try:
            return list_posterior(self.totals(scales), sharpness)
        except InputError as error:
            raise InputError(f"utterance {self.nbest.utt[:80]!r}: {error}") from error

    def choice(self, scales: Scales, decision: str = "max") -> int:
        """Index of the best hypothesis at some scales, the first of equals.

        Weights that leave lists as they came do so with every decision.
        """
        if decision == "mbr" and scales.features != FIRST_PASS:
            return least_risk(self.posterior(scales), self.distances)
        if scales.features is None:
            return int(self.totals(scales).argmax())
        try:
            return best_place(self.features(), scales.weights_of_features)
        except InputError as error:
            raise InputError(f"utterance {self.nbest.utt[:80]!r}: {error}") from error


class ListScores(NamedTuple):
    """The N-best list of an utterance with the scores of its words.

    Attributes:
        nbest: The list.
        log_probs: Of each hypothesis ln p under each component, (K, n + 1), the last `</s>`; then
            under each subtracted LM.
        uncertainty: Of each hypothesis how uncertain an LM is of its words, where it is wanted.
    """

    nbest: NBest
    log_probs: Tuple[np.ndarray, ...]
    uncertainty: Tuple[Uncertainty, ...] = ()

    def mixed(self, weighting: Weighting) -> Tuple[np.ndarray, ...]:
        """The mixture's score of each word and `</s>` of each hypothesis, (n + 1,), in nats."""
        weights = weighting.weights
        return tuple(combined(rows[: len(weights)], weights) for rows in self.log_probs)

    def scored(self, weighting: Weighting, *, of_each: bool = False) -> ScoredList:
        """The list with the scores of each hypothesis, `of_each` LM too, or where scales ask."""
        of_each = of_each or weighting.scales.of_each_lm
        return ScoredList(
            self.nbest,
            np.array(written_log_probs(self.mixed(weighting))),
            self.of_lms(weighting.names if of_each else ()),
            self.of_lms(weighting.subtracted, first=len(weighting.weights)),
        )

    def of_lms(self, names: Sequence[str], *, first: int = 0) -> Dict[str, np.ndarray]:
        """Ln P of each hypothesis under single components from the `first` on, (N,) each."""
        rows = [
            written_log_probs([values[k] for values in self.log_probs])
            for k in range(first, first + len(names))
        ]
        return {name: np.array(row) for name, row in zip(names, rows, strict=True)}


def written_log_probs(words: Sequence[np.ndarray]) -> List[float]:
    """The score of each hypothesis from those of its words, as files have it, in nats."""
    # the sum of the words' costs as their file has them
    return [-round(float((-values).round(DIGITS).sum()), DIGITS) for values in words]


def read_scales(path: PathLike) -> Scales:
    """Scales of a yaml file that `bayeslm rescore` wrote."""
    text = read_text(path)
    try:
        return _scales_of(yaml.safe_load(text))
    except InputError as error:
        raise InputError(str(error), path=path) from None
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"no usable `lmwt` and `word_penalty`, or `features`, in it ({error!r})",
            path=path,
            remedy="Give the scales.yaml of a tuned `bayeslm rescore`.",
        ) from error


def _scales_of(content: Mapping[str, Any]) -> Scales:
    """Scales from the content of a yaml file."""
    posterior = content.get("posterior")
    if posterior is not None:
        posterior = Posterior(**{name: float(value) for name, value in posterior.items()})
    features = content.get("features")
    if features is not None:
        features = tuple((str(k), float(v)) for k, v in features.items())
        content = {"lmwt": Scales.lmwt, "word_penalty": Scales.word_penalty, **content}
    lmwt, penalty = float(content["lmwt"]), float(content["word_penalty"])
    if content.get("combine") == "loglinear" and len(content.get("components") or ()) > 1:
        raise InputError(
            "the scales were tuned with `--combine loglinear`, which is gone",
            remedy="Tune again, with --tune_lms true for a log-linear weight of each LM.",
        )
    # files of earlier versions have no control
    control = None if content.get("control") is None else _scales_of(content["control"])
    decision = content.get("decision")
    return Scales(
        *(lmwt, penalty, features, posterior, decision, control),
        subtracted=subtracted_of(content),
    )


def subtracted_of(content: Mapping[str, Any]) -> Tuple[NamedWeight, ...]:
    """Subtracted LMs and their weights, of scales or of a job's settings."""
    digests = content.get("fingerprints") or {}
    return tuple(
        NamedWeight(str(name), float(weight), str(digests.get(name, "")))
        for name, weight in (content.get("subtracted") or {}).items()
    )


class Weighting(NamedTuple):
    """Components of a mixture, with the weights of their scores and of all others.

    Attributes:
        names: The components' names.
        weights: Their weights, (K,).
        scales: Weights of the acoustic score and the number of words, or of features.
        fingerprints: The digests of the components' files, where they are known.
        decision: "max", or "mbr" for the fewest expected word errors.
        confidence: True for confidences with "max" too.
    """

    names: Sequence[str]
    weights: np.ndarray
    scales: Scales
    fingerprints: Sequence[str] = ()
    decision: str = "max"
    confidence: bool = False

    @classmethod
    def of(
        cls,
        components: Sequence[Component],
        weights: Union[PathLike, Sequence[float], None],
        scales: Union[PathLike, Scales, None],
    ) -> Weighting:
        """The weights that are given for some components, and the scales (None: the defaults)."""
        names = [component.name for component in components]
        digests = [component.fingerprint for component in components]
        known = Scales() if scales is None else scales
        known = known if isinstance(known, Scales) else read_scales(known)
        values = read_weights(weights, names, fingerprints=digests)
        if values is None:
            raise InputError(
                f"{len(components)} components and no --weights",
                remedy="Estimate them with `bayeslm interpolate`.",
            )
        return cls(names, values, known, digests).deciding(None)

    @property
    def subtracted(self) -> List[str]:
        """Names of the subtracted LMs."""
        return [row.name for row in self.scales.subtracted]

    def deciding(self, decision: Optional[str]) -> Weighting:
        """With a decision; None: as when the scales were tuned, or "max"."""
        decision = decision or self.scales.decision or "max"
        if decision not in DECISIONS:
            expected = ", ".join(DECISIONS)
            raise InputError(f"the decision is {decision!r}, not one of {expected}")
        return self._replace(decision=decision)

    @property
    def sure(self) -> bool:
        """True if words get confidences."""
        return self.confidence or self.decision == "mbr"

    def content(self) -> Dict[str, Any]:
        """Content of `--scales`' file, as yaml has it."""
        pairs = zip(self.names, self.weights.tolist(), strict=True)
        content = {**self.scales.content(), "components": dict(pairs)}
        if self.decision != "max":
            content["decision"] = self.decision
        others = {row.name: row.fingerprint for row in self.scales.subtracted if row.fingerprint}
        if any(self.fingerprints) or others:
            digests = zip(self.names, self.fingerprints, strict=False)
            content["fingerprints"] = {**dict(digests), **others}
        return content
