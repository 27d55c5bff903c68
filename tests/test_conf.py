"""Every shipped configuration parses, builds its LM and takes training steps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from espnet_bayeslm.bayes import parse_uncertainty
from espnet_bayeslm.lm import lstm, transformer
from espnet_bayeslm.training.task import BayesLMTask

CONF = Path(__file__).parent.parent / "conf"
FILES = sorted(CONF.glob("**/*.yaml"))
ROMAN = {1: "I", 3: "III", 4: "IV", 6: "VI"}
UNCERTAIN = ("bayes", "gp", "variational", "search", "adapt")

# The LM lines of the paper's tables: all but n-grams, Oracle and mixtures of other lines.
LM_LINES = {
    1: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    3: [
        *(2, 3, 5, 7),
        *(9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22),
        *(25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42),
        *(45, 46, 47),
    ],
    4: [
        *(2, 3, 5, 7),
        *(9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19),
        *(22, 23, 24, 25, 26, 27, 28, 29, 30),
        *(33, 34, 35),
    ],
    6: [3, 4, 6, 8, 10, 12, 14, 16, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30],
}
# The files to start from, and the line that each is.
FIRST = {
    "point_lstm": (3, 2),
    "bayes_lstm": (3, 20),
    "gp_lstm": (3, 39),
    "variational_lstm": (3, 47),
    "point_transformer": (4, 2),
    "bayes_transformer": (4, 11),
    "gp_transformer": (4, 22),
    "variational_transformer": (4, 33),
}
# What is better on AMI's dev text than the paper's line.
BETTER = {"bayes_lstm": {"prior_variance": 0.01}}
# The architecture searches, and the lines that the paper's ended at.
SEARCHES = {
    "search_bayes_lstm": (3, (20, 21, 22)),
    "search_gp_lstm": (3, (40, 41, 42)),
    "search_bayes_transformer": (4, (17, 18, 19)),
    "search_gp_transformer": (4, (28, 29, 30)),
}
# What `bayeslm train --from` adds to the files that adapt a trained LM.
ADAPTED = {
    "adapt_seq_rnn": {"backbone": "seq_rnn", "backbone_conf": {"unit": 16, "tie_weights": True}},
    "adapt_transformer": {
        "backbone": "transformer",
        "backbone_conf": {"embed_unit": 16, "att_unit": 16, "head": 2, "unit": 32, "layer": 2},
    },
}
POSITIONS = {"bayes_lstm": lstm.POSITIONS, "bayes_transformer": transformer.POSITIONS}
# ~90 LMs of the paper's sizes would take minutes: all but those to start from keep layers and
# places only.
SMALL = {
    "bayes_lstm": {"unit": 16},
    "bayes_transformer": {"att_unit": 16, "head": 2, "unit": 32},
}


def find_line(table, number):
    """Return the one file of a line."""
    (path,) = CONF.glob(f"tuning/table{table}_line{number:02d}_*.yaml")
    return path


def build(path, corpus):
    """Return the options that ESPnet's parser makes of a file, and its model."""
    args = BayesLMTask.get_parser().parse_args(
        ["--config", str(path), "--token_list", f"{corpus}/tokens.txt", "--output_dir", "exp"]
    )
    assert args.lm_conf == yaml.safe_load(path.read_text())["lm_conf"]
    if path.stem in ADAPTED:
        args.lm_conf.update(ADAPTED[path.stem])
    elif path.stem not in FIRST:
        args.lm_conf.update(SMALL[args.lm])
    args.model, args.train_shape_file = "bayes_lm", [f"{corpus}/train.shape"]
    return args, BayesLMTask.build_model(args).train()


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_configuration_builds_and_takes_steps(path, corpus):
    args, model = build(path, corpus)
    kind = re.sub(r"table\d_line\d+_", "", path.stem).partition("_")[0]
    assert bool(model.lm.locations()) == (kind in UNCERTAIN)
    optimizers = BayesLMTask.build_optimizers(args, model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    # A network of a variational LM's prior starts as that of its posterior: their KL, 0, moves
    # the prior from the second step on.
    for _ in range(2):
        model.zero_grad()
        loss, _, _ = model(torch.tensor([[2, 3, 4]]), torch.tensor([3]))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        assert torch.isfinite(loss)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("table", LM_LINES)
def test_each_lm_line_has_one_file(table):
    names = [path.name for path in CONF.glob(f"tuning/table{table}_*.yaml")]
    numbers = [int(re.match(r"table\d_line(\d+)_", name)[1]) for name in names]
    assert sorted(numbers) == LM_LINES[table]


def test_there_is_no_other_file():
    lines = [find_line(table, number) for table in LM_LINES for number in LM_LINES[table]]
    assert set(FILES) == {
        *lines,
        *(CONF / f"{name}.yaml" for name in (*FIRST, *SEARCHES, *ADAPTED)),
    }


def first_comment(path):
    """Return the comment at the top of a file, as one line."""
    return path.read_text().split("\nlm: ")[0].replace("\n# ", " ")


PAPERS = [path for path in FILES if path.stem not in ADAPTED]


@pytest.mark.parametrize("path", PAPERS, ids=[path.stem for path in PAPERS])
def test_first_comment_names_the_line(path):
    match = re.match(r"table(\d)_line(\d+)_", path.name)
    if path.stem in SEARCHES:
        table, (first, *_, last) = SEARCHES[path.stem]
        lines = f"lines {first} to {last}"
    else:
        table, number = map(int, match.groups()) if match else FIRST[path.stem]
        lines = f"line {number}"
    assert f"{lines} of Table {ROMAN[table]}" in first_comment(path)


@pytest.mark.parametrize("name", [name for name in FIRST if name != "bayes_transformer"])
def test_files_to_start_from_are_lines(name):
    line = yaml.safe_load(find_line(*FIRST[name]).read_text())
    line["lm_conf"].update(BETTER.get(name, {}))
    assert yaml.safe_load((CONF / f"{name}.yaml").read_text()) == line


def test_the_transformer_is_what_helps_on_ami():
    """Random embedding, zero-mean prior, no dropout; sizes as of conf/point_transformer.yaml."""
    point, bayes = (
        yaml.safe_load((CONF / f"{kind}_transformer.yaml").read_text())
        for kind in ("point", "bayes")
    )
    changed = {"uncertainty": {"embedding": "bayes"}, "dropout_rate": 0.0, "prior_variance": 0.01}
    assert bayes["lm_conf"] == {**point["lm_conf"], **changed}
    assert bayes["model_conf"] == {"prior": "zero"}


def places(path):
    """Return what a file makes uncertain: {location: the kinds that it can have}."""
    config = yaml.safe_load(path.read_text())
    conf = config["lm_conf"]
    kinds = parse_uncertainty(
        conf["uncertainty"],
        positions=POSITIONS[config["lm"]],
        num_layers=conf["nlayers"] if "nlayers" in conf else conf["layer"],
    )
    return {
        place: [k.name for k in getattr(kind, "candidates", [kind])]
        for place, kind in kinds.items()
    }


@pytest.mark.parametrize("name", SEARCHES)
def test_the_search_spaces_hold_what_the_paper_found(name):
    table, numbers = SEARCHES[name]
    space = places(CONF / f"{name}.yaml")
    assert all(kinds[0] == "point" and len(kinds) == 2 for kinds in space.values())
    for number in numbers:
        for place, (kind,) in places(find_line(table, number)).items():
            assert kind in space[place]


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_trains_as_its_kind_does(name):
    line = find_line(*FIRST[name.removeprefix("search_")])
    search, other = (yaml.safe_load(path.read_text()) for path in (CONF / f"{name}.yaml", line))
    for config in (search, other):
        del config["lm_conf"]["uncertainty"]
    assert search == other


def test_generating_again_changes_nothing():
    command = [sys.executable, str(CONF / "tuning" / "generate.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
