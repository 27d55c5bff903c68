"""ESPnet3's stage `infer` decodes with our LM, by the files that docs/howto/espnet3.md shows."""

import contextlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
import yaml
from models import write_noise, write_recogniser
from tiny_training import words
from written_files import write

from espnet_bayeslm import speech2text
from espnet_bayeslm.bin import export, ngram

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "espnet3.md"
RUN = """
from espnet3.systems.esp2_asr.system import ASRSystem
from espnet3.systems.launch import launch

if __name__ == "__main__":
    launch(ASRSystem)
"""
DATASET = """
import soundfile
from espnet3.components.data.base_dataset import BaseDataset
from espnet3.contract import Field


class Dataset(BaseDataset):
    fields = (Field("speech", "audio"), Field("text", "text"))

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        samples, _ = soundfile.read(self.paths[int(index)], dtype="float32")
        return {"speech": samples, "text": ""}
"""
NUM_RECORDINGS, BATCH_SIZE = 4, 2

for module in ("espnet3", "lightning"):
    if importlib.util.find_spec(module) is None:
        pytest.skip(
            f"ESPnet3 needs {module} (pip install 'espnet[train]')", allow_module_level=True
        )


def block(language, holding):
    """The page's one block of a language that holds a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (found,) = (text for text in blocks if holding in text)
    return found


@pytest.fixture(scope="module")
def recipe(corpus, tmp_path_factory):
    """Recipe with a trained recogniser, recordings, and an LM trained by the page's command."""
    from espnet_bayeslm.bin import train

    folder = tmp_path_factory.mktemp("recipe")
    tokens = (corpus / "tokens.txt").read_text().split()
    asr = write_recogniser(folder / "exp" / "training", tokens)
    (asr / "valid.acc.ave.pth").rename(asr / "valid.acc.ave_10best.pth")
    paths = [str(folder / f"{n}.wav") for n in range(NUM_RECORDINGS)]
    for n, path in enumerate(paths):
        write_noise(path, seed=n, seconds=0.4 + 0.1 * n)
    write(folder / "run.py", RUN)
    write(folder / "dataset" / "__init__.py", DATASET)
    for part, source in (("train", "train"), ("dev", "valid")):
        sentences = (line.split(" ", 1)[1] for line in (corpus / f"{source}.txt").open())
        write(folder / f"{part}.txt", "".join([*sentences][:40]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        command = shlex.split(block("console", "bayeslm train").replace("\\\n", " "))
        sizes = ["att_unit=8", "head=2", "unit=8", "layer=1"]
        quick = words(lm_conf=sizes, max_epoch=1, batch_type="unsorted", batch_size=16)
        train.main([*command[2:], *quick])
    content = yaml.safe_load(block("yaml", "speech2text"))
    content |= {"batch_size": None, "exp_tag": "training", "dataset": {"test": [{"name": "noise"}]}}
    content["dataset"]["test"][0]["data_src_args"] = {"paths": paths}
    content["model"]["beam_size"] = 5  # below the number of tokens
    return folder, content, paths


@pytest.fixture(scope="module", params=["trained", "fusion"])
def model(request, recipe):
    """Options of the recogniser: the page's, with its LM or with a word n-gram in its place."""
    folder, content, _ = recipe
    options = dict(content["model"])
    if request.param == "fusion":
        asr, text = folder / "exp" / "training", folder / "train.txt"
        how = {"text": text, "order": 2, "discount_fallback": "true"}
        ngram.main(words(arpa=folder / "words.arpa", **how))
        ngram.main(words(arpa=folder / "tokens.arpa", asr_exp=asr, **how))
        found = {"ngram": folder / "words.arpa", "ahead": folder / "tokens.arpa"}
        found |= {"text": text, "output": folder / "exp" / "fusion", "max_oov_rate": 1}
        export.main(words(format="fusion", asr_exp=asr / "config.yaml", **found))
        options["lm_train_config"] = "exp/fusion/config.yaml"
        options["lm_file"] = "exp/fusion/valid.loss.ave.pth"
    return request.param, options


@pytest.fixture(scope="module")
def expected(recipe, model):
    """Texts of the recordings in this process: with the LM, without, and with it in batches."""
    folder, _, paths = recipe
    options = {key: value for key, value in model[1].items() if key != "_target_"}
    for key, value in options.items():
        if isinstance(value, str):
            options[key] = str(folder / value.replace("${exp_dir}", "exp/training"))
    found, samples = [], [soundfile.read(path, dtype="float32")[0] for path in paths]
    with contextlib.chdir(folder):  # paths in a fusion's files are as they were given
        for weight in (options["lm_weight"], 0.0):
            decode = speech2text(**{**options, "lm_weight": weight})
            found.append([decode(own)[0][0] for own in samples])
        # a batch's padding changes what this encoder says
        decode = speech2text(**options)
        batches = (samples[n : n + BATCH_SIZE] for n in range(0, len(samples), BATCH_SIZE))
        found.append([own[0][0] for batch in batches for own in decode(batch)])
    return found


@pytest.mark.parametrize(
    "num_workers, batch_size",
    [pytest.param(1, None, marks=pytest.mark.slow), (2, None), (1, BATCH_SIZE)],
)
def test_stage_infer(recipe, model, expected, num_workers, batch_size):
    """In one process, and in workers that this process does not register anything for."""
    folder, content, _ = recipe
    name, options = model
    output = f"exp/{name}_by_{num_workers}_{batch_size}"
    content = {**content, "model": options, "inference_dir": output, "batch_size": batch_size}
    content["parallel"] = {"env": "local", "n_workers": num_workers}
    config = f"conf/inference_{name}_{num_workers}_{batch_size}.yaml"
    write(folder / config, yaml.safe_dump(content))
    command = [sys.executable, "run.py", "--stages", "infer", "--inference_config", config]
    paths = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    lines = (folder / content["inference_dir"] / "noise" / "text.scp").read_text().splitlines()
    found = [line.partition(" ")[2] for line in lines]
    with_lm, without, in_batches = expected
    assert found == (in_batches if batch_size else with_lm)
    assert without not in (with_lm, in_batches)
