"""The form of the text: one value that is chosen, printed, given, kept and applied."""

import concurrent.futures
import dataclasses
import itertools
import json
import logging
import re

import numpy as np
import pytest
import torch
import yaml
from oracles.lattice_paths import all_paths, random_lattice
from tiny_models import assert_near, write_model
from tiny_training import words
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

import espnet_bayeslm
from espnet_bayeslm.bin import interpolate, perplexity, rescore
from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.loading.component_options import (
    ComponentOptions,
    MixtureOptions,
    SubtractOptions,
)
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.mixture.mixture_worker import score_text
from espnet_bayeslm.nbest.lattice import EQUAL, best_paths
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.pretrained import pretrained_scorer
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer
from espnet_bayeslm.pretrained.text_forms import (
    BLANKS,
    FORMS,
    MARKS,
    Reader,
    TextForm,
    best_first,
    candidates,
)
from espnet_bayeslm.rescoring import lattice_worker, list_worker
from espnet_bayeslm.rescoring.rescore import tune_and_choose
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.rescoring.scales import read_scales
from espnet_bayeslm.scoring.lattices import MergeOptions
from espnet_bayeslm.utils.errors import InputError

ALL = [TextForm(*parts) for parts in itertools.product(FORMS, MARKS, BLANKS.values())]
TEXT = ["So we could put the remote", "I think that's okay", "the Table", "put a remote on it"]
OTHER = TextForm("sentence", "special", False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("lm") / "tiny")


@pytest.fixture(scope="module")
def lm(model):
    return load_causal_lm(model)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in TEXT))
    return tmp_path / "text"


def lists():
    """N-best lists of the text's sentences."""
    hyps = [Hypothesis(tuple(line.split()), -float(n)) for n, line in enumerate(TEXT)]
    return [NBest("u1", tuple(hyps[:2])), NBest("u2", tuple(hyps[2:]))]


def write_lists(path):
    with path.open("w") as f:
        for item in lists():
            hyps = [{"text": " ".join(h.words), "am_score": h.am_score} for h in item.hypotheses]
            content = {"utt": item.utt, "hypotheses": hyps, "ref": hyps[1]["text"]}
            print(json.dumps(content), file=f)
    return path


@pytest.mark.parametrize("form", ALL, ids=str)
def test_the_printed_form_is_the_one_to_give(lm, form):
    assert TextForm.parse(str(form)) == form
    (reader,) = candidates(lm.tokenizer, str(form))
    assert reader.form == form
    found = PretrainedScorer(dataclasses.replace(lm, text_form=str(form)))
    sentences = [line.split() for line in TEXT]
    other = PretrainedScorer(lm)
    other.prepare((), str(form))
    assert_near(found.word_scores(sentences), other.word_scores(sentences))


def test_parts_that_are_left_out():
    for form, marks in itertools.product(FORMS, MARKS):
        assert TextForm.parse(form) == TextForm(form)
        assert TextForm.parse(f" {form} , {marks}") == TextForm(form, marks, True)


@pytest.mark.parametrize(
    "value, message",
    [
        ("upper", "valid are auto, as_is, lower, sentence"),
        ("lower,newlin", "MARKS 'newlin': valid are newline, special"),
        ("lower,no_blank", "MARKS 'no_blank': valid are newline, special"),
        ("lower,special,none", "BLANK 'none': valid are blank, no_blank"),
        ("auto,special", "FORM 'auto': valid are as_is, lower, sentence"),
        ("lower,newline,blank,x", "4 parts, and FORM,MARKS,BLANK was expected. Leave out x"),
        ("", "valid are auto, as_is, lower, sentence"),
    ],
)
def test_unknown_forms_are_refused_before_an_lm_is_loaded(value, message, model):
    for refuse in (
        lambda: RescoreOptions.of(lms=["hf:not/there"], text_form=value),
        lambda: espnet_bayeslm.load("hf:not/there", text_form=value),
        lambda: espnet_bayeslm.rescore([], lms=["hf:not/there"], text_form=value),
    ):
        with pytest.raises(InputError, match=re.escape(message)) as caught:
            refuse()
        assert f"--text_form {value}:" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("adds", [True, False])
def test_parts_that_are_not_named_are_those_of_the_lm(adds, tmp_path, caplog):
    """Of an LM that has always seen its mark first; a warning if its tokenizer writes no mark."""
    folder = write_model(tmp_path / "lm", scale=1.0)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = [line.lower() for line in TEXT]
    ids = [torch.tensor([[0, *tokenizer(line)["input_ids"], 0]]) for line in lines]
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for batch in ids * 15:
        optimizer.zero_grad()
        model(batch, labels=batch).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    if adds:
        mark = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
        tokenizer.backend_tokenizer.post_processor = mark
    tokenizer.save_pretrained(folder)
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    for value in ("lower", "as_is", "as_is,special", "as_is,newline"):
        caplog.clear()
        perplexity.main(words(lm=f"hf:{folder}", text=tmp_path / "text", text_form=value))
        is_free = not value.endswith("newline")
        assert ("special,no_blank has" in caplog.text) == (is_free and not adds)
        for sentences in ([line.split() for line in lines], []):
            form = espnet_bayeslm.load(folder, text_form=value).scorer.prepare(sentences).form
            assert form.has(value)
            assert str(form).endswith("special,no_blank") == (is_free and adds)
            assert is_free or form == TextForm("as_is", "newline", True)
    # without sentences the mark comes first, too
    form = espnet_bayeslm.load(folder).scorer.prepare([]).form
    assert form == (TextForm("as_is", "special", False) if adds else TextForm())


def test_the_log_names_the_form_that_auto_chose(lm, model, caplog):
    caplog.set_level(logging.INFO)
    sentences = [line.split() for line in TEXT]
    expected = PretrainedScorer(lm).word_scores(sentences)
    (named,) = re.findall(r"--text_form (\S+) ", caplog.text)
    given = espnet_bayeslm.load(model, text_form=named)
    assert_near(given.word_scores(TEXT), expected)


def test_forms_that_are_clearly_worse_on_few_sentences_read_no_more(lm, monkeypatch):
    sentences = [line.lower().split() for line in TEXT]
    scorer = PretrainedScorer(lm)
    scores, readers = scorer._scores, scorer._readers
    read = []
    monkeypatch.setattr(
        scorer,
        "_scores",
        lambda encoded, *rest: read.append(len(encoded)) or scores(encoded, *rest),
    )
    monkeypatch.setattr(pretrained_scorer, "FEW_WORDS", 1)
    monkeypatch.setattr(pretrained_scorer, "CLEARLY_WORSE", 100.0)
    best = scorer.choose(sentences, readers)
    costs = {
        reader: scorer._cost(reader, list(map(reader.encode, sentences))) for reader in readers
    }
    assert best.form == min(costs, key=costs.get).form
    monkeypatch.setattr(pretrained_scorer, "CLEARLY_WORSE", 1.0)
    read.clear()
    scorer.choose(sentences, readers)
    # the texts have no capitals: two forms of three write them alike
    assert read == [1] * (len(readers) * 2 // 3) + [len(sentences) - 1]


@pytest.fixture(params=["here", "workers"])
def pool(request):
    """This process, or two workers, to which everything is sent as bytes."""
    if request.param == "here":
        with EngineOptions().pool() as pool:
            yield pool
    else:
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            yield Pool(executor, 2)


def test_auto_is_one_choice_for_all_workers_and_caches(model, pool, tmp_path):
    """The first sentences choose, so that each block has the scores that one process gives it."""
    sentences = [line.split() for line in TEXT]
    expected = espnet_bayeslm.load(model).word_scores(TEXT)
    for cache in (None, tmp_path / "kept"):
        for _ in range(2):
            options = MixtureOptions(lms=[f"hf:{model}"], cache=cache)
            where = dict(ngpu=0, context=0, output=None)
            (found,) = score_text(pool, options, sentences, **where).scores
            assert_near(found, expected)


def test_lists_on_workers_read_text_as_one_process_does(model, pool, tmp_path):
    expected = espnet_bayeslm.rescore(lists(), lms=[f"hf:{model}"])
    options = RescoreOptions.of(lms=[f"hf:{model}"])
    how = dict(tunes=False, ngpu=0, output=tmp_path / "out")
    with list_worker.scored_lists(pool, lists(), options, **how) as (scored, mixture):
        found = tune_and_choose(scored, mixture)
        assert found.mixture.text_forms == expected.mixture.text_forms != {}
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.lm_scores == pytest.approx(theirs.lm_scores, abs=1e-4)


def test_lattices_choose_the_form_of_the_list_of_their_paths(model, lm, pool):
    """And their paths have the scores of this list."""
    merging = MergeOptions(order=20, beam=np.inf, prune=np.inf, max_hyps=0)
    chosen = set()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        lattice = random_lattice(rng, num_nodes=5, words=("So", "we", "table", "I"), utt="u")
        lattice = dataclasses.replace(lattice, scales=EQUAL)
        paths = list(all_paths(lattice, EQUAL))
        nbest = NBest("u", tuple(map(Hypothesis, paths)))
        listed = espnet_bayeslm.rescore([nbest], lms=[lm])
        (item,) = listed
        expected = dict(zip(paths, item.lm_scores, strict=True))
        options = SubtractOptions(lms=[f"hf:{model}"])
        how = dict(ngpu=0, output=None, total=1)
        work = lattice_worker.rescored_lattices(pool, [lattice], options, merging, None, **how)
        with work as (rescored, forms):
            (found,) = rescored
        assert forms == listed.mixture.text_forms
        for path in best_paths(found, EQUAL, 100):
            assert path.lm_score == pytest.approx(expected[path.words], abs=1e-3)
        chosen.update(listed.mixture.text_forms.values())
    assert len(chosen) > 1, "the lattices choose one form: fragments would do as well"


def test_a_run_that_goes_on_takes_no_block_of_another_form(model, pool, tmp_path, monkeypatch):
    """The lists at the beginning have changed, and choose another form for those behind them."""
    monkeypatch.setattr(list_worker, "BLOCK_SIZE", 1)
    options, last = RescoreOptions.of(lms=[f"hf:{model}"]), NBest("last", lists()[1].hypotheses)

    def run(text, output, *, stops=False):
        first = NBest("first", (Hypothesis(tuple(text.split())),))
        how = dict(tunes=False, ngpu=0, output=output)
        with list_worker.scored_lists(pool, [first, last], options, **how) as (scored, mixture):
            found = tune_and_choose(scored, mixture)
            *_, item = found
            if stops:
                raise KeyboardInterrupt
        return found.mixture.text_forms["tiny"], item.lm_scores

    runs = {text: run(text, tmp_path / "whole") for text in TEXT[:3]}
    old, *others = runs
    new = next(text for text in others if runs[text][0] != runs[old][0])
    with pytest.raises(KeyboardInterrupt):
        run(old, tmp_path / "out", stops=True)
    assert len(list(tmp_path.glob("*blocks/*"))) == 2
    form, scores = run(new, tmp_path / "out")
    assert form == runs[new][0]
    np.testing.assert_allclose(scores, runs[new][1], atol=1e-4)
    assert not np.allclose(scores, runs[old][1], atol=1e-4)


def test_the_best_of_each_list_come_first():
    found = best_first([[("a",), ("b",)], [("a",), (), ("c",)], []])
    assert found == [("a",), ("b",), ("c",)]
    many = [[("best",) * 9, ("other",) * 9] for _ in range(100)]
    assert best_first([*many, [("last",)]]) == [("best",) * 9, ("last",), ("other",) * 9]
    long = [[(f"{n}",) * 150, ("other",)] for n in range(9)]
    assert [words[0] for words in best_first(long)] == ["0", "1", "2"]


def rescored(model, folder, *more, **options):
    """Scales and costs of a run of the command line."""
    nbest = write_lists(folder / "nbest.jsonl")
    given = {"nbest": nbest, "lm": f"hf:{model}", "output": folder / "out", **options}
    rescore.main([*words(**given), *more])
    content = yaml.safe_load((folder / "out/scales.yaml").read_text())
    lines = (folder / "out/lmwt.nn").read_text().splitlines()
    return content, [float(line.split()[1]) for line in lines]


def test_scales_keep_the_form_and_apply_it(model, tmp_path, caplog):
    """Whatever form the lists at hand would choose, by the command line and from Python."""
    tuned, _ = rescored(model, tmp_path)
    (name, chosen), *others = tuned["text_forms"].items()
    assert name == "tiny" and not others
    assert tuned["counted"]["text_forms"] == tuned["text_forms"]
    assert str(TextForm.parse(chosen)) == chosen != str(OTHER)
    tuned["text_forms"] = {"tiny": str(OTHER)}
    scales = tmp_path / "scales.yaml"
    scales.write_text(yaml.safe_dump(tuned))
    as_named = espnet_bayeslm.load(model, text_form=str(OTHER))
    every = [" ".join(hyp.words) for item in lists() for hyp in item.hypotheses]
    expected = [-as_named.score(line) for line in every]
    applied, costs = rescored(model, tmp_path, scales=scales)
    assert applied["text_forms"] == {"tiny": str(OTHER)}
    assert costs == pytest.approx(expected, abs=1e-3)
    for given in (scales, read_scales(scales)):
        found = espnet_bayeslm.rescore(lists(), lms=[f"hf:{model}"], scales=given)
        scores = np.concatenate([item.lm_scores for item in found])
        assert -scores == pytest.approx(expected, abs=1e-3)
    assert "was made with" not in caplog.text
    # under another name, by the digest
    other = tmp_path / "renamed"
    other.symlink_to(model)
    applied, _ = rescored(other, tmp_path, scales=scales)
    assert applied["text_forms"] == {"renamed": str(OTHER)}
    assert "was made with" not in caplog.text
    # a form by name is taken, and both are said
    applied, _ = rescored(model, tmp_path, scales=scales, text_form="lower")
    assert applied["text_forms"] == {"tiny": "lower,newline,blank"}
    assert re.search(
        rf"tiny: .*--text_form lower,newline,blank, and --scales .*--text_form {OTHER}", caplog.text
    )


def test_scales_that_python_has_tuned_keep_the_form(model):
    refs = {"u1": lists()[0].hypotheses[1].words, "u2": lists()[1].hypotheses[0].words}
    given = {"lms": [f"hf:{model}"], "tune": True, "refs": refs}
    found = espnet_bayeslm.rescore(lists(), **given, text_form=str(OTHER))
    assert found.scales.lms.text_forms == {"tiny": str(OTHER)}
    again = espnet_bayeslm.rescore(lists(), lms=[f"hf:{model}"], scales=found.scales)
    for ours, theirs in zip(again, found, strict=True):
        assert ours.lm_scores == pytest.approx(theirs.lm_scores, abs=1e-4)


def test_weights_keep_the_form_and_apply_it(model, text, tmp_path, caplog):
    """Each of two LMs has a form of its own."""
    lms = {"lm": [f"hf:{model}", f"hf:{model}"]}
    out, weights = tmp_path / "ppl.json", tmp_path / "weights.yaml"
    interpolate.main(words(**lms, text=text, output=weights))
    content = yaml.safe_load(weights.read_text())
    for row in content["components"]:
        assert str(TextForm.parse(row["text_form"])) == row["text_form"] != str(OTHER)
    for row in content["components"]:
        row["text_form"] = str(OTHER)
    weights.write_text(yaml.safe_dump(content))
    perplexity.main(words(**lms, text=text, weights=weights, output=out))
    rows = json.loads(out.read_text())["components"]
    as_named = espnet_bayeslm.load(model, text_form=str(OTHER))
    expected = sum(map(as_named.score, TEXT))
    assert [row["log_prob"] for row in rows[:2]] == pytest.approx([expected] * 2, abs=1e-3)
    found = espnet_bayeslm.rescore(lists(), lms=[f"hf:{model}"] * 2, weights=weights)
    assert set(found.mixture.text_forms.values()) == {str(OTHER)}
    assert "was made with" not in caplog.text
    perplexity.main(words(**lms, text=text, weights=weights, text_form="as_is"))
    assert caplog.text.count(f"--weights was made with --text_form {OTHER}") == 2
    content["components"][0]["text_form"] = "upper"
    weights.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=r"weights\.yaml: text_form upper: valid are as_is"):
        espnet_bayeslm.rescore(lists(), lms=[f"hf:{model}"] * 2, weights=weights)


def test_a_cache_returns_no_score_of_another_form_or_precision(tmp_path):
    """Whatever was kept before."""
    small = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    model = write_model(tmp_path / "lm", lambda v: LlamaConfig(vocab_size=v, **small))
    sentences = [line.split() for line in TEXT]

    def scores(form, precision, cache=None):
        options = dict(lms=[f"hf:{model}"], text_form=form, precision=precision)
        (component,) = load_components(ComponentOptions(**options, cache=cache))
        return np.concatenate([s.log_probs for s in component.scorer.word_scores(sentences)])

    forms = ["as_is", "lower", "sentence", "lower,special", "lower,newline,no_blank"]
    given = [*itertools.product(forms, ("float32", "bfloat16"))]
    expected = {how: scores(*how) for how in given}
    assert len({values.tobytes() for values in expected.values()}) == len(given)
    for how in [*given, *given]:
        found = scores(*how, tmp_path / "kept")
        np.testing.assert_array_equal(found, expected[how])
    assert len(list((tmp_path / "kept").iterdir())) == len(given)


@pytest.mark.parametrize("form", ALL, ids=str)
def test_a_word_ends_before_a_blank_a_full_stop_or_the_end(lm, form):
    """Ln p of each word by hand: its tokens, and the mass of all tokens that may follow it.

    The full stop of `sentence` is a token of the end, so it ends the last word.
    """
    reader, tokenizer = Reader(lm.tokenizer, form), lm.tokenizer
    written = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    stops = {reader.end[0], *([tokenizer.convert_tokens_to_ids(".")] * (form.form == "sentence"))}
    ends = torch.tensor([token[0] == "\u0120" or n in stops for n, token in enumerate(written)])
    sentence = TEXT[0].split()
    item = reader.encode(sentence)
    with torch.no_grad():
        ids = torch.tensor([[*reader.start, *item.ids]])
        log_p = lm.model(ids).logits[0].log_softmax(-1)[len(reader.start) - 1 : -1]
    chosen = log_p[torch.arange(len(item.ids)), torch.tensor(item.ids)].double().numpy()
    mass = log_p[:, ends].logsumexp(-1).double().numpy()
    expected = []
    for n, (first, last) in enumerate(itertools.pairwise([*item.starts, len(item.ids)])):
        before = mass[first] if n else 0.0
        after = mass[last] if last < len(item.ids) else 0.0
        expected.append(chosen[first:last].sum() + after - before)
    scorer = PretrainedScorer(dataclasses.replace(lm, text_form=str(form)))
    (scores,) = scorer.word_scores([sentence])
    np.testing.assert_allclose(scores.log_probs, expected, atol=1e-4)


def test_a_full_stop_that_a_tokenizer_lacks_makes_no_word_unknown(lm):
    vocab = {"<s>": 0, "[UNK]": 1, "So": 2, "we": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = dict(bos_token="<s>", eos_token="<s>", unk_token="[UNK]")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
    given = dataclasses.replace(lm, tokenizer=fast, text_form="sentence,special")
    assert PretrainedScorer(given).unknown(["so", "never"]) == [False, True]
