"""Scores of pretrained LMs against transformers' own loss, and among the ways to compute them."""

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import logging
import math
import sys

import numpy as np
import pytest
import torch
from peft import LoraConfig
from tiny_models import FAMILIES, SMALL, assert_near, own_log_prob, write_adapter, write_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    GPTNeoConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    T5Config,
)

from espnet_bayeslm.loading.components import is_ngram
from espnet_bayeslm.pretrained import pretrained_scorer
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm, load_tokenizer
from espnet_bayeslm.pretrained.loaded_lm import CausalLM
from espnet_bayeslm.pretrained.names import is_pretrained
from espnet_bayeslm.pretrained.pretrained_scorer import CausalTreeLM, PretrainedScorer
from espnet_bayeslm.pretrained.text_forms import FORMS, MARKS, Reader, TextForm
from espnet_bayeslm.scoring import log_probs, tree_lm
from espnet_bayeslm.scoring.word_scores import END
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


def scorer_of(lm, form="lower", **options):
    """Return the scorer of an LM that reads text in a form."""
    return PretrainedScorer(dataclasses.replace(lm, text_form=form), **options)


@pytest.mark.parametrize("form", FORMS)
def test_words_sum_to_the_models_own_loss(lm, form):
    scorer = scorer_of(lm, form)
    for words, scores in zip(SENTENCES, scorer.word_scores(SENTENCES), strict=True):
        assert len(scores.log_probs) == len(words) + 1
        expected = own_log_prob(lm, scorer.reader, words)
        assert scores.log_probs.sum() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("takes_trees", [True, False])
@pytest.mark.parametrize(
    "limits",
    [
        *({"MAX_NODES": size} for size in (1, 7, 30)),
        # the output layer in packed blocks, as for many lists
        *({"MAX_NODES": 12, "PACKED": 1, "PROJECTED": size} for size in (1, 4096)),
    ],
    ids=str,
)
def test_the_size_of_batches_changes_nothing(lm, limits, takes_trees, monkeypatch):
    form = "lower,newline,blank"  # with all parts named, no others are tried
    expected = scorer_of(lm, form).word_scores(SENTENCES)
    for name, value in limits.items():
        modules = {"MAX_NODES": pretrained_scorer, "PACKED": log_probs, "PROJECTED": tree_lm}
        monkeypatch.setattr(modules[name], name, value)
    scorer = scorer_of(lm, form)
    scorer.tree_lm.takes_trees = takes_trees
    assert_near(scorer.word_scores(SENTENCES), expected)


def test_context_is_the_sentences_before(lm):
    """Of lists by their history, and of a text by `context`, against transformers' own loss."""
    scorer = scorer_of(lm)
    first, second, other = SENTENCES[0], SENTENCES[2], SENTENCES[3]
    (history,) = scorer.extended([None], [first])
    given, alone = scorer.scores_in_context([[second, other], [second]], [history, None])
    assert_near(alone, scorer.word_scores([second]))
    expected = own_log_prob(lm, scorer.reader, second, first)
    assert given[0].log_probs.sum() == pytest.approx(expected, abs=1e-4)
    rows = scorer_of(lm, context=1).word_scores([other, first, second])
    assert rows[2].log_probs.sum() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("keeps_keys, reach", [(True, 1000), (False, 1000), (True, 9), (True, 6)])
@pytest.mark.parametrize("form", ["sentence,newline,blank", "as_is,special,no_blank"])
def test_words_one_by_one_have_the_scores_of_the_sentence(lm, form, keeps_keys, reach, monkeypatch):
    """Many sentences at once, from the keys and values of their prefixes or read again.

    A model's attention may reach fewer tokens than all prefixes of a step have, or one has.
    """
    scorer, expected = scorer_of(lm, form), scorer_of(lm, form).word_scores(SENTENCES)
    assert scorer.tree_lm.keeps_keys
    monkeypatch.setitem(vars(scorer.tree_lm), "keeps_keys", keeps_keys)
    monkeypatch.setattr(scorer.tree_lm, "reach", min(reach, scorer.tree_lm.reach))
    states = [scorer.begin(vocabulary=itertools.chain(*SENTENCES))] * len(SENTENCES)
    for n in range(max(map(len, SENTENCES)) + 1):
        live = [k for k, words in enumerate(SENTENCES) if n <= len(words)]
        words = [(*SENTENCES[k], END)[n] for k in live]
        found = scorer.next_words([states[k] for k in live], words)
        wanted = [expected[k].log_probs[n] for k in live]
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        for k, word in zip(live, words, strict=True):
            states[k] = scorer.after(states[k], word) if word != END else None


def test_a_prefix_is_read_once(lm, monkeypatch):
    scorer, shapes = scorer_of(lm), []
    assert scorer.tree_lm.keeps_keys
    hook = scorer.tree_lm._body.register_forward_pre_hook(
        lambda _, args, inputs: shapes.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    state = scorer.after(scorer.begin(), "so")
    first = scorer.next_words([state] * 3, ["we", "could", END])
    encoded = [scorer.reader.encode(words) for words in (["so", "we"], ["so", "could"])]
    texts = [(*scorer.reader.start, *item.ids[: item.starts[-1]]) for item in encoded]
    assert sum(shape[1] for shape in shapes) == len(
        {t[:n] for t in texts for n in range(1, len(t) + 1)}
    )
    shapes.clear()
    assert scorer.next_words([state] * 3, ["we", "could", END]).tolist() == first.tolist()
    assert shapes == []
    hook.remove()


@pytest.mark.parametrize("reach", [1000, 30, 12])
@pytest.mark.parametrize(
    "form, num_samples",
    [
        ("sentence,newline,blank", 2),
        ("as_is,special,no_blank", 0),
        ("as_is,special,no_blank", 2),
    ],
)
def test_recordings_go_on_from_kept_keys(lm, form, num_samples, reach, monkeypatch):
    """Recordings of two lengths, against the same scores with no keys kept.

    A model's attention may reach fewer tokens than a recording has, or than a batch has.
    """
    uncertain = dataclasses.replace(lm, sampled=lambda index: noise(lm.model, index))
    groups = [[SENTENCES[n], SENTENCES[n - 1]] for n in range(5)]
    found = []
    for keeps_keys in (True, False):
        scorer = scorer_of(uncertain, form, num_samples=num_samples, max_context=1000)
        assert scorer.tree_lm.keeps_keys
        monkeypatch.setitem(vars(scorer.tree_lm), "keeps_keys", keeps_keys)
        monkeypatch.setattr(scorer.tree_lm, "reach", min(reach, scorer.tree_lm.reach))
        histories, of_groups = [None, None, None], []
        for step in range(5):
            live = [0, 1, 2][: 3 - step // 2]
            now = [groups[(step + r) % 5] for r in live]
            of_groups += scorer.scores_in_context(now, [histories[r] for r in live])
            said = [group[step % 2] for group in now]
            histories = scorer.extended([histories[r] for r in live], said)
        found.append([score for group in of_groups for score in group])
    assert_near(*found)


@contextlib.contextmanager
def noise(model, index):
    """Hold other weights of the first layer."""
    weight = next(p for n, p in model.named_parameters() if p.ndim == 2 and "emb" not in n)
    with torch.no_grad():
        own = weight.clone()
        weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(index)))
        try:
            yield
        finally:
            weight.copy_(own)


def test_a_recording_is_read_once(lm, monkeypatch):
    """Of each utterance the tokens that are new; of one that leaves the context, a part again."""
    scorer, sizes = scorer_of(lm, max_context=12), []
    assert scorer.tree_lm.keeps_keys
    scorer.prepare(SENTENCES)
    first, second = SENTENCES[0], SENTENCES[3]
    lengths = [len(scorer.reader.encode(words).ids) for words in (first, second)]
    hook = scorer.tree_lm._body.register_forward_pre_hook(
        lambda _, args, inputs: sizes.append(inputs["input_ids"].size(1)), with_kwargs=True
    )
    (history,) = scorer.extended([None], [first])
    for _ in range(3):
        scorer.scores_in_context([[second]], [history])
        (history,) = scorer.extended([history], [second])
    hook.remove()
    start, reach = len(scorer.reader.start), scorer.tree_lm.reach
    tokens, expected = lengths[0], []
    for step in range(3):
        whole = start + tokens + lengths[1] - 1
        again = step == 0 or tokens == 6 or whole >= reach
        expected.append(whole if again else lengths[1])
        tokens = 6 if tokens + lengths[1] > 24 else tokens + lengths[1]
    assert sizes == expected
    assert reach < 24 or lengths[1] in sizes


@pytest.mark.parametrize("most", [0, 1, 3])
def test_the_last_tokens_of_the_context_are_read(lm, most):
    """Of a recording and of a text, whose sentences have more tokens than that.

    A recording whose keys are kept is cut to half of them where it has more than twice as many.
    """
    first, second, third = SENTENCES[0], SENTENCES[3], SENTENCES[2]
    scorer = scorer_of(lm, context=2, max_context=most)
    scorer.prepare([first])
    expected = own_log_prob(lm, scorer.reader, third, first, second, max_context=most)
    assert expected != pytest.approx(
        own_log_prob(lm, scorer.reader, third, first, second), abs=1e-2
    )
    history = scorer.extended(scorer.extended([None], [first]), [second])
    ((given,),) = scorer.scores_in_context([[third]], history)
    cut = own_log_prob(lm, scorer.reader, third, first, second, max_context=math.ceil(most / 2))
    assert given.log_probs.sum() == pytest.approx(cut, abs=1e-4)
    rows = scorer.word_scores([first, second, third])
    assert rows[2].log_probs.sum() == pytest.approx(expected, abs=1e-4)


def test_the_words_after_a_prefix_and_the_end_sum_to_one_at_most(lm):
    """All words of up to two tokens: their mass, with that of the end, is close to one."""
    scorer = scorer_of(lm, "as_is")
    tokenizer, opens = lm.tokenizer, scorer.prepare(SENTENCES).openings
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


CLOSED = {
    # pieces that tell where a word begins, and pieces that tell where a word goes on
    "begins": (["\u2581a", "\u2581b", "c", "d"], lambda word: [f"\u2581{word[0]}", *word[1:]]),
    "continues": (["a", "b", "##c", "##d"], lambda w: [w[0], *(f"##{sign}" for sign in w[1:])]),
}


def closed_lm(pieces):
    """Return an LM in whose language each sequence of pieces is one text, and its vocabulary."""
    vocab = {piece: n for n, piece in enumerate(["<|end|>", *pieces])}
    if "##c" in vocab:
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="a"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer = Tokenizer(models.Unigram([(piece, 0.0) for piece in vocab], unk_id=0))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    marks = dict(bos_token="<|end|>", eos_token="<|end|>")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES["llama"](len(vocab))).double().eval()
    with torch.no_grad():  # away from uniform probabilities
        for parameter in model.parameters():
            parameter.mul_(8.0 if parameter.dim() > 1 else 1.0)
    return CausalLM("closed", model, fast, "", text_form="as_is"), vocab


@pytest.mark.parametrize("before", [[], ["a"], ["ad", "bcc"]], ids=str)
@pytest.mark.parametrize("marks", CLOSED)
def test_the_words_after_a_prefix_sum_to_one(marks, before):
    """All words of up to five pieces, the end, and all that goes on after five pieces.

    The LM's own softmax gives the last of the three. At a sentence's start the probability of
    pieces that begin no word is lost.
    """
    pieces, cut = CLOSED[marks]
    lm, vocab = closed_lm(pieces)
    opening, going_on = [0, 1, 2], [3, 4]

    @torch.no_grad()
    def next_probs(words):
        """P of each piece after some words."""
        ids = [0, *(vocab[piece] for word in words for piece in cut(word))]
        return lm.model(input_ids=torch.tensor([ids])).logits[0, -1].softmax(0).numpy()

    ends = [["".join(x) for x in itertools.product("cd", repeat=n)] for n in range(5)]
    words = [first + end for of_length in ends for end in of_length for first in "ab"]
    sentences = [(*before, word) for word in words]
    n, scores = len(before), scorer_of(lm, "as_is").word_scores([*sentences, tuple(before)])
    total = sum(np.exp(found.log_probs[n]) for found in scores)
    begun = next_probs(before)
    longer = 0.0
    for word in (first + end for end in ends[-1] for first in "ab"):
        p = begun[vocab[cut(word)[0]]]
        for m in range(1, len(word)):
            p *= next_probs([*before, word[:m]])[vocab[cut(word)[m]]]
        longer += p * next_probs([*before, word])[going_on].sum()
    assert longer > 1e-3
    rest = longer / begun[opening].sum() if before else longer + begun[going_on].sum()
    assert total + rest == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("packed", [1, 10_000])
def test_half_precision_sums_probabilities_in_single(tmp_path, monkeypatch, packed):
    """An LM without an opinion gives each of its V tokens 1 / V, which bfloat16 cannot hold."""
    monkeypatch.setattr(log_probs, "PACKED", packed)
    lm = load_causal_lm(write_model(tmp_path / "lm"), precision="bfloat16")
    with torch.no_grad():
        lm.model.get_output_embeddings().weight.zero_()
    scorer = scorer_of(lm, num_samples=1)
    for words, scores in zip(SENTENCES, scorer.word_scores(SENTENCES), strict=True):
        count = len(scorer.reader.encode(words).ids)
        expected = -count * math.log(lm.model.config.vocab_size)
        assert scores.log_probs.sum() == pytest.approx(expected, rel=1e-6)
        (found,) = scorer.uncertainty([words])
        assert found.log_probs.sum() == pytest.approx(expected, rel=1e-6)
        assert found.entropy.sum() == pytest.approx(-expected, rel=1e-5)


def gpt_neo(window, positions=512):
    """Configuration of a family whose local layers count their window in places."""
    kinds = [[["global", "local"], 1]]
    sizes = dict(hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24)
    return lambda v: GPTNeoConfig(
        vocab_size=v,
        attention_types=kinds,
        window_size=window,
        max_position_embeddings=positions,
        **sizes,
    )


@pytest.mark.parametrize("beyond", [False, True], ids=["in the window", "beyond the window"])
@pytest.mark.parametrize("window", [8, 40])
def test_trees_larger_than_an_attention_s_window(tmp_path, window, beyond):
    """Each sentence has the score that it alone has, be it as short as the window or longer.

    Nodes of one tree are farther apart than the window where the sentences are not.
    """
    lm = load_causal_lm(write_model(tmp_path / "lm", gpt_neo(window)))
    rng, length = np.random.default_rng(0), window + 5 if beyond else window // 2 - 1
    stem = rng.choice(["x", "y", "z"], length - 2).tolist()
    sentences = [(*stem[: rng.integers(length)], *rng.choice(list("abcxyz"), 2)) for _ in range(90)]
    scorer = scorer_of(lm)
    found = scorer.word_scores(sentences)
    longest = max(len(scorer.reader.encode(words).ids) for words in sentences)
    nodes = {words[:n] for words in sentences for n in range(len(words))}
    assert scorer.tree_lm.takes_trees and len(nodes) > 1.5 * window
    assert (longest + len(scorer.reader.start) - 1 > window) == beyond
    for words, scores in zip(sentences, found, strict=True):
        expected = own_log_prob(lm, scorer.reader, words)
        assert scores.log_probs.sum() == pytest.approx(expected, abs=1e-4)


def test_trees_larger_than_the_positions(tmp_path):
    """Some models have masks of as many places as they have positions."""
    lm = load_causal_lm(write_model(tmp_path / "lm", gpt_neo(256, positions=48)))
    sentences = [tuple(words) for words in itertools.permutations("abcd")]
    scorer = scorer_of(lm)
    for words, scores in zip(sentences, scorer.word_scores(sentences), strict=True):
        expected = own_log_prob(lm, scorer.reader, words)
        assert scores.log_probs.sum() == pytest.approx(expected, abs=1e-4)


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
        found = scorer_of(lm, str(reader.form)).word_scores(SENTENCES)
        assert -sum(s.log_probs.sum() for s in found) >= total - 1e-3


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


def test_a_model_without_trees_reads_padded_batches(lm, caplog):
    assert CausalTreeLM(lm.model).takes_trees
    caplog.set_level(logging.INFO)
    padded = scorer_of(dataclasses.replace(lm, model=NoTrees(lm.model)))
    assert_near(padded.word_scores(SENTENCES), scorer_of(lm).word_scores(SENTENCES))
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


@pytest.mark.parametrize(
    "package, file",
    [("gguf", "lm.gguf"), ("peft", "adapter_config.json"), ("transformers", "config.json")],
)
def test_missing_packages(package, file, tmp_path, monkeypatch):
    """They are named before anything is read."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / file).write_text("{}")
    source = tmp_path / file if package == "gguf" else tmp_path
    remedy = r"pip install 'espnet_bayeslm\[pretrained\]'"
    with pytest.raises(InputError, match=rf"needs the package {package}\. Install it: {remedy}"):
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
    tied = dict(intermediate_size=24, tie_word_embeddings=True, **SMALL)
    base = write_model(tmp_path / "base", lambda v: LlamaConfig(vocab_size=v, **tied))
    write_adapter(base, tmp_path / "adapter", LoraConfig(r=2, **options))
    lm = load_causal_lm(tmp_path / "adapter", text_form="lower")
    scorer = PretrainedScorer(lm)
    expected = scorer.word_scores(SENTENCES[:3])
    for words, scores in zip(SENTENCES, expected, strict=False):
        theirs = own_log_prob(lm, scorer.reader, words)
        assert scores.log_probs.sum() == pytest.approx(theirs, abs=1e-4)
    assert_near(PretrainedScorer(lm.at_mean()).word_scores(SENTENCES[:3]), expected)


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
    opens = Reader(fast, TextForm(marks="special")).openings
    assert opens.tolist() == [not piece.startswith("##") for piece in vocab]


def test_an_adapter_of_another_base(tmp_path):
    folder, other = tmp_path / "adapter", write_model(tmp_path / "other", "gpt2")
    write_adapter(write_model(tmp_path / "base"), folder)
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
    "name, content",
    [
        ("config.json", "{"),
        ("config.json", '{"model_type": "none"}'),
        ("model.safetensors", "not weights"),
        ("tokenizer.json", None),
    ],
)
def test_broken_folders(name, content, tmp_path):
    """One line that names the folder, and no more."""
    file = write_model(tmp_path / "lm") / name
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(InputError, match="lm: ") as caught:
        load_causal_lm(tmp_path / "lm")
    assert "\n" not in str(caught.value)


def test_code_of_a_folder_is_not_run(tmp_path):
    file = write_model(tmp_path / "lm") / "config.json"
    conf = json.loads(file.read_text())
    conf.update(model_type="own", auto_map={"AutoConfig": "own.AutoConfig"})
    file.write_text(json.dumps(conf))
    (tmp_path / "lm/own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="needs code of its own"):
        load_causal_lm(tmp_path / "lm")
    assert not (tmp_path / "ran").exists()


def test_a_sentence_beyond_the_positions(tmp_path):
    lm = load_causal_lm(write_model(tmp_path / "lm", "gpt2"))
    lm.model.config.max_position_embeddings = 20
    with pytest.raises(InputError, match=r"has \d+ tokens, and the LM reads at most 20"):
        scorer_of(lm).word_scores([("x",) * 40])
