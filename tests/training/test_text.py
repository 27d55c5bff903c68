"""Plain text to keyed text, token list and statistics, as ESPnet's own programs make them."""

import re

import pytest
import yaml
from espnet2.bin import tokenize_text
from tiny_training import training, words

from espnet_bayeslm.training import text
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.training.text import Tokens, given_tokens
from espnet_bayeslm.training.train_options import TokenOptions
from espnet_bayeslm.utils.errors import InputError


@pytest.fixture
def texts(plain_text, tmp_path):
    for part in ("train", "valid"):
        (tmp_path / f"{part}.txt").write_text((plain_text / f"{part}.txt").read_text() + "\n")
    return tmp_path / "train.txt", tmp_path / "valid.txt"


@pytest.fixture
def prepare(texts, tmp_path):
    """Return a function: folder, options of tokens -> tokens as a training would read them."""

    def run(name="data", *, cleaner=None, **options):
        wanted = TokenOptions(**options)
        reading = {"cleaner": cleaner, "non_linguistic_symbols": None}
        given = given_tokens(wanted)
        found = text.prepare(texts, tmp_path / name, wanted=wanted, given=given, reading=reading)
        lines = (tmp_path / name / "tokens.txt").read_text().splitlines()
        assert found["token_list"] == f"{tmp_path}/{name}/tokens.txt"
        return Tokens(found["token_type"], lines, found.get("bpemodel"))

    return run


def shapes(folder, part):
    return (folder / f"{part}.shape").read_text().splitlines()


@pytest.mark.parametrize("token_type, vocab_size", [("bpe", 20), ("char", 40), ("word", 7)])
def test_token_types(prepare, token_type, vocab_size):
    found = prepare(token_type=token_type, vocab_size=vocab_size)
    assert found.token_type == token_type and len(found.tokens) <= vocab_size
    assert found.tokens[:2] == ["<blank>", "<unk>"] and found.tokens[-1] == "<sos/eos>"
    cut = found.cutter({"cleaner": None, "non_linguistic_symbols": None})("a b c")
    spelt = "".join(cut).replace("▁", " ").replace("<space>", " ").split()
    assert spelt in (["a", "b", "c"], ["abc"])
    assert set(cut) <= {*found.tokens[2:-1], "a", "b", "c"}


@pytest.mark.parametrize("token_type, cleaner", [("word", None), ("char", "jaconv")])
def test_tokens_and_statistics_are_espnets(prepare, texts, tmp_path, token_type, cleaner):
    """ESPnet's tokenize_text gives the same list, its --collect_stats the same lengths."""
    with open(texts[0], "a") as f:
        f.write("ｂ ａ a　b\n")
    prepare(token_type=token_type, vocab_size=9, cleaner=cleaner)
    data, reading = tmp_path / "data", ["--token_type", token_type]
    reading += [] if cleaner is None else ["--cleaner", cleaner]
    files = dict(input=data / "train.txt", output=tmp_path / "tokens", field="2-")
    special = ["<blank>:0", "<unk>:1", "<sos/eos>:-1"]
    vocabulary = dict(write_vocabulary="true", vocabulary_size=9, add_symbol=special)
    tokenize_text.main([*reading, *words(**files, **vocabulary)])
    assert (data / "tokens.txt").read_text() == (tmp_path / "tokens").read_text()
    collect = training(data, tmp_path / "stats", *reading, "--collect_stats", "true")
    BayesLMTask.main(cmd=collect)
    for part in ("train", "valid"):
        expected = (tmp_path / "stats" / part / "text_shape").read_text().splitlines()
        assert shapes(data, part) == [f"{line},9" for line in expected]


@pytest.mark.parametrize(
    "more, valid, kept, said",
    [
        ("", "a b\na zebra\nb c\n", [1, 3], "1 of 3 sentences have tokens that .*: left out"),
        # or none would be left
        ("", "a zebra\n", [1], "1 of 1 sentences have tokens that .*: the best epoch is chosen"),
        ("a <unk>\n", "a b\na zebra\nb c\n", [1, 2, 3], None),
    ],
    ids=["some", "all", "<unk> is trained"],
)
def test_validation_is_on_known_words_where_unk_is_not_trained(
    prepare, texts, tmp_path, caplog, more, valid, kept, said
):
    with open(texts[0], "a") as f:
        f.write(more)
    texts[1].write_text(valid)
    prepare()
    utts = [line.split()[0] for line in shapes(tmp_path / "data", "valid")]
    assert utts == [f"valid-{number:09d}" for number in kept]
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == (said is not None) and all(re.search(said, line) for line in warned)


def test_what_was_made_of_the_same_text_is_kept(prepare, texts, monkeypatch):
    made = prepare("point/data", token_type="bpe", vocab_size=20)

    def again(*args, **kwargs):
        raise AssertionError("made again")

    for name in ("write_counts", "made_tokens"):
        monkeypatch.setattr(text, name, again)
    assert prepare("point/data", token_type="bpe", vocab_size=20) == made
    # of another validation text they are not
    texts[1].write_text("a b c\n")
    with pytest.raises(AssertionError, match="made again"):
        prepare("new/data", token_type="bpe", vocab_size=20)


@pytest.fixture
def pieces(prepare):
    """Return tokens of word pieces, of the folder `first`."""
    return prepare("first", token_type="bpe", vocab_size=20)


def test_given_tokens(pieces, prepare, tmp_path):
    """--token_list and --bpemodel, and a recogniser that has both, are the same tokens."""
    recipe = tmp_path / "recipe" / "exp" / "asr"
    recipe.mkdir(parents=True)
    (tmp_path / "recipe" / "bpe.model").write_bytes((tmp_path / "first" / "bpe.model").read_bytes())
    config = {"token_type": "bpe", "token_list": pieces.tokens, "bpemodel": "bpe.model"}
    (recipe / "config.yaml").write_text(yaml.safe_dump(config))
    given = {"token_list": tmp_path / "first" / "tokens.txt", "bpemodel": pieces.bpemodel}
    for name, options in (("files", given), ("recogniser", {"asr_exp": recipe})):
        found = prepare(name, **options)
        assert found[:2] == pieces[:2] and found.bpemodel.endswith("bpe.model")
        for part in ("train", "valid"):
            assert shapes(tmp_path / name, part) == shapes(tmp_path / "first", part)
    words = {"token_type": "word", "token_list": ["<blank>", "<unk>", "b", "a", "<sos/eos>"]}
    (recipe / "config.yaml").write_text(yaml.safe_dump(words))
    assert prepare("words", asr_exp=recipe) == Tokens("word", words["token_list"])


def test_tokens_that_were_given_are_given_again(pieces, prepare, tmp_path):
    """Not taken for the words of the text."""
    given = {"token_list": tmp_path / "first" / "tokens.txt", "bpemodel": pieces.bpemodel}
    prepare(**given)
    with pytest.raises(InputError, match=r"tokens\.txt: holds other tokens than those asked for"):
        prepare()
    assert prepare(**given).token_type == "bpe"


def test_tokens_that_cannot_be_used(pieces, prepare, tmp_path):
    lines, model, other = pieces.tokens, pieces.bpemodel, tmp_path / "other.txt"
    other.write_text("\n".join([*lines[:2], "qq", *lines[3:]]) + "\n")
    # one token too many, or too few
    more, fewer = tmp_path / "more.txt", tmp_path / "fewer.txt"
    more.write_text("\n".join([*lines[:-1], "qq", lines[-1]]) + "\n")
    fewer.write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    asr = tmp_path / "asr"
    asr.mkdir()
    listed, both = {"token_list": other}, {"token_list": other, "bpemodel": model}
    for options, *said in (
        (both, f"not that of {model}", lines[2], "qq"),
        ({**both, "token_list": more}, "0 of its", "1 tokens of the list"),
        ({**both, "token_list": fewer}, "1 of its", "0 tokens of the list"),
        ({"bpemodel": model}, "--asr_exp DIR"),
        ({**listed, "token_type": "bpe"}, "Give --bpemodel"),
        ({**both, "vocab_size": 9}, "has its own size"),
        ({**both, "token_type": "char"}, "--bpemodel with --token_type char"),
        ({**listed, "bpemodel": other}, "cannot be read as a BPE model", other.name),
        ({**listed, "asr_exp": asr}, "Leave out --token_list"),
        ({"token_type": "bpe", "vocab_size": 10**5}, "sentencepiece", "--vocab_size"),
        ({"vocab_size": 3}, "--vocab_size 3", "no token beside the special ones"),
        ({"source": tmp_path / "missing"}, "missing", "found no"),
        ({"source": tmp_path, "token_type": "word"}, "Leave out --token_type"),
    ):
        with pytest.raises(InputError) as error:
            prepare(**options)
        assert all(words in str(error.value) for words in said), error
    gone = {"token_type": "bpe", "token_list": lines, "bpemodel": "gone.model"}
    for config, message in (
        ({"asr_conf": {}}, "--token_list and --bpemodel"),
        (gone, "gone.model is not there"),
    ):
        (asr / "config.yaml").write_text(yaml.safe_dump(config))
        with pytest.raises(InputError, match=message):
            prepare(asr_exp=asr)


def test_kaldi_text_is_not_plain_text(prepare, texts):
    plain = [path.read_text().splitlines() for path in texts]
    for path, lines in zip(texts, plain, strict=True):
        path.write_text("".join(f"{path.stem}-{n} {line}\n" for n, line in enumerate(lines)))
    message = r"valid\.txt: the first words of all lines are unknown and different"
    with pytest.raises(InputError, match=message):
        prepare()
    train, valid = texts
    train.write_text("".join(f"u{n} {plain[0][0]}\n" for n in range(100)))
    valid.write_text("\n".join(plain[1]) + "\n")
    with pytest.raises(InputError, match=r"train\.txt: the first words of all lines"):
        prepare()
    # nothing is in the way of the same text without them
    for path, lines in zip(texts, plain, strict=True):
        path.write_text("\n".join(lines) + "\n")
    assert len(prepare().tokens) == 13


def test_what_unk_stands_for_is_counted(prepare, tmp_path):
    """Of the ten words of the text five are in the list: <unk> is the other five, and more."""
    prepare(vocab_size=8)
    counted = yaml.safe_load((tmp_path / "data" / "unknown_words.yaml").read_text())
    assert counted["left_out"] == 5
    once, twice = counted["seen_once"], counted["seen_twice"]
    unseen = once**2 / (2 * twice) if twice else once * (once - 1) / 2
    assert counted["unk_size"] == 5 + unseen


def test_other_text_or_tokens_leave_what_is_there(prepare, texts, tmp_path):
    prepare()
    before = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    with pytest.raises(InputError, match="other tokens"):
        prepare(vocab_size=8)
    texts[0].write_text("a b\n")
    with pytest.raises(InputError, match="other text"):
        prepare()
    assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before


@pytest.mark.parametrize(
    "content, message",
    [
        (None, r"train\.txt: cannot be read"),
        ("\n", r"train\.txt: holds no sentence"),
        ("a b\na <sos/eos>\n", r"train\.txt:2: holds the special token <sos/eos>"),
    ],
)
def test_text_that_cannot_be_used(prepare, texts, content, message):
    texts[0].unlink()
    if content is not None:
        texts[0].write_text(content)
    with pytest.raises(InputError, match=message):
        prepare()


@pytest.mark.parametrize("given, expected", [(None, 5000), (300, 300)])
def test_a_bpe_model_has_as_many_pieces_as_espnets_recipes_train(
    tmp_path, monkeypatch, given, expected
):
    sizes = []
    monkeypatch.setattr(
        text, "_trained_pieces", lambda _, size: (sizes.append(size), (["a"], b""))[1]
    )
    made = text.made_tokens(tmp_path, TokenOptions(token_type="bpe", vocab_size=given), {})
    assert sizes == [expected] and "a" in made.tokens
