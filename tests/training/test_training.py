"""Training and architecture search through ESPnet's own task and trainer."""

import json
import math

import pytest
import torch
from tiny_training import words, write_sentences
from training_options import ADAM, CELL, IVON, LSTM, QUIET, STILL, TRANSFORMER, assert_same, stats

from espnet_bayeslm.bayes.base_kinds import is_posterior_key
from espnet_bayeslm.kinds.architectures import HISTORY, read_history, write_history
from espnet_bayeslm.loading.experiment import check_token_list, load_state, read_config
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.batches import MixedSampler, count_tokens
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.utils.errors import InputError


def test_point_model_learns_and_is_the_baseline(point):
    first, second = (stats(point, epoch, "valid") for epoch in (1, 2))
    assert second["ppl"] < first["ppl"] < 13
    assert second["loss"] == second["nll"] and second["kl"] == 0
    for values in (first, stats(point)):  # of the text, not a mean over batches
        assert values["ppl"] == pytest.approx(math.exp(values["nll"]), rel=1e-6)
    assert read_config(point / "config.yaml").model == "bayes_lm"


def test_num_train_tokens_is_counted(corpus, train_lm, tmp_path):
    still = ["--optim_conf", "lr=0.0", "--model_conf", "posterior_lr=null"]
    output = train_lm(tmp_path / "exp", *LSTM, *CELL, *still)
    lines = (corpus / "train.txt").read_text().splitlines()
    tokens = sum(len(line.split()) for line in lines)  # the key stands for </s>
    assert count_tokens([f"{corpus}/train.shape"]) == tokens
    kl = load_lm(output).lm.kl().item()
    assert stats(output)["kl"] == pytest.approx(kl / tokens, rel=1e-5)
    path = tmp_path / "shape"
    path.write_text("")
    with pytest.raises(InputError, match="shape: the shape files list no utterance"):
        count_tokens([str(path)])
    path.write_text("u1 3,10\nu2 x\n")
    with pytest.raises(ValueError, match="shape:2: expected `utterance length"):
        count_tokens([str(path)])


def test_the_reported_loss_is_the_elbo(train_lm, tmp_path):
    """An epoch without learning: the loss depends on the text and the weights alone."""
    options = [*LSTM, *CELL, *QUIET, *STILL]
    options += ["--train_dtype", "float64", "--model_conf", "posterior_lr=null"]
    found = []
    for size, accum_grad in ((40, 1), (7, 1), (7, 4)):
        exp = tmp_path / f"{size}_{accum_grad}"
        train_lm(exp, *options, "--accum_grad", accum_grad, batch_size=size)
        found.append(stats(exp)["loss"])
    assert found == pytest.approx(found[:1] * 3, abs=1e-6)


@pytest.mark.parametrize(
    "least, espnets, same_as",
    [(9, None, 9), (3, None, None), (9, 2, 2)],
    ids=["a small text", "a large text", "ESPnet's own wins"],
)
def test_epochs_of_at_least_so_many_batches(least, espnets, same_as, corpus, train_lm, tmp_path):
    """Epochs are ESPnet's of so many batches, to the last bit."""
    batch_size = -(-len((corpus / "train.txt").read_text().splitlines()) // 4)

    def trained(name, number, *options):
        options = [*LSTM, *CELL, *ADAM, *options]
        options += [] if number is None else ["--num_iters_per_epoch", number]
        return train_lm(tmp_path / name, *options, max_epoch=2, batch_size=batch_size)

    ours = trained("ours", espnets, "--model_conf", f"min_iters_per_epoch={least}")
    assert_same(ours / "2epoch.pth", trained("theirs", same_as) / "2epoch.pth")
    assert load_state(ours / "2epoch.pth")["lm.noise_step"] == 2 * (same_as or 4)


@pytest.fixture
def factories(monkeypatch):
    """Return what the trainings to come make their batches with, {mode: factory}."""
    build, found = BayesLMTask.build_sequence_iter_factory, {}

    def built(args, iter_options, mode):
        found[mode] = build(args, iter_options, mode)
        return found[mode]

    monkeypatch.setattr(BayesLMTask, "build_sequence_iter_factory", built)
    return found


@pytest.mark.parametrize("batch_type, bins", [("length", 60), ("numel", 60 * 13)])
def test_batches_have_equally_many_tokens(train_lm, tmp_path, factories, batch_type, bins):
    """The ends of sentences count: those of one word weigh as much as the others."""
    sentences = ["a", "ab", "ababababa"] * 120
    write_sentences(tmp_path, "train", sentences)
    options = [*LSTM, "--batch_bins", bins]
    train_lm(tmp_path / "exp", *options, train=tmp_path, batch_type=batch_type)
    lengths = {f"u{n:04d}": len(sentence) + 1 for n, sentence in enumerate(sentences)}
    tokens = [sum(map(lengths.get, batch)) for batch in factories["train"].sampler]
    assert len(tokens) > 20 and max(tokens) <= 70  # ESPnet adds a sentence that exceeds the bins


SMALL = "att_unit: 8, head: 2, unit: 8, layer: 1"
BACKBONE = ["--lm", "bayes_espnet", "--lm_conf", "backbone=transformer"]


@pytest.mark.parametrize(
    "options, mixes",
    [
        (TRANSFORMER, True),
        ([*BACKBONE, "--lm_conf", f"backbone_conf={{{SMALL}, embed_unit: 8}}"], True),
        (LSTM, False),
        # ESPnet's own batches
        (["--lm", "seq_rnn", "--lm_conf", "{unit: 8, nlayers: 1}"], False),
    ],
)
def test_batches_of_transformers_have_all_lengths(train_lm, tmp_path, factories, options, mixes):
    output = train_lm(tmp_path / "exp", *options, "--batch_bins", 4000, batch_type="numel")
    assert isinstance(factories["train"].sampler, MixedSampler) == mixes
    assert math.isfinite(stats(output, 1)["loss"])


def test_mixed_batches_are_the_same_sentences_in_another_order_each_epoch():
    batches = [("a", "b", "c"), ("d", "e"), ("f",), ("g", "h", "i", "j")]
    sampler = MixedSampler(batches)
    epochs = [sampler.generate(seed) for seed in (1, 2, 1)]
    assert epochs[0] == epochs[2] != epochs[1]
    for epoch in (*epochs, list(sampler)):
        assert sorted(utt for batch in epoch for utt in batch) == list("abcdefghij")
        assert sorted(map(len, epoch)) == [2, 2, 3, 3] and len(sampler) == 4


LEFT_OVER = {"bayes": [*LSTM, *CELL, *ADAM], "ivon": [*LSTM, *IVON]}


@pytest.mark.parametrize("options", LEFT_OVER.values(), ids=LEFT_OVER)
def test_a_left_over_gradient_is_lost_in_any_training(corpus, train_lm, tmp_path, options):
    """Of seven batches, `accum_grad` 2 leaves one: resumed or not, it makes no step."""
    options = [*options, "--accum_grad", "2", "--resume", "true"]
    batch_size = len((corpus / "train.txt").read_text().splitlines()) // 7
    unbroken = train_lm(tmp_path / "unbroken", *options, max_epoch=2, batch_size=batch_size)
    for epoch in (1, 2):
        train_lm(tmp_path / "broken", *options, max_epoch=epoch, batch_size=batch_size)
    assert_same(tmp_path / "broken" / "2epoch.pth", unbroken / "2epoch.pth")


def test_text_in_parts(corpus, train_lm, tmp_path):
    """asr.sh --num_splits_lm: `split_scps` writes text and shapes in parts, an epoch is all."""
    number = 3
    for name in ("train.txt", "train.shape"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "num_splits").write_text(f"{number}\n")
        lines = (corpus / name).read_text().splitlines(keepends=True)
        for n in range(number):
            (folder / f"split.{n}").write_text("".join(lines[n::number]))
    options = [*LSTM, *CELL, *ADAM, "--multiple_iterator", "true"]
    options += ["--model_conf", "min_iters_per_epoch=7"]
    output = train_lm(tmp_path / "exp", *options, train=tmp_path, batch_size=1000)
    # 3 of a batch each, or as many as 7 need
    assert load_state(output / "1epoch.pth")["lm.noise_step"] == 9
    tokens = count_tokens([f"{corpus}/train.shape"])
    assert stats(output)["kl"] == pytest.approx(load_lm(output).lm.kl().item() / tokens, rel=1e-1)


NUMBERS = """
lm: bayes_lstm
lm_conf: {prior_variance: 1e-3}
model_conf: {prior: 1e3, min_iters_per_epoch: 1e2}
optim: sgd
scheduler: steplr
scheduler_conf: {step_size: 1e1, gamma: 5e-1}
"""


def test_numbers_of_configurations(tmp_path):
    """In the file, on the command line, and nested; what is a path stays one."""
    (tmp_path / "numbers.yaml").write_text(NUMBERS)
    words = ["--config", f"{tmp_path}/numbers.yaml", "--optim_conf", "lr=1e-1"]
    words += ["--lm_conf", "uncertainty.cell_input@2.init_std=3e-2", "--token_list", "1e3"]
    args = BayesLMTask.parse([*words, "--lm_conf", "uncertainty.cell_input@2.kind=bayes"])
    place = {"kind": "bayes", "init_std": 0.03}
    assert args.lm_conf == {"prior_variance": 0.001, "uncertainty": {"cell_input@2": place}}
    assert args.model_conf == {"prior": "1e3", "min_iters_per_epoch": 100}
    assert args.optim_conf == {"lr": 0.1} and args.token_list == "1e3"
    assert args.scheduler_conf == {"step_size": 10, "gamma": 0.5}


UNCERTAIN = {
    "bayes": [*LSTM, *CELL],
    "variational": [*LSTM, "--lm_conf", "uncertainty.hidden_output@2=variational"],
    "gp": [*TRANSFORMER, "--lm_conf", "uncertainty.ffn@1=gp"],
}


@pytest.mark.parametrize("options", UNCERTAIN.values(), ids=UNCERTAIN)
def test_init_leaves_what_makes_the_lm_uncertain(train_lm, tmp_path, options):
    """ESPnet's --init is for all matrices."""
    run = ["--init", "xavier_uniform", "--dry_run", "true"]
    output = train_lm(tmp_path / "exp", *options, *run)
    args = read_config(output / "config.yaml")
    model = BayesLMTask.build_model(args)
    args.init = None
    fresh = BayesLMTask.build_model(args).state_dict()
    same = [key for key, value in model.state_dict().items() if torch.equal(value, fresh[key])]
    uncertain = [key for key in fresh if is_posterior_key(key)]
    assert uncertain and set(uncertain) <= set(same)
    assert any(key not in same for key in fresh)


def test_weight_decay_leaves_the_standard_deviations(train_lm, tmp_path):
    decay = ["--optim", "sgd", "--optim_conf", "lr=1.0", "--optim_conf", "weight_decay=0.5"]
    frozen = ["--model_conf", "kl_weight=0.0", "--model_conf", "posterior_lr=null", *QUIET]
    state = load_state(train_lm(tmp_path / "exp", *LSTM, *CELL, *decay, *frozen) / "1epoch.pth")
    log_std = [v for k, v in state.items() if k.endswith("_log_std")]
    assert log_std and all((v == torch.tensor(3e-9).log()).all() for v in log_std)
    assert state["lm.rnn.weight_hh_l0"].abs().max() < 0.1


@pytest.mark.parametrize(
    "options, words",
    [
        (["--lm_conf", "uncertainty.cell@1=bayes"], ["cell_input"]),
        (["--lm_conf", "uncertainty.cell_input@3=bayes"], ["1 to 2"]),
        (["--model_conf", "prior=missing.pth"], ["missing.pth", "cannot be read"]),
        (["--init_param", "missing.pth"], ["missing.pth", "cannot be read"]),
        ([*CELL, "--model", "lm"], ["--model lm would train uncertain weights without their KL"]),
    ],
)
def test_bad_options_end_in_one_error(train_lm, tmp_path, options, words):
    with pytest.raises(ValueError) as error:
        train_lm(tmp_path / "exp", *LSTM, *options)
    assert all(word in str(error.value) for word in words)
    assert not (tmp_path / "exp" / "checkpoint.pth").exists()


@pytest.mark.parametrize(
    "tokens, word",
    [
        (["<blank>", "a", "<sos/eos>"], "lacks <unk>"),
        (["<blank>", "<unk>", "a"], "lacks <sos/eos>"),
        (["<blank>", "<unk>", "<sos/eos>", "a"], "<sos/eos> last"),
        (["<blank>", "<unk>", "a", "a", "<sos/eos>"], ":4: the token 'a'"),
    ],
)
def test_bad_token_lists(tokens, word):
    with pytest.raises(InputError, match=f"tokens.txt.*{word}"):
        check_token_list(tokens, path="tokens.txt")


SEARCH = words(lm_conf="uncertainty.cell_input@1-2={kind: search, candidates: [point, bayes]}")


def test_architecture_weights_are_learnt_and_shown(train_lm, tmp_path, caplog):
    caplog.set_level("INFO")
    # by a rate of their own: the LM stays as it is
    options = [*LSTM, *SEARCH, *STILL, "--model_conf", "architecture_lr=0.05"]
    exp = train_lm(tmp_path / "exp", *options, max_epoch=2)
    state = load_state(exp / "2epoch.pth")
    weights = {key: value for key, value in state.items() if ".search." in key}
    assert set(weights) == {f"lm.search.cell_input@{layer}.weights" for layer in (1, 2)}
    assert all(value.abs().max() > 0.01 for value in weights.values())
    lines = [json.loads(line) for line in (exp / "architecture.jsonl").read_text().splitlines()]
    epochs = [line["epoch"] for line in lines]
    assert epochs == sorted(set(epochs)) and epochs[-1] == 2.0 and 1.0 in epochs
    last = lines[-1]["weights"]["cell_input@1"]
    assert list(last) == ["point", "bayes"]
    assert list(last.values()) == pytest.approx(weights["lm.search.cell_input@1.weights"].tolist())
    assert "Epoch 2: cell_input@1: point 0." in caplog.text


def test_an_epoch_that_a_kill_undid_is_written_once(tmp_path):
    def record(value):
        return [(share, {"ffn@1": {"point": 0.0, "bayes": value}}) for share in (0.5, 1.0)]

    for epoch in (1, 2, 3):
        write_history(tmp_path, epoch, record(float(epoch)))
    # the third epoch was written, and its checkpoint was not
    write_history(tmp_path, 3, record(5.0))
    found = read_history(tmp_path / HISTORY)
    assert [epoch for epoch, _ in found] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert [weights["ffn@1"]["bayes"] for _, weights in found] == [1, 1, 2, 2, 5, 5]
    write_history(tmp_path, 1, record(0.0))  # a training that begins anew
    assert len(read_history(tmp_path / HISTORY)) == 2


def test_all_paths_start_from_a_point_estimate_lm(point, train_lm, tmp_path):
    checkpoint = point / "valid.loss.best.pth"
    still = [*STILL, "--model_conf", "architecture_lr=null"]
    start = ["--init_param", checkpoint, "--model_conf", f"prior={checkpoint}"]
    exp = train_lm(tmp_path / "exp", *LSTM, *SEARCH, *still, *start)
    state, before = load_state(exp / "1epoch.pth"), load_state(checkpoint)
    rows = before["lm.rnn.weight_hh_l0"][16:24]
    name = "lm.rnn.search_bayes_cell_input_l0.weight_hh"
    assert torch.equal(state[name], rows) and torch.equal(state[f"{name}_prior_mean"], rows)
    assert stats(exp, 1, "valid")["nll"] == pytest.approx(
        min(stats(point, n, "valid")["nll"] for n in (1, 2)), abs=1e-5
    )
