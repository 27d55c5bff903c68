"""The tables of the LMs themselves: their trainings, weights, ratios and searches, in Markdown."""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping

from espnet_bayeslm.configs.tables import SEARCHED
from espnet_bayeslm.experiment.cells import NOTHING, by_seed, table
from espnet_bayeslm.experiment.outputs import Json
from espnet_bayeslm.experiment.plan import ALONE
from espnet_bayeslm.experiment.view import View


def tuned_table(view: View) -> str:
    """Interpolation weights and the scales of each system, by seed."""
    rows = []
    for name in _mixtures(view):
        systems = {seed: view.system(seed, name) for seed in view.seeds}
        known = {seed: s for seed, s in systems.items() if s and (s["weights"] or s["scales"])}
        if known:
            scales = (_scales(known, condition) for condition in view.conditions)
            rows.append([view.system_label(name), _weights(known), *scales])
    return table(["", "weights", *(f"LMWT, penalty: {c}" for c in view.conditions)], rows)


def _weights(systems: Mapping[int, Json]) -> str:
    """Components' weights, each of all seeds."""
    found: Dict[str, Dict[int, float]] = {}
    for seed, system in systems.items():
        for component, weight in system["weights"].items():
            found.setdefault(component, {})[seed] = weight
    each = (f"{name} {by_seed(values, '{:.3f}'.format)}" for name, values in found.items())
    return ", ".join(each)


def _scales(systems: Mapping[int, Json], condition: str) -> str:
    scales = {n: s["scales"][condition] for n, s in systems.items() if condition in s["scales"]}
    return by_seed(scales, lambda value: f"{value['lmwt']:g}, {value['word_penalty']:g}")


def _mixtures(view: View) -> Iterator[str]:
    """Systems with the n-gram, the lines' first."""
    seen: Dict[str, None] = {view.ngram: None}
    for line in view.lines:
        seen.update(dict.fromkeys(name for r, name in line["systems"].items() if r != ALONE))
    for run in view.whole.values():
        seen.update(dict.fromkeys(run["controls"]))
    yield from seen


def training_table(view: View) -> str:
    """What each training says of itself, a row for each LM and seed."""
    rows = []
    for line in view.lines:
        for seed, lm in view.lms(line["name"]).items():
            if seed in line["seeds"]:
                rows.append([view.numbered(line), f"{seed}", *_training_cells(lm)])
    header = ["", "seed", "parameters", "random", "epochs", "minutes", "training NLL", "KL"]
    return table([*header, "validation ppl, by epoch"], rows)


def _training_cells(lm: Json) -> List[str]:
    last = lm["epochs"][-1]
    curve = ", ".join(f"{epoch['valid_ppl']:.1f}" for epoch in lm["epochs"])
    return [
        f"{lm['parameters']}",
        f"{lm['random']}" if lm["random"] else NOTHING,
        f"{len(lm['epochs'])}",
        f"{lm['minutes']:.1f}",
        f"{last['train_nll']:.3f}",
        f"{last['train_kl']:.3f}",
        curve,
    ]


def snr_table(view: View) -> str:
    """Signal-to-noise ratios by location and seed; nothing where there are none."""
    rows = []
    for line in view.lines:
        found: Dict[str, Dict[int, Json]] = {}
        for seed, lm in view.lms(line["name"]).items():
            for row in lm["snr"]:
                found.setdefault(row["location"], {})[seed] = row
        rows += [[view.numbered(line), place, *_snr_cells(found[place])] for place in found]
    header = ["", "location", "random", "median SNR", "SNR 5 to 95 %", "median sigma"]
    return table([*header, "sigma / start"], rows)


def _snr_cells(rows: Mapping[int, Json]) -> List[str]:
    first = next(iter(rows.values()))
    cells = [f"{first['count']}", by_seed(rows, lambda row: f"{row['median']:.3g}")]
    if "low" not in first:
        return [*cells, NOTHING, NOTHING, NOTHING]
    cells.append(by_seed(rows, lambda row: f"{row['low']:.2g} to {row['high']:.2g}"))
    cells.append(by_seed(rows, lambda row: f"{row['median_std']:.3g}"))
    known = first["median_std_ratio"] is not None
    moved = by_seed(rows, lambda row: f"{row['median_std_ratio']:.3g}") if known else NOTHING
    return [*cells, moved]


def searched_lines(view: View) -> str:
    """What the searches chose for the lines that ask for it, a line each."""
    rows = []
    for line in view.lines:
        each: Dict[str, List[int]] = {}
        for seed, lm in view.lms(line["name"]).items():
            if line["where"] == SEARCHED and lm["uncertainty"] is not None:
                where = ", ".join(lm["uncertainty"]) or "no location, a point-estimate LM"
                each.setdefault(where, []).append(seed)
        for where, seeds in each.items():
            rows.append(f"- {view.numbered(line)}, seed {', '.join(map(str, seeds))}: {where}\n")
    return "".join(rows)


def search_table(view: View) -> str:
    """Best architectures of each search; nothing where there is none."""
    rows = [
        [name, f"{seed}", f"{item['rank']}", item["architecture"], f"{item['probability']:.3g}"]
        for seed, run in view.whole.items()
        for name, search in run["searches"].items()
        for item in search["ranking"]
    ]
    header = ["", "seed", "rank", "uncertain", "probability"]
    return table(header, rows)


def share_table(view: View) -> str:
    """Share of each uncertain kind at each location, by seed."""
    found: Dict[str, Dict[int, str]] = {}
    for seed, run in view.whole.items():
        for name, search in run["searches"].items():
            for shares in search["runs"].values():
                for location, kinds in shares.items():
                    for kind in (kind for kind in kinds if kind != "point"):
                        key = f"{name}: {location} {kind}"
                        found.setdefault(key, {})[seed] = f"{kinds[kind]:.3f}"
    rows = [[key, *(values.get(s, NOTHING) for s in view.seeds)] for key, values in found.items()]
    header = ["", *(f"seed {seed}" for seed in view.seeds)]
    return table(header, rows)
