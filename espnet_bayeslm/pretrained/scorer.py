"""A pretrained LM as a scorer of words, beside our own LMs and n-grams."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Optional,
    Sequence,
)

import numpy as np
import torch

from espnet_bayeslm.pretrained.names import other_options
from espnet_bayeslm.pretrained.text_forms import (
    AUTO,
    Reader,
    TextForm,
    candidates,
    first_sentences,
)
from espnet_bayeslm.pretrained.tree_scores import TreeScorer
from espnet_bayeslm.scoring import MAX_CONTEXT
from espnet_bayeslm.scoring.log_probs import Ids
from espnet_bayeslm.scoring.uncertainty import LoadedLM, Uncertainty
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.scoring.words import check_is_plain, marked_tokens, word_log_probs
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG


@dataclasses.dataclass(frozen=True)
class PretrainedLM(LoadedLM):
    """A causal LM with its own tokenizer, as `espnet_bayeslm.load` returns it.

    Attributes:
        name: Its name in tables.
        model: A model of `transformers` in evaluation mode, or a peft model around one.
        tokenizer: Its tokenizer, with offsets.
        fingerprint: Digest of its weights, configuration and tokenizer.
        licence: Licence that its card names; empty if the card names none.
        sampled: (index) -> context that holds a sample of its random weights; None: there are none.
        text_form: Form in which it reads text, `FORM[,MARKS[,BLANK]]` (`text_forms.TextForm`), or
            `auto`: the form with the lowest perplexity on the first sentences that are scored.
        reader: Writes sentences in the form that an adapter was trained with; None: the form is
            chosen by `text_form`.
    """

    name: str
    model: Any
    tokenizer: Any
    fingerprint: str
    licence: str = ""
    sampled: Optional[Callable[[int], ContextManager[None]]] = None
    text_form: str = AUTO
    reader: Optional[Reader] = None

    @property
    def lm(self) -> Any:
        """The model of `transformers`."""
        return self.model

    @property
    def tokens(self) -> List[str]:
        """All tokens of its tokenizer; the index is the id."""
        found: List[str] = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        return found

    def at_mean(self) -> PretrainedLM:
        """The LM at its posterior mean, an adapter added to the weights that it adapts.

        It is as fast as its base. The model is changed in place. An adapter with options beyond
        LoRA's, or on an embedding, which may be the output projection too, stays beside its base.
        """
        model, configs = self.model, getattr(self.model, "peft_config", {})
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        adapts_ends = any(hasattr(end, "base_layer") for end in ends)
        if configs and not adapts_ends and not any(map(other_options, configs.values())):
            model = model.merge_and_unload().eval()
        return dataclasses.replace(self, model=model, sampled=None)

    @functools.cached_property
    def scorer(self) -> PretrainedScorer:
        """Scorer of its words."""
        return PretrainedScorer(self)

    def _scorer(self, num_samples: int) -> PretrainedScorer:
        self.scorer.num_samples = num_samples
        return self.scorer


class PretrainedScorer:
    """Scores words by a pretrained LM with its own tokenizer.

    Words are those between the blanks of the text. A word's probability is that of its tokens and
    of its end, so that the words after a prefix sum to one; ln P of a sentence is the LM's own.

    Args:
        lm: The LM.
        max_context: The most tokens before an utterance that are read again.
        context: Sentences before each sentence of a text that are read with it.
        num_samples: Number of weight samples whose probabilities are averaged; 0: the posterior
            mean.

    Attributes:
        reader: Writes sentences in the chosen form; None before it is chosen.
    """

    def __init__(
        self,
        lm: PretrainedLM,
        *,
        max_context: int = MAX_CONTEXT,
        context: int = 0,
        num_samples: int = 0,
    ):
        self.name, self.lm = lm.name, lm
        self.max_context, self.context, self.num_samples = max_context, context, num_samples
        self.reader: Optional[Reader] = None
        self._readers = [lm.reader] if lm.reader else candidates(lm.tokenizer, lm.text_form)
        if lm.reader and lm.text_form != AUTO:
            given, own = TextForm.parse(lm.text_form), lm.reader.form
            if given != own:
                LOG.warning(
                    f"{lm.name}: --text_form {given}, and the adapter was trained with --text_form"
                    f" {own}, in which it reads the text"
                )

    @functools.cached_property
    def _marked(self) -> FrozenSet[str]:
        return marked_tokens(self.lm.tokenizer.get_vocab())

    @functools.cached_property
    def _trees(self) -> TreeScorer:
        return TreeScorer(self.lm.model)

    @property
    def is_uncertain(self) -> bool:
        """True if some of its weights are random."""
        return self.lm.sampled is not None

    def prepare(self, sentences: Sequence[Sequence[str]], kept: Optional[str] = None) -> Reader:
        """Reader of the text form, which is chosen if it is not chosen yet.

        The form is the one that the LM was loaded with. For `auto` it is `kept`, from an earlier
        choice, else the sentences choose.
        """
        if self.reader is None:
            if kept is not None and len(self._readers) > 1:
                self.reader = Reader(self.lm.tokenizer, TextForm.parse(kept))
            else:
                self.reader = self.choose(sentences, self._readers)
            if not self._trees.takes_trees:
                LOG.info(f"{self.name}: its model reads no prefix trees; padded batches are used")
        return self.reader

    def read_as(self, form: TextForm) -> None:
        """Read sentences in a form from now on."""
        if self.reader is None or self.reader.form != form:
            self.reader = Reader(self.lm.tokenizer, form)

    def choose(self, sentences: Sequence[Sequence[str]], readers: Sequence[Reader]) -> Reader:
        """Reader of the lowest perplexity on the first sentences; the first reader without any."""
        some = first_sentences(sentences)
        if len(readers) == 1 or not some:
            return readers[0]
        costs = [
            -sum(float(score.log_probs.sum()) for score in self._score(some, reader))
            for reader in readers
        ]
        best, count = int(np.argmin(costs)), sum(len(words) + 1 for words in some)
        LOG.info(
            f"{self.name}: text form: --text_form {readers[best].form}"
            f" (perplexity {math.exp(min(costs[best] / count, 700)):.1f} on {count} words; the"
            f" worst of {len(costs)} forms has {math.exp(min(max(costs) / count, 700)):.1f})"
        )
        return readers[best]

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of each sentence (words without `<s>`, `</s>`), in order."""
        check_is_plain(sentences, self._marked, name=self.name)
        reader, histories = self.prepare(sentences), None
        if self.context:
            encoded = [reader.encode(words).ids for words in sentences]
            histories = [
                self._cut(itertools.chain(*encoded[max(0, n - self.context) : n]))
                for n in range(len(sentences))
            ]
        return self._score(sentences, reader, histories)

    def scores_in_context(
        self, groups: Sequence[Sequence[Sequence[str]]], histories: Sequence[Optional[Ids]]
    ) -> List[List[WordScores]]:
        """Scores of each sentence of each group, given its group's history.

        Args:
            groups: The hypotheses of an utterance, for each of some recordings.
            histories: Tokens of what was said before in these, as `extended` returned them; None:
                nothing.
        """
        sentences = [words for group in groups for words in group]
        check_is_plain(sentences, self._marked, name=self.name)
        reader = self.prepare(sentences)
        pairs = zip(groups, histories, strict=True)
        before = [history or () for group, history in pairs for _ in group]
        found = iter(self._score(sentences, reader, before))
        return [[next(found) for _ in group] for group in groups]

    def extended(
        self, histories: Sequence[Optional[Ids]], sentences: Sequence[Sequence[str]]
    ) -> List[Ids]:
        """Histories after one more sentence of each recording."""
        reader = self.prepare(sentences)
        pairs = zip(histories, sentences, strict=True)
        return [self._cut([*(old or ()), *reader.encode(words).ids]) for old, words in pairs]

    def _cut(self, tokens: Iterable[int]) -> Ids:
        """Last `max_context` tokens."""
        whole = tuple(tokens)
        return whole[max(0, len(whole) - self.max_context) :]

    def _score(
        self,
        sentences: Sequence[Sequence[str]],
        reader: Reader,
        histories: Optional[Sequence[Ids]] = None,
    ) -> List[WordScores]:
        """Scores of each sentence after its history; None: at a text's beginning."""
        encoded = [reader.encode(words) for words in sentences]
        before = [(*reader.start, *history) for history in histories or [()] * len(encoded)]
        pairs = list(zip(before, encoded, strict=True))
        self._check_lengths([len(tokens) + len(item.ids) for tokens, item in pairs])
        sequences = [(*tokens, *item.ids) for tokens, item in pairs]
        scored = [len(item.ids) for item in encoded]
        of_samples = []
        for context in self._contexts(self.num_samples):
            with context():
                of_samples.append(self._trees.log_probs(sequences, scored, reader.openings))
        count = math.log(len(of_samples))
        found = [np.logaddexp.reduce(rows) - count for rows in zip(*of_samples, strict=True)]
        unk = self.lm.tokenizer.unk_token_id
        scores = []
        for item, (tokens, opens) in zip(encoded, found, strict=True):
            log_probs = word_log_probs(tokens, item.starts, opens)
            words = itertools.pairwise(item.starts)
            unknown = [unk in item.ids[first:last] for first, last in words]
            scores.append(WordScores(log_probs, np.array([*unknown, False])))
        return scores

    def _contexts(self, num_samples: int) -> List[Callable[[], ContextManager]]:
        """Contexts that hold each sample of the random weights; one without effect: the mean."""
        if not num_samples or self.lm.sampled is None:
            return [contextlib.nullcontext]
        return [functools.partial(self.lm.sampled, index) for index in range(num_samples)]

    @torch.no_grad()
    def uncertainty(self, sentences: Sequence[Sequence[str]]) -> List[Uncertainty]:
        """Uncertainty of the words and the end of each sentence, over `num_samples`.

        The entropies of a word of several tokens are sums over them (Depeweg et al. 2018).
        """
        reader, contexts = self.prepare(sentences), self._contexts(max(1, self.num_samples))
        if not self.is_uncertain:
            LOG.warning("nothing in the LM is random: it is certain of its weights")
        encoded = [reader.encode(words) for words in sentences]
        sequences = [(*reader.start, *item.ids) for item in encoded]
        self._check_lengths(list(map(len, sequences)))
        found: Dict[Ids, Uncertainty] = {}
        first = len(reader.start) - 1
        for batch in self._trees.batches(sequences):
            targets = [ids[1:] for ids in batch]
            rows: List[List[np.ndarray]] = []
            mean: Any = 0
            of_samples: Any = 0
            for context in contexts:
                with context():
                    states, paths = self._trees.states(batch)
                    log_p = self._trees.logits(states).float().log_softmax(1)
                places = np.concatenate(paths)
                rows.append(self._trees.scores(states, places, targets, reader.openings))
                p = log_p.exp()
                mean = mean + p
                of_samples = of_samples - (p * log_p).sum(1).double()
            mean = mean / len(contexts)
            entropy = -torch.xlogy(mean, mean).sum(1).double()
            information = (entropy - of_samples / len(contexts)).clamp(min=0)
            both = torch.stack([entropy, information]).cpu().numpy()
            for ids, path, *scores in zip(batch, paths, *rows, strict=True):
                # (K, n) each, without the tokens of the start
                draws, openings = np.stack(scores, axis=1)[..., first:]
                found[ids] = Uncertainty.of_draws(draws, both[:, path[first:]], openings)
        pairs = zip(sequences, encoded, strict=True)
        return [found[ids].of_words(item.starts) for ids, item in pairs]

    def _check_lengths(self, lengths: Sequence[int]) -> None:
        """Raise an InputError where a sentence is longer than the LM's positions."""
        config = self.lm.model.config.get_text_config()
        most = getattr(config, "max_position_embeddings", None)
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
        reader = self.reader or self._readers[0]
        encoded = [reader.encode([word]) for word in words]
        # without the tokens of the end, as the full stop of `sentence`
        return [unk in item.ids[: item.starts[-1]] for item in encoded]

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """(n + 1,) tokens of each word of a sentence and of `</s>`."""
        item = self.prepare([words]).encode(words)
        return np.diff([*item.starts, len(item.ids)])
