"""An n-gram over a whole vocabulary says what KenLM says, word by word and bit for bit."""

import bz2
import copy
import gzip
import lzma
import math
import pickle
import random
from pathlib import Path

import kenlm
import numpy as np
import pytest
import torch
from oracles.ngrams import read_arpa
from search_contract import SearchContract, walk

from espnet_bayeslm.lm import ngram as ngram_module
from espnet_bayeslm.lm.ngram import ArpaTable, KenlmTable, NgramLM
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import unpacked_file

ROOT = Path(__file__).parents[1]
DATA = ROOT / "ngram" / "data"
LN_10 = math.log(10.0)
OTHERS = ["gnu", "yak"]


def write_arpa(path, entries, *, end="\n"):
    """Write pairs (n-gram, (log10 p, log10 back-off or None)) as an ARPA file."""
    highest = max(len(ngram) for ngram, _ in entries)
    orders = [[e for e in entries if len(e[0]) == k] for k in range(1, highest + 1)]
    lines = ["\\data\\", *(f"ngram {k}={len(order)}" for k, order in enumerate(orders, 1))]
    for k, order in enumerate(orders, 1):
        lines += ["", f"\\{k}-grams:"]
        for ngram, (prob, backoff) in order:
            columns = [f"{prob:.7g}", " ".join(ngram)]
            lines.append("\t".join(columns if backoff is None else [*columns, f"{backoff:.7g}"]))
    path.write_bytes((end.join([*lines, "", "\\end\\"]) + end).encode())
    return path


def pruned(entries, rng, *, share):
    """Leave out n-grams, never one that is the context of another, as SRILM's pruning does."""
    kept = {}
    for ngram in sorted(entries, key=len, reverse=True):
        is_context = any(longer[:-1] == ngram for longer in kept)
        if len(ngram) == 1 or is_context or rng.random() > share:
            kept[ngram] = entries[ngram]
    return dict(sorted(kept.items(), key=lambda item: len(item[0])))


@pytest.fixture(scope="module")
def arpas(tmp_path_factory):
    """Return the ARPA files by name: of lmplz, of our estimator, and odd ones."""
    folder = tmp_path_factory.mktemp("arpas")
    paths = {f"lmplz {k}": folder / f"reference_{k}.arpa" for k in (1, 2, 3, 4)}
    for path in paths.values():  # KenLM's wheels read no packed files
        path.write_bytes(gzip.decompress((DATA / f"{path.name}.gz").read_bytes()))
    paths["own 5"] = folder / "own.5g.arpa"
    build_ngram(DATA / "reference.txt", paths["own 5"], order=5, lmplz="none")
    entries, rng = read_arpa(paths["own 5"]), random.Random(1)
    few = pruned(entries, rng, share=0.7)
    paths["pruned 5"] = write_arpa(folder / "pruned.arpa", few.items())
    paths["windows"] = write_arpa(folder / "windows.arpa", few.items(), end="\r\n")
    words = [ngram[0] for ngram in entries if len(ngram) == 1 and ngram[0] not in ("<unk>", "</s>")]
    # the unknown word with a history and as one
    unknown = {
        ("<unk>",): (-2.1, -0.31),
        **{("<unk>", word): (-rng.random(), -rng.random()) for word in words[:9] if word != "<s>"},
        **{(word, "<unk>"): (-rng.random(), -rng.random()) for word in words[5:30]},
        **{(words[6], "<unk>", word): (-rng.random(), -0.2) for word in words[7:9]},
    }
    few.update(unknown)
    paths["unknown in contexts"] = write_arpa(folder / "unk.arpa", few.items())
    capital = {tuple("<UNK>" if w == "<unk>" else w for w in k): v for k, v in few.items()}
    paths["<UNK>"] = write_arpa(folder / "capital.arpa", capital.items())
    none = {ngram: value for ngram, value in entries.items() if "<unk>" not in ngram}
    paths["no <unk>"] = write_arpa(folder / "none.arpa", none.items())
    again = [(ngram, (p - 1, b)) for ngram, (p, b) in entries.items() if len(ngram) == 3]
    paths["trigrams twice"] = write_arpa(folder / "twice.arpa", [*entries.items(), *again])
    return paths


ARPAS = [
    *["lmplz 1", "lmplz 2", "lmplz 3", "lmplz 4", "own 5", "pruned 5", "windows"],
    *["unknown in contexts", "<UNK>", "no <unk>", "trigrams twice"],
]


def tokens_of(path, *, share=1.0, others=OTHERS):
    """Return an ESPnet token list of (a share of) the words of an n-gram, and others."""
    words = sorted({ngram[0] for ngram in read_arpa(path) if len(ngram) == 1})
    words = [w for w in words if w not in ("<s>", "</s>", "<unk>", "<UNK>")]
    random.Random(0).shuffle(words)
    words = words[: round(share * len(words))]
    return ["<blank>", "<unk>", *words, *others, "<sos/eos>"]


def sentences(tokens, path, rng, *, number=25):
    """Return ids of sentences, in part those of the training text."""
    known = {token: i for i, token in enumerate(tokens)}
    lines = (DATA / "reference.txt").read_text().splitlines()
    found = [[known.get(word, 1) for word in line.split()] for line in rng.sample(lines, number)]
    return [ids[rng.randrange(3) :] for ids in found] + [
        [rng.randrange(1, len(tokens) - 1) for _ in range(rng.randrange(8))] for _ in range(number)
    ]


def make(path, **options):
    tokens = tokens_of(path, **options)
    return NgramLM(str(path), tokens).double().eval(), tokens


@pytest.mark.parametrize("name", ARPAS)
def test_equals_kenlm(arpas, name):
    lm, tokens = make(arpas[name])
    # KenLM reads no unigrams alone
    with unpacked_file(arpas[name]) as plain:  # a kenlm may be without gzip
        model = name != "lmplz 1" and kenlm.Model(str(plain))
    for row in sentences(tokens, arpas[name], random.Random(3)):
        words = [tokens[i] for i in row]
        if model:
            expected = [log10 * LN_10 for log10, *_ in model.full_scores(" ".join(words))]
        else:
            expected = NgramScorer(arpas[name]).word_scores([words])[0].log_probs
        sos = lm.vocab_size - 1
        log_probs = lm(torch.tensor([[sos, *row]]), None)[0][0]
        np.testing.assert_array_equal(log_probs[range(len(row) + 1), [*row, sos]], expected)


@pytest.mark.parametrize("name", ["own 5", "unknown in contexts", "no <unk>"])
class TestSearch(SearchContract):
    atol = 0.0

    @pytest.fixture
    def lm(self, arpas, name):
        return make(arpas[name])[0]

    def test_blank_is_excluded(self, lm):
        for _, scores in walk(lm, random.Random(5), length=9):
            assert (scores[:, 0] == -math.inf).all()


def test_teacher_forcing_goes_on_from_a_state(arpas):
    lm, _ = make(arpas["lmplz 4"])
    ids = torch.randint(1, lm.vocab_size - 1, (3, 9))
    whole, end = lm(ids, None)
    first, state = lm(ids[:, :4], None)
    second, last = lm(ids[:, 4:], state)
    assert torch.equal(torch.cat([first, second], 1), whole) and last == end


@pytest.mark.parametrize("kind", ["probing", "trie"])
def test_kenlm_binaries(kind):
    """`build_binary KIND` of KenLM made them of the ARPA file."""
    arpa = DATA / "tiny_fallback_3.arpa.gz"
    tokens = tokens_of(arpa)
    binary = Path(__file__).parent / "data" / f"tiny_3.{kind}.bin"
    lms = [NgramLM(path, tokens).double() for path in (binary, arpa)]
    assert [type(lm._table) for lm in lms] == [KenlmTable, ArpaTable]
    assert lms[0].unknown == lms[1].unknown == OTHERS
    ids = torch.randint(1, len(tokens) - 1, (20, 6))
    ids[:, 0] = len(tokens) - 1
    assert torch.equal(lms[0](ids)[0], lms[1](ids)[0])


@pytest.mark.parametrize("opener", [gzip.open, bz2.open, lzma.open])
def test_packed_files(arpas, opener, tmp_path):
    with opener(tmp_path / "packed", "wb") as f:
        f.write(arpas["pruned 5"].read_bytes())
    tokens = tokens_of(arpas["pruned 5"])
    ids = torch.randint(1, len(tokens), (3, 7))
    found, expected = (NgramLM(p, tokens)(ids)[0] for p in (tmp_path / "packed", arpas["pruned 5"]))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("table", [ArpaTable, KenlmTable])
def test_copies_types_and_checkpoints(arpas, monkeypatch, table):
    monkeypatch.setattr(ngram_module, "load_table", table)
    lm, _ = make(arpas["lmplz 3"])
    ids = torch.randint(1, lm.vocab_size, (2, 6))
    expected = lm.batch_score(ids, [None, None], None)[0]
    for other in (copy.deepcopy(lm), pickle.loads(pickle.dumps(lm))):
        assert torch.equal(other.batch_score(ids, [None, None], None)[0], expected)
    assert not lm.state_dict() and not list(lm.parameters())
    lm.load_state_dict({}, strict=True)
    for dtype in (torch.float32, torch.float64):
        scores = lm.to(dtype).batch_score(ids, [None, None], None)[0]
        assert scores.dtype == dtype and torch.equal(scores, expected.to(dtype))


def test_few_contexts_are_kept(arpas):
    lm, _ = make(arpas["lmplz 4"])
    few, _ = make(arpas["lmplz 4"])
    few._max_rows = 3
    for _ in range(4):
        ids = torch.randint(1, lm.vocab_size - 1, (3, 8))
        assert torch.equal(few(ids)[0], lm(ids)[0])
        assert len(few._rows) <= 3
    assert len(lm._rows) > 3


@pytest.mark.parametrize("cut", [False, True])
def test_binaries_that_cannot_be_read(tmp_path, cut):
    content = b"mmap lm http://kheafield.com/code format version 5\n\0"
    packed = (DATA / "reference_3.arpa.gz").read_bytes()
    (tmp_path / "n").write_bytes(packed[:3000] if cut else content)
    with pytest.raises(InputError, match=r"n: (not an n-gram that KenLM can|cannot be) read"):
        NgramLM(tmp_path / "n", ["<blank>", "<unk>", "a", "<sos/eos>"])


@pytest.mark.parametrize("name", ["lmplz 1", "lmplz 3"])
def test_an_ngram_over_other_tokens(arpas, name):
    tokens = tokens_of(arpas[name], others=[])
    with pytest.raises(InputError, match=r"does not know (\d+) of the \1 tokens .*'▁"):
        NgramLM(arpas[name], [*tokens[:2], *("▁" + t for t in tokens[2:-1]), tokens[-1]])
    lm = NgramLM(arpas[name], [*tokens[:-1], *OTHERS, tokens[-1]])
    assert lm.unknown == OTHERS
