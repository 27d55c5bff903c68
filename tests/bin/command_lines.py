"""Options of command lines as keywords, and what the programs have written."""

import dataclasses
import json

import yaml
from espnet2.bin import lm_calc_perplexity
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import perplexity, rescore
from espnet_bayeslm.evaluation.wer import Counted
from espnet_bayeslm.utils.files import read_keyed_lines

# as short and as plain as a training by ESPnet can be
SHORT = {
    "batch_type": "sorted",
    "batch_size": 16,
    "num_att_plot": 0,
    "num_workers": 0,
    "use_matplotlib": False,
    "max_epoch": 2,
}


def perplexities(**options):
    """Run `bayeslm perplexity`; return {name: figures} of what it writes to `output`."""
    perplexity.main(words(**options))
    return {row["name"]: row for row in json.loads(options["output"].read_text())["components"]}


def espnet_perplexity(text, exp, *, folder):
    """Run ESPnet's own program on a Kaldi text; return the perplexity per token."""
    espnet_bayeslm.register()
    files = {"train_config": exp / "config.yaml", "model_file": exp / "valid.loss.ave.pth"}
    data = {"data_path_and_name_and_type": f"{text},text,text", "batch_size": 7, "num_workers": 0}
    lm_calc_perplexity.main(words(output_dir=folder, **files, **data))
    return float((folder / "ppl").read_text())


def run(**options):
    """Run `bayeslm rescore`; return the output's folder."""
    rescore.main(words(**options))
    return options["output"]


def contents(folder):
    """Return {file: bytes}, without the command line, which names the folder."""
    files = (path for path in folder.iterdir() if path.is_file() and path.name != "command")
    return {path.name: path.read_bytes() for path in files}


def same_files(one, other, *names):
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def costs(path):
    """Return {key: its numbers} of a Kaldi archive."""
    return {key: [*map(float, line.split())] for key, (_, line) in read_keyed_lines(path).items()}


def settings(output):
    return yaml.safe_load((output / "scales.yaml").read_text())


def counted(**fields):
    """Return `counted` of a file where so much differs from the defaults."""
    return json.loads(json.dumps(dataclasses.asdict(Counted(**fields))))


def is_whole_png(path):
    content = path.read_bytes()
    whole = content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82")
    return whole and len(content) > 5000


def json_lines(path):
    return list(map(json.loads, path.read_text().splitlines()))
