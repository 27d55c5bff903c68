#!/usr/bin/env python3
"""Trains the LMs of a table that are not yet trained: a seed, a size, a share of the text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import yaml
from configs import (
    check_size,
    half_config,
    has_point_prior,
    line_config,
    search_config,
    write_config,
)
from lines import MIXTURE, SEARCHED, Line, read_table
from stages import need

from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError

BEST = "valid.loss.ave.pth"


class Trainer:
    """Trains LMs into the folders of one seed; what is there already is left alone.

    Args:
        data: The recipe's data folder.
        train: Folder of the training text, `text` and `text.plain`.
        stats: Folder of the statistics, with those of that text.
        exp: Where the LMs go, a folder each.
        size: Their size.
        seed: Of ESPnet's training.
        valid: The validation text, Kaldi text.
        passes: How often an epoch goes through the text.
        options: More options of `espnet2.bin.lm_train`.
    """

    def __init__(
        self,
        *,
        data: Path,
        train: Path,
        stats: Path,
        exp: Path,
        size: str,
        seed: int,
        valid: Path,
        passes: float,
        options: Sequence[str],
    ):
        check_size(size)
        self.data, self.train_folder, self.exp, self.size = data, train, exp, size
        self.seed, self.passes, self.options = seed, passes, list(options)
        self.valid = valid
        self.shapes = [stats / name / "text_shape.word" for name in ("train", "valid")]
        need({train / "text": 1, self.valid: 1, **dict.fromkeys(self.shapes, 2)})

    def line(self, line: Line) -> None:
        """Train a line's LM, and before it what it needs."""
        half = self._half(line.lm)
        if line.kind == "point":
            self._fit(line.name, line_config(self.size, line), half)
            return
        point = Line(line.table, 0, line.lm, "point", "-")
        self.line(point)
        searched = self._search(line, half) if line.where == SEARCHED else None
        config = line_config(self.size, line, searched)
        self._fit(line.name, config, half, prior=self._prior(line))

    def _prior(self, line: Line) -> Optional[Path]:
        return self.exp / line.base / BEST if has_point_prior(line) else None

    def _half(self, lm: str) -> Path:
        name = f"half_{lm}"
        self._fit(name, half_config(self.size, lm))
        return self.exp / name

    def _fit(
        self,
        name: str,
        config: Dict[str, Any],
        start: Optional[Path] = None,
        prior: Optional[Path] = None,
    ) -> None:
        """Train an LM, or go on with a training that was stopped, unless it is complete.

        Raises:
            InputError: The folder has an LM of another configuration.
        """
        from espnet_bayeslm.bin import lm_train

        folder = self.exp / name
        path = folder / "train.yaml"
        config = {**config, "seed": self.seed}
        if path.exists() and yaml.safe_load(path.read_text(encoding="utf-8")) != config:
            raise InputError(
                "was trained with another configuration",
                path=folder,
                remedy="Remove the folder, or choose another --exp.",
            )
        if (folder / BEST).exists():
            return
        write_config(config, path)
        logging.info(f"Training {folder}")
        words = ["--config", path, "--output_dir", folder, "--resume", "true", *self._inputs()]
        if start is not None:
            words += ["--init_param", start / BEST]
        if prior is not None:
            words += ["--model_conf", f"prior={prior}"]
        lm_train.main([str(word) for word in [*words, *self._epoch(config), *self.options]])

    def _epoch(self, config: Mapping[str, Any]) -> Iterator[object]:
        """Yield ESPnet's option for epochs of more or less than one pass."""
        from espnet_bayeslm.training.task import count_tokens

        if self.passes != 1:
            words = count_tokens([str(self.shapes[0])])
            batches = words / config["batch_bins"]
            yield from ("--num_iters_per_epoch", max(1, round(self.passes * batches)))

    def _inputs(self) -> Iterator[object]:
        """Yield ESPnet's options for the texts."""
        tokens = self.data / "token_list" / "word" / "tokens.txt"
        yield from ("--token_type", "word", "--token_list", tokens, "--use_preprocessor", "true")
        yield from ("--fold_length", 150)
        texts = (self.train_folder / "text", self.valid)
        for name, text, shape in zip(("train", "valid"), texts, self.shapes, strict=True):
            yield from (f"--{name}_data_path_and_name_and_type", f"{text},text,text")
            yield from (f"--{name}_shape_file", shape)

    def _search(self, line: Line, half: Path) -> Dict[str, str]:
        """Return `uncertainty` of the architecture that the search ranks as the line wants."""
        from espnet_bayeslm.bin import search

        folder = self.exp / f"search_{line.lm}_{line.kind}"
        best = folder / f"top{line.options['nas']}.yaml"
        if not best.exists():
            path = self.exp / f"{folder.name}.yaml"
            write_config(search_config(self.size, line), path)
            plain = self.exp / "valid.plain"
            with open(self.valid, encoding="utf-8") as f, open(plain, "w", encoding="utf-8") as g:
                g.writelines(row.split(" ", 1)[1] for row in f)
            words = ["--config", path, "--exp", folder, "--from", half, "--seeds", self.seed]
            words += ["--train_text", self.train_folder / "text.plain", "--valid_text", plain]
            prior = self._prior(line)
            words += [] if prior is None else ["--model_conf", f"prior={prior}"]
            epoch = self._epoch(search_config(self.size, line))
            search.main([str(word) for word in [*words, *epoch, *self.options]])
        return dict(yaml.safe_load(best.read_text(encoding="utf-8"))["lm_conf"]["uncertainty"])


def chosen(
    lines: Sequence[Line], lm: str, only: Sequence[str], seed: int, *, mixtures: bool = False
) -> List[Line]:
    """Return the lines of one backbone (`both`: all), of some names (none: all), of this seed.

    Those that only mix others' LMs are left out, unless `mixtures` says otherwise.

    Raises:
        InputError: No line has one of the names.
    """
    known = [line.name for line in lines]
    for name in only:
        if name not in known:
            raise InputError(f"--only {name}: no line of the table; it has {', '.join(known)}")
    return [
        line
        for line in lines
        if (mixtures if line.kind == MIXTURE else lm in ("both", line.lm))
        and (not only or line.name in only)
        and int(line.options.get("seed", seed)) == seed
    ]


def train(
    table: str,
    size: str,
    seed: int,
    lm: str,
    only: Sequence[str],
    data: str,
    train_text: str,
    stats: str,
    exp: str,
    valid_text: str,
    passes: float,
    lm_args: str,
) -> None:
    """Train what the table's lines need."""
    trainer = Trainer(
        data=Path(data),
        train=Path(train_text),
        stats=Path(stats),
        exp=Path(exp),
        size=size,
        seed=seed,
        valid=Path(valid_text),
        passes=passes,
        options=lm_args.split(),
    )
    for line in chosen(read_table(table), lm, only, seed):
        trainer.line(line)


def get_parser() -> Any:
    """Return the parser of this script."""
    parser = tool_parser("train", __doc__.splitlines()[0])
    parser.prog = "local/train.py"
    parser.add_argument("--table", default="main", help="Which table's lines")
    parser.add_argument("--size", default="small", help="Size of the LMs")
    parser.add_argument("--seed", type=int, default=1, help="Of ESPnet's training")
    parser.add_argument("--lm", default="both", choices=["lstm", "transformer", "both"])
    parser.add_argument("--only", nargs="*", default=[], help="Only the lines of these names")
    parser.add_argument("--data", default="data", help="Folder of the recipe's data")
    parser.add_argument("--train_text", default="data/train", help="Folder of the training text")
    parser.add_argument("--stats", default="exp/lm_stats", help="Statistics of that text")
    parser.add_argument("--exp", default="exp/small/seed1", help="Where the LMs go")
    parser.add_argument("--valid_text", default="data/dev/text.known", help="Validation text")
    parser.add_argument(
        "--passes", type=float, default=1.0, help="How often an epoch goes through the text"
    )
    parser.add_argument("--lm_args", default="", help="More options of espnet2.bin.lm_train")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Train."""
    run_tool(get_parser(), train, cmd)


if __name__ == "__main__":
    main()
