"""`bayeslm train`: plain text in, a trained LM out."""

import math
import re
import shutil
import subprocess

import pytest
import torch
import yaml
from command_lines import SHORT
from espnet2.bin import tokenize_text

from espnet_bayeslm.bin.train import main
from espnet_bayeslm.loading.checkpoint import read_checkpoint
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.training.trainer import BayesLMTrainer, EpochLines
from espnet_bayeslm.utils.errors import InputError

POINT = {
    "lm": "bayes_lstm",
    "lm_conf": {"unit": 8, "dropout_rate": 0.0},
    "optim": "adam",
    **SHORT,
}
BAYES = {**POINT, "lm_conf": {**POINT["lm_conf"], "uncertainty": {"cell_input@1": "bayes"}}}


@pytest.fixture
def command(plain_text, tmp_path):
    """Return a function: configuration, experiment, more options -> command line."""
    for part in ("train", "valid"):
        text = (plain_text / f"{part}.txt").read_text()
        (tmp_path / f"{part}.txt").write_text(text + "\n")
    for name, config in (("point", POINT), ("bayes", BAYES)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
    texts = ["--train_text", f"{tmp_path}/train.txt", "--valid_text", f"{tmp_path}/valid.txt"]

    def words(config="point", exp="exp", *options):
        start = ["--config", f"{tmp_path}/{config}.yaml", "--exp", f"{tmp_path}/{exp}"]
        return [*texts, *start, *map(str, options)]

    return words


def test_from_gives_start_and_prior(command, tmp_path):
    """The start alone where the configuration chooses a zero prior."""
    zero = {**BAYES, "model_conf": {"prior": "zero"}}
    (tmp_path / "zero.yaml").write_text(yaml.safe_dump(zero))
    nameless = {key: value for key, value in BAYES.items() if key != "lm"}
    (tmp_path / "nameless.yaml").write_text(yaml.safe_dump(nameless))
    main(command("point", "point"))
    point = load_lm(tmp_path / "point")
    assert point.token_list[0] == "<blank>" and point.token_list[-1] == "<sos/eos>"
    assert sorted(point.token_list[2:-1]) == list("abcdefghij")
    start = point.lm.rnn.weight_hh_l0
    still = ["--max_epoch", "1", "--optim_conf", "lr=0.0"]
    for name, source, prior, *options in (
        ("bayes", "point", start[16:24]),
        # also where the start has a prior of its own
        ("zero", "bayes", torch.zeros_like(start[16:24])),
        ("nameless", "point", start[16:24], "--lm", "bayes_lstm"),
    ):
        main(command(name, name, "--from", tmp_path / source, *still, *options))
        lm = load_lm(tmp_path / name).lm
        assert lm.locations() == ["cell_input@1"]
        assert torch.equal(lm.rnn.weight_hh_l0, start)
        assert torch.equal(lm.rnn.weight_hh_l0_cell_input_prior_mean, prior)
    config = yaml.safe_load((tmp_path / "bayes" / "config.yaml").read_text())
    assert config["max_epoch"] == 1


@pytest.mark.parametrize("token_type, vocab_size", [("bpe", 20), ("char", 40), ("word", 7)])
def test_token_types(command, tmp_path, token_type, vocab_size):
    tokens = ["--token_type", token_type, "--vocab_size", vocab_size]
    main(command("point", "exp", *tokens, "--max_epoch", "1"))
    lm = load_lm(tmp_path / "exp")
    assert lm.token_type == token_type and len(lm.token_list) <= vocab_size
    tokens = lm.tokenize("a b c")
    assert "".join(tokens).replace("▁", " ").replace("<space>", " ").split() in (
        ["a", "b", "c"],
        ["abc"],
    )
    assert all(0 < i < len(lm.token_list) - 1 for i in lm.ids(tokens))


@pytest.mark.parametrize(
    "token_type, cleaner", [("word", None), ("char", None), ("char", "jaconv")]
)
def test_tokens_and_statistics_are_espnets(command, tmp_path, token_type, cleaner):
    """ESPnet's tokenize_text gives the same list, its --collect_stats the same lengths."""
    with open(tmp_path / "train.txt", "a") as f:
        f.write("ｂ ａ a　b\n")
    words = ["--token_type", token_type, "--vocab_size", "9"]
    words += [] if cleaner is None else ["--cleaner", cleaner]
    main(command("point", "exp", *words, "--max_epoch", "1"))
    data, reading = tmp_path / "exp" / "data", ["--token_type", token_type, *words[4:]]
    special = [w for s in ("<blank>:0", "<unk>:1", "<sos/eos>:-1") for w in ("--add_symbol", s)]
    tokenize_text.main(
        [
            *(*reading, "--input", f"{data}/train.txt", "--output", f"{tmp_path}/tokens"),
            *("--field", "2-", "--write_vocabulary", "true", "--vocabulary_size", "9", *special),
        ]
    )
    assert (data / "tokens.txt").read_text() == (tmp_path / "tokens").read_text()
    collect = [*reading, "--token_list", f"{data}/tokens.txt", "--collect_stats", "true"]
    for part in ("train", "valid"):
        collect += [f"--{part}_data_path_and_name_and_type", f"{data}/{part}.txt,text,text"]
        collect += [f"--{part}_shape_file", f"{data}/{part}.txt"]
    BayesLMTask.main(cmd=[*collect, "--output_dir", f"{tmp_path}/stats", "--num_workers", "0"])
    for part in ("train", "valid"):
        expected = (tmp_path / "stats" / part / "text_shape").read_text().splitlines()
        assert (data / f"{part}.shape").read_text().splitlines() == [f"{x},9" for x in expected]


@pytest.mark.parametrize("more", ["", "a <unk>\n"], ids=["no unk", "an unk"])
@pytest.mark.parametrize("valid", ["a b\na zebra\nb c\n", "a zebra\n"], ids=["some", "all"])
def test_validation_is_on_known_words_where_unk_is_not_trained(
    command, tmp_path, capsys, caplog, more, valid
):
    """What is left is what a validation text without the others would give."""
    with open(tmp_path / "train.txt", "a") as f:
        f.write(more)
    (tmp_path / "valid.txt").write_text(valid)
    main(command("point", "exp", "--max_epoch", "1"))
    data = tmp_path / "exp" / "data"
    utts = [line.split()[0] for line in (data / "valid.shape").read_text().splitlines()]
    if more or valid == "a zebra\n":
        assert len(utts) == len(valid.splitlines())
        assert "left out" not in caplog.text
        return
    assert utts == ["valid-000000001", "valid-000000003"]
    assert "valid.txt: 1 of 3 sentences have tokens that" in caplog.text
    (tmp_path / "valid.txt").write_text("a b\nb c\n")
    main(command("point", "known", "--max_epoch", "1"))
    output = capsys.readouterr().out
    with_unknown, without = re.findall("validation perplexity .*", output)
    assert with_unknown == without
    assert f"checkpoint: {tmp_path / 'known'}/valid.loss.ave.pth\n" in output


def test_what_was_made_of_the_same_text_is_kept(command, tmp_path, monkeypatch):
    tokens = ["--token_type", "bpe", "--vocab_size", "20", "--max_epoch", "1"]
    main(command("point", "point", *tokens))

    def again(*args, **kwargs):
        raise AssertionError("made again")

    for name in ("write_counts", "made_tokens"):
        monkeypatch.setattr(f"espnet_bayeslm.training.text.{name}", again)
    main(command("point", "point", *tokens))
    start = ["--from", tmp_path / "point", "--max_epoch", "1"]
    main(command("bayes", "bayes", *start))
    for name in ("train.shape", "valid.shape", "tokens.txt"):
        ours, theirs = (tmp_path / exp / "data" / name for exp in ("bayes", "point"))
        assert ours.read_bytes() == theirs.read_bytes()
    # of another validation text they are not
    (tmp_path / "valid.txt").write_text("a b c\n")
    with pytest.raises(AssertionError, match="made again"):
        main(command("bayes", "other", *start))


def test_a_training_speaks(command, tmp_path, python):
    """On stderr a line for each epoch, on stdout the result, ESPnet's own log in the folder."""
    exp = tmp_path / "exp"
    words = [python, "-m", "espnet_bayeslm.bin.bayeslm", "train", *command("bayes")]
    words += ["--keep_nbest_models", "2"]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    first, warning, *epochs = result.stderr.splitlines()
    assert "random weights are trained from scratch" in warning
    number = r"\d+\.\d+"
    assert str(exp / "train.log") in first
    assert len(epochs) == 2, result.stderr
    for epoch, line in enumerate(epochs, 1):
        assert re.fullmatch(
            f"epoch {epoch}/2: train ppl {number}, valid ppl {number}( .best so far.)?,"
            f" KL {number} nats/token, sigma x {number} of its start, 0:00:[0-9]+ left at most",
            line,
        ), line
    perplexity, checkpoint, following = result.stdout.splitlines()
    shown = [float(re.search(r"valid ppl ([0-9.]+)", line)[1]) for line in epochs]
    assert f"validation perplexity {min(shown):.2f} " in perplexity
    averaged = ", the average of the 2 best epochs"
    assert checkpoint == f"checkpoint: {exp}/valid.loss.ave.pth{averaged}"
    assert f"--lm {exp} " in following
    assert "[train]" in (exp / "train.log").read_text()


def test_ctrl_c_and_the_same_command_again(command, tmp_path, capsys, monkeypatch):
    validate = BayesLMTrainer.validate_one_epoch

    def stop(**kwargs):
        if kwargs["reporter"].epoch == 2:
            raise KeyboardInterrupt
        validate(**kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(BayesLMTrainer, "validate_one_epoch", stop)
        with pytest.raises(SystemExit) as stopped:
            main(command())
    assert stopped.value.code == 130
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "stopped" in x]
    assert "the same command goes on" in line
    assert not (tmp_path / "exp/2epoch.pth").exists()
    before, add = [], EpochLines.add
    monkeypatch.setattr(EpochLines, "add", lambda s, *a: before.append(s.best) or add(s, *a))
    main(command())
    stats = read_checkpoint(tmp_path / "exp/checkpoint.pth")["reporter"]["stats"]
    assert before == [float(stats[1]["valid"]["ppl"])], "the best so far is that of all epochs"
    assert "The training was resumed" in (tmp_path / "exp/train.log").read_text()
    assert (tmp_path / "exp/latest.pth").resolve().name == "2epoch.pth"


@pytest.fixture
def pieces(command, tmp_path):
    """Return a token list and its model, of an LM of word pieces."""
    words = ["--token_type", "bpe", "--vocab_size", "20", "--max_epoch", "1"]
    main(command("point", "first", *words))
    return tmp_path / "first/data/tokens.txt", tmp_path / "first/data/bpe.model"


def test_given_tokens(pieces, command, tmp_path):
    """--token_list and --bpemodel, and a recogniser that has both, make the same LM."""
    tokens, model = pieces
    once = ["--max_epoch", "1"]
    main(command("point", "a", *once, "--token_list", tokens, "--bpemodel", model))
    recipe = tmp_path / "recipe" / "exp" / "asr"
    recipe.mkdir(parents=True)
    (tmp_path / "recipe" / "bpe.model").write_bytes(model.read_bytes())
    config = {"token_type": "bpe", "token_list": tokens.read_text().split("\n")[:-1]}
    (recipe / "config.yaml").write_text(yaml.safe_dump({**config, "bpemodel": "bpe.model"}))
    main(command("point", "b", *once, "--asr_exp", recipe))
    first, a, b = (load_lm(tmp_path / name) for name in ("first", "a", "b"))
    for lm in (a, b):
        assert lm.token_list == first.token_list and lm.token_type == "bpe"
        assert lm.score("a b c") == first.score("a b c")
    words = {"token_type": "word", "token_list": ["<blank>", "<unk>", "b", "a", "<sos/eos>"]}
    (recipe / "config.yaml").write_text(yaml.safe_dump(words))
    main(command("point", "words", *once, "--asr_exp", recipe))
    assert load_lm(tmp_path / "words").token_list == words["token_list"]
    for name in ("train.shape", "valid.shape"):
        expected = (tmp_path / "first/data" / name).read_text()
        assert (tmp_path / "a/data" / name).read_text() == expected
        assert (tmp_path / "b/data" / name).read_text() == expected


def test_tokens_that_were_given_are_given_again(pieces, command, tmp_path, fails):
    """Not taken for the words of the text."""
    tokens, model = pieces
    given = ["--token_list", tokens, "--bpemodel", model]
    main(command("point", "exp", "--max_epoch", "1", *given))
    before = (tmp_path / "exp/config.yaml").read_bytes()
    error = fails(main, command("point", "exp", "--max_epoch", "2"))
    assert "tokens.txt: holds other tokens than those asked for now" in error
    assert (tmp_path / "exp/config.yaml").read_bytes() == before
    main(command("point", "exp", "--max_epoch", "2", *given))
    assert load_lm(tmp_path / "exp").token_type == "bpe"


def test_an_lm_of_pieces_may_move(pieces, command, tmp_path, monkeypatch):
    """And is read from any folder: its config.yaml has the path of its model as it was."""
    score = load_lm(tmp_path / "first").score("a b c")
    monkeypatch.chdir(tmp_path)
    words = ["--token_type", "bpe", "--vocab_size", "20", "--max_epoch", "1"]
    relative = command("point", "second", *words)
    relative[relative.index("--exp") + 1] = "second"
    main(relative)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_lm(tmp_path / "second").score("a b c") == score
    (tmp_path / "first").rename(tmp_path / "moved")
    assert load_lm(tmp_path / "moved").score("a b c") == score
    # another LM where it was does not lend it its model
    main(command("point", "first", "--token_type", "bpe", "--vocab_size", "14", "--max_epoch", "1"))
    assert load_lm(tmp_path / "moved").score("a b c") == score
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "moved/data/bpe.model").unlink()
    with pytest.raises(InputError, match="its word-piece model is not there"):
        load_lm(tmp_path / "moved")


def test_a_long_line_has_its_part_in_the_pieces(command, tmp_path):
    with open(tmp_path / "train.txt", "a") as f:
        f.write("z " * 3000 + "\n")
    main(command("point", "exp", "--token_type", "bpe", "--vocab_size", "20", "--max_epoch", "1"))
    assert any("z" in token for token in load_lm(tmp_path / "exp").token_list[2:-1])


def test_tokens_that_cannot_be_used(pieces, command, tmp_path, refused):
    tokens, model = pieces
    command = command()
    lines = tokens.read_text().splitlines()
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*lines[:2], "qq", *lines[3:]]) + "\n")
    asr = tmp_path / "asr"
    asr.mkdir()

    tokens, both = ["--token_list", other], ["--token_list", other, "--bpemodel", model]
    for options, *said in (
        (both, f"not that of {model}", lines[2], "qq"),
        (["--bpemodel", model], "--asr_exp DIR"),
        ([*tokens, "--token_type", "bpe"], "Give --bpemodel"),
        ([*both, "--vocab_size", "9"], "has its own size"),
        ([*both, "--token_type", "char"], "--bpemodel with --token_type char"),
        ([*tokens, "--bpemodel", other], "cannot be read as a BPE model", other.name),
        ([*tokens, "--asr_exp", asr], "Leave out --token_list"),
    ):
        refused(main, [*command, *options], *said)
    gone = {"token_type": "bpe", "token_list": lines, "bpemodel": "gone.model"}
    for config, message in (
        ({"asr_conf": {}}, "--token_list and --bpemodel"),
        (gone, "gone.model is not there"),
    ):
        (asr / "config.yaml").write_text(yaml.safe_dump(config))
        refused(main, [*command, "--asr_exp", asr], message)


@pytest.mark.parametrize(
    "change, words",
    [
        (["--train_text", "missing.txt"], ["missing.txt", "cannot be read"]),
        (["--config", "missing.yaml"], ["missing.yaml", "cannot be read"]),
        (["--config", "bayes_ltsm"], ["bayes_ltsm: cannot be read", "Did you mean bayes_lstm"]),
        (["--token_type", "bpe", "--vocab_size", "100000"], ["sentencepiece", "--vocab_size"]),
        (["--vocab_size", "3"], ["--vocab_size 3", "no token beside the special ones"]),
        (["--train_text", "/dev/null"], ["/dev/null", "holds no sentence"]),
        (["--from", "missing"], ["missing", "found no"]),
        (["--from", "missing", "--token_type", "word"], ["Leave out --token_type"]),
    ],
)
def test_bad_input(command, tmp_path, fails, change, words):
    message = fails(main, command("point", "exp", *change))
    assert message.startswith("bayeslm train: error:")
    assert all(word in message for word in words) and ".. " not in message
    assert not list(tmp_path.glob("exp/*.pth"))


def test_kaldi_text_is_not_plain_text(command, tmp_path, fails):
    for part in ("train", "valid"):
        lines = (tmp_path / f"{part}.txt").read_text().splitlines()
        keyed = "".join(f"{part}-{n} {line}\n" for n, line in enumerate(lines))
        (tmp_path / f"{part}.txt").write_text(keyed)
    error = fails(main, command())
    assert "valid.txt: the first words of all lines are unknown and different" in error
    # nothing is in the way of the same text without them
    for part in ("train", "valid"):
        lines = (tmp_path / f"{part}.txt").read_text().splitlines()
        plain = "".join(f"{line.partition(' ')[2]}\n" for line in lines)
        (tmp_path / f"{part}.txt").write_text(plain)
    main(command("point", "exp", "--max_epoch", "1"))
    assert len(load_lm(tmp_path / "exp").token_list) == 13


def test_text_without_blanks_is_no_kaldi_text(command, tmp_path):
    """Lines of one long word, all different and none of them known, as in Chinese."""
    for part, first in (("train", 0x4E00), ("valid", 0x4E40)):
        lines = ["".join(chr(first + (n * m) % 61) for m in range(1, 9)) for n in range(1, 40)]
        (tmp_path / f"{part}.txt").write_text("\n".join(lines) + "\n")
    main(command("point", "exp", "--max_epoch", "1", "--token_type", "char"))
    assert load_lm(tmp_path / "exp").token_type == "char"


def test_signs_that_end_a_path_in_espnets_options(command, tmp_path, fails):
    assert "--exp with a `,`" in fails(main, command("point", "a,b"))
    main(command("point", "run: 1 #2", "--max_epoch", "1"))
    error = fails(main, command("bayes", "exp", "--from", tmp_path / "run: 1 #2"))
    assert "Rename the folder" in error and not (tmp_path / "exp").exists()
    (tmp_path / "run: 1 #2").rename(tmp_path / "run #2")
    main(command("bayes", "exp", "--max_epoch", "1", "--from", tmp_path / "run #2"))


def test_a_recipes_batches_need_no_other_option(command, tmp_path):
    folded = {**POINT, "batch_type": "folded"}
    (tmp_path / "folded.yaml").write_text(yaml.safe_dump(folded))
    main(command("folded", "exp", "--max_epoch", "1"))
    assert load_lm(tmp_path / "exp").score("a") < 0


def test_no_epoch_is_no_lm(command, fails):
    assert "no epoch was trained" in fails(main, command("point", "exp", "--max_epoch", "0"))


def test_cleaned_words_are_known(command, tmp_path):
    text = (tmp_path / "train.txt").read_text()
    (tmp_path / "train.txt").write_text(text.upper())
    main(command("point", "exp", "--max_epoch", "1", "--cleaner", "tacotron"))
    counted = yaml.safe_load((tmp_path / "exp/data/unknown_words.yaml").read_text())
    assert counted["left_out"] == 0


def test_what_unk_stands_for_is_counted(command, tmp_path):
    """Of the ten words of the text five are in the list: <unk> is the other five, and more."""
    main(command("point", "exp", "--vocab_size", "8", "--max_epoch", "1"))
    counted = yaml.safe_load((tmp_path / "exp/data/unknown_words.yaml").read_text())
    assert counted["left_out"] == 5
    once, twice = counted["seen_once"], counted["seen_twice"]
    unseen = once**2 / (2 * twice) if twice else once * (once - 1) / 2
    assert counted["unk_size"] == 5 + unseen
    lm = load_lm(tmp_path / "exp")
    assert lm.unk_size == counted["unk_size"]
    (component,) = load_components([tmp_path / "exp"], [])
    (whole,) = load_components([tmp_path / "exp"], [], unk_size=1)
    shared, plain = (c.scorer.word_scores([["zebra"]])[0] for c in (component, whole))
    shift = plain.log_probs - shared.log_probs
    assert shift.tolist() == pytest.approx([math.log(counted["unk_size"]), 0.0])
    assert lm.word_scores(["zebra"])[0].log_probs.tolist() == shared.log_probs.tolist()


def test_other_text_under_the_same_name(command, tmp_path, fails):
    main(command("point", "exp", "--max_epoch", "1"))
    (tmp_path / "train.txt").write_text("a b\n")
    assert "other text" in fails(main, command())


def test_other_tokens_leave_a_trained_lm_as_it_is(command, tmp_path, fails):
    main(command("point", "exp", "--max_epoch", "1"))
    before = {
        p: p.read_bytes() for p in (tmp_path / "exp").rglob("*") if p.suffix in (".yaml", ".txt")
    }
    error = fails(main, command("point", "exp", "--vocab_size", "8", "--max_epoch", "2"))
    assert "other tokens" in error
    assert all(path.read_bytes() == content for path, content in before.items())
    load_lm(tmp_path / "exp")


def test_text_with_special_tokens(command, tmp_path, fails):
    with open(tmp_path / "train.txt", "a") as f:
        f.write("a <unk> b\n")
    main(command("point", "exp", "--max_epoch", "1"))
    assert load_lm(tmp_path / "exp").token_list.count("<unk>") == 1
    (tmp_path / "train.txt").write_text("a b\na <sos/eos>\n")
    error = fails(main, command("point", "other"))
    assert f"{tmp_path}/train.txt:2: holds the special token <sos/eos>" in error
