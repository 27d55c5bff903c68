"""Words of any LM in the search of a recogniser with other tokens: an ESPnet LM over its tokens.

Words are paid one step late (`word_payments`), as a constant over the next tokens, and `<sos/eos>`
pays the last word and the sentence's end. A small LM of the recogniser's own tokens looks ahead: it
scores each token at once. What it gave a word is taken back when the word is paid, and a finished
hypothesis has the ln P of its text; or it stays, log-linearly. A bias list adds the weight of the
phrases that a hypothesis holds, with LMs or alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from typeguard import typechecked

from espnet_bayeslm.decoding.bias_search import BiasTree, checked_bias
from espnet_bayeslm.decoding.ctc_ends import CTCEnds, CTCPrefix
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.decoding.word_payments import ALL_END, END_MARGIN, PaidText, WordPayments
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.lm.beam_search import Step, TokenIds
from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.lm.ngram import LogProbLM
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.rescoring.rescore_options import BIAS_WEIGHT
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

# CTC rules an end out whose ln p is below this
CTC_END = -8.0
NO_ENDS = (
    "A transducer's search has no end of a sentence: the last word of each hypothesis keeps the"
    " look-ahead's score. espnet_bayeslm.speech2text() makes a search that pays it."
)


@dataclasses.dataclass(slots=True)
class FusionState:
    """A hypothesis; no tuple, whose parts ESPnet would copy when it ends.

    Attributes:
        text: Its words, and what has been paid for them.
        ahead: State of the look-ahead.
        row: What the look-ahead gives each next token, (V,); None before the first token.
        heard: The tokens as the recogniser's CTC has heard them; None: no CTC is asked.
    """

    text: PaidText
    ahead: Any = None
    row: Optional[np.ndarray] = None
    heard: Optional[CTCPrefix] = None


class _Loaded:
    """A mixture that is loaded once for each device, and shared by copies of an LM.

    Nobody else has it, so that its weights stay, where files and not models are loaded.
    """

    def __init__(self, options: MixtureOptions, text_forms: Mapping[str, str]):
        self._options, self._text_forms = options, text_forms
        self._of_device: Dict[torch.device, Mixture] = {}

    def on(self, device: torch.device) -> Mixture:
        """Mixture on a device."""
        if device not in self._of_device:
            mixture = Mixture.load(self._options, str(device))
            mixture.prepare(None, self._text_forms)
            for component, source in zip(mixture.every, self._options.lms, strict=False):
                component.scorer.weights_stay = isinstance(source, (str, Path))
            self._of_device[device] = mixture
        return self._of_device[device]

    def __deepcopy__(self, memo: Any) -> _Loaded:
        """Mixtures themselves: no search changes them."""
        return self


def _check_digests(mixture: Mixture, digests: Mapping[str, str]) -> None:
    """Raise an InputError where the files of a component have changed."""
    for component in mixture.components:
        if digests.get(component.name, component.fingerprint) != component.fingerprint:
            raise InputError(
                f"{component.name}: its files have changed since the fusion was written",
                remedy="Write it again: bayeslm export --format fusion.",
            )


class FusionLM(LogProbLM):
    """Components that score words, as an LM of a recogniser's tokens.

    Args:
        vocab_size: Number of tokens.
        tokens: The recogniser's tokens.
        components: Options of `ComponentOptions`: `lms`, `ngrams`, `num_samples`, ...
        text_forms: Form in which each pretrained LM reads text, by the component's name.
        weights: Weights of the components, of sum 1.
        digests: Digest of each component's files, by its name; an empty mapping: not checked.
        normalize: What is done to a word before an LM reads it, as `--normalize`.
        ahead: Components of the look-ahead, an LM of the recogniser's tokens, as `MixtureLM` has
            them; None: there is none.
        ahead_weight: Weight of the look-ahead where the components' mixture has weight 1.
        takes_back: False: scores of a look-ahead stay in the totals (`ahead_stays`); True: its part
            of a word is taken back when the word is paid.
        end_margin: The look-ahead rules an end out that is so many nats less likely than the
            likeliest token.
        ctc_features: Size of the output of the recogniser's encoder, whose CTC rules ends out too;
            0: no CTC is asked.
        interval: Words are paid at each so many tokens of a hypothesis, and before its end: a large
            LM reads the words of several tokens in the time of one.
        bias: Phrases of every utterance, in a list, a mapping to weights of their own, or a file;
            an empty list: `set_bias` gives them. None: there are none.
        bias_weight: Weight of a phrase where the components' mixture has weight 1, in nats.
        ids: Ids of `blank`, `sos` and `eos`; None: the blank is the first token, and the last one
            begins and ends sentences.

    Attributes:
        payments: Words of the tokens, and what they are paid.
        own_bias: The list that `bias` gives.
        ids: Ids of blank, start and end.
        ends_apart: True where a transducer's search asks for ends by `end_scores`.
        ends_wait: True while a search runs that asks for ends by `end_rests` when it is over. Until
            then the look-ahead stands in for them.
        prompt: Number of tokens before the start of a sentence.
    """

    # ESPnet's transducer search asks for it
    rnn_type = "fusion"
    only_decodes = "words are paid one step late in it, so its scores are no probabilities"

    @typechecked
    def __init__(
        self,
        vocab_size: int,
        tokens: Optional[list] = None,
        components: Any = None,
        text_forms: Any = None,
        weights: Optional[list] = None,
        digests: Any = None,
        normalize: str = "",
        ahead: Any = None,
        ahead_weight: float = 0.5,
        takes_back: bool = True,
        end_margin: float = END_MARGIN,
        ctc_features: int = 0,
        interval: int = 1,
        bias: Any = None,
        bias_weight: float = BIAS_WEIGHT,
        ids: Any = None,
    ):
        super().__init__()
        if not (components or bias is not None) or tokens is None or len(tokens) != vocab_size:
            raise InputError(
                f"lm fusion: expected `components` or `bias`, and {vocab_size} `tokens`",
                remedy="Let `bayeslm export --format fusion` write the configuration.",
            )
        self.vocab_size = vocab_size
        self.ids = TokenIds.of(vocab_size, ids)
        self.blank, self.sos, _ = self.ids
        self.ends_apart: Optional[bool] = None
        self.ends_wait = False
        self.prompt = 0
        self.ahead: Optional[MixtureLM] = None
        if ahead is not None:
            self.ahead = MixtureLM(vocab_size, components=ahead, tokens=tokens, ids=self.ids)
        self.ctc = CTCEnds(vocab_size, ctc_features) if ctc_features else None
        self._encoded: Optional[torch.Tensor] = None
        self.ahead_weight, self.ahead_stays = ahead_weight, ahead is not None and not takes_back
        self.end_margin = end_margin
        # a search, and the state of the mixture before its first word
        self._begun: Tuple[Any, Any] = (None, None)
        normalization = Normalization(normalize)
        normalization.check_by_word("lm fusion")
        own = TokenWords(tokens)
        self._is_mark = ~np.array(own.is_text)
        self._is_mark[[n for n in (self.blank, self.ids.eos) if n is not None]] = False
        self._spoken = ~self._is_mark
        if self.blank is not None:
            self._spoken[self.blank] = False
        self._marks = self._is_mark.nonzero()[0]
        self.payments = WordPayments(own, normalization, interval)
        self.bias_weight = bias_weight
        self.own_bias = checked_bias(bias or (), own, normalization)
        self._lists: Sequence[BiasList] = ()
        self.set_bias(None)
        self._loaded: Optional[_Loaded] = None
        if components:
            options = MixtureOptions(**components, weights=[1.0] if weights is None else weights)
            self._loaded = _Loaded(options, text_forms or {})
            _check_digests(self._loaded.on(torch.device("cpu")), digests or {})
        # has no elements, and tells which device and type the results are to have
        self.register_buffer("like", torch.empty(0), persistent=False)

    def set_bias(self, bias: Union[BiasList, Sequence[BiasList], None]) -> None:
        """Set the bias list of the next searches, normalised as words are; None: as at first.

        Args:
            bias: The list, or one of each utterance of a batch, in the order of the batch.
        """
        given = [bias] if isinstance(bias, BiasList) else bias
        lists = [self.own_bias] if given is None else [*given]
        if [*map(id, lists)] != [*map(id, self._lists)]:
            trees = {id(own): self._tree(own) for own in lists}
            self._lists, self._trees = lists, [trees[id(own)] for own in lists]

    def _tree(self, bias: BiasList) -> Optional[BiasTree]:
        """Bias list over the tokens; None where it is empty."""
        return BiasTree(bias, self.payments.spelled) if len(bias) else None

    def bias_total(self, ids: Sequence[int], bias: Optional[BiasList] = None) -> float:
        """Weight of the phrases of a bias list that some tokens hold, with `bias_weight`.

        Args:
            ids: The tokens.
            bias: The list; None: that of the next search.
        """
        own = self._lists[0] if bias is None else bias
        return self.bias_weight * own.total(self.payments.words(ids)) if len(own) else 0.0

    @property
    def has_bias(self) -> bool:
        """True if the next search has a bias list, which may be empty for its utterance."""
        return self._lists[0] is not self.own_bias or len(self.own_bias) > 0

    @property
    def has_words(self) -> bool:
        """True if LMs or n-grams pay words."""
        return self._loaded is not None

    @property
    def has_lms(self) -> bool:
        """True if not only a bias list scores hypotheses."""
        return self.has_words or self.ahead is not None

    def zero_state(self) -> FusionState:
        """State before the first token."""
        return self.zero_states(1)[0]

    def zero_states(self, count: int) -> List[FusionState]:
        """States before the first tokens of the hypotheses of a batch."""
        search = self._search, self.like.device
        mixture = self._mixture()
        if self._begun[0] != search:
            # utterances of a batch share prefixes
            self._begun = search, None if mixture is None else mixture.begin()
        ahead = None if self.ahead is None else self.ahead.zero_state()
        trees = self._trees
        if count % len(trees):  # ESPnet searches one utterance of a batch again
            LOG.warning(
                "%d hypotheses begin, and there are bias lists of %d utterances: none is used."
                " Give one list, or one of each utterance of the batch.",
                *(count, len(trees)),
            )
            trees = [None]
        begun = self._begun[1]
        texts = [self.payments.begin(begun, tree) for tree in trees]
        each = count // len(texts)
        return [FusionState(text, ahead=ahead) for text in texts for _ in range(each)]

    @torch.no_grad()
    def batch_score(self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor) -> Step:
        """Score the next token of each hypothesis; `xs` is the encoder's output, (B, T, D)."""
        if xs is None and self.ends_apart is None:
            self.ends_apart = False
            LOG.warning(NO_ENDS)
        # of one utterance: frames of padding would mislead CTC
        is_one = isinstance(xs, torch.Tensor) and (len(xs) == 1 or xs.stride(0) == 0)
        asks_ctc = is_one and self.ctc is not None and not self.ends_wait
        self._encoded = xs[0] if asks_ctc else None
        if all(state is None for state in states):
            # text before the start is a prompt
            starts = ys.eq(self.ids.sos).all(0).nonzero()
            self.prompt = int(starts[-1]) if len(starts) else 0
            ys = ys[:, self.prompt :]
        return super().batch_score(ys, states, xs)

    def end_scores(self, tokens: Sequence[int], states: Sequence[Any]) -> List[float]:
        """Score of the end of each hypothesis, which ends here: its last word is paid too.

        Args:
            tokens: Last token of each hypothesis, or the start where it has none.
            states: States before these tokens.
        """
        column = torch.tensor(tokens, device=self.like.device)[:, None]
        margin, self.end_margin = self.end_margin, ALL_END
        try:
            with torch.no_grad():
                rows, _ = self._read(column, [*states])
        finally:
            self.end_margin = margin
        return rows[:, self.ids.eos].tolist()

    def attach_to(self, search: Any) -> None:
        """Let one of ESPnet's searches pay the ends of its hypotheses when it is over."""
        from espnet_bayeslm.decoding.search_ends import pay_ends

        pay_ends(search, self)

    def end_rests(self, tokens: Sequence[Any], states: Sequence[Any]) -> np.ndarray:
        """Nats that each hypothesis has yet to pay after a search in which ends wait, (N,).

        Args:
            tokens: A last token that the state does not know, where the search was cut there before
                the end; None: there is none, and the look-ahead stood in for the end.
            states: States before the ends.
        """
        cut = [n for n, token in enumerate(tokens) if token is not None]
        whole = [n for n, token in enumerate(tokens) if token is None]
        rests = np.zeros(len(tokens))
        rests[whole] = self.payments.rests([states[n].text for n in whole], self._mixture())
        if not self.ahead_stays:
            rests[whole] -= [states[n].row[self.ids.eos] for n in whole]
        if cut:
            rests[cut] = self.end_scores([tokens[n] for n in cut], [states[n] for n in cut])
        return rests

    def advance(self, tokens: torch.Tensor, states: List[FusionState]) -> Step:
        """Score the next token after one more token of each hypothesis."""
        # NumPy reads single numbers, and adds few, sooner
        ids, mixture = tokens.tolist(), self._mixture()
        rows, ahead = self._look_ahead(tokens, states)
        texts = [self._moved(*pair, mixture) for pair in zip(ids, states, strict=True)]
        heard = self._heard(ids, states)
        can_end = [False] * len(texts) if self.ends_wait else self._can_end(rows, heard)
        paid = self.payments.pay(texts, can_end, mixture)
        found = rows + np.array(paid.shifts)[:, None]
        if any(text.gains is not None for text in texts):
            found += self._gains(texts)
        if not self.ends_wait:
            taken = 0.0 if self.ahead_stays else rows[:, self.ids.eos]
            found[:, self.ids.eos] += np.array(paid.ends) - taken
        if self.blank is not None:
            found[:, self.blank] = -np.inf
        states = [*map(FusionState, paid.texts, ahead, rows, heard)]
        return torch.from_numpy(found).to(self.like), states

    def _gains(self, texts: Sequence[PaidText]) -> np.ndarray:
        """Gains of each next token by bias lists, (B, V)."""
        none = np.zeros(self.vocab_size)
        gains = np.stack([none if text.gains is None else text.gains for text in texts])
        gains[:, self.ids.eos] = [self.payments.end_gain(text) for text in texts]
        return self.bias_weight * gains

    def forward(self, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Score each next token, (B, L, V); the state holds the hypotheses."""
        states, columns = hidden, []
        if states is None:
            with self.scoring():  # a new search
                states = self.zero_states(len(input))
        for tokens in input.unbind(1):
            scores, states = self.advance(tokens, states)
            columns.append(scores)
        return torch.stack(columns, dim=1), states

    def text_log_probs(self, hypotheses: Sequence[Sequence[int]]) -> List[float]:
        """Ln P by the components of the texts of some token sequences, without the look-ahead."""
        mixture = self._mixture()
        if mixture is None:
            return [0.0] * len(hypotheses)
        texts = [*map(self.payments.words, hypotheses)]
        return [float(s.log_probs.sum()) for s in mixture.word_scores(texts)]

    def _mixture(self) -> Optional[Mixture]:
        """Mixture of the components, where the look-ahead is; None: there are none."""
        return None if self._loaded is None else self._loaded.on(self.like.device)

    def _look_ahead(
        self, tokens: torch.Tensor, states: Sequence[FusionState]
    ) -> Tuple[np.ndarray, Sequence[Any]]:
        """Weighted ln P of each next token by the look-ahead, (B, V), and its states.

        It reads no marks, and gives them nothing.
        """
        before = [state.ahead for state in states]
        if self.ahead is None:
            return np.zeros((len(tokens), self.vocab_size)), before
        rows, after = self.ahead.search_rows(tokens, before)
        rows = self.ahead_weight * rows
        if len(self._marks):
            rows[:, self._marks] = 0.0
            for n in self._is_mark[tokens.cpu().numpy()].nonzero()[0]:
                if states[n].row is not None:  # not the start of a sentence
                    rows[n], after[n] = states[n].row, before[n]
        return rows, after

    def _heard(
        self, tokens: Sequence[int], states: Sequence[FusionState]
    ) -> Sequence[Optional[CTCPrefix]]:
        """Hypotheses with one more token each, as the recogniser's CTC has heard them."""
        encoded, ctc = self._encoded, self.ctc
        if encoded is None or ctc is None:
            return [None] * len(states)
        known = [state.heard for state in states if state.heard is not None]
        if len(known) < len(states) or len(known[0].log_probs) != len(encoded):
            # an utterance begins, or more of it has been spoken
            ids = [prefix.tokens for prefix in known]
            known = [ctc.begin(encoded)] * len(states)
            for column in itertools.zip_longest(*ids):
                known = ctc.after(known, column)
        if any(state.row is None for state in states):  # the start of a sentence
            return known
        return ctc.after(known, [None if self._is_mark[token] else token for token in tokens])

    def _can_end(self, rows: np.ndarray, heard: Sequence[Optional[CTCPrefix]]) -> List[bool]:
        """True for each hypothesis whose end neither the look-ahead nor CTC rules out.

        Hypotheses that have too many words may end: ESPnet stops a search by their scores.
        """
        best = rows.max(1, where=self._spoken, initial=-np.inf)
        near = rows[:, self.ids.eos] >= best - self.end_margin * self.ahead_weight
        return [
            can_end and (prefix is None or prefix.end_log_prob > CTC_END)
            for can_end, prefix in zip(near.tolist(), heard, strict=True)
        ]

    def _moved(self, token: int, state: FusionState, mixture: Optional[Mixture]) -> PaidText:
        """Words of a hypothesis after one more token."""
        if state.row is None:  # the start of a sentence
            return state.text
        gain = 0.0 if self.ahead_stays else float(state.row[token])
        return self.payments.after(state.text, token, mixture, gain)
