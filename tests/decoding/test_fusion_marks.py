"""Fusion where some tokens are no text, a prompt comes first, and the end is not the last."""

import pytest
import torch
from test_fusion_lm import SENTENCES, expected_scores, sources  # noqa: F401
from test_fusion_search import SIZE
from tiny_training import words

from espnet_bayeslm.bin import ngram
from espnet_bayeslm.decoding.fusion_lm import FusionLM
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components

MARKS = ["<na>", "<deu>", "<eng>", "<asr>", "<notimestamps>", "<0.00>", "<1.50>", "<3.00>"]
PIECES = "▁so ▁we ▁could ▁p ut ▁it ▁the re ▁yes < >".split()  # noqa: SIM905
BYTES = ["▁", *(f"<0x{byte:02X}>" for byte in "yesé".encode())]
OWSM = ["<blank>", "<unk>", *MARKS, *PIECES, *BYTES, "<sos>", "<eos>", "<sop>"]
WHISPER = [
    *("!", "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|notimestamps|>"),
    *(piece.replace("▁", "Ġ") for piece in PIECES),
    *("<|0.00|>", "<|3.00|>", "<|startofprev|>"),
]
IDS = {
    "owsm": (OWSM, {"blank": 0, "sos": len(OWSM) - 3, "eos": len(OWSM) - 2}),
    "whisper": (WHISPER, {"blank": None, "sos": 2, "eos": 1}),
}
# Sort of tokens, tokens that a search begins with, tokens that it finds, and their text
CASES = [
    ("owsm", "<sos> <eng> <asr> <notimestamps>", "▁so ▁we ▁could ▁p ut", "so we could put"),
    ("owsm", "<sos> <eng> <asr>", "<0.00> ▁so ▁we <1.50> <1.50> ▁p ut <3.00>", "so we put"),
    ("owsm", "<sop> ▁it ▁so <sos> <eng> <asr> <notimestamps>", "▁yes ▁we", "yes we"),
    ("owsm", "<sos>", "<eng> <asr> ▁the <eng> re", "there"),
    ("owsm", "<sos> <eng> <asr> <notimestamps>", "▁ <0xC3> <0xA9> ▁yes", "é yes"),
    ("owsm", "<sos> <eng> <asr> <notimestamps>", "", ""),
    (
        "whisper",
        "<|startoftranscript|> <|en|> <|notimestamps|>",
        "Ġso ! Ġwe Ġcould",
        "so! we could",
    ),
    ("whisper", "<|startofprev|> Ġit <|startoftranscript|>", "<|0.00|> Ġyes <|3.00|>", "yes"),
]


def total(lm, primer, ids):
    """Return the sum of a search that begins with some tokens, and finds others."""
    found, states, sum_ = [*ids, lm.ids.eos], [None], 0.0
    for n, token in enumerate(found):
        prefix = torch.tensor([[*primer, *found[:n]]])
        row, states = lm.batch_score(prefix, states, None)
        sum_ += float(row[0, token])
    return sum_


@pytest.fixture(scope="module")
def fused(sources, tmp_path_factory):  # noqa: F811
    """Return a function: a sort of tokens, with a look-ahead or not -> a fusion of an n-gram."""
    folder = tmp_path_factory.mktemp("ahead")

    def build(sort, ahead, **options):
        tokens, ids = IDS[sort]
        given = {"components": sources["n-gram"] | {"max_oov_rate": 1.0}, "weights": [1.0]}
        if ahead:
            mark = "▁" if sort == "owsm" else "Ġ"
            lines = (" ".join(f"{mark}{word}" for word in text.split()) for text in SENTENCES)
            (folder / "text").write_text("\n".join([*lines, *tokens[2:], tokens[0]] * 3) + "\n")
            path = folder / f"{sort}.arpa"
            how = {"text": folder / "text", "order": 2, "discount_fallback": "true"}
            ngram.main(words(**how, arpa=path))
            given["ahead"] = [{"name": "a", "kind": "ngram", "weight": 1.0, "path": str(path)}]
        torch.manual_seed(1)
        return FusionLM(len(tokens), tokens, **given, ids=ids, end_margin=1e9, **options).eval()

    return build


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("sort, primer, found, text", CASES)
def test_a_finished_hypothesis_has_the_score_of_its_text(
    sort,
    primer,
    found,
    text,
    ahead,
    fused,
    sources,  # noqa: F811
):
    lm, tokens = fused(sort, ahead), IDS[sort][0]
    primer, ids = ([tokens.index(token) for token in x.split()] for x in (primer, found))
    assert [*lm.payments.words([*primer[primer.index(lm.sos) :], *ids])] == text.split()
    components = load_components(ComponentOptions(**sources["n-gram"], max_oov_rate=1.0))
    (value,) = expected_scores(components, [1.0], [text.split()])
    assert total(lm, primer, ids) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("sort", IDS)
def test_the_blank_and_marks(sort, fused):
    """A blank never comes; a mark costs what is due, whatever the look-ahead knows of it."""
    lm, (tokens, ids) = fused(sort, True), IDS[sort]
    row, _ = lm.batch_score(torch.tensor([[ids["sos"]]]), [None], None)
    marks = [n for n, text in enumerate(TokenWords(tokens).is_text) if not text]
    marks = [n for n in marks if n not in (ids["blank"], ids["eos"])]
    assert (row[0, marks] == 0).all() and len(marks) > 5
    never = [n for n, score in enumerate(row[0].tolist()) if score == -torch.inf]
    assert never == [0] * (sort == "owsm")
    assert tokens[0] == "<blank>" or row[0, 0] < 0


def test_ctc_hears_no_marks(fused):
    lm, encoded = fused("owsm", False, ctc_features=SIZE), torch.randn(1, 9, SIZE)
    torch.nn.init.normal_(lm.ctc.projection.weight)
    primer = [OWSM.index(token) for token in "<sos> <eng> <asr>".split()]  # noqa: SIM905
    heard = []
    for spoken in ("<0.00> ▁so ▁we <3.00>", "▁so ▁we"):
        ids, states = [OWSM.index(token) for token in spoken.split()], [None]
        for n in range(len(ids) + 1):
            _, states = lm.batch_score(torch.tensor([[*primer, *ids[:n]]]), states, encoded)
        heard.append(states[0].heard)
    assert heard[0].tokens == heard[1].tokens == tuple(ids)
    assert heard[0].end_log_prob == heard[1].end_log_prob


@pytest.mark.parametrize(
    "sign, is_text", [("<notimestamps>", False), ("<other>", True), ("<|notimestamps|>", True)]
)
def test_names_in_angles_are_marks_beside_those_of_owsm(sign, is_text):
    """Else they are words, such as a noise that a recogniser writes."""
    words = TokenWords(["<blank>", sign, "<noise>", "<0xC3>", "<", "▁so", "<sos/eos>"])
    assert words.is_text == [False, sign == "<other>", is_text, True, True, True, False]
    assert words.words([5, 2]) == ["so<noise>" if is_text else "so"]
