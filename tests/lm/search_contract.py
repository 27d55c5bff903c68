"""What a beam search asks of any LM: however it is called, scores are those of teacher forcing."""

import random

import torch

from espnet_bayeslm.lm.ngram import LogProbLM


def teacher_forced(lm, prefixes):
    """Return ln p of the next token after each prefix, each computed by itself."""
    with torch.no_grad():
        last = torch.stack([lm(torch.tensor([p]), None)[0][0, -1] for p in prefixes])
    return last if isinstance(lm, LogProbLM) else last.log_softmax(-1)


def check_scores(lm, scores, prefixes, *, atol=1e-10):
    """Compare scores after prefixes; <blank>, token 0, has no place in a search with an n-gram."""
    first = 1 if isinstance(lm, LogProbLM) else 0
    expected = teacher_forced(lm, prefixes)
    torch.testing.assert_close(scores[:, first:], expected[:, first:], rtol=0, atol=atol)


def walk(lm, rng, *, length, beam=5, check=1):
    """Yield (prefixes, their scores) of a search that prunes, doubles and reorders at random."""
    sos = lm.vocab_size - 1
    prefixes, states = [[sos]], [lm.batch_init_state(None)]
    for step in range(length):
        scores, new = lm.batch_score(torch.tensor(prefixes), states, None)
        if step % check == 0 or step == length - 1:
            yield prefixes, scores
        parents = [rng.randrange(len(prefixes)) for _ in range(rng.randint(1, beam))]
        prefixes = [[*prefixes[i], rng.randrange(1, sos)] for i in parents]
        states = [lm.select_state(new, i) for i in parents]


def walk_states(lm, rng, *, length, beam=3):
    """Return (prefix, state after it) of each hypothesis at the end of a search."""
    prefixes, states = [[lm.vocab_size - 1]], [None]
    for _ in range(length):
        _, new = lm.batch_score(torch.tensor(prefixes), states, None)
        hypotheses = list(zip(prefixes, new, strict=True))
        kept = [rng.choice(hypotheses) for _ in range(beam)]
        prefixes = [[*prefix, rng.randrange(1, lm.vocab_size - 1)] for prefix, _ in kept]
        states = [state for _, state in kept]
    return hypotheses


def walk_utterances(lm, rng, *, utterances, length, beam=4, sos=None):
    """Yield (prefixes, scores) of one search over several utterances, as ESPnet's batches are.

    All places of an utterance begin, and only the first goes on. From then on the hypotheses of an
    utterance follow each other, until they are shuffled; utterances end one by one.
    """
    sos = lm.vocab_size - 1 if sos is None else sos
    alive = list(range(utterances))
    owners = [utterance for utterance in alive for _ in range(beam)]
    prefixes, states = [[sos] for _ in owners], [lm.batch_init_state(None)] * len(owners)
    for step in range(length):
        scores, new = lm.batch_score(torch.tensor(prefixes), states, None)
        yield prefixes, scores
        if step > 1 and len(alive) > 1 and rng.random() < 0.5:
            alive.remove(rng.choice(alive))
        places = {u: [k for k, owner in enumerate(owners) if owner == u] for u in alive}
        first = [(u, places[u][0]) for u in alive for _ in range(beam)]
        later = [(u, rng.choice(places[u])) for u in alive for _ in range(rng.randint(1, beam))]
        kept = later if step else first
        if step > length // 2:
            rng.shuffle(kept)
        owners = [u for u, _ in kept]
        prefixes = [[*prefixes[k], rng.randrange(1, lm.vocab_size - 1)] for _, k in kept]
        states = [lm.select_state(new, k) for _, k in kept]


class SearchContract:
    """Tests of a fixture `lm`, whose vocabulary has 10 tokens or more.

    Attributes:
        atol: How far scores may be off.
    """

    atol = 1e-10

    def check(self, lm, scores, prefixes):
        check_scores(lm, scores, prefixes, atol=self.atol)

    def test_any_search_gets_the_scores_of_teacher_forcing(self, lm):
        for seed in range(2):
            for prefixes, scores in walk(lm, random.Random(seed), length=8):
                self.check(lm, scores, prefixes)
                one, _ = lm.score(torch.tensor(prefixes[0]), None, None)
                self.check(lm, one.unsqueeze(0), prefixes[:1])

    def test_each_utterance_of_a_batch_gets_the_scores_it_has_alone(self, lm):
        for prefixes, scores in walk_utterances(lm, random.Random(3), utterances=4, length=9):
            self.check(lm, scores, prefixes)

    def test_utterances_may_begin_apart(self, lm):
        """Each by itself, and then in one call."""
        sos, rng = lm.vocab_size - 1, random.Random(1)
        beams = [walk_states(lm, rng, length=n) for n in (3, 5, 4)]
        prefixes = [prefix for beam in beams for prefix, _ in beam]
        states = [state for beam in beams for _, state in beam]
        for _ in range(4):
            prefixes = [[*prefix, rng.randrange(1, sos)] for prefix in prefixes]
            last = torch.tensor([prefix[-1:] for prefix in prefixes])
            scores, states = lm.batch_score(last, states, None)
            self.check(lm, scores, prefixes)
            kept = [*range(len(prefixes)), rng.randrange(len(prefixes))][1:]
            prefixes, states = [prefixes[k] for k in kept], [states[k] for k in kept]

    def test_primers_and_blanks(self, lm):
        """So ESPnet's transducer searches write it."""
        sos = lm.vocab_size - 1
        primer = [[sos, 3, 4, 5], [sos, 3, 9, 1]]
        scores, states = lm.batch_score(torch.tensor(primer), [None, None], None)
        self.check(lm, scores, primer)
        longer = [[*primer[1], 7], [*primer[0], 7]]
        scores, _ = lm.batch_score(torch.tensor(longer), states[::-1], None)
        self.check(lm, scores, longer)
        scores, states = lm.batch_score(torch.tensor([[0]]), [lm.zero_state()], None)
        self.check(lm, scores, [[sos]])
        again, _ = lm.batch_score(torch.tensor([[sos, 0, 0, 4]]), states, None)
        self.check(lm, again, [[sos, 4]])

    def test_only_the_last_token_of_hypotheses_of_different_lengths(self, lm):
        """As ESPnet's transducer searches call an LM."""
        sos, rng = lm.vocab_size - 1, random.Random(0)
        beam = [([], lm.zero_state()), ([], None)]
        for _ in range(8):
            prefixes, states = [[*p, rng.randrange(1, sos)] for p, _ in beam], [s for _, s in beam]
            last = torch.tensor([[p[-1]] for p in prefixes])
            scores, new = lm.batch_score(last, states, None)
            self.check(lm, scores, prefixes)
            # a hypothesis that took a blank stays as it is
            beam = rng.choices([*beam, *zip(prefixes, new, strict=True)], k=4)
            beam[0] = ([], rng.choice([None, lm.zero_state()]))

    def test_states_can_be_mixed_and_used_twice(self, lm):
        sos = lm.vocab_size - 1
        hypotheses = [[sos, 3, 4], [sos, 5], [sos, 6, 7, 8]]
        states = [lm.score(torch.tensor(h), None, None)[1] for h in hypotheses]
        scores, states = lm.batch_score(torch.tensor([[2], [2], [2]]), states, None)
        self.check(lm, scores, [[*h, 2] for h in hypotheses])
        again, _ = lm.batch_score(torch.tensor([[9]]), states[2:], None)
        self.check(lm, again, [[*hypotheses[2], 2, 9]])
        _, state = lm.score(torch.tensor([sos]), lm.init_state(None), None)
        for token in (4, 5, 4):
            scores, _ = lm.score(torch.tensor([sos, token]), state, None)
            self.check(lm, scores.unsqueeze(0), [[sos, token]])
        scores, _ = lm.batch_score(torch.tensor([[lm.vocab_size - 1]]), [None], None)
        assert not scores.requires_grad
