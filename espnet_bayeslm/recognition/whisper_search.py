"""Whisper's beam search, through `transformers`, with ln P of each hypothesis."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import torch

from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike


class WhisperSearch:
    """A Whisper model with its beam search.

    Args:
        model: Folder of the model, or its name where the hub's files are in the cache.
        size: Hypotheses of a list, at most, and the beam.

    Raises:
        InputError: transformers is missing, or the model cannot be read, or has no such language.
    """

    def __init__(self, model: PathLike, *, language: str, size: int, device: str = "cpu"):
        try:
            from transformers import WhisperForConditionalGeneration, WhisperProcessor
        except ImportError:
            raise InputError(
                "Whisper needs transformers, which is not installed",
                remedy="Run: pip install 'espnet_bayeslm[pretrained]'",
            ) from None
        try:
            self._processor: Any = WhisperProcessor.from_pretrained(model, local_files_only=True)
            self._model: Any = WhisperForConditionalGeneration.from_pretrained(
                model, local_files_only=True
            )
        except (OSError, ValueError) as error:
            problem = str(error).splitlines()[0]
            raise InputError(
                f"no Whisper model that can be read ({problem})",
                path=model,
                remedy="Give the folder of its config.json, weights and tokenizer.",
            ) from error
        self._model.eval().to(device)
        self._device, self._size = device, size
        self.rate = self._processor.feature_extractor.sampling_rate
        self.max_seconds = float(self._processor.feature_extractor.chunk_length)
        chosen: Dict[str, str] = {}
        if getattr(self._model.generation_config, "is_multilingual", False):
            chosen = {"language": language, "task": "transcribe"}
        try:
            forced: List[Tuple[int, int]] = self._processor.get_decoder_prompt_ids(**chosen)
        except ValueError as error:
            raise InputError(f"--language {language}: {error}") from error
        # tokens that a transcription begins with, (1, P)
        start = [self._model.config.decoder_start_token_id, *(token for _, token in forced)]
        self._prompt = torch.tensor([start], device=device)

    @torch.no_grad()
    def __call__(self, samples: np.ndarray) -> List[Hypothesis]:
        """Hypotheses of a recording, the best first, each text once; `am_score` is ln P."""
        from transformers import GenerationMixin

        features = self._processor(samples, sampling_rate=self.rate, return_tensors="pt")
        features = features.input_features.to(self._device)
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
        hypotheses: Dict[Tuple[str, ...], Hypothesis] = {}
        for text, score in zip(texts, self._log_probs(features, found), strict=True):
            words = tuple(text.split())
            hypotheses.setdefault(words, Hypothesis(words, score))
        return list(hypotheses.values())

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
