"""CTC beam search from Python, with the names and arguments of pyctcdecode's `build_ctcdecoder`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from espnet_bayeslm.decoding.bias_search import BiasTree
from espnet_bayeslm.decoding.ctc_lists import read_unigrams, search_vocabulary
from espnet_bayeslm.decoding.ctc_search import BeamOptions, CTCSearch
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens, as_texts, tokens_of_labels
from espnet_bayeslm.decoding.ctc_words import WordFusion
from espnet_bayeslm.decoding.hotwords import HOTWORD_WEIGHT, check_hotword, hotword_list
from espnet_bayeslm.decoding.logits import log_probs_of
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

DEFAULTS = BeamOptions()


class CTCBeam(NamedTuple):
    """A hypothesis; the first and the last two places are those of a beam of pyctcdecode.

    Attributes:
        text: The text.
        log_prob: Ln P of the words and the sentence's end by the LM; None without an LM.
        hotword_score: Weight of the hotwords in the text.
        logit_score: Ln P of the text by the logits.
        lm_score: Sum of all scores, weighted, by which beams are ranked.
    """

    text: str
    log_prob: Optional[float]
    hotword_score: float
    logit_score: float
    lm_score: float


class CTCDecoder:
    """CTC beam search for logits, as `build_ctcdecoder` makes it.

    Args:
        tokens: The tokens.
        fusion: The LM and the vocabulary.
    """

    def __init__(self, tokens: CTCTokens, fusion: WordFusion):
        self._tokens, self._fusion = tokens, fusion
        # the search of the last call, with its letters of words, and its arguments
        self._last: Tuple[Any, Any] = (None, None)

    def decode_beams(
        self,
        logits: Any,
        beam_width: int = DEFAULTS.beam_size,
        beam_prune_logp: float = DEFAULTS.beam_prune_logp,
        token_min_logp: float = DEFAULTS.token_min_logp,
        *,
        hotwords: Optional[Iterable[str]] = None,
        hotword_weight: float = HOTWORD_WEIGHT,
    ) -> List[CTCBeam]:
        """Hypotheses of an utterance, the best first, each text once.

        Args:
            logits: Logits, log-probabilities or probabilities, (frames, tokens).
            beam_width: Hypotheses after each frame, at most.
            beam_prune_logp: Score of a hypothesis below the best one's, from which on it is
                dropped.
            token_min_logp: Ln P below which a token is skipped, but for the best one of a frame.
            hotwords: Words and phrases that are preferred; a string is one of them.
            hotword_weight: Weight of each word of them.

        Raises:
            InputError: The logits have NaN or another number of tokens, another token seems to be
                the blank, hotwords are no texts, or no token has their letters.
        """
        log_probs = self._tokens.fitted(log_probs_of(logits))
        given = [hotwords] if isinstance(hotwords, str) else () if hotwords is None else hotwords
        phrases = dict.fromkeys(" ".join(text.split()) for text in as_texts(given, "hotwords"))
        how = (beam_width, beam_prune_logp, token_min_logp, tuple(phrases), hotword_weight)
        last, search = self._last  # of another thread perhaps
        if last != how:
            search = self._search(*how)
            self._last = (how, search)
        return [
            CTCBeam(
                " ".join(text.words), text.lm_score, text.phrase_score, text.am_score, text.score
            )
            for text in search(log_probs)
        ]

    def decode(self, logits: Any, *args: Any, **kwargs: Any) -> str:
        """Text of the best hypothesis; the arguments are those of `decode_beams`."""
        return self.decode_beams(logits, *args, **kwargs)[0].text

    def _search(
        self, width: int, prune: float, least: float, phrases: Sequence[str], weight: float
    ) -> CTCSearch:
        """Search with some hotwords."""
        fusion = self._fusion
        given = [phrase for phrase in phrases if phrase]
        for phrase in given:
            check_hotword(phrase, self._tokens.words)
        if given:
            tree = BiasTree(hotword_list(dict.fromkeys(given, weight)), self._tokens.words)
            fusion = dataclasses.replace(fusion, bias=tree)
        sizes = BeamOptions(beam_size=width, beam_prune_logp=prune, token_min_logp=least)
        return CTCSearch(self._tokens, fusion, sizes)


def build_ctcdecoder(
    labels: Union[Sequence[str], Mapping[Any, Any]],
    kenlm_model_path: Optional[PathLike] = None,
    unigrams: Optional[Union[PathLike, Iterable[str]]] = None,
    alpha: float = 0.5,
    beta: float = 1.5,
    unk_score_offset: float = -10.0,
    lm_score_boundary: bool = True,
    *,
    lms: Sequence[Any] = (),
    weights: Any = None,
    text_form: str = "lower",
    blank: Optional[str] = None,
    lower: bool = False,
    device: str = "cpu",
) -> CTCDecoder:
    """Decoder of the logits of a CTC recogniser, which takes the arguments of pyctcdecode's.

    Args:
        labels: The recogniser's tokens, in the order of the logits' columns, or a mapping between
            them and their ids.
        kenlm_model_path: An n-gram: an ARPA file or a KenLM binary.
        unigrams: Known words, or a file of them; None: those of the LMs, if each of them lists its
            own.
        alpha: Weight of ln P of the LM.
        beta: Score of each word.
        unk_score_offset: Log10 P of an unknown word, beside the LM's.
        lm_score_boundary: True, since LMs score the sentence's start and end.
        lms: LMs, as `--lm` or `espnet_bayeslm.load` gives them; the n-gram is the last component.
        weights: Weights of several components: `weights.yaml` of `bayeslm interpolate`, or numbers.
        text_form: Form in which pretrained LMs read text, as `--text_form`.
        blank: The label that is the blank; None: it is found by its name, else it is the last
            column.
        lower: True if words are written in lower case.
        device: Device of the LMs.

    Raises:
        InputError: The labels make no words, or an LM cannot be loaded.
    """
    if not lm_score_boundary:
        problem = "lm_score_boundary is False, and LMs score the sentence's start and end"
        raise InputError(problem, remedy="Leave it out.")
    tokens = CTCTokens(tokens_of_labels(labels), blank, lower=lower)
    if isinstance(unigrams, (str, os.PathLike)):
        if not os.path.isfile(unigrams):
            problem = f"unigrams: no file {os.fspath(unigrams)!r}"
            raise InputError(problem, remedy="Give a list of words, or a file with one a line.")
        unigrams = read_unigrams(unigrams)
    ngrams = [] if kenlm_model_path is None else [kenlm_model_path]
    mixture: Optional[Mixture] = None
    if ngrams or lms:
        named = MixtureOptions(lms=lms, ngrams=ngrams, weights=weights, text_form=text_form)
        mixture = Mixture.load(named, device)
        mixture.prepare(())
    fusion = WordFusion(
        mixture=mixture,
        lm_weight=alpha,
        word_bonus=beta,
        vocabulary=search_vocabulary(unigrams, mixture, tokens),
        unk_score_offset=unk_score_offset,
    )
    return CTCDecoder(tokens, fusion)
