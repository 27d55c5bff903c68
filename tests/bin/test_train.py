"""`bayeslm train`: plain text in, a trained LM out; `--from` anybody's ESPnet LM."""

import re
import shutil
import subprocess

import pytest
import torch
import yaml
from command_lines import SHORT
from tiny_training import words

from espnet_bayeslm.bayes.base_kinds import is_posterior_key
from espnet_bayeslm.bin.train import main
from espnet_bayeslm.loading.experiment import read_checkpoint
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.epoch_lines import EpochLines
from espnet_bayeslm.training.trainer import BayesLMTrainer
from espnet_bayeslm.utils.errors import InputError

POINT = {"lm": "bayes_lstm", "lm_conf": {"unit": 8, "dropout_rate": 0.0}, "optim": "adam", **SHORT}
BAYES = {**POINT, "lm_conf": {**POINT["lm_conf"], "uncertainty": {"cell_input@1": "bayes"}}}


@pytest.fixture
def command(plain_text, tmp_path):
    """Return a function: configuration, experiment, more options -> command line."""
    for part in ("train", "valid"):
        text = (plain_text / f"{part}.txt").read_text()
        (tmp_path / f"{part}.txt").write_text(text + "\n")
    for name, config in (("point", POINT), ("bayes", BAYES)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
    texts = ["--train_text", f"{tmp_path}/train.txt", "--valid_text", f"{tmp_path}/valid.txt"]

    def make(config="point", exp="exp", *options):
        start = ["--config", f"{tmp_path}/{config}.yaml", "--exp", f"{tmp_path}/{exp}"]
        return [*texts, *start, *map(str, options)]

    return make


def test_from_gives_start_and_prior(command, point, bayes, tmp_path):
    """The start alone where the configuration chooses a zero prior."""
    zero = {**BAYES, "model_conf": {"prior": "zero"}}
    (tmp_path / "zero.yaml").write_text(yaml.safe_dump(zero))
    nameless = {key: value for key, value in BAYES.items() if key != "lm"}
    (tmp_path / "nameless.yaml").write_text(yaml.safe_dump(nameless))
    still = ["--max_epoch", "1", "--optim_conf", "lr=0.0"]
    for name, source, *options in (
        ("bayes", point),
        # also where the start has a prior of its own
        ("zero", bayes),
        ("nameless", point, "--lm", "bayes_lstm"),
    ):
        main(command(name, name, "--from", source, *still, *options))
        lm, start = load_lm(tmp_path / name).lm, load_lm(source).lm.rnn.weight_hh_l0
        assert lm.locations() == ["cell_input@1"]
        assert torch.equal(lm.rnn.weight_hh_l0, start)
        prior = torch.zeros_like(start) if name == "zero" else start
        assert torch.equal(lm.rnn.weight_hh_l0_cell_input_prior_mean, prior[16:24])
    config = yaml.safe_load((tmp_path / "bayes" / "config.yaml").read_text())
    assert config["max_epoch"] == 1


def test_from_gives_an_lm_of_espnet_its_start(command, seq_rnn, tmp_path):
    config = {**POINT, "lm": "seq_rnn", "lm_conf": {"unit": 8, "nlayers": 1}}
    (tmp_path / "espnet.yaml").write_text(yaml.safe_dump(config))
    still = ["--max_epoch", "1", "--optim_conf", "lr=0.0"]
    main(command("espnet", "again", "--from", seq_rnn, *still))
    weights, start = (load_lm(exp).lm.state_dict() for exp in (tmp_path / "again", seq_rnn))
    assert all(torch.equal(weights[name], value) for name, value in start.items())
    assert "prior" not in yaml.safe_load((tmp_path / "again/config.yaml").read_text())["model_conf"]


def test_a_training_speaks(command, tmp_path, python):
    """On stderr a line for each epoch, on stdout the result, ESPnet's own log in the folder."""
    exp = tmp_path / "exp"
    tool = [python, "-m", "espnet_bayeslm.bin.bayeslm", "train"]
    options = command("bayes", "exp", "--keep_nbest_models", "2")
    result = subprocess.run([*tool, *options], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    first, warning, *epochs = result.stderr.splitlines()
    assert "random weights are trained from scratch" in warning
    number = r"\d+\.\d+"
    assert str(exp / "train.log") in first
    assert len(epochs) == 2, result.stderr
    for epoch, line in enumerate(epochs, 1):
        assert re.fullmatch(
            f"epoch {epoch}/2: train ppl {number}, valid ppl {number}( .best so far.)?,"
            f" KL {number} nats/token, sigma x {number} of its start, 0:00:[0-9]+ left at most",
            line,
        ), line
    perplexity, checkpoint, following = result.stdout.splitlines()
    shown = [float(re.search(r"valid ppl ([0-9.]+)", line)[1]) for line in epochs]
    assert f"validation perplexity {min(shown):.2f} " in perplexity
    averaged = ", the average of the 2 best epochs"
    assert checkpoint == f"checkpoint: {exp}/valid.loss.ave.pth{averaged}"
    assert f"--lm {exp} " in following
    assert "[train]" in (exp / "train.log").read_text()


def test_ctrl_c_and_the_same_command_again(command, tmp_path, capsys, monkeypatch):
    validate = BayesLMTrainer.validate_one_epoch

    def stop(**kwargs):
        if kwargs["reporter"].epoch == 2:
            raise KeyboardInterrupt
        validate(**kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(BayesLMTrainer, "validate_one_epoch", stop)
        with pytest.raises(SystemExit) as stopped:
            main(command())
    assert stopped.value.code == 130
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "stopped" in x]
    assert "the same command goes on" in line
    assert not (tmp_path / "exp/2epoch.pth").exists()
    before, add = [], EpochLines.add
    monkeypatch.setattr(EpochLines, "add", lambda s, *a: before.append(s.best) or add(s, *a))
    main(command())
    stats = read_checkpoint(tmp_path / "exp/checkpoint.pth")["reporter"]["stats"]
    assert before == [float(stats[1]["valid"]["ppl"])], "the best so far is that of all epochs"
    assert "The training was resumed" in (tmp_path / "exp/train.log").read_text()
    assert (tmp_path / "exp/latest.pth").resolve().name == "2epoch.pth"


def test_an_lm_of_pieces_may_move(command, tmp_path, monkeypatch):
    """And is read from any folder: its config.yaml has the path of its model as it was."""
    pieces = ["--token_type", "bpe", "--max_epoch", "1", "--vocab_size"]
    relative = command("point", "first", *pieces, 20)
    relative[relative.index("--exp") + 1] = "first"
    monkeypatch.chdir(tmp_path)
    main(relative)
    score = load_lm(tmp_path / "first").score("a b c")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_lm(tmp_path / "first").score("a b c") == score
    (tmp_path / "first").rename(tmp_path / "moved")
    assert load_lm(tmp_path / "moved").score("a b c") == score
    # another LM where it was does not lend it its model
    main(command("point", "first", *pieces, 14))
    assert load_lm(tmp_path / "moved").score("a b c") == score
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "moved/data/bpe.model").unlink()
    with pytest.raises(InputError, match="its word-piece model is not there"):
        load_lm(tmp_path / "moved")


@pytest.mark.parametrize(
    "change, message",
    [
        ("--config bayes_ltsm", "of that name. Did you mean bayes_lstm"),
        ("--vocab_size 3", "no token beside the special ones"),
        ("--max_epoch 0", "no epoch was trained"),
    ],
)
def test_bad_input(command, tmp_path, fails, change, message):
    found = fails(main, command("point", "exp", *change.split()))
    assert found.startswith("bayeslm train: error:") and message in found and ".. " not in found
    assert not list(tmp_path.glob("exp/*.pth"))


def test_signs_that_end_a_path_in_espnets_options(command, point, tmp_path, fails):
    """Batches as the recipes' need no other option either."""
    assert "--exp with a `,`" in fails(main, command("point", "a,b"))
    source = shutil.copytree(point, tmp_path / "run: 1 #2", symlinks=True)
    error = fails(main, command("bayes", "exp", "--from", source))
    assert "Rename the folder" in error and not (tmp_path / "exp").exists()
    source = source.rename(tmp_path / "run #2")
    given = ["--max_epoch", "1", "--batch_type", "folded", "--from", source]
    main(command("bayes", "exp: 1 #2", *given))
    assert load_lm(tmp_path / "exp: 1 #2").score("a") < 0


ADAM = ["--optim", "adam", "--optim_conf", "lr=0.005"]
TRANSFORMER = dict(embed_unit=6, att_unit=8, head=2, unit=12, layer=2)
BLOCK = ["attention@*", "ffn@*", "ffn_out@*", "embedding", "output"]
EVERYTHING = {"seq_rnn": ["all_gates@*", "embedding", "output"]}
EVERYTHING |= dict.fromkeys(("transformer", "transformer_opt"), BLOCK)


def options(name, conf):
    """Return ESPnet's options for one of its LMs."""
    return words(lm=name, lm_conf=[f"{key}={value}" for key, value in conf.items()])


@pytest.fixture(scope="module")
def transformer(train_lm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lms") / "transformer"
    return train_lm(folder, *options("transformer", TRANSFORMER), *ADAM)


@pytest.fixture(scope="module")
def transformer_opt(train_lm, pretrained_opt, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lms") / "opt"
    conf = {"opt_name": pretrained_opt(word_embed_proj_dim=8)}
    return train_lm(folder, *options("transformer_opt", conf), *ADAM)


@pytest.fixture
def adapt(command, tmp_path):
    """Return a function that adapts a trained LM by a configuration, and returns the result."""

    def run(source, config, *words, exp="adapted"):
        (tmp_path / "adapting.yaml").write_text(yaml.safe_dump(config))
        main(command("adapting", exp, "--from", source, *words))
        return load_lm(tmp_path / exp)

    return run


def configuration(locations, **lm_conf):
    lm_conf = {"uncertainty": locations, "init_std": 0.01, **lm_conf}
    rate = {"optim": "adam", "optim_conf": {"lr": 0.003}}
    return {"lm": "bayes_espnet", "lm_conf": lm_conf, **rate, **SHORT}


def point_weights(model):
    return {k: v for k, v in model.state_dict().items() if not is_posterior_key(k)}


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_source_is_backbone_start_and_prior(adapt, plain_text, request, name):
    source = load_lm(request.getfixturevalue(name))
    adapted = adapt(source.path.parent, configuration(dict.fromkeys(EVERYTHING[name], "bayes")))
    written = yaml.safe_load(adapted.config.read_text())["lm_conf"]
    theirs = yaml.safe_load(source.config.read_text())["lm_conf"]
    assert (written["backbone"], written["backbone_conf"]) == (name, theirs)
    assert adapted.token_list == source.token_list
    weights = source.model.state_dict()
    assert list(point_weights(adapted.model)) == list(weights)
    blocks = adapted.lm.posterior.blocks()
    assert blocks
    for block in blocks:
        prior = block.tensor("_prior_mean")
        assert torch.equal(prior, weights[f"lm.{block.name}"][slice(*block.rows)])
    lines = (plain_text / "valid.txt").read_text().splitlines()
    assert sum(map(adapted.score, lines)) > sum(map(source.score, lines)) + 2


def test_from_a_bayesian_one_with_that_backbone(adapt, seq_rnn):
    """At a rate of 0 all weights are those of the start."""
    config = configuration({"cell_input@1": "bayes"})
    first = adapt(seq_rnn, config, exp="first")
    other = configuration({"forget_gate@1": "bayes"}, backbone_conf={"dropout_rate": 0.3})
    second = adapt(first.path.parent, other, "--optim_conf", "lr=0.0", exp="second")
    assert second.lm.locations() == ["forget_gate@1"]
    assert (second.lm.rnn.hidden_size, second.lm.drop.p) == (8, 0.3)
    for key, value in point_weights(second.model).items():
        assert torch.equal(value, first.model.state_dict()[key]), key


@pytest.mark.parametrize(
    "lm_conf, source, message",
    [
        ({}, "bayes", "is of the kind bayes_lstm"),
        ({"backbone": "transformer"}, "seq_rnn", "kind seq_rnn"),
    ],
)
def test_sources_that_do_not_fit(adapt, request, capsys, lm_conf, source, message):
    config = configuration({"embedding": "bayes"}, **lm_conf)
    with pytest.raises(SystemExit):
        adapt(request.getfixturevalue(source), config)
    found = capsys.readouterr().err.splitlines()[-1]
    assert found.startswith("bayeslm train: error:") and message in found
