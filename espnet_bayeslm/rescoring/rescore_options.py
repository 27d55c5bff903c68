"""Options of a rescoring."""

from __future__ import annotations

import dataclasses
from typing import (
    Any,
    Dict,
    Mapping,
    Optional,
    Union,
)

from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.evaluation.normalization import normalize_option
from espnet_bayeslm.evaluation.wer import CountingOptions
from espnet_bayeslm.loading.component_options import (
    RecordingOptions,
    SubtractOptions,
    ngpu_option,
)
from espnet_bayeslm.mixture.facts import MixtureFacts
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.rescoring.bayes_risk import DECISIONS
from espnet_bayeslm.rescoring.feature_tuning import NUM_FOLDS
from espnet_bayeslm.rescoring.features import BIAS, LM, SUBTRACTED
from espnet_bayeslm.rescoring.near_odds import NearWords
from espnet_bayeslm.rescoring.scales import Scales, read_scales
from espnet_bayeslm.scoring import MAX_CONTEXT
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, nested, option

BIAS_WEIGHT = 3.0
"""Weight of a phrase that is not tuned, in nats."""
NO_LMWT = "--word_penalty without --lmwt, and lattices have scales of their own"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RescoreOptions(ToolOptions):
    """Options that scores and choices of a rescoring depend on."""

    mixture: SubtractOptions = nested(SubtractOptions)
    recordings: RecordingOptions = nested(RecordingOptions)
    errors: CountingOptions = nested(CountingOptions)
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
        " (as --context has them) or speakers stay whole",
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
    utt2lm: Union[PathLike, Mapping[str, str], None] = option(
        "Lines `UTT LM`, as of utt2spk: the LM that scores an utterance in place of the first --lm,"
        " such as one of its speaker, or an adapter that did not see it. LMs that stand for each"
        " other have one name, that of their folder",
        None,
    )
    # once it is read, `BiasLists`
    bias: Any = option(
        "Words and phrases that an utterance may hold, such as names: JSON lines"
        ' {"utt": .., "words": [..]}, a Kaldi archive, or plain text for all utterances, a phrase'
        " on each line, perhaps with a tab and its weight",
        None,
    )
    bias_weight: Optional[float] = option(
        "Weight of each phrase that a hypothesis holds, in nats of the LM (default: as tuned, else"
        f" {BIAS_WEIGHT:g})",
        None,
        least=0,
    )
    # once the odds are known, `NearWords`
    near_words: Union[bool, NearWords] = option(
        "Make further hypotheses, in which a phrase of the bias list stands for words that are"
        " spelled nearly so; their weight is tuned, or comes with --scales",
        True,
    )
    bias_presence: float = option(
        "Share of utterances that are expected to hold a phrase of their list: the tuning weighs"
        " each list so, and else without what was said",
        0.5,
        most=1,
        least=0.05,
    )
    uncertainty: bool = option(
        "Write how uncertain the first uncertain LM is of each word (uncertainty.ndjson)", False
    )
    max_context: int = option(
        "Tokens before an utterance that a Transformer reads with --context previous; a pretrained"
        " LM goes on from half to twice as many",
        MAX_CONTEXT,
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uncertainty and (count := self.mixture.num_samples) < 2:
            raise InputError(
                f"--uncertainty needs several weight samples, --num_samples is {count}",
                remedy="Give --num_samples 10, say.",
            )
        if self.bias_weight is not None and self.bias is None:
            raise InputError("--bias_weight without --bias", remedy="Give the bias list.")

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
            return read_scales(self.scales)
        return Scales(**known) if known else None

    def scales_for(self, mixture: MixtureFacts) -> Scales:
        """Scales for the scores of a mixture, with the decision that is wanted."""
        if self.scales is not None:
            known = read_scales(self.scales)
        else:  # one score of a recogniser, and no LM, is as it is
            known = Scales() if mixture.components or self.bias is None else Scales(lmwt=1.0)
        if self.bias is None and self.scales is not None and known.uses_bias:
            problem = "--scales weigh the phrases of a bias list, and there is none"
            raise InputError(problem, remedy="Give it by --bias.")
        if self.bias is not None and (self.bias_weight is not None or not known.knows_bias):
            if self.bias_weight is None and known.features and not dict(known.features).get(LM):
                raise InputError(
                    "--scales were tuned without a bias list, and give no LM a weight, of which"
                    " that of a phrase is a multiple",
                    remedy="Give --bias_weight, or tune with the bias list.",
                )
            known = known.with_bias(BIAS_WEIGHT if self.bias_weight is None else self.bias_weight)
        own = [(f"{SUBTRACTED}.{row.name}", row.weight) for row in mixture.subtracted]
        added = (*own, *(row for row in known.added if row[0] == BIAS))
        decision = self.decision or known.decision
        return dataclasses.replace(known, added=added, decision=decision)

    def load_mixture(self, device: str, *, tunes: bool) -> Mixture:
        """LMs and n-grams, loaded; none where scales give them no weight."""
        how: Any = {"max_context": self.max_context, "tunes": tunes}
        given, needs_lm = self.mixture, self.bias is None
        if self.scales is not None:
            known = read_scales(self.scales)
            # a bias list alone may have the weights of any formula
            needs_lm = known.uses_lm and bool(needs_lm or known.lms.components)
            # scales that choose the histories have the weights of subtracted LMs
            how.update(tuned=known.facts, tunes=False)
        if not (needs_lm or given.lms or given.ngrams or given.subtract_lms):
            return Mixture(())
        return Mixture.load(given, device, **how)

    def check_untuned(self) -> None:
        """Check options of tuning where none is done: scales of a tuned run hold its weights."""
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
class SharedRescoreOptions(ToolOptions):
    """Options of `espnet_bayeslm.rescore`, which `bayeslm rescore` has beside those of files."""

    work: EngineOptions = nested(EngineOptions)
    ngpu: int = ngpu_option()
    rescoring: RescoreOptions = nested(RescoreOptions)
    adapted: Optional[PathLike] = option(
        "The folder of `bayeslm adapt`: the LM with its weights, scales, normalisation and context",
        None,
    )
