"""Programs that import pyctcdecode by themselves: transformers' processor with an LM."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from espnet_bayeslm.decoding import build_ctcdecoder, in_place_of_pyctcdecode
from espnet_bayeslm.ngram.estimation import build_ngram

sys.path.insert(0, str(Path(__file__).parent))

from test_ctc_search import TEXTS, spoken

TOKENS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ab"]


@pytest.fixture
def stand_in(monkeypatch):
    """Ours in place of pyctcdecode, until the test ends."""
    for name in [name for name in sys.modules if name.split(".")[0] == "pyctcdecode"]:
        monkeypatch.delitem(sys.modules, name)
    in_place_of_pyctcdecode()
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "pyctcdecode"]:
        del sys.modules[name]


def test_names_of_pyctcdecode(stand_in):
    import pyctcdecode
    from pyctcdecode.constants import DEFAULT_BEAM_WIDTH

    assert pyctcdecode.build_ctcdecoder is build_ctcdecoder and DEFAULT_BEAM_WIDTH == 100
    for name in ("Alphabet", "BeamSearchDecoderCTC", "LanguageModel"):
        assert getattr(pyctcdecode, name).__module__.startswith("espnet_bayeslm.")


def test_the_processor_with_an_lm_of_transformers(stand_in, tmp_path):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "Wav2Vec2ProcessorWithLM"):
        pytest.skip("transformers has no Wav2Vec2ProcessorWithLM any more")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in TEXTS))
    build_ngram(tmp_path / "text", tmp_path / "3.arpa", order=3, discount_fallback=True)
    (tmp_path / "vocab.json").write_text(json.dumps({t: n for n, t in enumerate(TOKENS)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))
    labels = dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    decoder = build_ctcdecoder(labels, tmp_path / "3.arpa", alpha=0.4)
    made = transformers.Wav2Vec2ProcessorWithLM(
        transformers.Wav2Vec2FeatureExtractor(), tokenizer, decoder
    )
    made.save_pretrained(tmp_path / "saved")
    read = transformers.Wav2Vec2ProcessorWithLM.from_pretrained(tmp_path / "saved")
    texts = ["ab a bb", "a a b"]
    batch = [spoken(text, TOKENS, margin=12.0) for text in texts]
    padded = [np.pad(x, ((0, 21 - len(x)), (0, 0)), constant_values=-100.0) for x in batch]
    for processor in (made, read):
        one = processor.decode(batch[0], output_word_offsets=True)
        assert one.text == texts[0]
        assert one.word_offsets[1] == {"word": "a", "start_offset": 11, "end_offset": 12}
        found = processor.batch_decode(np.stack(padded), num_processes=2, output_word_offsets=True)
        assert found.text == texts and found.word_offsets[0] == one.word_offsets
        best = decoder.decode_beams(batch[0])[0]
        assert (one.logit_score, one.lm_score) == pytest.approx((best.logit_score, best.lm_score))
    changed = read.decode(batch[0], alpha=0.0, beta=0.0)
    assert changed.lm_score == pytest.approx(changed.logit_score)
