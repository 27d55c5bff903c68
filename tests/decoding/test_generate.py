"""`generate` with LMs and bias lists: sums are those of the texts, the best text is found."""

import itertools

import numpy as np
import pytest
import torch
import transformers
from test_fusion_lm import sources
from tiny_whisper import TIMES, features, tiny_tokenizer, tiny_whisper

from espnet_bayeslm.decoding import generate
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.generation import WordFusion
from espnet_bayeslm.mixture import Mixture, MixtureOptions
from espnet_bayeslm.utils.errors import InputError

__all__ = ["sources"]

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_id
STEPS = "lower,punct"
PHRASES = {"we could": 2.0, "so": None, "the remote": 4.0, "put": 1.5, "itre": 0.25, "é": 2.0}
LISTS = [PHRASES, ["re", "on the", "wewe"], []]
WEIGHTS = {"lm_weight": 0.2, "word_bonus": 0.3, "bias_weight": 3.0}


@pytest.fixture(scope="module")
def model():
    """Return a tiny Whisper."""
    return tiny_whisper(TOKENIZER)


@pytest.fixture(scope="module")
def mixtures(sources):
    """Return {name: a mixture}."""
    found = {"none": None}
    for name, files in sources.items():
        weights = [0.3, 0.7] if name == "mixture" else None
        found[name] = Mixture.load(MixtureOptions(**files, weights=weights, text_form="lower"))
    return found


def searched(model, fusion, given, *, prompt=None, **options):
    """Return the sequences of a beam search of several hypotheses, and their scores."""
    how = {"num_beams": 8, "num_return_sequences": 6, "length_penalty": 0.0, "max_new_tokens": 12}
    how |= {"do_sample": False, "logits_processor": [fusion], **options}
    if prompt is not None:
        how["decoder_input_ids"] = torch.tensor([prompt] * len(given))
    found = transformers.GenerationMixin.generate(
        *(model, given), return_dict_in_generate=True, output_scores=True, **how
    )
    return found.sequences, found.sequences_scores


def prompt_of(*marks):
    """Return the tokens of a prompt."""
    return TOKENIZER.convert_tokens_to_ids([f"<|{mark}|>" for mark in marks])


def model_log_prob(model, given, tokens, size, end=END):
    """Return ln P of a sequence by the model after a prompt, to its end, or None without one."""
    tokens = tokens.tolist()
    if end not in tokens[size:]:
        return None
    tokens = tokens[: tokens.index(end, size) + 1]
    logits = model(given[None], decoder_input_ids=torch.tensor([tokens[:-1]])).logits[0]
    rows = logits.log_softmax(-1)[size - 1 :]
    return float(rows.gather(-1, torch.tensor(tokens[size:])[:, None]).sum())


def expected_total(mixture, text, bias):
    """Return what a text adds to ln P by the model, as a rescoring has it."""
    words = generate.Normalization(STEPS).words(text.split())
    held = BiasList(bias.items() if isinstance(bias, dict) else [(p, None) for p in bias])
    total = WEIGHTS["bias_weight"] * held.total(words)
    if mixture is not None:
        (scores,) = mixture.word_scores([words])
        total += WEIGHTS["word_bonus"] * len(words)
        total += WEIGHTS["lm_weight"] * float(scores.log_probs.sum())
    return total, held.total(words)


def check_sums(model, mixture, given, lists, prompt, found, tokenizer=TOKENIZER):
    """Check the sum of each finished hypothesis; return their number, and the phrases' weights."""
    num_ended, weights = 0, 0.0
    for n, (tokens, score) in enumerate(zip(*found, strict=True)):
        utt = n * len(given) // len(found[0])
        end = tokenizer.eos_token_id
        log_prob = model_log_prob(model, given[utt], tokens, len(prompt), end)
        if log_prob is not None:
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            added, held = expected_total(mixture, text, lists[utt])
            assert float(score) == pytest.approx(log_prob + added, abs=1e-4), text
            num_ended, weights = num_ended + 1, weights + held
    return num_ended, weights


@pytest.mark.parametrize("marks", [["startoftranscript", "en", "notimestamps"], ["de"]])
@pytest.mark.parametrize("name", ["none", "n-gram", "own LM of letters", "causal LM", "mixture"])
def test_sums_of_finished_hypotheses(name, marks, model, mixtures):
    """Of one utterance and of a batch, one search after another, timestamps among the tokens."""
    mixture = mixtures[name]
    fusion = WordFusion(TOKENIZER, mixture, bias=PHRASES, normalize=STEPS, **WEIGHTS)
    given, prompt = features(3), prompt_of(*marks)
    alone = searched(model, fusion, given[:1], prompt=prompt)
    ended, _ = check_sums(model, mixture, given[:1], [PHRASES], prompt, alone)
    fusion.set_bias(LISTS)
    found = searched(model, fusion, given, prompt=prompt)
    assert found[0][:6, : alone[0].shape[1]].tolist() == alone[0].tolist()
    more = check_sums(model, mixture, given, LISTS, prompt, found)
    assert ended >= 1 and more[0] >= 5 and more[1] > 0
    fusion.set_bias(None)
    again = searched(model, fusion, given[:1], prompt=prompt)
    torch.testing.assert_close(again, alone)


@pytest.mark.parametrize("times", [False, True])
def test_whispers_own_generate(times, model, mixtures):
    """A batch with timestamps or without; Whisper rules tokens out before it."""
    given, mixture = features(3), mixtures["n-gram"]
    fusion = WordFusion(TOKENIZER, mixture, bias=[], normalize=STEPS, **WEIGHTS)
    fusion.set_bias(LISTS)
    prompt = prompt_of("startoftranscript", "en", "transcribe", *["notimestamps"][times:])
    rules = [transformers.WhisperTimeStampLogitsProcessor(model.generation_config, len(prompt))]
    how = {"num_return_sequences": 1, "max_new_tokens": 20}
    rows, sums = searched(
        *(model, fusion, given),
        prompt=prompt,
        logits_processor=[*rules[: int(times)], fusion],
        **how,
    )
    assert check_sums(model, mixture, given, LISTS, prompt, (rows, sums))[0] == 3
    named = [*itertools.chain(*map(TOKENIZER.convert_ids_to_tokens, rows.tolist()))]
    assert times == any(token in TIMES for token in named)
    own = {"language": "en", "task": "transcribe", "return_timestamps": times, "num_beams": 8}
    found = model.generate(
        given, logits_processor=[fusion], length_penalty=0.0, **own, max_new_tokens=20
    )
    texts = [TOKENIZER.batch_decode(x, skip_special_tokens=True) for x in (found, rows)]
    assert texts[0] == texts[1] and len({*texts[0]}) > 1


def test_the_best_text_of_all_is_found(sources):
    """Of all sequences of three tokens and their ends, by a beam that holds every one."""
    pieces = ["Ġso", "Ġwe", "s", "o", "Ġ"]
    tokenizer = tiny_tokenizer(pieces)
    model, given = tiny_whisper(tokenizer, seed=1), features(1)
    mixture = Mixture.load(MixtureOptions(**sources["n-gram"]))
    bias = {"so we": 2.0, "sos": 1.0}
    fusion = WordFusion(tokenizer, mixture, bias=bias, **WEIGHTS)
    prompt = tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|notimestamps|>"])
    outside = [
        *range(len(pieces), tokenizer.eos_token_id),
        *range(tokenizer.eos_token_id + 1, len(tokenizer)),
    ]
    how = {"num_beams": 160, "num_return_sequences": 100, "max_new_tokens": 4}
    tokens, sums = searched(
        *(model, fusion, given), prompt=prompt, suppress_tokens=outside, early_stopping=False, **how
    )
    end, found = tokenizer.eos_token_id, {}
    for row, score in zip(tokens.tolist(), sums.tolist(), strict=True):
        found[tuple(x for x in row[len(prompt) :] if x != end)] = score
    expected = {}
    for size in range(4):
        for ids in itertools.product(range(len(pieces)), repeat=size):
            row = torch.tensor([*prompt, *ids, end])
            text = tokenizer.decode(ids)
            log_prob = model_log_prob(model, given[0], row, len(prompt), end)
            expected[ids] = log_prob + fusion.text_score(text).total
    best = sorted(expected, key=expected.__getitem__, reverse=True)[:20]
    for ids in best:
        assert found[ids] == pytest.approx(expected[ids], abs=1e-4)


@pytest.mark.parametrize("bias", [PHRASES, []])
def test_scores_of_a_text_are_those_of_a_rescoring(bias, mixtures):
    for mixture in (mixtures["mixture"], *[None] * bool(bias)):
        fusion = WordFusion(TOKENIZER, mixture, bias=bias, normalize=STEPS, **WEIGHTS)
        for text in ("", "So we could, so", "the remote - is é."):
            found = fusion.text_score(text)
            total, held = expected_total(mixture, text, bias)
            assert found.total == pytest.approx(total)
            assert found.bias_score == pytest.approx(WEIGHTS["bias_weight"] * held)
            assert (found.lm_score is None) == (mixture is None)


def test_tokens_after_those_of_the_tokenizer_are_no_text(mixtures):
    """As timestamps are, which some tokenizers of Whisper lack."""
    wide = tiny_whisper(TOKENIZER)
    tokenizer = tiny_tokenizer()
    short = {token: n for token, n in tokenizer.get_vocab().items() if token not in TIMES}
    tokenizer.get_vocab = lambda: short
    prompt, found = prompt_of("startoftranscript", "en"), []
    for each in (TOKENIZER, tokenizer):
        fusion = WordFusion(each, mixtures["n-gram"], bias=PHRASES, normalize=STEPS, **WEIGHTS)
        found.append(searched(wide, fusion, features(2), prompt=prompt))
    torch.testing.assert_close(*found)


def test_searches_that_add_no_sums_are_refused(model):
    fusion = WordFusion(TOKENIZER, bias=["so"])
    for options in ({"num_beams": 1}, {"do_sample": True}):
        with pytest.raises(
            InputError, match=r"num_beams=1.*Search with beams: generate\(num_beams=5"
        ):
            searched(
                model, fusion, features(1), **{"num_beams": 1, "num_return_sequences": 1, **options}
            )
    with pytest.raises(InputError, match="logits in place of ln P: greedy search, or sampling"):
        searched(model, fusion, features(2), num_beams=1, num_return_sequences=1)
    fusion.set_bias(LISTS)
    with pytest.raises(InputError, match="16 hypotheses, and there are bias lists of 3 utterances"):
        searched(model, fusion, features(2))
    searched(model, fusion, features(3))
    with pytest.raises(InputError, match="48 hypotheses, and there are bias lists of 3 utterances"):
        searched(model, fusion, features(6))


class Tokens:
    """Tokenizer of some tokens."""

    def __init__(self, *tokens):
        self.tokens, self.all_special_ids, self.eos_token_id = tokens, [], None
        self.added_tokens_decoder = {}

    def get_vocab(self):
        return {token: n for n, token in enumerate(self.tokens)}


@pytest.mark.parametrize(
    "tokenizer, options, message",
    [
        (
            Tokens("<s>", "</s>"),
            {"bias": ["so"]},
            "the 2 tokens make no words: they have no letters",
        ),
        (Tokens("a", "▁b"), {"bias": ["b"]}, "no token of the end"),
        (TOKENIZER, {}, "neither a mixture nor a bias list"),
        (TOKENIZER, {"bias": ["日本"]}, "no token has, as '日本'"),
        (TOKENIZER, {"bias": {"so": -1}}, "'so' has the weight -1"),
        (
            TOKENIZER,
            {"bias": ["so"], "normalize": "numbers"},
            "WordFusion: --normalize numbers reads",
        ),
        (
            TOKENIZER,
            {"bias": ["so"], "bias_weight": -1.0},
            "bias_weight=-1: a finite number from 0",
        ),
        (TOKENIZER, {"bias": ["so"], "word_bonus": np.inf}, "word_bonus=inf: a finite number"),
    ],
)
def test_bad_input(tokenizer, options, message):
    with pytest.raises(InputError, match=message) as caught:
        WordFusion(tokenizer, **options)
    assert "\n" not in str(caught.value)


def test_phrases_where_lists_of_utterances_were_expected():
    with pytest.raises(InputError, match="a list of them for each utterance was expected"):
        WordFusion(TOKENIZER, bias=[]).set_bias(["so", "we"])
