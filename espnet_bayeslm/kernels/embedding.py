"""The gradient of a table that is looked up and projected with: its rows' part stays sparse."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def look_up(
    table: torch.Tensor, ids: torch.Tensor, padding_idx: Optional[int]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Fast twin of `layers.embedding.look_up`.

    torch would make a gradient of the whole table from the rows, and add all of it to the
    projection's gradient. Here, on a CPU, autograd adds the rows' gradients in place. Other devices
    use torch's own look-up.
    """
    if table.device.type != "cpu" or not torch.is_grad_enabled():
        return F.embedding(ids, table, padding_idx), table
    # given twice: autograd adds separate gradients in place, if the sparse one comes first
    rows, tied = _LookUp.apply(table, table, ids, padding_idx)
    return rows, tied


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        table_of_rows: torch.Tensor,
        table: torch.Tensor,
        ids: torch.Tensor,
        padding_idx: Optional[int],
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(ids)
        ctx.padding_idx = padding_idx
        return F.embedding(ids, table), table.view_as(table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_rows: torch.Tensor, d_table: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        (ids,) = ctx.saved_tensors
        ids, d_rows = ids.flatten(), d_rows.flatten(0, -2)
        if ctx.padding_idx is not None:
            d_rows = d_rows.masked_fill((ids == ctx.padding_idx).unsqueeze(1), 0.0)
        # torch warns where nobody said whether row numbers are to be checked
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            sparse = torch.sparse_coo_tensor(ids.unsqueeze(0), d_rows.to(d_table), d_table.shape)
        return sparse, d_table, None, None
