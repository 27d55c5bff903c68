"""Scores of N-best lists in blocks, which many workers may share."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import numpy as np

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.engine.work import Blocks
from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.mixture.facts import MixtureFacts
from espnet_bayeslm.mixture.mixture_worker import MixtureWorker, scored_blocks, with_words_checked
from espnet_bayeslm.nbest.segments import PlaceOf, Recording, read_utt2lm, recordings
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.pretrained.text_forms import best_first
from espnet_bayeslm.rescoring.bias import bias_features
from espnet_bayeslm.rescoring.decision import ScoredList, choose
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.scoring.perplexity import UnknownWords
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

Block = List[Recording]
# Hypotheses of a block: enough for full batches, few enough for the memory of any list.
BLOCK_SIZE = 2000

Histories = Mapping[str, Sequence[str]]
"""Utterance -> its best hypothesis, from which LMs go on in context."""
Rows = Tuple[np.ndarray, Tuple[Any, ...]]
"""Ln p of all words of a list, (K, W), and their uncertainty."""


class ListWorker(MixtureWorker):
    """Scores blocks of lists under several components; blocks do not depend on each other.

    With `context` each LM goes on from the best hypotheses so far of a recording, and n-grams begin
    each utterance anew. The best ones are the `histories` of utterances, or what the scales choose.
    """

    def __init__(
        self,
        options: RescoreOptions,
        ngpu: int,
        device: Optional[str],
        tunes: bool,
        histories: Optional[Histories],
    ):
        self.mixture = options.load_mixture(device or device_of(ngpu), tunes=tunes)
        self._options, self._histories = options, histories
        self._in_context = options.recordings.context != "none"
        self._bias = options.bias
        self._scorers = [component.scorer for component in self.mixture.every]
        self._uncertain: Any = None
        if options.uncertainty:
            random = (scorer for scorer in self._scorers if scorer.is_uncertain)
            self._uncertain = next(random, None)
            if self._uncertain is None:
                raise InputError(
                    "--uncertainty, and no LM is uncertain", remedy="Give a Bayesian LM by --lm."
                )

    def score(self, block: Block) -> Tuple[List[Rows], List[UnknownWords]]:
        """Scores of the lists of a block, and the words that each component does not know."""
        mixture, counting = self.mixture, self._options.errors.counting
        unknown = [UnknownWords(c.name, mixture.max_oov_rate, counting) for c in mixture.every]
        if self._in_context and self._histories is None:
            self._weighed = mixture.facts, self._options.scales_for(mixture.facts)
        if not self._in_context:
            # all at once: each list is a recording by itself
            block = [[item] for recording in block for item in recording]
        scored: List[List[ScoredList]] = [[] for _ in block]
        histories: List[List[Any]] = [[None] * len(block) for _ in self._scorers]
        # one utterance of each recording at a time
        for step in range(max(map(len, block), default=0)):
            active = [r for r, recording in enumerate(block) if step < len(recording)]
            before = [[of_lm[r] for r in active] for of_lm in histories]
            now = self._at_once([block[r][step] for r in active], before, unknown)
            for r, item in zip(active, now, strict=True):
                scored[r].append(item)
            if not self._in_context:
                break
            said = [self._said(item) for item in now]
            for scorer, of_lm, old in zip(self._scorers, histories, before, strict=True):
                for r, history in zip(active, scorer.extended(old, said), strict=True):
                    of_lm[r] = history
        lists = [item for of_recording in scored for item in of_recording]
        uncertainty: List[Tuple[Any, ...]] = [()] * len(lists)
        if self._uncertain is not None:
            sentences = [hyp.words for item in lists for hyp in item.nbest.hypotheses]
            of_words = iter(self._uncertain.uncertainty(sentences))
            uncertainty = [tuple(next(of_words) for _ in item.nbest.hypotheses) for item in lists]
        rows = [np.concatenate(item.log_probs, axis=1) for item in lists]
        return list(zip(rows, uncertainty, strict=True)), unknown

    def _said(self, item: ScoredList) -> Sequence[str]:
        """Words from which the utterances after a list go on."""
        if self._histories is None:
            if self._bias:
                item = dataclasses.replace(
                    item, given=bias_features(self._bias.of(item.nbest.utt), item.nbest)
                )
            return choose(item, *self._weighed).words
        return self._histories[item.nbest.utt]

    def _at_once(
        self,
        items: Sequence[NBest],
        histories: Sequence[Sequence[Any]],
        unknown: Sequence[UnknownWords],
    ) -> List[ScoredList]:
        """Lists with their scores: in context, or of each words once."""
        groups = [[hyp.words for hyp in item.hypotheses] for item in items]
        if not self._scorers:
            empty = (tuple(np.empty((0, len(words) + 1)) for words in group) for group in groups)
            return list(map(ScoredList, items, empty))
        every = [words for group in groups for words in group]
        distinct = list(dict.fromkeys(every))
        scores: List[List[List[WordScores]]] = []
        for scorer, before, count in zip(self._scorers, histories, unknown, strict=True):
            if self._in_context:
                of_groups = scorer.scores_in_context(groups, before)
                count.add(every, [score for group in of_groups for score in group])
            else:
                known = dict(zip(distinct, scorer.word_scores(distinct), strict=True))
                of_groups = [[known[words] for words in group] for group in groups]
                count.add(distinct, [known[words] for words in distinct])
            scores.append(of_groups)
        lists = []
        for item, of_components in zip(items, zip(*scores, strict=True), strict=True):
            pairs = zip(*of_components, strict=True)
            lists.append(
                ScoredList(item, tuple(np.stack([s.log_probs for s in row]) for row in pairs))
            )
        return lists


def blocks(lists: Iterable[NBest], place_of: Optional[PlaceOf] = None) -> Iterator[Block]:
    """Yield runs of recordings with at least `BLOCK_SIZE` hypotheses, but the last.

    Without places each list is a recording by itself. The blocks do not depend on how many
    workers share them, and so no score does.
    """
    block: Block = []
    count = 0
    for recording in ([x] for x in lists) if place_of is None else recordings(lists, place_of):
        block.append(recording)
        count += sum(len(item.hypotheses) for item in recording)
        if count >= BLOCK_SIZE:
            yield block
            block, count = [], 0
    if block:
        yield block


def sent_part(block: Block) -> Block:
    """Part of a block that workers get: the words and scores of its lists."""
    return [
        [
            NBest(
                item.utt,
                tuple(dataclasses.replace(hyp, extra={}) for hyp in item.hypotheses),
            )
            for item in recording
        ]
        for recording in block
    ]


def by_lm(
    lists: Sequence[NBest], options: RescoreOptions
) -> Dict[Any, Tuple[Sequence[NBest], Set[str]]]:
    """LM of `utt2lm`, or the first one -> the lists that it reads, and the utterances it scores.

    In context an LM reads the whole recordings of the utterances.
    """
    named, lms = options.utt2lm, options.mixture.lms
    known = named if isinstance(named, Mapping) else read_utt2lm(named or "")
    if not lms:
        raise InputError("--utt2lm without --lm", remedy="Give the LM of all other utterances.")
    if not any(item.utt in known for item in lists):
        problem = f"none of its {len(known)} utterances is in the lists"
        path = "--utt2lm" if isinstance(named, Mapping) else named
        raise InputError(problem, path=path, remedy="Give their utterance ids.")
    in_context = options.recordings.context != "none"
    place_of = options.recordings.place_of if in_context else None
    of: Dict[Any, Set[str]] = {}
    for item in lists:
        of.setdefault(known.get(item.utt, lms[0]), set()).add(item.utt)
    whole = [[item] for item in lists] if place_of is None else [*recordings(lists, place_of)]
    return {
        lm: ([i for own in whole if any(o.utt in utts for o in own) for i in own], utts)
        for lm, utts in of.items()
    }


def scored_by_own_lms(
    pool: Optional[Pool],
    lists: Sequence[NBest],
    options: RescoreOptions,
    output: Optional[PathLike],
    **where: Any,
) -> Tuple[Iterator[ScoredList], MixtureFacts]:
    """Lists that each its LM of `utt2lm` has scored, as `scored_lists` yields them."""
    scored: Dict[str, ScoredList] = {}
    mixtures: List[MixtureFacts] = []
    for number, (lm, (items, utts)) in enumerate(by_lm(lists, options).items()):
        mixed = dataclasses.replace(options.mixture, lms=(lm, *options.mixture.lms[1:]))
        own = dataclasses.replace(options, utt2lm=None, mixture=mixed)
        where["output"] = None if output is None else f"{os.fspath(output)}.{number}"
        with scored_lists(pool, items, own, **where, total=len(items)) as (found, mixture):
            scored.update((item.nbest.utt, item) for item in found if item.nbest.utt in utts)
        mixtures.append(mixture)
    return iter([scored[item.utt] for item in lists]), one_mixture(mixtures)


def one_mixture(mixtures: Sequence[MixtureFacts]) -> MixtureFacts:
    """Facts of the mixtures whose LMs of `utt2lm` have scored lists: the first has no digest."""
    names = {tuple(mixture.names) for mixture in mixtures}
    if len(names) > 1:
        heads = " and ".join(sorted({name[0] for name in names}))
        raise InputError(
            f"--utt2lm: LMs of the names {heads}, and their weights go by one name",
            remedy="Give their folders one name, in folders of their own.",
        )
    first, *others = mixtures[-1].components
    return mixtures[-1]._replace(components=[first._replace(fingerprint=""), *others])


@contextlib.contextmanager
def scored_lists(
    pool: Optional[Pool],
    lists: Iterable[NBest],
    options: RescoreOptions,
    *,
    tunes: bool,
    histories: Optional[Histories] = None,
    ngpu: int,
    device: Optional[str] = None,
    output: Optional[PathLike] = None,
    total: Optional[int] = None,
) -> Iterator[Tuple[Iterator[ScoredList], MixtureFacts]]:
    """An iterator of lists with the scores of their words, and facts of the mixture.

    It is to be read within the block. Scores of finished blocks are kept beside the output. In
    context, LMs go on from the `histories`, or from what the scales choose. With `utt2lm` all lists
    are kept in memory.
    """
    if not tunes:
        options.check_untuned()
    if options.utt2lm is not None:
        where: Any = dict(tunes=tunes, histories=histories, ngpu=ngpu, device=device)
        yield scored_by_own_lms(pool, list(lists), options, output, **where)
        return
    in_context = options.recordings.context != "none"
    # workers that choose the histories need them; elsewhere scores do not depend on them
    bias = options.bias
    if bias is not None and not in_context:
        unbiased: Any = dict(bias=BiasLists(), bias_weight=None, near_words=False)
        options = dataclasses.replace(options, **unbiased)
    kept = dataclasses.replace(options, mixture=dataclasses.replace(options.mixture, cache=None))
    todo = blocks(lists, options.recordings.place_of)
    # taken only where recordings are to be known before LMs are loaded: lists are read as they are
    # asked for
    ready = list(itertools.islice(todo, int(in_context)))
    workers = Blocks(pool, ListWorker, options, ngpu, device, tunes, histories)
    # the next lists are read while the workers load the LMs
    ready += itertools.islice(todo, int(pool is not None and not ready))

    def first_hypotheses() -> List[Sequence[str]]:
        ready.extend(itertools.islice(todo, int(not ready)))
        lists = (item for block in ready for recording in block for item in recording)
        return best_first([hyp.words for hyp in item.hypotheses] for item in lists)

    with scored_blocks(
        workers,
        itertools.chain(ready, todo),
        sentences=first_hypotheses,
        identity=f"{kept} {histories}",
        output=output,
        sent=sent_part,
        desc="rescoring",
        unit="list",
        total=total,
    ) as (facts, scored):
        pairs = (
            pair
            for block, rows in with_words_checked(scored, workers)
            for pair in zip(itertools.chain.from_iterable(block), rows, strict=True)
        )
        whole = (
            ScoredList(
                item,
                tuple(np.split(log_probs, ends[:-1], axis=1)),
                uncertainty,
                bias_features(bias.of(item.utt), item) if bias else {},
            )
            for item, (log_probs, uncertainty) in pairs
            for ends in [np.cumsum([len(hyp.words) + 1 for hyp in item.hypotheses])]
        )
        yield whole, facts
