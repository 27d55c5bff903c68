"""Options of the tools that score with LMs and n-grams, and of a rescoring."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Collection, Dict, Mapping, Optional, Sequence, Union

from espnet_bayeslm.evaluation.counting import UNITS, Counting
from espnet_bayeslm.evaluation.normalization import STEPS
from espnet_bayeslm.nbest.segments import Segment
from espnet_bayeslm.rescoring.bayes_risk import DECISIONS
from espnet_bayeslm.rescoring.decision import COMBINATIONS, Scales
from espnet_bayeslm.rescoring.feature_tuning import NUM_FOLDS
from espnet_bayeslm.scoring.limits import MAX_CONTEXT, MAX_TOKENS
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import option

GROUP = "LMs and n-grams"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LMOptions:
    """LMs, and how they score."""

    # in Python also what `espnet_bayeslm.load` returns
    lms: Sequence[Any] = option(
        "A trained ESPnet LM: its experiment folder or checkpoint (repeatable)",
        (),
        name="lm",
        group=GROUP,
    )
    max_tokens: int = option("The most tokens of a batch", MAX_TOKENS, group=GROUP)
    max_oov_rate: float = option(
        "More unknown words than this part of all words are an error", 0.2, group=GROUP
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComponentOptions(LMOptions):
    """LMs and n-grams, and how they score."""

    ngrams: Sequence[PathLike] = option(
        "An ARPA file or KenLM binary (repeatable; after the LMs in the order of weights)",
        (),
        name="ngram",
        group=GROUP,
    )
    num_samples: int = option(
        "Weight draws whose probabilities are averaged; 0: the posterior mean", 0, group=GROUP
    )
    unk_size: Optional[float] = option(
        "Words that share the probability of <unk>. Default: as counted in an LM's training"
        " (else three quarters of its vocabulary), 1 for n-grams and LMs of word pieces",
        None,
        group=GROUP,
    )
    cache: Optional[PathLike] = option(
        "A folder that keeps the LMs' word scores", None, group=GROUP
    )

    @property
    def scoring(self) -> Dict[str, Any]:
        """Arguments of `load_components` beside the LMs, the n-grams and the device."""
        names = ("num_samples", "max_tokens", "cache", "unk_size")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureOptions(ComponentOptions):
    """LMs and n-grams with their weights."""

    weights: Union[PathLike, Sequence[float], None] = option(
        "weights.yaml of `bayeslm interpolate`, or W,W,..", None, group=GROUP
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPUOptions:
    """Device of a command line."""

    ngpu: int = option("The number of gpus. 0: CPU mode", 0, group=GROUP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingOptions:
    """How errors are counted."""

    unit: str = option(
        "What errors are counted in: words, or characters (CER; Unicode code points after NFC,"
        " blanks left out)",
        "word",
        choices=UNITS,
    )
    ignore_words: Union[PathLike, Collection[str], None] = option(
        "Words that do not count, one a line, such as [laugh]: they are left out of references"
        " and hypotheses before errors are counted; what is written keeps them",
        None,
        metavar="FILE",
    )

    @functools.cached_property
    def counting(self) -> Counting:
        """Counting of these options; `ignore_words` is read where it is a file."""
        return Counting.of(self.unit, self.ignore_words)


def normalize_option(what: str) -> Any:
    """Field that says how text is normalised; `what` text goes into its help."""
    return option(
        f"Normalise {what} for scoring and counting; what is written stays as it came."
        f" Steps with commas between them: {', '.join(STEPS)}",
        "",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RescoreOptions(CountingOptions, MixtureOptions):
    """Options of `espnet_bayeslm.rescore`, which `bayeslm rescore` has too.

    Raises:
        InputError: Options ask for what cannot be done together.
    """

    normalize: str = normalize_option("hypotheses and references")
    combine: Optional[str] = option(
        "linear: p = sum w p, word by word; loglinear: ln P = sum w ln P, as Kaldi (default:"
        " as --scales were tuned, or linear)",
        None,
        choices=COMBINATIONS,
    )
    scales: Union[PathLike, Scales, None] = option(
        "scales.yaml of a tuned run, with its weights where those were tuned", None
    )
    tune_lms: bool = option("Give each LM a weight of its own beside the mixture's", False)
    tune_folds: int = option(
        "Folds of the cross-validation that chooses among the lists as they came, a few"
        " features, and all",
        NUM_FOLDS,
    )
    tune_weights: bool = option(
        "Tune the share of the first LM too, the others in proportion", False
    )
    split: Optional[float] = option(
        "Tune on this share of the lists, and test on the others; recordings (--segments)"
        " or speakers stay whole",
        None,
    )
    folds: Optional[int] = option(
        "Rescore each of so many parts with weights that were tuned on the others", None
    )
    decision: Optional[str] = option(
        "max: the highest total; mbr: the fewest expected word errors under the posterior over"
        " the list (default: as --scales were tuned, or max)",
        None,
        choices=DECISIONS,
    )
    confidence: bool = option(
        "Write a confidence of each word of the new best (confidence.ndjson);"
        " --decision mbr does so always",
        False,
    )
    self_normalized: bool = option(
        "Take the mean ln Z for every context's: no softmax (LMs with self_normalization)", False
    )
    uncertainty: bool = option(
        "Write how uncertain the first uncertain LM is of each word (uncertainty.ndjson)", False
    )
    segments: Union[PathLike, Mapping[str, Segment], None] = option(
        "Kaldi's `segments`, or utt2start: lists of a recording stay in one job", None
    )
    context: str = option(
        "previous: an LM goes on from the best hypotheses so far of a recording",
        "none",
        choices=("none", "previous"),
    )
    max_context: int = option(
        "Tokens before an utterance that a Transformer reads again with --context previous",
        MAX_CONTEXT,
    )
    job: int = option("Which part of the lists this job rescores, from 1", 1)
    num_jobs: int = option("The number of jobs that share the lists", 1)

    def __post_init__(self) -> None:
        if not 1 <= self.job <= self.num_jobs:
            raise InputError(
                f"--job {self.job} of --num_jobs {self.num_jobs}: expected 1 to {self.num_jobs}"
            )
        if self.context != "none" and self.segments is None:
            raise InputError(
                f"--context {self.context} needs to know the recordings",
                remedy="Give --segments FILE, Kaldi's `segments` or utt2start.",
            )
        if self.uncertainty and self.num_samples < 2:
            raise InputError(
                f"--uncertainty needs several weight draws, --num_samples is {self.num_samples}",
                remedy="Give --num_samples 10, say.",
            )
        if self.split is not None and self.folds is not None:
            raise InputError("--split and --folds", remedy="Give one of them.")
        if self.split is not None and not 0 < self.split < 1:
            raise InputError(f"--split {self.split:g}: expected a share between 0 and 1")
        if min(self.tune_folds, 2 if self.folds is None else self.folds) < 2:
            raise InputError(
                f"--tune_folds {self.tune_folds}, --folds {self.folds}: expected 2 or more"
            )

    def check_untuned(self) -> None:
        """Raise an InputError where options ask for tuning, and there is none."""
        asked = {
            "--split": self.split is not None,
            "--folds": self.folds is not None,
            "--tune_weights": self.tune_weights,
            "--tune_lms": self.tune_lms,
        }
        named = [name for name, value in asked.items() if value]
        if named:
            raise InputError(
                f"{named[0]} needs references to tune on, and no other scales",
                remedy="Give --tune_ref, or lists that hold references (jsonl's `ref`); in Python"
                " tune=True.",
            )
