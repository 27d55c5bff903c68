"""The latent variables' Gaussians over a text, against a sentence-by-sentence pass."""

import torch
from test_neural import make

from espnet_bayeslm.scoring.uncertainty import latent_moments

UNCERTAINTY = {"hidden_output@1": "variational", "hidden_output@2": {"kind": "variational"}}
UNCERTAINTY["hidden_output@2"]["latent_dim"] = 3
SENTENCES = ["the cat sat", "the", "", "a dog", "the cat sat", "a cat met", "on on", "a", "a " * 6]


def test_all_tokens_of_all_sentences_and_no_padding(tmp_path):
    trained = make("word", tmp_path, uncertainty=UNCERTAINTY)
    lm, seen, shapes = trained.lm.double().eval(), {}, []
    for parameter in lm.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    sentences = [text.split() for text in SENTENCES]
    for location, layer in lm.latents():
        seen[location] = []
        layer.observer = lambda *moments, kept=seen[location]: kept.append(moments)
    with torch.no_grad():
        for words in sentences:
            lm(torch.tensor([[lm.vocab_size - 1, *trained.ids(words)]]), None)
    lm.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    found = latent_moments(trained, sentences, max_tokens=32)
    assert len(shapes) == 6  # of 1, 2, 3, 4, 4, 7 tokens a sentence
    assert all(shape[0] == 1 or shape.numel() <= 8 for shape in shapes)
    assert found.keys() == seen.keys() and found["hidden_output@2"][0][0].shape[-1] == 3
    for location, moments in found.items():
        for part in (0, 1):
            batched, single = (
                torch.cat([pair[part].flatten() for pair in pairs]).sort().values
                for pairs in (moments, seen[location])
            )
            torch.testing.assert_close(batched, single, rtol=0, atol=1e-12)
    assert all(layer.observer is None for _, layer in lm.latents())
