"""A recogniser of synthetic speech, trained by ESPnet in this process, and LMs for it."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(1, str(HERE.parent / "pretrained"))
if importlib.util.find_spec("warprnnt_pytorch") is None:
    sys.path.append(str(HERE / "standins"))

import homophones  # noqa: E402
import models  # noqa: E402
from tiny_training import words  # noqa: E402


@pytest.fixture(scope="session")
def espnet():
    """Return a function that runs one of ESPnet's programs in this process, as we launch it."""
    from espnet_bayeslm.training.launch import run_program

    def run(program, *words):
        before = sys.argv
        try:
            run_program(f"espnet2.bin.{program}", [str(word) for word in words])
        finally:
            sys.argv = before

    return run


@pytest.fixture(scope="session")
def launch(python):
    """Return a function that runs one of ESPnet's programs by `python -m espnet_bayeslm`."""
    paths = [*sys.path, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(program, *words):
        command = [python, "-m", "espnet_bayeslm", "-m", f"espnet2.bin.{program}"]
        return subprocess.run(
            [*command, *map(str, words)], capture_output=True, text=True, env=environment
        )

    return run


@pytest.fixture(scope="session")
def speech(tmp_path_factory):
    """Return the folder of recordings, labels, token list and text for LMs."""
    pytest.importorskip("ttspico", reason="speech needs ttspico (pip install -e .[sotu])")
    folder = tmp_path_factory.mktemp("speech")
    homophones.write_speech(folder)
    homophones.write_lm_text(folder, copies=10)
    return folder


@pytest.fixture(scope="session")
def train(espnet, speech, tmp_path_factory):
    """Return a function that trains a model by one of ESPnet's programs, for one epoch."""

    def run(program, config, name, files):
        folder = tmp_path_factory.mktemp("exp") / name
        shared = {"token_type": "word", "token_list": f"{speech}/tokens.txt", "optim": "adam"}
        shared |= {"batch_type": "unsorted", "max_epoch": 1, "num_workers": 0}
        shared |= {"num_att_plot": 0, "use_matplotlib": False, "use_tensorboard": False}
        config_file = folder.with_suffix(".yaml")
        config_file.write_text(yaml.safe_dump(shared | config))
        words = ["--config", config_file, "--output_dir", folder]
        for part, (data, shapes) in files.items():
            words += [f"--{part}_shape_file", speech / shapes]
            for file in data:
                words += [f"--{part}_data_path_and_name_and_type", f"{speech}/{file}"]
        espnet(program, *words)
        return folder

    return run


@pytest.fixture(scope="session")
def recogniser_of(train):
    """Return a function that returns the experiment of a trained recogniser, by name."""
    files = (["train.scp,speech,sound", "train.text,text,text"], "train.shape")

    @functools.cache
    def get(name):
        program, config = models.RECOGNISERS[name]
        if "freeze_param" in config:
            start = f"{get('attention')}/valid.loss.ave.pth:encoder:encoder"
            config = config | {"init_param": [start]}
        return train(program, config, name, {"train": files, "valid": files})

    return get


@pytest.fixture(scope="session")
def recogniser(recogniser_of):
    """Return the experiment of an attention + CTC recogniser that mistakes homophones."""
    return recogniser_of("attention")


@pytest.fixture(scope="session")
def lm(train, recogniser, speech, tmp_path_factory):
    """Return a function that returns the experiment of a trained LM, by name."""
    from espnet_bayeslm.mixture.mixture_export import write_mixture

    files = {
        part: ([f"lm_{part}.txt,text,text"], f"lm_{part}.shape") for part in ("train", "valid")
    }

    @functools.cache
    def get(name):
        if name == models.FUSION:
            return fusion(get("bayes_lstm"), recogniser, speech, tmp_path_factory.mktemp("exp"))
        if name in models.MIXTURES:
            folder = tmp_path_factory.mktemp("exp") / name
            lms, others = models.MIXTURES[name]
            write_mixture(folder, **{part: [*map(get, lms[part])] for part in lms}, **others)
            return folder
        config = {"lm": name, "lm_conf": {**models.LMS, **models.ESPNETS}[name]}
        return train("lm_train", models.LM | config, name, files)

    return get


def fusion(ahead, recogniser, speech, folder):
    """Return the folder of word-level fusion of an n-gram and a causal LM."""
    from tiny_models import write_model

    from espnet_bayeslm.bin import export, ngram

    (folder / "text").write_text("\n".join(homophones.SENTENCES * 3) + "\n")
    options = {"text": folder / "text", "order": 3, "discount_fallback": "true"}
    ngram.main(words(**options, arpa=folder / "words.arpa"))
    files = {"asr_exp": recogniser, "ahead": ahead, "ngram": folder / "words.arpa"}
    files["lm"] = f"hf:{write_model(folder / 'llama')}"
    options = {"format": "fusion", "weights": "0.1,0.9", "text_form": "lower,newline,blank"}
    export.main(words(**files, **options, output=folder / "fusion"))
    return folder / "fusion"


@pytest.fixture(scope="session")
def read_nbest():
    """Return a function that reads {utterance: [(words, score)]}, best first."""
    from espnet_bayeslm.rescoring import read_nbest as read

    def get(folder):
        lists = read(folder, "espnet")
        return {x.utt: [(h.words, h.am_score) for h in x.hypotheses] for x in lists}

    return get


@pytest.fixture(scope="session")
def decode(espnet, speech, read_nbest):
    """Return a function that decodes all recordings and returns what `read_nbest` does."""

    def run(program, output, asr, *, lm=None, run=espnet, **options):
        values = {"output_dir": output, "num_workers": 0, **models.files_of("asr", asr)}
        values |= models.files_of("lm", lm) if lm else {}
        values["data_path_and_name_and_type"] = f"{speech}/wav.scp,speech,sound"
        run(program, *words(**{**values, **options}))
        return read_nbest(output)

    return run


@pytest.fixture
def hypotheses(monkeypatch):
    """Return the list of all hypotheses that ESPnet's program makes results of."""
    from espnet2.bin.asr_inference_streaming import Speech2TextStreaming

    kept, assemble = [], Speech2TextStreaming.assemble_hyps

    def keep(self, hyps):
        kept.extend(hyps)
        return assemble(self, hyps)

    monkeypatch.setattr(Speech2TextStreaming, "assemble_hyps", keep)
    return kept
