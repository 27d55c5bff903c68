"""Command lines: a parser with --config, a log, errors of one line, and progress bars."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import math
import multiprocessing
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Tuple, Type

from espnet2.utils import config_argparse
from tqdm import tqdm

from espnet_bayeslm.utils.errors import InputError, one_line
from espnet_bayeslm.utils.files import PathLike, write_text
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import add_options, described_fields

PROGRESS = logging.getLogger("espnet_bayeslm.progress")
"""Lines for whoever waits; see `log_to`."""


def device_of(ngpu: int) -> str:
    """Torch's device for `--ngpu`."""
    if ngpu:
        import torch

        # looks without making a CUDA context: a process forked later may still make one
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        if not torch.cuda.is_available():
            raise InputError(f"--ngpu {ngpu}, and torch finds no GPU", remedy="Give --ngpu 0.")
    return "cuda" if ngpu else "cpu"


FORMAT = "%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s"


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Log and print to a file, with the lines of `PROGRESS`, within the block.

    `--log_level` applies to the terminal.
    """
    root = logging.getLogger()
    level = root.level
    on_screen = [h for h in root.handlers if getattr(h, "stream", None) is sys.stderr]

    def shown(record: logging.LogRecord) -> bool:
        return record.levelno >= level or record.name == PROGRESS.name

    path.parent.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(path, encoding="utf-8")
    file.setFormatter(logging.Formatter(FORMAT))
    root.addHandler(file)
    root.setLevel(min(level, logging.INFO))
    for handler in on_screen:
        handler.addFilter(shown)
    try:
        with contextlib.redirect_stderr(file.stream), contextlib.redirect_stdout(file.stream):
            yield
    finally:
        for handler in on_screen:
            handler.removeFilter(shown)
        root.setLevel(level)
        root.removeHandler(file)
        file.close()


class ToolFormatter(logging.Formatter):
    """Format of log lines; a line of `PROGRESS` is the message alone."""

    def format(self, record: logging.LogRecord) -> str:
        """Line of a log record."""
        return record.getMessage() if record.name == PROGRESS.name else super().format(record)


class ToolHelp(argparse.ArgumentDefaultsHelpFormatter):
    """Help with `(required)`, defaults that are not empty, and `true|false` for flags."""

    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        if action.required and action.option_strings:
            return f"{action.help} (required)"
        if action.default in (None, "", [], ()):
            return action.help
        if isinstance(action.default, bool):
            return f"{action.help} (default: {str(action.default).lower()})"
        return super()._get_help_string(action)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        if getattr(action.type, "__name__", "") == "str2bool":
            return "true|false"
        return super()._get_default_metavar_for_optional(action)


class ToolParser(config_argparse.ArgumentParser):
    """ESPnet's parser with `--config FILE.yaml`, whose values are read as the command line's."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line, whose required options may stand in the file of --config."""
        needed = [action for action in self._actions if action.required]
        for action in needed:
            action.required = False
        try:
            found, unknown = super().parse_known_args(args, namespace)
        finally:
            for action in needed:
                action.required = True
        missing = [a for a in needed if getattr(found, a.dest) in (None, [])]
        if missing:
            names = ", ".join("/".join(a.option_strings) or a.dest for a in missing)
            self.error(f"the following arguments are required: {names}")
        return found, unknown

    def set_defaults(self, **values: Any) -> None:
        """Take the values of the file of --config as defaults."""
        for action in self._actions:
            value = values.get(action.dest)
            if value is not None:
                # as the command line has them
                words = [
                    str(item).lower() if isinstance(item, bool) else str(item)
                    for item in (value if isinstance(value, list) else [value])
                ]
                repeated = isinstance(action.default, list)
                read = [self._get_value(action, word) for word in words] if repeated else []
                values[action.dest] = read or ",".join(words)
        super().set_defaults(**values)


def parse_numbers(
    option: str, text: str, kind: Callable = int, *, most: float = math.inf
) -> Tuple[Any, ...]:
    """Different numbers from 0 to `most`, with commas or blanks between them."""
    try:
        found = tuple(map(kind, str(text).replace(",", " ").split()))
    except ValueError:
        found = ()
    if not found or len({*found}) < len(found) or not 0 <= min(found) <= max(found) <= most:
        limit = f" to {most}" * math.isfinite(most)
        raise InputError(
            f"{option} {text!r}: expected numbers from 0{limit}, each once",
            remedy="Give different numbers with commas or blanks between them.",
        )
    return found


@dataclasses.dataclass(frozen=True)
class Tool:
    """Program: a function of one object, whose class `options` makes the parser.

    Without a class the function gets the options that a program adds to the parser, as keywords.
    `description` and `epilog` are the first and the last paragraph of the help. With `trains`
    `--config` and unknown options go to ESPnet's training, the latter by the field
    `espnet_options`. `stopped` ends the message after Ctrl-C. The command line is left beside the
    output that the option `signed` names.
    """

    name: str
    description: str
    function: Callable
    options: Optional[Type] = None
    trains: bool = False
    log_level: str = "INFO"
    epilog: str = ""
    stopped: str = ""
    signed: str = ""

    def parser(self) -> argparse.ArgumentParser:
        """Parser with `--config` and `--log_level`, as ESPnet's programs have them."""
        make = argparse.ArgumentParser if self.trains else ToolParser
        parser = make(
            prog=f"bayeslm {self.name}",
            description=self.description,
            epilog=self.epilog or None,
            formatter_class=ToolHelp,
            allow_abbrev=not self.trains,
        )
        parser.add_argument(
            "--log_level",
            type=str.upper,
            default=self.log_level,
            choices=("ERROR", "WARNING", "INFO", "DEBUG"),
            help="The verbose level of logging",
        )
        return parser if self.options is None else add_options(parser, self.options)

    def main(
        self,
        cmd: Optional[Sequence[str]] = None,
        parser: Optional[argparse.ArgumentParser] = None,
    ) -> None:
        """Run the tool; bad input ends in one line and status 1.

        Args:
            cmd: Command line (default: sys.argv).
            parser: What `parser` has returned, with options of a program's own.

        Raises:
            SystemExit: Status 2 for wrong options, 1 for bad input, 130 after Ctrl-C.
        """
        parser = self.parser() if parser is None else parser
        known, unknown = parser.parse_known_args(cmd)
        if unknown and not self.trains:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        values = vars(known)
        logging.basicConfig(level=values["log_level"], stream=sys.stderr)
        for handler in logging.getLogger().handlers:
            if type(handler) is logging.StreamHandler:
                handler.setFormatter(ToolFormatter(FORMAT))
        try:
            if self.options is None:
                # --config gave its values to the other options
                own = {name: values[name] for name in values if name not in ("config", "log_level")}
                self.function(**own)
            else:
                fields = described_fields(self.options)
                own = {field.name: values[name] for name, field in fields.items()}
                rest = {"espnet_options": unknown} if self.trains else {}
                self.function(self.options.of(**own, **rest))
            if self.signed and values[self.signed] is not None:
                write_text(command_file(values[self.signed]), command_line(parser, cmd) + "\n")
        except (ValueError, OSError) as error:
            LOG.debug("traceback", exc_info=True)
            parser.exit(1, f"{parser.prog}: error: {_as_line(error)}\n")
        except KeyboardInterrupt:
            parser.exit(130, f"\n{parser.prog}: stopped{self.stopped}\n")


def command_line(parser: argparse.ArgumentParser, cmd: Optional[Sequence[str]]) -> str:
    """Command line of a tool, as a shell takes it."""
    return shlex.join([*parser.prog.split(), *(sys.argv[1:] if cmd is None else cmd)])


def command_file(output: PathLike) -> Path:
    """File in a folder, or beside a file, with the command line that wrote it."""
    path = Path(output)
    return path / "command" if path.is_dir() else path.with_name(f"{path.name}.command")


def _as_line(error: Exception) -> str:
    """Message of an error, with a remedy where the operating system refuses a file."""
    if not isinstance(error, OSError) or error.filename is None:
        return one_line(str(error))
    # until an output is whole it has a name of its own, with a point before it
    folder, name = os.path.split(os.fspath(error.filename))
    place = folder if name.startswith(".") else os.fspath(error.filename)
    return (
        f"{place}: cannot be read or written ({error.strerror})."
        " Check the path, its permissions and the room there."
    )


def progress(
    iterable: Optional[Iterable] = None,
    *,
    desc: str,
    unit: str,
    total: Optional[int] = None,
    hidden: bool = False,
) -> tqdm:
    """Progress bar with rate and time left, shown after two seconds; none in a worker's process.

    Without an iterable, call `.update(n)` and `.close()`.
    """
    return tqdm(
        iterable,
        desc=desc,
        unit=unit,
        total=total,
        disable=hidden or multiprocessing.parent_process() is not None,
        dynamic_ncols=True,
        unit_scale=True,
        delay=2.0,
        mininterval=0.5 if sys.stderr.isatty() else 10.0,
    )
