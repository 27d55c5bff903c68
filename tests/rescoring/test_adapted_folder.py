"""Options that `rescore --adapted FOLDER` takes of a folder, and those it refuses beside it."""

import shutil

import pytest
import yaml

from espnet_bayeslm.rescoring.adapted_folder import with_adapted, write_adapted
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.utils.errors import InputError


@pytest.fixture
def folder(tmp_path):
    """Return a folder of two LMs, an n-gram, weights and scales, beside an LM outside."""
    folder = tmp_path / "out"
    for name in ("out/lora", "out/base", "outside"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("weights.yaml", "scales.yaml", "n.arpa"):
        (folder / name).touch()
    (folder / "scales.yaml").write_text("lmwt: 1\nword_penalty: 0\n")
    lms = [folder / "lora", f"hf:{folder / 'base'}", f"hf:{tmp_path / 'outside'}", "hf:org/name"]
    files = {name: folder / f"{name}.yaml" for name in ("weights", "scales")}
    plain = {"normalize": "lower", "unit": "char", "precision": "bfloat16", "context": "previous"}
    write_adapted(folder, {"lm": lms, "ngram": [folder / "n.arpa"], **files, **plain})
    return folder


def filled(folder, **options):
    return with_adapted(RescoreOptions.of(**options), str(folder))


def test_a_folder_brings_what_was_written_wherever_it_lies(folder, tmp_path):
    copied = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, copied)
    shutil.rmtree(folder)
    found = filled(copied)
    lora, base, outside, hub = map(str, found.mixture.lms)
    assert (lora, base) == (str(copied / "lora"), f"hf:{copied / 'base'}")
    assert (outside, hub) == (f"hf:{(tmp_path / 'outside').resolve()}", "hf:org/name")
    assert [*map(str, found.mixture.ngrams)] == [str(copied / "n.arpa")]
    assert str(found.mixture.weights) == str(copied / "weights.yaml")
    assert str(found.scales) == str(copied / "scales.yaml")
    plain = {"normalize": "lower", "unit": "char", "precision": "bfloat16", "context": "previous"}
    assert plain.items() <= found.values().items()
    # a single LM by hand, without brackets
    (copied / "adapted.yaml").write_text(yaml.safe_dump({"lm": "hf:base", "ngram": "n.arpa"}))
    found = filled(copied)
    assert [*map(str, found.mixture.lms)] == [f"hf:{copied / 'base'}"]
    assert [*map(str, found.mixture.ngrams)] == [str(copied / "n.arpa")]


def test_without_a_bias_list_the_weights_are_those_without_one(folder):
    """All else that is known of the scales stays; a bias list takes the weights of the file."""
    known = {"decision": "mbr", "tuned_on": "dev", "text_forms": {"lora": "as_is,special,no_blank"}}
    control = {"lmwt": 4.0, "word_penalty": 0.0}
    tuned = {"lmwt": 3.0, "word_penalty": 0.0, "bias": 2.0}
    tuned["unbiased"] = {"lmwt": 2.0, "word_penalty": 1.0}
    (folder / "scales.yaml").write_text(yaml.safe_dump({**tuned, **known, "control": control}))
    given = filled(folder, bias=["kite"])
    assert str(given.scales) == str(folder / "scales.yaml")
    found = filled(folder).scales
    assert (found.lmwt, found.word_penalty, found.decision, found.tuned_on) == (2, 1, "mbr", "dev")
    assert found.lms.text_forms == known["text_forms"] and found.control.lmwt == 4
    assert not found.uses_bias and found == found.without_bias
    (folder / "scales.yaml").write_text("lmwt: 1\nword_penalty: 0\n")
    assert str(filled(folder).scales) == str(folder / "scales.yaml")


GIVEN = {
    "lms": ["hf:other"],
    "ngrams": ["other.arpa"],
    "weights": "0.5,0.5",
    "scales": "scales.yaml",
    "normalize": "punct",
    "unit": "char",
    "precision": "bfloat16",
    "recording_of": "^(a)",
    "text_form": "lower",
    "utt2lm": "utt2lm",
    "lmwt": 3.0,
    "word_penalty": 0.5,
    "subtract_lms": ["hf:other"],
}
NAMES = {"lms": "lm", "ngrams": "ngram", "subtract_lms": "subtract_lm"}


@pytest.mark.parametrize("field", GIVEN)
def test_options_for_which_the_folder_stands_are_refused(field, folder):
    """Weights and scales were tuned with what the folder brings, and with nothing else."""
    with pytest.raises(InputError, match=rf"brings its own .*--{NAMES.get(field, field)}\b"):
        filled(folder, **{field: GIVEN[field]})


def test_a_tuning_is_refused(folder):
    with pytest.raises(InputError, match=r"brings its own .*: --tune_ref"):
        with_adapted(RescoreOptions(), folder, "--tune_ref")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "no adapted.yaml in it"),
        ("flavour: 3\n", "adapted.yaml: unknown: flavour"),
        ("- lm\n", "adapted.yaml: expected a yaml mapping"),
        ("context: next\n", "adapted.yaml: .*expected one of none, previous"),
    ],
)
def test_other_folders_are_refused(text, problem, tmp_path):
    if text is not None:
        (tmp_path / "adapted.yaml").write_text(text)
    with pytest.raises(InputError, match=problem):
        filled(tmp_path)
