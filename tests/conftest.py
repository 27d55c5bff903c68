"""A tiny corpus and ESPnet-style statistics that several tests train on."""

import functools
import gc
import random
import shlex
import signal
import sys
from pathlib import Path

import forking_python
import pytest
import torch
from hypothesis import settings
from tiny_training import training, write_sentences
from written_files import write

from espnet_bayeslm.utils.imports import LAZY, stand_in_for

# Until all is collected: most of what is imported and collected stays
gc.disable()
# Before a test imports ESPnet: what takes seconds is imported on its first use
for name in LAZY:
    stand_in_for(name)
# the LMs of the contract test
sys.path.insert(0, str(Path(__file__).parent / "lm"))
# what the recipes share
sys.path.insert(0, str(Path(__file__).parent.parent / "egs2" / "TEMPLATE" / "lm"))

# On a busy machine any example may take long
settings.register_profile("any time", deadline=None)
settings.load_profile("any time")

# None of ours: a program must register its classes itself.
PRELOADED = ["espnet2.bin.lm_train", "espnet2.bin.asr_inference", "matplotlib.pyplot"]
TOKENS = ["<blank>", "<unk>", *"abcdefghij", "<sos/eos>"]


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def interruptible():
    """Ctrl-C has its usual meaning, which a shell's job in the background lacks."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def fails(capsys):
    """Return a function that runs a command line that must end in one error, and returns it."""

    def run(main, command):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(part) for part in command])
        assert stop.value.code == 1
        lines = capsys.readouterr().err.splitlines()
        errors = [line for line in lines if ": error: " in line]
        assert len(errors) == 1 and errors[0] == lines[-1], lines
        assert not any(line.startswith("Traceback") for line in lines)
        return errors[0]

    return run


@pytest.fixture(scope="class")
def fast_kernels():
    """For tests of what only the kernels do, in a process without them too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ESPNET_BAYESLM_KERNELS", raising=False)
        yield


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """Path of a program that is `python` without the time that importing ESPnet takes."""
    server = tmp_path_factory.getbasetemp() / "python.socket"
    with forking_python.hold(str(server), *PRELOADED):
        words = [sys.executable, "-I", "-S", forking_python.__file__, str(server)]
        program = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
        yield str(write(tmp_path_factory.mktemp("bin") / "python3", program))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Return a folder with train.txt, valid.txt, their shape files and tokens.txt."""
    folder, letters = tmp_path_factory.mktemp("corpus"), TOKENS[2:-1]
    for name, size, seed in (("train", 120, 1), ("valid", 30, 2)):
        rng, sentences = random.Random(seed), []
        for _ in range(size):
            words = [rng.choice(letters)]
            for _ in range(rng.randrange(0, 12)):  # each letter is often followed by the next
                follow = letters[(letters.index(words[-1]) + 1) % len(letters)]
                words.append(follow if rng.random() < 0.8 else rng.choice(letters))
            sentences.append(words)
        write_sentences(folder, name, sentences)
    (folder / "tokens.txt").write_text("\n".join(TOKENS) + "\n")
    return folder


@pytest.fixture(scope="session")
def plain_text(corpus, tmp_path_factory):
    """Return a folder with train.txt and valid.txt without keys."""
    folder = tmp_path_factory.mktemp("plain")
    for name in ("train", "valid"):
        lines = (corpus / f"{name}.txt").read_text().splitlines()
        (folder / f"{name}.txt").write_text("".join(x.split(maxsplit=1)[1] + "\n" for x in lines))
    return folder


@pytest.fixture(scope="session")
def train_lm(corpus):
    """Return a function that trains an LM in this process, by ESPnet's options."""
    from espnet_bayeslm.training.task import BayesLMTask

    def train(output, *options, **quick):
        BayesLMTask.main(cmd=training(corpus, output, *options, **quick))
        return output

    return train


@pytest.fixture(scope="session")
def pretrained_opt(tmp_path_factory):
    """Return a function that writes a tiny OPT model, once, and returns its folder."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(hidden_size=8, ffn_dim=12, num_hidden_layers=2, num_attention_heads=2)

    @functools.cache
    def write(**options):
        folder = tmp_path_factory.mktemp("opt")
        config = transformers.OPTConfig(
            vocab_size=30, max_position_embeddings=256, dropout=0.0, **sizes, **options
        )
        transformers.OPTModel(config).save_pretrained(folder)
        return str(folder)

    return write
