"""Whisper through `transformers`, whose beam search has ln P of hypotheses."""

from __future__ import annotations

import hashlib
import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.evaluation.normalization import AS_IT_IS, Normalization
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.recognisers.recordings import installed
from espnet_bayeslm.rescoring.near_texts import NearTexts, with_phrases
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write
from espnet_bayeslm.utils.log import LOG

if TYPE_CHECKING:
    import torch

FEWEST_TOKENS = 8
"""Tokens that a hypothesis may have beside those of `token_rate`."""
TOKEN_RATE = 4.0
"""Tokens of a hypothesis for each second; fluent English has three."""


class WhisperSearch:
    """A Whisper model with its beam search.

    Args:
        model: Folder of the model, or its name where the hub's files are in the cache.
        language: Language of a multilingual model; None: English.
        size: Hypotheses of a list, at most, and the beam.
        token_rate: Tokens of a hypothesis for each second, at most, beside a few.
        normalization: Hypotheses that are one text after it are one.
        encoded: Folder that keeps the encoder's outputs, so that another search of a recording does
            not encode it again; None: they are not kept.
        device: Device of the weights.

    Attributes:
        lm: `WordFusion` of the search, to be set; None: there is none.
        near_texts: Further texts that are scored, to be set; None: there are none.
        tokenizer: The model's tokenizer.
    """

    def __init__(
        self,
        model: PathLike,
        *,
        language: Optional[str] = None,
        size: int,
        token_rate: float = TOKEN_RATE,
        normalization: Normalization = AS_IT_IS,
        encoded: Optional[PathLike] = None,
        device: str = "cpu",
    ):
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
        self._size, self._token_rate, self._normalization = size, token_rate, normalization
        self._kept = None if encoded is None else Path(encoded)
        self._weights = b"" if encoded is None else _digest(self._model.get_encoder())
        self.lm: Any = None
        self.near_texts: Optional[NearTexts] = None
        self.tokenizer = self._processor.tokenizer
        self.rate = self._processor.feature_extractor.sampling_rate
        self.max_seconds = float(self._processor.feature_extractor.chunk_length)
        chosen: Dict[str, str] = {}
        if getattr(self._model.generation_config, "is_multilingual", False):
            chosen = {"language": language or "en", "task": "transcribe"}
        try:
            forced: List[Tuple[int, int]] = self._processor.get_decoder_prompt_ids(**chosen)
        except ValueError as error:
            raise InputError(f"--language {language}: {error}") from error
        start = self._model.config.decoder_start_token_id
        # tokens that a transcription begins with, (1, P)
        self._prompt = torch.tensor([[start, *(token for _, token in forced)]], device=device)

    def __call__(self, samples: np.ndarray, bias: Optional[BiasList] = None) -> List[Hypothesis]:
        """Hypotheses of a recording, each text once, in the order of their totals.

        `am_score` is ln P of the text. With LMs and bias lists `lm_score` is ln P of its words, and
        `bias_score` the weight of its phrases.

        Args:
            samples: The recording.
            bias: Its bias list, normalised, where `lm` takes any.
        """
        hidden = self._encoded(samples)
        if self.lm is not None:
            self.lm.set_bias(None if bias is None else [bias])
        room = self._model.config.max_target_positions - self._prompt.shape[1]
        limit = FEWEST_TOKENS + math.ceil(self._token_rate * len(samples) / self.rate)
        tokens = self._searched(hidden, min(limit, room))
        ended = (tokens[:, self._prompt.shape[1] :] == self._model.config.eos_token_id).any(-1)
        if ended.any():
            tokens = tokens[ended]
        elif limit < room:
            LOG.warning(
                f"no hypothesis of a recording of {len(samples) / self.rate:.1f} s ends within"
                f" {limit} tokens. If its text has more, give a higher --token_rate."
            )
        log_probs = self._log_probs(hidden, tokens)
        texts = self._processor.batch_decode(tokens, skip_special_tokens=True)
        found = self._hypotheses(texts, log_probs)
        if self.near_texts is None or bias is None:
            return found
        near = self.near_texts(found, bias)
        if not near:
            return found
        written = [f" {' '.join(words)}" for words in near]
        log_probs += self._log_probs(hidden, self._tokens_of(written))
        made_of = {" ".join(words): phrases for words, phrases in near.items()}
        return [
            with_phrases(hyp, made_of[text]) if text in made_of else hyp
            for hyp in self._hypotheses([*texts, *written], log_probs)
            for text in (" ".join(hyp.words),)
        ]

    def _tokens_of(self, texts: Sequence[str]) -> torch.Tensor:
        """Prompt, tokens and end of texts, (N, L), with ends in place of what is missing."""
        import torch

        end = self._model.config.eos_token_id
        rows = self.tokenizer(texts, add_special_tokens=False).input_ids
        size = 1 + max(map(len, rows))
        ids = [[*self._prompt[0].tolist(), *row, *[end] * (size - len(row))] for row in rows]
        return torch.tensor(ids, device=self._prompt.device)

    def _encoded(self, samples: np.ndarray) -> torch.Tensor:
        """Output of the encoder, (1, T, D), from its file where outputs are kept."""
        import torch

        if self._kept is None:
            return self._encode(samples)
        path = self._kept / f"{hashlib.sha256(self._weights + samples.tobytes()).hexdigest()}.npy"
        if path.exists():
            kept = torch.from_numpy(np.load(path))
            return kept.to(self._prompt.device, self._model.dtype)
        hidden = self._encode(samples)
        with atomic_write(path, "wb") as file:
            np.save(file, hidden.float().cpu().numpy())
        return hidden

    def _encode(self, samples: np.ndarray) -> torch.Tensor:
        """Run the encoder."""
        features = self._processor(samples, sampling_rate=self.rate, return_tensors="pt")
        encode = self._model.get_encoder()
        hidden: torch.Tensor = encode(features.input_features.to(self._prompt.device))[0]
        return hidden

    def _hypotheses(self, texts: Sequence[str], log_probs: Sequence[float]) -> List[Hypothesis]:
        """Hypotheses of token sequences, as the likeliest sequence writes each text."""
        found: Dict[Tuple[str, ...], Tuple[str, float]] = {}
        for log_prob, text in sorted(zip(log_probs, texts, strict=True), reverse=True):
            words = tuple(self._normalization.words(text.split()))
            written, known = found.get(words, (text, -np.inf))
            found[words] = written, float(np.logaddexp(known, log_prob))
        rows = [self._scored(text, log_prob) for text, log_prob in found.values()]
        return [hypothesis for _, hypothesis in sorted(rows, key=lambda row: -row[0])]

    def _scored(self, text: str, log_prob: float) -> Tuple[float, Hypothesis]:
        """Total of a text, and the hypothesis."""
        words = tuple(text.split())
        if self.lm is None:
            return log_prob, Hypothesis(words, log_prob)
        score = self.lm.text_score(text)
        extra = {"bias_score": score.bias_score} if self.lm.has_bias else {}
        return log_prob + score.total, Hypothesis(words, log_prob, score.lm_score, extra=extra)

    def _searched(self, hidden: torch.Tensor, max_tokens: int) -> torch.Tensor:
        """Token sequences that a beam search finds with the prompt, (N, L).

        Args:
            hidden: Output of the encoder, (1, T, D).
            max_tokens: Tokens of a hypothesis, at most.
        """
        from transformers import GenerationMixin
        from transformers.modeling_outputs import BaseModelOutput

        size = max(self._size, 2)  # one is no beam
        # Whisper's own `generate` returns copies of the best hypothesis in place of the others
        found: torch.Tensor = GenerationMixin.generate(
            self._model,
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            decoder_input_ids=self._prompt,
            num_beams=size,
            num_return_sequences=self._size,
            max_length=self._prompt.shape[1] + max_tokens,
            length_penalty=0.0,
            do_sample=False,
            logits_processor=[] if self.lm is None else [self.lm],
            **self._heard(hidden, size),
        )
        return found

    def _log_probs(self, hidden: torch.Tensor, tokens: torch.Tensor) -> List[float]:
        """Log-probabilities of sequences after the prompt, their ends included; (N, L) -> N."""
        size, count = self._prompt.shape[1], len(tokens)
        logits = self._model(
            encoder_outputs=(hidden.expand(count, -1, -1),),
            decoder_input_ids=tokens[:, :-1],
            **self._heard(hidden, count),
        ).logits
        said, logits = tokens[:, size:], logits[:, size - 1 :]
        log_probs = logits.float().log_softmax(-1).gather(-1, said.unsqueeze(-1)).squeeze(-1)
        ends = said == self._model.config.eos_token_id
        counted = (ends.cumsum(-1) - ends.long()) == 0  # after the first end there is padding
        return (log_probs * counted).sum(-1).tolist()

    def _heard(self, hidden: torch.Tensor, count: int) -> Dict[str, Any]:
        """Keys and values of the attention to a recording, once for all of its hypotheses.

        `generate` would compute them for each hypothesis, and copy them at each step.

        Args:
            hidden: Output of the encoder, (1, T, D).
            count: Number of hypotheses.
        """
        from transformers import DynamicCache, EncoderDecoderCache

        said, heard = DynamicCache(), DynamicCache()
        if not hasattr(heard, "layers"):  # transformers before 4.54
            return {}
        for n, layer in enumerate(self._model.get_decoder().layers):
            attention = layer.encoder_attn
            shape = 1, -1, attention.num_heads, attention.head_dim
            projections = attention.k_proj, attention.v_proj
            pair = [project(hidden).view(shape).transpose(1, 2) for project in projections]
            heard.update(*pair, n)
            own: Any = heard.layers[n]
            own.keys, own.values = (part.expand(count, -1, -1, -1) for part in pair)
        cache: Any = EncoderDecoderCache(said, heard)
        cache.reorder_cache = said.reorder_cache
        options = inspect.signature(self._model.forward).parameters
        return {"cache" if "cache" in options else "past_key_values": cache}


def _digest(model: torch.nn.Module) -> bytes:
    """Digest of a model's weights."""
    found = hashlib.sha256()
    for name, weights in model.state_dict().items():
        found.update(name.encode())
        found.update(weights.float().cpu().numpy().tobytes())
    return found.digest()
