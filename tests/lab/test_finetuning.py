"""Fine-tuning of all weights: what adapters are compared with."""

import json

import pytest
import torch
from pretrained.tiny_models import own_log_prob, write_model
from written_files import write

from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.pretrained.text_forms import training_reader
from espnet_bayeslm.training.plain_text import best_of
from lab import finetuning

TEXT = "so we could\nso we could go on\nwell\n" * 4


@pytest.fixture
def lm(tmp_path):
    return load_causal_lm(write_model(tmp_path / "base"))


def test_nll_is_of_the_sentences_without_padding(lm):
    reader = training_reader(lm.tokenizer, finetuning.FORM)
    sentences = [["so", "we", "could"], ["well"], ["go", "on"]]
    rows = [torch.tensor([*reader.start, *reader.encode(words).ids]) for words in sentences]
    (batch,) = finetuning.batches(rows, 100)
    with torch.no_grad():
        total, count = finetuning.nll(lm.model, batch, "float32")
    expected = sum(own_log_prob(lm, reader, words) for words in sentences)
    assert float(total) == pytest.approx(-expected, rel=1e-5)
    assert count == sum(len(row) - 1 for row in rows)


def test_batches_hold_at_most_so_many_tokens_and_all_sentences():
    rows = [torch.arange(1, 1 + length) for length in (3, 5, 2, 9, 1)]
    found = list(finetuning.batches(rows, 8))
    assert [tuple(batch.shape) for batch in found] == [(1, 3), (1, 5), (1, 2), (1, 9), (1, 1)]
    found = list(finetuning.batches(rows, 10))
    assert [tuple(batch.shape) for batch in found] == [(2, 5), (1, 2), (1, 9), (1, 1)]
    assert [int(i) for batch in found for i in batch[batch > 0]] == [
        int(i) for r in rows for i in r
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_lm_that_is_written_has_the_validation_perplexity_of_its_epoch(tmp_path, precision):
    base, text = write_model(tmp_path / "base"), write(tmp_path / "text", TEXT)
    figures = {}
    for max_epoch in (1, 3):
        exp = tmp_path / str(max_epoch)
        words = ["--base", base, "--precision", precision, "--train_text", text, "--exp", exp]
        words += ["--valid_text", text, "--batch_bins", "20", "--max_epoch", max_epoch]
        words += ["--patience", "0", "--seed", "1", "--lr", "0.001"]
        finetuning.main(["finetune", *map(str, words)])
        output = tmp_path / f"{max_epoch}.json"
        words = ["--lm", f"hf:{exp / 'lm'}", "--text", text, "--text_form", "as_is"]
        finetuning.main(["perplexity", *map(str, [*words, "--output", output])])
        figures[max_epoch] = json.loads(output.read_text())["components"][0]["perplexity"]["token"]
    best, epoch, count = best_of(tmp_path / "1")
    near = pytest.approx(figures[1], rel=1e-4 if precision == "float32" else 0.01)
    assert (epoch, count) == (1, 1) and best == near
    best, epoch, count = best_of(tmp_path / "3")
    assert (epoch, count) == (3, 3) and best < figures[3] < figures[1]  # the average of two epochs


def test_training_ends_after_an_epoch_without_a_gain(tmp_path):
    base = write_model(tmp_path / "base")
    train, valid = (write(tmp_path / name, text) for name, text in (("a", "go\n" * 9), ("b", TEXT)))
    finetuning.finetune(
        base=base, precision="float32", train_text=train, valid_text=valid, batch_bins=4, lr=0.05,
        max_epoch=9, patience=0, seed=1, exp=tmp_path / "exp",
    )  # fmt: skip
    _, epoch, count = best_of(tmp_path / "exp")
    assert count == epoch + 1 < 9
