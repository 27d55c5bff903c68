"""A trained ESPnet LM as the backbone of a Bayesian one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Mapping

import yaml

from espnet_bayeslm.lm.backbones import BACKBONES
from espnet_bayeslm.loading.experiment import find_files, read_config
from espnet_bayeslm.utils.errors import InputError

LM = "bayes_espnet"


def backbone_options(lm_conf: Mapping[str, Any], source: Path) -> List[str]:
    """ESPnet's options that make a trained LM the backbone of `bayes_espnet`.

    A `backbone` in `lm_conf` must be the trained LM's. What is in `backbone_conf`, as a dropout
    rate, takes the place of the trained LM's.
    """
    args = read_config(find_files(source)[0])
    name, conf = args.lm, args.lm_conf
    if name == LM:
        name, conf = conf.get("backbone"), conf.get("backbone_conf")
    if name not in BACKBONES:
        raise InputError(
            f"is of the kind {name}; {LM} can have {', '.join(BACKBONES)} as its backbone",
            path=source,
            remedy=f"Use a configuration with `lm: {name}`.",
        )
    wanted = lm_conf.get("backbone")
    if wanted not in (None, name):
        raise InputError(
            f"is of the kind {name}, and the configuration is for the backbone {wanted}",
            path=source,
            remedy="Use another configuration, as conf/adapt_*.yaml.",
        )
    conf = {**(conf or {}), **(lm_conf.get("backbone_conf") or {})}
    # one line, as a word of a command line
    value = yaml.safe_dump(conf, default_flow_style=True, width=float("inf")).strip()
    return ["--lm_conf", f"backbone={name}", "--lm_conf", f"backbone_conf={value}"]
