"""Recognisers: samples of a recording in, its hypotheses out, the best first.

PocketSphinx has acoustic scores from its lattices, ESPnet's beam search those of its parts apart,
Whisper's (through `transformers`) ln P. Each is imported where it is used.
"""

from __future__ import annotations

import importlib
import itertools
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm import register
from espnet_bayeslm.loading.experiment import check_same_tokens, find_files
from espnet_bayeslm.nbest.fields import placed
from espnet_bayeslm.nbest.htk import read_lattice
from espnet_bayeslm.nbest.lattice import acoustic_score
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.ngram.ngram_files import arpa_words
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, read_lines, read_yaml_mapping
from espnet_bayeslm.utils.imports import quiet_imports
from espnet_bayeslm.utils.log import LOG

if TYPE_CHECKING:
    import torch

RATE = 16000
"""Samples a second that the acoustic model takes."""
ASR_FILES = ("valid.acc.ave.pth", "valid.acc.best.pth", "valid.loss.ave.pth", "valid.loss.best.pth")
ENDS = "<sos/eos>"
MAX_PATHS = 3000  # paths looked at for one list: most repeat the words of an earlier one
DIGITS = 4  # of scores, after the point
SHOWN = 10  # names of recordings in one line


class LeftOut:
    """Recordings that no list is made of; the log has each one and the cause.

    Args:
        total: How many recordings there are.
    """

    def __init__(self, total: int):
        self.total = total
        self.errors: Dict[str, InputError] = {}

    def add(self, utt: str, path: PathLike, error: Exception) -> None:
        """Leave out a recording."""
        self.errors[utt] = placed(error, path)
        if len(self.errors) < self.total:
            LOG.warning("%s is left out: %s", utt, self.errors[utt])
            return
        first, cause = next(iter(self.errors.items()))
        if self.total > 1:
            problem = f"none of the {self.total} recordings can be used"
            cause = InputError(f"{problem}, the first, {first}: {cause}")
        raise cause

    def warn(self) -> None:
        """Tell in one line which recordings were left out, where some were."""
        if self.errors:
            names = ", ".join([*self.errors][:SHOWN]) + ", .." * (len(self.errors) > SHOWN)
            LOG.warning("%d of %d recordings are left out: %s", len(self.errors), self.total, names)


class SphinxSearch:
    """PocketSphinx with its own acoustic model.

    Args:
        lm: N-gram LM in ARPA format; None: PocketSphinx's own.
        dictionary: Pronunciations (`write_dictionary`); None: those of the LM's words.
        size: Hypotheses of a list, at most.
    """

    rate = RATE

    def __init__(
        self,
        lm: Optional[PathLike] = None,
        dictionary: Optional[PathLike] = None,
        *,
        size: int,
    ):
        pocketsphinx = _imported("pocketsphinx", "pocketsphinx")
        files = {}
        with tempfile.TemporaryDirectory() as folder:
            if lm is not None:
                if dictionary is None:
                    dictionary = Path(folder) / "dictionary"
                    write_dictionary(dictionary, arpa_words(lm))
                files = {"lm": str(lm), "dict": str(dictionary)}
            self.decoder: Any = pocketsphinx.Decoder(
                hmm=pocketsphinx.get_model_path("en-us/en-us"),
                fwdflat=False,  # its second search takes 40 % of the time and changes no WER here
                loglevel="FATAL",
                **files,
            )
        self.scorer = None if lm is None else NgramScorer(lm)
        self.size = size
        self.decode(bytes(2 * RATE))  # the first one differs from all others

    def decode(self, audio: bytes) -> List[Tuple[Tuple[str, ...], float]]:
        """Hypotheses of PCM samples of 16 bit: distinct words, and their acoustic scores in nats.

        The first is the recogniser's own result, the others follow in the order of its N-best
        search. Where it has no result, the only hypothesis is the empty one, with score 0.
        """
        # The front end's means and noise level, else those of the utterance before: the lists
        # must not depend on how the work is split.
        self.decoder.reinit_feat()
        self.decoder.start_utt()
        self.decoder.process_raw(audio, full_utt=True)
        self.decoder.end_utt()
        lattice, result = self.decoder.get_lattice(), self.decoder.hyp()
        if lattice is None or result is None:
            return [((), 0.0)]
        hypotheses = {tuple(result.hypstr.split()): None}  # in order, each once
        for count, path in enumerate(self.decoder.nbest()):
            if path is None or len(hypotheses) == self.size or count == MAX_PATHS:
                break
            hypotheses.setdefault(tuple(path.hypstr.split()))
        with tempfile.TemporaryDirectory() as folder:
            lattice.write_htk(f"{folder}/utterance.lat")
            lattice = read_lattice(f"{folder}/utterance.lat")
        scored = ((words, acoustic_score(lattice, words)) for words in hypotheses)
        return [(words, score) for words, score in scored if score > float("-inf")]

    def __call__(self, samples: np.ndarray) -> List[Hypothesis]:
        """Hypotheses of samples between -1 and 1, with ln P of the n-gram where one was given."""
        audio = np.clip(np.round(samples * 32768), -32768, 32767).astype("<i2").tobytes()
        found = self.decode(audio)
        if self.scorer is None:
            return [Hypothesis(words, round(score, DIGITS)) for words, score in found]
        return list(with_lm_scores(found, self.scorer))


def with_lm_scores(
    hypotheses: Sequence[Tuple[Sequence[str], float]], scorer: NgramScorer, digits: int = DIGITS
) -> Tuple[Hypothesis, ...]:
    """Hypotheses with the scores of the first-pass LM, from words and acoustic scores in nats."""
    lm_scores = [float(s.log_probs.sum()) for s in scorer.word_scores([w for w, _ in hypotheses])]
    return tuple(
        Hypothesis(tuple(words), round(am, digits), round(lm, digits), 0.0)
        for (words, am), lm in zip(hypotheses, lm_scores, strict=True)
    )


def _imported(package: str, installs: str) -> Any:
    """Import a package; if it is missing, the error names the `installs` for pip."""
    try:
        return importlib.import_module(package)
    except ImportError:
        remedy = f"Run: pip install {installs}"
        raise InputError(f"{package} is not installed", remedy=remedy) from None


def cmudict() -> Dict[str, List[Tuple[str, str]]]:
    """{word: [(entry, pronunciation)]} of PocketSphinx; entries are `word`, `word(2)`, ..."""
    entries: Dict[str, List[Tuple[str, str]]] = {}
    pocketsphinx = _imported("pocketsphinx", "pocketsphinx")
    for _, line in read_lines(pocketsphinx.get_model_path("en-us/cmudict-en-us.dict")):
        entry, phones = line.split(maxsplit=1)
        entries.setdefault(re.sub(r"\(\d+\)$", "", entry), []).append((entry, phones))
    return entries


def write_dictionary(path: Path, words: Iterable[str]) -> int:
    """Write the pronunciations that cmudict has of `words`, and return how many words it has."""
    entries = cmudict()
    known = sorted(set(words) & entries.keys())
    if not known:
        raise InputError("no word of the LM has a pronunciation", remedy="Is the LM English?")
    with atomic_write(path) as f:
        for word in known:
            f.writelines(f"{entry} {phones}\n" for entry, phones in entries[word])
    return len(known)


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


class BeamSearch:
    """A recogniser of ESPnet's, with its beam search.

    Args:
        model: The experiment's folder, or a checkpoint beside its config.yaml.
        lm: An LM of ESPnet's or ours for the search.
        lm_weight: Its weight.
        ctc_weight: The weight of CTC; the decoder has the rest.
        penalty: Bonus of each token.
        size: Hypotheses of a list, at most, and the beam.

    Attributes:
        lm: The LM; None without one.
    """

    def __init__(
        self,
        model: PathLike,
        *,
        lm: Optional[PathLike] = None,
        lm_weight: float,
        ctc_weight: float,
        penalty: float = 0.0,
        size: int,
        device: str = "cpu",
    ):
        config, checkpoint = find_files(model, ASR_FILES)
        files = {"asr_train_config": str(config), "asr_model_file": str(checkpoint)}
        if lm is not None:
            lm_config, lm_checkpoint = find_files(lm)
            files.update(lm_train_config=str(lm_config), lm_file=str(lm_checkpoint))
            remedy = "Train the LM with the recogniser's tokens."
            check_same_tokens(lm_config, config, remedy=remedy)
            if read_yaml_mapping(config).get("decoder") == "transducer":
                problem = "--lm, and a transducer's search does not tell its scores apart"
                remedy = "Leave it out, and rescore the lists with it."
                raise InputError(problem, path=lm, remedy=remedy)
        check_one_speaker(config)
        register()
        with quiet_imports():
            from espnet2.bin.asr_inference import Speech2Text
        weights = {} if lm is None else {"lm_weight": lm_weight}
        search = {"beam_size": size, "nbest": size, "ctc_weight": ctc_weight, "penalty": penalty}
        self._search: Any = Speech2Text(**files, **search, **weights, device=device)
        scorers = getattr(self._search.beam_search, "scorers", {})
        self.lm: Any = scorers.get("lm")
        self._ctc_weight = ctc_weight
        self.rate = _rate(self._search.asr_train_args)
        LOG.info(f"{checkpoint}: {self.rate} samples a second")

    def __call__(self, samples: np.ndarray) -> List[Hypothesis]:
        """Hypotheses of a recording, the best first.

        `am_score` is the weighted sum of decoder and CTC (or a transducer's score), `lm_score` the
        LM's ln P; `decoder_score` and `ctc_score` stand beside them.
        """
        return [self._hypothesis(*found) for found in self._search(samples)]

    def set_weights(self, **weights: float) -> None:
        """Set weights of the search's parts, such as `lm` and `length_bonus`, that are not 0."""
        own = self._search.beam_search.weights
        own.update({name: value for name, value in weights.items() if name in own})

    def with_tokens(self, samples: np.ndarray) -> Dict[Tuple[int, ...], Hypothesis]:
        """Hypotheses of a recording by their tokens, the best first."""
        return {tuple(found[2]): self._hypothesis(*found) for found in self._search(samples)}

    def _hypothesis(self, text: Optional[str], tokens: Any, ids: Any, hyp: Any) -> Hypothesis:
        # a hypothesis that had to end may hold the end as a word
        words = tuple(word for word in (text or "").split() if word != ENDS)
        parts = {name: float(score) for name, score in getattr(hyp, "scores", {}).items()}
        if not parts:
            return Hypothesis(words, float(hyp.score))
        weights = {"decoder": 1.0 - self._ctc_weight, "ctc": self._ctc_weight}
        am_score = sum(weight * parts.get(name, 0.0) for name, weight in weights.items())
        apart = {f"{name}_score": parts[name] for name in weights if name in parts}
        return Hypothesis(words, am_score, parts.get("lm"), extra=apart)


def _rate(args: Any) -> int:
    """Samples a second of a recogniser's training, `16000` or `16k`."""
    rate = (getattr(args, "frontend_conf", None) or {}).get("fs", 16000)
    text = str(rate).lower()
    return int(float(text[:-1]) * 1000) if text.endswith("k") else int(rate)


class WhisperSearch:
    """A Whisper model with its beam search.

    Args:
        model: Folder of the model, or its name where the hub's files are in the cache.
        size: Hypotheses of a list, at most, and the beam.
    """

    def __init__(self, model: PathLike, *, language: str, size: int, device: str = "cpu"):
        import torch

        package = _imported("transformers", "'espnet_bayeslm[pretrained]'")
        try:
            self._processor, self._model = (
                loaded.from_pretrained(model, local_files_only=True)
                for loaded in (package.WhisperProcessor, package.WhisperForConditionalGeneration)
            )
        except (OSError, ValueError) as error:
            problem = f"no Whisper model that can be read ({str(error).splitlines()[0]})"
            remedy = "Give the folder of its config.json, weights and tokenizer."
            raise InputError(problem, path=model, remedy=remedy) from error
        self._model.eval().requires_grad_(False).to(device)
        self._size = size
        self.rate = self._processor.feature_extractor.sampling_rate
        self.max_seconds = float(self._processor.feature_extractor.chunk_length)
        chosen: Dict[str, str] = {}
        if getattr(self._model.generation_config, "is_multilingual", False):
            chosen = {"language": language, "task": "transcribe"}
        try:
            forced: List[Tuple[int, int]] = self._processor.get_decoder_prompt_ids(**chosen)
        except ValueError as error:
            raise InputError(f"--language {language}: {error}") from error
        start = self._model.config.decoder_start_token_id
        # tokens that a transcription begins with, (1, P)
        self._prompt = torch.tensor([[start, *(token for _, token in forced)]], device=device)

    def __call__(self, samples: np.ndarray) -> List[Hypothesis]:
        """Hypotheses of a recording, each text once; `am_score` is ln P.

        The order is that of the beam search, by ln P per token.
        """
        from transformers import GenerationMixin

        features = self._processor(samples, sampling_rate=self.rate, return_tensors="pt")
        features = features.input_features.to(self._prompt.device)
        room = self._model.config.max_target_positions - self._prompt.shape[1]
        # Whisper's own `generate` returns copies of the best hypothesis in place of the others
        found = GenerationMixin.generate(
            self._model,
            features,
            decoder_input_ids=self._prompt,
            num_beams=self._size,
            num_return_sequences=self._size,
            max_new_tokens=room,
            do_sample=False,
        )
        texts = self._processor.batch_decode(found, skip_special_tokens=True)
        log_probs: Dict[Tuple[str, ...], float] = {}
        for text, log_prob in zip(texts, self._log_probs(features, found), strict=True):
            words = tuple(text.split())
            log_probs[words] = float(np.logaddexp(log_probs.get(words, -np.inf), log_prob))
        return list(itertools.starmap(Hypothesis, log_probs.items()))

    def _log_probs(self, features: torch.Tensor, tokens: torch.Tensor) -> List[float]:
        """Log-probabilities of sequences after the prompt, their ends included; (N, L) -> N."""
        hidden = self._model.get_encoder()(features)[0].expand(len(tokens), -1, -1)
        logits = self._model(encoder_outputs=(hidden,), decoder_input_ids=tokens[:, :-1]).logits
        size = self._prompt.shape[1]
        said, logits = tokens[:, size:], logits[:, size - 1 :]
        log_probs = logits.float().log_softmax(-1).gather(-1, said.unsqueeze(-1)).squeeze(-1)
        ends = said == self._model.config.eos_token_id
        counted = (ends.cumsum(-1) - ends.long()) == 0  # after the first end there is padding
        return (log_probs * counted).sum(-1).tolist()
