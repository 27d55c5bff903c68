"""Options of `bayeslm train`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Optional, Sequence

from espnet_bayeslm.configs import SIZES
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import ToolOptions, described_fields, option

GROUP = "tokens and start"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions(ToolOptions):
    """Texts of a training."""

    train_text: Path = option("Training text, a sentence a line")
    valid_text: Path = option("Validation text, a sentence a line")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenOptions(ToolOptions):
    """Where an LM's tokens come from: a trained LM, a recogniser, files, or the training text."""

    token_type: Optional[str] = option(
        "Default: word", None, choices=("word", "bpe", "char"), group=GROUP
    )
    vocab_size: Optional[int] = option("Default: all words, or 5000 BPE pieces", None, group=GROUP)
    token_list: Optional[Path] = option("Take these tokens, a file as ESPnet's", None, group=GROUP)
    bpemodel: Optional[Path] = option("The sentencepiece model of --token_list", None, group=GROUP)
    asr_exp: Optional[Path] = option(
        "An ESPnet recogniser: take the tokens, and the BPE model, of its config.yaml",
        None,
        group=GROUP,
    )
    source: Optional[Path] = option(
        "A trained point-estimate LM: its tokens, the starting point, and the prior where the"
        " configuration chooses none (model_conf: prior); for `lm: bayes_espnet` also the"
        " backbone, if it is one of ESPnet's own LMs",
        None,
        name="from",
        group=GROUP,
    )

    def check(self) -> None:
        """Raise an InputError where options contradict each other."""
        fields = described_fields(TokenOptions).items()
        given = [f"--{name}" for name, field in fields if getattr(self, field.name) is not None]
        for owner in ("--from", "--asr_exp"):
            if owner in given and len(given) > 1:
                others = " and ".join(word for word in given if word != owner)
                raise InputError(f"{owner} brings its own tokens", remedy=f"Leave out {others}.")
        if self.bpemodel is not None and self.token_list is None:
            raise InputError(
                "--bpemodel without --token_list",
                remedy="Give both, or --asr_exp DIR, which takes both from a recogniser.",
            )
        if self.token_list is not None and self.vocab_size is not None:
            raise InputError("--token_list has its own size", remedy="Leave out --vocab_size.")
        if self.token_list is not None and (self.token_type == "bpe") > (self.bpemodel is not None):
            raise InputError("--token_type bpe needs the list's model", remedy="Give --bpemodel.")
        if self.bpemodel is not None and self.token_type not in (None, "bpe"):
            raise InputError(f"--bpemodel with --token_type {self.token_type}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(TokenOptions, TextOptions):
    """Options of `bayeslm train`; `espnet_options` are more options of `espnet2.bin.lm_train`."""

    config: Path = option("ESPnet's training configuration: a file, or a name of `bayeslm configs`")
    size: Optional[str] = option(
        "The sizes of bayes_lstm or bayes_transformer. Default: those of --from, else of"
        " --config; a shipped configuration has the paper's",
        None,
        choices=tuple(SIZES),
    )
    base: Optional[str] = option(
        "Base model of the adapter of --from, where it is not at the path that the adapter names",
        None,
        group=GROUP,
    )
    context: Optional[int] = option(
        "For a pretrained LM: read consecutive sentences as one sequence of at most so many tokens,"
        " as --context previous of rescore presents them; a blank line begins a new recording",
        None,
        least=1,
    )
    exp: Path = option("The experiment's folder")
    espnet_options: Sequence[str] = ()
