"""Training on noise tokens: options, counts, draws, and what it gives."""

import argparse

import pytest
import torch
import torch.nn.functional as F
from espnet2.train.dataset import ESPnetDataset
from training_options import batch

from espnet_bayeslm.bayes import noise_generator
from espnet_bayeslm.layers.sampled import sampled_loss
from espnet_bayeslm.lm import BayesESPnetLM, BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training import sampled_softmax
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.nll import token_batch
from espnet_bayeslm.training.sampled_softmax import SampledSoftmax, count_text_tokens
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.training.text import TokenOptions, made_tokens
from espnet_bayeslm.utils.errors import InputError

VOCAB = 13


def build(sampling, uncertainty=None, lm=BayesLSTMLM, **options):
    """Return a model in training mode, the counts of its tokens 1, 2, 3, ..."""
    torch.manual_seed(1)
    sizes = dict(unit=8) if lm is BayesLSTMLM else dict(att_unit=8, head=2, unit=8, layer=1)
    network = lm(VOCAB, dropout_rate=0.0, uncertainty=uncertainty or {}, **sizes)
    for name, parameter in network.named_parameters():
        if not name.endswith("log_std"):
            parameter.data += 0.3 * torch.randn_like(parameter)
    options |= dict(sampled_softmax=sampling, num_train_tokens=100)
    model = BayesLanguageModel(network, VOCAB, **options)
    if model.sampler is not None:
        model.sampler.set_counts(torch.arange(VOCAB))
    return model.double().train()


def gradients(model, loss):
    return torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)


@pytest.mark.parametrize("lm", [BayesLSTMLM, BayesTransformerLM])
def test_the_loss_has_the_estimates_value_and_the_objectives_gradient(lm):
    model = build(4, lm=lm)
    loss, found, _ = model(*batch())
    tokens = token_batch(model, *batch())
    generator = noise_generator(torch.initial_seed() + (1 << 64), 0, 0)
    proposal = model.sampler.proposal
    decoder = model.lm.decoder
    expected = sampled_loss(
        tokens.counted(model.lm.outputs(tokens.inputs)[0]),
        decoder.weight,
        decoder.bias,
        tokens.targets,
        proposal.draw(generator),
        proposal.log_inclusion,
    )
    assert len(expected.nll) == batch()[1].sum() + 3
    torch.testing.assert_close(found["nll"].squeeze(), expected.nll.mean().detach())
    assert loss == found["nll"]
    torch.testing.assert_close(found["ppl"], found["nll"].exp())
    ours, theirs = gradients(model, loss), gradients(model, expected.objective.mean())
    torch.testing.assert_close(ours, theirs)


def test_validation_is_exact_and_draws_nothing():
    model, exact = build(4).eval(), build(None).eval()
    for _ in range(2):
        assert torch.equal(model(*batch())[0], exact(*batch())[0])
    assert model.sampler.step == 0
    assert model.state_dict().keys() == exact.state_dict().keys()


def test_draws_follow_the_counter(monkeypatch):
    def losses(model, count=3):
        torch.manual_seed(7)
        return [model(*batch())[0].item() for _ in range(count)]

    model = build(3)
    first = losses(model)
    assert len(set(first)) == 3
    # the next epoch's seed is another one, and so is the same epoch after a resume the same
    torch.manual_seed(8)
    assert model(*batch())[0].item() not in first
    assert losses(model) == first == losses(build(3))
    monkeypatch.setattr(sampled_softmax, "process_rank", lambda: 1)
    assert set(losses(build(3))).isdisjoint(first)


def test_what_is_drawn():
    """By the square root of the counts, each plus one."""
    sampler = SampledSoftmax(4, VOCAB)
    sampler.set_counts(torch.arange(VOCAB))
    weights = (torch.arange(VOCAB) + 1.0).double().sqrt()
    weights[0] = 0
    candidates, log_inclusion = sampler.draw(torch.device("cpu"))
    # four on average, and none certain
    torch.testing.assert_close(log_inclusion[1:].exp(), 4 * weights[1:] / weights.sum())
    assert 0 not in candidates and len(candidates) < 9


@pytest.mark.parametrize("number", [0, VOCAB])
def test_bad_options(number):
    with pytest.raises(InputError, match=f"sampled_softmax {number}: expected 1 to 12"):
        build(number)


def test_tokens_that_were_not_counted_are_an_error_in_training_alone():
    model = build(4)
    model.sampler.proposal = None
    model.eval()(*batch())
    with pytest.raises(RuntimeError, match="tokens are not counted: train with"):
        model.train()(*batch())


def test_an_output_projection_with_noise_is_an_error():
    conf = dict(unit=8, nhid=8, nlayers=1)
    lm = BayesESPnetLM(VOCAB, "seq_rnn", conf, uncertainty={"output": "bayes"})
    model = BayesLanguageModel(lm, VOCAB, num_train_tokens=9, sampled_softmax=4)
    model.sampler.set_counts(torch.zeros(VOCAB))
    with pytest.raises(InputError, match="sampled_softmax: the LM's logits"):
        model.train()(*batch())


def test_self_normalization_takes_the_estimates_spread():
    model, exact = build(12, self_normalization=2.0), build(None)
    # all tokens but <blank> are candidates
    loss, found, _ = model(*batch())
    tokens = token_batch(exact, *batch())
    outputs = tokens.counted(exact.lm.outputs(tokens.inputs)[0])
    logits = F.linear(outputs, *exact.lm.decoder.parameters())[:, 1:]
    log_z = logits.logsumexp(1)
    variance = log_z.var(unbiased=False)
    torch.testing.assert_close(found["lnz_mean"].squeeze(), log_z.mean().detach())
    torch.testing.assert_close(found["lnz_std"].squeeze(), variance.sqrt().detach())
    expected = F.cross_entropy(logits, tokens.targets - 1) + variance
    torch.testing.assert_close(loss.squeeze(), expected)
    torch.testing.assert_close(gradients(model, loss), gradients(exact, expected))


def write_text(folder, sentences):
    path = folder / "train.txt"
    path.write_text("".join(f"u{n} {line}\n" for n, line in enumerate(sentences)))
    return path


def counting_options(folder, token_type, tokens, sentences, **options):
    """Return the options from which training tokens are counted."""
    path = write_text(folder, sentences)
    texts = [(str(path), "text", "text")]
    defaults = dict(use_preprocessor=True, bpemodel=None, cleaner=None, g2p=None)
    return argparse.Namespace(
        token_type=token_type,
        token_list=["<blank>", "<unk>", *tokens, "<sos/eos>"],
        non_linguistic_symbols=None,
        train_data_path_and_name_and_type=texts,
        **(defaults | options),
    )


def by_espnet(args):
    """Return the counts of what ESPnet's iterator reads."""
    preprocess = BayesLMTask.build_preprocess_fn(args, train=True)
    (path, *names), *_ = args.train_data_path_and_name_and_type
    data = ESPnetDataset([(path, *names)], preprocess=preprocess)
    counts = torch.zeros(len(args.token_list), dtype=torch.double)
    for key in data:
        for token in [*data[key][1]["text"].tolist(), -1]:
            counts[token] += 1
    return counts


SENTENCES = ["the cat sat", "the dog", "", "the  cat  ran off ", "a c"]


@pytest.mark.parametrize("token_type", ["word", "char", "bpe"])
def test_counts_are_of_what_training_reads(tmp_path, token_type):
    tokens, options = ["the", "cat", "sat", "dog"], {}
    if token_type == "char":
        tokens = ["<space>", *dict.fromkeys("thecasdog")]
    if token_type == "bpe":
        write_text(tmp_path, [line for line in SENTENCES if line] * 9)
        made = made_tokens(tmp_path, TokenOptions("bpe", 18), {})
        # some pieces are unknown
        tokens, options = made.tokens[2:-4], dict(bpemodel=made.bpemodel)
    args = counting_options(tmp_path, token_type, tokens, SENTENCES, **options)
    counts = count_text_tokens(args, BayesLMTask.build_preprocess_fn(args, train=True))
    assert torch.equal(counts, by_espnet(args))
    assert counts[-1] == 5 and counts[0] == 0 and counts[1] > 0
    if token_type == "word":
        assert counts.tolist() == [0, 4, 3, 2, 1, 1, 5]


def test_text_that_cannot_be_counted(tmp_path):
    args = counting_options(tmp_path, "word", ["a"], ["a"])
    with pytest.raises(
        InputError, match=r"type text with --use_preprocessor false.*leave sampled_softmax out"
    ):
        count_text_tokens(args, None)
    args.train_data_path_and_name_and_type = [("x", "text", "text_int")]
    preprocess = BayesLMTask.build_preprocess_fn(args, train=True)
    with pytest.raises(InputError, match=r"data of type text_int.*leave sampled_softmax out"):
        count_text_tokens(args, preprocess)
    args.train_data_path_and_name_and_type = [(str(tmp_path / "no.txt"), "text", "text")]
    with pytest.raises(InputError, match=r"no\.txt: cannot be read"):
        count_text_tokens(args, preprocess)
