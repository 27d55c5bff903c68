"""Reader of a folder that `bayeslm rescore` wrote."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.normalization import AS_IT_IS, Normalization
from espnet_bayeslm.evaluation.wer import (
    ALL_WORDS,
    Counted,
    Counting,
    Words,
    check_same_utterances,
    read_transcripts,
)
from espnet_bayeslm.nbest.fields import hypothesis_key, parse_number
from espnet_bayeslm.nbest.formats import format_of, normalized, read_nbest
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.report.counted_outputs import REMEDY, SCALES
from espnet_bayeslm.report.inputs import Repeated, expecting, named_paths, typed
from espnet_bayeslm.rescoring.decision import (
    BEST,
    COSTS,
    MEASURES,
    SUBTRACTED_COSTS,
    UNCERTAINTY,
    WITHOUT_BIAS,
    WITHOUT_LM,
    ScoredList,
)
from espnet_bayeslm.rescoring.features import LM, SUBTRACTED, hypothesis_features
from espnet_bayeslm.rescoring.scales import Scales, read_scales
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import SUFFIXES, read_keyed_lines, read_lines, read_yaml_mapping

# These JSON lines are looked for by name: there are other *.jsonl in the folder.
JSON_LISTS = tuple(f"nbest.jsonl{suffix}" for suffix in ("", *SUFFIXES))
NEW_LM = "new LM"

# Measure -> its value of each word and of `</s>`
Uncertainty = Dict[str, List[float]]
# Score -> its value for each hypothesis of a list
Scores = Dict[str, List[float]]


@dataclasses.dataclass(frozen=True)
class Rescored:
    """N-best lists and the result of a rescoring, by its name in the report.

    Attributes:
        nbests: The lists; their words are normalised already.
        best: Utterance id -> place (from 0) of the new best hypothesis in its list.
        scores: Utterance id -> score, as the report names it -> its value for each hypothesis.
        uncertainty: Utterance id -> place -> uncertainty of the hypothesis' words; of the
            first pass' best and the new best.
        normalization: Normalization of words before they were scored.
        counting: Unit of error counts and words left out.
        control: Utterance id -> place of the best hypothesis by the scales that were tuned without
            the new LMs' scores; empty where there are none.
        unbiased: The same by the scales without a bias list.
        text_forms: Form in which each pretrained LM read text, by name.
        tuned_on: File that the scales were tuned on, where it is known.
    """

    name: str
    nbests: List[NBest]
    best: Dict[str, int]
    scores: Dict[str, Scores]
    uncertainty: Dict[str, Dict[int, Uncertainty]]
    normalization: Normalization = AS_IT_IS
    counting: Counting = ALL_WORDS
    control: Dict[str, int] = dataclasses.field(default_factory=dict)
    unbiased: Dict[str, int] = dataclasses.field(default_factory=dict)
    text_forms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tuned_on: Optional[str] = None

    @property
    def counted(self) -> Counted:
        """Facts of how the errors of the lists are counted."""
        ignored, steps = tuple(sorted(self.counting.ignored)), self.normalization.steps
        return Counted(self.counting.unit, steps, ignored, dict(self.text_forms), self.tuned_on)


def read_rescored(name: str, folder: str, format: Optional[str]) -> Rescored:
    """Lists of a folder with their new best; their format, or None where the files say it."""
    path = Path(folder)
    if not path.is_dir():
        remedy = "Give the output of `bayeslm rescore`."
        raise InputError("not a folder", path=folder, remedy=remedy)
    format = format_of(path, format)
    named = [path / file for file in JSON_LISTS if format == "jsonl" and (path / file).exists()]
    nbests = list(read_nbest(named[0] if named else path, format))
    best = _best_places(nbests, path / BEST, lists=folder)
    control, unbiased = (
        _best_places(nbests, path / file, lists=folder) if (path / file).exists() else {}
        for file in (WITHOUT_LM, WITHOUT_BIAS)
    )
    scales, facts = None, {}
    if (path / SCALES).exists():
        scales, facts = read_scales(path / SCALES), read_yaml_mapping(path / SCALES)
    ignored = frozenset(facts.get("ignore_words", ()))
    counting = Counting(str(facts.get("unit", "word")), ignored)
    normalization = Normalization(str(facts.get("normalize", "")), kept=counting.ignored)
    if normalization.steps:
        nbests = list(normalized(nbests, normalization, report=False))
    new = _read_costs(path / COSTS, nbests, [NEW_LM]) if (path / COSTS).exists() else {}
    names = [*scales.subtracted] if scales is not None else []
    subtracted = _read_costs(path / SUBTRACTED_COSTS, nbests, names) if names else {}
    scores = {n.utt: _scores(n, new.get(n.utt), subtracted.get(n.utt, {}), scales) for n in nbests}
    uncertainty = {}
    if (path / UNCERTAINTY).exists():
        uncertainty = _read_uncertainty(path / UNCERTAINTY, nbests, best)
    return Rescored(
        *(name, nbests, best, scores, uncertainty, normalization, counting, control, unbiased),
        text_forms={} if scales is None else scales.lms.text_forms,
        tuned_on=None if scales is None else scales.tuned_on,
    )


def _scores(
    nbest: NBest, new: Optional[Scores], subtracted: Scores, scales: Optional[Scales]
) -> Scores:
    """Scores of a list that are known, and the total that was maximised."""
    hyps = nbest.hypotheses
    columns: Dict[str, List[Any]] = {
        "acoustic": [hyp.am_score for hyp in hyps],
        "graph": [hyp.graph_score for hyp in hyps],
        "first LM": [hyp.lm_score for hyp in hyps],
        **(new or {}),
        **{f"subtracted {name}": values for name, values in subtracted.items()},
    }
    # of each LM: the folder has the mixture's scores only, and no bias list
    is_known = scales is not None and not (scales.of_each_lm or scales.uses_bias)
    if new is not None and scales is not None and is_known:
        log_probs = {LM: new[NEW_LM], **{f"{SUBTRACTED}.{n}": v for n, v in subtracted.items()}}
        arrays = {name: np.array(values) for name, values in log_probs.items()}
        features = hypothesis_features(nbest, arrays)
        columns["total"] = ScoredList(nbest, ()).totals(features, scales).values.tolist()
    return {name: values for name, values in columns.items() if None not in values}


def _best_places(nbests: Sequence[NBest], path: Path, *, lists: str) -> Dict[str, int]:
    """{utterance id: place of its best hypothesis}."""
    best = read_transcripts(path)
    check_same_utterances({n.utt: None for n in nbests}, best, ref_path=lists, hyp_path=path)
    places = {}
    for nbest in nbests:
        words = [hyp.words for hyp in nbest.hypotheses]
        if best[nbest.utt] not in words:
            raise InputError(
                f"the best of {nbest.utt[:80]!r} is none of its list's {len(words)} hypotheses",
                path=path,
                remedy=REMEDY,
            )
        places[nbest.utt] = words.index(best[nbest.utt])
    return places


def _read_costs(path: Path, nbests: Sequence[NBest], names: Sequence[str]) -> Dict[str, Scores]:
    """{utterance id: {LM: ln P of each hypothesis}}; a line has a cost for each LM."""
    costs = {}
    for key, (line, values) in read_keyed_lines(path).items():
        parts = values.split() if len(names) > 1 else [values]
        if len(parts) != len(names):
            problem = f"{len(parts)} costs, {len(names)} were expected"
            raise InputError(problem, path=path, line=line, remedy=REMEDY)
        costs[key] = [-parse_number(v, path=path, line=line, remedy=REMEDY) for v in parts]
    scores = {}
    for nbest in nbests:
        keys = [hypothesis_key(nbest.utt, rank) for rank in range(1, len(nbest.hypotheses) + 1)]
        missing = [key for key in keys if key not in costs]
        if missing:
            raise InputError(f"no cost of {missing[0][:80]!r}", path=path, remedy=REMEDY)
        columns = zip(*(costs[key] for key in keys), strict=True)
        scores[nbest.utt] = {name: [*column] for name, column in zip(names, columns, strict=True)}
    return scores


def _read_uncertainty(
    path: Path, nbests: Sequence[NBest], best: Mapping[str, int]
) -> Dict[str, Dict[int, Uncertainty]]:
    """{utterance id: {place: uncertainty}} of the hypotheses that are shown."""
    lists = {nbest.utt: nbest for nbest in nbests}
    of_lists: Dict[str, Dict[int, Uncertainty]] = {}
    what = "utt, rank, words and values of each word and of </s>"
    for line, text in read_lines(path):
        with expecting(what, path=path, line=line, remedy=REMEDY):
            content = json.loads(text)
            utt, place = content["utt"], content["rank"] - 1
            if utt not in lists or not 0 <= place < len(lists[utt].hypotheses):
                raise ValueError(f"the lists have no hypothesis {place + 1} of {str(utt)[:80]!r}")
            if place not in (0, best[utt]):
                continue
            words = lists[utt].hypotheses[place].words
            if tuple(content["words"]) != words:
                raise ValueError("its words are not those of the list")
            measures = [name for name in MEASURES if name in content]
            values = {name: typed(List[float], content[name]) for name in measures}
            if "log_prob" in values:  # as a measure of uncertainty: its negative
                values["log_prob"] = [-value for value in values["log_prob"]]
            for name, given in values.items():
                if len(given) != len(words) + 1:
                    raise ValueError(f"{len(given)} values of {name}, not {len(words)} + 1")
            of_lists.setdefault(utt, {})[place] = values
    return of_lists


def read_references(
    values: Repeated, rescored: Collection[Rescored], folders: Sequence[Tuple[str, str]]
) -> Dict[str, Words]:
    """{utterance id: words}, from files and from the lists that hold references."""
    refs: Dict[str, Words] = {}
    steps = sorted({",".join(item.normalization.steps) for item in rescored})
    if len(steps) > 1:
        steps_found = " and ".join(map(repr, steps))
        raise InputError(f"lists that were rescored with --normalize {steps_found}", remedy=REMEDY)
    if len({item.counting for item in rescored}) > 1:
        raise InputError(
            "lists that were rescored with other --unit or --ignore_words", remedy=REMEDY
        )
    normalization = next((item.normalization for item in rescored), AS_IT_IS)
    files = [path for _, path in named_paths("--ref", values)]
    sources = [(path, normalization.text(read_transcripts(path))) for path in files]
    for item in rescored if not files else []:
        held = {n.utt: n.ref for n in item.nbests if n.ref is not None}
        sources.append((item.name, held))
    for source, texts in sources:
        for utt, words in texts.items():
            if refs.setdefault(utt, words) != words:
                raise InputError(f"a second, different reference of {utt[:80]!r}", path=source)
    if refs:
        utts = {nbest.utt: None for item in rescored for nbest in item.nbests}
        names = [", ".join(paths) for paths in (files, (path for _, path in folders))]
        check_same_utterances(refs, utts, ref_path=names[0] or names[1], hyp_path=names[1])
    return refs
