"""Files of the recipes' tests, and the recipes' scripts as a shell runs them."""

import os
import random
import subprocess
import sys
from pathlib import Path

from written_files import write, write_noisy_lists

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "egs2"
# what tells the recipes of corpora and of a Python
VARIABLES = ("AMI", "AMI_TEXT", "FISHER", "LRS2", "NBEST", "VENV")


def files_of(folder):
    """Return {file below a folder: its lines}."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_text().splitlines() for path in files}


def run_script(folder, *words, **variables):
    """Run a script of a recipe in a folder."""
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    environment |= {
        "PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT}:{RECIPES}/TEMPLATE/lm",
        **variables,
    }
    command = ["bash", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


# A small corpus and its N-best lists, for running the recipes.


LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [first + second for first in LETTERS[:8] for second in LETTERS[8:14]]


def sentence(rng):
    """Return the words of a sentence in which each word is often followed by the same other."""
    at = rng.randrange(len(WORDS))
    words = [WORDS[at]]
    for _ in range(rng.randrange(2, 10)):
        at = (7 * at + 3) % len(WORDS) if rng.random() < 0.8 else rng.randrange(len(WORDS))
        words.append(WORDS[at])
    return words


def write_text(folder, sizes, *, seed=0):
    """Write FOLDER/NAME.txt, a sentence a line, of each name's number of sentences."""
    rng = random.Random(seed)
    for name, size in sizes.items():
        lines = [" ".join(sentence(rng)) for _ in range(size)]
        write(folder / f"{name}.txt", "\n".join(lines) + "\n")


def write_lists(folder, refs, *, seed, words=WORDS):
    """Write noisy lists and their references {utterance: words}."""
    write_noisy_lists(folder, refs, seed=seed, words=words)
    lines = (f"{utt} {' '.join(spoken)}\n" for utt, spoken in refs.items())
    (folder / "text").write_text("".join(lines))
