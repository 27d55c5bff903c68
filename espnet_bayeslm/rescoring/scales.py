"""Weights of the scores of a hypothesis.

A recogniser has learnt an LM of its training text. Where it recognises another domain, the density
ratio subtracts an LM of that text (McDermott et al. 2019, "A density ratio approach to language
model fusion in end-to-end automatic speech recognition").
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Container, Dict, Mapping, Optional, Sequence, Tuple, Union

from espnet_bayeslm.mixture.facts import ComponentFacts, MixtureFacts, checked_form
from espnet_bayeslm.mixture.weights_file import check_subtracted
from espnet_bayeslm.rescoring.bayes_risk import DECISIONS, ListPosterior
from espnet_bayeslm.rescoring.features import BIAS, FIRST_WINS, LM, NEAR, SUBTRACTED, is_of_lm
from espnet_bayeslm.rescoring.near_odds import NearWords
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
        added: (name, weight) of features that are added to both sums: those of subtracted LMs, at
            or below zero, and a bias list's.
        unbiased: Scales that were tuned in the same way without a bias list; None: there is none.
        near_words: Odds of near words, where these have a weight; None: they have none.
        lms: What is known of the LMs with which they were tuned.
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
    added: Tuple[Tuple[str, float], ...] = ()
    unbiased: Optional[Scales] = None
    near_words: Optional[NearWords] = None
    lms: MixtureFacts = dataclasses.field(default=MixtureFacts(), compare=False, repr=False)
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
        return {**own, **{name: weight for name, weight in self.added if weight}}

    @property
    def subtracted(self) -> Dict[str, float]:
        """Weights of the subtracted LMs, by name."""
        rows = ((name.partition("."), weight) for name, weight in self.added)
        return {name: weight for (kind, _, name), weight in rows if kind == SUBTRACTED}

    @property
    def facts(self) -> MixtureFacts:
        """Facts of the LMs with which they were tuned, with the weights of subtracted ones."""
        rows = {row.name: row for row in self.lms.subtracted}
        less = self.subtracted.items()
        own = [rows.get(n, ComponentFacts(n))._replace(weight=weight) for n, weight in less]
        return MixtureFacts(self.lms.components, own)

    @property
    def uses_lm(self) -> bool:
        """True if the score of an LM, or of a subtracted one, has a weight."""
        return any(is_of_lm(name) and weight for name, weight in self.weights(()).items())

    @property
    def knows_bias(self) -> bool:
        """True if they were made with a bias list, whose phrases may have no weight."""
        return self.unbiased is not None or BIAS in dict((*(self.features or ()), *self.added))

    @property
    def uses_bias(self) -> bool:
        """True if phrases of a bias list, or words that are near them, have a weight."""
        own = self.weights(())
        return bool(own.get(BIAS) or own.get(NEAR))

    @property
    def uses_near_words(self) -> bool:
        """True if near words have a weight."""
        return bool(self.weights(()).get(NEAR))

    def with_bias(self, weight: float) -> Scales:
        """Scales that give the phrases of a bias list another weight."""
        features = self.features and tuple(row for row in self.features if row[0] != BIAS)
        rest = tuple(row for row in self.added if row[0] != BIAS)
        return dataclasses.replace(self, features=features, added=(*rest, (BIAS, weight)))

    @property
    def without_bias(self) -> Scales:
        """Scales for lists without a bias list, with all that is known of these."""
        if self.unbiased is None:
            return self
        kept = {name: getattr(self, name) for name in ("decision", "control", "lms", "tuned_on")}
        return dataclasses.replace(self.unbiased, **kept)

    @property
    def of_each_lm(self) -> bool:
        """True if single LMs have a weight beside their mixture."""
        return any(name.startswith(f"{LM}.") for name, _ in self.features or ())

    def warn_untuned(self, mixture: MixtureFacts, *, confidence: bool) -> None:
        """Warn where they use no LM, were tuned with other LMs, or without a posterior."""
        if mixture.components and not self.uses_lm:
            LOG.warning(NOT_USED)
        then, now = self.lms.digests, mixture.digests
        is_known = any(row.fingerprint for row in mixture.components)
        if then and is_known and {*then.values()} != {*now.values()}:
            known, given = ", ".join(sorted(then)), ", ".join(sorted(now))
            other = f"{known}, and this run has {given}"
            if known == given:
                other = f"other files of {given}"
            LOG.warning(f"--scales was tuned with {other}: give the same LMs, or tune again")
        if confidence and self.posterior is None:
            LOG.warning("the posterior over the lists is not tuned: its sharpness is 1")

    def settings(self, mixture: MixtureFacts) -> Dict[str, Any]:
        """Content of `--scales`' file for a mixture, as yaml has it."""
        pairs = zip(mixture.names, mixture.weights.tolist(), strict=True)
        content = {**self.content(), "components": dict(pairs)}
        if self.decision != "max":
            content["decision"] = self.decision
        known = {"fingerprints": mixture.digests, "text_forms": mixture.text_forms}
        return {**content, **{name: value for name, value in known.items() if value}}

    def content(self) -> Dict[str, Any]:
        """Weights as a yaml file has them that `read_scales` reads."""
        content: Dict[str, Any] = {"features": dict(self.features)} if self.features else {}
        own = self.weights(("am_score",))
        if own.get("am_score", 0.0) > 0 and own.get(LM, 0.0) > 0:  # whose ratio is `lmwt`
            content.update(lmwt=self.lmwt, word_penalty=self.word_penalty)
        if self.posterior is not None:
            content["posterior"] = dataclasses.asdict(self.posterior)
        if self.added:
            content["subtracted"] = self.subtracted
            content[BIAS] = dict(self.added).get(BIAS)
            content = {name: value for name, value in content.items() if value not in (None, {})}
        for name in ("control", "unbiased"):
            if (others := getattr(self, name)) is not None:
                content[name] = others.content()
        if self.near_words is not None:
            content[NEAR] = self.near_words.content()
        return content

    def __str__(self) -> str:
        """Chosen scales, for people."""
        own = [f"{name} {weight:.4g}" for name, weight in self.added]
        if self.features is None:
            return ", ".join([f"LMWT {self.lmwt:g}, word penalty {self.word_penalty:g}", *own])
        if self.features == FIRST_WINS:
            return "as it came"
        return ", ".join([*(f"{name} {weight:.4g}" for name, weight in self.features), *own])


def scales_of(
    weights: Mapping[str, float], *, has_graph: bool, subtracted: Sequence[str] = ()
) -> Scales:
    """Scales that choose as weights of features do.

    They are LMWT and word penalty alone if these weigh the same scores, else weights of features.
    With subtracted LMs, whose weights are features of their own, the LM's weight must be 1.
    """
    own = dict(weights)
    names = [f"{SUBTRACTED}.{name}" for name in subtracted]
    less = tuple((name, own.pop(name, 0.0)) for name in names)
    features = tuple(own.items())
    lm, am = own.get(LM, 0.0), own.get("am_score", 0.0)
    if lm <= 0 or am <= 0:
        return Scales(features=features, added=less)
    kaldi = Scales(lm / am, 0.0 - own.get("words", 0.0) / lm, added=less)
    # LMWT and penalty give a graph score the LM's weight
    formula = {"am_score", LM, "words"} | ({"graph_score"} if has_graph else set())
    same = {*own, "words"} == formula and own.get("graph_score", lm) == lm
    return kaldi if same else dataclasses.replace(kaldi, features=features)


def read_scales(path: Union[PathLike, Scales]) -> Scales:
    """Scales of a yaml file that `bayeslm rescore` wrote; read ones are as they are."""
    if isinstance(path, Scales):
        return path
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
    control, unbiased = (
        None if content.get(name) is None else _scales_of(content[name])
        for name in ("control", "unbiased")
    )
    less = content.get("subtracted") or {}
    added = [(f"{SUBTRACTED}.{name}", float(weight)) for name, weight in less.items()]
    added += [(BIAS, float(content[BIAS]))] if content.get(BIAS) is not None else []
    decision = str(content.get("decision") or "max")
    tuned_on = {"tuned_on": content.get("tuned_on"), **(content.get("counted") or {})}["tuned_on"]
    return Scales(
        *(lmwt, penalty, features, posterior, decision, control),
        added=tuple(added),
        unbiased=unbiased,
        near_words=NearWords.of(content[NEAR]) if content.get(NEAR) else None,
        lms=_lms_of(content),
        tuned_on=None if tuned_on is None else str(tuned_on),
    )


def _lms_of(content: Mapping[str, Any]) -> MixtureFacts:
    """Facts of the LMs with which scales were tuned."""
    digests, forms = content.get("fingerprints") or {}, content.get("text_forms") or {}
    less = content.get("subtracted") or {}
    rows = {
        str(name): ComponentFacts(
            str(name),
            fingerprint=str(digests.get(name, "")),
            text_form=checked_form(forms.get(name)),
        )
        for name in dict.fromkeys([*digests, *forms, *less])
    }
    own = [row for name, row in rows.items() if name not in less]
    return MixtureFacts(own, [row for name, row in rows.items() if name in less])
