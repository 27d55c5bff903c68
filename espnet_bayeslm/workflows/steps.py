"""Steps: command lines of tools, and records of the inputs with which they were run."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
import shlex
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

from espnet_bayeslm.loading.experiment import find_files, fingerprint, read_config
from espnet_bayeslm.pretrained.names import PREFIX
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import sha256, write_text
from espnet_bayeslm.utils.folders import files_in, staged

# Options that name what a tool writes, but for the experiments of a report
WRITTEN, REPORTED = (
    ("--output", "--exp", "--arpa", "--per_sentence", "--cache"),
    ("report", "--exp"),
)
# In a record, between the command lines and the digests
INPUTS = "inputs:\n"


def words(tool: str, **options: object) -> List[str]:
    """Command line of a tool; an option that has a list is repeated, None is left out."""
    line = [tool]
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            line += [] if one is None else [f"--{name}", str(one)]
    return line


@dataclasses.dataclass(frozen=True)
class Step:
    """Command lines that are run one after the other: one task.

    Attributes:
        name: Name, also of its log and its record; it may be a path.
        commands: The command lines.
        after: Names of the steps that have to be done before.
        reads: Inputs that the command lines do not name.
        processes: Processes that they start beside each other, which share the cores.
    """

    name: str
    commands: Sequence[Sequence[str]]
    after: Sequence[str] = ()
    reads: Sequence[Path] = ()
    processes: int = 1

    def then(self, step: Step) -> Step:
        """This step with the command lines of another after its own."""
        return dataclasses.replace(self, commands=[*self.commands, *step.commands])

    def needs(self, *steps: Step) -> Step:
        """This step, after others."""
        return dataclasses.replace(self, after=[*self.after, *(step.name for step in steps)])

    def script(self) -> str:
        """Command lines as a shell would take them."""
        return "".join(f"bayeslm {shlex.join(words)}\n" for words in self.commands)

    def outputs(self) -> List[Path]:
        """Files and folders that the command lines write."""
        return [path for line in self.commands for path in paths_written(line)]

    def inputs(self) -> List[Path]:
        """Files and folders that are there and are read; the step's own products are no inputs."""
        made = self.outputs()
        found = dict.fromkeys(itertools.chain(self.reads, *map(paths_read, self.commands)))
        return [path for path in found if not any(map(path.is_relative_to, made))]


def paths_written(line: Sequence[str], options: Sequence[str] = WRITTEN) -> List[Path]:
    """Files and folders that a command line writes, where these options name them."""
    pairs = itertools.pairwise(line)
    return [Path(v) for name, v in pairs if name in options and (line[0], name) != REPORTED]


def paths_read(line: Sequence[str]) -> List[Path]:
    """Files and folders that a command line names, as PATH, hf:PATH or NAME=PATH, and are there."""
    names = [
        name
        for word in line[1:]
        for name in (word, word.removeprefix(PREFIX), word.partition("=")[2])
    ]
    # a pattern may be `.`
    return [Path(n) for n in dict.fromkeys(names) if Path(n).name and os.path.exists(n)]


class Records:
    """Records of steps in a folder: NAME.begun, which is NAME.done when the step has ended well.

    A record has the command lines, and a digest of each input.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def begin(self, step: Step) -> None:
        """Note a step that begins, with the inputs as they are now."""
        rows = "".join(f"{digest} {path}\n" for path, digest in _digests(step).items())
        write_text(self._file(step, "begun"), f"{step.script()}{INPUTS}{rows}")
        self._file(step, "done").unlink(missing_ok=True)

    def finish(self, step: Step) -> None:
        """Note that a step is done."""
        self._file(step, "begun").rename(self._file(step, "done"))

    def is_done(self, step: Step) -> bool:
        """True if the command lines of a step have been run to their end, on these inputs.

        Raises:
            InputError: The step trains, has been begun, and an input has changed since.
        """
        done = self._file(step, "done")
        record = done if done.exists() else self._file(step, "begun")
        if not record.exists():
            return False
        script, _, rows = record.read_text("utf-8").partition(INPUTS)
        known = dict(row.split(" ", 1)[::-1] for row in rows.splitlines())
        now = _digests(step)
        changed = [path for path in now if known.get(path, now[path]) != now[path]]
        for line in step.commands if changed else ():
            _check_trained(line, changed)
        return record is done and script == step.script() and not changed

    def _file(self, step: Step, state: str) -> Path:
        return self.folder / f"{step.name}.{state}"


def _check_trained(line: Sequence[str], changed: Sequence[str]) -> None:
    """Raise an InputError for a training that would go on with inputs that have changed."""
    others = [path for path in map(str, paths_read(line)) if path in changed]
    begun = [exp for exp in paths_written(line, ["--exp"]) if exp.exists()]
    if others and begun:
        raise InputError(
            f"was made with another {others[0]} than there is now",
            path=begun[0],
            remedy="Give a new folder, or remove this one.",
        )


def _digests(step: Step) -> Dict[str, str]:
    """{input: digest} of a step."""
    return {str(path): found for path in step.inputs() if (found := content_digest(path))}


def content_digest(path: Path) -> str:
    """Digest of a file, of what loading an LM reads, or of the files in a folder.

    It is empty for an experiment without weights.
    """
    if (path / "config.yaml").is_file():
        try:
            config, checkpoint = find_files(path)
            return fingerprint(config, checkpoint, read_config(config))
        except InputError:
            return ""
    digest = hashlib.sha256()
    for name in [name for name in files_in(path) if name[0] != "."] if path.is_dir() else [""]:
        if (path / name).is_file():
            stat = (path / name).stat()
            sha = _sha256(path / name, stat.st_size, stat.st_mtime_ns)
            digest.update(f"{name} {sha}\n".encode())
    return digest.hexdigest()


@functools.cache
def _sha256(path: Path, *version: int) -> str:
    """SHA-256 of a version of a file."""
    return sha256(path)


def keep_files(folder: Path, files: Mapping[str, bytes], others: str) -> None:
    """Write files to a new folder; a folder that is there must have them with the same content.

    Raises:
        InputError: It holds `others`.
    """
    if not folder.exists():
        with staged(folder) as place:
            for name, content in files.items():
                (place / name).write_bytes(content)
    for path, content in ((folder / name, content) for name, content in files.items()):
        if not path.is_file() or path.read_bytes() != content:
            raise InputError(f"holds {others}", path=folder, remedy="Give a new --output.")
