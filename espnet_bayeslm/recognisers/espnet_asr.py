"""A recogniser of ESPnet's, whose beam search has the scores of its parts apart."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm import speech2text
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.loading.experiment import check_same_tokens, find_files, is_s2t
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.rescoring.near_odds import Words
from espnet_bayeslm.rescoring.near_texts import NearTexts, with_phrases
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    PathLike,
    read_yaml_mapping,
)
from espnet_bayeslm.utils.log import LOG

if TYPE_CHECKING:
    import torch

ASR_FILES = ("valid.acc.ave.pth", "valid.acc.best.pth", "valid.loss.ave.pth", "valid.loss.best.pth")
ENDS = "<sos/eos>"
CTC_WEIGHT = 0.3
"""Weight of CTC where another is not given; s2t models are searched without CTC."""


def check_one_speaker(config: PathLike) -> None:
    """Check that a recogniser of ESPnet hears one speaker, by its config.yaml."""
    content = read_yaml_mapping(config)
    named = {name: str(content.get(name)) for name in ("model", "encoder")}
    found = [f"{k}: {v}" for k, v in named.items() if re.search("^pit_|multispkr", v)]
    outputs = (content.get("model_conf") or {}).get("num_inf", 1)
    found += [f"num_inf: {outputs}"] * (outputs != 1)
    if found:
        raise InputError(
            f"a recogniser of several speakers at once ({', '.join(found)}), and one of a single"
            " speaker was expected",
            path=config,
            remedy="Separate the speakers first, and give a recogniser of one speaker.",
        )


class FoundHypothesis(NamedTuple):
    """A hypothesis of a search.

    Attributes:
        ids: Its tokens, without start and end.
        total: Weighted sum of all scores.
        hypothesis: Its words, and scores apart.
    """

    ids: Sequence[int]
    total: float
    hypothesis: Hypothesis


class BeamSearch:
    """A recogniser of ESPnet's, or a model of its task s2t such as OWSM, with its beam search.

    Args:
        model: The experiment's folder, or a checkpoint beside its config.yaml.
        lm: An LM of ESPnet's or ours for the search.
        lm_weight: Its weight.
        ctc_weight: The weight of CTC; the decoder has the rest. None: 0.3, and 0 of s2t.
        penalty: Bonus of each token.
        bias_weight: Weight of a phrase of bias lists, in nats; None: as the LM, a fusion, has it.
        size: Hypotheses of a list, at most, and the beam.
        language: Language of s2t, as its token has it; None: English.

    Attributes:
        lm: The LM; None without one.
        near_texts: Further texts that are scored, to be set; None: there are none.
        ctc_weight: The weight of CTC.
        program: ESPnet's program of this search.
    """

    def __init__(
        self,
        model: PathLike,
        *,
        lm: Optional[PathLike] = None,
        lm_weight: float,
        ctc_weight: Optional[float] = None,
        penalty: float = 0.0,
        bias_weight: Optional[float] = None,
        size: int,
        language: Optional[str] = None,
        device: str = "cpu",
    ):
        config, checkpoint = find_files(model, ASR_FILES)
        content = read_yaml_mapping(config)
        self._is_s2t = is_s2t(content)
        task = "s2t" if self._is_s2t else "asr"
        self.program = f"{task}_inference"
        files = {f"{task}_train_config": str(config), f"{task}_model_file": str(checkpoint)}
        if lm is not None:
            lm_config, lm_checkpoint = find_files(lm)
            files.update(lm_train_config=str(lm_config), lm_file=str(lm_checkpoint))
            remedy = "Train the LM with the recogniser's tokens."
            check_same_tokens(lm_config, config, remedy=remedy)
            if content.get("decoder") == "transducer":
                problem = "--lm, and a transducer's search does not tell its scores apart"
                remedy = "Leave it out, and rescore the lists with it."
                raise InputError(problem, path=lm, remedy=remedy)
        check_one_speaker(config)
        if ctc_weight is None:
            ctc_weight = 0.0 if self._is_s2t else CTC_WEIGHT
        search: Dict[str, Any] = {"beam_size": size, "nbest": size, "ctc_weight": ctc_weight}
        if lm is not None:
            search["lm_weight"] = lm_weight
        if self._is_s2t:
            search["lang_sym"] = _language_token(language, content, config)
        self._search: Any = speech2text(**files, **search, penalty=penalty, device=device)
        scorers = getattr(self._search.beam_search, "scorers", {})
        self.lm: Any = scorers.get("lm")
        self.ctc_weight, self._lm_weight = ctc_weight, lm_weight
        self.takes_bias = hasattr(self.lm, "set_bias")
        self.near_texts: Optional[NearTexts] = None
        if self.lm is not None and self.takes_bias and bias_weight is not None and lm_weight:
            self.lm.bias_weight = bias_weight / lm_weight
        self.rate = _rate(content)
        window = content.get("preprocessor_conf") if self._is_s2t else None
        self._longest = window["speech_length"] * window["fs"] if window else math.inf
        LOG.info(f"{checkpoint}: {self.rate} samples a second")

    def __call__(self, samples: np.ndarray, bias: Optional[BiasList] = None) -> List[Hypothesis]:
        """Hypotheses of a recording, the best first.

        `am_score` is the weighted sum of decoder and CTC (or a transducer's score), `lm_score` the
        LM's ln P; `decoder_score`, `ctc_score` and `bias_score`, the weight of the phrases of a
        bias list, stand beside them.

        Args:
            samples: The recording.
            bias: Its bias list, where the LM is a fusion; None: the fusion's own.
        """
        found = [*self._found(samples, bias)]
        if self.near_texts is not None and bias is not None:
            texts = self.near_texts([row.hypothesis for row in found], bias)
            found += self._with_phrases(samples, texts, bias)
            found.sort(key=lambda row: -row.total)
        return [row.hypothesis for row in found]

    def set_weights(self, **weights: float) -> None:
        """Set weights of the search's parts, such as `lm` and `length_bonus`, that are not 0."""
        own = self._search.beam_search.weights
        own.update({name: value for name, value in weights.items() if name in own})

    def with_tokens(
        self, samples: np.ndarray, bias: Optional[BiasList] = None
    ) -> Dict[Tuple[int, ...], Hypothesis]:
        """Hypotheses of a recording by their tokens, the best first; arguments as of a call."""
        return {tuple(row.ids): row.hypothesis for row in self._found(samples, bias)}

    def scored_tokens(
        self, samples: np.ndarray, rows: Sequence[Sequence[int]], bias: Optional[BiasList] = None
    ) -> List[FoundHypothesis]:
        """Hypotheses of given tokens, without start and end, with the scores of a search.

        Args:
            samples: The recording.
            rows: Token ids of each hypothesis.
            bias: Its bias list, as of a call.
        """
        from espnet_bayeslm.recognisers.given_tokens import scores_of_tokens

        if self.takes_bias:
            self.lm.set_bias(bias)
        search, converter = self._search.beam_search, self._search.converter
        found = []
        every = scores_of_tokens(search, self._encoded(samples), rows)
        for ids, scores in zip(rows, every, strict=True):
            total = sum(search.weights[name] * score for name, score in scores.items())
            text = self._search.tokenizer.tokens2text(converter.ids2tokens(ids))
            hyp = SimpleNamespace(scores=scores, score=total)
            found.append(FoundHypothesis(ids, total, self._hypothesis(text, ids, hyp)))
        return found

    def _with_phrases(
        self, samples: np.ndarray, texts: Mapping[Words, Sequence[str]], bias: BiasList
    ) -> Iterator[FoundHypothesis]:
        """Yield hypotheses of texts, with their phrases beside them; of those that may be found."""
        tokenizer, converter = self._search.tokenizer, self._search.converter
        rows, phrases = [], []
        for words, own in texts.items():
            ids = converter.tokens2ids(tokenizer.text2tokens(" ".join(words)))
            if getattr(converter, "unk_id", None) not in ids:
                rows.append(ids)
                phrases.append(own)
        for row, own in zip(self.scored_tokens(samples, rows, bias), phrases, strict=True):
            if np.isfinite(row.total):
                yield row._replace(hypothesis=with_phrases(row.hypothesis, own))

    def _encoded(self, samples: np.ndarray) -> torch.Tensor:
        """Output of the encoder, (T, D)."""
        import torch

        search = self._search
        speech = torch.tensor(samples, dtype=getattr(torch, search.dtype), device=search.device)
        sizes = torch.tensor([len(samples)], device=search.device)
        model = search.s2t_model if self._is_s2t else search.asr_model
        with torch.no_grad():
            encoded, _ = model.encode(speech=speech[None], speech_lengths=sizes)
        # some encoders give what their inner layers heard, too
        heard: torch.Tensor = encoded[0] if isinstance(encoded, tuple) else encoded
        return heard[0]

    def _found(self, samples: np.ndarray, bias: Optional[BiasList]) -> Iterator[FoundHypothesis]:
        """Yield the hypotheses of a search."""
        if self.takes_bias:
            self.lm.set_bias(bias)
        if len(samples) > self._longest:
            raise InputError(
                f"{len(samples) / self.rate:.1f} seconds, and the recogniser hears"
                f" {self._longest / self.rate:g} at once",
                remedy="Cut the recording.",
            )
        for text, _, ids, *without_marks, hyp in self._search(samples):
            own = self._hypothesis(without_marks[0] if self._is_s2t else text, ids, hyp)
            yield FoundHypothesis(ids, float(hyp.score), own)

    def _hypothesis(self, text: Optional[str], ids: Any, hyp: Any) -> Hypothesis:
        # a hypothesis that had to end may hold the end as a word
        words = tuple(word for word in (text or "").split() if word != ENDS)
        parts = {name: float(score) for name, score in getattr(hyp, "scores", {}).items()}
        if not parts:
            return Hypothesis(words, float(hyp.score))
        weights = {"decoder": 1.0 - self.ctc_weight, "ctc": self.ctc_weight}
        am_score = sum(weight * parts.get(name, 0.0) for name, weight in weights.items())
        apart = {f"{name}_score": parts[name] for name in weights if name in parts}
        lm_score = parts.get("lm")
        if self.takes_bias and lm_score is not None:
            phrases = self.lm.bias_total(ids)
            lm_score = lm_score - phrases if self.lm.has_lms else None
            if self.lm.has_bias:
                apart["bias_score"] = self._lm_weight * phrases
        return Hypothesis(words, am_score, lm_score, extra=apart)


def _language_token(language: Optional[str], config: Mapping[str, Any], path: PathLike) -> str:
    """Token of a language of an s2t model, such as `<eng>`."""
    token = f"<{language or 'eng'}>"
    tokens = config.get("token_list")
    if isinstance(tokens, list) and token not in tokens:
        raise InputError(
            f"no token {token} of the language",
            path=path,
            remedy="Give another by --language, such as deu for <deu>.",
        )
    return token


def _rate(config: Mapping[str, Any]) -> int:
    """Samples a second of a recogniser's training, `16000` or `16k`, by its configuration."""
    rate = (config.get("frontend_conf") or {}).get("fs", 16000)
    text = str(rate).lower()
    return int(float(text[:-1]) * 1000) if text.endswith("k") else int(rate)
