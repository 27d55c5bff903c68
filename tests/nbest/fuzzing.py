"""Random damage to valid files: how reading ends, which must be the content or one clear error."""

import collections
import random

from espnet_bayeslm.utils.errors import InputError


def outcome_of(folder, read, check):
    """Return how reading ends; anything but what `check` takes or a clear error fails.

    Args:
        folder: Where the files are.
        read: Reads them.
        check: Compares what was read with what is left in them.
    """
    try:
        found = read()
    except InputError as error:
        message = str(error)
        assert message.startswith(str(folder)), "the error names no file"
        assert "\n" not in message, "the error has more than one line"
        assert len(message) < 1000, "the error is too long"
        return "error"
    check(found)
    return "read"


def run_cases(folder, cases, kinds, mutate, outcome):
    """Read damaged files; return {(kind, outcome): number}.

    Args:
        folder: A new folder.
        cases: Seeds.
        kinds: {name: (format, {file: bytes})}.
        mutate: (random numbers, files) -> what was done, and the changed files.
        outcome: (folder, format, files) -> how reading ends.
    """
    for kind, (_, files) in kinds.items():
        write_files(folder / kind, files)
    outcomes = collections.Counter()
    names = list(kinds)
    for case in cases:
        rng = random.Random(case)
        kind = names[case % len(names)]
        format, files = kinds[kind]
        done, changed = mutate(rng, files)
        left = {n: data for n, data in {**files, **changed}.items() if data is not None}
        write_files(folder / kind, changed)
        try:
            outcomes[kind, outcome(folder / kind, format, left)] += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {kind}: {done}: {error!r}") from error
        write_files(folder / kind, {name: files[name] for name in changed})
    return outcomes


def write_files(folder, files):
    """Write files, or remove those that are None."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # A new file: a file system may flush one that is emptied and written anew, which takes long
        (folder / name).unlink(missing_ok=True)
        if data is not None:
            (folder / name).write_bytes(data)
