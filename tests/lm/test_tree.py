"""Every LM over prefix trees against its forward pass."""

import pytest
import torch
from lm_cases import CASES, LSTM, RANDOM, TRANSFORMER, VOCAB, build, make_generic
from lm_cases import name as case_name

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.lm.tree import build_tree

EOS = VOCAB - 1


def sequences():
    """Return sequences with many common prefixes, in groups, sorted."""
    texts = {tuple(torch.randint(1, 4, (int(n),)).tolist()) for n in torch.randint(0, 7, (50,))}
    texts = sorted({*texts, (), (5,) * 12})
    return [texts[:12], texts[12:13], texts[13:]]


def assert_equals_forward(lm, groups, **tolerance):
    tree, paths = build_tree(groups, EOS)
    logits = lm.decoder(lm.tree_outputs(tree))
    prefixes = [{ids[:k] for ids in group for k in range(len(ids) + 1)} for group in groups]
    assert len(logits) == len(tree) == sum(map(len, prefixes))
    texts = [torch.tensor([EOS, *ids]) for group in groups for ids in group]
    expected = lm(torch.nn.utils.rnn.pad_sequence(texts, batch_first=True))[0]
    for row, path in zip(expected, paths, strict=True):
        found = logits[torch.from_numpy(path)]
        torch.testing.assert_close(found, row[: len(path)], rtol=0, **tolerance)


@pytest.mark.parametrize("case", CASES, ids=map(case_name, CASES))
@torch.inference_mode()
def test_each_node_has_the_output_of_its_prefix(case):
    assert_equals_forward(make_generic(build(case)).eval(), sequences(), atol=1e-9)


@pytest.mark.parametrize("case", RANDOM, ids=map(case_name, RANDOM))
@torch.inference_mode()
def test_each_node_has_the_output_of_its_prefix_in_a_held_draw(case):
    lm = make_generic(build(case)).eval()
    with lm.sampled(2):
        assert_equals_forward(lm, sequences(), atol=1e-9)


@pytest.mark.parametrize("dtype, atol", [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize(
    "sizes", [LSTM | dict(unit=256), TRANSFORMER | dict(att_unit=256, unit=300)]
)
@torch.inference_mode()
def test_widths_at_which_weights_are_packed(sizes, dtype, atol):
    """Tiny LMs never reach the packed products."""
    cls = BayesLSTMLM if "nlayers" in sizes else BayesTransformerLM
    lm = build((cls, sizes, {})).to(dtype).eval()
    groups = [sorted({tuple(torch.randint(1, EOS, (6,)).tolist()) for _ in range(150)})]
    assert_equals_forward(lm, groups, atol=atol)
