"""Inputs of an adaptation: options, and lists with references, divided for cross-fitting.

What an LM was trained on tells nothing of how far it may be trusted. So adapters that learn all
parts but one tune the weights on this one, and no recording is in two parts.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.evaluation.bias_lists import read_bias, warn_of_text
from espnet_bayeslm.evaluation.biased_words import check_bias_unit
from espnet_bayeslm.evaluation.normalization import Normalization, normalize_option
from espnet_bayeslm.evaluation.text_checks import warn_leakage, warn_of_spelling
from espnet_bayeslm.evaluation.transcripts import has_words, read_transcripts
from espnet_bayeslm.evaluation.wer import Counting, CountingOptions, check_same_utterances
from espnet_bayeslm.loading.component_options import RecordingOptions
from espnet_bayeslm.nbest.formats import CheckedLists, format_option
from espnet_bayeslm.nbest.segments import PlaceOf, recordings
from espnet_bayeslm.nbest.types import Hypothesis, NBest, Units, whole_units
from espnet_bayeslm.rescoring.feature_tuning import LISTS_PER_WEIGHT, folds
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, write_text
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, nested, option
from espnet_bayeslm.workflows.adapt_systems import MAX_EPOCH, Plan
from espnet_bayeslm.workflows.steps import keep_files

Refs = Mapping[str, Sequence[str]]
VALID = 100
"""Most references of its part by which the epochs of a training are chosen."""

PARTS, PARTS_OF_LITTLE, LITTLE = 2, 3, 200
"""Number of parts, and the number below so many sentences, whose halves would train too little."""
LEAST_LISTS = 2 * LISTS_PER_WEIGHT * 5 // 4
"""Lists without which no weights of a score and an LM could be tuned on four of five folds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptOptions(ToolOptions):
    """Options of `bayeslm adapt`."""

    work: EngineOptions = nested(EngineOptions)
    recordings: RecordingOptions = nested(RecordingOptions)
    errors: CountingOptions = nested(CountingOptions)
    nbest: Optional[str] = option(
        "N-best lists, of some hundred utterances or more (default: none yet; the references train"
        " adapters, and the same command with lists goes on from there)",
        None,
    )
    nbest_format: Optional[str] = format_option()
    ref: Optional[str] = option(
        "Their references, a Kaldi `text` or a trn (default: the lists' own)", None
    )
    source: str = option(
        "The pretrained LM: hf:FOLDER, hf:NAME, a .gguf file or the folder of a peft adapter",
        name="from",
    )
    base: Optional[str] = option(
        "Base model of the adapter of --from, where it is not at the path that it names", None
    )
    texts: Sequence[PathLike] = option(
        "More text of the domain, a sentence a line, that adapters learn too (repeatable)",
        (),
        name="text",
    )
    lms: Sequence[str] = option(
        "Another LM, as of `rescore --lm`, that is interpolated with it (repeatable)",
        (),
        name="lm",
    )
    ngrams: Sequence[PathLike] = option(
        "An ARPA file or KenLM binary that is interpolated with the LM (repeatable)",
        (),
        name="ngram",
    )
    normalize: str = normalize_option("hypotheses and references")
    bias: Optional[str] = option(
        "Bias lists, as of `rescore --bias`: their weight is tuned beside the LM that is used, and"
        " the table has a row for them",
        None,
    )
    configs: Sequence[str] = option(
        "Configuration of an adapter that is tried (repeatable; default: bayes_lora, from 1,000"
        " sentences on lora); the references choose",
        (),
        name="adapter",
    )
    max_epoch: int = option("Epochs of an adapter, at most", MAX_EPOCH, least=1)
    precision: Optional[str] = option(
        "Precision of the LM (default: bfloat16 where this CPU is faster with it, else float32)",
        None,
        choices=("float32", "bfloat16"),
    )
    output: str = option("The folder to write, for `bayeslm rescore --adapted`")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bias_unit(self.bias, self.errors.unit)

    @property
    def normalization(self) -> Normalization:
        """Normalisation of hypotheses and references."""
        return Normalization(self.normalize, kept=self.errors.counting.ignored)


class Parts(NamedTuple):
    """Parts of lists.

    Attributes:
        part_of: Utterance id -> number of its part, from 1.
        number: How many parts there are.
        units: What is in one part as a whole: `recordings`, `speakers` or `utterances`.
    """

    part_of: Mapping[str, int]
    number: int
    units: str


def divide(utts: Sequence[str], units: Units) -> Parts:
    """Parts of utterances of about the same number; units stay whole, and are drawn at random.

    The parts are the same at each call.

    Raises:
        InputError: There are fewer than `LEAST_LISTS`.
    """
    if len(utts) < LEAST_LISTS:
        raise InputError(
            f"{len(utts)} lists with references, and {LEAST_LISTS} or more were expected: fewer"
            " cannot tune the weight of an LM",
            remedy="Give some hundred lists with references.",
        )
    wanted = PARTS if len(utts) >= LITTLE else PARTS_OF_LITTLE
    parts = folds([units.of[utt] for utt in utts], wanted)
    numbers = np.zeros(len(utts), dtype=int)
    for number, places in enumerate(parts, 1):
        numbers[places] = number
    return Parts(dict(zip(utts, numbers.tolist(), strict=True)), len(parts), units.name)


class Data(NamedTuple):
    """Checked input of an adaptation.

    Attributes:
        refs: Utterance id -> words of the reference as it came.
        said: Utterance id -> words that an LM learns: normalised, without ignored ones.
        lists: The lists, in the order of the references.
        parts: Parts of all three.
        order: Function of a list that says where it is, where LMs read in context; else None.
        more: Sentences of other texts, as an LM learns them.
    """

    refs: Refs
    said: Refs
    lists: Sequence[NBest]
    parts: Parts
    order: Optional[PlaceOf] = None
    more: Sequence[Refs] = ()


def checked_data(options: AdaptOptions) -> Data:
    """References, lists and their parts: whatever can be wrong is found before the long work."""
    refs, items = read_input(options)
    how = options.normalization, options.errors.counting
    place_of, in_context = options.recordings.place_of, options.recordings.context != "none"
    parts = divide([*refs], whole_units(items, place_of))
    if options.bias is not None:
        bias = read_bias(options.bias, options.normalization, utts=refs)
        warn_of_text(bias, options.normalization.text(refs).values())
    more = [learnt(sentences, *how) for sentences in map(read_more, options.texts)]
    return Data(refs, learnt(refs, *how), items, parts, place_of if in_context else None, more)


def read_input(options: AdaptOptions) -> Tuple[Refs, List[NBest]]:
    """References and, in their order, the lists; without lists a reference is its own hypothesis.

    Says what another normalisation would gain.

    Raises:
        InputError: A list has no reference, or none has words.
    """
    nbest, ref, normalization = options.nbest, options.ref, options.normalization
    refs: Refs = {} if ref is None else read_transcripts(ref)
    if nbest is None:
        if ref is None:
            raise InputError("neither lists nor references", remedy="Give --nbest, --ref or both.")
        _check_words(refs, ref)
        return refs, [NBest(utt, (Hypothesis(tuple(words)),)) for utt, words in refs.items()]
    lists = CheckedLists(nbest, options.nbest_format)
    refs = refs or lists.refs
    _check_words(refs, ref or nbest)
    check_same_utterances(refs, lists.utts, ref_path=ref or "", hyp_path=nbest)
    LOG.info("read %d N-best lists (%s) from %s", len(lists.utts), lists.format, lists.path)
    firsts = normalization.text(lists.firsts.texts) if normalization.steps else lists.firsts.texts
    said, given = normalization.text(refs), normalization.steps
    warn_of_spelling(said, firsts, options.errors.counting, given=given)
    by_utt = {item.utt: item for item in lists}
    return refs, [by_utt[utt] for utt in refs]


def _check_words(refs: Refs, path: PathLike) -> None:
    """Raise an InputError where no reference has words."""
    if not has_words(refs.values()):
        raise InputError("no references with words", path=path, remedy="Give --ref FILE.")


def learnt(sentences: Refs, normalization: Normalization, counting: Counting) -> Refs:
    """Sentences as an LM learns them: normalised, without the words that are not counted."""
    text = normalization.text(sentences)
    return {k: [w for w in words if w not in counting.ignored] for k, words in text.items()}


def read_more(path: PathLike) -> Refs:
    """Sentences of a text, by the number of their line.

    Raises:
        InputError: The text has no words.
    """
    found = {str(number): line.split() for number, line in read_lines(path)}
    if not any(found.values()):
        raise InputError("no words", path=path, remedy="Give a text, a sentence on each line.")
    return found


def _lines(sentences: Iterable[Sequence[str]]) -> str:
    """Sentences, a line each; those without words are left out."""
    return "".join(f"{' '.join(words)}\n" for words in sentences if words)


def write_texts(plan: Plan, data: Data) -> None:
    """Write the texts that train and tune, and references.

    Where LMs read in context, texts that train are in order of time, with a blank line between
    recordings.

    Raises:
        InputError: A part has no words to learn, or the folder holds parts of other lists.
    """
    parts, said = data.parts, data.said
    taught = {parts.part_of[utt] for utt, words in said.items() if words}
    if len(taught) < parts.number:
        raise InputError(
            f"{sum(map(bool, said.values()))} of {len(said)} references have words to learn, and"
            f" each of {parts.number} parts needs some",
            remedy="Give some hundred references with words that are not ignored.",
        )
    keep_files(
        plan.data(""),
        {name: text.encode() for name, text in texts_of(data).items()},
        "parts of other lists or texts than those given now",
    )
    for part in range(1, parts.number + 1):
        heard = [said[utt] for utt in data.refs if parts.part_of[utt] == part]
        what = f"the references of part {part}"
        warn_leakage(heard, plan.data(f"adapt{part}.txt"), what=what)


def texts_of(data: Data) -> Dict[str, str]:
    """{name: text} of the files that train and tune (`Plan.data`)."""
    refs, said, lists, (part_of, number, _), order, more = data

    def text(items: Iterable[NBest]) -> str:
        runs = [items] if order is None else recordings(items, order)
        return "\n".join(_lines(said[item.utt] for item in run) for run in runs)

    between = "" if order is None else "\n"
    others = "".join(between + _lines(sentences.values()) for sentences in more)
    keyed = {utt: words for utt, words in said.items() if words}
    texts = {
        "adapt.txt": text(lists) + others,
        "tune.text": _lines([utt, *words] for utt, words in keyed.items()),
        "tune.ref": _lines([utt, *words] for utt, words in refs.items()),
    }
    for part in range(1, number + 1):
        own = [item for item in lists if part_of[item.utt] == part and said[item.utt]]
        rest = [item for item in lists if part_of[item.utt] != part]
        texts[f"valid{part}.txt"] = text(own[:VALID])
        texts[f"adapt{part}.txt"] = text(rest) + others
    return texts


def write_utt2lm(plan: Plan, parts: Parts, config: str) -> None:
    """Write which adapter of a configuration scores each utterance."""
    rows = ([utt, str(plan.exp(config, part))] for utt, part in parts.part_of.items())
    write_text(plan.utt2lm(config), _lines(rows))
