"""Outputs of the AMI recipe's stages, written as its tools write them."""

import dataclasses
import datetime
import json

import numpy as np
import torch
import yaml
from written_files import write

from espnet_bayeslm.evaluation.signal_to_noise import summarize
from espnet_bayeslm.kinds.architectures import rank
from espnet_bayeslm.nbest.formats import write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.report import search_results as search_report
from espnet_bayeslm.report import weight_noise as snr_report

SETS = ("dev", "eval")
# Utterance -> words of the reference; 10 utterances of 10 words.
REFS = {f"u{n}": tuple(f"w{n}{k}" for k in range(10)) for n in range(10)}


def text(wrong):
    """Return {utterance: words}: the references, the last `wrong` words of each replaced."""
    return {utt: (*words[: len(words) - wrong], *["x"] * wrong) for utt, words in REFS.items()}


def kaldi_text(texts):
    return "".join(f"{utt} {' '.join(words)}\n" for utt, words in texts.items())


def hypotheses():
    """Return lists with 4, 3, 2 and 1 of the 10 words wrong; the first pass' best has 4."""
    for utt in REFS:
        counts = (4, 3, 2, 1)
        yield NBest(utt, tuple(Hypothesis(text(n)[utt], -1.0 * n, -2.0, 0.0) for n in counts))


def write_lists(data, conditions, sets=SETS):
    for name in sets:
        for condition in conditions:
            folder = data / "nbest" / f"{name}_{condition}"
            write_nbest(hypotheses(), folder)
            (folder / "text").write_text(kaldi_text(REFS))
    (data / "nbest" / "conditions").write_text("".join(f"{c}\n" for c in conditions))


def write_lm(folder, *, ppls=(120.0, 100.0), kl=0.0, uncertainty=None, unit=200, random=0):
    """Write what is left of a training: its configuration, its statistics, 100 parameters."""
    config = {"lm_conf": {"unit": unit, "uncertainty": uncertainty or {}}}
    write(folder / "train.yaml", yaml.safe_dump(config))
    weight = torch.zeros(100)
    state = {"lm.encoder.weight": weight, "lm.decoder.weight": weight}
    if random:
        state["lm.rnn.weight_log_std"] = torch.zeros(random)
        state["lm.rnn.weight_prior_mean"] = torch.zeros(random)
        state["lm.noise_step"] = torch.zeros(())
    minute = {"time": datetime.timedelta(minutes=1)}
    stats = {
        number: {
            "train": {"nll": np.float64(4.5), "kl": np.float64(kl), **minute},
            "valid": {"nll": np.float64(4.6), "kl": np.float64(kl), "ppl": ppl, **minute},
        }
        for number, ppl in enumerate(ppls, 1)
    }
    torch.save({"reporter": {"stats": stats, "epoch": len(ppls)}}, folder / "checkpoint.pth")
    torch.save(state, folder / "valid.loss.ave.pth")


def perplexity_row(name, value):
    """Return a row of `bayeslm perplexity`, as far as it is read."""
    units = {unit: value for unit in ("word", "token", "character")}
    with_oov = {unit: 1.1 * value for unit in units}
    return {"name": name, "oovs": 3, "perplexity": with_oov, "perplexity_without_oov": units}


def write_system(exp, system, ppls, *, wrong=None, conditions=()):
    """Write perplexities of both sets; lists of the test set with words `wrong` by condition."""
    names = system.split("+")
    for name, ppl in zip(SETS, ppls, strict=True):
        rows = [perplexity_row(n, 150.0) for n in names]
        rows = [*rows, perplexity_row("mixture", ppl)] if len(names) > 1 else rows
        rows[-1] = perplexity_row(rows[-1]["name"], ppl)
        content = {"text": f"data/{name}/text.plain", "components": rows}
        write(exp / "perplexity" / system / f"{name}.json", json.dumps(content))
    for condition in conditions:
        for name in SETS:
            folder = exp / "rescore" / system / f"{name}_{condition}"
            write_nbest(hypotheses(), folder)
            count = wrong[condition] if name == SETS[1] else 3
            texts = text(count) if isinstance(count, int) else count
            (folder / "text").write_text(kaldi_text(texts))


def write_snr(exp, name, ratios, *, std=0.02, start=0.01):
    """Write the ratios of an LM: location -> its weights' ratios."""
    rows = [
        snr_report.LocationRow(
            place,
            "weights",
            dataclasses.replace(
                summarize(place, [(torch.tensor(values) * std, torch.full((len(values),), std))]),
                median_std_ratio=std / start,
            ),
        )
        for place, values in ratios.items()
    ]
    snr_report.write_snr(exp / "snr" / name, {name: rows}, {}, text=None)


def write_search(exp, name, weights):
    """Write a search of one run: location -> kind -> architecture weight."""
    run = search_report.Run("seed1", "seed1", 1, weights)
    ranking = rank([weights], 2)
    configs = [{"lm_conf": {"uncertainty": item.choices}} for item in ranking]
    search_report.write_search(exp / name, [run], ranking, configs)
