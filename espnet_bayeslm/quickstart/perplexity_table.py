"""The table of a comparison: means over seeds, t intervals, and conclusions in words."""

from __future__ import annotations

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Mapping, Sequence, Union

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.quickstart.interval import Interval, over_seeds, pairs
from espnet_bayeslm.quickstart.runner import KNOWN_ONLY
from espnet_bayeslm.report.table import Table, signed
from espnet_bayeslm.utils.files import staged, write_json

POINT, BAYES, BOTH = "point + 3-gram", "Bayesian + 3-gram", "Bayesian + point + 3-gram"
TWO = "two points of two starts + 3-gram"
# System -> the LMs that are interpolated with the 3-gram; `other` is another seed's point estimate
SYSTEMS = {
    POINT: ("point",),
    BAYES: ("bayes",),
    BOTH: ("bayes", "point"),
    TWO: ("point", "other"),
}
ROWS = ("3-gram", "point alone", "Bayesian alone", *SYSTEMS)
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


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Choice of a seed's point-estimate LM.

    Attributes:
        chosen: The rate of dropout, or `half`.
        valid: Choice -> perplexity of the validation text.
    """

    chosen: Choice
    valid: Dict[Choice, float]

    def hint(self) -> str:
        """Hint at other rates of dropout that might be better; "" if there are none."""
        rates = [choice for choice in self.valid if choice != HALF]
        if len(rates) > 1 and self.chosen == max(rates):
            return "the largest rate of dropout was the best; try larger ones too."
        if len(rates) > 1 and self.chosen == min(rates) > 0:  # type: ignore[operator]
            return "the smallest rate of dropout was the best; try 0 too."
        return ""


@dataclasses.dataclass(frozen=True)
class Results:
    """Figures of all seeds; results.json has them by these names.

    Attributes:
        sentences: Sentences of the test text.
        words: Words of the test text with `</s>`.
        excluded: Words that are unknown to an LM or the 3-gram.
        known_sentences: Sentences without unknown words.
        seeds: The seeds.
        dropout: Seed -> dropout that was chosen for the point-estimate LM.
        perplexity: System -> seed -> perplexity of the test text.
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
        found = ratios(getattr(self, figure), name, base, self.seeds)
        ends = over_seeds(list(found.values()), ring=TWO in (name, base))
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
            found = [
                verdict(self.change(name, base, figure)) + " in known sentences" * bool(index)
                for index, figure in enumerate(self.figures())
            ]
            yield f"{name} against {base}: {'; '.join(found)}."
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


def ratios(perplexity: Mapping[str, Values], name: str, base: str, seeds: Sequence[int]) -> Values:
    """A system's perplexity over another's, of each seed, or pair of seeds in `pairs`' order.

    Where one of both is of pairs of starts, the other's figure is the mean over the pair.
    """
    values, bases = perplexity[name], perplexity[base]
    order: Iterable[int] = values
    if TWO in (name, base):
        order = pairs(seeds)
        values = values if name == TWO else averaged(values, seeds)
        bases = bases if base == TWO else averaged(bases, seeds)
    return {seed: values[seed] / bases[seed] for seed in order}


def averaged(values: Values, seeds: Sequence[int]) -> Values:
    """Geometric means over pairs of seeds."""
    return {
        seed: statistics.geometric_mean([values[n] for n in pair])
        for seed, pair in pairs(seeds).items()
    }


def verdict(change: Interval) -> str:
    """A change in %, and its direction, if it is certain."""
    said = "no interval, of one pair of starts"
    if not math.isnan(change.low):
        # a change that rounds to zero is none, however certain
        said = "no certain difference"
        if change.high < -LEAST or change.low > LEAST:
            said = "lower" if change.high < -LEAST else "HIGHER"
    return f"{change.text(lambda x: signed(x, 1))} %: {said}"
