"""Whisper through `transformers`, whose beam search has ln P of hypotheses."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Dict, List, Tuple

import numpy as np

from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.recognisers.recordings import installed
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    PathLike,
)

if TYPE_CHECKING:
    import torch


class WhisperSearch:
    """A Whisper model with its beam search.

    Args:
        model: Folder of the model, or its name where the hub's files are in the cache.
        size: Hypotheses of a list, at most, and the beam.
    """

    def __init__(self, model: PathLike, *, language: str, size: int, device: str = "cpu"):
        import torch

        package = installed("transformers", "'espnet_bayeslm[pretrained]'")
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
