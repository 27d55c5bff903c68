"""A kind, an LM and a format, each in an installed package of its own, in every tool."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

import espnet_bayeslm
from espnet_bayeslm.bayes import Position
from espnet_bayeslm.bayes.base_kinds import KINDS
from espnet_bayeslm.bin.rescore import get_parser
from espnet_bayeslm.lm import LMS, BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.nbest.formats import READERS, read_nbest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.registry import Registry

PAGE = Path(espnet_bayeslm.__file__).parents[1] / "docs" / "extending.md"
GROUPS = {"drop_units": "kinds", "trigram": "lms", "tsv": "nbest_formats"}
LINES = 60
CONFIG = {
    "lm": "bayes_transformer",
    "lm_conf": {
        **dict(att_unit=8, head=2, unit=8, layer=1),
        "uncertainty": {"ffn@1": {"kind": "drop_units", "rate": 0.5}},
    },
    **{"optim": "adam", "batch_type": "unsorted", "batch_size": 64, "max_epoch": 1},
}


def install(folder, name, module, entry):
    """Write a package of one module as pip leaves it: code and metadata."""
    package = f"bayeslm_{name}"
    (folder / f"{package}.py").write_text(module)
    info = folder / f"{package}-0.1.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: bayeslm-{name}\nVersion: 0.1\n"
    (info / "METADATA").write_text(metadata)
    points = f"[espnet_bayeslm.{GROUPS[name]}]\n{name} = {package}:{entry}\n"
    (info / "entry_points.txt").write_text(points)
    assert len((module + metadata + points).splitlines()) <= LINES


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Return a folder with three installed packages, those of the documentation."""
    folder = tmp_path_factory.mktemp("site-packages")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    named = re.findall(r'^(\w+) = "bayeslm_mine:(\w+)"$', PAGE.read_text(), re.MULTILINE)
    assert [name for name, _ in named] == list(GROUPS)
    for name, entry in named:
        (module,) = (b for b in blocks if re.search(rf"^(class|def) {entry}\b", b, re.MULTILINE))
        install(folder, name, module, entry)
    return folder


@pytest.fixture(scope="module")
def run(packages, python):
    """Return a function that runs `bayeslm` where the packages are installed."""
    path = f"{packages}:{Path(espnet_bayeslm.__file__).parents[1]}"

    def run(*words):
        command = [python, "-m", "espnet_bayeslm.bin.bayeslm", *map(str, words)]
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def trained(run, plain_text, tmp_path_factory):
    """Return a function that trains an LM of a configuration, and returns its experiment."""
    folder = tmp_path_factory.mktemp("trained")

    def train(name, config):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
        texts = [f"--{part}_text={plain_text}/{part}.txt" for part in ("train", "valid")]
        run("train", *texts, "--config", folder / f"{name}.yaml", "--exp", folder / name)
        return folder / name

    return train


@pytest.fixture(scope="module")
def exp(trained):
    return trained("kind", CONFIG)


@pytest.fixture
def lists(tmp_path):
    lines = [f"u{n}\t-1.5\ta b c\t-2\ta b\n" for n in range(4)]
    (tmp_path / "lists.tsv").write_text("".join(lines))
    return tmp_path / "lists.tsv"


def test_a_kind_trains_and_is_known_wherever_its_lm_is(run, exp, plain_text, lists, tmp_path):
    text = ["--text", plain_text / "valid.txt", "--lm", exp]
    assert "ffn@1" in run("perplexity", *text, "--num_samples", "2")
    output = tmp_path / "rescored"
    tool = ["rescore", "--nbest", lists, "--nbest_format", "tsv", "--lm", exp]
    run(*tool, "--output", output, "--workers", "2", "--num_samples", "2")
    (file,) = output.glob("*.jsonl")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [nbest["utt"] for nbest in found] == [f"u{n}" for n in range(4)]
    assert len({json.dumps(nbest["hypotheses"]) for nbest in found}) == 1


def test_an_lm_trains_and_is_loaded(run, trained, plain_text):
    config = {**CONFIG, "lm": "trigram", "lm_conf": {"unit": 4, "uncertainty": {"hidden": "bayes"}}}
    exp = trained("trigram", config)
    assert "trigram" in run("perplexity", "--text", plain_text / "valid.txt", "--lm", exp)


@pytest.fixture
def installed(packages, monkeypatch):
    """Make the packages known to this process."""
    monkeypatch.syspath_prepend(packages)
    for names in (KINDS, READERS):
        monkeypatch.delitem(vars(names), "_entry_points", raising=False)
    yield
    for names in (KINDS, READERS):
        vars(names).pop("_entry_points", None)
        for name in GROUPS:
            names._known.pop(name, None)


def test_the_weights_and_the_bias_of_a_unit_are_sampled_together(installed):
    uncertainty = {"ffn@1": {"kind": "drop_units", "rate": 0.5}}
    lm = BayesTransformerLM(20, att_unit=8, head=2, unit=40, layer=1, uncertainty=uncertainty)
    layer = lm.blocks[0].linear1
    mean = layer.weight.detach(), layer.bias.detach()
    with lm.sampled(0):
        weight, bias = layer.weight.detach(), layer.bias.detach()
    kept = bias != 0
    assert 5 < kept.sum() < 35
    assert torch.equal(weight, 2 * mean[0] * kept[:, None]) and torch.equal(
        bias, 2 * mean[1] * kept
    )
    lm.train()(torch.ones(1, 3, dtype=torch.long))[0].sum().backward()
    grads = lm.blocks[0].linear1.weight.grad, lm.blocks[0].linear1.bias.grad
    assert torch.equal((grads[0] == 0).all(1), grads[1] == 0) and grads[1].count_nonzero() > 5
    # gates are rows of four parameters
    lm = BayesLSTMLM(20, unit=30, nlayers=1, uncertainty={"cell_input@1": "drop_units"})
    names = [f"{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    with lm.sampled(1):
        sampled = [getattr(lm.rnn, name)[60:90].detach() for name in names]
    dropped = [rows.flatten(1).eq(0).all(1) if rows.dim() > 1 else rows == 0 for rows in sampled]
    assert dropped[0].any() and all(torch.equal(rows, dropped[0]) for rows in dropped)
    assert "drop_units" in Position(weights=()).kinds and not lm.kl()


def test_a_format_is_named_in_help_and_error(installed):
    help_text = " ".join(get_parser().format_help().split())
    assert "vosk, beams, tsv, htk, kaldi_lattice (default: as names" in help_text
    with pytest.raises(InputError, match=r"unknown N-best format 'csv'.*beams, tsv, htk"):
        read_nbest("lists", "csv")


@pytest.mark.parametrize(
    "text, message",
    [
        ("u1\t-1.5\ta\nu2\tx\ta\n", ":2: could not convert string to float: 'x'"),
        ("u1\t-1.5\ta\nu2\t-1\n", r":2: zip\(\) argument 2 is shorter"),
        ("u1\t-1.5\ta\nu2\n", ":2: the utterance 'u2' has no hypothesis"),
        ("u1\t-1.5\ta\nu1\t-1\ta\n", ": the utterance 'u1' comes twice"),
        ("", ": no utterances"),
    ],
)
def test_an_error_of_a_format_has_a_place(text, message, installed, lists):
    lists.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(lists)) + message):
        list(read_nbest(lists, "tsv"))


def test_any_error_of_a_reader_names_the_path(lists, monkeypatch):
    for reader, message in {
        lambda path: iter([{}["key"]]): ": KeyError: 'key'",
        lambda path: iter([3]): ": the reader of the format own gives 3, no NBest",
    }.items():
        monkeypatch.setitem(READERS, "own", reader)
        with pytest.raises(InputError, match=re.escape(str(lists)) + message):
            list(read_nbest(lists, "own"))


def test_objects_that_are_no_kind_and_no_lm(tmp_path, monkeypatch):
    entries = (
        (KINDS, "Number", "3", "it is 3, and a dataclass derived from `Kind` was expected"),
        (KINDS, "another", "Point", "the `name` of the class is 'point'"),
        (LMS, "text", "'an LM'", "it is 'an LM', and a class derived from `UncertainLM` was"),
        (LMS, "Upper", "BayesLSTMLM", "ESPnet wants a name in lower case"),
    )
    module = ["from espnet_bayeslm.bayes.base_kinds import Point"]
    module.append("from espnet_bayeslm.lm import BayesLSTMLM")
    info = tmp_path / "strange-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1\n")
    points = ""
    for names, name, value, _ in entries:
        module.append(f"{name}_ = {value}")
        points += f"[{names.group}]\n{name} = bayeslm_strange:{name}_\n"
    (tmp_path / "bayeslm_strange.py").write_text("\n".join(module))
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    for names, name, _, fault in entries:
        read = Registry(
            names.noun, group=names.group, built_in=names.built_in, fault_of=names.fault_of
        )
        message = re.escape(f"{names.noun} {name!r} of the package strange: {fault}")
        with pytest.raises(InputError, match=message):
            read[name]


def test_entry_points_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "bayeslm_bad.py").write_text("import missing_module\n")
    (tmp_path / "bayeslm_odd.py").write_text("thing = 3\n")
    info = tmp_path / "bad-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    points = "[things]\nbad = bayeslm_bad:x\nodd = bayeslm_odd:thing\nour = bayeslm_bad:x\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    things = Registry(
        "thing",
        group="things",
        built_in={"our": "math:pi"},
        fault_of=lambda name, thing: f"{thing} is odd",
    )
    things["own"] = 1
    assert list(things) == ["our", "bad", "odd", "own"] and len(things) == 4
    assert things["our"] == pytest.approx(3.14, abs=0.01) and things.get("none", 5) == 5
    for name, message in {
        "bad": r"thing 'bad' of the package bad: it cannot be imported \(ModuleNotFoundError: .*"
        r"Mend or remove its entry point `bad = bayeslm_bad:x` of the group things",
        "odd": "thing 'odd' of the package bad: 3 is odd",
        "none": "unknown thing 'none': valid things are our, bad, odd, own",
    }.items():
        with pytest.raises(InputError, match=message):
            things[name]
    with pytest.raises(InputError, match="unknown thing 3: valid"):
        things[3]
    del things["own"]
    assert "own" not in things
