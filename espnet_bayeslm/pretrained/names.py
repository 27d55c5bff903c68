"""Names by which `--lm` and `load` mean a pretrained LM; nothing heavy is imported."""

from __future__ import annotations

import os
from pathlib import Path

PREFIX = "hf:"
ADAPTER = "adapter_config.json"


def is_pretrained(source: object) -> bool:
    """True if `--lm` names a causal LM of `transformers` and not an experiment of ESPnet."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source)
    if str(source).startswith(PREFIX) or path.suffix.lower() == ".gguf":
        return True
    is_model = (path / "config.json").is_file() and not (path / "config.yaml").is_file()
    return (path / ADAPTER).is_file() or is_model
