"""Bad input of the tools that read and score: one line says it, and nothing is written."""

import importlib
import os
import re
import shlex

import numpy as np
import pytest
from oracles.lattice_paths import random_lattice, write_htk

from espnet_bayeslm.bin.rescore import RescoreCommand, rescore
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.rescoring.scales import Scales

# what each command line begins with
COMMANDS = {
    "export": "--output {tmp_path}/out",
    "interpolate": "--text {tmp_path}/text --output {tmp_path}/old",
    "lattice": "--lattices {tmp_path}/lattices",
    "perplexity": "--text {tmp_path}/text --output {tmp_path}/out/json",
    "report": "--output {tmp_path}/out.html",
    "rescore": "--nbest {nbest}/dev --ngram {ngram} --output {tmp_path}/out",
    "score": "--ref {tmp_path}/ref --output {tmp_path}/out/x.json",
    "snr": "--output {tmp_path}/out",
}
PRUNE = "--lm {bayes} --text {tmp_path}/text --prune true"
SUBTRACT = "--subtract_lm {ngram} --subtract_weight"
REFUSED = [
    # LMs, n-grams and their weights, as of any tool
    ("perplexity", "", "no LM. Give --lm EXP and/or --ngram ARPA"),
    ("perplexity", "--lm nosuch", "nosuch"),
    ("perplexity", "--lm {broken}", "{broken}/valid.loss.ave.pth: cannot be read"),
    ("perplexity", "--ngram nosuch.arpa", "nosuch.arpa: no such n-gram file"),
    ("perplexity", "--lm {ngram}", "Give it by --ngram"),
    ("perplexity", "--ngram {bayes}", "is given by --lm"),
    ("perplexity", "--lm {point} --weights nosuch", "neither a file nor numbers"),
    ("perplexity", "--lm {point} --max_oov_rate 0.1", "does not know 1 of 7 words (14.29 %"),
    ("perplexity", "--lm {point} --text {tmp_path}/keyed --max_oov_rate 1", "say --keyed true"),
    ("perplexity", "--lm {point} --context -1", "--context -1: expected 0 or more sentences"),
    ("perplexity", "--ngram {ngram} --output {tmp_path}/text/x", "permissions"),
    ("perplexity", "--ngram {ngram} --engine_conf x", "--engine_conf without --engine dask"),
    ("interpolate", "--lm {point} --max_oov_rate 0.1", "point does not know 1 of 7 words"),
    ("interpolate", "--ngram {ngram} --train_text none", "none: no such training text"),
    ("rescore", "--train_text none --lmwt 1 --ref {nbest}/dev.ref", "none: no such training text"),
    ("rescore", "--nbest {tmp_path}/scores.jsonl", "no first-pass score (the first: 'u1')"),
    ("rescore", "--nbest {tmp_path}/refs.jsonl", "1 of 3 lists have a reference, 'u0' has none"),
    ("rescore", "--nbest {tmp_path}/one.jsonl --write_best 0", "--write_best 0: expected 1 or"),
    ("rescore", "--nbest {tmp_path}/one.jsonl --folds 2", "one list, recording or speaker"),
    ("rescore", "--lmwt 1 --context previous", "needs to know the recordings, and the list of the"),
    ("rescore", "--lm {point}", "no --weights for the 2 components"),
    ("rescore", "--weights 1 --uncertainty true --num_samples 3", "no LM is uncertain"),
    ("rescore", "--nbest {tmp_path}/pipe", "pipe: a pipe, and it is read twice"),
    ("rescore", "--lmwt 1 --subtract_lm {ngram}", "no weight of the subtracted LM bigram"),
    ("rescore", f"--lmwt 1 {SUBTRACT} 0.5", "is 0.5, and a number at or below zero"),
    ("rescore", f"--lmwt 1 {SUBTRACT} -1 --subtract_weight -2", "2 --subtract_weight for 1 --sub"),
    ("rescore", f"--tune_ref {{nbest}}/dev.ref {SUBTRACT} -1", "where scales are tuned"),
    ("rescore", "--tune_ref {nbest}/test.ref", "utterances have no reference"),
    ("lattice", "--ref {tmp_path}/ref --lattices {tmp_path}/pipe", "a pipe, and it is read twice"),
    ("lattice", "--ref {tmp_path}/ref --words {tmp_path}/pipe", "a pipe, and it is read twice"),
    ("lattice", "--output {tmp_path}/out --max_arcs 3", "at most 3 were expected"),
    ("lattice", "--output {tmp_path}/lattices", "is not the output of an earlier"),
    ("lattice", "--ref {tmp_path}/ref", "have no reference"),
    ("lattice", "--lattices {nbest}/dev --ref {tmp_path}/ref", "no HTK lattices in it"),
    ("lattice", "--output {tmp_path}/out --ngram {ngram} --max_oov_rate 0", "does not know"),
    ("lattice", "--output {tmp_path}/out --subtract_lm {bayes}", "without --lm or --ngram"),
    ("export", "--lm {tmp_path}/alone.pth", "found no config.yaml beside the checkpoint"),
    ("export", "--lm {bayes} --weights 1", "--weights are for several LMs"),
    ("export", "--lm {bayes} --lm {seq_rnn}", "no --weights for the 2 components"),
    ("export", "", "no LM. Give --lm EXP"),
    ("export", "--format hf --lm {bayes} --ngram {ngram}", "one pretrained LM and no more"),
    ("export", "--format peft --lm {bayes}", "is for an adapted pretrained LM"),
    ("export", "--lm {point} --subtract_lm {seq_rnn}", "0 --subtract_weight for 1 --subtract_lm"),
    ("export", "--lm {point} --subtract_lm {seq_rnn} --subtract_weight 0.5", "is 0.5, and a num"),
    ("snr", "--lm {bayes} --lm {point}", "point is a point-estimate LM"),
    ("snr", "--lm {seq_rnn}", "seq_rnn is a point-estimate LM"),
    ("snr", "", "no LM. Give --lm EXP"),
    ("snr", "--lm {bayes} --prune true", "without a text. Give --text"),
    ("snr", "--lm {latent} --text {tmp_path}/text --prune true", "and no random weights to prune"),
    ("snr", f"{PRUNE} --prune_steps=0,1.5", "--prune_steps '0,1.5': expected numbers"),
    # results of tools
    ("report", "", "nothing to report"),
    ("report", "--score {outputs}/ppl.json", "ppl.json: expected word errors of systems"),
    ("report", "--perplexity {outputs}/ppl.json " * 2, "has perplexities of"),
    ("report", "--rescored nosuch", "nosuch: not a folder"),
    ("report", "--score nosuch.json", "nosuch.json: cannot be read"),
    ("report", "--rescored a={outputs}/ngram " * 2, "are both called a"),
    ("report", "--ref {nbest}/dev.ref", "--ref without lists"),
    ("report", "--exp {outputs}", "found no checkpoint.pth"),
    # word errors
    ("score", "--hyp a={tmp_path}/short", "1 utterances have no hypothesis (first: 'u3')"),
    ("score", "--nbest {tmp_path}/old", "no format of N-best lists or lattices"),
    ("score", "--hyp a={tmp_path}/ref --baseline b", "no such system. Give a NAME of --hyp: a."),
    ("score", "--hyp conditions={tmp_path}/ref", "Choose another NAME"),
    ("score", "--hyp oracle=x --nbest x", "Choose another NAME"),
    ("score", "--hyp a={tmp_path}/ref --bias x --unit char", "--bias with --unit char: bias lists"),
    ("score", "--hyp a={tmp_path}/ref --bias nosuch", "nosuch: cannot be read"),
]


@pytest.fixture
def files(bayes, tmp_path):
    """Write what the command lines name to `tmp_path`."""
    texts = {
        "text": "a b zebra c\nd e f\n",
        "keyed": "".join(f"u{n} a b\n" for n in range(10)),
        "old": "old",
        "ref": "u1 a b c\nu2 d e\nu3\n",
        "short": "u1 a b c\nu2 d\n",
        "one.jsonl": '{"utt": "u", "hypotheses": ["a"], "ref": "a"}\n',
        "scores.jsonl": "".join(
            f'{{"utt": "u{n}", "hypotheses": [{{"text": "a", "am_score": {score}}}]}}\n'
            for n, score in enumerate((-1, "null", -2))
        ),
        "refs.jsonl": "".join(
            f'{{"utt": "u{n}", "hypotheses": ["a"], "speaker": "s", "ref": {ref}}}\n'
            for n, ref in enumerate(("null", '"a"', "null"))
        ),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "alone.pth").write_bytes((bayes / "valid.loss.ave.pth").read_bytes())
    write_htk([random_lattice(np.random.default_rng(0), words=["zzz"])], tmp_path / "lattices")


@pytest.mark.parametrize("tool, options, message", REFUSED)
def test_bad_input(files, refused, tool, options, message):
    main = importlib.import_module(f"espnet_bayeslm.bin.{tool}").main
    refused(main, shlex.split(f"{COMMANDS[tool]} {options}"), message)


REFUSED_BY_RESCORE = [
    ({"lmwt": 3.0, "scales": "x"}, "more than one source of scales: --scales, --lmwt"),
    ({"tune_ref": "x", "word_penalty": 1.0}, "scales: --tune_ref, --word_penalty"),
    ({"lmwt": -3.0}, "lmwt must be positive"),
    ({"scales": "nosuch.yaml"}, "nosuch.yaml: cannot be read"),
    ({"uncertainty": True}, "needs several weight samples, --num_samples is 0"),
    ({"folds": 1}, "--folds 1: expected 2 or more"),
    ({"tune_folds": 0}, "--tune_folds 0: expected 2 or more"),
]


@pytest.mark.parametrize("options, message", REFUSED_BY_RESCORE)
def test_options_that_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        rescore(RescoreCommand.of(nbest="x", output=str(tmp_path / "y"), **options))


def test_scales_and_references_of_options():
    for given, scales in (
        ({}, None),
        ({"lmwt": 3.0}, Scales(3.0)),
        ({"word_penalty": 1.0}, Scales(word_penalty=1.0)),
    ):
        assert RescoreOptions.of(**given).given_scales() == scales
    for name, value in {"folds": 2, "tune_lms": True}.items():
        with pytest.raises(ValueError, match=f"--{name}: no references to tune on"):
            RescoreOptions.of(**{name: value}).check_untuned()
