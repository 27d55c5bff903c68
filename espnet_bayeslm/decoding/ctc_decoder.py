"""CTC beam search from Python, with the names and arguments of pyctcdecode."""

from __future__ import annotations

import dataclasses
import functools
import os
import weakref
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Dict,
    Iterable,
    List,
    MutableMapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from espnet_bayeslm.decoding.bias_search import BiasTree
from espnet_bayeslm.decoding.ctc_alphabet import Alphabet
from espnet_bayeslm.decoding.ctc_language_model import LanguageModel, known_words
from espnet_bayeslm.decoding.ctc_lists import search_vocabulary
from espnet_bayeslm.decoding.ctc_output import OutputBeam, OutputBeamMPSafe, output_beam
from espnet_bayeslm.decoding.ctc_search import BeamOptions, CTCSearch, FoundText
from espnet_bayeslm.decoding.ctc_tokens import as_texts
from espnet_bayeslm.decoding.ctc_words import CTCFusion
from espnet_bayeslm.decoding.hotwords import HOTWORD_WEIGHT, check_hotword, hotword_list
from espnet_bayeslm.decoding.logits import heard_frames
from espnet_bayeslm.decoding.word_times import WordTimes
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, unpacked_text, write_text
from espnet_bayeslm.utils.log import LOG

DEFAULTS = BeamOptions()
KEPT_SEARCHES = 2
"""Searches, each of some arguments, whose first letters of words are kept."""
ALPHABET, LANGUAGE_MODEL = "alphabet.json", "language_model"
"""Names in a folder of a decoder."""


class BeamSearchDecoderCTC:
    """CTC beam search for logits, as `build_ctcdecoder` makes it.

    A pool's processes find the decoder by its key: it is made once in each, or none at all where
    they were forked after it.

    Args:
        alphabet: The recogniser's labels.
        language_model: The LM; None: there is none.
        unigrams: Known words where there is no LM; None: all are known.
    """

    _ALPHABET_SERIALIZED_FILENAME = ALPHABET
    _LANGUAGE_MODEL_SERIALIZED_DIRECTORY = LANGUAGE_MODEL
    _known: ClassVar[MutableMapping[bytes, BeamSearchDecoderCTC]] = weakref.WeakValueDictionary()
    _made: ClassVar[Dict[bytes, BeamSearchDecoderCTC]] = {}

    def __init__(
        self,
        alphabet: Alphabet,
        language_model: Optional[LanguageModel] = None,
        *,
        unigrams: Optional[List[str]] = None,
    ):
        self._alphabet, self._language_model, self._unigrams = alphabet, language_model, unigrams
        self._tokens = alphabet.tokens
        words = unigrams if language_model is None else language_model.unigrams
        mixture = language_model.mixture if language_model else None
        self._vocabulary = search_vocabulary(words, mixture, self._tokens)
        # the last ones, by their arguments
        self._searches: Dict[Any, CTCSearch] = {}
        self._model_key = os.urandom(16)
        self._known[self._model_key] = self

    def decode_beams(
        self,
        logits: Any,
        beam_width: int = DEFAULTS.beam_size,
        beam_prune_logp: float = DEFAULTS.beam_prune_logp,
        token_min_logp: float = DEFAULTS.token_min_logp,
        prune_history: bool = False,
        hotwords: Optional[Iterable[str]] = None,
        hotword_weight: float = HOTWORD_WEIGHT,
        lm_start_state: Any = None,
    ) -> List[OutputBeam]:
        """Hypotheses of an utterance, the best first, each text once.

        Args:
            logits: Logits, log-probabilities or probabilities, (frames, tokens).
            beam_width: Hypotheses after each frame, at most.
            beam_prune_logp: Score of a hypothesis below the best one's, from which on it is
                dropped.
            token_min_logp: Ln P below which a token is skipped, but for the best one of a frame.
            prune_history: True if of hypotheses whose next words cost the same only the best one
                stays, which is faster.
            hotwords: Words and phrases that are preferred; a string is one of them. One that no
                token can write is left out with a warning.
            hotword_weight: Weight of each word of them.
            lm_start_state: State of the LM before the first word, of a beam of the audio before;
                None: a sentence begins.

        Raises:
            InputError: The logits have NaN or another number of tokens, another token seems to be
                the blank, or hotwords are no texts.
        """
        sizes = (beam_width, beam_prune_logp, token_min_logp)
        words = (phrases_of(hotwords), hotword_weight)
        search = self._search(*sizes, *words, prune_history=prune_history, traced=True)
        found, frames = self._found(search, logits, lm_start_state)
        get_state = self._language_model.given_state if self._language_model else lambda _: None
        times = WordTimes(frames, self._tokens.words)
        return [output_beam(text, get_state(text.state), times) for text in found]

    def decode(
        self,
        logits: Any,
        beam_width: int = DEFAULTS.beam_size,
        beam_prune_logp: float = DEFAULTS.beam_prune_logp,
        token_min_logp: float = DEFAULTS.token_min_logp,
        hotwords: Optional[Iterable[str]] = None,
        hotword_weight: float = HOTWORD_WEIGHT,
        lm_start_state: Any = None,
    ) -> str:
        """Text of the best hypothesis of `decode_beams` with `prune_history`.

        Where words are hardly told apart, `decode_beams` without it may find a better one.
        """
        sizes = (beam_width, beam_prune_logp, token_min_logp)
        words = (phrases_of(hotwords), hotword_weight)
        search = self._search(*sizes, *words, prune_history=True, traced=False)
        found, _ = self._found(search, logits, lm_start_state)
        return " ".join(found[0].words)

    def decode_beams_batch(
        self, pool: Any, logits_list: Iterable[Any], *args: Any, **kwargs: Any
    ) -> List[List[OutputBeamMPSafe]]:
        """Hypotheses of each utterance, without the states of LMs.

        Args:
            pool: A pool of `multiprocessing` with any way to start; None: this process.
            logits_list: Logits of each utterance.
            *args: As of `decode_beams`.
            **kwargs: As of `decode_beams`.
        """
        return self._mapped(pool, self._decode_beams_mp_safe, logits_list, *args, **kwargs)

    def decode_batch(
        self, pool: Any, logits_list: Iterable[Any], *args: Any, **kwargs: Any
    ) -> List[str]:
        """Text of the best hypothesis of each utterance.

        Args:
            pool: A pool of `multiprocessing` with any way to start; None: this process.
            logits_list: Logits of each utterance.
            *args: As of `decode`.
            **kwargs: As of `decode`.
        """
        return self._mapped(pool, self.decode, logits_list, *args, **kwargs)

    def reset_params(
        self,
        alpha: Optional[float] = None,
        beta: Optional[float] = None,
        unk_score_offset: Optional[float] = None,
        lm_score_boundary: Optional[bool] = None,
    ) -> None:
        """Change weights of the LM; None leaves one as it is.

        Args:
            alpha: Weight of ln P of the LM.
            beta: Score of each word.
            unk_score_offset: Log10 P of an unknown word, beside the LM's.
            lm_score_boundary: True if the LM scores the sentence's start and end.
        """
        if self._language_model is not None:
            self._language_model.reset_params(
                alpha=alpha,
                beta=beta,
                unk_score_offset=unk_score_offset,
                score_boundary=lm_score_boundary,
            )

    def save_to_dir(self, filepath: PathLike) -> None:
        """Write alphabet and n-gram to a folder, which pyctcdecode reads, too.

        Raises:
            InputError: The LM is no n-gram.
        """
        if self._language_model is not None:
            self._language_model.save_to_dir(Path(filepath) / LANGUAGE_MODEL)
        write_text(Path(filepath) / ALPHABET, self._alphabet.dumps())

    @classmethod
    def load_from_dir(
        cls, filepath: PathLike, unigram_encoding: Optional[str] = None
    ) -> BeamSearchDecoderCTC:
        """Decoder of a folder that `save_to_dir` wrote, here or of pyctcdecode.

        Args:
            filepath: The folder.
            unigram_encoding: Encoding of the known words; None: UTF-8.

        Raises:
            InputError: A file is missing or damaged.
        """
        folder = Path(filepath)
        if not (folder / ALPHABET).is_file():
            problem = f"a folder without {ALPHABET}, and that of a decoder was expected"
            raise InputError(problem, path=folder)
        alphabet = Alphabet.loads(unpacked_text(folder / ALPHABET))
        lm = None
        if (folder / LANGUAGE_MODEL).is_dir():
            lm = LanguageModel.load_from_dir(folder / LANGUAGE_MODEL, unigram_encoding)
        return cls(alphabet, lm)

    @classmethod
    def load_from_hf_hub(
        cls, model_id: str, cache_dir: Optional[PathLike] = None, **kwargs: Any
    ) -> BeamSearchDecoderCTC:
        """Decoder of a repository of the Hugging Face hub; a local copy is not asked for again.

        Args:
            model_id: Name of the repository.
            cache_dir: Folder of local copies; None: the hub's own.
            **kwargs: As of `huggingface_hub.snapshot_download`.
        """
        from huggingface_hub import snapshot_download

        get = functools.partial(snapshot_download, model_id, cache_dir=cache_dir)
        try:
            folder = get(**{**kwargs, "local_files_only": True})
        except OSError:
            if kwargs.get("local_files_only"):
                raise
            LOG.info(f"{model_id}: no local copy; asking the hub")
            folder = get(**kwargs)
        return cls.load_from_dir(folder)

    @property
    def model_container(self) -> Dict[bytes, Optional[LanguageModel]]:
        """{key of the decoder: its LM}."""
        return {self._model_key: self._language_model}

    def cleanup(self) -> None:
        """Forget the LM; the decoder goes on without."""
        self._language_model, self._searches = None, {}

    @classmethod
    def clear_class_models(cls) -> None:
        """Forget decoders that were made in a process of a pool."""
        cls._made.clear()

    def __reduce__(self) -> Any:
        lm = self._language_model
        arguments = lm and lm.arguments
        return _known_or_made, (self._model_key, self._alphabet, arguments, self._unigrams)

    def _mapped(
        self, pool: Any, function: Any, logits_list: Iterable[Any], *args: Any, **kwargs: Any
    ) -> List[Any]:
        """Results of a method for each utterance, in processes of a pool or here."""
        call = functools.partial(_called, function, args, kwargs)
        if pool is None:
            return [call(logits) for logits in logits_list]
        # tensors would be shared by handles, of which there are few
        arrays = [each.detach().cpu() if hasattr(each, "detach") else each for each in logits_list]
        return list(pool.map(call, [np.asarray(each) for each in arrays]))

    def _decode_beams_mp_safe(self, *args: Any, **kwargs: Any) -> List[OutputBeamMPSafe]:
        """Hypotheses that can be sent to another process."""
        beams = self.decode_beams(*args, **kwargs)
        return [OutputBeamMPSafe(b.text, b.text_frames, b.logit_score, b.lm_score) for b in beams]

    def _found(
        self, search: CTCSearch, logits: Any, start: Any
    ) -> Tuple[List[FoundText], List[int]]:
        """Hypotheses of an utterance, and the numbers of the frames that were searched."""
        lm = self._language_model
        if start is not None:
            start = lm.state_of(start) if lm else None
        log_probs, frames = np.empty((0, len(self._tokens.tokens))), np.empty(0, np.int64)
        is_list = hasattr(logits, "__len__") and getattr(logits, "ndim", 1) > 0
        if not is_list or len(logits):
            log_probs, frames = heard_frames(logits)
            log_probs = self._tokens.fitted(log_probs)
        return search(log_probs, start=start), frames.tolist()

    def _search(
        self,
        width: int,
        prune: float,
        least: float,
        phrases: Sequence[str],
        weight: float,
        **how: bool,
    ) -> CTCSearch:
        """Search with some arguments and hotwords."""
        lm, searches = self._language_model, self._searches
        scales = tuple(lm.weights.values()) if lm else ()
        key = (width, prune, least, phrases, weight, scales, *how.values())
        search = searches.get(key)
        if search is None:
            # without an LM nothing but a phrase of hotwords asks for words before
            fusion = CTCFusion(vocabulary=self._vocabulary, context_words=1)
            fusion = lm.fusion(self._vocabulary) if lm else fusion
            fusion = dataclasses.replace(fusion, bias=self._hotwords(phrases, weight))
            sizes = BeamOptions(beam_size=width, beam_prune_logp=prune, token_min_logp=least)
            search = CTCSearch(self._tokens, fusion, sizes, **how)
            last = list(searches.items())[1 - KEPT_SEARCHES :]
            self._searches = {**dict(last), key: search}  # threads may share the decoder
        return search

    def _hotwords(self, phrases: Sequence[str], weight: float) -> Optional[BiasTree]:
        """Hotwords that the tokens can write, if there are any."""
        found = {}
        for phrase in phrases:
            try:
                check_hotword(phrase, self._tokens.words)
            except InputError as error:
                LOG.warning(f"left out: {error}")
            else:
                found[phrase] = weight
        if found and weight <= 0:
            LOG.warning(f"hotword_weight {weight:g}: the hotwords are left out. Give one above 0.")
            return None
        return BiasTree(hotword_list(found), self._tokens.words) if found else None


def phrases_of(hotwords: Optional[Iterable[str]]) -> Tuple[str, ...]:
    """Hotwords of an argument, each once; a string is one of them."""
    given = [hotwords] if isinstance(hotwords, str) else () if hotwords is None else hotwords
    phrases = (" ".join(text.split()) for text in as_texts(given, "hotwords"))
    return tuple(dict.fromkeys(filter(None, phrases)))


def _called(function: Any, args: Sequence[Any], kwargs: Dict[str, Any], logits: Any) -> Any:
    """Result of a function of logits and other arguments."""
    return function(logits, *args, **kwargs)


def _known_or_made(
    key: bytes,
    alphabet: Alphabet,
    arguments: Optional[Dict[str, Any]],
    unigrams: Optional[List[str]],
) -> BeamSearchDecoderCTC:
    """The decoder of a key: the one of this process, or a new one, which is kept."""
    known, made = BeamSearchDecoderCTC._known, BeamSearchDecoderCTC._made
    decoder = known.get(key)
    if decoder is None:
        lm = None if arguments is None else LanguageModel(**arguments)
        decoder = BeamSearchDecoderCTC(alphabet, lm, unigrams=unigrams)
        decoder._model_key = key
        known[key] = made[key] = decoder
    if arguments is not None:
        names = ("alpha", "beta", "unk_score_offset")
        weights = {name: arguments[name] for name in names}
        decoder.reset_params(**weights, lm_score_boundary=arguments["score_boundary"])
    return decoder


def build_ctcdecoder(
    labels: Any,
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
) -> BeamSearchDecoderCTC:
    """Decoder of the logits of a CTC recogniser, which takes the arguments of pyctcdecode's.

    Args:
        labels: The recogniser's tokens, in the order of the logits' columns, or a mapping between
            them and their ids.
        kenlm_model_path: An n-gram: an ARPA file, which may be compressed, or a KenLM binary.
        unigrams: Known words, or a file of them; None: those of the LMs, if each of them lists its
            own.
        alpha: Weight of ln P of the LM.
        beta: Score of each word.
        unk_score_offset: Log10 P of an unknown word, beside the LM's.
        lm_score_boundary: True if LMs score the sentence's start and end.
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
    alphabet = Alphabet.build_alphabet(labels, blank=blank, lower=lower)
    if kenlm_model_path is None and not lms:
        return BeamSearchDecoderCTC(alphabet, unigrams=known_words(unigrams))
    options = MixtureOptions(lms=lms, weights=weights, text_form=text_form)
    how = (alpha, beta, unk_score_offset, lm_score_boundary)
    lm = LanguageModel(kenlm_model_path, unigrams, *how, options=options, device=device)
    return BeamSearchDecoderCTC(alphabet, lm)
