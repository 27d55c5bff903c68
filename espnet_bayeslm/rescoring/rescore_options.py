"""Options of a rescoring."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Optional, Union

from espnet_bayeslm.engine.pool import EngineOptions
from espnet_bayeslm.evaluation.normalization import normalize_option
from espnet_bayeslm.evaluation.wer import CountingOptions
from espnet_bayeslm.loading.component_options import GPUOptions, SubtractOptions
from espnet_bayeslm.nbest.segments import Segment
from espnet_bayeslm.rescoring.bayes_risk import DECISIONS
from espnet_bayeslm.rescoring.feature_tuning import NUM_FOLDS
from espnet_bayeslm.rescoring.scales import Scales, read_scales
from espnet_bayeslm.scoring import MAX_CONTEXT
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import option

NO_LMWT = "--word_penalty without --lmwt, and lattices have scales of their own"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RescoreOptions(CountingOptions, SubtractOptions):
    """Options that scores and choices of a rescoring depend on."""

    normalize: str = normalize_option("hypotheses and references")
    scales: Union[PathLike, Scales, None] = option("scales.yaml of a tuned run", None)
    lmwt: Optional[float] = option(
        "LMWT (default: 10; of lattices: the scales that come with them)", None
    )
    word_penalty: Optional[float] = option("Cost per word (default: 0)", None)
    tune_lms: bool = option("Give each LM a weight of its own beside the mixture's", False)
    tune_folds: int = option(
        "Folds of the cross-validation that chooses among the lists as they came, a few"
        " features, and all",
        NUM_FOLDS,
        least=2,
    )
    folds: Optional[int] = option(
        "Rescore each of so many parts with weights that were tuned on the others; recordings"
        " (--segments) or speakers stay whole",
        None,
        least=2,
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
        "Use the mean ln Z in every context, without a softmax (LMs with self_normalization)", False
    )
    uncertainty: bool = option(
        "Write how uncertain the first uncertain LM is of each word (uncertainty.ndjson)", False
    )
    segments: Union[PathLike, Mapping[str, Segment], None] = option(
        "Kaldi's `segments`, or utt2start: the recordings, whose lists stay together", None
    )
    context: str = option(
        "previous: an LM goes on from the best hypotheses so far of a recording",
        "none",
        choices=("none", "previous"),
    )
    max_context: int = option(
        "Tokens before an utterance that a Transformer reads again with --context previous",
        MAX_CONTEXT,
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context != "none" and self.segments is None:
            raise InputError(
                f"--context {self.context} needs to know the recordings",
                remedy="Give --segments FILE, Kaldi's `segments` or utt2start.",
            )
        if self.uncertainty and self.num_samples < 2:
            raise InputError(
                f"--uncertainty needs several weight samples, --num_samples is {self.num_samples}",
                remedy="Give --num_samples 10, say.",
            )

    def given_scales(self, *others: str) -> Optional[Scales]:
        """Scales that the options give, where no other source of scales does; None: they do not.

        Args:
            *others: Names of other sources that are given.
        """
        formula = {"lmwt": self.lmwt, "word_penalty": self.word_penalty}
        known: Dict[str, Any] = {n: value for n, value in formula.items() if value is not None}
        given = [*others, *["--scales"] * (self.scales is not None)]
        if len(given) + bool(known) > 1:
            names = ", ".join([*given, *(f"--{name}" for name in known)])
            raise InputError(
                f"more than one source of scales: {names}",
                remedy="Give --tune_ref (in Python tune=True), --scales, or --lmwt with"
                " --word_penalty.",
            )
        if self.scales is not None:
            return self.scales if isinstance(self.scales, Scales) else read_scales(self.scales)
        return Scales(**known) if known else None

    def check_untuned(self) -> None:
        """Check options of tuning where nothing is tuned: scales of a tuned run hold its weights.

        Raises:
            InputError: There are no such scales.
        """
        asked = {"--folds": self.folds is not None, "--tune_lms": self.tune_lms}
        names = " and ".join(name for name, is_asked in asked.items() if is_asked)
        if names and self.scales is None:
            raise InputError(
                f"{names}: no references to tune on, and no scales of a tuned run",
                remedy="Give --tune_ref, or lists that hold references (jsonl's `ref`); in Python"
                " tune=True. Or give the --scales of a tuned run.",
            )
        if names:
            LOG.info("%s: --scales holds the tuned weights, and nothing is tuned again", names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedRescoreOptions(RescoreOptions, GPUOptions, EngineOptions):
    """Options of `espnet_bayeslm.rescore`, which `bayeslm rescore` has beside those of files."""
