"""What tools import: a help text needs no torch, scoring no training, and nothing the network."""

import json
import subprocess
import sys

import pytest

from espnet_bayeslm.bin.bayeslm import TOOLS
from espnet_bayeslm.utils.imports import stand_in_for

HEAVY = {"torch", "scipy", "matplotlib", "espnet2.lm", "transformers", "nltk", "g2p_en", "kaldiio"}
TASKS = {"espnet2.tasks.lm", "g2p_en.g2p", "nltk", "transformers", "inflect", "librosa", "sklearn"}

# main() of each tool in one process: what the modules of one bring is there for the next
HELP = """
import contextlib, json, sys
from espnet_bayeslm.bin.bayeslm import main
found = {}
for tool in sys.argv[1:]:
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(SystemExit):
        main([*tool.split(), "--help"])
    found[tool] = sorted(sys.modules)
print(json.dumps(found))
"""
SCORE = """
import json, sys, espnet_bayeslm
scores = [espnet_bayeslm.load(path).score("a b c") for path in sys.argv[1:]]
print(json.dumps([scores, sorted(sys.modules)]))
"""
TRAIN = """
import json, sys, espnet_bayeslm.training.pretrained_text, espnet_bayeslm.training.task
print(json.dumps(sorted(sys.modules)))
"""


def run(script, *words):
    """Run a script in a process of its own; return what it prints, all of which is JSON."""
    command = [sys.executable, "-c", script, *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout), result.stderr


def test_help_imports_nothing_heavy():
    modules, shown = run(HELP, "", *TOOLS)
    assert shown.count("usage: ") == len(TOOLS) + 1
    assert {tool: HEAVY & set(found) for tool, found in modules.items() if HEAVY & set(found)} == {}


def test_a_trained_lm_needs_no_task(bayes, seq_rnn):
    (scores, loaded), _ = run(SCORE, bayes, seq_rnn)
    assert max(scores) < 0 and "torch" in loaded
    assert not TASKS & set(loaded)


@pytest.mark.slow
def test_a_training_needs_no_phonemes():
    """NLTK asks the network for its data where ESPnet's converter of phonemes is imported."""
    loaded, shown = run(TRAIN)
    assert "espnet2.tasks.lm" in loaded
    assert not {"g2p_en.g2p", "nltk", "inflect"} & set(loaded)
    assert "nltk" not in shown and "flash" not in shown.lower()


def test_a_stand_in_becomes_the_module(tmp_path, monkeypatch):
    (tmp_path / "spoken.py").write_text("print('imported')\nSOUND = 'boo'\n")
    monkeypatch.syspath_prepend(tmp_path)
    stand_in_for("spoken")
    import spoken

    assert sys.modules["spoken"] is spoken and not hasattr(spoken, "__file__")
    assert spoken.SOUND == "boo" and sys.modules["spoken"] is not spoken
    monkeypatch.delitem(sys.modules, "spoken")
    stand_in_for("no_such_module")
    stand_in_for("no_such_package.module")
    assert "no_such_module" not in sys.modules
