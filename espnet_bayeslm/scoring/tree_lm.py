"""ln p of tokens by an LM that reads prefix trees or padded batches, over weight samples.

The distinct prefixes of many sequences are the nodes of trees, and each node is computed once. A
new type of LM says how it reads a tree or a padded batch, how it projects, and how it holds a
sample; all else is here.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.lm.scoring import IncrementalLM
from espnet_bayeslm.lm.tree import Ids, TokenTree, build_tree, padded_batches, tree_batches
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.scoring import MAX_TOKENS
from espnet_bayeslm.scoring.log_probs import log_probs_of_outputs
from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError

# Outputs that are projected at once, so that the output layer's weights are packed seldom
PROJECTED = 4096
# From so many outputs on packing costs less than it gains
PACKED = 192
# Rows of logits that become log-probabilities at a time
LOGIT_ROWS = 128

Result = TypeVar("Result")
State = Tuple[torch.Tensor, torch.Tensor]
Projection = Tuple[torch.Tensor, torch.Tensor]


class Passage(NamedTuple):
    """Tokens that an LM reads, the last of which are scored.

    Attributes:
        root: Number of the state that the LM has before the first token, among some.
        tokens: The tokens; the first is never scored, and the last not read.
        scored: Number of the last tokens that are scored.
    """

    root: int
    tokens: Ids
    scored: int


class TreeLM:
    """An LM as scoring calls it.

    Attributes:
        model: The LM, a module.
        vocab_size: Number of tokens that it projects to.
        max_nodes: The most tokens of a batch, padding counted.
        takes_trees: True if it reads prefix trees; False: padded batches.
        reach: Number of tokens that every layer reads, the token itself among them. A batch with
            longer sequences is padded.
        continues: True if it goes on from its states after a text, as recurrent LMs do.
        is_uncertain: True if something in it is random.
        may_be_uncertain: False if samples are refused, since LMs of this type have none.
        steps_by_length: True if `step` takes prefixes of one length at a time.
    """

    model: Any
    vocab_size: int
    max_nodes: int = MAX_TOKENS
    takes_trees = True
    reach = sys.maxsize
    continues = False
    is_uncertain = False
    may_be_uncertain = True
    steps_by_length = False

    def num_draws(self, num_samples: int) -> int:
        """Number of samples that are needed: none where nothing is random."""
        if num_samples < 0:
            raise InputError(f"num_samples is {num_samples} where 0 or more was expected")
        if num_samples and not self.may_be_uncertain:
            raise InputError(
                f"num_samples is {num_samples}, but {type(self.model).__name__} has no random"
                " weights",
                remedy="Use num_samples 0 for a point-estimate LM.",
            )
        return num_samples if self.is_uncertain else 0

    def sampled(self, index: int) -> ContextManager[None]:
        """Hold sample number `index` of all that is random."""
        raise NotImplementedError

    def evaluating(self) -> ContextManager[Any]:
        """Hold evaluation mode, without gradients."""
        return torch.no_grad()

    def tree_outputs(self, tree: TokenTree, states: Sequence[Any]) -> torch.Tensor:
        """Input of the output projection, or logits, after each node, (T, M).

        The `states` are those before the roots; none: each tree begins a text.
        """
        raise NotImplementedError

    def padded_outputs(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Outputs after each token of a padded batch, (B, L, M), from (B, L)."""
        raise NotImplementedError

    def projection(self) -> Optional[Projection]:
        """Weight (V, M) and bias (V,) of the output projection; None: outputs are logits."""
        return None

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits (T, V) of outputs (T, M), in float32 or better."""
        projection = self.projection()
        found = outputs if projection is None else F.linear(outputs, *projection)
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def check(self, passages: Sequence[Passage]) -> None:
        """Raise an InputError where the LM cannot read a passage."""

    def require(self, what: str) -> None:
        """Raise an InputError where the LM lacks prefix trees, which `what` needs."""

    def states_after(
        self, texts: Sequence[Ids], before: Sequence[Any], num_samples: int
    ) -> List[Any]:
        """States of an LM that `continues` after each text and the state before it."""
        raise NotImplementedError

    def stepping(self, num_samples: int) -> ContextManager[Any]:
        """Hold all that `step` needs."""
        return self.evaluating()

    @torch.no_grad()
    def step(self, prefixes: Sequence[Any], num_samples: int) -> Tuple[torch.Tensor, List[Any]]:
        """Ln p of the next token, (B, V), and the state after each of some prefixes.

        The probability is the mean over samples. The prefixes (`prefixes.TokenPrefix`) are sorted
        by length. The state before a prefix's last token is its parent's, unless the parent is
        among them; the first token has no parent. Here each prefix is read again.
        """
        passages = [Passage(0, (*prefix.tokens(), 0), 1) for prefix in prefixes]

        def read(_: int) -> torch.Tensor:
            found = []
            for batch in self.batches(list(dict.fromkeys(passages))):
                outputs, paths = self.read(batch)
                found.append(self.logits(outputs[[int(path[-1]) for path in paths]]))
                order.extend(batch)
            return torch.cat(found).log_softmax(-1)

        order: List[Passage] = []
        of_draws = self.over_draws(num_samples, read)
        mean = mean_log_probs(of_draws)
        rows = {passage: n for n, passage in enumerate(order[: len(mean)])}
        return mean[[rows[passage] for passage in passages]], [None] * len(passages)

    def over_draws(self, num_samples: int, compute: Callable[[int], Result]) -> List[Result]:
        """Results of a computation with each sample held; 0: once, with the posterior mean.

        `compute` gets the sample's number, and must not return an iterator, which would run too
        late.
        """
        draws = self.num_draws(num_samples)
        found = []
        with self.evaluating():
            for index in range(max(draws, 1)):
                with self.sampled(index) if draws else contextlib.nullcontext():
                    found.append(compute(index))
        return found

    def batches(
        self, passages: Sequence[Passage], max_nodes: Optional[int] = None
    ) -> Iterator[Sequence[Passage]]:
        """Runs of distinct passages for a forward pass each."""
        most = max_nodes or self.max_nodes
        if self.takes_trees:
            return tree_batches(
                sorted(passages), max_tokens=most, key=lambda p: (p.root, *p.tokens[:-1])
            )
        by_length = sorted(passages, key=lambda p: (len(p.tokens), p))
        return padded_batches(by_length, max_tokens=most, key=lambda p: p.tokens[:-1])

    def read(
        self, batch: Sequence[Passage], states: Sequence[Any] = ()
    ) -> Tuple[torch.Tensor, List[np.ndarray]]:
        """Outputs (T, M) of one pass, and the rows of each passage, those before its tokens.

        A passage of n tokens has n - 1 rows. `states` are those before the roots, by number.
        """
        longest = max(len(passage.tokens) for passage in batch) - 1
        device = next(self.model.parameters()).device
        if self.takes_trees and longest <= self.reach:
            groups = {
                key: [passage.tokens[1:-1] for passage in group]
                for key, group in itertools.groupby(batch, key=lambda p: (p.root, p.tokens[0]))
            }
            tree, paths = build_tree([*groups.values()], batch[0].tokens[0])
            # the roots are the first nodes
            tree.tokens[: len(groups)] = torch.tensor([first for _, first in groups])
            before = [states[root] for root, _ in groups] if states else []
            return self.tree_outputs(tree.to(device), before), paths
        lengths = [len(passage.tokens) - 1 for passage in batch]
        table = nn.utils.rnn.pad_sequence(
            [torch.tensor(passage.tokens[:-1]) for passage in batch], batch_first=True
        )
        outputs = self.padded_outputs(table.to(device), torch.tensor(lengths, device=device))
        paths = [n * table.size(1) + np.arange(length) for n, length in enumerate(lengths)]
        return outputs.flatten(0, 1), paths

    def log_probs(
        self,
        passages: Sequence[Passage],
        *,
        num_samples: int = 0,
        openings: Optional[torch.Tensor] = None,
        log_z: Optional[float] = None,
        states: Sequence[Any] = (),
    ) -> List[np.ndarray]:
        """Ln p of the scored tokens of each passage, given all tokens before, (scored,) float64.

        Equal passages are scored once.

        Args:
            passages: The passages.
            num_samples: Number of weight samples over which each token's probability is averaged;
                0: the posterior mean.
            openings: (V,) bool, True for the tokens that end the word before them. With it results
                are (2, scored): the second row is ln P(one of these tokens) in the same contexts.
            log_z: Constant in place of every context's ln Z (self-normalised scoring).
            states: State before each root, None or one for each sample; none: as at a text's start.
        """
        self.check(passages)
        unique = set(passages)
        draws = max(self.num_draws(num_samples), 1)
        found: Dict[Passage, np.ndarray] = {}
        with progress(desc="scoring", unit="seq", total=len(unique) * draws) as bar:

            def add(index: int) -> None:
                before = [None if state is None else state[index] for state in states]
                how = (openings, log_z, before)
                for passage, values in self._scored(self.batches([*unique]), *how):
                    check_log_probs(values)
                    known = found.get(passage)
                    found[passage] = values if known is None else np.logaddexp(known, values)
                    bar.update(1)

            self.over_draws(num_samples, add)
        return [found[passage] - np.log(draws) for passage in passages]

    def _scored(
        self,
        batches: Iterator[Sequence[Passage]],
        openings: Optional[torch.Tensor],
        log_z: Optional[float],
        states: Sequence[Any],
    ) -> Iterator[Tuple[Passage, np.ndarray]]:
        """Yield each passage with its scores, with the weights as they are now."""
        # outputs of a run of batches are kept until they are projected together
        at_once = 1 if self.projection() is None else math.ceil(PROJECTED / self.max_nodes)
        while run := list(itertools.islice(batches, at_once)):
            outputs, contexts, size = [], [], 0
            for batch in run:
                rows, paths = self.read(batch, states)
                pairs = zip(batch, paths, strict=True)
                last = np.concatenate([path[len(path) - p.scored :] for p, path in pairs])
                # only outputs after which a token is scored are projected
                used, places = np.unique(last, return_inverse=True)
                every = len(used) == len(rows)
                outputs.append(rows if every else rows[torch.from_numpy(used).to(rows.device)])
                contexts.append(places + size)
                size += len(used)
            done = [passage for batch in run for passage in batch]
            targets = [t for p in done for t in p.tokens[len(p.tokens) - p.scored :]]
            # sequences share most of their tokens, with the contexts
            known = np.concatenate(contexts) * self.vocab_size + np.array(targets)
            both, where = np.unique(known, return_inverse=True)
            values = self.token_log_probs(
                torch.cat(outputs), *divmod(both, self.vocab_size), openings, log_z
            )
            ends = np.cumsum([passage.scored for passage in done])
            yield from zip(done, np.split(values[..., where], ends[:-1], axis=-1), strict=True)

    def token_log_probs(
        self,
        outputs: torch.Tensor,
        contexts: np.ndarray,
        targets: np.ndarray,
        openings: Optional[torch.Tensor],
        log_z: Optional[float] = None,
    ) -> np.ndarray:
        """Ln p of one token after each context, a row of `outputs`, (N,), with the openings (2, N).

        All is as in `log_probs`.
        """
        rows, tokens = (torch.from_numpy(x).to(outputs.device) for x in (contexts, targets))
        if openings is not None:
            # a tokenizer may have fewer or more tokens than its model
            openings = nn.functional.pad(openings, (0, self.vocab_size - len(openings)))
            openings = openings.to(outputs.device)
        projection = self.projection()
        if projection is None or len(outputs) < PACKED:
            logits = outputs if projection is None else F.linear(outputs, *projection)
            found = log_probs_of_rows(logits, rows, tokens, log_z=log_z, openings=openings)
        else:
            how: Any = dict(log_z=log_z, openings=openings)
            found = log_probs_of_outputs(outputs, rows, tokens, *projection, **how)
        return found.to("cpu", torch.float64).numpy()


class ESPnetTreeLM(TreeLM):
    """One of our LMs, over prefix trees, or another LM of ESPnet's, in padded batches.

    Args:
        lm: An `AbsLM`; its last token is `<sos/eos>`.
        max_tokens: The most tokens of a batch; an LM of another package gets a quarter of it, since
            it holds all logits.
        name: Name of the LM in errors.
    """

    steps_by_length = True

    def __init__(self, lm: Any, *, max_tokens: int = MAX_TOKENS, name: str = ""):
        self.model, self.vocab_size, self.name = lm, vocab_size(lm), name
        self.takes_trees = getattr(lm, "computes_trees", False)
        self.max_nodes = max_tokens if self.takes_trees else tokens_with_logits(max_tokens)
        self.continues = self.takes_trees and lm.continues_trees
        self.is_uncertain = bool(getattr(lm, "locations", list)())
        self.may_be_uncertain = hasattr(lm, "sampled")

    def sampled(self, index: int) -> ContextManager[None]:
        """Hold sample number `index` of all that is random."""
        found: ContextManager[None] = self.model.sampled(index)
        return found

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Hold the LM in evaluation mode, without gradients."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(training)

    def tree_outputs(self, tree: TokenTree, states: Sequence[Any]) -> torch.Tensor:
        """Input of the output projection after each node, (T, M)."""
        before = [self._stacked(states)] if states else []
        found: torch.Tensor = self.model.tree_outputs(tree, *before)
        return found

    def padded_outputs(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Logits after each token of a padded batch, (B, L, V)."""
        logits: torch.Tensor = self.model(tokens, None)[0]
        return logits

    def projection(self) -> Optional[Projection]:
        """Weight and bias of the output projection; None: outputs are logits."""
        if not self.takes_trees:
            return None
        return self.model.decoder.weight, self.model.decoder.bias

    def check(self, passages: Sequence[Passage]) -> None:
        """Check that all tokens are in the vocabulary."""
        size = self.vocab_size
        for passage in passages:
            ids = passage.tokens[1:-1]
            if ids and not 0 <= min(ids) <= max(ids) < size:
                raise InputError(
                    f"token ids from {min(ids)} to {max(ids)} in {ids[:10]}, but the LM has 0 to"
                    f" {size - 1}",
                    remedy="Use the token list that the LM was trained with.",
                )

    def require(self, what: str) -> None:
        """Raise an InputError where the LM lacks prefix trees, which `what` needs."""
        if not self.takes_trees:
            raise InputError(
                f"{what} needs an LM of espnet_bayeslm, got {type(self.model).__name__}",
                remedy="Train bayes_lstm, bayes_transformer, or bayes_espnet around an LSTM or"
                " Transformer of ESPnet's; without uncertainty they are point-estimate LMs.",
            )

    def states_after(
        self, texts: Sequence[Ids], before: Sequence[Any], num_samples: int
    ) -> List[Any]:
        """H and c, (nlayers, unit) each, for each sample, after each text."""
        lm = self.model
        tree, paths = build_tree([[text[1:]] for text in texts], self.vocab_size - 1)
        tree = tree.to(lm.decoder.weight.device)
        ends = [int(path[-1]) for path in paths]

        def read(index: int) -> List[State]:
            states = [None if state is None else state[index] for state in before]
            h, c = lm.tree_states(tree, self._stacked(states))
            found: List[State] = lm.split_state((h[:, ends], c[:, ends]))
            return found

        return list(zip(*self.over_draws(num_samples, read), strict=True))

    @contextlib.contextmanager
    def stepping(self, num_samples: int) -> Iterator[None]:
        """Hold evaluation mode, and the number of samples in place of a beam search's."""
        draws = self.num_draws(num_samples)
        if draws and not isinstance(self.model, UncertainLM):
            raise InputError(
                f"{self.name}: {type(self.model).__name__} cannot rescore lattices with samples",
                remedy="Use --num_samples 0, or N-best lists.",
            )
        # of a mixture its components
        uncertain = [lm for lm in self.model.modules() if isinstance(lm, UncertainLM)]
        before = [lm.num_samples for lm in uncertain]
        for lm in uncertain:
            lm.num_samples = draws
        try:
            with self.evaluating():
                yield
        finally:
            for lm, number in zip(uncertain, before, strict=True):
                lm.num_samples = number

    def step(self, prefixes: Sequence[Any], num_samples: int) -> Tuple[torch.Tensor, List[Any]]:
        """Ln p of the next token, (B, V), and the state after each of some prefixes.

        Our LMs read the last token only, from the state before it; others want all of them.
        """
        ours = isinstance(self.model, IncrementalLM)
        rows = [(prefix.token,) if ours else prefix.tokens() for prefix in prefixes]
        ys = torch.tensor(rows, device=next(self.model.parameters()).device)
        states = [None if prefix.parent is None else prefix.parent.state for prefix in prefixes]
        log_probs, after = self.model.batch_score(ys, states, ys)
        return log_probs, after

    def _stacked(self, states: Sequence[Optional[State]]) -> State:
        """States h and c before the roots, (nlayers, G, unit) each; None: at a text's start."""
        lm = self.model
        found: State = lm.stack_states([lm.zero_state() if s is None else s for s in states])
        return found


def tokens_with_logits(max_tokens: int) -> int:
    """Number of tokens of a batch where the logits of all are held at once."""
    return max(1, max_tokens // 4)


def vocab_size(lm: torch.nn.Module) -> int:
    """Number of tokens of an LM; the last of them is `<sos/eos>`."""
    size = getattr(lm, "vocab_size", None)
    if size is None:
        embeddings = (m for m in lm.modules() if isinstance(m, torch.nn.Embedding))
        size = next(embeddings).num_embeddings
    return int(size)


def mean_log_probs(of_draws: Sequence[torch.Tensor]) -> torch.Tensor:
    """Ln of the mean of the probabilities of some samples, (...), from ln p (...) of each."""
    return torch.stack([*of_draws]).logsumexp(0) - math.log(len(of_draws))


def check_log_probs(log_probs: np.ndarray) -> None:
    """Check that scores are numbers."""
    if not np.isfinite(log_probs).all():
        raise InputError(
            "a log-probability of the LM is not a finite number",
            remedy="Its training has diverged: use an earlier checkpoint.",
        )


def log_probs_of_rows(
    logits: torch.Tensor,
    contexts: torch.Tensor,
    targets: torch.Tensor,
    *,
    log_z: Optional[float] = None,
    openings: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Ln p of one token after each of some contexts, (N,), from rows of logits (T, V).

    The result and all other arguments are as of `log_probs_of_outputs`.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    sums = []
    for rows in logits.split(LOGIT_ROWS):
        rows = rows.to(dtype)
        z = rows.logsumexp(1) if log_z is None else rows.new_full((len(rows),), log_z)
        sums.append([z] if openings is None else [z, rows[:, openings].logsumexp(1)])
    normalizers, *masses = (torch.cat(part)[contexts] for part in zip(*sums, strict=True))
    found = logits[contexts, targets].to(dtype) - normalizers
    return torch.stack([found, masses[0] - normalizers]) if masses else found
