"""Tables in Markdown, and their cells: values by seed."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Sequence

from espnet_bayeslm.scoring.perplexity import perplexity_text

# Seed -> value.
Values = Dict[int, float]
NOTHING = ""


def mean(values: Mapping[int, float]) -> float:
    """Mean over the seeds."""
    return sum(values.values()) / len(values)


def cell(values: Values, seeds: Sequence[int], digits: int = 1) -> str:
    """`mean ± half of the range` over the seeds; seeds are named where some are missing.

    What does not depend on the seed has no range. Values of other seeds are left out.

    Args:
        values: Value by seed.
        seeds: The seeds that are expected.
        digits: Digits after the point.
    """
    values = {seed: values[seed] for seed in seeds if seed in values}
    if not values:
        return NOTHING
    text = perplexity_text(mean(values), digits)
    if len(set(values.values())) > 1:
        text += f" ± {perplexity_text((max(values.values()) - min(values.values())) / 2, digits)}"
    missing = set(seeds) - set(values)
    return f"{text} (seed {', '.join(map(str, values))})" if missing else text


def by_seed(values: Mapping[int, Any], write: Callable[[Any], str]) -> str:
    """Values of the seeds, with slashes."""
    return " / ".join(write(value) for value in values.values())


def change(values: Values, base: Values) -> Values:
    """Change in % against another system, of each seed that both have."""
    return {seed: 100 * (values[seed] / base[seed] - 1) for seed in values if seed in base}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Table in Markdown without empty rows and columns; nothing where no row is left."""
    rows = [row for row in rows if any(row[1:])]
    kept = [n for n in range(len(header)) if n == 0 or any(row[n] for row in rows)]
    if not rows:
        return NOTHING
    return markdown_table([header[n] for n in kept], [[row[n] for n in kept] for row in rows])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table, the first column aligned to the left, every other one to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
