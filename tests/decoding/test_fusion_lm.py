"""Fusion pays words as rescoring scores them, whatever the tokens, components and look-ahead."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "pretrained"))
from tiny_models import write_model
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import export, ngram, train
from espnet_bayeslm.decoding.fusion_lm import FusionLM
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.pretrained import packed_linears
from espnet_bayeslm.scoring.interpolation import combined
from espnet_bayeslm.utils.errors import InputError

SENTENCES = ["so we could put it there", "yes we could", "the remote is on the table", "yes"]
SPECIAL = ("<blank>", "<unk>")
PIECES = "▁so ▁we ▁could ▁p ut ▁it ▁the re ▁ y es ▁remote ▁is ▁on ▁table".split()  # noqa: SIM905
LETTERS = sorted(set("".join(SENTENCES)) - {" "})
CUTS = {
    "pieces": (
        [*SPECIAL, *PIECES, "<sos/eos>"],
        {
            SENTENCES[0]: "▁so ▁we ▁could ▁p ut ▁it ▁the re",
            SENTENCES[1]: "▁ y es ▁we ▁could",
            SENTENCES[2]: "▁the ▁remote ▁is ▁on ▁the ▁table",
            SENTENCES[3]: "y es",  # a search may leave the first blank out
        },
    ),
    "letters": (
        [*SPECIAL, "<space>", *LETTERS, "<sos/eos>"],
        {text: " ".join("<space>" if c == " " else c for c in text) for text in SENTENCES},
    ),
    "words": (
        [*SPECIAL, *sorted({w for text in SENTENCES for w in text.split()}), "<sos/eos>"],
        {text: text for text in SENTENCES},
    ),
    "bytes": (
        [*SPECIAL, "<|en|>", *(p.replace("▁", "Ġ") for p in PIECES), "<sos/eos>"],
        {text: cut for text, cut in ((SENTENCES[2], "<|en|> Ġthe Ġremote Ġis Ġon Ġthe Ġtable"),)},
    ),
    "byte fallback": (
        [*SPECIAL, "▁", "▁we", *(f"<0x{ord(letter):02X}>" for letter in LETTERS), "<sos/eos>"],
        {SENTENCES[1]: "▁ <0x79> <0x65> <0x73> ▁we ▁ <0x63> <0x6F> <0x75> <0x6C> <0x64>"},
    ),
}
"""Sort of tokens -> the token list, and each sentence in these tokens."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return {name: a component's options} of LMs with other tokens than the recogniser."""
    folder = tmp_path_factory.mktemp("sources")
    text = folder / "text"
    text.write_text("\n".join(SENTENCES * 10) + "\n")
    arpa = folder / "words.arpa"
    ngram.main(words(text=text, order=2, arpa=arpa, discount_fallback="true"))
    files = {"train_text": text, "valid_text": text, "exp": folder / "letters"}
    options = {"token_type": "char", "config": "point_lstm", "size": "small", "max_epoch": 1}
    options["use_matplotlib"] = "false"
    train.main(words(**files, **options, lm_conf="unit=8"))
    found = {
        "n-gram": {"ngrams": [str(arpa)]},
        "own LM of letters": {"lms": [str(folder / "letters")]},
        "causal LM": {"lms": [f"hf:{write_model(folder / 'llama')}"]},
    }
    found["mixture"] = {"lms": [found["causal LM"]["lms"][0]], "ngrams": [str(arpa)]}
    return found


def expected_scores(components, weights, sentences):
    """Return ln P of each sentence as rescoring has it, by the mixture."""
    scores = [component.scorer.word_scores(sentences) for component in components]
    return [
        combined(np.stack([s.log_probs for s in own]), np.array(weights)).sum()
        for own in zip(*scores, strict=True)
    ]


def total(lm, ids, *, ends_early=True):
    """Return the sum that a beam search adds up for a finished hypothesis.

    The look-ahead rules all ends but the last one out where none may come early.
    """
    sequence, sum_, states = [lm.vocab_size - 1, *ids, lm.vocab_size - 1], 0.0, [None]
    for n, token in enumerate(sequence[1:], 1):
        if not ends_early:
            lm.end_margin = 1e9 if n > len(ids) else -1e9
        row, states = lm.batch_score(torch.tensor([sequence[:n]]), states, None)
        sum_ += float(row[0, token])
    return sum_


def look_ahead(num_tokens):
    """Return a small LM of random weights as the look-ahead has it."""
    conf = {"att_unit": 8, "head": 2, "unit": 16, "layer": 1}
    part = {"name": "ahead", "kind": "lm", "weight": 1.0}
    return [{**part, "lm": "bayes_transformer", "lm_conf": conf}] if num_tokens else None


@pytest.mark.parametrize("ahead, interval", [(False, 1), (True, 1), (True, 3)])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["n-gram", "own LM of letters", "causal LM", "mixture"])
def test_a_finished_hypothesis_has_the_score_of_its_text(name, cut, ahead, interval, sources):
    tokens, cuts = CUTS[cut]
    weights = [0.3, 0.7] if name == "mixture" else [1.0]
    components = {**sources[name], "text_form": "lower", "max_oov_rate": 1.0}
    torch.manual_seed(1)
    lm = FusionLM(
        len(tokens),
        tokens,
        components,
        weights=weights,
        ahead=look_ahead(len(tokens) if ahead else 0),
        end_margin=1e9,
        interval=interval,
    ).eval()
    loaded = load_components(ComponentOptions(**components))
    expected = expected_scores(loaded, weights, [text.split() for text in cuts])
    for (text, pieces), value in zip(cuts.items(), expected, strict=True):
        ids = [tokens.index(piece) for piece in pieces.split()]
        assert [*lm.payments.words(ids)] == text.split()
        found = total(lm, ids, ends_early=interval == 1)
        assert found == pytest.approx(value, abs=1e-4)


def test_what_stays_of_the_look_ahead_is_added(sources):
    tokens, cuts = CUTS["pieces"]
    options = {"weights": [1.0], "ahead": look_ahead(1), "end_margin": 1e9}
    torch.manual_seed(1)
    lm = FusionLM(len(tokens), tokens, sources["n-gram"], takes_back=False, **options).eval()
    loaded = load_components(ComponentOptions(**sources["n-gram"]))
    texts = [text.split() for text in cuts]
    for cut, value in zip(cuts.values(), expected_scores(loaded, [1.0], texts), strict=True):
        ids = [tokens.index(piece) for piece in cut.split()]
        assert total(lm, ids) == pytest.approx(value + 0.5 * total(lm.ahead, ids), abs=1e-4)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.4, 0.6]])
def test_an_ngram_stands_in_for_words_that_wait(weights, sources):
    """Whatever its weight is among the LMs, which pay four words at the sixth token."""
    tokens, cuts = CUTS["pieces"]
    components = {**sources["mixture"], "text_form": "lower"}
    how = {"weights": weights, "interval": 6, "end_margin": -1e9}
    lm = FusionLM(len(tokens), tokens, components, **how).eval()
    sequence, states, sums = [len(tokens) - 1], [None], [0.0]
    for piece in cuts[SENTENCES[0]].split():
        sequence.append(tokens.index(piece))
        row, states = lm.batch_score(torch.tensor([sequence]), states, None)
        sums.append(sums[-1] + float(row[0, 2]))
    loaded = load_components(ComponentOptions(**components))
    each = [c.scorer.word_scores([SENTENCES[0].split()])[0].log_probs for c in loaded]
    paid, waits = combined(np.stack(each), np.array(weights)), each[1]
    expected = [waits[:n].sum() for n in (0, 0, 1, 2, 3, 3)]
    expected += [paid[:4].sum() + waits[4:n].sum() for n in (4, 5, 5)]
    assert sums == pytest.approx(expected, abs=1e-4)


def test_hypotheses_of_many_utterances_at_once(sources):
    tokens, cuts = CUTS["pieces"]
    components = {**sources["mixture"], "text_form": "lower"}
    torch.manual_seed(1)
    options = {"weights": [0.5, 0.5], "ahead": look_ahead(1), "end_margin": 1e9}
    lm = FusionLM(len(tokens), tokens, components, **options).eval()
    rows = [[tokens.index(p) for p in cut.split()][:3] for cut in cuts.values()][:3] * 2
    alone = [
        lm.batch_score(torch.tensor([[len(tokens) - 1, *row]]), [None], None)[0] for row in rows
    ]
    sequences = torch.tensor([[len(tokens) - 1, *row] for row in rows])
    states = [None] * len(rows)
    for n in range(1, sequences.size(1) + 1):
        found, states = lm.batch_score(sequences[:, :n], states, None)
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-4, rtol=0)


def test_an_lm_that_changes_between_searches(sources):
    tokens, cuts = CUTS["pieces"]
    components = {**sources["causal LM"], "text_form": "lower"}
    lm = FusionLM(len(tokens), tokens, components, end_margin=1e9).eval()
    ids = [tokens.index(piece) for piece in cuts[SENTENCES[0]].split()]
    sequence = torch.tensor([[len(tokens) - 1, *ids]])
    places, before = (range(len(ids) + 1), [*ids, len(tokens) - 1]), total(lm, ids)
    for scores in (lambda: total(lm, ids), lambda: lm(sequence, None)[0][0][places].sum().item()):
        lm._mixture().components[0].scorer.lm.model.lm_head.weight.data.mul_(0.8)
        (expected,) = lm.text_log_probs([ids])
        assert abs(before - expected) > 0.1
        assert scores() == pytest.approx(expected, abs=1e-4)
    # utterances of a batch share prefixes
    _, (one, other) = lm.batch_score(sequence[:, :1].expand(2, 1), [None, None], None)
    assert one.text.words[0].prefix is other.text.words[0].prefix


def test_an_end_that_the_look_ahead_rules_out_costs_nothing(sources, monkeypatch):
    tokens, _ = CUTS["pieces"]
    lm = FusionLM(len(tokens), tokens, sources["n-gram"], ahead=look_ahead(1), end_margin=-1.0)
    lm.eval()
    asked = []
    scorer = lm._mixture().components[0].scorer
    next_words = scorer.next_words

    def watched(states, asked_words):
        asked.extend(asked_words)
        return next_words(states, asked_words)

    monkeypatch.setattr(scorer, "next_words", watched)
    ids = [len(tokens) - 1, tokens.index("▁so"), tokens.index("▁we")]
    found, _ = lm.batch_score(torch.tensor([ids]), [None], None)
    with torch.no_grad():
        ahead = lm.ahead(torch.tensor([ids]), None)[0][0, -1]
    assert asked == ["so"] and ahead.argmax() != len(tokens) - 1
    assert found[0, -1] == -torch.inf


def test_words_of_tokens():
    whisper = TokenWords(["<blank>", "<|en|>", "Ġna", "Ã¯", "ve", "<sos/eos>"])
    assert whisper.is_bytes and whisper.words([1, 2, 3, 4]) == ["naïve"]
    chinese = TokenWords(["<blank>", "<unk>", "你", "好", "<sos/eos>"])
    assert chinese.words([2, 3, 1]) == ["你", "好", "<unk>"]
    # a token beside the pieces of bytes stands for itself
    mixed = TokenWords(["<blank>", "你", "Ġna", "Ã¯", "ve", "<sos/eos>"])
    assert mixed.is_bytes and mixed.words([1, 2, 3, 4]) == ["你", "naïve"]


@pytest.mark.parametrize(
    "tokens, message",
    [
        (["<blank>", "<unk>", "<sos/eos>"], "the 3 tokens make no words"),
        (["<blank>", "▁in▁the", "▁of", "<sos/eos>"], "end of a word within them, as '▁in▁the'"),
    ],
)
def test_tokens_that_make_no_words(tokens, message, sources):
    with pytest.raises(InputError, match=message):
        FusionLM(len(tokens), tokens, sources["n-gram"])


def test_a_configuration_without_components(sources):
    for tokens, components in ((["<blank>", "a"], sources["n-gram"]), (["<blank>", "a", "b"], {})):
        with pytest.raises(InputError, match="expected `components` or `bias`, and 3 `tokens`"):
            FusionLM(3, tokens, components)


def test_a_fusion_that_was_written_with_a_step_that_reads_more_than_a_word(sources):
    tokens, _ = CUTS["pieces"]
    with pytest.raises(InputError, match="lm fusion: --normalize numbers reads the words around"):
        FusionLM(len(tokens), tokens, sources["n-gram"], normalize="numbers,lower")


def test_copies_share_their_components(sources):
    lm = FusionLM(len(CUTS["pieces"][0]), CUTS["pieces"][0], sources["n-gram"])
    (component,) = lm._mixture().components
    assert copy.deepcopy(lm)._mixture().components[0] is component


# `bayeslm export --format fusion`


@pytest.fixture(scope="module")
def asr_exp(tmp_path_factory):
    """Return the folder of a recogniser's configuration."""
    folder = tmp_path_factory.mktemp("asr")
    (folder / "dev").write_text("".join(f"u{n} {t}\n" for n, t in enumerate(SENTENCES)))
    config = {
        **{"token_list": CUTS["letters"][0], "token_type": "char", "use_preprocessor": True},
        "valid_data_path_and_name_and_type": [[f"{folder}/dev", "text", "text"]],
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    torch.save({}, folder / "valid.acc.best.pth")
    return folder


@pytest.fixture(scope="module")
def ahead(asr_exp, tmp_path_factory):
    """Return an n-gram of the recogniser's tokens."""
    folder = tmp_path_factory.mktemp("ahead")
    (folder / "text").write_text("\n".join(SENTENCES) + "\n")
    options = {"text": folder / "text", "order": 2, "discount_fallback": "true"}
    ngram.main(words(asr_exp=asr_exp, arpa=folder / "tokens.arpa", **options))
    return folder / "tokens.arpa"


def changed_recogniser(asr_exp, tmp_path, **changes):
    """Return the folder of a recogniser whose configuration differs."""
    config = yaml.safe_load((asr_exp / "config.yaml").read_text()) | changes
    folder = tmp_path / "asr"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    torch.save({}, folder / "valid.acc.best.pth")
    return folder


def export_options(sources, asr_exp, ahead, output):
    """Return the options of an export of a causal LM and an n-gram."""
    lm, arpa = sources["mixture"]["lms"], sources["mixture"]["ngrams"]
    files = {"asr_exp": asr_exp, "ahead": ahead, "lm": lm, "ngram": arpa, "output": output}
    return {"format": "fusion", "weights": "0.4,0.6", **files}


@pytest.mark.parametrize("how", [{}, {"ahead_stays": "true"}])
def test_what_espnet_loads(how, sources, asr_exp, ahead, tmp_path):
    from espnet2.tasks.lm import LMTask

    from espnet_bayeslm import register

    register()
    export.main(words(**export_options(sources, asr_exp, ahead, tmp_path / "fusion"), **how))
    files = [tmp_path / "fusion" / name for name in ("config.yaml", "valid.loss.ave.pth")]
    model, args = LMTask.build_model_from_file(*map(str, files), "cpu")
    assert args.token_list == CUTS["letters"][0]
    tokens, cuts = CUTS["letters"]
    lm = model.lm.eval()
    assert lm.ahead_weight == (0.5 if how else 1.0) and lm.payments.interval == 8
    lm.end_margin = 1e9
    loaded = lm._mixture().components
    texts = [text.split() for text in cuts]
    for cut, value in zip(cuts.values(), expected_scores(loaded, [0.4, 0.6], texts), strict=True):
        ids = [tokens.index(piece) for piece in cut.split()]
        kept = 0.5 * total(lm.ahead, ids) if how else 0.0
        assert total(lm, ids) == pytest.approx(value + kept, abs=1e-4)
    # the form was chosen by the recogniser's validation text
    assert args.lm_conf["text_forms"]["llama"].startswith(("lower", "as_is", "sentence"))
    assert load_lm(tmp_path / "fusion").token_list == tokens


@pytest.mark.parametrize(
    "change, message",
    [
        ({"asr_exp": None}, "--format fusion without --asr_exp"),
        ({"ahead": None}, "--format fusion without --ahead"),
        ({"weights": None}, "no --weights for the 2 components llama, words"),
        ({"lm": "no/folder"}, "no/folder"),
        ({"ahead": "words"}, "are no tokens of"),
        ({"ahead": "letters"}, "ids stand for other tokens"),
        ({"normalize": "upper"}, "unknown step 'upper'"),
        ({"normalize": "lower,numbers"}, "--format fusion: --normalize numbers reads the words"),
        ({"subtract_lm": "words", "subtract_weight": -0.2}, "--subtract_lm with --format fusion"),
    ],
)
def test_bad_input(change, message, sources, asr_exp, ahead, tmp_path, fails):
    options = export_options(sources, asr_exp, ahead, tmp_path / "fusion")
    for name, value in change.items():
        known = {
            "words": sources["n-gram"]["ngrams"][0],
            "letters": sources["own LM of letters"]["lms"][0],
        }
        options[name] = known.get(value, value)
    if change == {"ahead": "letters"}:
        # the same letters, in another order
        tokens = [*SPECIAL, *LETTERS, "<space>", "<sos/eos>"]
        options["asr_exp"] = changed_recogniser(asr_exp, tmp_path, token_list=tokens)
    command = words(**{name: value for name, value in options.items() if value is not None})
    assert message in fails(export.main, command)
    assert not (tmp_path / "fusion").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"token_list": "tokens.txt"}, "no `token_list` in it. Give the experiment of an ESPnet"),
        ({"valid_data_path_and_name_and_type": None}, "llama: no sentences that choose the form"),
    ],
)
def test_a_recogniser_that_lacks_something(
    changes, message, sources, asr_exp, ahead, tmp_path, fails
):
    changed = changed_recogniser(asr_exp, tmp_path, **changes)
    options = export_options(sources, changed, ahead, tmp_path / "fusion")
    assert message in fails(export.main, words(**options))
    assert not (tmp_path / "fusion").exists()


def test_two_ngrams_of_one_name(sources, asr_exp, ahead, tmp_path, fails):
    (arpa,) = sources["n-gram"]["ngrams"]
    copied = tmp_path / "words.arpa"
    copied.write_bytes(Path(arpa).read_bytes())
    options = export_options(sources, asr_exp, ahead, tmp_path / "fusion")
    options |= {"ngram": [arpa, copied], "weights": "0.4,0.3,0.3"}
    assert "two n-grams have one file name. Rename one." in fails(export.main, words(**options))


def test_a_mixture_is_no_look_ahead(sources, asr_exp, ahead, tmp_path, fails):
    (letters,) = sources["own LM of letters"]["lms"]
    parts = {"lm": letters, "ngram": ahead, "weights": "0.5,0.5"}
    export.main(words(**parts, output=tmp_path / "mixture"))
    tokens = load_lm(letters).token_list
    changed = changed_recogniser(asr_exp, tmp_path, token_list=tokens)
    options = export_options(sources, changed, tmp_path / "mixture", tmp_path / "fusion")
    assert "the look-ahead is lm: mixture, and one LM or" in fails(export.main, words(**options))


@pytest.mark.parametrize(
    "given, ctc_weight, size", [("", 0.3, 3), ("", 0.0, 0), ("config.yaml", 0.3, 0)]
)
def test_ctc_of_the_recogniser(given, ctc_weight, size, sources, asr_exp, ahead, tmp_path):
    """It rules ends out where it was trained, and its weights are given."""
    (tmp_path / "token.model").touch()
    conf = {"model_conf": {"ctc_weight": ctc_weight}, "bpemodel": "token.model"}
    changed = changed_recogniser(asr_exp, tmp_path, **conf)
    num_tokens = len(CUTS["letters"][0])
    weights = {"weight": torch.ones(num_tokens, 3), "bias": torch.ones(num_tokens)}
    state = {f"ctc.ctc_lo.{name}": value for name, value in weights.items()}
    torch.save(state, changed / "valid.acc.best.pth")
    export.main(words(**export_options(sources, changed / given, ahead, tmp_path / "fusion")))
    config = yaml.safe_load((tmp_path / "fusion" / "config.yaml").read_text())
    assert config["lm_conf"]["ctc_features"] == size
    assert (load_lm(tmp_path / "fusion").lm.ctc is None) == (size == 0)


def test_words_that_an_lm_does_not_know(sources, asr_exp, ahead, tmp_path, fails):
    (tmp_path / "text").write_text("\n".join(SENTENCES).upper() + "\n")
    options = export_options(sources, asr_exp, ahead, tmp_path / "fusion")
    options["text"] = tmp_path / "text"
    assert "words does not know 16 of 16 words" in fails(export.main, words(**options))
    export.main(words(**options, normalize="lower"))
    # the form is chosen by the text as LMs read it
    options |= {"text": None, "output": tmp_path / "lower"}
    export.main(words(**{name: value for name, value in options.items() if value is not None}))
    upper, lower = (
        yaml.safe_load((tmp_path / name / "config.yaml").read_text())["lm_conf"]["text_forms"]
        for name in ("fusion", "lower")
    )
    assert upper == lower


def test_a_component_that_has_gone_or_changed(sources, asr_exp, ahead, tmp_path):
    (arpa,) = sources["n-gram"]["ngrams"]
    options = export_options(sources, asr_exp, ahead, tmp_path / "fusion")
    export.main(words(**options))
    copy = tmp_path / "fusion" / "ngrams" / "words.arpa"
    copy.write_text(Path(arpa).read_text().replace("yes", "yea"))
    with pytest.raises(InputError, match="words: its files have changed"):
        load_lm(tmp_path / "fusion")
    copy.unlink()
    with pytest.raises(InputError, match=r"words\.arpa"):
        load_lm(tmp_path / "fusion")


@pytest.mark.parametrize("given, expected", [("auto", "sentence"), ("lower", "lower")])
def test_the_form_that_is_given_goes_before_the_one_of_the_weights(
    given, expected, sources, asr_exp, ahead, tmp_path
):
    rows = [
        {"name": "llama", "weight": 0.4, "text_form": "sentence,newline,blank"},
        {"name": "words", "weight": 0.6},
    ]
    (tmp_path / "weights.yaml").write_text(yaml.safe_dump({"components": rows}))
    options = export_options(sources, asr_exp, ahead, tmp_path / "fusion")
    options |= {"weights": tmp_path / "weights.yaml", "text_form": given}
    export.main(words(**options))
    config = yaml.safe_load((tmp_path / "fusion" / "config.yaml").read_text())
    assert config["lm_conf"]["text_forms"]["llama"].split(",")[0] == expected


@pytest.mark.parametrize("is_loaded", [False, True])
def test_weights_that_nobody_else_has_are_looked_at_once(is_loaded, sources, monkeypatch):
    calls, content_of = [], packed_linears.content_of
    monkeypatch.setattr(
        packed_linears, "content_of", lambda weight: calls.append(weight) or content_of(weight)
    )
    pieces = CUTS["pieces"][0]
    (source,) = sources["causal LM"]["lms"]
    components = {"lms": [espnet_bayeslm.load(source) if is_loaded else source]}
    lm = FusionLM(len(pieces), pieces, {**components, "text_form": "lower,special"}).eval()
    lm.end_margin = 1e9
    counts = []
    for _ in range(3):
        calls.clear()
        total(lm, [pieces.index("▁so")])
        counts.append(len(calls))
    assert counts[0] > 0
    assert counts[1:] == ([counts[0]] * 2 if is_loaded else [0, 0])
