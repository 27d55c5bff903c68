"""Products: large ones and those of packed weights are oneDNN's."""

import pytest
import torch
import torch.nn.functional as F

from espnet_bayeslm.kernels import product
from espnet_bayeslm.kernels.product import Contents, linear, multiply

# (rows, in, out): the last is large enough for oneDNN
SIZES = [(3, 4, 8), (64, 256, 300), (96, 1024, 3000)]


@pytest.fixture
def onednn_calls(monkeypatch):
    """Counts the products that are large enough."""
    calls = []

    def has_onednn(dtype):
        calls.append(dtype)
        return dtype == torch.float32

    monkeypatch.setattr(product, "has_onednn", has_onednn)
    return calls


@pytest.mark.parametrize("sizes", SIZES)
def test_a_product_of_transposed_matrices(sizes, onednn_calls):
    torch.manual_seed(0)
    rows, inner, columns = sizes
    a, b = torch.randn(rows, inner), torch.randn(columns, inner)
    expected = a.double() @ b.double().t()
    for first in (a, a.t().contiguous().t()):
        for second in (b, b.t().contiguous().t()):
            found = multiply(first, second)
            assert found.is_contiguous()
            torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)
    assert len(onednn_calls) == (4 if sizes == SIZES[-1] else 0)


WRITES = {
    "in place": lambda w: w.mul_(1.5),
    "through .data": lambda w: w.data.copy_(torch.randn_like(w)),
    "one element": lambda w: w.data[3, 5:6].fill_(100.0),
    "rows in another order": lambda w: w.data.copy_(w.data.flip(0).clone()),
    "another memory": lambda w: setattr(w, "data", torch.randn_like(w)),
    "another view": lambda w: w.detach().view(-1)[:512].zero_(),
    "transposed": lambda w: setattr(w, "data", w.data.t()),
    "NumPy": lambda w: w.detach().numpy().fill(0.5),
    "foreach": lambda w: torch._foreach_add_([w.data], 1.0),
}


class TestKept:
    """The packed weights of a beam search follow every write to the weights."""

    @pytest.fixture(params=[False, True], ids=["", "inference_mode"])
    def weight(self, request):
        torch.manual_seed(0)
        with torch.inference_mode(request.param):
            return torch.nn.Parameter(torch.randn(512, 512))

    @pytest.fixture
    def packs(self, monkeypatch):
        """Return what was packed."""
        found, pack = [], product._packed_product
        monkeypatch.setattr(
            product, "_packed_product", lambda w, *a, **k: found.append(w) or pack(w, *a, **k)
        )
        return found

    @staticmethod
    def check(weight, x):
        with product.keeping_packed():
            found = linear(x, weight)
        torch.testing.assert_close(found, x @ weight.t(), rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("write", WRITES)
    def test_every_write_is_seen(self, write, weight, packs):
        x = torch.randn(5, 512)
        with torch.inference_mode():
            for number in (1, 2):
                for _ in range(3):
                    self.check(weight, x)
                assert len(packs) == number
                WRITES[write](weight)
            self.check(weight, x)

    def test_reading_and_another_watcher_leave_a_write_visible(self, weight):
        x = torch.randn(5, 512)
        with torch.inference_mode():
            self.check(weight, x)
            weight.data.zero_()
            contents = Contents([weight])  # marks the memory again
            self.check(weight, x)
            weight.clone(), weight[2:4], F.embedding(torch.tensor([1]), weight), weight.sum()
            assert contents.are_those_of([weight])

    @pytest.mark.parametrize("operator", ["_lazy_clone", "_C._is_cow_tensor"])
    def test_without_torchs_mark(self, operator, weight, packs, monkeypatch):
        owner, _, name = f"torch.{operator}".rpartition(".")
        monkeypatch.delattr(torch._C if owner == "torch._C" else torch, name)
        x = torch.randn(5, 512)
        with torch.inference_mode():
            contents = Contents([weight])
            assert contents.are_those_of([weight])
            self.check(weight, x)
            weight.data[0, 0] += 1.0
            self.check(weight, x)
            assert not packs and not contents.are_those_of([weight])

    @torch.no_grad()
    def test_memory_that_torch_cannot_mark(self, packs):
        weight = torch.nn.Parameter(torch.randn(512, 512).share_memory_())
        self.check(weight, torch.randn(5, 512))
        weight.data.zero_()
        self.check(weight, torch.randn(5, 512))
        assert not packs


@pytest.mark.parametrize("operator", ["_reorder_linear_weight", "_linear_pointwise"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_onednns_operators(operator, dtype, monkeypatch):
    """They are private: a torch may come without them."""

    class Without:
        def __getattr__(self, name):
            if name == operator:
                raise AttributeError(name)
            return getattr(mkldnn, name)

    mkldnn = torch.ops.mkldnn
    product.has_onednn.cache_clear()
    monkeypatch.setattr(torch.ops, "mkldnn", Without())
    try:
        assert not product.has_onednn(dtype)
        x, weight = torch.randn(600, 512).to(dtype), torch.randn(1024, 512).to(dtype)
        expected = x.double() @ weight.double().t()
        close = dict(rtol=2e-2, atol=0.5) if dtype == torch.bfloat16 else dict(rtol=1e-3, atol=1e-3)
        with torch.no_grad():
            torch.testing.assert_close(linear(x, weight).double(), expected, **close)
            torch.testing.assert_close(multiply(x, weight).double(), expected, **close)
            with product.keeping_packed():
                found = linear(x[:3], torch.nn.Parameter(weight))
            torch.testing.assert_close(found.double(), expected[:3], **close)
    finally:
        product.has_onednn.cache_clear()
