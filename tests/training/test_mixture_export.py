"""Trained LMs and n-grams become one experiment folder that ESPnet's programs load."""

import shutil

import pytest
import torch
import yaml
from espnet2.tasks.lm import LMTask
from experiments import BAYES, SEARCH, write_experiment

from espnet_bayeslm.loading.export import write_mixture
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.utils.errors import InputError

WEIGHTS = "0.35,0.25,0.15,0.25"


@pytest.fixture(scope="module")
def ngram(plain_text):
    path = plain_text / "bigram.arpa.gz"
    build_ngram(plain_text / "train.txt", path, order=2, lmplz="none", discount_fallback=True)
    return path


@pytest.fixture(scope="module")
def lms(point, tmp_path_factory):
    """Return the experiments of a trained LM, an uncertain one and one of ESPnet's own."""
    folder = tmp_path_factory.mktemp("lms")
    bayes = write_experiment(point, folder / "bayes", *BAYES["lstm"])
    conf = dict(att_unit=8, head=2, unit=12, layer=1, pos_enc="sinusoidal")
    return [point, bayes, write_experiment(point, folder / "espnet", "transformer", conf)]


@pytest.fixture(scope="module")
def mixture(lms, ngram, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixtures") / "new" / "mixture"
    write_mixture(folder, lms=lms, ngrams=[ngram], weights=WEIGHTS)
    return folder


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


class TestFolder:
    def test_holds_all_that_it_needs(self, mixture, lms, ngram):
        names = {str(path.relative_to(mixture)) for path in mixture.rglob("*") if path.is_file()}
        assert names == {"config.yaml", "valid.loss.ave.pth", "ngrams/bigram.arpa.gz"}
        assert (mixture / "ngrams" / "bigram.arpa.gz").read_bytes() == ngram.read_bytes()
        config = yaml.safe_load((mixture / "config.yaml").read_text())
        assert config["lm"] == "mixture" and config["model"] == "lm"
        parts = config["lm_conf"]["components"]
        assert [part["name"] for part in parts] == ["exp", "bayes", "espnet", "bigram"]
        weights = [part["weight"] for part in parts]
        assert weights == pytest.approx([0.35, 0.25, 0.15, 0.25], abs=1e-15)
        assert parts[3]["path"] == str(mixture / "ngrams" / "bigram.arpa.gz")
        first = yaml.safe_load((lms[0] / "config.yaml").read_text())
        for name in ("token_list", "token_type", "bpemodel", "cleaner", "g2p"):
            assert config[name] == first[name]
        state = torch.load(mixture / "valid.loss.ave.pth", weights_only=True)
        assert "lm.components.0.encoder.weight" in state

    def test_espnet_and_we_load_the_same(self, mixture):
        model, args = LMTask.build_model_from_file(
            mixture / "config.yaml", mixture / "valid.loss.ave.pth"
        )
        trained = load_lm(mixture)
        assert trained.name == "mixture" and args.lm == "mixture"
        ids = torch.randint(1, len(trained.token_list), (3, 7))
        assert torch.equal(model.lm.eval()(ids, None)[0], trained.lm(ids, None)[0])

    def test_the_components_folders_are_not_needed(self, point, ngram, tmp_path):
        exp, arpa = tmp_path / "exp", tmp_path / "a.arpa.gz"
        shutil.copytree(point, exp, symlinks=False)
        shutil.copyfile(ngram, arpa)
        write_mixture(tmp_path / "m", lms=[exp], ngrams=[arpa], weights="0.5,0.5")
        shutil.rmtree(exp)
        arpa.unlink()
        assert load_lm(tmp_path / "m").lm.weights == [0.5, 0.5]

    def test_without_ngrams_and_with_one_lm(self, lms, tmp_path):
        write_mixture(tmp_path / "two", lms=lms[:2], weights="0.25,0.75")
        config = yaml.safe_load((tmp_path / "two" / "config.yaml").read_text())
        assert "tokens" not in config["lm_conf"] and not (tmp_path / "two" / "ngrams").exists()
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

    def test_an_lm_whose_optimizer_learnt_a_posterior(self, point, tmp_path):
        ivon = write_experiment(
            point, tmp_path / "ivon", "bayes_lstm", dict(unit=8), optim="ivon", optim_conf={}
        )
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

    def test_it_is_not_trained(self, corpus, tmp_path):
        data = f"{corpus}/train.txt,text,text"
        command = ["--lm", "mixture", "--token_list", f"{corpus}/tokens.txt", "--output_dir"]
        command += [tmp_path, "--train_data_path_and_name_and_type", data]
        with pytest.raises(InputError, match="--lm mixture is not trained"):
            BayesLMTask.main(cmd=list(map(str, command)))


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

    def test_what_cannot_be_mixed(self, lms, ngram, mixture, fails, tmp_path):
        chars, search = tmp_path / "chars", tmp_path / "search"
        write_experiment(lms[0], chars, "bayes_lstm", dict(unit=8), token_type="char")
        write_experiment(lms[0], search, *SEARCH["search"])
        fails("no LM in the mixture", lms=[], ngrams=[ngram])
        fails("it has char tokens, and exp word tokens", lms=[lms[0], chars])
        fails(r"search/config.yaml: a super-network", lms=[search])
        fails("a mixture already", lms=[mixture])

    def test_other_tokens(self, lms, fails, tmp_path):
        other = shutil.copytree(lms[0], tmp_path / "o")
        config = yaml.safe_load((other / "config.yaml").read_text())
        config["token_list"][2:4] = "X", "Y"
        (other / "config.yaml").write_text(yaml.safe_dump(config))
        message = (
            r"o/config.yaml: 2 of 13 ids stand for other tokens in this LM than in exp: 2 is 'X'"
            r" and 'a', 3 is 'Y' and 'b' \(2 tokens are only this LM's, 2 only the other's\)"
        )
        fails(message, lms=[lms[0], other], weights="0.5,0.5")

    def test_weights(self, lms, ngram, fails, tmp_path):
        parts = dict(lms=lms[:1], ngrams=[ngram])
        fails(r"\[0.5, 0.4\] with the sum 0.9000, not 1", weights="0.5,0.4", **parts)
        fails("3 weights for 2 components", weights="0.5,0.3,0.2", **parts)
        fails("neither a file nor numbers", weights=tmp_path / "nosuch.yaml", **parts)
        rows = [{"name": "exp", "weight": 0.5}, {"name": "bigram", "weight": 0.3}]
        (tmp_path / "w.yaml").write_text(yaml.safe_dump({"components": rows}))
        fails(r"w.yaml: weights \[0.5, 0.3\] with the", weights=tmp_path / "w.yaml", **parts)
        for content in ("", "components: 3\n", "components: [{name: a}]\n", "a: b: c"):
            (tmp_path / "w.yaml").write_text(content)
            fails("w.yaml: not a weights file", weights=tmp_path / "w.yaml", **parts)

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_folder_that_holds_an_lm(self, lms, number):
        before = content(lms[number])
        with pytest.raises(InputError, match="holds another LM"):
            write_mixture(lms[number], lms=lms[:1])
        assert content(lms[number]) == before
