"""Options of LMs and n-grams, as the components of a mixture, and of their context."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from espnet_bayeslm.evaluation.text_checks import warn_leakage
from espnet_bayeslm.nbest.segments import SOURCES, PlaceOf, Segment, id_pattern, place_finder
from espnet_bayeslm.pretrained.text_forms import AUTO, TextForm
from espnet_bayeslm.scoring import MAX_TOKENS
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, option

GROUP = "LMs and n-grams"
PRELOAD = ("espnet_bayeslm.loading.trained_lm",)
"""Modules that scoring needs and that import torch."""
# `bayeslm train` keeps the training text in an experiment's folder, with keys
KEPT = Path("data") / "train.txt"
# A larger one is read only where --train_text names it: about 100 MB take a minute
LARGE = 300_000_000


def ngpu_option() -> Any:
    """Field of the option `--ngpu` of tools that load LMs."""
    return option("The number of gpus. 0: CPU mode", 0, group=GROUP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComponentOptions(ToolOptions):
    """LMs and n-grams, and how they score."""

    # in Python also what `espnet_bayeslm.load` returns
    lms: Sequence[Any] = option(
        "A trained ESPnet LM: its experiment folder or checkpoint; or a pretrained causal LM:"
        " hf:FOLDER, hf:NAME, a .gguf file or the folder of a peft adapter (repeatable)",
        (),
        name="lm",
        group=GROUP,
    )
    max_tokens: int = option(
        "Largest number of tokens in a batch", MAX_TOKENS, group=GROUP, least=1
    )
    max_oov_rate: float = option(
        "Largest share of unknown words; more are an error", 0.2, group=GROUP, least=0
    )
    text_form: str = option(
        "Form in which pretrained LMs read the text, FORM[,MARKS[,BLANK]]: as_is, lower or sentence"
        " (capitals and a full stop); newline or special (the tokenizer's own marks of start and"
        " end); blank or no_blank (before the first word); parts that are left out: as the LM's"
        " tokenizer begins a text; auto: for each LM the form of --scales or --weights, else the"
        " form of lowest perplexity on the first sentences",
        AUTO,
        check=TextForm.parse,
        metavar="FORM",
        group=GROUP,
    )
    precision: str = option(
        "Precision of pretrained LMs; bfloat16 halves the memory, and the time where the CPU or GPU"
        " has it, and rounds ln P of a sentence to some tenths",
        "float32",
        choices=("float32", "bfloat16"),
        group=GROUP,
    )
    base: Optional[str] = option(
        "Base model of the adapters among the LMs, as of --lm, where it is not at the path that"
        " they name",
        None,
        group=GROUP,
    )
    ngrams: Sequence[PathLike] = option(
        "An ARPA file or KenLM binary (repeatable; after the LMs in the order of weights)",
        (),
        name="ngram",
        group=GROUP,
    )
    num_samples: int = option(
        "Weight samples whose probabilities are averaged; 0: the posterior mean", 0, group=GROUP
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureOptions(ComponentOptions):
    """LMs and n-grams with their weights."""

    weights: Union[PathLike, Sequence[float], None] = option(
        "weights.yaml of `bayeslm interpolate`, or W,W,..", None, group=GROUP
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubtractOptions(MixtureOptions):
    """LMs and n-grams with their weights, and LMs that are subtracted."""

    # in Python also what `espnet_bayeslm.load` returns
    subtract_lms: Sequence[Any] = option(
        "An LM, as of --lm, or n-gram of the recogniser's training text; its weighted ln P is"
        " subtracted (repeatable)",
        (),
        name="subtract_lm",
        group=GROUP,
    )
    subtract_weights: Sequence[float] = option(
        "Weight of a --subtract_lm, at or below zero, where that of the mixture is 1 (repeatable;"
        " default: as tuned)",
        (),
        name="subtract_weight",
        group=GROUP,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordingOptions(ToolOptions):
    """Which recording each list is of, and whether LMs go on from what was said in it."""

    segments: Union[PathLike, Mapping[str, Segment], None] = option(
        "Kaldi's `segments`, or utt2start: the recordings, whose lists stay together (default:"
        " the lists' own `recording` and `start`, of JSON lines)",
        None,
    )
    recording_of: Optional[str] = option(
        "In place of --segments: a regular expression that is searched in the utterance id, whose"
        " group 1, or all of it without a group, is the recording",
        None,
        check=id_pattern,
        metavar="PATTERN",
    )
    utt2spk: Union[PathLike, Mapping[str, str], None] = option(
        "In place of --segments: Kaldi's utt2spk, whose speakers stand for recordings", None
    )
    context: str = option(
        "previous: an LM goes on from the best hypotheses so far of a recording",
        "none",
        choices=("none", "previous"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [f"--{name}" for name in SOURCES if getattr(self, name) is not None]
        if len(given) > 1:
            problem = f"{' and '.join(given)}: two sources of the recordings"
            raise InputError(problem, remedy="Give one of them.")

    @property
    def place_of(self) -> Optional[PlaceOf]:
        """Function of a list that says where it is; None where no option asks for it."""
        sources = (self.segments, self.recording_of, self.utt2spk)
        if self.context == "none" and sources == (None, None, None):
            return None
        return place_finder(*sources)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainTextOptions(ToolOptions):
    """Training texts that are compared with the test text."""

    train_texts: Sequence[PathLike] = option(
        "Training text of an LM or n-gram, a sentence a line: a warning says how many test"
        " sentences stand in it (repeatable; that of an experiment of `bayeslm train` is known)",
        (),
        name="train_text",
    )

    def warn_leakage(
        self, lms: Sequence[Any], sentences: Iterable[Sequence[str]], *, what: str
    ) -> None:
        """Warn where test sentences, of a text `what`, stand in a training text."""
        test = list(sentences)
        for path in self.train_texts:
            warn_leakage(test, path, what=what)
        paths = [Path(lm) for lm in lms if isinstance(lm, (str, os.PathLike))]
        known = ((path if path.is_dir() else path.parent) / KEPT for path in paths)
        for path in dict.fromkeys(path for path in known if path.is_file()):
            if path.stat().st_size > LARGE:
                LOG.info("%s: too large to look for test sentences unasked", path)
                continue
            warn_leakage(test, path, what=what, keyed=True)
