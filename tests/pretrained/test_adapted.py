"""Adaptation of pretrained LMs through ESPnet's LM task, against peft in a plain loop."""

import argparse
import itertools
import json
import random
import shutil

import numpy as np
import pytest
import torch
import yaml
from peft import PeftModel
from pretrained.tiny_models import FAMILIES, SMALL, assert_near, write_adapter, write_model
from search_contract import check_scores, walk_utterances
from tiny_training import words
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config

import espnet_bayeslm
from espnet_bayeslm.bin import export, snr
from espnet_bayeslm.bin import train as bin_train
from espnet_bayeslm.configs import find_config
from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.loading.export import write_average
from espnet_bayeslm.loading.pretrained_lm import PretrainedLM
from espnet_bayeslm.pretrained.adapted import AdaptedLM, vocabulary
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer
from espnet_bayeslm.pretrained.text_forms import FORMS, MARKS, Reader, TextForm
from espnet_bayeslm.scoring.tree_lm import Passage
from espnet_bayeslm.scoring.word_scores import END
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.plain_text import chosen_text_form, lm_options
from espnet_bayeslm.training.plain_text import train as train_on_text
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.training.text import joined_sentences, sentences_in
from espnet_bayeslm.training.train_options import TrainOptions
from espnet_bayeslm.utils.errors import InputError

LORA = {"r": 2, "alpha": 4}
SENTENCES = ["so we could put the remote", "okay", "the the table remote", "yes I think so"]


def build(folder, family="llama", **conf):
    """An adapted LM of a tiny base, away from its start."""
    base = write_model(folder, family)
    tokenizer = AutoTokenizer.from_pretrained(base)
    lm = AdaptedLM(len(vocabulary(tokenizer)), model=f"hf:{base}", lora=LORA, **conf)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in lm.named_parameters():
            if ".lora_B." in name and "log_std" not in name:
                value.normal_(0, 0.3, generator=generator)
    return base, lm


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_that_of_transformers(tmp_path, family):
    """And so is the gradient of the adapter, with which nothing but the adapter is trained.

    The sentences are packed into rows, and padded where a model takes no 4-D mask, or a sentence
    is longer than its attention reaches.
    """
    _, lm = build(tmp_path, family)
    model = BayesLanguageModel(lm, lm.vocab_size).eval()  # without dropout
    rows = [torch.tensor(lm.reader.text_ids([s.split()])) for s in SENTENCES]
    text = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor(list(map(len, rows)))
    longest = lm.longest_row
    assert longest > 0
    lm.longest_row = 0
    padded = model(text, lengths)[0].squeeze()
    lm.longest_row = longest
    seen = []
    lm.causal.get_input_embeddings().register_forward_hook(lambda *io: seen.append(io[1][0].shape))
    loss = model(text, lengths)[0].squeeze()
    assert (seen[0].numel() < 1.1 * (sum(lengths) + len(rows))) == (family != "mistral")
    torch.testing.assert_close(loss, padded, rtol=1e-5, atol=1e-5)
    loss.backward()
    trained = {n: p.grad.clone() for n, p in lm.named_parameters() if p.grad is not None}
    assert trained and all(".lora_" in name for name in trained)
    lm.zero_grad()
    total, count = 0.0, 0
    for sentence in SENTENCES:
        ids = [*lm.reader.start, *lm.reader.text_ids([sentence.split()]), *lm.reader.end]
        ids = torch.tensor([ids])
        total = total + lm.causal(input_ids=ids, labels=ids).loss * (ids.size(1) - 1)
        count += ids.size(1) - 1
    (total / count).backward()
    torch.testing.assert_close(loss, total / count, rtol=1e-5, atol=1e-5)
    for name, p in lm.named_parameters():
        if name in trained:
            torch.testing.assert_close(trained[name], p.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_are_the_factors_of_each_layer(tmp_path, family):
    _, lm = build(tmp_path, family, uncertainty={"lora_a@2": "bayes", "lora_b@1": "bayes"})
    blocks = lm.posterior.blocks()
    factors = {(block.location, ".lora_A." in block.name) for block in blocks}
    assert factors == {("lora_a@2", True), ("lora_b@1", False)}
    size = sum(p.numel() for n, p in lm.named_parameters() if n.endswith("lora_A.default.weight"))
    assert sum(b.mean.numel() for b in blocks if b.location == "lora_a@2") * 2 == size


def test_the_kl_is_the_closed_form(tmp_path):
    conf = {"uncertainty": {"lora_a@*": "bayes"}, "prior_variance": 0.25, "init_std": 0.1}
    _, lm = build(tmp_path, **conf)
    expected = 0.0
    for name, mean in lm.named_parameters():
        if name.endswith("lora_A.default.weight"):
            terms = (0.01 + mean.double() ** 2) / 0.25 - 1 - np.log(0.01 / 0.25)
            expected += float(terms.sum()) / 2
    assert float(lm.kl()) == pytest.approx(expected, rel=1e-6)


def test_the_usual_prior_is_that_of_each_row(tmp_path):
    """Half of the sum over weights of ln(row's mean square / std^2), where no prior is named."""
    _, lm = build(tmp_path, uncertainty={"lora_a@*": "bayes", "lora_b@*": "bayes"}, init_std=0.1)
    expected = 0.0
    for name, mean in lm.named_parameters():
        if name.endswith(("lora_A.default.weight", "lora_B.default.weight")):
            with torch.no_grad():
                mean.mul_(torch.linspace(0.2, 3, len(mean))[:, None])  # rows of different size
            squares = (mean.double() ** 2 + 0.01).mean(1)
            expected += float((squares / 0.01).log().sum()) * mean.size(1) / 2
    assert float(lm.kl()) == pytest.approx(expected, rel=1e-5)


def test_both_factors_start_a_step_of_the_optimizer_wide(tmp_path):
    """The second factor is zero: noise relative to its weights would be that of the floor."""
    _, lm = build(tmp_path, uncertainty={"lora_a@*": "bayes", "lora_b@*": "bayes"})
    for block in lm.posterior.blocks():
        assert torch.allclose(block.std, torch.tensor(0.001))


def test_a_checkpoint_has_the_adapter_alone_of_one_base(tmp_path):
    base, lm = build(tmp_path, uncertainty={"lora_a@*": "bayes"})
    state = BayesLanguageModel(lm, lm.vocab_size).state_dict()
    assert all(".lora_" in name or name.endswith("noise_step") for name in state)
    other = AdaptedLM(
        lm.vocab_size, model=f"hf:{base}", lora=LORA, uncertainty={"lora_a@*": "bayes"}
    )
    BayesLanguageModel(other, lm.vocab_size).load_state_dict(state)
    ids = torch.tensor([[5, 9, 7]])
    assert torch.equal(other.eval()(ids)[0], lm.eval()(ids)[0])
    base, lm = build(tmp_path)
    conf = {"model": f"hf:{base}", "lora": LORA, "fingerprint": lm.fingerprint}
    AdaptedLM(lm.vocab_size, **conf)
    write_model(tmp_path, scale=7.0)
    with pytest.raises(InputError, match="has changed since the adapter was trained"):
        AdaptedLM(lm.vocab_size, **conf)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of a base, and of a Bayesian adapter trained by the command line."""
    folder = tmp_path_factory.mktemp("adapted")
    write_model(folder / "base")
    lines = [f"so we could put the remote on the table {n % 3}" for n in range(12)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    (folder / "valid.txt").write_text("\n".join(SENTENCES) + "\n")
    # a wide start, so that samples differ after these few steps
    train(folder, "exp", "bayes_lora", f"hf:{folder / 'base'}", "--lm_conf", "init_std=0.1")
    return folder


def test_the_mean_of_trainings_is_loaded_as_one_of_them(trained, tmp_path):
    shutil.copytree(trained / "exp", tmp_path / "other")
    checkpoint = tmp_path / "other" / "valid.loss.ave.pth"
    first = torch.load(checkpoint, weights_only=True)
    torch.save({k: v if v.dtype == torch.int64 else 3 * v for k, v in first.items()}, checkpoint)
    write_average(tmp_path / "mean", [trained / "exp", tmp_path / "other"])
    mean = torch.load(tmp_path / "mean" / "valid.loss.ave.pth", weights_only=True)
    assert mean.keys() == first.keys()
    for name, value in mean.items():
        expected = 2 * first[name] if value.is_floating_point() else first[name]
        torch.testing.assert_close(value, expected)
    lm = espnet_bayeslm.load(tmp_path / "mean")
    assert lm.name == "mean" and lm.scorer.is_uncertain
    assert lm.score("so we could") != espnet_bayeslm.load(trained / "exp").score("so we could")


def train(folder, exp, config, source, *more):
    files = {"train_text": folder / "train.txt", "valid_text": folder / "valid.txt"}
    fast = {"lm_conf": "lora.r=2", "optim_conf": "lr=0.05", "batch_bins": 60, "max_epoch": 3}
    fast["use_matplotlib"] = "false"
    options = {"config": config, "from": source, "exp": folder / exp}
    bin_train.main([*words(**files, **options, **fast), *more])


def test_training_by_the_command_line(trained):
    loaded = espnet_bayeslm.load(trained / "exp")
    base = espnet_bayeslm.load(f"hf:{trained / 'base'}", text_form=str(loaded.reader.form))
    text = "so we could put the remote on the table"
    assert loaded.score(text) > base.score(text) + 1
    assert (trained / "exp/checkpoint.pth").stat().st_size < 2_000_000
    # averaged probabilities of samples, token by token
    scores = []
    for index in range(2):
        with loaded.sampled(index):
            scores.append(loaded.word_scores([text])[0].log_probs)
    assert not np.allclose(scores[0], scores[1])
    low, high = min(map(np.sum, scores)), max(map(np.sum, scores))
    assert low - 1 < loaded.score(text, num_samples=2) < high + 1


def test_the_digest_of_an_adapted_lm_covers_the_base(trained, tmp_path):
    """Though an old config.yaml has no digest of the whole base, with which it would be refused."""
    shutil.copytree(trained / "base", tmp_path / "base")
    shutil.copytree(trained / "exp", tmp_path / "exp")
    config = tmp_path / "exp/config.yaml"
    lines = config.read_text().replace(str(trained), str(tmp_path)).splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "fingerprint:" not in line))
    digests = [espnet_bayeslm.load(tmp_path / "exp").fingerprint for _ in range(2)]
    write_model(tmp_path / "base", scale=7.0)
    digests.append(espnet_bayeslm.load(tmp_path / "exp").fingerprint)
    assert digests[0] == digests[1] != digests[2]


def test_batches_have_sentences_of_all_lengths(trained, tmp_path, monkeypatch):
    """Though ESPnet sorts them by their lengths."""
    lines = [" ".join(["table"] * (1 + 5 * (n % 2))) for n in range(120)]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "valid.txt").write_text("\n".join(SENTENCES) + "\n")
    build, factories = BayesLMTask.build_sequence_iter_factory, {}

    def built(args, iter_options, mode):
        factories[mode] = build(args, iter_options, mode)
        return factories[mode]

    monkeypatch.setattr(BayesLMTask, "build_sequence_iter_factory", built)
    train(tmp_path, "exp", "lora", f"hf:{trained / 'base'}", "--batch_bins", "240")
    texts = [tokens for _, tokens in factories["train"].build_iter(1)]
    counts = [set(batch["text_lengths"].tolist()) for batch in texts]
    assert len(counts) > 2 and all(len(lengths) == 2 for lengths in counts)


def test_ivon_keeps_a_posterior_over_the_adapter_alone(trained):
    ivon = ["--optim", "ivon", "--optim_conf", "hess_init=0.1", "--optim_conf", "ess=1000"]
    train(trained, "ivon", "lora", f"hf:{trained / 'base'}", *ivon)
    state = torch.load(trained / "ivon/valid.loss.ave.pth", weights_only=True)
    spread = [name for name in state if name.endswith("_log_std")]
    assert len(spread) * 2 == len(state)
    # 1 / sqrt(ess h), h having hardly moved
    for name in spread:
        torch.testing.assert_close(state[name].exp().mean(), torch.tensor(0.1), rtol=0.05, atol=0)
    loaded = espnet_bayeslm.load(trained / "ivon")
    assert loaded.score("so we could") != loaded.score("so we could", num_samples=2)


def test_half_precision_is_near(trained):
    """Of the base alone, and with its adapter."""
    for source in (f"hf:{trained / 'base'}", trained / "exp"):
        whole, half = (
            espnet_bayeslm.load(source, text_form="lower", precision=precision)
            for precision in ("float32", "bfloat16")
        )
        assert half.model.get_output_embeddings().weight.dtype == torch.bfloat16
        text = "so we could put the remote on the table"
        difference = abs(half.score(text) - whole.score(text))
        assert 1e-4 < difference < 0.05 * abs(whole.score(text))
    with pytest.raises(InputError, match="valid are float32, bfloat16"):
        espnet_bayeslm.load(f"hf:{trained / 'base'}", precision="int8")


@pytest.fixture(scope="module")
def exported(trained):
    """Folder of the trained adapter, as peft reads it."""
    export.main(words(lm=trained / "exp", format="peft", output=trained / "peft"))
    return trained / "peft"


def test_scores_at_the_mean_are_by_one_set_of_weights(trained, exported):
    """The adapter is added to the base's weights; samples have it beside them."""
    expected = espnet_bayeslm.load(trained / "exp").word_scores(SENTENCES)
    for source in (trained / "exp", exported):
        (component,) = load_components(ComponentOptions(lms=[source], text_form="as_is"))
        names = [name for name, _ in component.scorer.lm.model.named_modules()]
        assert not any("lora" in name for name in names)
        found = component.scorer.word_scores([sentence.split() for sentence in SENTENCES])
        assert_near(found, expected)
    (component,) = load_components(ComponentOptions(lms=[trained / "exp"], num_samples=2))
    assert component.scorer.is_uncertain
    said, scorer = SENTENCES[0].split(), component.scorer
    (expected,) = scorer.word_scores([said])
    states = list(itertools.accumulate(said, scorer.after, initial=scorer.begin()))
    found = scorer.next_words(states, [*said, END])
    np.testing.assert_allclose(found, expected.log_probs, atol=1e-4)


def test_adapters_have_no_table_of_noise(trained, exported, fails):
    for lm in (trained / "exp", exported, f"hf:{trained / 'base'}"):
        assert "a pretrained LM or an adapter, where" in fails(snr.main, words(lm=lm))


def test_an_exported_adapter_is_peft_s(trained, exported):
    base = AutoModelForCausalLM.from_pretrained(trained / "base")
    theirs = PeftModel.from_pretrained(base, str(exported)).eval()
    ids = torch.tensor([[5, 9, 7, 3]])
    ours = espnet_bayeslm.load(trained / "exp").lm
    torch.testing.assert_close(theirs(ids).logits, ours(ids).logits, rtol=1e-5, atol=1e-5)


def test_peft_s_adapter_is_start_and_prior(trained, tmp_path):
    theirs = write_adapter(trained / "base", tmp_path / "adapter")
    content = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert content["base_model_name_or_path"] == str(trained / "base")
    rate = ["--optim_conf", "lr=0.0", "--model_conf", "posterior_lr=null"]
    train(trained, tmp_path / "exp", "bayes_lora", str(tmp_path / "adapter"), *rate)
    ours = espnet_bayeslm.load(tmp_path / "exp")
    ids = torch.tensor([[5, 9, 7, 3]])
    torch.testing.assert_close(ours.lm(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)
    state = torch.load(tmp_path / "exp/valid.loss.ave.pth", weights_only=True)
    prior = next(v for n, v in state.items() if n.endswith("_prior_mean"))
    mean = next(v for n, v in state.items() if n.endswith("lora_B.default.weight"))
    torch.testing.assert_close(prior, mean)


def base_scorer(trained, form="lower"):
    return PretrainedScorer(load_causal_lm(trained / "base", text_form=form))


@pytest.mark.parametrize("form", ["lower", "sentence,special"])
def test_joined_sentences_are_scored_as_in_context(trained, form):
    """Tokens and ln P of a sequence of training are those of a history and the next sentence."""
    scorer = base_scorer(trained, form)
    sentences = [sentence.split() for sentence in SENTENCES]
    (line,) = joined_sentences(sentences, scorer.reader, 1000)
    ids = scorer.reader.text_ids(sentences_in(line))
    history, total = None, 0.0
    for sentence in sentences:
        ((scores,),) = scorer.scores_in_context([[sentence]], [history])
        total += scores.log_probs.sum()
        (history,) = scorer.extended([history], [sentence])
    assert history.tokens == (*ids, *scorer.reader.end)
    tokens = (*scorer.reader.start, *ids, *scorer.reader.end)
    (found,) = scorer.tree_lm.log_probs([Passage(0, tokens, len(tokens) - 1)])
    assert found.sum() == pytest.approx(total, abs=1e-5)


def test_runs_of_sentences_end_at_blank_lines_and_at_the_most_tokens(trained):
    reader = PretrainedScorer(
        espnet_bayeslm.load(f"hf:{trained / 'base'}", text_form="lower")
    ).reader
    count = len(reader.encode(["so"]).ids)
    rows = [["so"]] * 3 + [[]] + [["so"]] + [[], []] + [["so"] * 50]
    assert [*joined_sentences(rows, reader, 2 * count)] == [
        "so\tso",
        "so",
        "so",
        " ".join(["so"] * 50),
    ]
    assert [*joined_sentences(rows[:3], reader, 1)] == ["so"] * 3


def test_only_pretrained_lms_are_trained_in_context(trained, tmp_path):
    texts = {"train_text": trained / "train.txt", "valid_text": trained / "valid.txt"}
    with pytest.raises(InputError, match="--context 9 is for lm: pretrained"):
        train_on_text(**texts, config=find_config("point_lstm"), exp=tmp_path / "exp", context=9)


def test_training_in_context(trained, tmp_path):
    base = f"hf:{trained / 'base'}"
    train(trained, tmp_path / "exp", "lora", base, "--context", "40", "--batch_bins", "120")
    lines = (tmp_path / "exp/data/train.txt").read_text().splitlines()
    joined = [sentence for line in lines for sentence in line.split(maxsplit=1)[1].split("\t")]
    assert joined == (trained / "train.txt").read_text().splitlines() and len(lines) < len(joined)
    content = yaml.safe_load((tmp_path / "exp/config.yaml").read_text())
    assert content["lm_conf"]["context"] == 40
    assert np.isfinite(espnet_bayeslm.load(tmp_path / "exp").score(joined[0]))


def form_of(exp):
    """Text form of an experiment, as its configuration has it; nothing else holds the marks."""
    conf = yaml.safe_load((exp / "config.yaml").read_text())["lm_conf"]
    assert conf.get("marks") is None
    return conf["text_form"]


def options_from(folder, source, **more):
    """ESPnet's options of a training from an LM."""
    texts = {"train_text": folder / "train.txt", "valid_text": folder / "valid.txt"}
    given = TrainOptions(config="lora", exp=folder / "new", source=source, **texts, **more)
    return lm_options(given, find_config("lora"))


def test_training_starts_from_an_adapter_whose_base_stands_elsewhere(trained, tmp_path, fails):
    """The experiment names the base by its whole path."""
    moved, adapter, exp = tmp_path / "moved", tmp_path / "adapter", tmp_path / "old"
    write_adapter(trained / "base", adapter)
    shutil.copytree(trained / "base", moved)
    shutil.copytree(trained / "exp", exp)
    for file in (adapter / "adapter_config.json", exp / "config.yaml"):
        file.write_text(file.read_text().replace(str(trained / "base"), str(tmp_path / "gone")))
    texts = {"train_text": trained / "train.txt", "valid_text": trained / "valid.txt"}
    given = words(**texts, config="lora", exp=tmp_path / "exp", use_matplotlib="false")
    for source in (adapter, exp):
        assert "give --base hf:FOLDER" in fails(bin_train.main, [*given, "--from", str(source)])
        nowhere = [*given, "--from", str(source), "--base", str(tmp_path / "nowhere")]
        error = fails(bin_train.main, nowhere)
        assert "nowhere: there is no such folder" in error and "give --base" not in error
        for base in (f"hf:{moved}", str(moved)):
            assert f'model="hf:{moved}"' in options_from(trained, source, base=base)
    assert not (tmp_path / "exp").exists()
    command = words(lm=exp, format="peft", output=tmp_path / "peft")
    assert "give --base hf:FOLDER" in fails(export.main, command)
    export.main([*command, "--base", str(moved)])
    assert espnet_bayeslm.load(tmp_path / "peft").score("so we")
    with pytest.raises(InputError, match="nowhere: there is no such folder"):
        espnet_bayeslm.load(exp, base=str(tmp_path / "nowhere"))
    command = words(lm=adapter, format="hf", output=tmp_path / "folder")
    assert "an adapter, and no LM of its own" in fails(export.main, command)
    assert "--base, and no --format peft" in fails(export.main, [*command, "--base", str(moved)])
    bin_train.main([*given, "--from", str(adapter), "--base", str(moved), "--max_epoch", "1"])
    assert espnet_bayeslm.load(tmp_path / "exp").score("so we")
    write_model(tmp_path / "other", scale=7.0)
    others = [*given, "--from", str(exp), "--base", str(tmp_path / "other")]
    assert "has changed since the adapter was trained" in fails(bin_train.main, others)
    others = [*given, "--from", f"hf:{moved}", "--base", str(moved)]
    assert "--base, and --from is no adapter" in fails(bin_train.main, others)


def test_a_base_is_named_by_its_whole_path(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(trained)
    write_adapter("base", tmp_path / "adapter")
    for source in (tmp_path / "adapter", "hf:base"):
        assert f'model="hf:{trained / "base"}"' in options_from(trained, source)


def test_the_validation_text_chooses_the_form_of_the_training(trained):
    """Of forms with one token before and one after a sentence, by their perplexities."""
    form, exp = form_of(trained / "exp"), trained / "exp"
    assert f"text form: --lm_conf text_form={form}" in (exp / "train.log").read_text()
    assert str(espnet_bayeslm.load(exp).reader.form) == form
    costs = {}
    tokenizer = AutoTokenizer.from_pretrained(trained / "base")
    for value in map(str, itertools.starmap(TextForm, itertools.product(FORMS, MARKS, [1, 0]))):
        reader = Reader(tokenizer, TextForm.parse(value))
        assert len(reader.start) == len(reader.end) == 1
        base = espnet_bayeslm.load(f"hf:{trained / 'base'}", text_form=value)
        costs[value] = -sum(map(base.score, SENTENCES))
    assert costs[form] == pytest.approx(min(costs.values()), abs=1e-3)
    assert costs[form] < max(costs.values()) - 1


def test_a_form_is_given_to_the_training_and_stays_with_the_adapter(trained, tmp_path, caplog):
    """In its experiment, in peft's folder, and in a training from either."""
    form = "sentence,special,no_blank"
    given = ["--lm_conf", f"text_form={form}", "--max_epoch", "1"]
    train(trained, tmp_path / "exp", "lora", f"hf:{trained / 'base'}", *given)
    export.main(words(lm=tmp_path / "exp", format="peft", output=tmp_path / "peft"))
    for source in (tmp_path / "exp", tmp_path / "peft"):
        assert str(espnet_bayeslm.load(source).scorer.prepare([]).form) == form
        assert f'text_form="{form}"' in options_from(trained, source)
    text = "so we could put the remote"
    expected = espnet_bayeslm.load(tmp_path / "exp").score(text)
    assert espnet_bayeslm.load(tmp_path / "peft").score(text) == pytest.approx(expected, abs=1e-4)
    assert "--text_form" not in caplog.text
    for source in (tmp_path / "exp", tmp_path / "peft"):
        caplog.clear()
        found = espnet_bayeslm.load(source, text_form="lower").score(text)
        assert found == pytest.approx(expected, abs=1e-4)
        assert "--text_form lower, and the adapter was trained with" in caplog.text
        assert f"--text_form {form}" in caplog.text
    card = tmp_path / "peft/README.md"
    card.write_text(card.read_text().replace(form, "upper"))
    with pytest.raises(InputError, match=r"README\.md: text_form upper: valid are as_is"):
        espnet_bayeslm.load(tmp_path / "peft")


@pytest.mark.parametrize(
    "conf, form",
    [
        ({}, "as_is,newline,blank"),
        ({"text_form": "lower"}, "lower,newline,blank"),
    ],
    ids=str,
)
def test_experiments_keep_a_form_without_marks_or_none(trained, tmp_path, conf, form):
    """As of `lm_train`. A training from them has the form, wherever the base is."""
    exp = tmp_path / "plain"
    shutil.copytree(trained / "exp", exp)
    content = yaml.safe_load((exp / "config.yaml").read_text())
    del content["lm_conf"]["text_form"]
    content["lm_conf"].update(conf)
    moved = {**content, "lm_conf": {**content["lm_conf"], "model": "hf:no/more/there"}}
    (exp / "config.yaml").write_text(yaml.safe_dump(content))
    assert str(espnet_bayeslm.load(exp).reader.form) == form
    (exp / "config.yaml").write_text(yaml.safe_dump(moved))
    (on,) = (word for word in options_from(trained, exp) if word.startswith("text_form="))
    assert TextForm.parse(on.split('"')[1]) == TextForm.parse(form)
    given = TrainOptions(config="lora", exp=exp, train_text=exp, valid_text=exp)
    args = argparse.Namespace(lm_conf={}, ngpu=0)
    assert TextForm.parse(chosen_text_form(given, args)) == TextForm.parse(form)


def test_uncertainty_is_that_of_the_samples(trained):
    """Entropies of the first word by each sample's own distribution, computed by hand."""
    loaded = espnet_bayeslm.load(trained / "exp")
    found = loaded.uncertainty("okay so", num_samples=3)
    scores = loaded.word_scores(["okay so"], num_samples=3)[0].log_probs
    np.testing.assert_allclose(found.log_probs, scores, atol=1e-6)
    reader = loaded.reader
    encoded = reader.encode(["okay", "so"])
    ids = torch.tensor([[*reader.start, *encoded.ids[:-1]]])
    probs = []
    for index in range(3):
        with loaded.sampled(index), torch.no_grad():
            probs.append(loaded.lm(ids).logits[0].double().softmax(-1))
    mean = torch.stack(probs).mean(0)
    entropy = -torch.xlogy(mean, mean).sum(-1)
    of_samples = torch.stack([-torch.xlogy(p, p).sum(-1) for p in probs]).mean(0)
    first = slice(0, encoded.starts[1])
    assert found.entropy[0] == pytest.approx(float(entropy[first].sum()), abs=1e-4)
    expected = float((entropy - of_samples)[first].sum())
    assert expected > 1e-4
    assert found.mutual_information[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "config, source, options, message",
    [
        ("point_lstm", "base", [], "is a pretrained LM, and point_lstm.yaml trains lm: bayes_lstm"),
        ("lora", "nowhere", [], "no such folder of a pretrained LM"),
        ("lora", "base", ["--lm_conf", "lora.rank=3"], "expected a mapping of r, alpha, dropout"),
        ("lora", "base", ["--vocab_size", "9"], "--from brings its own tokens"),
        ("lora", "base", ["--lm_conf", "text_form=lower,new"], "MARKS 'new': valid are newline"),
    ],
)
def test_bad_input(trained, tmp_path, capsys, config, source, options, message):
    with pytest.raises(SystemExit):
        train(trained, tmp_path / "exp", config, f"hf:{trained / source}", *options)
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "exp").glob("*.pth"))


def gemma2(vocab_size):
    """Configuration of a family that caps its logits."""
    sizes = dict(SMALL, head_dim=8, num_key_value_heads=1, intermediate_size=24)
    return Gemma2Config(vocab_size=vocab_size, final_logit_softcapping=0.5, **sizes)


@pytest.mark.parametrize("family", ["llama", gemma2])
def test_steps_of_a_beam_search(tmp_path, family):
    """Two hypotheses, token by token, against one pass over each."""
    _, lm = build(tmp_path, family, text_form="as_is,special", uncertainty={"lora_a@*": "bayes"})
    lm.eval()
    ids = torch.tensor([[lm.sos, 7, 9, 5], [lm.sos, 8, 9, 6]])
    with torch.no_grad():
        expected = lm.causal(input_ids=ids).logits.log_softmax(-1)
    states = [None, None]
    for end in range(1, ids.size(1) + 1):
        scores, states = lm.batch_score(ids[:, :end], states, None)
        torch.testing.assert_close(scores, expected[:, end - 1], rtol=1e-4, atol=1e-4)
    assert scores.size(1) == lm.vocab_size


def test_uncertainty_where_logits_are_capped(tmp_path):
    """Such a model gives logits, and no input of a projection."""
    _, lm = build(tmp_path, gemma2, text_form="as_is", uncertainty={"lora_a@*": "bayes"})
    loaded = PretrainedLM(**vars(lm.eval().loaded("capped", fingerprint="1")))
    found = loaded.uncertainty("okay so", num_samples=2)
    (expected,) = loaded.word_scores(["okay so"], num_samples=2)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-5)
    assert (found.entropy > 0).all() and (found.mutual_information >= 0).all()


def test_gradient_checkpointing_changes_no_gradient(tmp_path):
    found = []
    for number, checkpointing in enumerate((False, True)):
        _, lm = build(tmp_path / str(number), gradient_checkpointing=checkpointing)
        model = BayesLanguageModel(lm, lm.vocab_size).train()
        calls = []
        (layer,) = (m for name, m in lm.named_modules() if name.endswith("layers.0.self_attn"))
        layer.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        ids = torch.tensor([[7, 9, 5, 6]])
        model(ids, torch.tensor([4]))[0].backward()
        # the activations of a layer are computed again for the backward pass
        assert len(calls) == 1 + checkpointing
        found.append({name: p.grad for name, p in lm.named_parameters() if p.requires_grad})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-6, rtol=1e-4)


def test_each_utterance_of_a_batch_gets_the_scores_it_has_alone(tmp_path):
    lm = build(tmp_path, text_form="as_is,special")[1].double().eval()
    rng = random.Random(0)
    for prefixes, scores in walk_utterances(lm, rng, utterances=3, length=6, sos=lm.sos):
        check_scores(lm, scores, prefixes)
