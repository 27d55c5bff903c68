"""Shipped configurations and the lines of the tables build their LMs and take training steps."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
import yaml

from espnet_bayeslm.bayes import parse_uncertainty
from espnet_bayeslm.configs import shipped
from espnet_bayeslm.lm import lstm, transformer
from espnet_bayeslm.training.task import BayesLMTask
from lab.paper import MIXTURE, paper_tables

CONF = Path(__file__).parent.parent / "conf"
# They train an adapter on a base model: tests/pretrained/test_adapted.py
PRETRAINED = ("bayes_lora", "ivon_lora", "lora")
FILES = [path for name, path in shipped().items() if name not in PRETRAINED]
UNCERTAIN = ("bayes", "gp", "variational", "search", "adapt")

# The LM lines of the paper's tables: all but n-grams, Oracle and mixtures of other lines.
LINES = [
    (table, line.number)
    for table in paper_tables().lines
    for line in paper_tables().table(table)
    if line.kind != MIXTURE
]
# sha256 of the options of all lines at size paper, as they stood in a file for each line once.
OPTIONS = "fc0195da158e82c387b32487c8bd381c481860be2ac96a4a7a971d9d0dc0eadc"
# The files to start from, and the line that each is.
FIRST = {
    "point_lstm": ("III", 2),
    "bayes_lstm": ("III", 20),
    "gp_lstm": ("III", 39),
    "variational_lstm": ("III", 47),
    "point_transformer": ("IV", 2),
    "bayes_transformer": ("IV", 11),
    "gp_transformer": ("IV", 22),
    "variational_transformer": ("IV", 33),
}
# Not the paper's lines, but what is better on AMI's dev text.
HELPS = ("bayes_lstm", "bayes_transformer")
# The architecture searches, and the lines that the paper's ended at.
SEARCHES = {
    "search_bayes_lstm": ("III", (20, 21, 22)),
    "search_gp_lstm": ("III", (40, 41, 42)),
    "search_bayes_transformer": ("IV", (17, 18, 19)),
    "search_gp_transformer": ("IV", (28, 29, 30)),
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
# LMs of the paper's sizes would take minutes: they keep layers and places only.
SMALL = {
    "bayes_lstm": {"unit": 16},
    "bayes_transformer": {"att_unit": 16, "head": 2, "unit": 32},
}


def table_line(table, number):
    return next(line for line in paper_tables().table(table) if line.number == number)


def line_options(table, number):
    """Return the configuration of a line at the paper's sizes, as a file has it."""
    config = paper_tables().config("paper", table_line(table, number), "whole")
    return yaml.safe_load(yaml.safe_dump(config, sort_keys=False))


def build(path, corpus):
    """Return the options that ESPnet's parser makes of a file, and its model."""
    args = BayesLMTask.get_parser().parse_args(
        ["--config", str(path), "--token_list", f"{corpus}/tokens.txt", "--output_dir", "exp"]
    )
    assert args.lm_conf == yaml.safe_load(path.read_text())["lm_conf"]
    if path.stem in ADAPTED:
        args.lm_conf.update(ADAPTED[path.stem])
    else:
        args.lm_conf.update(SMALL[args.lm])
    args.model, args.train_shape_file = "bayes_lm", [f"{corpus}/train.shape"]
    return args, BayesLMTask.build_model(args).train()


def check_steps(path, uncertain, corpus):
    args, model = build(path, corpus)
    assert bool(model.lm.locations()) == uncertain
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


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_configuration_builds_and_takes_steps(path, corpus):
    check_steps(path, path.stem.partition("_")[0] in UNCERTAIN, corpus)


def unlike_lines():
    """Return the first line of each LM, kinds and options; which places they have differs."""
    found = {}
    for line in LINES:
        config = line_options(*line)
        kinds = sorted(set(config["lm_conf"]["uncertainty"].values()))
        key = json.dumps([config["lm"], kinds, config.get("model_conf")], sort_keys=True)
        found.setdefault(key, line)
    return list(found.values())


@pytest.mark.parametrize("table, number", unlike_lines())
def test_line_builds_and_takes_steps(table, number, corpus, tmp_path):
    path = tmp_path / "line.yaml"
    path.write_text(yaml.safe_dump(line_options(table, number)))
    check_steps(path, table_line(table, number).kind in UNCERTAIN, corpus)


@pytest.mark.parametrize("size", paper_tables().sizes)
def test_sizes_have_all_parts(size):
    tables = paper_tables()
    for table, number in LINES:
        line = table_line(table, number)
        config = tables.config(size, line)
        assert {"optim_conf", "max_epoch", "batch_type"} <= config.keys()
        half = {**tables.half(size, line.lm)["lm_conf"], "uncertainty": 0}
        conf = {**config["lm_conf"], "uncertainty": 0}
        assert {k: v for k, v in conf.items() if k != "prior_variance"} == half
        if "nas" in line.options:
            space = tables.search(size, line)["lm_conf"]["uncertainty"]
            assert all(place["candidates"] == ["point", line.kind] for place in space.values())


def test_options_of_the_lines():
    """All are what they were as files."""
    assert set(shipped()) == {*FIRST, *SEARCHES, *ADAPTED, *PRETRAINED}
    options = {f"{table} {number}": line_options(table, number) for table, number in LINES}
    found = json.dumps(options, sort_keys=True).encode()
    assert hashlib.sha256(found).hexdigest() == OPTIONS


@pytest.mark.parametrize("name", [name for name in FIRST if name not in HELPS])
def test_files_to_start_from_are_lines(name):
    assert yaml.safe_load((CONF / f"{name}.yaml").read_text()) == line_options(*FIRST[name])


def places(config):
    """Return what a configuration makes uncertain: {location: the kinds that it can have}."""
    conf = config["lm_conf"]
    layers = conf["nlayers"] if "nlayers" in conf else conf["layer"]
    positions = POSITIONS[config["lm"]]
    kinds = parse_uncertainty(conf["uncertainty"], positions=positions, num_layers=layers)
    return {p: [k.name for k in getattr(kind, "candidates", [kind])] for p, kind in kinds.items()}


@pytest.mark.parametrize("name", SEARCHES)
def test_search_spaces_hold_what_the_paper_found_and_train_as_their_kinds_do(name):
    table, numbers = SEARCHES[name]
    search = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    space = places(search)
    assert all(kinds[0] == "point" and len(kinds) == 2 for kinds in space.values())
    for number in numbers:
        for place, (kind,) in places(line_options(table, number)).items():
            assert kind in space[place]
    line = line_options(*FIRST[name.removeprefix("search_")])
    for config in (search, line):
        del config["lm_conf"]["uncertainty"]
    assert search == line
