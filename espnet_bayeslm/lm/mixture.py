"""A mixture of trained LMs and n-grams, itself an LM for the beam search."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from espnet2.lm.abs_model import AbsLM
from torch import nn
from typeguard import typechecked

from espnet_bayeslm.kinds.whole_posterior import add_whole_posterior
from espnet_bayeslm.lm import LMS, MIXTURE
from espnet_bayeslm.lm.beam_search import Step, TokenIds
from espnet_bayeslm.lm.espnet import BACKBONES
from espnet_bayeslm.lm.ngram import LogProbLM, NgramLM
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import check_weights

# Keys of a component of each kind; an LM may have `whole_posterior` too.
KEYS = {
    "lm": {"name", "kind", "weight", "lm", "lm_conf"},
    "ngram": {"name", "kind", "weight", "path"},
}

State = Tuple[Any, ...]


class MixtureLM(LogProbLM):
    """p(token) = sum_k w_k p_k(token), with fixed weights; it is not trained.

    A component with a weight below zero is subtracted: ln p(token) + w ln p_s(token) is the score
    of a token then, which is no probability. `<blank>` is the only token whose score stays.

    Args:
        vocab_size: Number of tokens.
        components: Mappings: an LM `{name, kind: lm, weight, lm, lm_conf}`, with `lm` and
            `lm_conf` as in the configuration of its training (`whole_posterior: true` where an
            optimizer has learnt a posterior over all its weights), or an n-gram
            `{name, kind: ngram, weight, path}`, the path as from the current folder. One of
            weight 0 is not computed.
        tokens: The token list; needed where an n-gram is among them.
        ids: Ids of blank, start and end for n-grams; None: as in ESPnet.

    Attributes:
        names: The components' names.
        weights: Weights of the components; those from zero on have the sum 1.

    Raises:
        InputError: There are no components, one is not as described, an n-gram cannot be used,
            or a weight is not valid.
    """

    # ESPnet's transducer search asks for it
    rnn_type = "mixture"

    @typechecked
    def __init__(
        self,
        vocab_size: int,
        components: Any = None,
        tokens: Optional[list] = None,
        ids: Optional[TokenIds] = None,
    ):
        super().__init__()
        parts = _check_components(components)
        self.vocab_size = vocab_size
        self.names = [str(part["name"]) for part in parts]
        self.weights = _checked_weights([part["weight"] for part in parts])
        self.components = nn.ModuleList(_build(part, vocab_size, tokens, ids) for part in parts)
        self._used = [k for k, weight in enumerate(self.weights) if weight]

    @property
    def only_decodes(self) -> str:
        """Why the scores are no probabilities; "" if they are."""
        is_less = min(self.weights) < 0
        return "an LM is subtracted in it, so its scores are no probabilities" if is_less else ""

    def _lms(self) -> List[Any]:
        """Components that are computed."""
        return [self.components[k] for k in self._used]

    def _mix(self, log_probs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Ln sum_k w_k p_k, (..., V), of the ln p_k of the components in use, less others."""
        pairs = [(self.weights[k], v) for k, v in zip(self._used, log_probs, strict=True)]
        added = [(weight, values) for weight, values in pairs if weight > 0]
        mixed = added[0][1]
        if len(added) > 1:
            mixed = torch.stack([values + math.log(w) for w, values in added]).logsumexp(0)
        for weight, values in pairs:
            if weight < 0:
                # <blank> is no token, and n-grams give it no probability in a search
                mixed = mixed + weight * torch.nn.functional.pad(values[..., 1:], (1, 0))
        return mixed

    def zero_state(self) -> State:
        """State before the first token: one state of each component in use."""
        return (None,) * len(self._used)

    def advance(self, tokens: torch.Tensor, states: List[State]) -> Step:
        """Mix the components' ln p of the next token; a state has one of each component in use."""
        columns = zip(*states, strict=True)
        last = tokens.unsqueeze(1)
        steps = [
            lm.batch_score(last, list(column), last)  # the last is not used
            for lm, column in zip(self._lms(), columns, strict=True)
        ]
        mixed = self._mix([log_probs for log_probs, _ in steps])
        return mixed, list(zip(*(new for _, new in steps), strict=True))

    def search_rows(
        self, tokens: torch.Tensor, states: List[State]
    ) -> Tuple[np.ndarray, List[State]]:
        """Score as `advance` does, in NumPy; an n-gram alone without tensors."""
        lm = self.components[self._used[0]]
        if len(self._used) > 1 or not isinstance(lm, NgramLM):
            return super().search_rows(tokens, states)
        before = [lm.zero_state() if own is None else own for (own,) in states]
        rows, after = lm.search_rows(tokens, before)
        return rows, [(own,) for own in after]

    def forward(self, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Mixed ln p of a batch, (B, L, V); the state has one of each component in use."""
        before = self.zero_state() if hidden is None else hidden
        log_probs, after = [], []
        for k, lm, state in zip(self._used, self._lms(), before, strict=True):
            if hidden is not None and state is None:
                raise InputError(
                    f"{self.names[k]} reads only whole sentences: it has no state to go on from"
                )
            output, state = lm(input, state)
            log_probs.append(output if isinstance(lm, LogProbLM) else output.log_softmax(-1))
            after.append(state)
        return self._mix(log_probs), tuple(after)

    def kl(self) -> torch.Tensor:
        """KL(posterior || prior) summed over the components' random weights, in nats, ()."""
        terms = [lm.kl() for lm in self.components if isinstance(lm, UncertainLM)]
        return torch.stack(terms).sum() if terms else torch.zeros(())

    def locations(self) -> List[str]:
        """The components' uncertain locations, as `COMPONENT/POSITION@LAYER`."""
        return [
            f"{name}/{location}"
            for name, lm in zip(self.names, self.components, strict=True)
            if isinstance(lm, UncertainLM)
            for location in lm.locations()
        ]

    @contextlib.contextmanager
    def sampled(self, index: int, *, seed: int = 0) -> Iterator[None]:
        """Hold sample number `index` of each component for all that is computed within."""
        with contextlib.ExitStack() as stack:
            for lm in self._lms():
                if isinstance(lm, UncertainLM):
                    stack.enter_context(lm.sampled(index, seed=seed))
            yield


def _checked_weights(weights: Sequence[Any]) -> List[float]:
    """Weights from zero on, of sum 1, and those below zero, in their order."""
    values = np.asarray(weights, np.float64)
    added = values >= 0
    below = np.isfinite(values) & (values < 0)
    if (added | below).all() and added.any():
        values[added] = check_weights(values[added], int(added.sum()))
        return values.tolist()
    return check_weights(values, len(values)).tolist()


def _check_components(components: Any) -> List[Mapping[str, Any]]:
    """Components, each of which has the keys of its kind."""
    remedy = "Let `bayeslm export` write the configuration of a mixture."
    if not isinstance(components, (list, tuple)) or not components:
        raise InputError("lm mixture: expected a list of `components`", remedy=remedy)
    for number, part in enumerate(components):
        kind = part.get("kind") if isinstance(part, dict) else None
        if kind not in KEYS or set(part) - {"whole_posterior"} != KEYS[kind]:
            wanted = " or ".join(", ".join(sorted(keys)) for keys in KEYS.values())
            raise InputError(
                f"component {number} of a mixture: expected a mapping with {wanted}, got {part!r}",
                remedy=remedy,
            )
    return list(components)


def _build(
    part: Mapping[str, Any],
    vocab_size: int,
    tokens: Optional[Sequence[str]],
    ids: Optional[TokenIds],
) -> AbsLM:
    """A component's LM, its weights yet to be loaded."""
    if part["kind"] == "lm":
        name, conf = part["lm"], part["lm_conf"] or {}
        if name in BACKBONES:  # with the same parameters, and states that cost one step a token
            name, conf = "bayes_espnet", {"backbone": name, "backbone_conf": conf}
        if name == MIXTURE or name not in LMS:
            valid = ", ".join(name for name in [*LMS, *BACKBONES] if name != MIXTURE)
            raise InputError(f"lm {name!r} cannot be built; valid are {valid}")
        lm: Any = LMS[name](vocab_size=vocab_size, **conf)
        if part.get("whole_posterior"):
            add_whole_posterior(lm.posterior)
        return lm
    if tokens is None or len(tokens) != vocab_size:
        found = "no `tokens`" if tokens is None else f"{len(tokens)} `tokens`"
        raise InputError(
            f"the n-gram {part['name']} needs the token list, and lm_conf has {found} where"
            f" {vocab_size} were expected"
        )
    return NgramLM(part["path"], tokens, ids)
