"""The feature `bias`: phrases that an utterance may hold, decoys, and the guard of other words."""

import json

import numpy as np
import pytest
import yaml
from mixtures import facts_of

import espnet_bayeslm
from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.bias import bias_features, bias_lists, decoys_of
from espnet_bayeslm.rescoring.decision import ScoredList, choose
from espnet_bayeslm.rescoring.feature_tuning import validate
from espnet_bayeslm.rescoring.features import FIRST_WINS
from espnet_bayeslm.rescoring.rescore import tune_and_choose
from espnet_bayeslm.rescoring.rescore_options import BIAS_WEIGHT, RescoreOptions
from espnet_bayeslm.rescoring.scales import Scales, read_scales
from espnet_bayeslm.utils.errors import InputError

NAMES = ["anna", "bert", "carl"]


def bias_of(*phrases):
    return BiasList((phrase, None) for phrase in phrases)


def simulated(num_lists=60, *, held=1.0, harm=0.0, seed=0):
    """Return lists without LM scores, and references of which a part `held` says a name.

    Nothing but the name tells the right one of the hypotheses after the first. In a part `harm` of
    all lists one of them has a wrong name, which is in the bias list, and more wrong words.
    """
    rng = np.random.default_rng(seed)
    lists, refs, bias = [], {}, {}
    for n in range(num_lists):
        own, other = rng.permutation(NAMES)[:2]
        words = [*rng.choice(list("abcdef"), size=5)]
        ref = (*words, own if rng.random() < held else "dora")
        texts = [ref, (*words, "yyyy"), (*words, "zzzz")]
        if rng.random() < harm:
            texts[2] = ("y", "y", *words[2:], other)
        texts = [(*words, "xxxx"), *(texts[k] for k in rng.permutation(3))]
        scores = [0.0, *sorted(-0.5 - rng.random(3), reverse=True)]
        hyps = tuple(map(Hypothesis, texts, scores))
        utt = f"u{n}"
        lists.append(ScoredList(NBest(utt, hyps, recording=f"r{n}"), log_probs_of(hyps)))
        refs[utt], bias[utt] = ref, bias_of(own, other)
    return lists, refs, BiasLists(bias)


def log_probs_of(hyps):
    return tuple(np.empty((0, len(hyp.words) + 1)) for hyp in hyps)


def tuned(lists, refs, bias, **options):
    given = RescoreOptions.of(bias=bias, tune_folds=2, **options)
    items = [
        ScoredList(
            item.nbest, item.log_probs, given=bias_features(bias.of(item.nbest.utt), item.nbest)
        )
        for item in lists
    ]
    return tune_and_choose(items, facts_of(), given, refs=refs)


def test_a_feature_of_phrases_each_once_and_of_decoys():
    hyps = ["anna saw anna in new york", "new york", "anna berta", "york new"]
    nbest = NBest("u", tuple(Hypothesis(tuple(hyp.split())) for hyp in hyps))
    own = BiasList([("anna", 2.0), ("berta", None), ("new york", None)])
    bias = BiasLists({"u": own}, bias_of("york"))
    assert bias_features(own, nbest)["bias"].tolist() == [3, 1, 3, 0]
    decoy = own.without(own.said(["in", "new", "york", "with", "anna"]))
    assert bias_features(decoy, nbest)["bias"].tolist() == [0, 0, 1, 0]
    assert bias_features(bias.of("v"), nbest)["bias"].tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("presence, shares", [(0.5, (1, 1)), (1.0, (1, 0)), (0.3, (3, 7))])
def test_decoys_count_as_often_as_they_are_expected(presence, shares):
    """By brute force: errors of held-out candidates are sums over lists and decoys."""
    lists, refs, bias = simulated(40, held=0.5)
    nbests = [item.nbest for item in lists]
    features = [
        item.features({}) | bias_features(bias.of(item.nbest.utt), item.nbest) for item in lists
    ]
    errors = [np.arange(4)[:: 1 + n % 2] if n % 2 == 0 else np.arange(4)[::-1] for n in range(40)]
    how = decoys_of(features, errors, nbests, refs, bias, presence)
    assert how["shares"] == shares and len(how.get("decoys", ())) == (40 if shares[1] else 0)
    for own, decoy, nbest in zip(features, how.get("decoys", ()), nbests, strict=False):
        assert all(np.array_equal(own[name], decoy[name]) for name in own if name != "bias")
        gone = {word for word in refs[nbest.utt] if word in NAMES}
        held = [len({*hyp.words} & {*bias.of(nbest.utt).words} - gone) for hyp in nbest.hypotheses]
        assert decoy["bias"].tolist() == held
    found = validate(features, errors, groups=[n.utt for n in nbests], num_folds=4, **how)
    as_it_came = np.array([counts[0] for counts in errors])
    expected = np.concatenate([as_it_came * share for share in shares if share])
    assert found.held_out["as it came"].tolist() == expected.tolist()
    assert found.errors_held_out("as it came") == as_it_came.sum()


def test_names_are_found_and_the_control_knows_none(tmp_path):
    lists, refs, bias = simulated()
    done = tuned(lists, refs, bias)
    assert dict(done.scales.features)["bias"] > 0 and done.scales.uses_bias
    items = list(done)
    assert all(item.words == refs[item.nbest.utt] for item in items)
    without, with_it, decoys = done.tuned.decoys.values()
    assert with_it == 0 and 30 < without <= 60 and decoys <= without
    assert done.scales.control is None and not done.scales.unbiased.uses_bias
    others = [item.nbest.hypotheses[item.unbiased].words for item in items]
    assert sum(w != refs[x.nbest.utt] for w, x in zip(others, items, strict=True)) == without
    path = tmp_path / "scales.yaml"
    path.write_text(yaml.safe_dump(done.scales.settings(done.mixture)))
    assert read_scales(path) == done.scales


@pytest.mark.parametrize("presence", [0.1, 0.8, 1.0])
def test_decoys_make_the_weight_smaller(presence):
    """A list that rarely holds what is said is worth less where its other names do harm."""
    lists, refs, bias = simulated(120, held=0.5, harm=0.2)
    done = tuned(lists, refs, bias, bias_presence=presence)
    without, with_it, *decoys = done.tuned.decoys.values()
    assert with_it <= without and (presence > 0.1 or decoys[0] <= without)
    weight = dict(done.scales.features or ()).get("bias", 0.0)
    assert (weight > 0) == (presence > 0.1)
    assert ("with decoys" in done.tuned.decoys) == (presence < 1)


def test_the_guard_of_other_words():
    """Two names for one other word are fewer errors, and not what a bias list is for."""
    lists, refs, bias = [], {}, bias_of("anna", "bert")
    for n in range(80):
        rng = np.random.default_rng(n)
        words = [*rng.choice(list("abcdef"), size=5)]
        texts = [
            ("z", *words[1:], "anna", "bert"),
            *(("z", *words[1:], w, w) for w in ("vvvv", "wwww")),
        ]
        texts = [(*words, "xxxx", "yyyy"), *(texts[k] for k in rng.permutation(3))]
        hyps = tuple(map(Hypothesis, texts, (0.0, *sorted(-1.0 - rng.random(3), reverse=True))))
        lists.append(ScoredList(NBest(f"u{n}", hyps, recording=f"r{n}"), log_probs_of(hyps)))
        refs[f"u{n}"] = (*words, "anna", "bert")
    done = tuned(lists, refs, BiasLists(shared=bias), bias_presence=1.0)
    assert sum(item.words[0] == "z" for item in done) <= 2


def write(folder, lists, refs, bias):
    with open(folder / "lists.jsonl", "w") as f:
        for item in lists:
            hyps = [
                {"text": " ".join(h.words), "am_score": h.am_score} for h in item.nbest.hypotheses
            ]
            row = {"utt": item.nbest.utt, "recording": item.nbest.recording, "hypotheses": hyps}
            print(json.dumps({**row, "ref": " ".join(refs[item.nbest.utt])}), file=f)
    with open(folder / "bias", "w") as f:
        for utt, own in bias.lists.items():
            print(json.dumps({"utt": utt, "words": [*own.weights]}), file=f)


def test_the_tool_and_the_function(tmp_path, capsys):
    """Tuned on lists, applied to others by the scales, in context too, with the same choices."""
    lists, refs, bias = simulated()
    write(tmp_path, lists, refs, bias)
    given = ["--nbest", str(tmp_path / "lists.jsonl"), "--bias", str(tmp_path / "bias")]
    main([*given, "--output", str(tmp_path / "tuned")])
    said = capsys.readouterr()[0]
    assert "rescored: U-WER 0.00 %, B-WER 0.00 % of 60 words" in said
    assert "without the bias list - rescored: MAPSSWE" in said
    names = {path.name for path in (tmp_path / "tuned").iterdir()}
    assert "text_without_bias" in names and "text_without_lm" not in names
    content = yaml.safe_load((tmp_path / "tuned" / "scales.yaml").read_text())
    assert content["tuning"]["decoys"]["with it"] == 0
    scales = ["--scales", str(tmp_path / "tuned" / "scales.yaml")]
    texts = [(tmp_path / "tuned" / "text").read_text()]
    for name, more in (("again", []), ("context", ["--context", "previous"])):
        main([*given, *scales, *more, "--output", str(tmp_path / name)])
        texts.append((tmp_path / name / "text").read_text())
    assert len({*texts}) == 1
    nbests = [item.nbest for item in lists]
    found = espnet_bayeslm.rescore(nbests, bias=str(tmp_path / "bias"), tune=True, refs=refs)
    lines = [" ".join((item.nbest.utt, *item.words)) for item in found]
    assert "\n".join([*lines, ""]) == texts[0]


def test_without_references_a_phrase_has_its_default_weight(tmp_path):
    nbest = NBest("u", tuple(Hypothesis((w,), s) for w, s in [("x", 0.0), ("anna", -2.9)]))
    for given, best in (({}, 1), ({"bias_weight": 2.5}, 0)):
        (item,) = espnet_bayeslm.rescore([nbest], bias=["anna"], **given)
        assert item.best == best
    assert BIAS_WEIGHT == 3.0
    scored = ScoredList(nbest, log_probs_of(nbest.hypotheses), given={"bias": np.array([0.0, 1.0])})
    assert choose(scored, facts_of(), Scales(1.0).with_bias(3.0)).best == 1


def test_a_list_of_common_words_is_told(caplog):
    """It would bias every sentence."""
    words = tuple("abcdefgh")
    nbests = [NBest(f"u{n}", (Hypothesis(words),), ref=words) for n in range(20)]
    list(espnet_bayeslm.rescore(nbests, bias=[*words, "anna"], tune=True))
    assert "1 of 1 bias lists hold a tenth or more of the" in caplog.text


def test_options_that_do_not_fit(tmp_path):
    nbest = NBest("u", (Hypothesis(("x",), 0.0), Hypothesis(("anna",), -1.0)), ref=("x",))
    with pytest.raises(InputError, match="--bias_weight where scales are tuned"):
        espnet_bayeslm.rescore([nbest], bias=["anna"], bias_weight=1.0, tune=True)
    with pytest.raises(InputError, match="weigh the phrases of a bias list, and there is none"):
        weights = Scales(features=(("am_score", 1.0), ("bias", 1.0)))
        list(espnet_bayeslm.rescore([nbest], scales=weights))
    for given in (3, [3], [("anna", "x", "y")]):
        with pytest.raises(InputError, match="of something else than phrases"):
            espnet_bayeslm.rescore([nbest], bias=given)
    with pytest.raises(InputError, match="--bias_weight without --bias"):
        RescoreOptions.of(bias_weight=1.0)
    with pytest.raises(InputError, match="give no LM a weight"):
        list(espnet_bayeslm.rescore([nbest], bias=["anna"], scales=Scales(features=FIRST_WINS)))
    with pytest.raises(InputError, match="no LM"):
        list(espnet_bayeslm.rescore([nbest], bias=["anna"], subtract_lms=["nosuch.arpa"]))
    two = NBest("u", tuple(Hypothesis(("x",), -float(n), -1.0) for n in range(2)))
    with pytest.raises(InputError, match="has am_score and lm_score, whose weights are not known"):
        list(espnet_bayeslm.rescore([two], bias=["anna"]))
    list(espnet_bayeslm.rescore([two], bias=["anna"], scales=Scales(lmwt=2.0)))


@pytest.mark.parametrize(
    "given",
    [["Anna", "New York"], {"Anna": None, "New York": None}, [("Anna", None), "New York"]],
)
def test_phrases_in_python(given):
    """They go through the normalisation, as those of a file do."""
    found = bias_lists(given, Normalization("lower"), ())
    assert found.shared == bias_of("anna", "new york")
    again = bias_lists(BiasLists({"u": bias_of("Anna")}), Normalization("lower"), ())
    assert again.of("u") == bias_of("anna")
    weighed = bias_lists({"Anna": 2.5}, Normalization("lower"), ())
    assert dict(weighed.shared.weights) == {"anna": 2.5}


def test_a_tuning_that_gives_phrases_no_weight_is_kept(tmp_path):
    """The default is for scales that never knew a bias list."""
    lists, refs, bias = simulated(held=0.0)
    done = tuned(lists, refs, bias)
    assert not done.scales.uses_bias and done.scales.knows_bias
    path = tmp_path / "scales.yaml"
    path.write_text(yaml.safe_dump(done.scales.settings(done.mixture)))
    options = RescoreOptions.of(bias=bias, scales=str(path))
    assert not options.scales_for(facts_of()).uses_bias
    none = RescoreOptions.of(bias=bias, scales=Scales(1.0).with_bias(0.0))
    assert not none.scales_for(facts_of()).uses_bias
    assert RescoreOptions.of(bias=bias, scales=Scales(1.0)).scales_for(facts_of()).uses_bias


def test_a_decoy_holds_no_reading_of_what_was_said():
    own = bias_of("new", "new york", "york city", "ny", "anna")
    nbest = NBest("u", (Hypothesis(tuple(["new", "york", "city"])), Hypothesis(("ny", "anna"))))
    said = ["{", "new", "york", "city", "/", "ny", "}"]
    assert bias_features(own.without(own.said(said)), nbest)["bias"].tolist() == [0, 1]
