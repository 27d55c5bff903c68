"""LMs whose logits are one projection of their layers' outputs."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.layers.linear import project
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.lm.uncertain import Projected, UncertainLM


class ProjectedLM(UncertainLM):
    """An LM with an output projection; here a beam search reads each prefix from its start.

    Attributes:
        projection: The name of the output projection.
        projected: Maps tokens (B, L) to the input of the output projection, (B, L, M).
    """

    projection = "decoder"
    projected: Callable[[torch.Tensor], torch.Tensor]

    def compute(self, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, Any]:
        """Logits and no state: a call reads whole sequences.

        As in ESPnet, no token sees an earlier one that is 0, the padding.
        """
        return self.project(self.projected(input)), None

    def project(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits (..., V) of the output projection's inputs, (..., M)."""
        return project(getattr(self, self.projection), outputs)

    def keeps_projection(self) -> bool:
        """True if the output projection is the linear layer `decoder`, with nothing random."""
        projection = getattr(self, self.projection)
        blocks = self.posterior.blocks()
        return projection is self.decoder and all(b.owner is not projection for b in blocks)

    def outputs(self, input: torch.Tensor) -> Optional[Projected]:
        """Input of the output projection and its weight; None where the LM has none."""
        if not self.keeps_projection():
            return None
        with self.drawn():
            return self.projected(input), self.decoder.weight

    @property
    def computes_trees(self) -> bool:  # type: ignore[override]
        """True if `tree_outputs` can be projected by the mean, which rescoring takes."""
        return hasattr(self, "tree_outputs") and self.keeps_projection()

    def zero_state(self) -> Any:
        """State before the first token: a state is the tokens, all read again at each step."""
        return ()

    def begin(self, tokens: torch.Tensor) -> Step:
        """Read prefixes from their start."""
        return self._read_again([tuple(row) for row in tokens.tolist()], tokens.device)

    def advance(self, tokens: torch.Tensor, states: List[Any]) -> Step:
        """Read one more token of each hypothesis, with all tokens before it."""
        prefixes = [(*old, new) for old, new in zip(states, tokens.tolist(), strict=True)]
        return self._read_again(prefixes, tokens.device)

    def _read_again(self, prefixes: List[Tuple[int, ...]], device: torch.device) -> Step:
        """Logits after prefixes, of any lengths, and these."""
        rows = [torch.tensor(prefix, device=device) for prefix in prefixes]
        input = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        last = torch.tensor([len(prefix) - 1 for prefix in prefixes], device=device)
        output = self.projected(input)[torch.arange(len(last), device=device), last]
        return self.project(output), prefixes
