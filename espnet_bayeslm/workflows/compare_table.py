"""The table of a comparison: means over seeds, t intervals, and conclusions in words."""

from __future__ import annotations

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple, Union

import numpy as np

from espnet_bayeslm.report.table import Table, signed
from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.utils.files import write_json
from espnet_bayeslm.utils.folders import staged

POINT, BAYES, BOTH = "point + 3-gram", "Bayesian + 3-gram", "Bayesian + point + 3-gram"
TWO = "two points of two starts + 3-gram"
# System -> the LMs that are interpolated with the 3-gram; `other` is another seed's point estimate
SYSTEMS = {POINT: ("point",), BAYES: ("bayes",), BOTH: ("bayes", "point"), TWO: ("point", "other")}
ROWS = ("3-gram", "point alone", "Bayesian alone", *SYSTEMS)
# Figure of sentences without unknown words
KNOWN_ONLY = "perplexity_of_known_sentences"
# The point-estimate LM by its rate of dropout, or the half-trained one as it came
HALF = "half"
Choice = Union[float, str]
# Seed -> a figure
Values = Dict[int, float]
# In %: as a table shows it, 0.0
LEAST = 0.05
EXPLANATION = """\
Perplexity per word of the test text, </s> counted; {excluded} of {words} words are unknown to the
LMs or the 3-gram and left out of every line. Geometric mean over the seeds {seeds}, in brackets its
95 % t interval: of trainings, not of texts; against two starts it allows for seeds that two pairs
share. Dropout of the point-estimate LMs, chosen on the
validation text: {chosen} (`half`: not trained any further, which only overfits). The Bayesian LM is
the shipped configuration, untuned.
"""
KNOWN = """\
What follows an unknown word counts, and depends on how an LM takes <unk>; the last two columns are
of the {known_sentences} of {sentences} sentences without unknown words.
"""


class Interval(NamedTuple):
    """A figure, its 95 % interval, and the p-value of a test that it is zero; nan for none."""

    value: float
    low: float
    high: float
    p: float = math.nan

    def text(self, write: Callable[[float], str]) -> str:
        """Figure and interval in brackets; a dagger where the figure is significantly below 0."""
        mark = " †" if self.value < 0 and self.p < 0.05 else ""
        if math.isnan(self.low):
            return write(self.value) + mark
        return f"{write(self.value)} [{write(self.low)}, {write(self.high)}]{mark}"


def pairs(seeds: Sequence[int]) -> Dict[int, Tuple[int, int]]:
    """{seed: it and another}: pairs of starts, each once."""
    pair_of = {
        seed: (seed, other) for seed, other in zip(seeds, [*seeds[1:], seeds[0]], strict=True)
    }
    return {seeds[0]: pair_of[seeds[0]]} if len(seeds) == 2 else pair_of


def over_seeds(values: Sequence[float], *, ring: bool = False) -> Interval:
    """Geometric mean and its 95 % t interval; of one value there is no interval.

    A perplexity is exp of a mean of nats per word: the mean is taken over these nats. In a ring
    value n is of seeds n and n + 1, as `pairs` makes them.
    """
    from scipy.stats import t  # takes a while

    logs = [math.log(value) for value in values]
    mean, count = statistics.fmean(logs), len(logs)
    half = math.nan
    if count > 1:
        variance, freedom = ring_variance(logs) if ring else (statistics.variance(logs), count - 1)
        half = float(t.ppf(0.975, freedom)) * math.sqrt(variance / count)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def ring_variance(values: Sequence[float]) -> Tuple[float, int]:
    """Variance of one seed's part in N >= 3 pairs that overlap, and its degrees of freedom.

    Value n of N is (u_n + u_(n+1)) / 2 with independent u: its Fourier coefficient m has the
    variance of u times cos^2(pi m / N). Each coefficient but the mean estimates the variance; with
    even N, the alternating coefficient holds nothing of it. Anything else that differs between
    pairs makes the estimate larger.
    """
    count = len(values)
    power = np.abs(np.fft.fft(values)[1:]) ** 2 / count
    gain = np.cos(np.pi * np.arange(1, count) / count) ** 2
    held = gain > 1e-9
    return float(np.mean(power[held] / gain[held])), int(held.sum())


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Choice of a seed's point-estimate LM, and the validation text's perplexity of each choice."""

    chosen: Choice
    valid: Dict[Choice, float]

    def hint(self) -> str:
        """Hint at other rates of dropout that might be better; "" if there are none."""
        rates = [choice for choice in self.valid if choice != HALF]
        if len(rates) > 1 and self.chosen == max(rates):
            return "the largest rate of dropout was the best; try larger ones too."
        is_least = len(rates) > 1 and self.chosen == min(rates) != 0
        return "the smallest rate of dropout was the best; try 0 too." if is_least else ""


@dataclasses.dataclass(frozen=True)
class Results:
    """Figures of the test text at all seeds; results.json has them by these names.

    Attributes:
        words: Words with `</s>`.
        excluded: Words that are unknown to an LM or the 3-gram.
        known_sentences: Sentences without unknown words.
        dropout: Seed -> dropout that was chosen for the point-estimate LM.
        perplexity: System -> seed -> perplexity.
        perplexity_of_known_sentences: System -> seed -> perplexity of the known sentences.
    """

    sentences: int
    words: int
    excluded: int
    known_sentences: int
    seeds: List[int]
    dropout: Dict[int, Dropout]
    perplexity: Dict[str, Values]
    perplexity_of_known_sentences: Dict[str, Values]

    def figures(self) -> Dict[str, str]:
        """{figure: heading}; where no word is unknown, the second would be the first."""
        known = {KNOWN_ONLY: "known sentences"} if self.excluded and self.known_sentences else {}
        return {"perplexity": "perplexity", **known}

    def change(self, name: str, base: str, figure: str = "perplexity") -> Interval:
        """Change of a system's perplexity against another's in %, with its interval."""
        changes = ratios(getattr(self, figure), name, base, self.seeds)
        ends = over_seeds(changes, ring=TWO in (name, base))
        return Interval(*(100 * (ratio - 1) for ratio in ends))

    def cells(self, name: str, figure: str) -> Iterator[str]:
        """Yield a system's perplexity, and its change against the point-estimate LM."""
        found = getattr(self, figure)[name]
        values = [found[seed] for seed in (pairs(self.seeds) if name == TWO else found)]
        # the 3-gram's is the same at every seed
        mean = over_seeds(values[:1] if name == "3-gram" else values, ring=name == TWO)
        yield mean.text(lambda x: perplexity_text(x, 1))
        change = self.change(name, POINT, figure)
        yield "" if name == POINT else change.text(lambda x: signed(x, 1))

    def verdicts(self) -> Iterator[str]:
        """Yield each Bayesian mixture's change of perplexity, and hints at other dropout rates."""
        for name, base in ((BAYES, POINT), (BOTH, POINT), (BOTH, TWO)):
            changes = [
                verdict(self.change(name, base, figure)) + " in known sentences" * bool(index)
                for index, figure in enumerate(self.figures())
            ]
            yield f"{name} against {base}: {'; '.join(changes)}."
        hints = {seed: dropout.hint() for seed, dropout in self.dropout.items()}
        yield from (f"Seed {seed}: {hint}" for seed, hint in hints.items() if hint)

    def markdown(self) -> str:
        """The table in Markdown, and its conclusions in words."""
        figures = self.figures()
        header = [""]
        for heading in figures.values():
            header += [heading, f"against {POINT}, %"]
        rows = [[name, *(cell for f in figures for cell in self.cells(name, f))] for name in ROWS]
        explanation = (EXPLANATION + (KNOWN if len(figures) > 1 else "")).format(
            excluded=self.excluded,
            words=self.words,
            seeds=", ".join(map(str, self.seeds)),
            chosen=", ".join(str(dropout.chosen) for dropout in self.dropout.values()),
            known_sentences=self.known_sentences,
            sentences=self.sentences,
        )
        lines = [Table("", header, rows).markdown(), explanation, *self.verdicts()]
        return "\n".join(lines) + "\n"

    def write(self, exp: Path) -> str:
        """Write EXP/RESULTS.md, which is returned, and results.json, both or none."""
        text = self.markdown()
        with staged(exp) as folder:
            (folder / "RESULTS.md").write_text(text, encoding="utf-8")
            write_json(folder / "results.json", dataclasses.asdict(self))
        return text


def ratios(
    perplexity: Mapping[str, Values], name: str, base: str, seeds: Sequence[int]
) -> List[float]:
    """A system's perplexity over another's, of each seed, or pair of seeds in `pairs`' order.

    Where one of both is of pairs of starts, the other's figure is the mean over the pair.
    """
    alone = {seed: (seed,) for seed in perplexity[name]}
    order: Mapping[int, Sequence[int]] = pairs(seeds) if TWO in (name, base) else alone

    def figure(system: str, seed: int) -> float:
        members = (seed,) if system == TWO else order[seed]
        return statistics.geometric_mean([perplexity[system][n] for n in members])

    return [figure(name, seed) / figure(base, seed) for seed in order]


def verdict(change: Interval) -> str:
    """Text of a change in %, with its direction if the interval excludes zero."""
    said = "no interval, of one pair of starts"
    if not math.isnan(change.low):
        # a change that rounds to zero is none, however certain
        said = "no certain difference"
        if change.high < -LEAST or change.low > LEAST:
            said = "lower" if change.high < -LEAST else "HIGHER"
    return f"{change.text(lambda x: signed(x, 1))} %: {said}"
