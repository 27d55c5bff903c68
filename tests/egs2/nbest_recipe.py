"""What the tests of the AMI recipe's N-best lists share."""

import pytest

from espnet_bayeslm.experiment import lists


@pytest.fixture(name="nbest")
def nbest_lists():
    """Return the module that makes the lists."""
    return lists


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def failure(nbest, capsys, archives, *options):
    """Return the line in which a call ends; it must have written nothing."""
    output = archives.parent / "out"
    with pytest.raises(SystemExit) as stopped:
        nbest.main(["--nbest", str(archives), "--output", str(output), *map(str, options)])
    assert stopped.value.code == 1
    assert not output.exists()
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("local/nbest.sh: error: ")
    return line
