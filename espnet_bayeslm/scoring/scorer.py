"""Scores of words by any LM, from the log-probabilities of its tokens.

An LM reads a recording as one text, a sentence after the other. A recurrent LM continues from its
state after the last word, and an LM that keeps keys from those of the tokens that it has read; any
other reads the last tokens again, the first of them at position 0.
An LM that was trained on single sentences has never seen a sentence's start in the middle: try on
dev whether context helps.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.lm.tree import Ids
from espnet_bayeslm.scoring import MAX_CONTEXT, MAX_TOKENS
from espnet_bayeslm.scoring.log_probs import word_sums
from espnet_bayeslm.scoring.reader import SPACE, WORD_MARK, Encoded, TokenReader, WordReader
from espnet_bayeslm.scoring.tree_lm import ESPnetTreeLM, Passage, TreeLM
from espnet_bayeslm.scoring.word_scores import WordScorer, WordScores, unk_size_error
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.prefixes import WordState
    from espnet_bayeslm.scoring.uncertainty import Uncertainty


# Tokens with a sign of a blank, which plain text never has: sentencepiece's, and GPT-2's
MARKED = re.compile(f"[{WORD_MARK}\u0120]|{SPACE}$")


class History(NamedTuple):
    """Recording so far, as an LM knows it; None stands for a recording's beginning.

    Attributes:
        tokens: The last tokens; of a recurrent LM none.
        states: For each sample: state of a recurrent LM after the recording so far, or the text
            whose keys an LM keeps (`TreeLM.texts`).
    """

    tokens: Ids = ()
    states: Tuple[Any, ...] = ()


Histories = Sequence[Optional[History]]


class LMScorer(WordScorer):
    """Scores words by an LM.

    Words are those between the blanks of the text. A word's probability is that of its tokens and
    of its end, so that the words after a prefix sum to one; ln P of a sentence is the LM's own.

    Args:
        lm: The LM with its tokenizer, as `espnet_bayeslm.load` returns it.
        reader: Cuts sentences into the LM's tokens.
        tree_lm: Computes ln p of tokens.
        num_samples: Number of weight samples whose probabilities are averaged; 0: the posterior
            mean.
        max_context: Tokens before an utterance that are read again, at most; of an LM that keeps
            their keys, between half and twice as many are read on from.
        context: Number of sentences of a text before each sentence that the LM reads first; 0:
            each sentence by itself.
        unk_size: Number of words that share the probability of `<unk>`.

    Attributes:
        log_unk_size: Cost of each `<unk>`, since words share its probability, in nats.
    """

    def __init__(
        self,
        lm: Any,
        reader: WordReader,
        tree_lm: TreeLM,
        *,
        num_samples: int = 0,
        max_context: int = MAX_CONTEXT,
        context: int = 0,
        unk_size: float = 1.0,
    ):
        if not 1 <= unk_size < math.inf:
            raise unk_size_error(unk_size)
        self.name, self.lm = lm.name, lm
        self.reader, self.tree_lm = reader, tree_lm
        self.num_samples, self.max_context, self.context = num_samples, max_context, context
        self.log_unk_size = math.log(unk_size)
        self._prefixes: Any = None

    @property
    def is_uncertain(self) -> bool:  # type: ignore[override]
        """True if something in the LM is random."""
        return self.tree_lm.is_uncertain

    def check_plain(self, sentences: Sequence[Sequence[str]]) -> None:
        """Raise an InputError if most sentences are in tokens already."""
        check_is_plain(sentences, self.reader.is_token, name=self.name)

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of each sentence; a word is OOV where a token of it is `<unk>`."""
        check_is_plain(sentences, self.reader.is_token, name=self.name)
        if self.reads_in_forms:
            self.prepare(sentences)
        encoded = [self.reader.encode(words) for words in sentences]
        passages = [self._passage(item) for item in encoded]
        LOG.info("scoring %d distinct of %d token sequences", len(set(passages)), len(passages))
        return self._scores(encoded, self._running(encoded) if self.context else passages)

    def scores_in_context(
        self, groups: Sequence[Sequence[Sequence[str]]], histories: Histories
    ) -> List[List[WordScores]]:
        """Scores of the hypotheses of an utterance, in each of some recordings.

        Histories are those of the recordings, as `extended` returned them; None: the beginning.
        """
        self.tree_lm.require("context")
        sentences = [words for group in groups for words in group]
        self.check_plain(sentences)
        self.prepare(sentences)
        encoded = [self.reader.encode(words) for words in sentences]
        known = [History() if history is None else history for history in histories]
        states = [history.states or None for history in known]
        # without states recordings share a root
        roots = range(len(known)) if any(states) else [0] * len(known)
        before = [
            (history.tokens, root)
            for group, history, root in zip(groups, known, roots, strict=True)
            for _ in group
        ]
        passages = [self._passage(e, *b) for e, b in zip(encoded, before, strict=True)]
        if any(states) and not self.tree_lm.continues:
            passages = self._unread(passages, states)
        found = iter(self._scores(encoded, passages, states if any(states) else ()))
        return [[next(found) for _ in group] for group in groups]

    def extended(self, histories: Histories, sentences: Sequence[Sequence[str]]) -> List[History]:
        """Histories after one more sentence of each recording."""
        self.tree_lm.require("context")
        self.prepare(sentences)
        encoded = [self.reader.encode(words) for words in sentences]
        self.tree_lm.check([self._passage(item) for item in encoded])
        pairs = list(zip(histories, encoded, strict=True))
        start, count = self.reader.start, len(self.reader.end)
        if self.tree_lm.continues:
            texts = [(*start, *item.ids[:-count]) for item in encoded]
            before = [None if history is None else history.states for history in histories]
            states = self.tree_lm.states_after(texts, before, self.num_samples) if texts else []
            return [History(states=after) for after in states]
        found = []
        for history, item in pairs:
            old, kept = History() if history is None else history
            kept = kept or self.tree_lm.texts(self.num_samples)
            new = (*start, *item.ids[:-count]) if self.reader.joins else tuple(item.ids)
            tokens = (*old, *new)
            if not kept:
                tokens = self._cut(tokens, self.max_context)
            elif len(tokens) > 2 * self.max_context:
                # what is left has to be read again: the less, the more seldom
                tokens = self._cut(tokens, math.ceil(self.max_context / 2))
            read = self._passage(Encoded([], []), tokens).tokens
            found.append(History(tokens, tuple(text.part(read) for text in kept)))
        return found

    def uncertainty(self, sentences: Sequence[Sequence[str]]) -> List[Uncertainty]:
        """Uncertainty of the words and `</s>` of each sentence, over `num_samples`.

        The entropies of a word of several tokens are sums over them (Depeweg et al. 2018).
        """
        from espnet_bayeslm.scoring.uncertainty import token_uncertainty

        self.prepare(sentences)
        encoded = [self.reader.encode(words) for words in sentences]
        found = token_uncertainty(
            self.tree_lm,
            [self._passage(item) for item in encoded],
            num_samples=self.num_samples,
            openings=self.reader.openings,
        )
        unk = self.reader.unk
        return [
            tokens.of_words(item.starts, [self.log_unk_size * (t == unk) for t in item.ids])
            for tokens, item in zip(found, encoded, strict=True)
        ]

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """(n + 1,) tokens of each word of a sentence and of `</s>`."""
        if self.reads_in_forms:
            self.prepare([words])
        item = self.reader.encode(words)
        return np.diff([*item.starts, len(item.ids)])

    def unknown(self, words: Sequence[str]) -> List[bool]:
        """True for each word that has `<unk>` among its tokens."""
        encoded = [self.reader.encode([word]) for word in words]
        # without the tokens of the end, such as a full stop
        return [self.reader.unk in item.ids[: item.starts[-1]] for item in encoded]

    def known_words(self) -> Optional[List[str]]:
        """All words that the LM knows; None: it makes them of tokens."""
        return [word for word in self.reader.words if not word.startswith("<")] or None

    def begin(
        self, *, anywhere: bool = False, vocabulary: Optional[Iterable[str]] = None
    ) -> WordState:
        """State before the first word of a sentence, from which words are scored one by one."""
        from espnet_bayeslm.scoring.prefixes import PrefixScorer

        how = (self.reader, self.tree_lm, self.num_samples, self.log_unk_size)
        if self._prefixes is None or self._prefixes.how != how:
            self._prefixes = PrefixScorer(*how)
        found: WordState = self._prefixes.begin(vocabulary, same_weights=self.weights_stay)
        return found

    def after(self, state: WordState, word: str) -> WordState:
        """State after one more word; nothing is computed yet."""
        found: WordState = self._prefixes.after(state, word)
        return found

    def next_words(self, states: Sequence[WordState], words: Sequence[str]) -> np.ndarray:
        """Ln p of a word, or of `END`, after each state, (N,); each prefix is computed once."""
        found: np.ndarray = self._prefixes.next_words(states, words)
        return found

    @staticmethod
    def _cut(tokens: Sequence[int], most: int) -> Ids:
        """The last tokens, `most` at most."""
        return tuple(tokens[max(0, len(tokens) - most) :])

    def _passage(self, item: Encoded, history: Ids = (), root: int = 0) -> Passage:
        """Tokens of a sentence after a recording so far."""
        start = tuple(self.reader.start)
        before = (*history, *start) if self.reader.joins else (*start, *history)
        return Passage(root, (*before, *item.ids), len(item.ids))

    def _unread(
        self, passages: Sequence[Passage], texts: Sequence[Optional[Sequence[Any]]]
    ) -> List[Passage]:
        """Passages without the first tokens, where their keys are kept.

        The texts are those of each root; where a passage is too long to go on, all are read whole.
        """
        longest = max((len(passage.tokens) for passage in passages), default=0)
        firsts = {passage.root: passage for passage in passages}
        for root, passage in firsts.items():
            # the last token before those that are scored is read again: its output is needed
            before = passage.tokens[: len(passage.tokens) - passage.scored - 1]
            for text in texts[root] or ():
                text.path = text.rows_of(before) if longest <= self.tree_lm.reach else []
        counts = [len(of_samples[0].path) if of_samples else 0 for of_samples in texts]
        return [p._replace(tokens=p.tokens[counts[p.root] :]) for p in passages]

    def _running(self, encoded: Sequence[Encoded]) -> List[Passage]:
        """Passages of the sentences of a text, each after sentences before it.

        Where a sentence's end is the next one's start, runs of `context` sentences are scored at
        once, after the `context` sentences before the run. A sentence thus sees at least `context`
        sentences before it, fewer than twice as many, and at the text's start all earlier ones. The
        LM should have been trained on lines that are joined in this way. Otherwise each sentence
        has the last tokens of the `context` sentences before it.
        """
        found, size = [], self.context
        for begin in range(0, len(encoded), size if self.reader.joins else 1):
            before = [token for item in encoded[max(0, begin - size) : begin] for token in item.ids]
            if not self.reader.joins:
                found.append(self._passage(encoded[begin], self._cut(before, self.max_context)))
                continue
            run = [token for item in encoded[begin : begin + size] for token in item.ids]
            found.append(Passage(0, (*self.reader.start, *before, *run), len(run)))
        return found

    def _scores(
        self, encoded: Sequence[Encoded], passages: Sequence[Passage], states: Sequence[Any] = ()
    ) -> List[WordScores]:
        """Scores of the words of sentences, whose tokens are those of the passages in order."""
        if not encoded:
            return []
        openings = self.reader.openings
        found = self.tree_lm.log_probs(
            passages, num_samples=self.num_samples, openings=openings, states=states
        )
        ends = np.cumsum([len(item.ids) for item in encoded])
        tokens = np.split(np.concatenate(found, axis=-1), ends[:-1], axis=-1)
        scores = []
        for item, values in zip(encoded, tokens, strict=True):
            log_probs, masses = (values, None) if openings is None else values
            words = word_sums(log_probs, item.starts, masses)
            unknown = word_sums(np.array(item.ids) == self.reader.unk, item.starts) > 0
            unknown[-1] = False  # such as a full stop that a tokenizer lacks
            scores.append(WordScores(words - self.log_unk_size * unknown, unknown))
        return scores


def token_scorer(
    trained: Any, *, max_tokens: int = MAX_TOKENS, unk_size: float = 1.0, **options: Any
) -> LMScorer:
    """Scorer of an ESPnet LM over words, sentencepieces or characters.

    Args:
        trained: The LM with its tokenizer (`loading.trained_lm.TrainedLM`).
        max_tokens: The most tokens of a batch.
        unk_size: Number of words that share the probability of `<unk>`, where tokens are words.
        **options: Options of `LMScorer`.
    """
    if reason := getattr(trained.lm, "only_decodes", ""):
        raise InputError(
            f"{trained.name}: {reason}: it is for ESPnet's decoding alone",
            remedy="Give its LMs apart, by --lm, --ngram and --subtract_lm.",
        )
    options["unk_size"] = unk_size if trained.token_type == "word" else 1.0
    tree_lm = ESPnetTreeLM(trained.lm, max_tokens=max_tokens, name=trained.name)
    return LMScorer(trained, TokenReader(trained), tree_lm, **options)


def check_is_plain(
    sentences: Iterable[Sequence[str]], is_token: Callable[[str], bool], *, name: str
) -> None:
    """Raise an InputError if most sentences are in tokens already: they have marked tokens."""
    filled = [words for words in sentences if words]
    marked = ((w for w in words if MARKED.match(w) and is_token(w)) for words in filled)
    pieces = [piece for found in marked for piece in itertools.islice(found, 1)]
    if 2 * len(pieces) > len(filled):
        examples = ", ".join(map(repr, dict.fromkeys(pieces[:3])))
        raise InputError(
            f"{name}: the text is in tokens ({examples}) already, where words were expected:"
            " they would be cut again",
            remedy="Give plain text; `bayeslm interpolate --unit token` mixes by tokens.",
        )
