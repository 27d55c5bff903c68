"""`bayeslm configs`, and --config by name."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from espnet_bayeslm.bin import lm_train
from espnet_bayeslm.bin.configs import main
from espnet_bayeslm.configs import (
    FOLDER,
    SIZES,
    find_config,
    inherited_size_options,
    shipped,
    size_options,
)
from espnet_bayeslm.training import plain_text
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.training.train_options import TrainOptions
from espnet_bayeslm.utils.errors import InputError

ROOT = Path(__file__).parents[2]


def test_shipped_ones_have_a_line_each_and_are_in_conf(capsys):
    main([])
    lines = capsys.readouterr().out.splitlines()
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    assert [line.split()[0] for line in lines] == names
    descriptions = [line.split(maxsplit=1)[1] for line in lines]
    assert len(set(descriptions)) == len(lines)
    assert all(20 < len(d) < 120 and d[-1] not in ".:" for d in descriptions)
    assert all(d.count("(") == d.count(")") for d in descriptions)
    for path in shipped().values():
        assert (ROOT / "conf" / path.name).read_bytes() == path.read_bytes()


def test_one_is_printed_and_copied_by_its_name(capsys, tmp_path, refused):
    expected = (FOLDER / "bayes_lstm.yaml").read_text()
    main(["bayes_lstm"])
    assert capsys.readouterr().out == expected
    copy = tmp_path / "mine.yaml"
    main(["bayes_lstm", "--output", str(copy)])
    assert copy.read_text() == expected
    refused(main, ["gp_lstm", "--output", copy], "exists already")
    refused(main, ["--output", tmp_path / "all.yaml"], "--output without a name")
    with pytest.raises(InputError, match="Did you mean bayes_lstm"):
        find_config("bayes_ltsm")
    # another folder's file is not the shipped one of its name
    with pytest.raises(InputError, match="no such file"):
        find_config(tmp_path / "bayes_lstm.yaml")


@pytest.mark.parametrize("name", ["bayes_lstm", "bayes_lstm.yaml", "conf/bayes_lstm.yaml"])
def test_a_shipped_one_is_found_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config(name) == FOLDER / "bayes_lstm.yaml"
    args = plain_text.parse_training_options(find_config(name), [])
    assert args.lm_conf == yaml.safe_load((FOLDER / "bayes_lstm.yaml").read_text())["lm_conf"]
    # a file of the user's wins
    Path("bayes_lstm").write_text("lm: seq_rnn\n")
    assert find_config("bayes_lstm") == Path("bayes_lstm")


def test_sizes(point, tmp_path):
    """Those of --size, or of the trained LM (unit 8)."""

    def chosen(config, **options):
        given_options = {"train_text": "x", "valid_text": "x", "exp": "x", **options}
        wanted = TrainOptions(config=config, **given_options)
        return given(plain_text.lm_options(wanted, find_config(config)))

    assert chosen("point_lstm") == {}
    small = SIZES["small"]["bayes_lstm"]
    assert small.items() <= chosen("point_lstm", size="small").items()
    assert chosen("bayes_lstm", source=point)["unit"] == 8
    config = yaml.safe_load((FOLDER / "bayes_lstm.yaml").read_text())
    mine, conf = tmp_path / "mine.yaml", config["lm_conf"]
    mine.write_text(yaml.safe_dump({**config, "lm_conf": {**conf, "unit": 16}}))
    assert chosen(mine, source=point)["unit"] == 8
    with pytest.raises(InputError, match="LMs with sizes are bayes_lstm, bayes_transformer"):
        chosen("adapt_seq_rnn", size="small")


def test_espnets_command_line_is_parsed_once(point, tmp_path, monkeypatch):
    """With the size's options, of which words of the user's take the place."""
    parsers, get_parser = [], BayesLMTask.get_parser

    def counted(cls):
        parsers.append(get_parser())
        return parsers[-1]

    monkeypatch.setattr(BayesLMTask, "get_parser", classmethod(counted))
    given_options = {"train_text": "x", "valid_text": "x", "exp": tmp_path / "exp"}
    words = ["--max_epoch", "3", "--lm_conf", "nlayers=1", "--init_param", "mine.pth"]
    wanted = TrainOptions(config="bayes_lstm", size="small", **given_options, espnet_options=words)
    args = plain_text.training_options(dataclasses.replace(wanted, source=point))
    assert len(parsers) == 1 and args.resume and args.output_dir == str(tmp_path / "exp")
    assert (args.max_epoch, args.lm_conf["unit"], args.lm_conf["nlayers"]) == (3, 256, 1)
    assert args.init_param == ["mine.pth"] and args.fold_length == [150]


SMALL = {"dropout_rate": 0.0, "init_std": 0.5, "init_std_unit": "weights"}


@pytest.mark.parametrize(
    "att_unit, size", [(64, "small"), (128, "small"), (512, "paper"), (640, "paper")]
)
def test_what_goes_with_a_size(att_unit, size, tmp_path):
    """A shipped configuration has what suits the start's size, others their own options."""
    shipped = FOLDER / "bayes_transformer.yaml"
    source = {"att_unit": att_unit, "head": 1, "dropout_rate": 0.7}
    chosen = SMALL if size == "small" else {}
    words = inherited_size_options(shipped, "bayes_transformer", source)
    assert given(words) == {"att_unit": att_unit, "head": 1, **chosen}
    sizes = SIZES[size]["bayes_transformer"]
    assert given(size_options(shipped, "bayes_transformer", size)) == {**sizes, **chosen}
    mine = tmp_path / "bayes_transformer.yaml"
    mine.write_text(shipped.read_text())
    words = inherited_size_options(mine, "bayes_transformer", source)
    assert given(words) == {"att_unit": att_unit, "head": 1}
    assert given(size_options(mine, "bayes_transformer", size)) == sizes


def given(words):
    """Options of `lm_conf` as words, as a mapping."""
    assert set(words[::2]) <= {"--lm_conf"}
    return yaml.safe_load("\n".join(word.replace("=", ": ") for word in words[1::2])) or {}


def test_espnets_training_finds_them_by_name(corpus, tmp_path, train_lm, monkeypatch):
    words = []
    monkeypatch.setattr(BayesLMTask, "main", lambda cmd: words.extend(cmd))
    lm_train.main(["--config", "bayes_transformer", "--size", "small", "--lm_conf", "head=2"])
    args = lm_train.get_parser().parse_args(words)
    conf = yaml.safe_load((FOLDER / "bayes_transformer.yaml").read_text())["lm_conf"]
    small = {"att_unit": 128, "unit": 512, "layer": 6, "head": 2}
    assert args.lm_conf == {**conf, **small, **SMALL}


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--lm_conf units=3", ["lm_conf: BayesLSTMLM has no 'units'", "Did you mean unit?"]),
        ("--lm_conf latent_dim=3", ["{LOCATION: {kind: variational, latent_dim: ...}}"]),
        ("--model_conf warmth=3", ["model_conf: ESPnetLanguageModel has no 'warmth'"]),
        ("--optim adam --optim_conf beta=3", ["optim_conf: Adam has no 'beta'", "betas?"]),
        ("--optim adam --optim_conf lr=abc", ["optim_conf of adam, {'lr': 'abc'}: "]),
        (
            "--scheduler warmuplr --scheduler_conf gamma=0.5",
            ["scheduler_conf: WarmupLR has no 'gamma'; valid are warmup_steps", "change a copy"],
        ),
    ],
)
def test_unknown_keys(train_lm, tmp_path, words, expected):
    with pytest.raises(InputError) as error:
        train_lm(tmp_path / "exp", "--lm", "bayes_lstm", "--model", "lm", *words.split())
    assert all(word in str(error.value) for word in expected)
    assert "\n" not in str(error.value)
