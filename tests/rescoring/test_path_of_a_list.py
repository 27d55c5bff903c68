"""Few modules stand between a list's file and its new best hypothesis."""

import sys
from pathlib import Path
from types import SimpleNamespace

import espnet_bayeslm
from espnet_bayeslm.evaluation.word_scores import Component
from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.nbest import Hypothesis, NBest, write_nbest
from espnet_bayeslm.nbest.formats import CheckedLists
from espnet_bayeslm.rescoring.decision import Scales, Weighting
from espnet_bayeslm.rescoring.list_blocks import score_lists
from espnet_bayeslm.rescoring.pipeline import Rescoring
from espnet_bayeslm.scoring import NeuralScorer

PACKAGE = Path(espnet_bayeslm.__file__).parent
TOKENS = ["<blank>", "<unk>", "a", "b", "c", "<sos/eos>"]
# The LM's own layers, and what the whole package stands on
BELOW = {"lm", "layers", "kernels", "bayes", "utils"}


def modules_that_run(call):
    """Return what a call returns, and the modules of the package whose functions it runs."""
    files = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename))
    try:
        result = call()
    finally:
        sys.setprofile(before)
    paths = (Path(file) for file in files if file.startswith(str(PACKAGE)))
    return result, {str(path.relative_to(PACKAGE).with_suffix("")) for path in paths}


def test_a_list_crosses_few_modules(tmp_path):
    words = [("a", "b"), ("b",), ("a", "c")]
    hyps = tuple(Hypothesis(w, am_score=-n, lm_score=-1.5) for n, w in enumerate(words, 1))
    lists = [NBest(utt, hyps) for utt in ("u1", "u2")]
    write_nbest(lists, tmp_path / "nbest")
    trained = SimpleNamespace(
        name="tiny",
        lm=BayesLSTMLM(len(TOKENS), unit=4),
        token_list=TOKENS,
        token_type="word",
        tokenize=str.split,
        ids=lambda tokens: [TOKENS.index(t) if t in TOKENS else 1 for t in tokens],
    )
    components = [Component("tiny", "lm", NeuralScorer(trained))]

    weighting = Weighting.of(components, None, Scales(lmwt=10.0))

    def rescore():
        found = score_lists(CheckedLists(tmp_path / "nbest"), components, weighting)
        return [item.words for item in Rescoring(found, weighting)]

    best, modules = modules_that_run(rescore)
    assert len(best) == 2 and set(best) <= set(words)
    crossed = {name for name in modules if name.split("/")[0] not in BELOW}
    assert {"nbest/kaldi", "scoring/neural", "rescoring/decision"} <= crossed
    # options, units, blocks and formats that are inferred are modules of their own
    assert len(crossed) <= 15, sorted(crossed)
