"""Bayesian, Gaussian-process and variational language models for ESPnet.

What is heavy is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Collection, Iterable, Mapping, Optional, Sequence, Union

if TYPE_CHECKING:
    from espnet_bayeslm.loading.trained_lm import TrainedLM
    from espnet_bayeslm.nbest.segments import Segment
    from espnet_bayeslm.nbest.types import NBest
    from espnet_bayeslm.rescoring.decision import Scales
    from espnet_bayeslm.rescoring.pipeline import Rescoring
    from espnet_bayeslm.utils.files import PathLike

__version__ = "0.1.0"


def register() -> None:
    """Add the LMs and the model `bayes_lm` to ESPnet's LM task (idempotent)."""
    from espnet_bayeslm.training.register import register as register_classes

    register_classes()


def load(exp: PathLike, *, device: str = "cpu") -> TrainedLM:
    """A trained LM, ours or any other of ESPnet's, that scores text.

    Args:
        exp: Its experiment folder, or a checkpoint beside its config.yaml.
        device: Where its weights go.

    Raises:
        InputError: Files are missing, or the checkpoint does not fit the configuration.
    """
    from espnet_bayeslm.loading.trained_lm import load_lm

    return load_lm(exp, device=device)


def rescore(
    lists: Iterable[NBest],
    *,
    lms: Sequence[Union[PathLike, TrainedLM]] = (),
    ngrams: Sequence[PathLike] = (),
    weights: Union[PathLike, Sequence[float], None] = None,
    combine: Optional[str] = None,
    scales: Union[PathLike, Scales, None] = None,
    tune: bool = False,
    tune_weights: bool = False,
    tune_lms: bool = False,
    tune_folds: int = 5,
    decision: Optional[str] = None,
    confidence: bool = False,
    split: Optional[float] = None,
    folds: Optional[int] = None,
    refs: Optional[Mapping[str, Sequence[str]]] = None,
    normalize: str = "",
    unit: str = "word",
    ignore_words: Union[PathLike, Collection[str], None] = None,
    segments: Union[PathLike, Mapping[str, Segment], None] = None,
    context: str = "none",
    uncertainty: bool = False,
    max_oov_rate: float = 0.2,
    job: int = 1,
    num_jobs: int = 1,
    **scoring: Any,
) -> Rescoring:
    """An iterator of rescored lists, as `bayeslm rescore` makes them; nothing is written.

    Args:
        lists: N-best lists, as `read_nbest` yields them; a block of them is kept in memory, with
            `tune` all.
        lms: LMs: experiment folders, checkpoints, or what `load` returned.
        ngrams: ARPA files or KenLM binaries.
        weights: The components' weights, LMs first: numbers, or a file of `bayeslm interpolate`.
        combine: "linear" (p = sum w p, word by word) or "loglinear" (ln P = sum w ln P); None: as
            when the scales were tuned, or "linear".
        scales: LMWT and word penalty, or the scales.yaml of a tuned run; None: the defaults.
        tune: Find scales on these lists; never worse on them than the first pass.
        tune_weights: Try shares of the first component too.
        tune_lms: Give each LM a weight of its own, beside the mixture's.
        tune_folds: Of the cross-validation that chooses the features.
        decision: "max" (the highest total) or "mbr" (the fewest expected word errors); None: as
            when the scales were tuned, or "max".
        confidence: With "max" too give a confidence of each word of the best hypothesis.
        split: Tune on this share of the lists only; recordings or speakers stay whole.
        folds: Rescore each of so many parts with scales that were tuned on the others.
        refs: Utterance id -> words, to tune on; None: the lists' own references.
        normalize: Steps of `evaluation.normalization.STEPS`, as "lower,punct", for what is scored
            and counted; `RescoredList.text` is the list's own.
        unit: Unit that errors and unknown words are counted in: "word" or "char".
        ignore_words: Words that are left out before errors are counted: a file with one on each
            line, or the words.
        segments: Kaldi's `segments` or utt2start, or utterance id -> `Segment`.
        context: "previous": LMs go on from the best hypotheses so far of a recording.
        uncertainty: Whether the first uncertain LM says how uncertain it is of each word.
        max_oov_rate: More unknown words than this part of all are an error.
        job: Rescore this part of the lists, from 1.
        num_jobs: Of so many.
        **scoring: Options of `load_components`: num_samples, max_tokens, device, cache, unk_size,
            self_normalized, max_context.

    Returns:
        An iterator of `RescoredList`, with the attributes `weighting` and `tuned`.

    Raises:
        InputError: Something does not fit; lists are checked as they come.
    """
    from espnet_bayeslm.evaluation.counting import Counting
    from espnet_bayeslm.evaluation.normalization import Normalization
    from espnet_bayeslm.loading.components import load_components
    from espnet_bayeslm.nbest.normalized_lists import normalized
    from espnet_bayeslm.rescoring import pipeline
    from espnet_bayeslm.rescoring.decision import Weighting

    counting = Counting.of(unit, ignore_words)
    normalization = Normalization(normalize, kept=counting.ignored)
    if normalization:
        lists = normalized(lists, normalization)
        refs = None if refs is None else normalization.text(refs)
    components = load_components(lms, ngrams, **scoring)
    weighting = Weighting.of(
        components, weights, scales, combine=combine, decision=decision, confidence=confidence
    )
    if tune and refs is None:
        lists = list(lists)
        refs = pipeline.own_refs(lists)
    scores = pipeline.score_lists(
        lists,
        components,
        weighting,
        segments=segments,
        context=context,
        uncertainty=uncertainty,
        self_normalized=bool(scoring.get("self_normalized")),
        max_oov_rate=max_oov_rate,
        counting=counting,
        job=job,
        num_jobs=num_jobs,
    )
    how = pipeline.Tuning(tune_folds, tune_lms, tune_weights, counting=counting)
    return pipeline.Rescoring(
        scores,
        weighting,
        refs=refs if tune else None,
        tuning=how,
        groups=pipeline.recordings_of(segments),
        split=split,
        folds=folds,
    )


__all__ = ["__version__", "load", "register", "rescore"]
