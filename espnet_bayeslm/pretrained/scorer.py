"""A pretrained LM as a scorer of words, beside our own LMs and n-grams."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
from typing import Any, Callable, ContextManager, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.pretrained.causal_lm import CausalLM
from espnet_bayeslm.pretrained.text_forms import AUTO, Encoded, Reader, candidates
from espnet_bayeslm.pretrained.tree_scores import MAX_NODES, Ids, TreeScorer
from espnet_bayeslm.scoring import MAX_CONTEXT
from espnet_bayeslm.scoring.uncertainty import LoadedLM, Uncertainty
from espnet_bayeslm.scoring.words import word_log_probs
from espnet_bayeslm.utils.errors import InputError

# Words of the first sentences by which `auto` chooses the form
WORDS_TO_CHOOSE = 400
History = Tuple[int, ...]


class PretrainedScorer:
    """Scores words by a pretrained LM with its own tokenizer.

    Words are those between the blanks of the text. A word's probability is that of its tokens and
    of its end, so that the words after a prefix sum to one; ln P of a sentence is the LM's own.

    Args:
        lm: The LM.
        text_form: `as_is`, `lower`, `sentence` (capitals and a full stop), or `auto`: the form with
            the lowest perplexity on the first sentences that `prepare` or a score is asked for.
        max_nodes: The most tokens of a forward pass.
        max_context: The most tokens before an utterance that are read again.
        context: Sentences before each sentence of a text that are read with it.
        num_samples: Number of weight samples whose probabilities are averaged; 0: the posterior
            mean.
        reader: Writes sentences in the form that an adapted LM was trained with; None: it is
            chosen by `text_form`.

    Attributes:
        reader: Writes sentences in the chosen form; None before it is chosen.
    """

    def __init__(
        self,
        lm: CausalLM,
        *,
        text_form: str = AUTO,
        max_nodes: int = MAX_NODES,
        max_context: int = MAX_CONTEXT,
        context: int = 0,
        num_samples: int = 0,
        reader: Optional[Reader] = None,
    ):
        if context < 0:
            raise InputError(f"--context {context}: expected 0 or more sentences")
        self.context = context
        self.name, self.lm = lm.name, lm
        self.max_nodes, self.max_context = max_nodes, max_context
        self.num_samples = num_samples
        self.reader: Optional[Reader] = None
        self._readers = [reader] if reader else candidates(lm.tokenizer, text_form)
        self._scorer: Any = None

    @property
    def is_uncertain(self) -> bool:
        """True if some of its weights are random."""
        return self.lm.sampled is not None

    def prepare(self, sentences: Sequence[Sequence[str]]) -> Reader:
        """Reader of the text form, which these sentences choose if it is not chosen yet."""
        if self.reader is not None:
            return self.reader
        some, words = [], 0
        for sentence in filter(None, sentences):
            some.append(sentence)
            words += len(sentence)
            if words >= WORDS_TO_CHOOSE:
                break
        tried = self._readers if some else self._readers[:1]
        scorers, best = [self._tree_scorer(reader) for reader in tried], 0
        if len(tried) > 1:
            costs = [
                -sum(float(score.log_probs.sum()) for score in self._score(some, reader, scorer))
                for reader, scorer in zip(tried, scorers, strict=True)
            ]
            best, count = int(np.argmin(costs)), words + len(some)
            logging.info(
                f"{self.name}: text form: {tried[best].form}"
                f" (perplexity {math.exp(costs[best] / count):.1f} on {count} words; the worst of"
                f" {len(costs)} forms has {math.exp(min(max(costs) / count, 700)):.1f})"
            )
        self.reader, self._scorer = tried[best], scorers[best]
        if not self._scorer.takes_trees:
            logging.info(f"{self.name}: its model reads no prefix trees; padded batches are used")
        return tried[best]

    def _tree_scorer(self, reader: Reader) -> TreeScorer:
        openings = reader.openings(self.lm.model.get_output_embeddings().weight.shape[0])
        if self._scorer is None:
            self._scorer = TreeScorer(self.lm.model, openings, max_nodes=self.max_nodes)
        return self._scorer.with_openings(openings)

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of each sentence (words without `<s>`, `</s>`), in order."""
        reader, histories = self.prepare(sentences), None
        if self.context:
            encoded = [reader.encode(words).ids for words in sentences]
            histories = [
                self._cut(itertools.chain(*encoded[max(0, n - self.context) : n]))
                for n in range(len(sentences))
            ]
        return self._score(sentences, reader, self._scorer, histories)

    def scores_in_context(
        self, groups: Sequence[Sequence[Sequence[str]]], histories: Sequence[Optional[History]]
    ) -> List[List[WordScores]]:
        """Scores of each sentence of each group, given its group's history.

        Args:
            groups: The hypotheses of an utterance, for each of some recordings.
            histories: Tokens of what was said before in these, as `extended` returned them; None:
                nothing.
        """
        sentences = [words for group in groups for words in group]
        reader = self.prepare(sentences)
        pairs = zip(groups, histories, strict=True)
        before = [history or () for group, history in pairs for _ in group]
        found = iter(self._score(sentences, reader, self._scorer, before))
        return [[next(found) for _ in group] for group in groups]

    def extended(
        self, histories: Sequence[Optional[History]], sentences: Sequence[Sequence[str]]
    ) -> List[History]:
        """Histories after one more sentence of each recording."""
        reader = self.prepare(sentences)
        pairs = zip(histories, sentences, strict=True)
        return [self._cut([*(old or ()), *reader.encode(words).ids]) for old, words in pairs]

    def _cut(self, tokens: Iterable[int]) -> History:
        """Last `max_context` tokens."""
        whole = tuple(tokens)
        return whole[max(0, len(whole) - self.max_context) :]

    def _score(
        self,
        sentences: Sequence[Sequence[str]],
        reader: Reader,
        scorer: TreeScorer,
        histories: Optional[Sequence[History]] = None,
    ) -> List[WordScores]:
        """Scores of each sentence after its history; None: at a text's beginning."""
        encoded = [reader.encode(words) for words in sentences]
        before = [(*reader.start, *history) for history in histories or [()] * len(encoded)]
        pairs = list(zip(before, encoded, strict=True))
        self._check_lengths([len(tokens) + len(item.ids) for tokens, item in pairs])
        sequences = [(*tokens, *item.ids) for tokens, item in pairs]
        found = self._token_scores(scorer, sequences, [len(item.ids) for item in encoded])
        unk = self.lm.tokenizer.unk_token_id
        scores = []
        for item, (tokens, opens) in zip(encoded, found, strict=True):
            log_probs = _of_words(tokens, opens, item)
            words = itertools.pairwise(item.starts)
            unknown = [unk in item.ids[first:last] for first, last in words]
            scores.append(WordScores(log_probs, np.array([*unknown, False])))
        return scores

    def _token_scores(
        self, scorer: TreeScorer, sequences: Sequence[History], scored: Sequence[int]
    ) -> List[np.ndarray]:
        """Scores of tokens as `TreeScorer.log_probs`, their probabilities averaged over samples."""
        if not self.num_samples or self.lm.sampled is None:
            return scorer.log_probs(sequences, scored)
        of_samples = []
        for index in range(self.num_samples):
            with self.lm.sampled(index):
                of_samples.append(scorer.log_probs(sequences, scored))
        count = math.log(self.num_samples)
        return [np.logaddexp.reduce(rows) - count for rows in zip(*of_samples, strict=True)]

    def uncertainty(self, sentences: Sequence[Sequence[str]]) -> List[Uncertainty]:
        """Uncertainty of the words and the end of each sentence, over `num_samples`.

        The entropies of a word of several tokens are sums over them.
        """
        reader, held = self.prepare(sentences), self.lm.sampled
        if held is None:
            logging.warning("nothing in the LM is random: it is certain of its weights")
            contexts: List[Any] = [contextlib.nullcontext]
        else:
            contexts = [functools.partial(held, k) for k in range(max(1, self.num_samples))]
        encoded = [reader.encode(words) for words in sentences]
        sequences = [(*reader.start, *item.ids) for item in encoded]
        self._check_lengths(list(map(len, sequences)))
        scored = [len(item.ids) for item in encoded]
        found = token_entropies(self._scorer, sequences, scored, contexts)
        return [_words(u, item) for u, item in zip(found, encoded, strict=True)]

    def _check_lengths(self, lengths: Sequence[int]) -> None:
        """Raise an InputError where a sentence is longer than the LM's positions."""
        most = getattr(self.lm.model.config, "max_position_embeddings", None)
        longest = max(lengths, default=0)
        if most is not None and longest > most:
            raise InputError(
                f"{self.name}: a sentence with its context has {longest} tokens, and the LM reads"
                f" at most {most}",
                remedy="Split the sentence, or give a smaller --max_context.",
            )

    def unknown(self, words: Sequence[str]) -> List[bool]:
        """True for each word that has a token for unknown text."""
        unk = self.lm.tokenizer.unk_token_id
        return [unk in self._readers[0].encode([word]).ids for word in words]

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """(n + 1,) tokens of each word of a sentence and of `</s>`."""
        item = self.prepare([words]).encode(words)
        return np.diff([*item.starts, len(item.ids)])


def _of_words(tokens: np.ndarray, opens: np.ndarray, item: Encoded) -> np.ndarray:
    """(n + 1,) ln p of words and `</s>` from those of their tokens."""
    end = item.starts[-1]
    # `</s>` may have several tokens; only the first is in the context of the last word
    head = np.concatenate([tokens[:end], [tokens[end:].sum()]])
    return word_log_probs(head, item.starts, opens[: end + 1])


def _words(found: Uncertainty, item: Encoded) -> Uncertainty:
    """Uncertainty of words from that of their tokens, of which `</s>` may have several."""
    end = item.starts[-1]

    def joined(values: np.ndarray) -> np.ndarray:
        tail = values[..., end:].sum(-1, keepdims=True)
        return np.concatenate([values[..., :end], tail], axis=-1)

    assert found.openings is not None
    whole = Uncertainty(
        joined(found.draws),
        joined(found.log_probs),
        joined(found.entropy),
        joined(found.mutual_information),
        found.openings[:, : end + 1],
    )
    return whole.of_words(item.starts)


@torch.no_grad()
def token_entropies(
    scorer: TreeScorer,
    sequences: Sequence[Ids],
    scored: Sequence[int],
    contexts: Sequence[Callable[[], ContextManager[Any]]],
) -> List[Uncertainty]:
    """Uncertainty of the last tokens of sequences (Depeweg et al. 2018).

    Args:
        scorer: Reads the sequences.
        sequences: Tokens; the first is never scored.
        scored: How many of the last tokens are scored, for each sequence.
        contexts: Each holds one sample of the weights.
    """
    found: Dict[Ids, np.ndarray] = {}
    for batch in scorer.batches(sequences):
        rows: List[List[np.ndarray]] = []
        paths: List[np.ndarray] = []
        mean: Any = 0
        of_samples: Any = 0
        for context in contexts:
            with context():
                states, paths = scorer.states(batch)
                log_p = scorer.logits(states).float().log_softmax(1)
            targets = [ids[1:] for ids in batch]
            rows.append(scorer.scores(states, np.concatenate(paths), targets))
            p = log_p.exp()
            mean = mean + p
            of_samples = of_samples - (p * log_p).sum(1).double()
        mean = mean / len(contexts)
        entropy = -torch.xlogy(mean, mean).sum(1).double()
        information = (entropy - of_samples / len(contexts)).clamp(min=0)
        both = torch.stack([entropy, information]).cpu().numpy()
        for ids, path, *scores in zip(batch, paths, *rows, strict=True):
            # (K, 2, n - 1) scores, then (2, n - 1) entropies
            found[ids] = np.concatenate([np.array(scores).reshape(-1, len(path)), both[:, path]])
    return [_last(found[ids], count) for ids, count in zip(sequences, scored, strict=True)]


def _last(values: np.ndarray, count: int) -> Uncertainty:
    """Uncertainty of the last `count` tokens."""
    last = values[:, values.shape[1] - count :]
    draws, openings = last[:-2:2], last[1:-2:2]
    size = np.log(len(draws))
    log_probs = np.logaddexp.reduce(draws) - size
    opens = np.concatenate([openings, [np.logaddexp.reduce(openings) - size]])
    return Uncertainty(draws, log_probs, last[-2], last[-1], opens)


class PretrainedLM(LoadedLM):
    """A pretrained LM as `espnet_bayeslm.load` returns it.

    Args:
        lm: The LM and its tokenizer.
        text_form: As of `PretrainedScorer`; `auto` chooses by the first texts that are scored.
        reader: Reader of an adapted LM.

    Attributes:
        name: Its name in tables.
        reading: Arguments of a `PretrainedScorer` that say how it reads text.
        scorer: Scores its words by the posterior mean.
    """

    def __init__(self, lm: CausalLM, *, text_form: str = AUTO, reader: Optional[Reader] = None):
        self.name, self.fingerprint = lm.name, lm.fingerprint
        self.causal_lm = lm
        self.reading = {"text_form": text_form, "reader": reader}
        self.scorer = PretrainedScorer(lm, text_form=text_form, reader=reader)

    @property
    def lm(self) -> Any:
        """The model of `transformers`."""
        return self.causal_lm.model

    @property
    def tokens(self) -> List[str]:
        """All tokens of its tokenizer; the index is the id."""
        tokenizer = self.causal_lm.tokenizer
        found: List[str] = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        return found

    def _scorer(self, num_samples: int) -> PretrainedScorer:
        self.scorer.num_samples = num_samples
        return self.scorer
