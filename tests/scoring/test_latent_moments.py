"""The latent variables' Gaussians over a text, against a sentence-by-sentence pass."""

import itertools

import torch

from espnet_bayeslm.layers.latent import LatentOutput
from espnet_bayeslm.scoring.latents import latent_moments


class ToyLM(torch.nn.Module):
    """Two latent outputs above an embedding that also sees how far it is in the sentence."""

    vocab_size = 6

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.first = LatentOutput(4, location="hidden_output@1", init_std=0.1)
        self.second = LatentOutput(4, location="hidden_output@2", latent_dim=3, init_std=0.2)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter)
        self.shapes = []

    def latents(self):
        for layer in (self.first, self.second):
            yield layer.location, layer

    def forward(self, input, hidden):
        self.shapes.append(tuple(input.shape))
        h = self.embed(input) + torch.arange(input.shape[1])[None, :, None]
        return self.second(self.first(h)), None


class Trained:
    name, token_list, token_type = "toy", ["<blank>", "<unk>", "a", "b", "c", "<sos/eos>"], "word"

    def __init__(self):
        self.lm = ToyLM().eval()

    def tokenize(self, text):
        return text.split()

    def ids(self, tokens):
        return [self.token_list.index(token) for token in tokens]


def test_all_tokens_of_all_sentences_and_no_padding():
    torch.manual_seed(2)
    trained = Trained()
    sentences = [tuple(s) for s in ("abc", "b", "", "ca", "abc", "cab", "bb", "c", "aabbcc")]
    found = latent_moments(trained, sentences, max_tokens=32)
    assert len(trained.lm.shapes) == 6  # of 1, 2, 3, 4, 4, 7 tokens a sentence
    assert all(b == 1 or b * length <= 8 for b, length in trained.lm.shapes)
    assert sum(b * length for b, length in trained.lm.shapes) == sum(len(s) + 1 for s in sentences)

    values = {location: [] for location in found}
    for words in sentences:
        with torch.no_grad():
            h = trained.lm.embed(torch.tensor([[5, *trained.ids(words)]]))
            h = h + torch.arange(len(words) + 1)[None, :, None]
            for location, layer in trained.lm.latents():
                std = layer.infer_log_std(h).clamp(-20, 4).exp()
                values[location].append((layer.infer_mean(h).reshape(-1), std.reshape(-1)))
                h = layer(h)
    for location, part in itertools.product(found, (0, 1)):
        batched = torch.cat([moments[part].reshape(-1) for moments in found[location]]).sort()
        single = torch.cat([moments[part] for moments in values[location]]).sort()
        torch.testing.assert_close(batched.values, single.values)
    assert found["hidden_output@2"][0][0].shape[-1] == 3


def test_the_observers_are_gone_afterwards():
    trained = Trained()
    latent_moments(trained, [("a",)])
    assert all(layer.observer is None for _, layer in trained.lm.latents())
