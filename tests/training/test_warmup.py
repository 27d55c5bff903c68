"""A point-estimate phase and then the uncertain one, and the average of the best epochs."""

import math

import pytest
import torch
from tiny_training import words
from training_options import ADAM, CELL, IVON, LSTM, assert_same

from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.loading.checkpoint import load_state, read_checkpoint
from espnet_bayeslm.training import trainer as trainer_module
from espnet_bayeslm.training.trainer import BayesLMTrainer
from espnet_bayeslm.utils.errors import InputError

POINT = [*LSTM, "--optim", "adam", "--optim_conf", "lr=0.02", "--scheduler", "reducelronplateau"]
BAYES = [*POINT, "--lm_conf", "uncertainty.cell_input@1=bayes"]
WARM = [*BAYES, "--model_conf", "warmup_epochs=2", "--model_conf", "prior=start"]
STD, PRIOR = (f"lm.rnn.weight_hh_l0_cell_input_{name}" for name in ("log_std", "prior_mean"))


@pytest.fixture(scope="module")
def whole(train_lm, tmp_path_factory):
    """Return an experiment of two epochs of each phase."""
    return train_lm(tmp_path_factory.mktemp("warmup") / "exp", *WARM, max_epoch=2)


def test_it_is_the_training_in_two_steps(train_lm, tmp_path):
    """A point-estimate LM, then the Bayesian one from it, as `bayeslm train --from` does."""
    more = ["--accum_grad", 2]
    one = train_lm(tmp_path / "one", *WARM, *more, max_epoch=2)
    point = train_lm(tmp_path / "point", *POINT, *more, "--model", "bayes_lm", max_epoch=2)
    start = (point / "valid.loss.ave.pth").resolve()
    prior = ["--init_param", start, "--model_conf", f"prior={start}"]
    # ESPnet's seed of an epoch is the sum of both
    two = train_lm(tmp_path / "two", *BAYES, *more, *prior, "--seed", 2, max_epoch=2)
    ours, theirs = load_state(one / "warmup.pth"), load_state(start)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert_same(one / "4epoch.pth", two / "2epoch.pth", rtol=1e-3, atol=1e-5)


def test_the_phases(whole):
    warm, end = load_state(whole / "warmup.pth"), load_state(whole / "4epoch.pth")
    assert torch.all(warm[STD] == warm[STD].flatten()[0]) and not torch.equal(warm[STD], end[STD])
    assert torch.equal(end[PRIOR], warm["lm.rnn.weight_hh_l0"][16:24])
    stats = read_checkpoint(whole / "checkpoint.pth")["reporter"]["stats"]
    assert sorted(stats) == [3, 4] and all(stats[e]["train"]["kl"] > 0 for e in stats)
    # no checkpoint of the warm-up can be the best
    assert (whole / "valid.loss.ave.pth").resolve().name in ("3epoch.pth", "4epoch.pth")


def test_a_phase_that_ends_early_does_not_lengthen_the_next(train_lm, tmp_path):
    """Without learning no epoch is better than the first. A stopped training has as many."""
    still = ["--optim_conf", "lr=0.0", "--model_conf", "warmup_epochs=5", "--patience", "1"]
    for max_epoch in (1, 2):
        output = train_lm(tmp_path / "exp", *WARM, *still, max_epoch=max_epoch, resume="true")
        reporter = read_checkpoint(output / "checkpoint.pth")["reporter"]
        # the first three are of the point-estimate phase
        assert sorted(reporter["stats"]) == list(range(4, 4 + max_epoch))


def test_the_uncertain_phase_starts_from_the_trained_weights(train_lm, tmp_path, monkeypatch):
    """Where deviations are in units of the weights' spread, it is that of the trained weights."""

    def stop_after_switch(*args):
        switch(*args)
        raise KeyboardInterrupt

    switch, relative = trainer_module.begin_bayesian_phase, ["--lm_conf", "init_std_unit=weights"]
    monkeypatch.setattr(trainer_module, "begin_bayesian_phase", stop_after_switch)
    options = [*WARM, *relative, "--lm_conf", "init_std=0.25", "--keep_nbest_models", "2"]
    with pytest.raises(KeyboardInterrupt):
        train_lm(tmp_path / "exp", *options, max_epoch=1)
    state = read_checkpoint(tmp_path / "exp" / "checkpoint.pth")["model"]
    trained = load_state(tmp_path / "exp" / "warmup.pth")["lm.rnn.weight_hh_l0"][16:24]
    start = (0.25 * trained.std(correction=0)).log()
    torch.testing.assert_close(state[STD], start.expand_as(state[STD]))
    # no link leads to a point estimate
    assert not [*(tmp_path / "exp").glob("*.ave*.pth"), *(tmp_path / "exp").glob("*.best.pth")]


@pytest.mark.parametrize("place", ["epoch 2", "before the switch", "after the switch"])
def test_stopped_and_resumed(place, whole, train_lm, tmp_path, monkeypatch):
    validate, switch = BayesLMTrainer.validate_one_epoch, trainer_module.begin_bayesian_phase

    def stop_in_epoch(**kwargs):
        if place == f"epoch {kwargs['reporter'].epoch}":
            raise KeyboardInterrupt
        validate(**kwargs)

    def stop_at_switch(*args):
        if place != "before the switch":
            switch(*args)
        if place.endswith("switch"):
            raise KeyboardInterrupt

    command = [*WARM, "--resume", "true"]
    with monkeypatch.context() as patch:
        patch.setattr(BayesLMTrainer, "validate_one_epoch", stop_in_epoch)
        patch.setattr(trainer_module, "begin_bayesian_phase", stop_at_switch)
        with pytest.raises(KeyboardInterrupt):
            train_lm(tmp_path / "exp", *command, max_epoch=2)
    train_lm(tmp_path / "exp", *command, max_epoch=2)
    for name in ("4epoch.pth", "warmup.pth"):
        assert_same(tmp_path / "exp" / name, whole / name)


@pytest.mark.parametrize(
    "options, message",
    [
        ([*BAYES, "--model_conf", "prior=start"], "without a point-estimate phase"),
        ([*WARM, "--model_conf", "warmup_epochs=-1"], "warmup_epochs -1: expected 0 or more"),
        ([*POINT, "--model_conf", "warmup_epochs=-1"], "warmup_epochs -1: expected 0 or more"),
        ([*WARM, "--lm_conf", "uncertainty.cell_state@2=gp"], "all of kind bayes.*gp_"),
    ],
)
def test_what_cannot_be(options, message, train_lm, tmp_path):
    with pytest.raises(InputError, match=message):
        train_lm(tmp_path / "exp", *options, "--model", "bayes_lm", max_epoch=3)
    assert not (tmp_path / "exp" / "checkpoint.pth").exists()


def test_a_point_estimate_has_no_warmup(train_lm, tmp_path):
    """A shipped configuration without its uncertainty is the point estimate to compare with."""
    asked = ["--lm_conf", "uncertainty={}"]
    exp = train_lm(tmp_path / "exp", *WARM, *asked, max_epoch=1)
    point = train_lm(tmp_path / "point", *POINT, "--model", "bayes_lm", max_epoch=1)
    assert_same(exp / "1epoch.pth", point / "1epoch.pth")
    assert not (exp / "2epoch.pth").exists() and not (exp / "warmup.pth").exists()


@pytest.mark.parametrize(
    "unit", [{"init_std_unit": "weights"}, {"init_std_unit": "prior", "prior_variance": "learn"}]
)
@pytest.mark.parametrize("factor", [1e9, float("nan")])
def test_a_start_from_weights_that_diverged(factor, unit):
    """The start is relative to weights that are no trained LM's: init_std is not the cause."""
    lm = BayesLSTMLM(13, unit=4, uncertainty={"cell_input@1": {"kind": "bayes", **unit}})
    with torch.no_grad():
        lm.rnn.weight_hh_l0.mul_(factor)
    with pytest.raises(InputError, match=r"cell_input@1.* training diverged.*learning rate") as e:
        lm.posterior.start_untrained()
    assert "init_std" not in str(e.value)


def test_a_warning_of_random_weights_from_scratch(whole, train_lm, tmp_path, caplog):
    words = "random weights are trained from scratch"
    train_lm(tmp_path / "scratch", *BAYES)
    assert words in caplog.text
    caplog.clear()
    train_lm(tmp_path / "point", *POINT)
    train_lm(tmp_path / "from", *BAYES, "--init_param", whole / "warmup.pth")
    train_lm(tmp_path / "ivon", *LSTM, *IVON)
    assert words not in caplog.text


def test_the_kl_rises_after_the_point_estimate_phase(train_lm, tmp_path, monkeypatch):
    """Epoch 2 is the first uncertain one: its factor is 1/3, then 2/3, then 1."""
    factors = {}
    run_epoch = trainer_module.Trainer.train_one_epoch.__func__

    def train_one_epoch(cls, model, **kwargs):
        factors[kwargs["reporter"].epoch] = model.kl_weight
        return run_epoch(cls, model=model, **kwargs)

    monkeypatch.setattr(trainer_module.Trainer, "train_one_epoch", classmethod(train_one_epoch))
    more = ["--model_conf", "kl_warmup_epochs=2", "--model_conf", "kl_weight=0.3"]
    one = [*BAYES, "--model_conf", "warmup_epochs=1", "--model_conf", "prior=start", *more]
    for epochs in (1, 4):  # it goes on after a stop
        train_lm(tmp_path / "exp", *one, "--resume", "true", max_epoch=epochs)
    factors.pop(1)
    assert factors == pytest.approx({2: 0.1, 3: 0.2, 4: 0.3, 5: 0.3})


def test_a_trained_lm_takes_the_place_of_the_warmup(whole, train_lm, tmp_path):
    """No epoch of it is trained."""
    zero = ["--model_conf", "warmup_epochs=2", "--model_conf", "prior=zero"]
    start = ["--init_param", whole / "warmup.pth"]
    exp = train_lm(tmp_path / "exp", *BAYES, *zero, *start, max_epoch=2)
    stats = read_checkpoint(exp / "checkpoint.pth")["reporter"]["stats"]
    assert sorted(stats) == [1, 2] and stats[1]["train"]["kl"] > 0
    assert not (exp / "warmup.pth").exists()


def test_means_are_averaged_and_standard_deviations_by_their_logarithms(train_lm, tmp_path):
    """Over the two best epochs, of which none is of the point-estimate phase."""
    random = ["uncertainty.embedding=bayes", "prior_variance=learn_rows"]
    warm = words(lm_conf=random, model_conf=["warmup_epochs=1", "prior=start"])
    options = [*LSTM, *CELL, *ADAM, *warm, "--keep_nbest_models", "2"]
    exp = train_lm(tmp_path / "exp", *options, max_epoch=3)
    stats = read_checkpoint(exp / "checkpoint.pth")["reporter"]["stats"]
    assert len(stats) == 3
    best = sorted(stats, key=lambda epoch: stats[epoch]["valid"]["loss"])[:2]
    assert (exp / "valid.loss.ave.pth").resolve().name == "valid.loss.ave_2best.pth"
    states = [load_state(exp / f"{epoch}epoch.pth") for epoch in best]
    kinds = {"mean": 0, "log_std": 0, "prior_mean": 0}
    for key, value in load_state(exp / "valid.loss.ave.pth").items():
        if not value.is_floating_point():
            continue
        each = torch.stack([state[key] for state in states])
        torch.testing.assert_close(value, each.mean(0), rtol=1e-5, atol=1e-7, msg=key)
        if key.endswith("_prior_mean"):  # the same in all epochs
            torch.testing.assert_close(value, each[0], rtol=1e-6, atol=1e-9, msg=key)
            kinds["prior_mean"] += bool(value.any())
        else:
            kind = "log_std" if key.endswith("_log_std") else "mean"
            kinds[kind] += not torch.equal(each[0], each[1])
    assert min(kinds.values()) > 0


def test_standard_deviations_are_reported_over_their_start():
    """By geometric means over all weights of a location, exactly."""
    lm = BayesLSTMLM(5, unit=2, nlayers=2, uncertainty={"cell_input@*": "bayes"})
    model = torch.nn.Module()
    model.lm = lm
    count = len(trainer_module.report_sigma(model, epoch=1))
    assert trainer_module.report_sigma(model, epoch=1) == pytest.approx([1.0] * count, rel=1e-6)
    with torch.no_grad():
        for name, value in lm.named_parameters():
            if name.endswith("_log_std"):
                value += 0.5 + 0.25 * (torch.arange(value.numel()) % 2).view_as(value)
    # the weights of a location are even in number
    ratios = trainer_module.report_sigma(model, epoch=2)
    assert ratios == pytest.approx([math.exp(0.625)] * count, rel=1e-5)
