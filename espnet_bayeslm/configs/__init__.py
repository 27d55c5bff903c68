"""The shipped training configurations, by name, and sizes of LMs; no options of command lines."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_yaml_mapping

FOLDER = Path(__file__).parent

SIZES: Dict[str, Dict[str, Dict[str, int]]] = {
    "small": {
        "bayes_lstm": {"unit": 256, "nlayers": 2},
        "bayes_transformer": {"att_unit": 128, "head": 4, "unit": 512, "layer": 6},
    },
    "paper": {
        "bayes_lstm": {"unit": 1024, "nlayers": 2},
        "bayes_transformer": {"att_unit": 512, "head": 8, "unit": 4096, "layer": 6},
    },
}
"""Size -> LM -> its `lm_conf`; layers are as many, so that a configuration's places exist."""

# Size -> shipped configuration -> its `lm_conf`, as dev chose it. In a small LM the embedding has
# most of the weights: its noise takes dropout's place (in a large one the others overfit), and has
# to start near where it ends.
CHOSEN: Dict[str, Dict[str, Dict[str, Any]]] = {
    "small": {
        "bayes_lstm": {"dropout_rate": 0.0},
        "bayes_transformer": {
            "dropout_rate": 0.0,
            "init_std": 0.5,
            "init_std_unit": "weights",
        },
    },
}

SHAPES = {
    "bayes_lstm": ("unit", "nlayers", "tie_weights"),
    "bayes_transformer": (
        *("att_unit", "head", "unit", "layer", "embed_unit"),
        *("pos_enc", "tie_weights", "norm_first"),
    ),
}
"""Options that must be equal for the weights of one LM to be the start of another."""


def shipped() -> Dict[str, Path]:
    """Shipped configurations, {name: file}, ordered by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def find_config(config: Union[str, Path]) -> Path:
    """File of a configuration: a file of the user's, else the shipped one of that name.

    The name is one that `bayeslm configs` lists, with or without `.yaml`.
    """
    path = Path(config)
    if path.is_file():
        return path
    known = shipped()
    # conf/NAME.yaml is how recipes and the documentation call a shipped one
    named = path.parent in (Path(), Path("conf"))
    if named and path.suffix in ("", ".yaml") and path.stem in known:
        return known[path.stem]
    near = difflib.get_close_matches(path.stem, known, n=3) or list(known)
    raise InputError(
        "cannot be read: no such file, and no shipped configuration of that name",
        path=path,
        remedy=f"Did you mean {', '.join(near)}? `bayeslm configs` lists them.",
    )


def first_sentence(path: Path) -> str:
    """First sentence of a configuration's comment."""
    text = path.read_text(encoding="utf-8")
    comment = " ".join(
        line.removeprefix("#").strip() for line in text.split("\nlm: ")[0].splitlines()
    )
    return re.split(r"\. |: |:$", comment)[0].removesuffix(".")


def lm_conf_options(values: Mapping[str, Any]) -> List[str]:
    """ESPnet's options that set values of `lm_conf`."""
    words = [("--lm_conf", f"{key}={json.dumps(value)}") for key, value in values.items()]
    return [word for pair in words for word in pair]


def chosen_lm(config: Path, words: Sequence[str]) -> Optional[str]:
    """LM that words of a command line choose, or else a configuration."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--lm", type=str.lower, default=read_yaml_mapping(config).get("lm"))
    lm: Optional[str] = parser.parse_known_args(list(words))[0].lm
    return lm


def size_options(config: Path, lm: Optional[str], size: str) -> List[str]:
    """ESPnet's options that give an LM one of `SIZES`, with the options tuned for that size."""
    if lm not in SIZES[size]:
        valid = ", ".join(SIZES[size])
        raise InputError(f"--size {size} with lm: {lm}; LMs with sizes are {valid}")
    return lm_conf_options({**SIZES[size][lm], **_chosen(config, size)})


def _chosen(config: Path, size: str) -> Dict[str, Any]:
    """Size-specific options of a shipped configuration."""
    is_shipped = config.resolve().parent == FOLDER.resolve()
    return CHOSEN.get(size, {}).get(config.stem, {}) if is_shipped else {}


def inherited_size_options(config: Path, lm: str, source: Mapping[str, Any]) -> List[str]:
    """ESPnet's options for the sizes in a trained LM's `lm_conf`, and what suits such a size."""
    sizes = {key: source[key] for key in SHAPES.get(lm, ()) if key in source}
    if lm in SHAPES:
        width = next(iter(SIZES["small"][lm]))
        # an LM's own defaults are the paper's sizes
        is_small = source.get(width, math.inf) < SIZES["paper"][lm][width]
        sizes.update(_chosen(config, "small" if is_small else "paper"))
    return lm_conf_options(sizes)


def expand_config(words: Sequence[str]) -> List[str]:
    """Options of ESPnet's LM training, `--config NAME` and `--size` replaced by their meaning."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--size", choices=tuple(SIZES))
    known, rest = parser.parse_known_args(list(words))
    if known.config is None:
        return list(words)
    path = find_config(known.config)
    options = ["--config", str(path)]
    if known.size is not None:
        options += size_options(path, chosen_lm(path, words), known.size)
    return [*options, *rest]
