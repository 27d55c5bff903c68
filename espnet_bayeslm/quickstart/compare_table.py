"""The table of a comparison: means over seeds, t intervals, and what they say in words."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple, Union

import numpy as np

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.experiment.cells import Values, markdown_table
from espnet_bayeslm.report.table import signed
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
# In %: as a table shows it, 0.0
LEAST = 0.05
# Mean, ends of its interval
Interval = Tuple[float, float, float]
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


def pairs(seeds: Sequence[int]) -> Dict[int, Tuple[int, int]]:
    """{seed: it and another}: pairs of starts, each once."""
    found = {seed: (seed, other) for seed, other in zip(seeds, [*seeds[1:], seeds[0]], strict=True)}
    return {seeds[0]: found[seeds[0]]} if len(seeds) == 2 else found


def interval(values: Sequence[float], *, ring: bool = False) -> Interval:
    """(Mean, ends of its 95 % t interval) in the logarithm; of one value there are no ends (nan).

    A perplexity is exp of a mean of nats per word, so that the mean is over what is measured.

    Args:
        values: Perplexities or their ratios, of each seed.
        ring: True if value n is of seeds n and n + 1, as `pairs` makes them.
    """
    from scipy.stats import t  # takes a while

    logs = [math.log(value) for value in values]
    mean, count = statistics.fmean(logs), len(logs)
    half = math.nan
    if count > 1:
        variance, freedom = ring_variance(logs) if ring else (statistics.variance(logs), count - 1)
        half = float(t.ppf(0.975, freedom)) * math.sqrt(variance / count)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def ring_variance(values: Sequence[float]) -> Tuple[float, int]:
    """Variance of one seed's part in pairs that overlap, and its degrees of freedom.

    Value n of N is (u_n + u_(n+1)) / 2 with independent u: its Fourier coefficient m has the
    variance of u times cos^2(pi m / N). Each coefficient but the mean estimates the variance; with
    even N, the alternating one holds nothing of it. What a pair has beside its two parts makes the
    estimate larger.

    Args:
        values: Values of N >= 3 pairs, in the order of `pairs`.
    """
    count = len(values)
    power = np.abs(np.fft.fft(values)[1:]) ** 2 / count
    gain = np.cos(np.pi * np.arange(1, count) / count) ** 2
    held = gain > 1e-9
    return float(np.mean(power[held] / gain[held])), int(held.sum())


def ratios(perplexity: Mapping[str, Values], name: str, base: str, seeds: Sequence[int]) -> Values:
    """A system's perplexity over another's, of each seed, or pair of seeds in `pairs`' order.

    Where one of both is of pairs of starts, the other's figure is the mean over the pair.
    """
    values, bases = perplexity[name], perplexity[base]
    if TWO in (name, base):
        values, bases = (
            found if system == TWO else averaged(found, seeds)
            for system, found in ((name, values), (base, bases))
        )
    order = pairs(seeds) if TWO in (name, base) else values
    return {seed: values[seed] / bases[seed] for seed in order}


def averaged(values: Values, seeds: Sequence[int]) -> Values:
    """Geometric means over pairs of seeds."""
    return {
        seed: statistics.geometric_mean([values[n] for n in pair])
        for seed, pair in pairs(seeds).items()
    }


def percent(
    results: Mapping[str, Any], name: str, base: str, figure: str = "perplexity"
) -> Interval:
    """Change of a system's perplexity against another's in %, with its interval."""
    found = ratios(results[figure], name, base, results["seeds"])
    ends = interval(list(found.values()), ring=TWO in (name, base))
    mean, low, high = (100 * (ratio - 1) for ratio in ends)
    return mean, low, high


def bracketed(found: Interval, write: Any) -> str:
    """Mean and interval."""
    mean, low, high = found
    return write(mean) if math.isnan(low) else f"{write(mean)} [{write(low)}, {write(high)}]"


def write_tables(exp: Path, results: Dict[str, Any]) -> str:
    """Write EXP/RESULTS.md, results.tsv and results.json, whole or not at all.

    Args:
        exp: The folder.
        results: See `Work.results`.

    Returns:
        The content of RESULTS.md.
    """
    text = markdown(results)
    with staged(exp) as folder:
        (folder / "RESULTS.md").write_text(text, encoding="utf-8")
        (folder / "results.tsv").write_text(tsv(results), encoding="utf-8")
        write_json(folder / "results.json", results)
    return text


def markdown(results: Mapping[str, Any]) -> str:
    """The table, and in words what was gained and what was lost."""
    figures = shown(results)
    header = [""]
    for what in figures.values():
        header += [what, f"against {POINT}, %"]
    rows = [[name, *(c for f in figures for c in cells(results, name, f))] for name in ROWS]
    chosen = ", ".join(str(item["chosen"]) for item in results["dropout"].values())
    facts = {**results, "seeds": ", ".join(map(str, results["seeds"])), "chosen": chosen}
    explanation = EXPLANATION + (KNOWN if len(figures) > 1 else "")
    lines = [markdown_table(header, rows), explanation.format(**facts), *verdicts(results)]
    return "\n".join(lines) + "\n"


def shown(results: Mapping[str, Any]) -> Dict[str, str]:
    """{figure: heading}; where no word is unknown, the second would be the first."""
    figures = {"perplexity": "perplexity"}
    if results["excluded"] and results["known_sentences"]:
        figures["perplexity_of_known_sentences"] = "known sentences"
    return figures


def cells(results: Mapping[str, Any], name: str, figure: str) -> Iterator[str]:
    """A system's perplexity, and its change against the point-estimate LM."""
    found = results[figure][name]
    values = [found[seed] for seed in (pairs(results["seeds"]) if name == TWO else found)]
    # that of the 3-gram is the same at every seed
    ends = interval(values[:1] if name == "3-gram" else values, ring=name == TWO)
    yield bracketed(ends, lambda x: perplexity_text(x, 1))
    change = percent(results, name, POINT, figure)
    yield "" if name == POINT else bracketed(change, lambda x: signed(x, 1))


def verdicts(results: Mapping[str, Any]) -> Iterator[str]:
    """What each mixture with the Bayesian LM changes, in words."""
    for name, base in ((BAYES, POINT), (BOTH, POINT), (BOTH, TWO)):
        found = [
            verdict(percent(results, name, base, figure)) + (" in known sentences" * bool(index))
            for index, figure in enumerate(shown(results))
        ]
        yield f"{name} against {base}: {'; '.join(found)}."
    for seed, item in results["dropout"].items():
        rates = [choice for choice in item["valid"] if choice != HALF]
        if len(rates) > 1 and item["chosen"] == max(rates):
            yield f"Seed {seed}: the largest rate of dropout was the best; try larger ones too."
        if len(rates) > 1 and item["chosen"] == min(rates) > 0:
            yield f"Seed {seed}: the smallest rate of dropout was the best; try 0 too."
        known, chosen = item["valid_of_known_sentences"], item["chosen"]
        best = min(known, key=lambda choice: known[choice])
        if known[best] < known[chosen]:
            yield (
                f"Seed {seed}: in the validation sentences without unknown words dropout {best} is"
                f" better than {chosen} ({known[best]:.1f}, {known[chosen]:.1f})."
            )


def verdict(found: Interval) -> str:
    """A change in %, and whether it is one at all."""
    _, low, high = found
    said = "no interval, of one pair of starts"
    if not math.isnan(low):
        # what rounds to nothing is nothing, however certain
        said = "lower" if high < -LEAST else "HIGHER" if low > LEAST else "no certain difference"
    return f"{bracketed(found, lambda x: signed(x, 1))} %: {said}"


def tsv(results: Mapping[str, Any]) -> str:
    """System, seed and perplexities, with tabs."""
    lines: List[str] = ["system\tseed\tperplexity\tperplexity_of_known_sentences"]
    for name in ROWS:
        known = results["perplexity_of_known_sentences"][name]
        for seed, value in results["perplexity"][name].items():
            lines.append(f"{name}\t{seed}\t{value:.4f}\t{known[seed]:.4f}")
    return "\n".join(lines) + "\n"
