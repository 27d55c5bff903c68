"""N-best lists from the logits of a CTC recogniser, and the LMs and words of its search."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.decoding.bias_search import BiasTree, read_search_bias
from espnet_bayeslm.decoding.ctc_search import GROUP, BeamOptions, CTCSearch, FoundText
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens, as_texts, read_tokens
from espnet_bayeslm.decoding.ctc_words import CTCFusion, UnlistedWords, Vocabulary
from espnet_bayeslm.decoding.hotwords import HOTWORD_WEIGHT, read_hotwords
from espnet_bayeslm.decoding.logits import heard_frames, log_probs_of, read_logits
from espnet_bayeslm.decoding.word_times import WordFrames, WordTimes
from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.nbest.ctm import TIMES, ctm_lines
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.pretrained.text_forms import WORDS_TO_CHOOSE
from espnet_bayeslm.rescoring.bayes_risk import list_posterior, word_confidences, words_in_place
from espnet_bayeslm.rescoring.near_texts import near_texts, with_phrases
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, read_lines
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import option

DIGITS = 6  # of scores, after the point

Utterance = Tuple[str, np.ndarray, np.ndarray]
"""Id, ln P of each token at each frame that says something, (T, V), and the frames' numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CTCOptions(BeamOptions):
    """Logits, tokens, hotwords and the search of a CTC recogniser."""

    logits: Optional[str] = option(
        "Logits or log-probabilities, frames x tokens for each utterance: .npz, .ark or .scp",
        None,
        group=GROUP,
    )
    tokens: Optional[str] = option(
        "The recogniser's tokens: ESPnet's or k2's tokens.txt, vocab.json or its folder, or a list"
        " of labels",
        None,
        group=GROUP,
    )
    blank: Optional[str] = option(
        "The token that is the blank, where it has none of the known names and is not the last",
        None,
        group=GROUP,
    )
    lower: bool = option("Write words in lower case, as the LM may want them", False, group=GROUP)
    hotwords: Optional[str] = option(
        "A file with a word or phrase on each line, perhaps with ` :WEIGHT`", None, group=GROUP
    )
    hotword_weight: float = option(
        "Weight of each word of a hotword without a weight", HOTWORD_WEIGHT, group=GROUP
    )
    unigrams: Optional[str] = option(
        "A file with a known word on each line; default: those of the n-grams and the LMs over"
        " words, where no other LM is given",
        None,
        group=GROUP,
    )
    unk_score_offset: float = option(
        "Score of an unknown word: log10 P, with --lm_weight, where it is complete, and as it is"
        " before",
        -10.0,
        group=GROUP,
        least=-1e9,
        most=0,
    )
    word_bonus: Optional[float] = option(
        "Score of each word of a hypothesis, with an LM; default: 1.5 of ctc, 1 of whisper",
        None,
        group=GROUP,
        least=-1e9,
    )
    ctm: Optional[str] = option(
        "A file to write: times and confidences of the words of each best hypothesis, with"
        " --frame_shift",
        None,
        group=GROUP,
    )
    frame_shift: Optional[float] = option(
        "Seconds of a frame of the logits, such as 0.02 of wav2vec2: each hypothesis of the lists"
        " then has the times of its words, and `rescore` writes a ctm",
        None,
        group=GROUP,
        least=1e-6,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ctm is not None and self.frame_shift is None:
            raise InputError("--ctm without --frame_shift, the seconds of a frame")


def search_vocabulary(
    unigrams: Optional[Iterable[str]], mixture: Optional[Mixture], tokens: CTCTokens
) -> Optional[Vocabulary]:
    """Words that a search knows; None: all are known.

    They are the unigrams, else the words of the LMs and n-grams, if each of these lists its own. A
    word that no LM and no n-gram knows is left out.
    """
    words = None if unigrams is None else list(dict.fromkeys(as_texts(unigrams, "unigrams")))
    if words is None and mixture is not None:
        own = {c.name: c.scorer.known_words() for c in mixture.components}
        silent = [name for name, listed in own.items() if listed is None]
        if not silent:
            words = sorted({word for listed in own.values() for word in listed or ()})
        else:
            LOG.warning(
                f"{', '.join(silent)}: no list of its words, so the search does not know which"
                " letters lead to a word. Give the words by --unigrams."
            )
            if all(component.kind == "ngram" for component in mixture.components):
                return UnlistedWords(mixture, tokens.words)
    if words is None:
        return None
    if not words:
        raise InputError("the search knows no words", remedy="Give some by --unigrams.")
    if mixture is not None:
        unknown = mixture.unknown(words)
        if all(unknown):
            names = ", ".join(component.name for component in mixture.components)
            problem = f"{names}: all {len(words)} words are unknown, as {words[0]!r}"
            raise InputError(problem, remedy="Give words of the LM, in its case.")
        if unigrams is not None and 2 * sum(unknown) > len(words):
            example = words[unknown.index(True)]
            LOG.warning(
                f"{sum(unknown)} of {len(words)} unigrams are left out, as {example!r}: no LM knows"
                " them. Give words of the LM, in its case."
            )
        words = [word for word, by_none in zip(words, unknown, strict=True) if not by_none]
    missing = {word: tokens.words.missing_letters(word) for word in words}
    strange = [word for word in words if missing[word]]
    problem = (
        f"{len(strange)} of the {len(words)} words that the search knows have letters that no token"
        " has"
    )
    if strange:
        problem += f", as {strange[0]!r} ({missing[strange[0]]})"
    if 2 * len(strange) > len(words):
        raise InputError(
            problem, remedy="Write tokens and words in one case: --lower true, or another LM."
        )
    if strange:
        LOG.warning(f"{problem}: they are never found. Write them in the tokens' letters.")
    return Vocabulary(tokens.words.letters(word) for word in words if not missing[word])


def read_unigrams(path: Optional[PathLike]) -> Optional[List[str]]:
    """Words of a file, the first of each line; None: there is no file."""
    if path is None:
        return None
    words = [line.split()[0] for _, line in read_lines(path) if line.strip()]
    if not words:
        raise InputError("no words", path=path, remedy="Put one on each line.")
    return words


def best_path(log_probs: np.ndarray, tokens: CTCTokens) -> List[str]:
    """Words of the best token of each frame."""
    runs = itertools.groupby(log_probs.argmax(axis=1).tolist())
    return tokens.words.words([token for token, _ in runs if token != tokens.blank])


def read_utterances(path: PathLike, tokens: CTCTokens) -> Iterator[Utterance]:
    """Utterances of a file of logits that can be searched; all are looked at first."""
    faults: Dict[str, str] = {}
    num_utterances = num_frames = num_used = 0
    for utt, logits in read_logits(path):
        num_utterances += 1
        try:
            num_used += len(tokens.fitted(log_probs_of(logits)))
            num_frames += len(logits)
        except InputError as error:
            faults[utt] = f"{utt}: {error}"
    for problem in faults.values():
        if 2 * len(faults) > num_utterances:
            more = f" ({len(faults)} of {num_utterances} utterances cannot be searched)"
            raise InputError(problem + more * (num_utterances > 1), path=path)
        LOG.warning(f"{path}: left out: {problem}")
    if num_used < num_frames:
        LOG.warning(
            f"{path}: {num_frames - num_used} of {num_frames} frames are left out: all tokens are"
            " alike there, as in padding"
        )
    heard = ((utt, *heard_frames(x)) for utt, x in read_logits(path) if utt not in faults)
    return ((utt, tokens.fitted(log_probs), frames) for utt, log_probs, frames in heard)


def ctc_lists(
    options: CTCOptions,
    lms: MixtureOptions,
    *,
    lm_weight: float,
    bias: Optional[PathLike] = None,
    bias_weight: float = 1.0,
    near_words: bool = False,
    size: int,
    device: str,
) -> Iterator[NBest]:
    """Yield the N-best list of each utterance of a file of logits.

    `am_score` is ln P of the text by the logits, `lm_score` ln P of its words and end by the LMs;
    `hotword_score` or `bias_score` the weight of its phrases.

    Args:
        options: Logits, tokens, hotwords and the search.
        lms: LMs and n-grams, if there are any.
        lm_weight: Weight of the LMs.
        bias: File of bias lists; None: there is none.
        bias_weight: Weight of each of their phrases.
        near_words: True if texts with phrases in place of words that are near them are scored too.
        size: Hypotheses of a list, at most.
        device: Device of the LMs.
    """
    tokens = _tokens(options)
    assert options.logits is not None
    utterances = read_utterances(options.logits, tokens)
    lists = _bias(bias, options, tokens)
    mixture: Optional[Mixture] = None
    if lms.lms or lms.ngrams:
        mixture = Mixture.load(lms, device)
        if not mixture.prepare(None):
            utterances, sentences = _first_sentences(utterances, tokens)
            mixture.prepare(sentences)
    fusion = CTCFusion(
        mixture=mixture,
        lm_weight=lm_weight,
        word_bonus=1.5 if options.word_bonus is None else options.word_bonus,
        vocabulary=search_vocabulary(read_unigrams(options.unigrams), mixture, tokens),
        unk_score_offset=options.unk_score_offset,
        bias=_hotwords(options, tokens),
        bias_weight=1.0 if lists is None else bias_weight,
    )
    shift = options.frame_shift
    search = CTCSearch(tokens, fusion, options, traced=shift is not None)
    score = "" if lists is None else "bias_score"
    score = "hotword_score" if options.hotwords is not None else score
    best: List[Sequence[str]] = []
    file = contextlib.nullcontext() if options.ctm is None else atomic_write(options.ctm)
    with file as ctm:
        for utt, log_probs, frames in utterances:
            own = None if lists is None else lists.of(utt)
            found = search(log_probs, bias=own)[:size]
            hyps = [_hypothesis(text, score) for text in found]
            if shift is not None:
                times = WordTimes(frames.tolist(), tokens.words)
                hyps = [_timed(h, times.of(t), shift) for h, t in zip(hyps, found, strict=True)]
            if ctm is not None:
                words, spans = hyps[0].words, hyps[0].extra[TIMES]
                lines = ctm_lines(utt, words, spans, confidences_of_best(found))
                ctm.writelines(f"{line}\n" for line in lines)
            rows = [(text.score, hyp) for text, hyp in zip(found, hyps, strict=True)]
            if near_words and own is not None:
                near = near_texts(hyps, own, normalised=_case(options).words, most=size)
                for text in search.scored(log_probs, [*near], own):
                    made = with_phrases(_hypothesis(text, score), near[text.words])
                    rows.append((text.score, made))
                rows.sort(key=lambda row: -row[0])
            best.append(rows[0][1].words)
            yield NBest(utt, tuple(hypothesis for _, hypothesis in rows))
    if mixture is not None:
        remedy = "Write tokens and LM in one case: --lower true, or another LM."
        mixture.check_words(best, remedy=remedy)


def _timed(hypothesis: Hypothesis, words: Sequence[WordFrames], shift: float) -> Hypothesis:
    """Hypothesis with the times of its words, of frames of so many seconds."""
    times = [[round(frame * shift, 4) for frame in span] for _, span in words]
    return dataclasses.replace(hypothesis, extra={**hypothesis.extra, TIMES: times})


def confidences_of_best(found: Sequence[FoundText]) -> List[float]:
    """Confidence of each word of the best text.

    It is the posterior, the softmax of the scores, of the texts that have the word at its place.
    """
    texts = [text.words for text in found]
    posterior = list_posterior(np.array([text.score for text in found]))
    shares: List[float] = word_confidences(posterior, words_in_place(texts[0], texts)).tolist()
    return shares


def _tokens(options: CTCOptions) -> CTCTokens:
    """Tokens of the options' file."""
    assert options.tokens is not None
    tokens = read_tokens(options.tokens)
    try:
        return CTCTokens(tokens, options.blank, lower=options.lower)
    except InputError as error:
        raise InputError(str(error), path=options.tokens) from None


def _hotwords(options: CTCOptions, tokens: CTCTokens) -> Optional[BiasTree]:
    """Hotwords of the options' file, if there is one."""
    if options.hotwords is None:
        return None
    weight, lower = options.hotword_weight, options.lower
    found = read_hotwords(options.hotwords, weight, tokens.words, lower=lower)
    return BiasTree(found, tokens.words)


def _bias(path: Optional[PathLike], options: CTCOptions, tokens: CTCTokens) -> Optional[BiasLists]:
    """Bias lists of a file, in the case of the search; None: there is no file."""
    if path is None:
        return None
    assert options.logits is not None
    utts = [utt for utt, _ in read_logits(options.logits)]
    return read_search_bias(path, tokens.words, _case(options), utts)


def _case(options: CTCOptions) -> Normalization:
    """Normalization of phrases, which the search's words have already."""
    return Normalization("lower" if options.lower else "")


def _hypothesis(text: FoundText, phrase_score: str) -> Hypothesis:
    """Hypothesis of a list, with its scores apart; that of phrases has no name without them."""
    lm_score = None if text.lm_score is None else round(text.lm_score, DIGITS)
    extra = {phrase_score: round(text.phrase_score, DIGITS)} if phrase_score else {}
    return Hypothesis(text.words, round(text.am_score, DIGITS), lm_score, extra=extra)


def _first_sentences(
    utterances: Iterator[Utterance], tokens: CTCTokens
) -> Tuple[Iterator[Utterance], List[List[str]]]:
    """All utterances, and best paths of the first ones, by which a form of the text is chosen."""
    read: List[Utterance] = []
    sentences: List[List[str]] = []
    while sum(map(len, sentences)) < WORDS_TO_CHOOSE:
        more = next(utterances, None)
        if more is None:
            break
        read.append(more)
        sentences.append(best_path(more[1], tokens))
    return itertools.chain(read, utterances), sentences
