"""A text under LMs: its sentences, the words that an LM does not know, and perplexity.

Perplexity is kept as sums, from which each normalisation is derived.
`</s>` is counted in every normalisation, `<s>` in none.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.evaluation.markup import Words
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.transcripts import read_transcripts
from espnet_bayeslm.evaluation.wer import Counting
from espnet_bayeslm.scoring.interpolation import mixed_scores
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, without_marks
from espnet_bayeslm.utils.log import LOG

UNITS = {"word": "words", "token": "tokens", "character": "characters"}
Sentences = Mapping[str, Sequence[str]]
# Lines that say how some words differ from words that an LM knows
Mends = Callable[[Counter[str]], List[str]]
# Sentences that are scored at once: by one process, or by each of several workers.
BLOCK_SIZE = 2000
# Part of the words above which the differences from an LM's words are told
HIGH_OOV_RATE = 0.02
# A larger perplexity tells only that a word has a probability near zero.
MAX_SENSIBLE = 1e6
ONE_FORM = (
    "Do text and LM agree in case, spelling and tokens?"
    " `--normalize lower,punct` makes text in upper case or with punctuation agree."
)
NO_IDS = "If they are utterance ids, say --keyed true."
BEYOND_SENSE = (
    "A perplexity above 1e6 comes from words or </s> with a probability near zero: check for a"
    " closed vocabulary (an n-gram without <unk>), another tokenisation or another form of text."
)


def perplexity_text(perplexity: Optional[float], digits: int = 2) -> str:
    """Perplexity as tables show it: above 1e6 in scientific form, a dash where there is none."""
    if perplexity is None:
        return "–"
    if math.isinf(perplexity):
        return "∞"
    return f"{perplexity:.1e}" if perplexity > MAX_SENSIBLE else f"{perplexity:.{digits}f}"


class Tally(NamedTuple):
    """The log-probability of some words and how much text they are: sums, field by field.

    Attributes:
        log_prob: Sum of ln p, in nats.
        words: Words, each `</s>` counted as one.
        tokens: The LM's own tokens, each `</s>` counted as one.
        characters: Characters, spaces between words and each `</s>` counted as one.
    """

    log_prob: float = 0.0
    words: int = 0
    tokens: int = 0
    characters: int = 0

    def perplexity(self, per: str = "words") -> float:
        """Perplexity exp(-log_prob / count), nan where nothing is counted."""
        count = getattr(self, per)
        return math.exp(min(-self.log_prob / count, 700.0)) if count else math.nan


def total(tallies: Iterable[Tally]) -> Tally:
    """Tally of all words of some tallies."""
    return Tally(*map(sum, zip(*tallies, strict=True)))


@dataclasses.dataclass
class UnknownWords:
    """Counts the words that a component does not know, at most `max_oov_rate` of all.

    Attributes:
        name: The component's name.
        max_oov_rate: Largest share of unknown words.
        counting: How words are counted; None: each as one.
        words: Each unknown word, with its number.
        num_words: Number of all words.
    """

    name: str
    max_oov_rate: float
    counting: Optional[Counting] = None
    words: Counter[str] = dataclasses.field(default_factory=Counter)
    num_words: int = 0

    def add(self, sentences: Sequence[Sequence[str]], scores: Sequence[WordScores]) -> None:
        """Count the words of some sentences."""
        size = len if self.counting is None else self.counting.size
        self.num_words += sum(map(size, sentences))
        for words, score in zip(sentences, scores, strict=True):
            if score.oov.any():
                for word in itertools.compress(words, score.oov):
                    self.words[word] += size((word,))
                self.words = +self.words  # without those that do not count

    def join(self, other: UnknownWords) -> None:
        """Count the words of another count too."""
        self.num_words += other.num_words
        self.words.update(other.words)

    def check(self, mends: Mends, *, report: bool = False, remedy: str = ONE_FORM) -> None:
        """Raise an InputError where too many words are unknown; `report`: log their rate.

        `mends` says how these words differ from words that the component knows.
        """
        total, distinct = self.words.total(), len(self.words)
        by_word = self.counting is None or self.counting.unit == "word"
        noun, words = ("words", "") if by_word else ("characters", " words")
        rate = total / max(self.num_words, 1)
        examples = ", ".join(f"{word!r}" for word, _ in self.words.most_common(5))
        message = (
            f"{self.name} does not know {total} of {self.num_words} {noun}"
            f" ({100 * rate:.2f} %, {distinct} distinct{words}{': ' if distinct else ''}{examples})"
        )
        if rate > self.max_oov_rate:
            if lines := mends(self.words):
                remedy += f" {'; '.join(lines)}."
            problem = f"{message}, and --max_oov_rate is {self.max_oov_rate}"
            raise InputError(problem, remedy=remedy)
        if report:
            lines = mends(self.words) if rate > HIGH_OOV_RATE else []
            (LOG.warning if lines else LOG.info)("\n  ".join([message, *lines]))


class TextPerplexity(NamedTuple):
    """Perplexity of a text under a component, or under a mixture, whose tokens are words.

    Attributes:
        name: Name of the component; "mixture" for the mixture.
        kind: Kind of the component; "mixture" for the mixture.
        known: Words of each sentence that count in both figures, and `</s>`.
        excluded: Words of each sentence that are left out of the figure "without OOVs".
        oovs: Number of words that the component does not know.
    """

    name: str
    kind: str
    known: List[Tally]
    excluded: List[Tally]
    oovs: int

    def summary(self) -> Dict[str, Any]:
        """Figures of the whole text.

        The word after an unknown one counts, and its score depends on how an LM reads <unk>. Known
        sentences are the sentences without excluded words.
        """
        pairs = zip(self.known, self.excluded, strict=True)
        complete = [known for known, excluded in pairs if not excluded.words]
        known, excluded, of_known = map(total, (self.known, self.excluded, complete))
        everything = total((known, excluded))
        num_words = everything.words - len(self.known)
        return {
            "name": self.name,
            "kind": self.kind,
            "log_prob": everything.log_prob,
            "words": num_words,
            "sentences": len(self.known),
            "tokens": everything.tokens,
            "characters": everything.characters,
            "oovs": self.oovs,
            "oov_rate": self.oovs / num_words if num_words else 0.0,
            "excluded": excluded.words,
            "perplexity": {u: everything.perplexity(n) for u, n in UNITS.items()},
            "perplexity_without_oov": {u: known.perplexity(n) for u, n in UNITS.items()},
            "known_sentences": len(complete),
            "perplexity_of_known_sentences": {u: of_known.perplexity(n) for u, n in UNITS.items()},
        }


def text_perplexities(
    components: Sequence[Any],
    lines: Sequence[Sequence[str]],
    scores: Sequence[Sequence[WordScores]],
    tokens: Sequence[Sequence[np.ndarray]],
    weights: Optional[np.ndarray] = None,
) -> List[TextPerplexity]:
    """Perplexity of a text under each component and, if there are weights, under their mixture.

    "Without OOVs" leaves out the words that any of the components does not know: the same words for
    all components.

    Args:
        components: The K components, each with its `name` and `kind`.
        lines: The sentences of n words each.
        scores: Scores of each sentence by each component.
        tokens: (n + 1,) tokens of each word and `</s>` of each sentence, for each component.
        weights: (K,) weights of the mixture.
    """
    pairs = zip(components, scores, tokens, strict=True)
    rows = [(c.name, c.kind, found, counts) for c, found, counts in pairs]
    excluded = [np.logical_or.reduce([s.oov for s in row]) for row in zip(*scores, strict=True)]
    # the space before a word is the word's, as a character LM counts it
    characters = [np.array([len(w) + (i > 0) for i, w in enumerate(ws)] + [1]) for ws in lines]
    if weights is not None and len(components) > 1:
        mixture = mixed_scores(scores, weights)
        rows.append(("mixture", "mixture", mixture, [np.ones(len(x), int) for x in characters]))
    texts = []
    for name, kind, found, counts in rows:
        tallies: Tuple[List[Tally], List[Tally]] = [], []
        for score, out, *sizes in zip(found, excluded, counts, characters, strict=True):
            for part, mask in zip(tallies, (~out, out), strict=True):
                numbers = (int(x.sum()) for x in (mask, *(size[mask] for size in sizes)))
                part.append(Tally(float(score.log_probs[mask].sum()), *numbers))
        oovs = int(sum(score.oov.sum() for score in found))
        texts.append(TextPerplexity(name, kind, *tallies, oovs))
    return texts


def read_sentences(path: PathLike, *, keyed: bool, normalize: str = "") -> Dict[str, Words]:
    """{key: words} of a Kaldi `text` or trn (`keyed`), or {line number: words} of plain text.

    An empty line of plain text is an empty sentence. `<s>` and `</s>` around it are left out. The
    steps of `normalize`, if there are any, change the text.
    """
    if keyed:
        sentences = read_transcripts(path)
    else:
        sentences = {
            str(number): without_marks(line.split(), path=path, line=number)
            for number, line in read_lines(path)
        }
    if not sentences:
        raise InputError("no sentences", path=path, remedy="Give one sentence per line.")
    return Normalization(normalize).text(sentences) if normalize else sentences


def check_no_ids(
    sentences: Iterable[Sequence[str]],
    is_known: Callable[[str], bool],
    *,
    path: Optional[PathLike] = None,
    remedy: str,
) -> None:
    """Check that lines do not begin with utterance ids."""
    lines = [words for words in sentences if words]
    first = [words[0] for words in lines]
    knows_first = any(map(is_known, first))
    # not so in a text without blanks, whose lines are long words
    knows_others = any(is_known(word) for words in lines for word in words[1:])
    if len(first) >= 10 and len(set(first)) == len(first) and knows_others and not knows_first:
        raise InputError(
            f"the first words of all lines are unknown and different ({first[0]!r}, ...)",
            path=path,
            remedy=remedy,
        )
