"""What a step does on CUDA, counted on a CPU: the code takes its ways for CUDA, on real values."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from espnet_bayeslm.utils.errors import InputError

BENCH = Path(__file__).parents[2] / "bench" / "kernels.py"
spec = importlib.util.spec_from_file_location("kernels", BENCH)
kernels = sys.modules.setdefault("kernels", importlib.util.module_from_spec(spec))
spec.loader.exec_module(kernels)

CASES = [(family, name) for family, cases in kernels.CASES.items() for name in cases]


@pytest.fixture(autouse=True)
def _short(monkeypatch, fast_kernels):
    monkeypatch.setattr(kernels, "LENGTH", 7)


def model_of(family, name):
    return kernels.make_model(family, kernels.CASES[family][name])


@pytest.mark.parametrize("family, name", CASES)
def test_a_training_step_waits_once_for_the_device(family, name):
    counts = kernels.count(model_of(family, name), "train")
    # the sentences' lengths, and with them whether the loss of the step before is finite
    assert +counts.syncs == {"cpu": 1}
    # where the real tokens are, and the slots that attention gives them
    assert +counts.copies == {"to": 1 + (family == "transformer")}


@pytest.mark.parametrize("phase", ["valid", "tree", "beam"])
@pytest.mark.parametrize("family, name", CASES[::3])
def test_scoring_never_waits(family, name, phase):
    counts = kernels.count(model_of(family, name), phase)
    assert +counts.syncs == ({"cpu": 1} if phase == "valid" else {})
    # positions and rows of the table of keys and values in one; who sees them
    copies = {
        "valid": 1 + (family == "transformer"),
        "tree": 0,
        "beam": 2 * (family == "transformer"),
    }[phase]
    assert counts.copies.total() == copies


@pytest.mark.parametrize("then", ["step", "validation"])
def test_a_loss_that_is_not_finite_is_found_with_the_next_transfer(then):
    model = kernels.make_model("lstm", {"cell_input@1": "bayes"})
    with kernels.pretended():
        kernels.move(model).train()
        batch = [kernels.on_device(x) for x in kernels.make_batch()]
        model(*batch)
        model(*batch)
        with torch.no_grad():
            model.lm.decoder.bias.fill_(float("nan"))
        model(*batch)
        with pytest.raises(InputError, match="the training loss is nan at step 3 of this run"):
            model(*batch) if then == "step" else model.eval()
        # once
        model.eval()


def test_lengths_that_come_with_the_loss_before_are_those_of_the_batch():
    model = kernels.make_model("transformer", {})
    with kernels.pretended():
        kernels.move(model).train()
        batch = [kernels.on_device(x) for x in kernels.make_batch()]
        losses = []
        for _ in range(2):
            torch.manual_seed(0)  # dropout
            losses.append(float(model(*batch)[0]))
    assert losses[0] == losses[1]
