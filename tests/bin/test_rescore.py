"""`bayeslm rescore`: tuned on one set, applied to another; whole outputs or none."""

import dataclasses
import inspect
import shutil

import numpy as np
import pytest
import yaml

import espnet_bayeslm
from espnet_bayeslm.bin import interpolate, rescore
from espnet_bayeslm.bin.rescore import get_parser, main
from espnet_bayeslm.evaluation import mapsswe
from espnet_bayeslm.evaluation.wer import count_errors, read_transcripts
from espnet_bayeslm.nbest.formats import write_nbest
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.rescoring import read_nbest, token_log_probs
from espnet_bayeslm.training.load import load_lm
from espnet_bayeslm.utils.files import read_keyed_lines

FILES = {"words_text", "acwt", "lmwt.nolm", "lmwt.withlm", "lmwt.nn", "text", "trn", "scales.yaml"}


def run(*command):
    main([str(part) for part in command])


def costs(path):
    """Return {key: its numbers} of a Kaldi archive."""
    return {key: [*map(float, line.split())] for key, (_, line) in read_keyed_lines(path).items()}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def weights(plain_text, point, bayes, ngram, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "weights.yaml"
    command = ["--text", plain_text / "valid.txt", "--lm", point, "--lm", bayes, "--ngram", ngram]
    interpolate.main([str(part) for part in [*command, "--output", path]])
    return path


@pytest.fixture(scope="module")
def lms(point, bayes, ngram, weights):
    return ["--lm", point, "--lm", bayes, "--ngram", ngram, "--weights", weights]


@pytest.fixture(scope="module")
def tuned(nbest, lms, tmp_path_factory):
    """Return the output of a run that tunes on dev."""
    output = tmp_path_factory.mktemp("dev") / "new" / "dev"
    run(
        "--nbest",
        nbest / "dev",
        *lms,
        "--tune_ref",
        nbest / "dev.ref",
        "--output",
        output,
        "--token_scores",
        "true",
    )
    return output


def test_options_are_the_parameters_of_the_function():
    known = {action.dest for action in get_parser()._actions} - {"help", "config", "log_level"}
    own = set(rescore.rescore.__annotations__) - {"options", "return"}
    library = inspect.signature(espnet_bayeslm.rescore).parameters
    loading = {"num_samples", "max_tokens", "cache", "self_normalized", "max_context", "unk_size"}
    assert own <= known and known - own <= set(library) | loading


def test_lists_come_out_as_they_went_in_with_the_new_scores_added(nbest, tuned):
    assert {path.name for path in tuned.iterdir()} >= FILES | {"lmwt.nn.words"}
    assert list(read_nbest(tuned)) == list(read_nbest(nbest / "dev"))
    assert list(costs(tuned / "lmwt.nn")) == list(read_keyed_lines(nbest / "dev" / "words_text"))


def test_new_costs_are_those_of_the_mixture(tuned, weights, point, bayes, ngram):
    mixing = [row["weight"] for row in yaml.safe_load(weights.read_text())["components"]]
    texts = {key: line.split() for key, (_, line) in read_keyed_lines(tuned / "words_text").items()}
    assert [] in texts.values()
    trained = [load_lm(exp) for exp in (point, bayes)]
    found, by_word = costs(tuned / "lmwt.nn"), costs(tuned / "lmwt.nn.words")
    for key, words in texts.items():
        parts = [token_log_probs(lm.lm, [lm.ids(words)])[0] for lm in trained]
        parts.append(NgramScorer(ngram).word_scores([words])[0].log_probs)
        log_probs = np.log(sum(w * np.exp(p) for w, p in zip(mixing, parts, strict=True)))
        np.testing.assert_allclose(by_word[key], -log_probs, atol=1e-5)
        assert found[key] == pytest.approx([-log_probs.sum()], abs=1e-5)


def test_token_scores_sum_to_the_costs(tuned):
    total, by_word = costs(tuned / "lmwt.nn"), costs(tuned / "lmwt.nn.words")
    assert list(total) == list(by_word)
    for key, values in by_word.items():
        # 6 decimals of each are written
        assert total[key] == pytest.approx([sum(values)], abs=1e-6 * (len(values) + 1))


def test_best_hypotheses_are_those_of_the_formula(tuned):
    scales = yaml.safe_load((tuned / "scales.yaml").read_text())
    lm = costs(tuned / "lmwt.nn")
    expected = {}
    for nbest in read_nbest(tuned):
        totals = [
            hyp.am_score / scales["lmwt"]
            + hyp.graph_score
            - lm[f"{nbest.utt}-{rank}"][0]
            - scales["word_penalty"] * len(hyp.words)
            for rank, hyp in enumerate(nbest.hypotheses, 1)
        ]
        expected[nbest.utt] = nbest.hypotheses[totals.index(max(totals))].words
    assert read_transcripts(tuned / "text") == read_transcripts(tuned / "trn") == expected


def test_word_error_rates_of_the_tuned_run(nbest, tuned):
    refs = read_transcripts(nbest / "dev.ref")
    wer = yaml.safe_load((tuned / "scales.yaml").read_text())["wer"]
    rescored = count_errors(refs, read_transcripts(tuned / "text"))
    assert wer["rescored"] == pytest.approx(100 * rescored.rate, abs=1e-3)
    assert wer["oracle"] <= wer["rescored"] < wer["first pass"]


def test_scales_of_one_set_are_applied_to_another(nbest, lms, tuned, tmp_path, capsys):
    command = ["--nbest", nbest / "test", *lms, "--ref", nbest / "test.ref"]
    run(*command, "--scales", tuned / "scales.yaml", "--output", tmp_path / "a")
    scales = yaml.safe_load((tuned / "scales.yaml").read_text())
    table = capsys.readouterr().out
    assert table.startswith(f"LMWT {scales['lmwt']:g}, word penalty {scales['word_penalty']:g}\n")
    assert [row[:12].strip() for row in table.splitlines()[2:]] == [
        "first pass", "rescored", "oracle", "first pass -",
    ]  # fmt: skip
    found = yaml.safe_load((tmp_path / "a" / "scales.yaml").read_text())
    assert {key: found[key] for key in ("lmwt", "word_penalty")} == {
        key: scales[key] for key in ("lmwt", "word_penalty")
    }
    assert "tuned_on" not in found and scales["tuned_on"] == str(nbest / "dev.ref")
    by_hand = ["--lmwt", scales["lmwt"], "--word_penalty", scales["word_penalty"]]
    run(*command, *by_hand, "--output", tmp_path / "b")
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    of_file, of_options = (yaml.safe_load(files.pop("scales.yaml")) for files in (a, b))
    assert a == b
    # only a tuned file knows how sharp the posterior is
    assert of_file.pop("posterior") == scales["posterior"]
    assert of_file == of_options


def test_references_change_no_choice(nbest, lms, tmp_path):
    command = ["--nbest", nbest / "test", *lms, "--lmwt", 12]
    run(*command, "--output", tmp_path / "a")
    run(*command, "--ref", nbest / "test.ref", "--output", tmp_path / "b")
    assert (tmp_path / "a" / "text").read_bytes() == (tmp_path / "b" / "text").read_bytes()
    assert "wer" not in yaml.safe_load((tmp_path / "a" / "scales.yaml").read_text())


def test_the_cache_changes_nothing_and_loads_nothing(nbest, lms, bayes, tmp_path, monkeypatch):
    command = ["--nbest", nbest / "test", *lms]
    run(*command, "--output", tmp_path / "without")
    run(*command, "--output", tmp_path / "first", "--cache", tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2  # the two neural LMs
    with monkeypatch.context() as patch:
        patch.setattr("espnet_bayeslm.training.load.load_lm", None)
        run(*command, "--output", tmp_path / "second", "--cache", tmp_path / "cache")
        with pytest.raises(TypeError):  # other draws are other scores: the LM is needed
            run(
                "--nbest",
                nbest / "test",
                "--lm",
                bayes,
                "--num_samples",
                2,
                "--output",
                tmp_path / "third",
                "--cache",
                tmp_path / "cache",
            )
    expected = contents(tmp_path / "without")
    assert contents(tmp_path / "first") == contents(tmp_path / "second") == expected
    assert not (tmp_path / "third").exists()


def test_the_size_of_batches_changes_nothing(nbest, bayes, tmp_path):
    results = []
    for max_tokens in (1, 100_000):
        output = tmp_path / str(max_tokens)
        run(
            "--nbest",
            nbest / "test",
            "--lm",
            bayes,
            "--output",
            output,
            "--num_samples",
            2,
            "--max_tokens",
            max_tokens,
        )
        results.append(costs(output / "lmwt.nn"))
    assert results[0].keys() == results[1].keys()
    for key, value in results[0].items():
        assert value == pytest.approx(results[1][key], abs=1e-5)


def test_a_rerun_replaces_its_own_output_whole(nbest, ngram, tmp_path):
    output = tmp_path / "out"
    output.mkdir()  # an empty folder may be taken
    run("--nbest", nbest / "dev", "--ngram", ngram, "--token_scores", "true", "--output", output)
    (output / "notes").write_text("mine")
    run("--nbest", nbest / "test", "--ngram", ngram, "--output", output)
    assert {path.name for path in output.iterdir()} == FILES | {"notes"}
    assert (output / "notes").read_text() == "mine"
    assert len((output / "text").read_text().splitlines()) == 20
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def without_graph_scores(item):
    """Return a list as SRILM's format has it."""
    hyps = [dataclasses.replace(h, graph_score=None, lm_score=0.0) for h in item.hypotheses]
    return dataclasses.replace(item, hypotheses=tuple(hyps))


@pytest.mark.parametrize("kind", ["link to nothing", "below a file"])
def test_an_output_that_cannot_be_written_is_known_before_the_scoring(
    nbest, ngram, tmp_path, fails, monkeypatch, kind
):
    output = tmp_path / "out"
    if kind == "below a file":
        output.write_text("a file")
        output = output / "new"
    else:
        output.symlink_to("nowhere")
    monkeypatch.setattr(espnet_bayeslm, "rescore", lambda *_, **__: pytest.fail("it was scored"))
    error = fails(main, ["--nbest", nbest / "dev", "--ngram", ngram, "--output", output])
    assert ("a link to nowhere" if kind == "link to nothing" else "cannot be written") in error


def test_an_output_that_a_link_leads_to(nbest, ngram, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to("there")
    for lists in ("dev", "test"):
        run("--nbest", nbest / lists, "--ngram", ngram, "--output", tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert {path.name for path in (tmp_path / "there").iterdir()} == FILES


def test_lists_of_an_earlier_run_do_not_stay(nbest, ngram, tmp_path):
    """In a format of a file for each utterance those of other lists would be read with them."""
    lists, out = {}, tmp_path / "out"
    for name in ("dev", "test"):
        lists[name] = tmp_path / name
        whole = read_nbest(nbest / name, "kaldi")
        write_nbest(map(without_graph_scores, whole), lists[name], format="srilm")
        options = ["--nbest", lists[name], "--nbest_format", "srilm", "--ngram", ngram]
        run(*options, "--output", out)
        (out / "note").write_text("mine")
    assert (out / "note").exists()
    utts = [item.utt for item in read_nbest(out, "srilm")]
    assert utts == [item.utt for item in read_nbest(lists["test"], "srilm")] and len(utts) == 20


def test_an_output_can_be_rescored_again(nbest, ngram, tuned, tmp_path):
    run("--nbest", tuned, "--ngram", ngram, "--output", tmp_path / "a")
    run("--nbest", nbest / "dev", "--ngram", ngram, "--output", tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_lists_without_graph_costs(nbest, ngram, tmp_path):
    (tmp_path / "nbest").mkdir()
    for name in ("words_text", "acwt"):
        shutil.copy(nbest / "test" / name, tmp_path / "nbest" / name)
    run("--nbest", tmp_path / "nbest", "--ngram", ngram, "--output", tmp_path / "out")
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == FILES - {"lmwt.nolm", "lmwt.withlm"}


BAD_LISTS = {
    "malformed line": ("acwt", "u0003-2 1.0 x\n", r"acwt:{line}: '1.0 x' stands where one number"),
    "empty line": ("words_text", "\n", r"words_text:{line}: an empty line"),
    "key without rank": ("words_text", "u0003 a b\n", r"words_text:{line}: the key 'u0003' is not"),
    "other key": ("acwt", "u9999-1 1.0\n", r"/acwt: 1 of the 150 keys of words_text are missing"),
    "missing key": ("lmwt.nolm", "", r"/lmwt.nolm: 1 of the 150 keys of words_text are missing"),
    "nan": ("acwt", "u0003-2 nan\n", r"acwt:{line}: 'nan' is not a finite number"),
    "inf": ("lmwt.withlm", "u0003-2 inf\n", r"lmwt.withlm:{line}: 'inf' is not a finite number"),
    "duplicate key": ("acwt", "u0003-1 1.0\n", r"acwt:{line}: the key 'u0003-1' stands already"),
}


@pytest.mark.parametrize("name", BAD_LISTS)
def test_bad_lists_are_one_error_and_nothing_is_written(nbest, ngram, tmp_path, fails, name):
    file, new, message = BAD_LISTS[name]
    folder = tmp_path / "nbest"
    shutil.copytree(nbest / "dev", folder)
    lines = (folder / file).read_text().splitlines(keepends=True)
    (number,) = (n for n, line in enumerate(lines) if line.startswith("u0003-2 "))
    (folder / file).write_text("".join([*lines[:number], new, *lines[number + 1 :]]))
    output = tmp_path / "new" / "out"
    error = fails(main, ["--nbest", folder, "--ngram", ngram, "--output", output])
    assert error.startswith(f"bayeslm rescore: error: {folder}/")
    assert message.format(line=number + 1) in error
    assert [path.name for path in tmp_path.iterdir()] == ["nbest"]


def test_a_missing_rank_and_a_missing_list(nbest, ngram, tmp_path, fails):
    folder = tmp_path / "nbest"
    shutil.copytree(nbest / "dev", folder)

    def drop(*keys):
        for path in folder.iterdir():
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if line.split()[0] not in keys))

    command = ["--nbest", folder, "--ngram", ngram, "--output", tmp_path / "out"]
    drop("u0003-2")
    assert "the hypothesis 'u0003-2' is missing" in fails(main, command)
    drop(*(f"u0003-{rank}" for rank in range(1, 6)))
    for option in ("--ref", "--tune_ref"):
        error = fails(main, [*command, option, nbest / "dev.ref"])
        assert f"{folder}: 29 utterances, 30 in {nbest}/dev.ref" in error
        assert "1 utterances have no hypothesis (first: 'u0003')" in error
    assert [path.name for path in tmp_path.iterdir()] == ["nbest"]


BAD_OPTIONS = {
    "no lists": (["--nbest", "nosuch"], "nosuch: not a folder of Kaldi N-best archives"),
    "unknown format": (["--nbest_format", "sphinx"], "unknown N-best format 'sphinx'"),
    "no weights": (["--lm", "{point}"], "2 components and no --weights"),
    "other weights": (["--weights", "{weights}"], "has weights for point, bayes, bigram, but"),
    "two scales": (["--lmwt", "3", "--scales", "x"], "more than one source of scales"),
    "tuned and given": (["--tune_ref", "x", "--word_penalty", "1"], "more than one source"),
    "negative lmwt": (["--lmwt", "-3"], "lmwt must be positive"),
    "missing scales": (["--scales", "nosuch.yaml"], "nosuch.yaml"),
    "weights as scales": (["--scales", "{weights}"], "no usable `lmwt` and `word_penalty`"),
    "missing ref": (["--ref", "nosuch.ref"], "nosuch.ref: cannot be read"),
    "ref of another set": (["--ref", "{nbest}/test.ref"], "utterances have no reference"),
    "missing lm": (["--lm", "nosuch"], "nosuch"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options_are_one_error(nbest, ngram, point, weights, tmp_path, fails, name):
    options, message = BAD_OPTIONS[name]
    options = [part.format(point=point, weights=weights, nbest=nbest) for part in options]
    command = ["--nbest", nbest / "dev", "--ngram", ngram, "--output", tmp_path / "out"]
    error = fails(main, [*command, *options])
    assert error.startswith("bayeslm rescore: error: ") and message in error
    assert not any(tmp_path.iterdir())


def test_unknown_words_above_the_limit(nbest, point, tmp_path, fails):
    folder = tmp_path / "nbest"
    shutil.copytree(nbest / "dev", folder)
    text = (folder / "words_text").read_text().replace(" a", " zebra").replace(" b", " yak")
    (folder / "words_text").write_text(text)
    command = ["--nbest", folder, "--lm", point, "--output", tmp_path / "out"]
    error = fails(main, [*command, "--max_oov_rate", "0.01"])
    assert "point does not know" in error and "2 distinct: " in error
    assert "'zebra'" in error and "'yak'" in error
    assert "--max_oov_rate is 0.01" in error and not (tmp_path / "out").exists()
    run(*command, "--max_oov_rate", "1")
    assert (tmp_path / "out" / "lmwt.nn").exists()


@pytest.mark.parametrize("kind", ["folder", "file", "input"])
def test_what_is_not_ours_is_not_replaced(nbest, ngram, tuned, tmp_path, fails, kind):
    output = tmp_path / "out"
    lists = nbest / "dev"
    if kind == "folder":
        output.mkdir()
        (output / "thesis").write_text("of years")
    elif kind == "file":
        output.write_text("of years")
    else:  # an earlier output, which is now the input
        shutil.copytree(tuned, output)
        lists = output
    before = contents(tmp_path if kind == "file" else output)
    error = fails(main, ["--nbest", lists, "--ngram", ngram, "--output", output])
    assert f"{output}: is there, and is not the output of an earlier `bayeslm rescore`" in error
    assert contents(tmp_path if kind == "file" else output) == before


def test_a_failure_while_writing_leaves_the_old_output(nbest, ngram, tmp_path, fails, monkeypatch):
    command = ["--nbest", nbest / "dev", "--ngram", ngram, "--output", tmp_path / "out"]
    run(*command)
    before = contents(tmp_path / "out")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rescore, "write_settings", full)
    assert "No space left" in fails(main, [*command, "--lmwt", "3"])
    assert contents(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_normalised_text_is_scored_and_counted_and_what_is_written_stays(
    nbest, point, ngram, tmp_path
):
    """Lists and references in upper case with punctuation give what plain ones give."""

    def shouted(line):
        key, *words = line.split()
        return " ".join([key, *(f"{word.upper()}," for word in words)])

    lists = tmp_path / "lists"
    shutil.copytree(nbest / "dev", lists)
    for path in (lists / "words_text", nbest / "dev.ref"):
        target = lists / "words_text" if path.parent == lists else tmp_path / "ref"
        target.write_text("".join(f"{shouted(x)}\n" for x in path.read_text().splitlines()))
    components = ["--lm", point, "--ngram", ngram, "--weights", "0.5,0.5"]
    outputs = {}
    for name, source, ref in (
        ("plain", nbest / "dev", nbest / "dev.ref"),
        ("shouted", lists, tmp_path / "ref"),
    ):
        options = ["--normalize", "lower,punct"] if name == "shouted" else []
        run(
            "--nbest", source, *components, "--tune_ref", ref, "--output", tmp_path / name, *options
        )
        outputs[name] = tmp_path / name
    plain, loud = outputs["plain"], outputs["shouted"]
    assert (loud / "lmwt.nn").read_text() == (plain / "lmwt.nn").read_text()
    best = (plain / "text").read_text().splitlines()
    assert (loud / "text").read_text().splitlines() == [shouted(line) for line in best]
    assert (loud / "words_text").read_text() == (lists / "words_text").read_text()
    settings = [yaml.safe_load((folder / "scales.yaml").read_text()) for folder in (plain, loud)]
    assert settings[0]["wer"] == settings[1]["wer"]


def test_lists_that_the_lm_does_not_know_name_the_option_that_mends_it(
    nbest, point, tmp_path, fails
):
    lists = tmp_path / "lists"
    shutil.copytree(nbest / "dev", lists)
    (lists / "words_text").write_text(
        "".join(
            " ".join([x.split()[0], *map(str.upper, x.split()[1:])]) + "\n"
            for x in (lists / "words_text").read_text().splitlines()
        )
    )
    error = fails(rescore.main, ["--nbest", lists, "--lm", point, "--output", tmp_path / "out"])
    assert "--normalize lower,punct" in error and not (tmp_path / "out").exists()


def test_the_first_pass_is_tested_against(nbest, lms, tmp_path, capsys):
    ref = nbest / "dev.ref"
    run("--nbest", nbest / "dev", *lms, "--tune_ref", ref, "--output", tmp_path / "out")
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "MAPSSWE" in x]
    first = {item.utt: item.hypotheses[0].words for item in read_nbest(nbest / "dev")}
    found = mapsswe(read_transcripts(ref), first, read_transcripts(tmp_path / "out" / "text"))
    assert line == f"first pass - rescored: MAPSSWE z = {found.z:.2f}, p = {found.p:.2g}"
