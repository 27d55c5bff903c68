"""Causal LMs of `transformers` as scoring calls them, over prefix trees or in padded batches.

Their scorer stands beside our own LMs' and n-grams'; the sentences may choose its form of the text.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import torch

from espnet_bayeslm.lm.tree import TokenTree
from espnet_bayeslm.pretrained.loaded_lm import CausalLM
from espnet_bayeslm.pretrained.loaded_weights import check_finite, projects_linearly
from espnet_bayeslm.pretrained.text_forms import AUTO, Reader, TextForm, candidates, first_sentences
from espnet_bayeslm.scoring.reader import Encoded
from espnet_bayeslm.scoring.scorer import LMScorer
from espnet_bayeslm.scoring.tree_lm import Passage, TreeLM, mean_log_probs
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

if TYPE_CHECKING:
    from espnet_bayeslm.pretrained.kept_keys import KeptText, KeyValues
    from espnet_bayeslm.pretrained.packed_linears import PackedLinears
    from espnet_bayeslm.scoring.prefixes import TokenPrefix

# More nodes make products of matrices no faster, and attention slower
MAX_NODES = 256
# Largest difference in nats between a tree and a single sequence, by rounding alone
TOLERANCE = 1e-2
# Words of the first sentences, which all text forms read; the most -ln p of them, in that of the
# best form, with which a form reads the others too. Of 12 forms on three texts 3 or 4 do.
FEW_WORDS, CLEARLY_WORSE = 100, 1.05
# A warning tells of a perplexity that is so many times what other marks and blanks have
COSTLY = 1.5


WINDOWS = {
    **{"sliding_window": 1, "window_size": 1, "attention_chunk_size": 1, "local_attention": 2},
    # some models have a mask of so many places
    "max_position_embeddings": 1,
}
"""Names that configurations give an attention's reach, and what they are divided by."""


class CausalTreeLM(TreeLM):
    """A causal LM of `transformers` over prefix trees, or in padded batches.

    The distinct prefixes are one sequence of nodes. A node's position is its depth, and a 4-D mask
    lets it see its ancestors and itself. A model that cannot take such a mask is found by a probe.

    Args:
        model: A causal LM of `transformers`, in evaluation mode.
        sampled: (index) -> context that holds a sample of its random weights; None: there are none.
        name: Name of the LM in errors.
    """

    def __init__(
        self,
        model: Any,
        sampled: Optional[Callable[[int], ContextManager[None]]] = None,
        name: str = "",
    ):
        self.model, self.name, self._sampled = model, name, sampled
        self.is_uncertain = sampled is not None
        # peft's model has the one of transformers inside
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        # the module that gives the outputs, and their name
        self._body, self._field = model, "logits"
        if projects_linearly(causal):
            self._body, self._field = causal.base_model, "last_hidden_state"
            self.decoder = causal.get_output_embeddings()
        self.vocab_size = len(model.get_output_embeddings().weight)
        self.takes_trees = self._probe()
        config = model.config.get_text_config()
        sizes = ((getattr(config, name, None) or 0) // part for name, part in WINDOWS.items())
        self.reach = min((size for size in sizes if size > 0), default=sys.maxsize)
        # some models count the window in places, not by the mask
        self.max_nodes = min(MAX_NODES, self.reach)

    @contextlib.contextmanager
    def held(self, index: Optional[int] = None) -> Iterator[None]:
        """Hold a sample of the random weights by its number, or the mean, without gradients."""
        sample: ContextManager[None] = contextlib.nullcontext()
        if index is not None and self._sampled is not None:
            sample = self._sampled(index)
        with torch.no_grad(), sample:
            yield

    def check(self, passages: Sequence[Passage]) -> None:
        """Raise an InputError where a token or a position is beyond the LM's."""
        last = max((max(passage.tokens) for passage in passages), default=0)
        if last >= self.vocab_size:
            raise InputError(
                f"the text has token {last}, and the LM's embedding {self.vocab_size} rows",
                remedy="Take words that are marks of the LM's tokenizer out of the text.",
            )
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        longest = max((len(passage.tokens) for passage in passages), default=0)
        if most is not None and longest > most:
            raise InputError(
                f"{self.name}: a sentence with its context has {longest} tokens, and the LM reads"
                f" at most {most}",
                remedy="Split the sentence, or give a smaller --max_context.",
            )

    def tree_outputs(self, tree: TokenTree, states: Sequence[Any]) -> torch.Tensor:
        """Input of the output projection, or logits, after each node, (T, M).

        The states are texts whose keys are kept (`KeptText`); they get those of the nodes too.
        """
        # each node sees its ancestors and itself
        parents = tree.parents.cpu()
        seen = torch.eye(len(parents), dtype=torch.bool)
        for level in tree.levels[1:]:
            seen[level] |= seen[parents[level]]
        if states:
            return self._after_texts(tree, seen, states)
        mask = torch.full((1, 1, *seen.shape), torch.finfo(self.model.dtype).min)
        mask[0, 0][seen] = 0.0
        found: torch.Tensor = self._body(
            input_ids=tree.tokens.unsqueeze(0),
            attention_mask=mask.to(tree.tokens.device, self.model.dtype),
            position_ids=tree.depths.unsqueeze(0),
            use_cache=False,
        )[self._field][0]
        return found

    def _after_texts(
        self, tree: TokenTree, seen: torch.Tensor, states: Sequence[Optional[KeptText]]
    ) -> torch.Tensor:
        """Outputs after each node, (T, M), of trees that go on from texts, one for each tree."""
        from espnet_bayeslm.pretrained.kept_keys import KeptText, cache_of

        texts = [KeptText() if text is None else text for text in states]
        counts = [len(text.path) for text in texts]
        # (T, R): the nodes of each root
        of_root = seen[:, : len(texts)]
        before = of_root.repeat_interleave(torch.tensor(counts), dim=1)
        cache = cache_of([(text.keys, text.path) for text in texts])
        depths = tree.depths + before.sum(1).to(tree.depths.device)
        found = self._read_on(tree.tokens, depths, torch.cat([before, seen], dim=1), cache)
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        for text, column in zip(texts, of_root.T, strict=True):
            nodes = column.nonzero().flatten()
            number = {node: n for n, node in enumerate(nodes.tolist())}
            text.add(
                cache,
                nodes + sum(counts),
                tuple(tokens[node] for node in number),
                [number.get(parents[node], -1) for node in number],
            )
        return found

    def _read_on(
        self, tokens: torch.Tensor, positions: torch.Tensor, seen: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Outputs after tokens, (T, M), which see some of P + T places; a cache gets theirs."""
        mask = torch.full((1, 1, *seen.shape), torch.finfo(self.model.dtype).min)
        mask[0, 0][seen] = 0.0
        found: torch.Tensor = self._body(
            input_ids=tokens.unsqueeze(0),
            attention_mask=mask.to(tokens.device, self.model.dtype),
            position_ids=positions.unsqueeze(0),
            use_cache=True,
            **{self._cache_name: cache},
        )[self._field][0]
        return found

    @functools.cached_property
    def _cache_name(self) -> str:
        """Name of the body's option for keys and values; the newer one where it has both."""
        options = inspect.signature(self._body.forward).parameters
        return "cache" if "cache" in options else "past_key_values"

    def texts(self, num_samples: int) -> Tuple[KeptText, ...]:
        """An empty text for each sample, whose keys passes keep; none where no keys are kept."""
        from espnet_bayeslm.pretrained.kept_keys import KeptText

        return tuple(KeptText() for _ in self.samples(num_samples) if self.keeps_keys)

    def kept(self, state: Optional[KeptText]) -> int:
        """Number of tokens before a root whose keys are kept in its state."""
        return 0 if state is None else len(state.path)

    def padded_outputs(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Outputs after each token of a padded batch, (B, L, M)."""
        mask = torch.arange(tokens.size(1), device=tokens.device) < lengths.unsqueeze(1)
        inputs = {"input_ids": tokens, "attention_mask": mask.long()}
        found: torch.Tensor = self._body(**inputs, use_cache=False)[self._field]
        return found

    @functools.cached_property
    def _packed(self) -> PackedLinears:
        """Linear layers with packed weights; random ones are those of an adapter."""
        from espnet_bayeslm.pretrained.packed_linears import PackedLinears

        return PackedLinears(self.model, "" if self._sampled is None else ".lora_")

    def begin(self) -> None:
        """Begin a search, before which the weights may have changed."""
        self._packed.begin()

    @contextlib.contextmanager
    def stepping(self, num_samples: int) -> Iterator[None]:
        """Hold evaluation mode, and the weights packed."""
        with self.held(), self._packed.used():
            yield

    def step(
        self, prefixes: Sequence[TokenPrefix], num_samples: int
    ) -> Tuple[torch.Tensor, List[Any]]:
        """Ln p of the next token, (B, V), and the state after each of some prefixes.

        A state is the rows of the prefix's tokens among the keys and values of the search; a sample
        has keys and values of its own. A model whose keys cannot be kept reads each prefix again.
        """
        parents = {prefix.parent for prefix in prefixes}.difference(prefixes, [None])
        has_states = all(parent is not None and parent.state is not None for parent in parents)
        if self.keeps_keys and has_states and prefixes[-1].depth < self.reach:
            return self._step(prefixes, num_samples)
        return super().step(prefixes, num_samples)

    def _step(
        self, prefixes: Sequence[TokenPrefix], num_samples: int
    ) -> Tuple[torch.Tensor, List[Any]]:
        """Ln p and states as of `step`, by one pass over a tree, from keys that are kept."""
        from espnet_bayeslm.pretrained.kept_keys import KeyValues

        fresh = [KeyValues() for _ in self.samples(num_samples)]
        kept = prefixes[0].search.memory.setdefault("keys", fresh)
        size, count = kept[0].size, len(prefixes)
        paths: Dict[Optional[TokenPrefix], Tuple[int, ...]] = {None: ()}
        for row, prefix in enumerate(prefixes, size):
            parent = prefix.parent
            before = paths[parent] if parent in paths or parent is None else parent.state
            paths[prefix] = (*before, row)
        states = [paths[prefix] for prefix in prefixes]
        old = sorted({row for path in states for row in path if row < size})
        if len(old) + count > self.reach:
            # some models count the window in places, not by the mask
            found = []
            for half in (prefixes[: count // 2], prefixes[count // 2 :]):
                log_probs, after = self.step(half, num_samples)
                for prefix, state in zip(half, after, strict=True):
                    prefix.state = state
                found.append(log_probs)
            return torch.cat(found), [prefix.state for prefix in prefixes]
        column = {row: n for n, row in enumerate([*old, *range(size, size + count)])}
        seen = torch.zeros((count, len(column)), dtype=torch.bool)
        for n, path in enumerate(states):
            seen[n, [column[row] for row in path]] = True
        return self._next(prefixes, seen, kept, old, num_samples), states

    def _next(
        self,
        prefixes: Sequence[TokenPrefix],
        seen: torch.Tensor,
        kept: Sequence[KeyValues],
        old: Sequence[int],
        num_samples: int,
    ) -> torch.Tensor:
        """Ln p of the next token, (B, V), of prefixes that see some of (B, P + B) rows."""
        from espnet_bayeslm.pretrained.kept_keys import cache_of

        device = next(self.model.parameters()).device
        tokens = torch.tensor([prefix.token for prefix in prefixes], device=device)
        depths = torch.tensor([prefix.depth for prefix in prefixes], device=device)
        found = []
        for sample, own in zip(self.samples(num_samples), kept, strict=True):
            cache = cache_of([(own, old)])
            with sample:
                outputs = self._read_on(tokens, depths, seen, cache)
                own.add(cache, slice(-len(prefixes), None))
                found.append(self.logits(outputs).log_softmax(-1))
        return mean_log_probs(found)

    @functools.cached_property
    def keeps_keys(self) -> bool:
        """True if a prefix's keys and values, kept, give the scores of the prefix read again."""
        from espnet_bayeslm.scoring.prefixes import PrefixSearch, TokenPrefix

        root = TokenPrefix(PrefixSearch({}), None, 1 % self.vocab_size)
        second, third = root.after(5 % self.vocab_size), root.after(9 % self.vocab_size)
        last = [second, third, third.after(7 % self.vocab_size)]
        if not self.takes_trees:
            return False
        try:
            with self.held():
                _, (root.state,) = self._step([root], 0)
                found, _ = self._step(last, 0)
                expected, _ = super().step(last, 0)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return False
        return bool((found - expected).abs().max() < TOLERANCE)

    def _probe(self) -> bool:
        """True if the model reads a prefix tree as it reads a padded batch; it must be causal."""
        ids = [n % self.vocab_size for n in (5, 9, 7, 11, 13)]
        rows = [tuple(ids), (*ids[:2], ids[4], ids[3], ids[2]), (*ids[:3], ids[0]), tuple(ids[:3])]
        whole, *others = (Passage(0, row, len(row) - 1) for row in rows)
        with self.held():
            self.takes_trees = False
            alone = dict(self._scored([whole, *others]))
            if any(np.isnan(scores).any() for scores in alone.values()):
                check_finite(self.model, "the LM")
                raise InputError(
                    "the LM's logits are not finite, though its weights are",
                    remedy="Give --precision float32, or another LM.",
                )
            if not np.allclose(alone[whole][:2], alone[others[-1]], atol=TOLERANCE):
                raise InputError(
                    "the model is not causal: later words change the probabilities of earlier ones",
                    remedy="Give a causal LM (a decoder), and not an encoder.",
                )
            self.takes_trees = True
            try:
                in_trees = dict(self._scored([whole, *others]))
            except (RuntimeError, ValueError, TypeError, IndexError):
                return False
        return all(np.allclose(alone[p], in_trees[p], atol=TOLERANCE) for p in alone)


class PretrainedScorer(LMScorer):
    """Scores words by a pretrained LM, in a form of the text that sentences may choose.

    Args:
        lm: The LM.
        **options: Options of `LMScorer`.

    """

    reader: Reader
    reads_in_forms = True

    def __init__(self, lm: CausalLM, **options: Any):
        self._readers = [lm.reader] if lm.reader else candidates(lm.tokenizer, lm.text_form)
        self.is_open = len(self._readers) > 1
        self.chooses = self.is_open and lm.text_form == AUTO
        tree_lm = CausalTreeLM(lm.model, lm.sampled, lm.name)
        super().__init__(lm, self._readers[0], tree_lm, **options)
        self._is_chosen = False
        if lm.reader and not lm.reader.form.has(lm.text_form):
            LOG.warning(
                f"{lm.name}: --text_form {lm.text_form}, and the adapter was trained with"
                f" --text_form {lm.reader.form}, in which it reads the text"
            )

    def prepare(self, sentences: Sequence[Sequence[str]], form: Optional[str] = None) -> Reader:
        """Reader of the text form: of the `form` if one is given, which was chosen before.

        Else the form is the one that the LM was loaded with, and for `auto` the sentences choose it
        once.
        """
        is_first = not self._is_chosen
        if form is not None and (is_first or str(self.reader.form) != form):
            self.reader = Reader(self.lm.tokenizer, TextForm.parse(form))
        elif form is None and is_first and self.chooses:
            self.reader = self.choose(sentences, self._readers)
        elif form is None and is_first and self.is_open:
            self._check_unnamed(sentences)
        self._is_chosen = True
        if is_first and not self.tree_lm.takes_trees:
            LOG.info(f"{self.name}: its model reads no prefix trees; padded batches are used")
        return self.reader

    @property
    def text_form(self) -> str:  # type: ignore[override]
        """Form in which it reads text."""
        return str(self.reader.form)

    def choose(self, sentences: Sequence[Sequence[str]], readers: Sequence[Reader]) -> Reader:
        """Reader of the lowest perplexity on the first sentences; the first reader without any.

        All read a few of them, and those that are not clearly worse there the others too.
        """
        some = first_sentences(sentences)
        if len(readers) == 1 or not some:
            return readers[0]
        few = len(first_sentences(some, FEW_WORDS))
        written = {reader: [reader.encode(words) for words in some] for reader in readers}
        # the first of those that write these sentences alike
        distinct = {str((r.start, items)): r for r, items in reversed(written.items())}
        costs = {r: self._cost(r, written[r][:few]) for r in readers if r in distinct.values()}
        most = CLEARLY_WORSE * min(costs.values())
        close = {r: c + self._cost(r, written[r][few:]) for r, c in costs.items() if c <= most}
        best = min(close, key=close.__getitem__)
        LOG.info(
            f"{self.name}: text form: --text_form {best.form}"
            f" (perplexity {_perplexity(close[best], some)}; the worst of {len(readers)} forms has"
            f" {_perplexity(max(costs.values()), some[:few])})"
        )
        return best

    def _check_unnamed(self, sentences: Sequence[Sequence[str]]) -> None:
        """Warn if the parts of the form that have no name make a few sentences much less likely."""
        some, own = first_sentences(sentences, FEW_WORDS), self._readers[0]
        costs = {r: self._cost(r, [r.encode(words) for words in some]) for r in self._readers}
        self.reader, best = own, min(costs, key=costs.__getitem__)
        count = sum(len(words) + 1 for words in some)
        if costs[own] > costs[best] + count * math.log(COSTLY):
            LOG.warning(
                f"{self.name}: --text_form {self.lm.text_form} is {own.form} (perplexity"
                f" {_perplexity(costs[own], some)}), and {best.form} has"
                f" {_perplexity(costs[best], some)}: give --text_form {best.form}"
            )

    def _cost(self, reader: Reader, encoded: Sequence[Encoded]) -> float:
        """-ln p of sentences as a reader has encoded them."""
        self.reader = reader
        scores = self._scores(encoded, [self._passage(item) for item in encoded])
        return -sum(float(score.log_probs.sum()) for score in scores)


def _perplexity(cost: float, sentences: Sequence[Sequence[str]]) -> str:
    """Perplexity per word of sentences whose -ln p is given, in words."""
    count = sum(len(words) + 1 for words in sentences)
    return f"{math.exp(min(cost / count, 700)):.1f} on {count} words"
