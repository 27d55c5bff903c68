"""ESPnet's beam search, whose decoder, CTC and LM scores are written apart."""

from __future__ import annotations

import logging
from typing import Any, List, Optional

import numpy as np

from espnet_bayeslm import register
from espnet_bayeslm.loading.experiment import find_files, token_difference
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_mapping
from espnet_bayeslm.utils.quiet import quiet_imports

ASR_FILES = ("valid.acc.ave.pth", "valid.acc.best.pth", "valid.loss.ave.pth", "valid.loss.best.pth")
ENDS = "<sos/eos>"


class BeamSearch:
    """A recogniser of ESPnet's, with its beam search.

    Args:
        model: The experiment's folder, or a checkpoint beside its config.yaml.
        lm: An LM of ESPnet's or ours for the search.
        lm_weight: Its weight.
        ctc_weight: The weight of CTC; the decoder has the rest.
        size: Hypotheses of a list, at most, and the beam.

    Raises:
        InputError: Files are missing, the LM has other tokens, or the recogniser cannot tell the
            LM's scores apart.
    """

    def __init__(
        self,
        model: PathLike,
        *,
        lm: Optional[PathLike] = None,
        lm_weight: float,
        ctc_weight: float,
        size: int,
        device: str = "cpu",
    ):
        config, checkpoint = find_files(model, ASR_FILES)
        files = {"asr_train_config": str(config), "asr_model_file": str(checkpoint)}
        trained = read_yaml_mapping(config)
        if lm is not None:
            lm_config, lm_checkpoint = find_files(lm)
            files.update(lm_train_config=str(lm_config), lm_file=str(lm_checkpoint))
            ours, theirs = (x.get("token_list") for x in (read_yaml_mapping(lm_config), trained))
            if ours != theirs:
                raise InputError(
                    token_difference(ours or [], theirs or [], whose=str(config)),
                    path=lm_config,
                    remedy="Train the LM with the recogniser's tokens.",
                )
            if trained.get("decoder") == "transducer":
                raise InputError(
                    "--lm, and a transducer's search does not tell its scores apart",
                    path=lm,
                    remedy="Leave it out, and rescore the lists with it.",
                )
        register()
        with quiet_imports():
            from espnet2.bin.asr_inference import Speech2Text
        weights = {} if lm is None else {"lm_weight": lm_weight}
        search = {"beam_size": size, "nbest": size, "ctc_weight": ctc_weight, **weights}
        self._search: Any = Speech2Text(**files, **search, device=device)
        self._ctc_weight = ctc_weight
        self.rate = _rate(self._search.asr_train_args)
        logging.info(f"{checkpoint}: {self.rate} samples a second")

    def __call__(self, samples: np.ndarray) -> List[Hypothesis]:
        """Hypotheses of a recording, the best first.

        `am_score` is the weighted sum of decoder and CTC (or a transducer's score), `lm_score` the
        LM's ln P; `decoder_score` and `ctc_score` stand beside them.
        """
        return [self._hypothesis(*found) for found in self._search(samples)]

    def _hypothesis(self, text: Optional[str], tokens: Any, ids: Any, hyp: Any) -> Hypothesis:
        """Hypothesis of one of ESPnet's results."""
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
