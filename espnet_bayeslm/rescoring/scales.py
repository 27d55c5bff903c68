"""Weights of the scores of a hypothesis: scales, and the components of a mixture with theirs.

A recogniser has learnt an LM of its training text. Where it recognises another domain, the density
ratio subtracts an LM of that text (McDermott et al. 2019, "A density ratio approach to language
model fusion in end-to-end automatic speech recognition").
"""

from __future__ import annotations

import dataclasses
import math
from typing import (
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

from espnet_bayeslm.loading.component_options import SubtractOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.loading.weights_file import (
    KeptForm,
    NamedWeight,
    check_subtracted,
    checked_form,
    forms_of_weights,
    kept_forms,
    match_weights,
    read_weights,
)
from espnet_bayeslm.rescoring.bayes_risk import DECISIONS, ListPosterior
from espnet_bayeslm.rescoring.features import FIRST_WINS, LM, SUBTRACTED, sign_of
from espnet_bayeslm.scoring.word_scores import Component
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_as
from espnet_bayeslm.utils.log import LOG

NOT_USED = "no LM is used: its weight is 0"


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
        decision: "max", or "mbr" for the fewest expected word errors.
        control: Scales that were tuned in the same way without the scores of the new LMs; None:
            not tuned.
        subtracted: Weights of the subtracted LMs, at or below zero; they are added to both sums.
        fingerprints: Digests of the LMs that they were tuned with, by name, where a file says so.
        text_forms: Forms in which pretrained LMs read the text in the tuning, by name.
        tuned_on: File that they were tuned on, where a file says so.

    Raises:
        ValueError: `lmwt` is not positive, one is not finite, or a subtracted LM has a weight
            above zero.
    """

    lmwt: float = 10.0
    word_penalty: float = 0.0
    features: Optional[Tuple[Tuple[str, float], ...]] = None
    posterior: Optional[ListPosterior] = None
    decision: str = "max"
    control: Optional[Scales] = None
    subtracted: Tuple[NamedWeight, ...] = ()
    fingerprints: Mapping[str, str] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )
    text_forms: Mapping[str, str] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )
    tuned_on: Optional[str] = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (0 < self.lmwt < math.inf and math.isfinite(self.word_penalty)):
            raise ValueError(f"lmwt must be positive, and both finite: {self}")
        if self.features is not None:
            values = [weight for _, weight in self.features]
            if not values or not all(map(math.isfinite, values)):
                raise ValueError(f"weights of features must be finite: {self.features}")
        if self.decision not in DECISIONS:
            expected = ", ".join(DECISIONS)
            raise InputError(f"the decision is {self.decision!r}, not one of {expected}")
        check_subtracted(self.subtracted)

    def weights(self, known: Container[str]) -> Dict[str, float]:
        """Weight of each feature of a list, whose features are `known`."""
        formula = {"am_score": 1.0 / self.lmwt, "graph_score": 1.0}
        own = {name: weight for name, weight in formula.items() if name in known}
        own.update({LM: 1.0, "words": -self.word_penalty})
        if self.features is not None:
            own = dict(self.features)
        less = {f"{SUBTRACTED}.{row.name}": row.weight for row in self.subtracted if row.weight}
        return {**own, **less}

    @property
    def uses_lm(self) -> bool:
        """True if the score of an LM, or of a subtracted one, has a weight."""
        return any(sign_of(name) and weight for name, weight in self.weights(()).items())

    @property
    def of_each_lm(self) -> bool:
        """True if single LMs have a weight beside their mixture."""
        return any(name.startswith(f"{LM}.") for name, _ in self.features or ())

    def content(self) -> Dict[str, Any]:
        """Content of a yaml file that `read_scales` reads."""
        content: Dict[str, Any] = {"features": dict(self.features)} if self.features else {}
        own = self.weights(("am_score",))
        if own.get("am_score", 0.0) > 0 and own.get(LM, 0.0) > 0:  # whose ratio is `lmwt`
            content.update(lmwt=self.lmwt, word_penalty=self.word_penalty)
        if self.posterior is not None:
            content["posterior"] = dataclasses.asdict(self.posterior)
        if self.subtracted:
            content["subtracted"] = {row.name: row.weight for row in self.subtracted}
        if self.control is not None:
            content["control"] = self.control.content()
        return content

    def __str__(self) -> str:
        """Chosen scales, for people."""
        own = [f"{SUBTRACTED}.{row.name} {row.weight:.4g}" for row in self.subtracted]
        if self.features is None:
            return ", ".join([f"LMWT {self.lmwt:g}, word penalty {self.word_penalty:g}", *own])
        if self.features == FIRST_WINS:
            return "as it came"
        return ", ".join([*(f"{name} {weight:.4g}" for name, weight in self.features), *own])


def scales_of(
    weights: Mapping[str, float], *, has_graph: bool, subtracted: Sequence[NamedWeight] = ()
) -> Scales:
    """Scales that choose as weights of features do.

    They are LMWT and word penalty alone if these weigh the same scores, else weights of features.
    With subtracted LMs, whose weights are features of their own, the LM's weight must be 1.
    """
    own = dict(weights)
    known = [own.pop(f"{SUBTRACTED}.{row.name}", 0.0) for row in subtracted]
    less = tuple(r._replace(weight=w) for r, w in zip(subtracted, known, strict=True))
    features = tuple(own.items())
    lm, am = own.get(LM, 0.0), own.get("am_score", 0.0)
    if lm <= 0 or am <= 0:
        return Scales(features=features, subtracted=less)
    kaldi = Scales(lm / am, 0.0 - own.get("words", 0.0) / lm, subtracted=less)
    # LMWT and penalty give a graph score the LM's weight
    formula = {"am_score", LM, "words"} | ({"graph_score"} if has_graph else set())
    same = {*own, "words"} == formula and own.get("graph_score", lm) == lm
    return kaldi if same else dataclasses.replace(kaldi, features=features)


def read_scales(path: PathLike) -> Scales:
    """Scales of a yaml file that `bayeslm rescore` wrote."""
    return read_yaml_as(
        path,
        _scales_of,
        problem="no usable `lmwt` and `word_penalty`, or `features`, in it",
        remedy="Give the scales.yaml of a tuned `bayeslm rescore`.",
    )


def _scales_of(content: Mapping[str, Any]) -> Scales:
    """Scales from the content of a yaml file."""
    posterior = content.get("posterior")
    if posterior is not None:
        posterior = ListPosterior(**{name: float(value) for name, value in posterior.items()})
    features = content.get("features")
    if features is not None:
        features = tuple((str(k), float(v)) for k, v in features.items())
        content = {"lmwt": Scales.lmwt, "word_penalty": Scales.word_penalty, **content}
    lmwt, penalty = float(content["lmwt"]), float(content["word_penalty"])
    control = None if content.get("control") is None else _scales_of(content["control"])
    decision = str(content.get("decision") or "max")
    tuned_on = {"tuned_on": content.get("tuned_on"), **(content.get("counted") or {})}["tuned_on"]
    return Scales(
        *(lmwt, penalty, features, posterior, decision, control),
        subtracted=subtracted_of(content),
        fingerprints=dict(content.get("fingerprints") or {}),
        text_forms={n: checked_form(f) for n, f in (content.get("text_forms") or {}).items()},
        tuned_on=None if tuned_on is None else str(tuned_on),
    )


def subtracted_of(content: Mapping[str, Any]) -> Tuple[NamedWeight, ...]:
    """Subtracted LMs and their weights, of scales."""
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
        confidence: True if words get confidences, as always with "mbr".
        text_forms: Form in which each pretrained LM reads the text, by name, once it is chosen.
    """

    names: Sequence[str]
    weights: np.ndarray
    scales: Scales
    fingerprints: Sequence[str] = ()
    confidence: bool = False
    text_forms: Mapping[str, str] = {}

    @property
    def digests(self) -> Dict[str, str]:
        """The digests of all files that are known, those of subtracted LMs too, by name."""
        known = dict(zip(self.names, self.fingerprints, strict=False))
        known.update((row.name, row.fingerprint) for row in self.scales.subtracted)
        return {name: digest for name, digest in known.items() if digest}

    def warn_untuned(self) -> None:
        """Warn where scales use no LM, were tuned with other LMs, or without a posterior."""
        if len(self.names) and not self.scales.uses_lm:
            LOG.warning(NOT_USED)
        then, now = self.scales.fingerprints, self.digests
        if then and any(self.fingerprints) and {*then.values()} != {*now.values()}:
            known, given = ", ".join(sorted(then)), ", ".join(sorted(now))
            other = f"{known}, and this run has {given}"
            if known == given:
                other = f"other files of {given}"
            LOG.warning(f"--scales was tuned with {other}: give the same LMs, or tune again")
        if self.confidence and self.scales.posterior is None:
            LOG.warning("the posterior over the lists is not tuned: its sharpness is 1")

    def content(self) -> Dict[str, Any]:
        """Content of `--scales`' file, as yaml has it."""
        pairs = zip(self.names, self.weights.tolist(), strict=True)
        content = {**self.scales.content(), "components": dict(pairs)}
        if self.scales.decision != "max":
            content["decision"] = self.scales.decision
        if self.digests:
            content["fingerprints"] = self.digests
        if self.text_forms:
            content["text_forms"] = dict(self.text_forms)
        return content


def load_mixture(
    options: SubtractOptions,
    device: str,
    *,
    scales: Union[PathLike, Scales, None] = None,
    tunes: bool = False,
    **reading: Any,
) -> Tuple[List[Component], Weighting, List[KeptForm]]:
    """LMs and n-grams from their files, and the weights of their scores.

    The weights of subtracted LMs are yet to be tuned with `tunes`. LMs read as `load_components`
    says it. None is needed where the scales give it no weight.

    Returns:
        The components, subtracted ones last; the weights; the forms in which pretrained LMs read
        text where scales and weights were estimated.
    """
    known = Scales() if scales is None else scales
    known = known if isinstance(known, Scales) else read_scales(known)
    is_unused = scales is not None and not (options.lms or options.ngrams or known.uses_lm)
    every = [] if is_unused else load_components(options, device, **reading)
    count = len(options.lms) + len(options.ngrams)
    components, subtracted = every[:count], every[count:]
    names, digests = [c.name for c in components], [c.fingerprint for c in components]
    weights = read_weights(options.weights, names, fingerprints=digests) if every else np.empty(0)
    of_subtracted = subtracted_weights(
        [NamedWeight(c.name, 0.0, c.fingerprint) for c in subtracted],
        known.subtracted,
        options.subtract_weights,
        tunes=tunes,
    )
    known = dataclasses.replace(known, subtracted=of_subtracted)
    kept: List[KeptForm] = []
    if any(component.pretrained is not None for component in every):
        forms = known.text_forms.items()
        rows = [NamedWeight(n, 0.0, known.fingerprints.get(n, ""), form) for n, form in forms]
        kept = kept_forms("--scales", rows, every) + forms_of_weights(options.weights, every)
    return every, Weighting(names, weights, known, digests), kept


def subtracted_weights(
    lms: Sequence[NamedWeight],
    known: Sequence[NamedWeight],
    given: Sequence[float],
    *,
    tunes: bool = False,
) -> Tuple[NamedWeight, ...]:
    """Weight of each subtracted LM: as given, in their order, or as known from a tuning.

    The LMs, whose weights are not read, are returned as they are with `tunes`.
    """
    used = [row.name for row in known if row.weight]
    problem = remedy = ""
    if tunes and given:
        problem = "--subtract_weight where scales are tuned"
        remedy = "Leave it out to tune the weight, or give --lmwt or --scales."
    elif given and len(given) != len(lms):
        problem = f"{len(given)} --subtract_weight for {len(lms)} --subtract_lm"
        remedy = "Give a weight at or below zero for each --subtract_lm."
    elif used and not lms and not tunes:
        problem = f"--scales were tuned with the subtracted LM {used[0]}, and there is none"
        remedy = "Give it by --subtract_lm."
    elif lms and not (given or known or tunes):
        problem = f"no weight of the subtracted LM {lms[0].name}"
        remedy = "Tune it (`bayeslm rescore --tune_ref`), and give its --scales or"
        remedy += " --subtract_weight."
    if problem:
        raise InputError(problem, remedy=remedy)
    if not lms or tunes:
        return tuple(lms)
    names, digests = [row.name for row in lms], [row.fingerprint for row in lms]
    try:
        values = given or match_weights(known, names, digests)
    except InputError as error:
        raise InputError(f"--scales, subtracted LMs: {error}") from None
    return tuple(map(NamedWeight, names, values, digests))
