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
from typing import Any, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from espnet_bayeslm.lm.beam_search import IncrementalLM
from espnet_bayeslm.lm.tree import Ids, TokenTree, build_tree
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.scoring import MAX_TOKENS
from espnet_bayeslm.scoring.log_probs import diverged_error, log_probs_of_outputs
from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError

# Outputs that are projected at once, so that the output layer's weights are packed seldom
PROJECTED = 4096

State = Tuple[torch.Tensor, torch.Tensor]


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
        decoder: The output projection; None: outputs are logits.
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
    decoder: Optional[nn.Linear] = None

    def samples(self, num_samples: int) -> List[ContextManager[None]]:
        """A context for each weight sample, which holds it in evaluation mode, without gradients.

        The only one holds the posterior mean where nothing is random, or `num_samples` is 0.
        """
        if num_samples < 0:
            raise InputError(f"num_samples is {num_samples} where 0 or more was expected")
        if num_samples and not self.may_be_uncertain:
            raise InputError(
                f"num_samples is {num_samples}, but {type(self.model).__name__} has no random"
                " weights",
                remedy="Use num_samples 0 for a point-estimate LM.",
            )
        if not (num_samples and self.is_uncertain):
            return [self.held()]
        return [self.held(index) for index in range(num_samples)]

    def held(self, index: Optional[int] = None) -> ContextManager[None]:
        """Hold evaluation mode, without gradients, and a sample by its number, or the mean."""
        raise NotImplementedError

    def tree_outputs(self, tree: TokenTree, states: Sequence[Any]) -> torch.Tensor:
        """Input of the output projection, or logits, after each node, (T, M).

        The `states` are those before the roots; none: each tree begins a text.
        """
        raise NotImplementedError

    def padded_outputs(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Outputs after each token of a padded batch, (B, L, M), from (B, L)."""
        raise NotImplementedError

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits (T, V) of outputs (T, M), in float32 or better."""
        found = outputs if self.decoder is None else self.decoder(outputs)
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

    def texts(self, num_samples: int) -> Tuple[Any, ...]:
        """An empty text for each sample, whose keys passes keep; none where no keys are kept."""
        return ()

    def kept(self, state: Any) -> int:
        """Number of tokens before a root whose keys are kept in its state."""
        return 0

    def begin(self) -> None:
        """Begin a search, before which the weights may have changed."""

    def stepping(self, num_samples: int) -> ContextManager[Any]:
        """Hold all that `step` needs."""
        return self.held()

    @torch.no_grad()
    def step(self, prefixes: Sequence[Any], num_samples: int) -> Tuple[torch.Tensor, List[Any]]:
        """Ln p of the next token, (B, V), and the state after each of some prefixes.

        The probability is the mean over samples. The prefixes (`prefixes.TokenPrefix`) are sorted
        by length. The state before a prefix's last token is its parent's, unless the parent is
        among them; the first token has no parent. Here each prefix is read again.
        """
        passages = [Passage(0, (*prefix.tokens(), 0), 1) for prefix in prefixes]
        of_samples = []
        for sample in self.samples(num_samples):
            found: Dict[Passage, torch.Tensor] = {}
            with sample:
                for batch in self.batches(passages):
                    outputs, paths = self.read(batch)
                    logits = self.logits(outputs[[int(path[-1]) for path in paths]])
                    found.update(zip(batch, logits.log_softmax(-1), strict=True))
            of_samples.append(torch.stack([found[passage] for passage in passages]))
        return mean_log_probs(of_samples), [None] * len(passages)

    def batches(
        self,
        passages: Sequence[Passage],
        max_nodes: Optional[int] = None,
        kept: Sequence[int] = (),
    ) -> Iterator[Sequence[Passage]]:
        """Yield runs of the distinct passages, for a forward pass each.

        A run has at most `max_nodes` (as a rule those of the LM) nodes of prefix trees, or tokens
        and padding; a longer passage is a run by itself. Of each root some tokens may be `kept`
        before it, and a run has at most `reach` of these and of nodes.
        """
        self.check(passages)
        most, trees = max_nodes or self.max_nodes, self.takes_trees
        ordered = sorted(set(passages), key=None if trees else lambda p: (len(p.tokens), p))
        start, size, places = 0, 0, 0
        before: Ids = ()
        for end, item in enumerate(ordered):
            ids = (item.root, *item.tokens[:-1])
            if trees:
                pairs = zip(before, ids, strict=False)
                common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
                size += len(ids) - common + (end == 0)
            else:
                size = (end + 1 - start) * (len(item.tokens) - 1)
            own = kept[item.root] if kept else 0
            places += own * (before[:1] != ids[:1])
            if end > start and (size > most or (places and size + places > self.reach)):
                yield ordered[start:end]
                start, size, places = end, len(ids) + 1, own
            before = ids
        if ordered:
            yield ordered[start:]

    def read(
        self, batch: Sequence[Passage], states: Sequence[Any] = ()
    ) -> Tuple[torch.Tensor, List[np.ndarray]]:
        """Outputs (T, M) of one pass, and the rows of each passage, those before its tokens.

        A passage of n tokens has n - 1 rows. `states` are those before the roots, by number.
        """
        longest = max(len(passage.tokens) for passage in batch) - 1
        # an n-gram has no parameters
        own = itertools.chain(self.model.parameters(), self.model.buffers())
        device = next(own).device
        if self.takes_trees and longest <= self.reach:
            groups = {
                key: [passage.tokens[1:-1] for passage in group]
                for key, group in itertools.groupby(batch, key=lambda p: (p.root, p.tokens[0]))
            }
            tree, paths = build_tree([*groups.values()], batch[0].tokens[0], device)
            # the roots are the first nodes
            tree.tokens[: len(groups)] = torch.tensor([first for _, first in groups], device=device)
            before = [states[root] for root, _ in groups] if states else []
            return self.tree_outputs(tree, before), paths
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
            states: State before each root, None or one for each sample; none: as at a text's start.
        """
        samples = self.samples(num_samples)
        found: Dict[Passage, np.ndarray] = {}
        with progress(desc="scoring", unit="seq", total=len(set(passages)) * len(samples)) as bar:
            for index, sample in enumerate(samples):
                before = [None if state is None else state[index] for state in states]
                with sample:
                    for passage, values in self._scored(passages, openings, before):
                        if not np.isfinite(values).all():
                            raise diverged_error()
                        known = found.get(passage)
                        found[passage] = values if known is None else np.logaddexp(known, values)
                        bar.update(1)
        return [found[passage] - np.log(len(samples)) for passage in passages]

    def _scored(
        self,
        passages: Sequence[Passage],
        openings: Optional[torch.Tensor] = None,
        states: Sequence[Any] = (),
    ) -> Iterator[Tuple[Passage, np.ndarray]]:
        """Yield each distinct passage with its scores, with the weights as they are now."""
        # outputs of a run of batches are kept until they are projected together
        at_once = 1 if self.decoder is None else math.ceil(PROJECTED / self.max_nodes)
        batches = self.batches(passages, kept=[self.kept(state) for state in states])
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
            after = [torch.from_numpy(x).to(rows.device) for x in divmod(both, self.vocab_size)]
            weights = () if self.decoder is None else (self.decoder.weight, self.decoder.bias)
            log_probs = log_probs_of_outputs(
                torch.cat(outputs), *after, *weights, openings=openings
            )
            values = log_probs.to("cpu", torch.float64).numpy()
            ends = np.cumsum([passage.scored for passage in done])
            yield from zip(done, np.split(values[..., where], ends[:-1], axis=-1), strict=True)


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
        self.model, self.name = lm, name
        size = getattr(lm, "vocab_size", None)
        if size is None:
            embeddings = (m for m in lm.modules() if isinstance(m, torch.nn.Embedding))
            size = next(embeddings).num_embeddings
        self.vocab_size = int(size)
        self.takes_trees = getattr(lm, "computes_trees", False)
        self.decoder = lm.decoder if self.takes_trees else None
        self.max_nodes = max_tokens if self.takes_trees else tokens_with_logits(max_tokens)
        self.continues = self.takes_trees and lm.continues_trees
        self.is_uncertain = bool(getattr(lm, "locations", list)())
        self.may_be_uncertain = hasattr(lm, "sampled")

    @contextlib.contextmanager
    def held(self, index: Optional[int] = None) -> Iterator[None]:
        """Hold evaluation mode, without gradients, and a sample by its number, or the mean."""
        training = self.model.training
        self.model.eval()
        sample = contextlib.nullcontext() if index is None else self.model.sampled(index)
        try:
            with torch.inference_mode(), sample:
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

    def check(self, passages: Sequence[Passage]) -> None:
        """Raise an InputError where a token is beyond the vocabulary."""
        for passage in passages:
            ids = passage.tokens[1:-1]
            if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
                raise InputError(
                    f"token ids from {min(ids)} to {max(ids)} in {ids[:10]}, but the LM has 0 to"
                    f" {self.vocab_size - 1}",
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
        groups, device = [[text[1:]] for text in texts], lm.decoder.weight.device
        tree, paths = build_tree(groups, self.vocab_size - 1, device)
        ends = [int(path[-1]) for path in paths]
        of_samples: List[List[State]] = []
        for index, sample in enumerate(self.samples(num_samples)):
            states = [None if state is None else state[index] for state in before]
            with sample:
                h, c = lm.tree_states(tree, self._stacked(states))
                of_samples.append(lm.split_state((h[:, ends], c[:, ends])))
        return list(zip(*of_samples, strict=True))

    @contextlib.contextmanager
    def stepping(self, num_samples: int) -> Iterator[None]:
        """Hold evaluation mode, and the number of samples in place of a beam search's."""
        self.samples(num_samples)  # refuses a wrong number
        draws = num_samples if self.is_uncertain else 0
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
            with self.held():
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


def mean_log_probs(of_draws: Sequence[torch.Tensor]) -> torch.Tensor:
    """Ln of the mean of the probabilities of some samples, (...), from ln p (...) of each."""
    if len(of_draws) == 1:
        return of_draws[0]
    return torch.stack([*of_draws]).logsumexp(0) - math.log(len(of_draws))
