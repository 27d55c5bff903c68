"""Training of a table's LMs that are not yet trained: a seed, a size, a share of the text."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import yaml

from espnet_bayeslm.utils.cli import command_file
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text, write_yaml
from lab.paper import SEARCHED, Line, Tables
from lab.plan import has_point_prior, point_of
from lab.texts import need, token_list

BEST = "valid.loss.ave.pth"
# Runs a command line of `bayeslm`.
Run = Callable[[Sequence[str]], None]


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder of trainings and what they read.

    Attributes:
        exp: Where the LMs go, a folder each.
        seed: Of ESPnet's training.
        text: Folder of the training text, `text` and `text.plain`.
        valid: The validation text, Kaldi text.
        stats: Folder of the statistics of both.
        ngram: The n-gram of the training text.
        passes: Passes through the text in an epoch.
        backbones: Backbones of the LMs that are trained here.
        options: More options of `espnet2.bin.lm_train`.
    """

    exp: Path
    seed: int
    text: Path
    valid: Path
    stats: Path
    ngram: Path
    passes: float = 1.0
    backbones: Tuple[str, ...] = ("lstm", "transformer")
    options: Tuple[str, ...] = ()


class Trainer:
    """Trains LMs into one folder; what is there already is left alone.

    Args:
        tables: Tables of the lines, with their sizes.
        size: The size.
        data: The corpus's data folder.
        place: The folder.
        run: Runs command lines of `bayeslm`.
    """

    def __init__(self, tables: Tables, size: str, data: Path, place: Place, run: Run):
        self.tables, self.size, self.data, self.place, self.run = tables, size, data, place, run
        self.exp = place.exp
        self.shapes = [place.stats / name / "text_shape.word" for name in ("train", "valid")]
        need({place.text / "text": 1, place.valid: 1, **dict.fromkeys(self.shapes, 2)})

    def line(self, line: Line) -> None:
        """Train a line's LM, and before it what it needs."""
        half = self.exp / f"half_{line.lm}"
        self._fit(half.name, self.tables.half(self.size, line.lm))
        if line.kind == "point":
            self._fit(line.name, self.tables.config(self.size, line), half)
            return
        self.line(Line(line.table, 0, line.lm, "point"))
        searched = self._search(line, half) if line.where == SEARCHED else None
        config = self.tables.config(self.size, line, where=searched)
        self._fit(line.name, config, half, prior=self._prior(line))

    def _prior(self, line: Line) -> Optional[Path]:
        return self.exp / point_of(line) / BEST if has_point_prior(line) else None

    def _fit(
        self,
        name: str,
        config: Dict[str, Any],
        start: Optional[Path] = None,
        prior: Optional[Path] = None,
    ) -> None:
        """Train an LM, or go on with a training that was stopped, unless it is complete."""
        folder = self.exp / name
        path = folder / "train.yaml"
        config = {**config, "seed": self.place.seed}
        if path.exists() and yaml.safe_load(path.read_text(encoding="utf-8")) != config:
            raise InputError(
                "was trained with another configuration",
                path=folder,
                remedy="Remove the folder, or choose another --expdir.",
            )
        if (folder / BEST).exists():
            return
        write_yaml(path, config)
        logging.info(f"Training {folder}")
        words = ["--config", path, "--output_dir", folder, "--resume", "true", *self._inputs()]
        if start is not None:
            words += ["--init_param", start / BEST]
        if prior is not None:
            words += ["--model_conf", f"prior={prior}"]
        words += [*self._epoch(config), *self.place.options]
        command = ["lm_train", *map(str, words)]
        self.run(command)
        write_text(command_file(folder), shlex.join(["bayeslm", *command]) + "\n")

    def _epoch(self, config: Mapping[str, Any]) -> Iterator[object]:
        """ESPnet's option for epochs of more or less than one pass."""
        from espnet_bayeslm.training.batches import count_tokens

        if self.place.passes != 1:
            words = count_tokens([str(self.shapes[0])])
            batches = words / config["batch_bins"]
            yield from ("--num_iters_per_epoch", max(1, round(self.place.passes * batches)))

    def _inputs(self) -> Iterator[object]:
        """ESPnet's options for the texts."""
        yield from ("--token_type", "word", "--token_list", token_list(self.data))
        yield from ("--use_preprocessor", "true", "--fold_length", 150)
        texts = (self.place.text / "text", self.place.valid)
        for name, text, shape in zip(("train", "valid"), texts, self.shapes, strict=True):
            yield from (f"--{name}_data_path_and_name_and_type", f"{text},text,text")
            yield from (f"--{name}_shape_file", shape)

    def _search(self, line: Line, half: Path) -> Dict[str, str]:
        """`uncertainty` of the architecture that the search ranks as the line wants."""
        folder = self.exp / f"search_{line.lm}_{line.kind}"
        best = folder / f"top{line.options['nas']}.yaml"
        if not best.exists():
            path = self.exp / f"{folder.name}.yaml"
            config = self.tables.search(self.size, line)
            write_yaml(path, config)
            plain = self.exp / "valid.plain"
            rows = self.place.valid.read_text(encoding="utf-8").splitlines(keepends=True)
            plain.write_text("".join(row.split(" ", 1)[1] for row in rows), encoding="utf-8")
            words = ["--config", path, "--exp", folder, "--from", half, "--seeds", self.place.seed]
            words += ["--train_text", self.place.text / "text.plain", "--valid_text", plain]
            prior = self._prior(line)
            words += [] if prior is None else ["--model_conf", f"prior={prior}"]
            words += [*self._epoch(config), *self.place.options]
            self.run(["search", *map(str, words)])
        return dict(yaml.safe_load(best.read_text(encoding="utf-8"))["lm_conf"]["uncertainty"])
