"""Lattices path by path: what the dynamic programmes over them are tested against."""

from espnet_bayeslm.nbest.htk import htk_writer
from espnet_bayeslm.nbest.kaldi_lattice import kaldi_lattice_writer
from espnet_bayeslm.nbest.lattice import EQUAL, Arc, Lattice, Path


def write_htk(lattices, folder, **options):
    with htk_writer(folder, **options) as add:
        for lattice in lattices:
            add(lattice)


def write_kaldi_lattices(lattices, path):
    with kaldi_lattice_writer(path) as add:
        for lattice in lattices:
            add(lattice)


def random_lattice(rng, num_nodes=7, words=("a", "b", "c"), utt="u", density=0.5):
    """Return a lattice with silences, arcs side by side and dead ends; scores as of speech."""
    arcs = []
    for target in range(1, num_nodes):
        sources = {int(rng.integers(target))}
        sources |= {source for source in range(target) if rng.random() < density}
        for source in sorted(sources - {num_nodes - 1}):
            for _ in range(1 + int(rng.random() < 0.2)):
                label = str(rng.choice([*words, "", "!NULL"]))
                am, lm, graph = rng.normal(size=3) * (20, 3, 1)
                arcs.append(Arc(source, target, label, float(am), float(lm), float(graph)))
    arcs.sort(key=lambda arc: arc.source)
    scores = ("am_score", "lm_score", "graph_score")
    return Lattice(utt, num_nodes, num_nodes - 1, tuple(arcs), scores)


def arc_paths(lattice):
    """Yield the arcs of each path from node 0 to the end."""
    outgoing = lattice.outgoing()

    def walk(node, path):
        if node == lattice.end:
            yield path
            return
        for arc in outgoing[node]:
            yield from walk(arc.target, [*path, arc])

    yield from walk(0, [])


def all_paths(lattice, scales=EQUAL):
    """Return {words: their best path}, the best first."""
    best = {}
    for arcs in arc_paths(lattice):
        words = tuple(arc.word for arc in arcs if arc.word is not None)
        am, lm, graph = (
            sum(getattr(arc, name) for arc in arcs)
            for name in ("am_score", "lm_score", "graph_score")
        )
        total = scales.am * am + scales.lm * lm + scales.graph * graph + scales.word * len(words)
        if words not in best or best[words].total < total:
            best[words] = Path(words, am, lm, graph, total)
    return dict(sorted(best.items(), key=lambda item: -item[1].total))
