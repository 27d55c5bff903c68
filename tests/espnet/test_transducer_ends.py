"""The last word in transducers' searches: paid apart, where a search has no token of the end."""

import logging

import models
import pytest
import torch
from test_other_tokens import TEXT, expected, fusion, text  # noqa: F401
from tiny_training import words

from espnet_bayeslm import speech2text
from espnet_bayeslm.bin import ngram

TOKENS = ["<blank>", "<unk>", *dict.fromkeys(TEXT.split()), "<sos/eos>"]
LM_WEIGHT = 0.3


@pytest.fixture(scope="module")
def files(text, tmp_path_factory):  # noqa: F811
    """Return files of a transducer of random weights, and of a fusion."""
    folder = tmp_path_factory.mktemp("transducer")
    config = {k: v for k, v in models.TRANSDUCER.items() if k != "freeze_param"}
    asr = models.write_recogniser(folder / "exp", TOKENS, config)
    state = torch.load(asr / "valid.acc.ave.pth")
    state["joint_network.lin_out.bias"][0] -= 3  # blanks are less likely
    torch.save(state, asr / "valid.acc.ave.pth")
    how = {"text": text, "asr_exp": asr, "order": 2, "discount_fallback": "true"}
    ngram.main(words(**how, arpa=folder / "tokens.arpa"))
    found = models.files_of("lm", fusion(asr, text, folder, ahead=folder / "tokens.arpa"))
    found |= models.files_of("asr", asr)
    return found | {"asr_model_file": f"{asr}/valid.acc.ave.pth"}


def searched(files, name, monkeypatch):
    """Return hypotheses of a search as tokens and score, before their ends are paid and after."""
    from espnet2.asr.transducer.beam_search_transducer import BeamSearchTransducer

    before, after, sort = [], [], BeamSearchTransducer.sort_nbest

    def watched(sort, found):
        def sort_nbest(*arguments):
            found.extend((tuple(hyp.yseq), float(hyp.score)) for hyp in arguments[-1])
            return sort(*arguments)

        return sort_nbest

    monkeypatch.setattr(BeamSearchTransducer, "sort_nbest", watched(sort, after))
    options = {"search_type": name, "nbest": 5, **({"max_sym_exp": 3} if name == "tsd" else {})}
    decode = speech2text(
        **files, lm_weight=LM_WEIGHT, beam_size=5, nbest=5, transducer_conf=options
    )
    search = decode.beam_search_transducer
    search.sort_nbest = watched(search.sort_nbest, before)
    torch.manual_seed(1)
    decode(torch.randn(6000) * 0.1)
    return search.lm, before, after


def paid_within(lm, ids):
    """Return what the search has paid for some tokens."""
    sequence, states, total = [len(TOKENS) - 1, *ids], [None], 0.0
    for n, token in enumerate(ids, 1):
        row, states = lm.batch_score(torch.tensor([sequence[:n]]), states, None)
        total += float(row[0, token])
    return total


@pytest.mark.parametrize("name", ["default", "tsd"])
def test_the_end_pays_what_the_search_has_not_paid(name, files, text, monkeypatch):  # noqa: F811
    lm, before, after = searched(files, name, monkeypatch)
    assert [ids for ids, _ in before] == [ids for ids, _ in after]
    texts = [[TOKENS[token] for token in ids[1:]] for ids, _ in before]
    assert len(texts) > 4 and max(map(len, texts)) > 0
    for (ids, score), (_, with_end), value in zip(
        before, after, expected(text, texts), strict=True
    ):
        rest = value - paid_within(lm, ids[1:])
        assert rest < -0.5
        assert with_end - score == pytest.approx(LM_WEIGHT * rest, abs=1e-4)


def test_it_is_said_where_no_end_is_paid(files, caplog):
    with caplog.at_level(logging.WARNING):
        how = {"transducer_conf": {"search_type": "nsc", "nstep": 2}, "lm_weight": LM_WEIGHT}
        speech2text(**files, **how, beam_size=5)(torch.randn(4000) * 0.1)
    assert "Searches alsd, nsc and maes pay no last word" in caplog.text
    caplog.clear()
    from espnet2.bin.asr_inference import Speech2Text

    with caplog.at_level(logging.WARNING):
        decode = Speech2Text(**files, lm_weight=LM_WEIGHT, beam_size=3)
        for _ in range(2):
            decode(torch.randn(3000) * 0.1)
    assert caplog.text.count("has no end of a sentence") == 1
