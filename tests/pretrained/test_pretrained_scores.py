"""Scores of pretrained LMs against transformers' own loss, and among the ways to compute them."""

import dataclasses
import importlib.util
import itertools
import json
import logging

import numpy as np
import pytest
import tiny_models
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import FAMILIES, own_nll, write_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    T5Config,
)

from espnet_bayeslm.loading.components import is_ngram
from espnet_bayeslm.pretrained import tree_scores
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm, load_tokenizer
from espnet_bayeslm.pretrained.names import is_pretrained
from espnet_bayeslm.pretrained.scorer import PretrainedScorer
from espnet_bayeslm.pretrained.text_forms import FORMS, MARKS, Reader, TextForm
from espnet_bayeslm.pretrained.tree_scores import TreeScorer
from espnet_bayeslm.utils.errors import InputError

SENTENCES = [
    ("so", "we", "could", "put", "the", "remote"),
    ("so", "we", "could", "put", "a", "remote"),
    ("so", "we"),
    ("i", "think", "that's", "okay"),
    ("naïve", "東京", "x" * 40),
    (),
]


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request, tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp(request.param), request.param)
    return load_causal_lm(f"hf:{folder}")


@pytest.mark.parametrize("form", FORMS)
def test_words_sum_to_the_models_own_loss(lm, form):
    scorer = PretrainedScorer(lm, text_form=form)
    for words, scores in zip(SENTENCES, scorer.word_scores(SENTENCES), strict=True):
        assert len(scores.log_probs) == len(words) + 1
        assert -scores.log_probs.sum() == pytest.approx(own_nll(lm, scorer.reader, words), abs=1e-4)


@pytest.mark.parametrize("max_nodes", [1, 7, 30])
@pytest.mark.parametrize("takes_trees", [True, False])
def test_the_size_of_batches_changes_nothing(lm, max_nodes, takes_trees):
    whole = PretrainedScorer(lm, text_form="lower")
    few = PretrainedScorer(lm, text_form="lower", max_nodes=max_nodes)
    expected = whole.word_scores(SENTENCES)
    few.reader = whole.reader
    few._scorer = few._tree_scorer(few.reader)
    few._scorer.takes_trees = takes_trees
    for a, b in zip(few.word_scores(SENTENCES), expected, strict=True):
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)


@pytest.mark.parametrize("takes_trees", [True, False])
def test_the_output_layer_in_packed_blocks(lm, takes_trees, monkeypatch):
    """Many states at once, as for many lists, against a few at a time."""
    expected = PretrainedScorer(lm, text_form="lower").word_scores(SENTENCES)
    monkeypatch.setattr(tree_scores, "PACKED", 1)
    for projected in (1, 4096):
        monkeypatch.setattr(tree_scores, "PROJECTED", projected)
        scorer = PretrainedScorer(lm, text_form="lower", max_nodes=12)
        scorer.prepare(SENTENCES)
        scorer._scorer.takes_trees = takes_trees
        for a, b in zip(scorer.word_scores(SENTENCES), expected, strict=True):
            np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)


def test_context_is_the_sentences_before(lm):
    """Of lists by their history, and of a text by `context`, against transformers' own loss."""
    scorer = PretrainedScorer(lm, text_form="lower")
    first, second = SENTENCES[0], SENTENCES[2]
    groups = [[second, SENTENCES[3]], [second]]
    scorer.prepare([first])
    (history,) = scorer.extended([None], [first])
    given, alone = scorer.scores_in_context(groups, [history, None])
    np.testing.assert_allclose(
        alone[0].log_probs, scorer.word_scores([second])[0].log_probs, atol=1e-4
    )
    reader = scorer.reader
    before, after = [*reader.start, *reader.encode(first).ids], reader.encode(second).ids
    with torch.no_grad():
        labels = torch.tensor([[*[-100] * len(before), *after]])
        loss = lm.model(input_ids=torch.tensor([[*before, *after]]), labels=labels).loss
    expected = -float(loss) * len(after)
    assert given[0].log_probs.sum() == pytest.approx(expected, abs=1e-4)
    in_text = PretrainedScorer(lm, text_form="lower", context=1)
    rows = in_text.word_scores([SENTENCES[3], first, second])
    assert rows[2].log_probs.sum() == pytest.approx(expected, abs=1e-4)
    with pytest.raises(InputError, match="--context -1: expected 0 or more sentences"):
        PretrainedScorer(lm, context=-1)
    scorer.max_context = 3
    assert len(scorer.extended([history], [first])[0]) == 3


def test_the_words_after_a_prefix_and_the_end_sum_to_one_at_most(lm):
    """All words of up to two tokens: their mass, with that of the end, is close to one."""
    scorer = PretrainedScorer(lm, text_form="as_is")
    scorer.prepare(SENTENCES)
    tokenizer, opens = lm.tokenizer, scorer.reader.openings(len(lm.tokenizer))
    vocabulary = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    tails = [t for n, t in enumerate(vocabulary) if not opens[n] and t.isascii() and t.isalnum()]
    heads = [
        t for n, t in enumerate(vocabulary) if opens[n] and t[1:].isascii() and t[1:].isalnum()
    ]
    words = {h[1:] for h in heads} | {h[1:] + t for h, t in itertools.product(heads, tails)}
    scores = scorer.word_scores([("so", word) for word in sorted(words)])
    mass = sum(np.exp(s.log_probs[1]) for s in scores)
    end = np.exp(scorer.word_scores([("so",)])[0].log_probs[1])
    assert 0 < mass < 1 + 1e-6 and 0 < end < 1 and mass + end < 1 + 1e-6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("blank", [True, False])
def test_tokens_are_of_the_word_between_two_blanks(lm, form, marks, blank):
    reader = Reader(lm.tokenizer, TextForm(form, marks, blank))
    for words in SENTENCES:
        item = reader.encode(words)
        written, stop = reader.form.words(words)
        parts = [
            lm.tokenizer.decode(item.ids[a:b])
            for a, b in itertools.pairwise([*item.starts, len(item.ids)])
        ]
        assert [part.strip() for part in parts[:-1]] == written
        assert parts[-1] == stop + lm.tokenizer.decode(reader.end)


def test_the_form_of_lowest_perplexity_is_chosen(lm, caplog):
    caplog.set_level(logging.INFO)
    auto = PretrainedScorer(lm)
    total = -sum(s.log_probs.sum() for s in auto.word_scores(SENTENCES))
    assert "text form" in caplog.text
    for reader in auto._readers:
        scorer = auto._tree_scorer(reader)
        assert -sum(s.log_probs.sum() for s in auto._score(SENTENCES, reader, scorer)) >= (
            total - 1e-3
        )


def test_sentence_form():
    form = TextForm("sentence")
    words = ("WELL", "I'M", "IN", "PARIS", "i")
    assert form.words(words) == (["Well", "I'm", "in", "paris", "I"], ".")
    assert form.words(()) == ([], "")
    assert TextForm("lower").words(words)[0][1] == "i'm"


class NoTrees(torch.nn.Module):
    """A model that knows nothing of 4-D masks."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config, self.dtype = model, model.config, model.dtype

    def get_output_embeddings(self):
        return self.model.get_input_embeddings()

    def forward(self, attention_mask, **inputs):
        if attention_mask.dim() > 2:
            raise ValueError("attention_mask should be of size (B, L)")
        return self.model(attention_mask=attention_mask, **inputs)


class NotCausal(NoTrees):
    def forward(self, input_ids, **inputs):
        found = self.model(input_ids=input_ids, **inputs)
        sums = input_ids.float().sum(1)[:, None, None]
        found.logits = found.logits + sums / 7 * found.logits.sin()
        return found


def test_a_model_without_trees_reads_padded_batches_and_an_encoder_is_refused(lm, caplog):
    openings = torch.ones(lm.model.config.vocab_size, dtype=torch.bool)
    assert TreeScorer(lm.model, openings).takes_trees
    assert not TreeScorer(NoTrees(lm.model), openings).takes_trees
    with pytest.raises(InputError, match="not causal"):
        TreeScorer(NotCausal(lm.model), openings)
    caplog.set_level(logging.INFO)
    padded = PretrainedScorer(dataclasses.replace(lm, model=NoTrees(lm.model)), text_form="lower")
    whole = PretrainedScorer(lm, text_form="lower").word_scores(SENTENCES)
    for a, b in zip(padded.word_scores(SENTENCES), whole, strict=True):
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)
    assert "reads no prefix trees; padded batches are used" in caplog.text


@pytest.mark.parametrize(
    "source, message",
    [
        ("hf:./none", "no such folder"),
        ("none/at/all.gguf", "no such GGUF file"),
        ("hf:EMPTY", "EMPTY"),
    ],
)
def test_what_cannot_be_loaded(source, message, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    assert is_pretrained(source) and not is_ngram(source)
    with pytest.raises(InputError, match=message):
        load_causal_lm(source)
    assert not is_pretrained(tmp_path)


@pytest.mark.parametrize("package, file", [("gguf", "lm.gguf"), ("peft", "adapter_config.json")])
def test_missing_packages(package, file, tmp_path, monkeypatch):
    """They are named before anything is read."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    (tmp_path / file).write_text("{}")
    source = tmp_path / file if package == "gguf" else tmp_path
    with pytest.raises(InputError, match=f"needs the package {package}"):
        load_causal_lm(source)


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": ["q_proj"], "use_rslora": True},
        {"target_modules": ["q_proj"], "lora_bias": True},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
    ],
)
def test_adapters_at_the_mean_score_as_peft_s(tmp_path, options):
    """The base has one table for embedding and output, which is adapted as one or the other."""
    tied = {"tied": lambda v: LlamaConfig(vocab_size=v, intermediate_size=24, **TIED)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiny_models.FAMILIES", tied)
        base = write_model(tmp_path / "base", "tied")
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, **options))
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            if "lora_" in name:
                value.normal_(0, 0.2)
    theirs.save_pretrained(tmp_path / "adapter")
    lm = load_causal_lm(tmp_path / "adapter", text_form="lower")
    expected = lm.scorer.word_scores(SENTENCES[:3])
    for words, scores in zip(SENTENCES, expected, strict=False):
        assert -scores.log_probs.sum() == pytest.approx(
            own_nll(lm, lm.scorer.reader, words), abs=1e-4
        )
    mean = lm.at_mean()
    for a, b in zip(mean.scorer.word_scores(SENTENCES[:3]), expected, strict=True):
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)


TIED = dict(tiny_models.SMALL, tie_word_embeddings=True)


@pytest.mark.parametrize(
    "model, pieces",
    [
        ("word", ["so", "we", "could"]),
        ("wordpiece", ["so", "we", "##e", "could", "##s"]),
        ("end", ["so</w>", "we</w>", "w", "could</w>"]),
    ],
)
def test_words_after_a_prefix_sum_to_one_without_marks_of_a_beginning(tmp_path, model, pieces):
    vocab = {piece: n for n, piece in enumerate(["<|end|>", "[UNK]", *pieces])}
    kind = {
        "word": lambda: models.WordLevel(vocab, unk_token="[UNK]"),
        "wordpiece": lambda: models.WordPiece(vocab, unk_token="[UNK]"),
        "end": lambda: models.BPE(vocab, [], end_of_word_suffix="</w>", unk_token="[UNK]"),
    }[model]
    tokenizer = Tokenizer(kind())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = dict(bos_token="<|end|>", eos_token="<|end|>", unk_token="[UNK]")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
    opens = Reader(fast, TextForm(marks="special")).openings(len(vocab))
    expected = [not piece.startswith("##") for piece in vocab]
    assert opens.tolist() == expected


def test_an_adapter_of_another_base(tmp_path):
    folder, other = tmp_path / "adapter", write_model(tmp_path / "other", "gpt2")
    base = AutoModelForCausalLM.from_pretrained(write_model(tmp_path / "base"))
    adapter = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"]))
    adapter.save_pretrained(folder)
    load_causal_lm(folder)
    file = folder / "adapter_config.json"
    file.write_text(file.read_text().replace(str(tmp_path / "base"), str(other)))
    with pytest.raises(InputError, match="does not fit its base") as caught:
        load_causal_lm(folder)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_is_read_once_and_again_when_it_changes(tmp_path):
    folder = write_model(tmp_path / "lm")
    first = load_tokenizer(folder)
    assert load_causal_lm(folder).tokenizer is first
    file = folder / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    assert load_tokenizer(folder) is not first


@pytest.mark.parametrize(
    "config, message", [(BertConfig, "not causal"), (T5Config, "an encoder-decoder")]
)
def test_encoders_are_refused(config, message, tmp_path):
    write_model(tmp_path / "lm")
    small = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=300)
    model = AutoModel.from_config(config(intermediate_size=24, **small))
    with torch.no_grad():  # so that words change the probabilities of others
        for parameter in model.parameters():
            parameter.mul_(8)
    model.save_pretrained(tmp_path / "lm")
    with pytest.raises(InputError, match=message):
        PretrainedScorer(load_causal_lm(tmp_path / "lm")).word_scores([("so",)])


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("config.json", "{", "lm: "),
        ("config.json", '{"model_type": "none"}', "lm: "),
        ("model.safetensors", "not weights", "lm: "),
        ("tokenizer.json", None, "lm: "),
    ],
)
def test_broken_folders(name, content, message, tmp_path):
    """One line that names the folder, and no more."""
    file = write_model(tmp_path / "lm") / name
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        load_causal_lm(tmp_path / "lm")
    assert "\n" not in str(caught.value)


def test_code_of_a_folder_is_not_run(tmp_path):
    file = write_model(tmp_path / "lm") / "config.json"
    conf = json.loads(file.read_text())
    conf.update(model_type="own", auto_map={name: f"own.{name}" for name in ("AutoConfig",)})
    file.write_text(json.dumps(conf))
    (tmp_path / "lm/own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="needs code of its own"):
        load_causal_lm(tmp_path / "lm")
    assert not (tmp_path / "ran").exists()


def test_a_sentence_beyond_the_positions(tmp_path):
    lm = load_causal_lm(write_model(tmp_path / "lm", "gpt2"))
    lm.model.config.max_position_embeddings = 20
    with pytest.raises(InputError, match=r"has \d+ tokens, and the LM reads at most 20"):
        PretrainedScorer(lm, text_form="lower").word_scores([("x",) * 40])
