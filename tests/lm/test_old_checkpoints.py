"""Checkpoints that earlier versions of this package wrote load, and are the LMs that they were."""

from pathlib import Path

import pytest
import torch

from espnet_bayeslm.lm.mixture import LM_CLASSES

DATA = Path(__file__).parent / "data"
SEARCHES = {
    "search_lstm": [
        {"cell_input@1": "gp", "output_gate@2": "bayes", "hidden_input@1": "gp"},
        {"cell_input@1": "bayes", "hidden_output@2": "variational", "embedding": "bayes"},
    ],
    "search_transformer": [
        {"ffn@1": "gp", "attention@2": "bayes"},
        {"ffn@1": "bayes", "ffn@2": "bayes", "hidden_output@1": "variational"},
    ],
}


def read(name):
    """Read what an LM was, its weights and what it computed: `{lm, lm_conf, model, ...}`."""
    return torch.load(DATA / f"{name}.pth", weights_only=True)


def build(stored, uncertainty=None):
    conf = dict(stored["lm_conf"])
    conf["uncertainty"] = conf["uncertainty"] if uncertainty is None else uncertainty
    return LM_CLASSES[stored["lm"]](vocab_size=7, **conf).eval()


@pytest.mark.parametrize("name", ["lstm", "transformer", "espnet", *SEARCHES])
def test_an_old_checkpoint_is_the_same_lm(name, caplog):
    stored = read(name)
    lm = build(stored)
    lm.load_state_dict(stored["model"])
    assert caplog.text == ""
    torch.testing.assert_close(lm(stored["ids"])[0], stored["logits"], rtol=0, atol=1e-5)
    torch.testing.assert_close(lm.kl(), stored["kl"], rtol=1e-5, atol=0)
    assert lm.locations() == stored["locations"]
    if name not in SEARCHES:
        assert set(lm.state_dict()) == set(stored["model"])


@pytest.mark.parametrize(
    "name, number", [(name, k) for name, found in SEARCHES.items() for k in range(len(found))]
)
def test_an_architecture_takes_its_path_from_an_old_search(name, number):
    stored = read(name)
    lm = build(stored, SEARCHES[name][number])
    lm.load_state_dict(stored["model"])
    expected = stored["derived"][number]
    torch.testing.assert_close(lm(stored["ids"])[0], expected["logits"], rtol=0, atol=1e-5)
    torch.testing.assert_close(lm.kl(), expected["kl"], rtol=1e-5, atol=0)
