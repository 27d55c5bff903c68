"""From a choice of kinds to the configuration that the ordinary training reads."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from espnet2.utils.yaml_no_alias_safe_dump import yaml_no_alias_safe_dump

from espnet_bayeslm.bayes.kinds import KINDS
from espnet_bayeslm.kinds.search.kind import Search
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

# Location -> kind -> the options that the search gave this candidate.
CandidateOptions = Mapping[str, Mapping[str, Mapping[str, Any]]]


def is_search(value: Any) -> bool:
    """True if a value of `uncertainty:` is a search."""
    return (value.get("kind") if isinstance(value, Mapping) else value) == Search.name


def check_searched(uncertainty: Any, *, path: Optional[PathLike] = None) -> Mapping[str, Any]:
    """Check that a configuration's `uncertainty:` has a search, and return it."""
    if not isinstance(uncertainty, Mapping) or not any(map(is_search, uncertainty.values())):
        raise InputError(
            "empty search space: no location of lm_conf's `uncertainty` is of kind search",
            path=path,
            remedy="Give one, as `cell_input@1-2: {kind: search, candidates: [point, bayes]}`.",
        )
    return uncertainty


def uncertainty_of(
    choices: Mapping[str, str], options: Optional[CandidateOptions] = None
) -> Dict[str, Any]:
    """`uncertainty:` of an ordinary configuration, {POSITION@LAYERS: kind}, from {location: kind}.

    Positions stand as they come first in `choices`; layers of one position with one kind and the
    same options stand together; point estimates are left out.
    """
    positions = [location.partition("@")[0] for location in choices]
    groups: Dict[Tuple[str, str], Tuple[Any, List[str]]] = {}
    for location in sorted(choices, key=lambda name: positions.index(name.partition("@")[0])):
        kind = choices[location]
        if kind in KINDS and not KINDS[kind].is_uncertain:
            continue
        given = (options or {}).get(location, {}).get(kind, {})
        value = {"kind": kind, **given} if given else kind
        position, _, layer = location.partition("@")
        # repr: options may be lists, which no dictionary takes as its keys
        _, layers = groups.setdefault((position, repr(value)), (value, []))
        layers.append(layer)
    return {_entry(position, layers): value for (position, _), (value, layers) in groups.items()}


def _entry(position: str, layers: Sequence[str]) -> str:
    """POSITION@LAYERS with the layers as `1-2,6`, or the position where it has no layers."""
    spans: List[List[int]] = []
    for number in sorted(int(layer) for layer in layers if layer):
        if spans and spans[-1][1] + 1 == number:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
    return f"{position}@{text}" if text else position


def derived_config(
    search_config: Mapping[str, Any],
    choices: Mapping[str, str],
    options: Optional[CandidateOptions] = None,
) -> Dict[str, Any]:
    """Training configuration of one architecture of a search, {location: kind}.

    The choice replaces the search in `uncertainty`. The prior is always given: `bayeslm train
    --from` would take the super-network as the prior where the configuration has none.
    """
    config = dict(search_config)
    lm_conf = config.get("lm_conf") or {}
    uncertainty: Dict[str, Any] = {}
    for entry, value in check_searched(lm_conf.get("uncertainty")).items():
        # the choice comes where the first search stood
        uncertainty.update(uncertainty_of(choices, options) if is_search(value) else {entry: value})
    config["lm_conf"] = {**lm_conf, "uncertainty": uncertainty}
    model_conf = {"prior": None, **(config.get("model_conf") or {})}
    model_conf.pop("architecture_lr", None)
    config["model_conf"] = model_conf
    return config


def architecture_yaml(config: Mapping[str, Any], header: Sequence[str]) -> str:
    """Training configuration as yaml."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header)
    body = yaml_no_alias_safe_dump(config, sort_keys=False, indent=4)
    return comment + body
