"""The training configurations that are shipped, found by name."""

from __future__ import annotations

import argparse
import difflib
import json
import logging
import math
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import yaml

from espnet_bayeslm.utils.errors import InputError

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


def describe(path: Path) -> str:
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


def size_options(config: Path, lm: Optional[str], size: str) -> List[str]:
    """ESPnet's options that give an LM one of `SIZES`, with the options tuned for that size."""
    if lm not in SIZES[size]:
        valid = ", ".join(SIZES[size])
        raise InputError(f"--size {size} with lm: {lm}; LMs with sizes are {valid}")
    content = read_config(config)
    return lm_conf_options(
        {**SIZES[size][lm], **_chosen(content, _original(config, content), size)}
    )


def read_config(path: Path) -> Dict[str, Any]:
    """Content of a configuration file, empty where it is no mapping."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _original(config: Path, content: Mapping[str, Any]) -> Optional[str]:
    """Name of the shipped configuration that a file is, or that its LM was copied from.

    A copy has the same places and sizes; its options for them then count as defaults, too.
    """
    if config.resolve().parent == FOLDER.resolve():
        return config.stem
    lm, known = content.get("lm"), {name: read_config(path) for name, path in shipped().items()}
    keys = ("uncertainty", *SHAPES.get(str(lm), ()))

    def same(theirs: Mapping[str, Any]) -> bool:
        pairs = ((_lm_conf(theirs).get(key), _lm_conf(content).get(key)) for key in keys)
        return theirs.get("lm") == lm and all(a == b for a, b in pairs)

    found = next((name for name, theirs in known.items() if same(theirs)), None)
    if found is not None:
        logging.warning("%s has the places and sizes of %s: it takes others as that", config, found)
    return found


def _lm_conf(content: Mapping[str, Any]) -> Mapping[str, Any]:
    found = content.get("lm_conf")
    return found if isinstance(found, dict) else {}


def _chosen(content: Mapping[str, Any], original: Optional[str], size: str) -> Dict[str, Any]:
    """Size-specific options of a shipped configuration, or of a copy of it."""
    chosen = CHOSEN.get(size, {}).get(original or "", {})
    theirs = _lm_conf(read_config(shipped()[original])) if original and chosen else {}
    # options that the copy has changed stay
    return {k: v for k, v in chosen.items() if _lm_conf(content).get(k) == theirs.get(k)}


def _nearest_size(lm: str, lm_conf: Mapping[str, Any]) -> str:
    """The greatest size that is not wider than an LM, or the smallest."""
    smallest, *others = SIZES
    width = next(iter(SIZES[smallest][lm]))
    # an LM's own defaults are the paper's sizes
    given = lm_conf.get(width, math.inf)
    return next((s for s in reversed(others) if SIZES[s][lm][width] <= given), smallest)


def inherited_size_options(
    config: Path, content: Mapping[str, Any], source: Mapping[str, Any]
) -> List[str]:
    """ESPnet's options that give an LM the sizes of the trained LM, whose `lm_conf` is `source`.

    The options that a shipped configuration adds at such a size are included. Sizes of a shipped
    one, and of a copy that has the same, are the paper's, and only defaults.
    """
    lm, original = content["lm"], _original(config, content)
    given = () if original else _lm_conf(content)
    keys = (key for key in SHAPES.get(lm, ()) if key not in given)
    sizes = {key: source[key] for key in keys if key in source}
    if original and lm in SHAPES:
        sizes.update(_chosen(content, original, _nearest_size(lm, source)))
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
        parser.add_argument("--lm", default=read_config(path).get("lm"))
        options += size_options(path, parser.parse_known_args(list(words))[0].lm, known.size)
    return [*options, *rest]
