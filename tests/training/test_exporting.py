"""Exports and mixtures: what ESPnet loads from them is the LM at its posterior mean."""

import shutil

import numpy as np
import pytest
import torch
import yaml
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.tasks.lm import LMTask
from training_options import BACKBONES, BAYES, FORMLESS, GP, LSTM_CONF, batch

from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.loading.experiment import UNKNOWN_WORDS, read_unk_size
from espnet_bayeslm.loading.export import export_lm
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.mixture.mixture_export import write_mixture
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.training.text import made_tokens
from espnet_bayeslm.training.train_options import TokenOptions
from espnet_bayeslm.utils.errors import InputError

IVON = {
    "ivon": ("bayes_lstm", LSTM_CONF, {"optim": "ivon", "optim_conf": {"lr": 0.1}}),
    "ivon_seq_rnn": ("seq_rnn", LSTM_CONF, {"optim": "ivon"}),
}
POINT = {
    "point": ("bayes_lstm", {**LSTM_CONF, "uncertainty": {"cell_input@1": "point"}}),
    "espnet": ("transformer", dict(embed_unit=6, att_unit=8, head=2, unit=12, layer=2)),
}
CASES = {**BAYES, **GP, **BACKBONES, **IVON, **POINT}


def config_of(exp):
    return yaml.safe_load((exp / "config.yaml").read_text())


def change_config(exp, **changes):
    """Change an experiment's configuration (None removes a key), and return its folder."""
    config = {**config_of(exp), **changes}
    kept = {key: value for key, value in config.items() if value is not None}
    (exp / "config.yaml").write_text(yaml.safe_dump(kept))
    return exp


@torch.no_grad()
def nll(model):
    """Return the NLL as ESPnet's own model computes it, whatever the class of the model."""
    return ESPnetLanguageModel.nll(model.eval(), *batch())[0]


@pytest.mark.parametrize("name", CASES)
def test_means_are_an_lm_that_espnet_loads(make, tmp_path, name):
    exp = make(name, *CASES[name])
    export_lm(exp, tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in files] == ["config.yaml", "valid.loss.ave.pth"]
    given, written = torch.load(exp / "valid.loss.ave.pth"), torch.load(files[1])
    model, args = LMTask.build_model_from_file(*files)
    model.load_state_dict(written, strict=True)
    assert all(torch.equal(value, given[key]) for key, value in written.items())
    assert not any(key.endswith(("_log_std", "_prior_mean", "_start_std")) for key in written)
    if name in BACKBONES:  # which ESPnet loads without this package
        conf = CASES[name][1]
        assert (args.lm, args.lm_conf) == (conf["backbone"], conf["backbone_conf"])
        assert args.model == "lm" and "bayes" not in files[0].read_text()
    # ESPnet's attention is written in another way
    tolerance = 1e-5 if name in BACKBONES else 0
    assert float((nll(model) - nll(load_lm(exp).model)).abs().max()) <= tolerance
    again = load_lm(tmp_path / "out")
    assert torch.equal(nll(again.model), nll(model))
    assert not hasattr(again.lm, "locations") or again.lm.locations() == []
    assert args.optim != "ivon" and args.model_conf == {}


def test_gaussian_processes_stay_with_their_mean_coefficients(make, tmp_path):
    export_lm(make("gp_lstm", *GP["gp_lstm"]), tmp_path / "out")
    conf = config_of(tmp_path / "out")["lm_conf"]
    gate = {"kind": "gp", "random": [], "basis": ["relu", "sigmoid"]}
    assert conf["uncertainty"]["output_gate@2"] == gate
    assert conf["uncertainty"]["cell_state@1"] == {"kind": "gp", "random": []}
    lm = load_lm(tmp_path / "out").lm
    assert float(lm.kl()) == 0 and lm.posterior.blocks() == []
    assert "gp_coefficients_cell_state_l0" in dict(lm.rnn.named_parameters())


def test_nothing_of_the_machine_of_the_training(point, tmp_path):
    export_lm(point, tmp_path / "out")
    before, after = config_of(point), config_of(tmp_path / "out")
    root = str(tmp_path.parents[1])
    assert root in str(before) and root not in str(after)
    assert (after["optim_conf"], after["max_epoch"]) == ({"lr": 0.01}, 2)


# Keys without which nobody can tell what the LM and its tokens are.
ESSENTIAL = ("lm", "lm_conf", "token_list", "token_type")


@pytest.mark.parametrize("name", ["lstm", "seq_rnn", "espnet", "ivon"])
def test_a_configuration_without_what_only_training_needs(make, tmp_path, name):
    """Loaded, exported and mixed as before."""
    exp = make(name, *CASES[name])
    before = load_lm(exp)
    change_config(exp, **{key: None for key in config_of(exp) if key not in ESSENTIAL})
    assert load_lm(exp).score("a b c") == before.score("a b c")
    export_lm(exp, tmp_path / "out")
    write_mixture(tmp_path / "mixture", lms=[exp])
    for folder in (tmp_path / "out", tmp_path / "mixture"):
        assert load_lm(folder).score("a b c") == pytest.approx(before.score("a b c"), rel=1e-5)


@pytest.mark.parametrize(
    "change, message",
    [
        *[({key: None}, rf"config\.yaml.*; {key} not in it") for key in ESSENTIAL],
        ({"lm": "pretrained"}, "an adapted pretrained LM, where an LM with tokens of its own"),
        ({"use_preprocessor": False}, "use_preprocessor is false, so the LM cannot read text"),
        ({"token_type": "phn"}, "token_type 'phn': expected word, char or bpe"),
    ],
)
def test_a_configuration_that_cannot_read_text(make, change, message):
    exp = change_config(make("lstm", *BAYES["lstm"]), **change)
    with pytest.raises(InputError, match=message):
        load_lm(exp)


@pytest.fixture
def bpe(make, tmp_path):
    (tmp_path / "train.txt").write_text("key a bc abc cab a b c\n" * 20)
    wanted = TokenOptions(token_type="bpe", vocab_size=9)
    token_type, tokens, bpemodel, _ = made_tokens(tmp_path, wanted, {})
    options = {"token_list": tokens, "token_type": token_type, "bpemodel": bpemodel}
    return make("bpe", *BAYES["lstm"], options)


def test_the_sentencepiece_model_comes_with_it(bpe, tmp_path):
    before = load_lm(bpe)
    tokens = before.tokenize("abc cab b")
    export_lm(bpe, tmp_path / "out")
    (tmp_path / "bpe.model").unlink()
    after = load_lm(tmp_path / "out")
    assert len(tokens) > 2 and after.tokenize("abc cab b") == tokens
    assert after.ids(tokens) == before.ids(tokens)
    assert (tmp_path / "out" / "bpe.model").is_file()


def test_a_missing_sentencepiece_model(bpe, tmp_path):
    (tmp_path / "bpe.model").unlink()
    with pytest.raises(InputError, match=r"bpe\.model: its word-piece model is not there"):
        export_lm(bpe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


REFUSED = {
    "latent": r"latent variables at hidden_output@1 have no point-estimate form",
    "both": r"at hidden_output@1 have no",
    "search": r"super-network, at ffn@1, has no point-estimate form.*bayeslm search",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_point_estimate_form(make, tmp_path, name):
    exp = make(name, *FORMLESS[name])
    with pytest.raises(InputError, match=REFUSED[name]):
        export_lm(exp, tmp_path / "out")
    assert not (tmp_path / "out").exists()


WEIGHTS = "0.35,0.25,0.15,0.25"


@pytest.fixture(scope="module")
def ngram(plain_text):
    path = plain_text / "bigram.arpa.gz"
    build_ngram(plain_text / "train.txt", path, order=2, lmplz="none", discount_fallback=True)
    return path


@pytest.fixture(scope="module")
def lms(point, make):
    """Return the experiments of a trained LM, an uncertain one and one of ESPnet's own."""
    conf = dict(att_unit=8, head=2, unit=12, layer=1, pos_enc="sinusoidal")
    return [point, make("bayes", *BAYES["lstm"]), make("espnet", "transformer", conf)]


@pytest.fixture(scope="module")
def mixture(lms, ngram, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixtures") / "new" / "mixture"
    write_mixture(folder, lms=lms, ngrams=[ngram], weights=WEIGHTS)
    return folder


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


class TestFolder:
    def test_holds_all_that_it_needs_and_loads_in_espnet_too(self, mixture, lms, ngram):
        names = {str(path.relative_to(mixture)) for path in mixture.rglob("*") if path.is_file()}
        assert names == {"config.yaml", "valid.loss.ave.pth", "ngrams/bigram.arpa.gz"}
        assert (mixture / "ngrams" / "bigram.arpa.gz").read_bytes() == ngram.read_bytes()
        config = config_of(mixture)
        assert config["lm"] == "mixture" and config["model"] == "lm"
        parts = config["lm_conf"]["components"]
        assert [part["name"] for part in parts] == ["exp", "bayes", "espnet", "bigram"]
        weights = [part["weight"] for part in parts]
        assert weights == pytest.approx([0.35, 0.25, 0.15, 0.25], abs=1e-15)
        assert parts[3]["path"] == str(mixture / "ngrams" / "bigram.arpa.gz")
        for name in ("token_list", "token_type", "bpemodel", "cleaner", "g2p"):
            assert config[name] == config_of(lms[0])[name]
        files = mixture / "config.yaml", mixture / "valid.loss.ave.pth"
        assert "lm.components.0.encoder.weight" in torch.load(files[1], weights_only=True)
        model, args = LMTask.build_model_from_file(*files)
        trained = load_lm(mixture)
        assert trained.name == "mixture" and args.lm == "mixture"
        ids = torch.randint(1, len(trained.token_list), (3, 7))
        assert torch.equal(model.lm.eval()(ids, None)[0], trained.lm(ids, None)[0])
        with pytest.raises(InputError, match="a mixture is exported when it is made"):
            export_lm(mixture, mixture.parent / "again")

    def test_other_folders_are_not_needed(self, point, ngram, tmp_path, lms):
        exp, arpa = tmp_path / "exp", tmp_path / "a.arpa.gz"
        shutil.copytree(point, exp, symlinks=False)
        shutil.copyfile(ngram, arpa)
        write_mixture(tmp_path / "m", lms=[exp], ngrams=[arpa], weights="0.5,0.5")
        shutil.rmtree(exp)
        arpa.unlink()
        assert load_lm(tmp_path / "m").lm.weights == [0.5, 0.5]
        write_mixture(tmp_path / "two", lms=lms[:2], weights="0.25,0.75")
        assert "tokens" not in config_of(tmp_path / "two")["lm_conf"]
        assert not (tmp_path / "two" / "ngrams").exists()
        write_mixture(tmp_path / "one", lms=lms[:1])
        ids = torch.tensor([[3, 4, 5]])
        one, alone = (load_lm(folder).lm(ids, None)[0] for folder in (tmp_path / "one", lms[0]))
        assert torch.equal(one, alone.log_softmax(-1))

    def test_ngrams_of_one_name(self, point, ngram, plain_text, tmp_path):
        other = tmp_path / "other" / "bigram.arpa"
        build_ngram(plain_text / "valid.txt", other, order=3, lmplz="none", discount_fallback=True)
        write_mixture(tmp_path / "m", lms=[point], ngrams=[ngram, other], weights="0.4,0.3,0.3")
        lm = load_lm(tmp_path / "m").lm
        assert lm.names == ["exp", "bigram", "bigram#2"]
        assert [component.order for component in lm.components[1:]] == [2, 3]

    def test_an_lm_whose_optimizer_learnt_a_posterior(self, make, tmp_path):
        ivon = make("ivon", *IVON["ivon"])
        file = ivon / "valid.loss.ave.pth"
        state = torch.load(file)
        torch.save({k: v + 20 if k.endswith("_log_std") else v for k, v in state.items()}, file)
        write_mixture(tmp_path / "m", lms=[ivon])
        ids = torch.tensor([[3, 4, 5]])
        alone, mixed = load_lm(ivon).lm, load_lm(tmp_path / "m").lm
        assert mixed.locations() == [f"ivon/{place}" for place in alone.locations()] != []
        with alone.sampled(1), mixed.sampled(1):
            drawn = alone(ids, None)[0].log_softmax(-1)
            assert torch.equal(mixed(ids, None)[0], drawn)
        assert not torch.equal(mixed(ids, None)[0], drawn)

    def test_an_ngram_alone_counts_unknown_words_as_its_first_lm(self, counted, tmp_path, caplog):
        (tmp_path / "text").write_text("a b c d e f g\nb a\n")
        path = tmp_path / "few.arpa"
        build_ngram(tmp_path / "text", path, order=2, lmplz="none", discount_fallback=True)
        write_mixture(tmp_path / "m", lms=[counted], ngrams=[path], weights="0,1")
        assert "few does not know 3 of 13 tokens ('h', 'i', 'j')" in caplog.text
        assert read_unk_size(tmp_path / "m") == 500

    def test_it_is_not_trained(self, train_lm, tmp_path):
        with pytest.raises(InputError, match="--lm mixture is not trained"):
            train_lm(tmp_path, "--lm", "mixture")


class TestBadInput:
    """Each is one error, and leaves nothing behind."""

    @pytest.fixture
    def fails(self, tmp_path):
        def check(message, **kwargs):
            folder = tmp_path / "out" / "mixture"
            with pytest.raises(InputError, match=message):
                write_mixture(folder, **kwargs)
            assert not folder.parent.exists() or not list(folder.parent.iterdir())

        return check

    def test_what_cannot_be_mixed(self, lms, ngram, mixture, make, fails, tmp_path):
        chars = make("chars", *BAYES["lstm"], {"token_type": "char"})
        search = make("search", *FORMLESS["search"])
        fails("no LM in the mixture", lms=[], ngrams=[ngram])
        fails("it has char tokens, and exp word tokens", lms=[lms[0], chars])
        fails(r"search/config.yaml: a super-network", lms=[search])
        fails("a mixture already", lms=[mixture])
        tokens = config_of(lms[0])["token_list"]
        other = shutil.copytree(lms[0], tmp_path / "o")
        change_config(other, token_list=[*tokens[:2], "X", "Y", *tokens[4:]])
        message = (
            r"o/config.yaml: 2 of 13 ids stand for other tokens in this LM than in exp: 2 is 'X'"
            r" and 'a', 3 is 'Y' and 'b' \(2 tokens are only this LM's, 2 only the other's\)"
        )
        fails(message, lms=[lms[0], other], weights="0.5,0.5")

    def test_weights(self, lms, ngram, fails, tmp_path):
        parts, path = dict(lms=lms[:1], ngrams=[ngram]), tmp_path / "w.yaml"
        rows = [{"name": "exp", "weight": 0.5}, {"name": "bigram", "weight": 0.3}]
        path.write_text(yaml.safe_dump({"components": rows}))
        fails(r"w.yaml: weights \[0.5, 0.3\] with the sum 0.8", weights=path, **parts)
        for content in ("", "components: 3\n", "components: [{name: a}]\n", "a: b: c"):
            path.write_text(content)
            fails("w.yaml: (not a weights|not a yaml|expected a yaml)", weights=path, **parts)

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_folder_that_holds_an_lm(self, lms, number):
        before = content(lms[number])
        with pytest.raises(InputError, match="holds another LM"):
            write_mixture(lms[number], lms=lms[:1])
        assert content(lms[number]) == before


SENTENCE = ["a", "nobody-knows-it", "b"]


def with_size(exp, folder, size):
    """Copy an experiment, with a counted number of unknown words."""
    shutil.copytree(exp, folder)
    (folder / UNKNOWN_WORDS).parent.mkdir()
    (folder / UNKNOWN_WORDS).write_text(f"unk_size: {size}\n")
    return folder


@pytest.fixture
def counted(point, tmp_path):
    return with_size(point, tmp_path / "counted", 500.0)


def word_log_probs(exp, **options):
    """Return ln p of each word of a sentence, as the tools compute it."""
    [component] = load_components(ComponentOptions(lms=[exp], **options))
    return component.scorer.word_scores([SENTENCE])[0].log_probs


def test_an_unknown_word_has_its_share_of_unk_in_exports_too(counted, tmp_path):
    shift = word_log_probs(counted, unk_size=1) - word_log_probs(counted)
    assert shift == pytest.approx([0.0, np.log(500.0), 0.0, 0.0])
    [scores] = load_lm(counted).word_scores([SENTENCE])
    assert scores.log_probs.tolist() == word_log_probs(counted).tolist()
    export_lm(counted, tmp_path / "out")
    assert load_lm(tmp_path / "out").unk_size == 500
    assert word_log_probs(tmp_path / "out") == pytest.approx(word_log_probs(counted))
    (counted / UNKNOWN_WORDS).write_text("unk_size: many\n")
    with pytest.raises(InputError, match=f"{UNKNOWN_WORDS}: no number `unk_size`"):
        read_unk_size(counted)


@pytest.mark.parametrize("sizes", [(500.0, 500.0), (100.0, 900.0)], ids=["one text", "two texts"])
def test_a_mixture_has_the_size_of_its_lms(point, tmp_path, sizes):
    """The same LM twice, so that the mixture of the tools is known in closed form."""
    exps = [with_size(point, tmp_path / f"lm{n}", size) for n, size in enumerate(sizes)]
    write_mixture(tmp_path / "m", lms=exps, weights="0.25,0.75")
    parts = [word_log_probs(exp) for exp in exps]
    expected = np.logaddexp(parts[0] + np.log(0.25), parts[1] + np.log(0.75))
    assert word_log_probs(tmp_path / "m") == pytest.approx(expected, rel=1e-5)
    write_mixture(tmp_path / "m", lms=[point])
    assert read_unk_size(tmp_path / "m") is None


def test_a_subtracted_lm_is_for_decoding_alone(point, tmp_path):
    write_mixture(tmp_path / "m", lms=[point], subtract_lms=[point], subtract_weights=[-0.3])
    with pytest.raises(InputError, match="its scores are no probabilities"):
        load_lm(tmp_path / "m").score("a b")
    with pytest.raises(InputError, match="its scores are no probabilities"):
        word_log_probs(tmp_path / "m")
