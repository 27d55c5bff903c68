#!/usr/bin/env python3
"""Write the configuration of each line of `lines.txt`, and `README.md`, beside this file.

python conf/tuning/generate.py           writes them
python conf/tuning/generate.py --check   names what differs from it, and fails if anything does
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List

FOLDER = Path(__file__).resolve().parent
ROMAN = {1: "I", 3: "III", 4: "IV", 6: "VI"}

LM_NAMES = {"lstm": "LSTM-RNN", "transformer": "Transformer"}
LM_CONF = {
    "lstm": """\
    unit: 1024
    nlayers: 2
    dropout_rate: 0.2
    tie_weights: true
""",
    "transformer": """\
    att_unit: 512
    head: 8
    unit: 4096
    layer: 6
    dropout_rate: 0.2
    tie_weights: true
""",
}
PRIOR_VARIANCE = {"lstm": "1.0", "transformer": "0.001"}

UNCERTAIN = ("bayes", "gp", "variational")
# Initial learning rates: (point estimate, uncertain).
LEARNING_RATES = {"lstm": ("5.0", "0.1"), "transformer": ("0.1", "0.01")}

TITLES = {
    "point": "{lm} LM with point-estimate weights",
    "l1": "{lm} LM with L1 regularization",
    "l2": "{lm} LM with L2 regularization",
    "map": "{lm} LM with MAP-estimated weights",
    "bayes": "Bayesian {lm} LM, random weights at {where}",
    "gp": "GP {lm} LM, random weights and basis coefficients at {where}",
    "variational": "Variational {lm} LM, latent variables at {where}",
}
# What the paper calls positions whose names here do not say it.
PAPER_NAMES = {
    "cell_state": "c-Gate",
    "hidden_input": "h-Gate",
    "layer_input": "i-Gate",
    "embedding": "EMB",
    "attention": "MHA",
    "ffn": "FFN",
}
STARTS = {
    "point": "Starts from random weights.\n",
    "l1": "Starts from random weights.\n",
    "l2": "Starts from random weights.\n",
    "map": """\
Starts from random weights. The prior's mean is zero; the paper's is the point-estimate LM of
line {base}: --model_conf prior=CHECKPOINT with ESPnet's lm_train.
""",
    "bayes": """\
Fine-tuned from the point-estimate LM of line {base}, which is also the prior's mean:
  bayeslm train --config THIS_FILE --from EXP_OF_LINE_{base} ...
or --init_param CHECKPOINT --model_conf prior=CHECKPOINT with ESPnet's lm_train.
""",
    "variational": """\
Fine-tuned from the point-estimate LM of line {base}; the prior is a network trained with the LM:
  bayeslm train --config THIS_FILE --from EXP_OF_LINE_{base} ...
or --init_param CHECKPOINT with ESPnet's lm_train.
""",
}
STARTS["gp"] = STARTS["bayes"].replace("prior's mean", "prior's mean of the weights")

REGULARIZER_WEIGHT = """\
    # The paper does not give its weight: this one is ours, to be tuned on dev.
    regularizer_weight: 1.0e-6
"""
UNCERTAIN_LEARNING_RATE = """\
    # Smaller than the point-estimate LM's, as in the paper.
"""
GRAD_CLIP = """\
# At this learning rate a few steep batches undo an epoch; torch's LSTM LM example clips here too.
grad_clip: 0.25
"""
TRUNK = """\
# Halved whenever the validation perplexity does not fall.
scheduler: reducelronplateau
scheduler_conf:
    factor: 0.5
    patience: 0
    threshold: 0.0

batch_type: sorted
batch_size: 32
max_epoch: 30
# Five epochs without a better perplexity: the rate is then 1/32 of what helped last.
patience: 5
best_model_criterion:
-   - valid
    - loss
    - min
keep_nbest_models: 1
num_att_plot: 0
"""

README = """\
# The paper's LMs, line by line

One file for each LM line of Tables I, III, IV and VI of Xue et al. 2022. Lines that only mix the
LMs of other lines ("+LSTM", "All ..."), n-grams and Oracle have none.
`python conf/tuning/generate.py` writes the files and this page from `lines.txt`:
change that, not them.

PPL and WER below are **the paper's**, on AMI (dev/eval; average of ihm, sdm1, mdm8) and LRS2 (test;
average of four conditions), each after interpolation with the paper's 3-gram or 4-gram. They are
not results of this code.

- Lines of the architecture search (`_nas`) train what the paper's search found, its top 1 to 3.
- The paper starts from LMs at half their training and takes converged ones as the prior's means;
  it found starting from converged ones as good (IV-A). These files take one LM for both.
- Only Table I gives seeds: the other files have ESPnet's default, and one draw a step as in the
  paper (IV-C).
- The rates are the paper's, for SGD. Standard deviations and the networks of variational LMs are
  trained by Adam beside it (`model_conf` `posterior_lr`, see the README); with `posterior_lr: null`
  SGD trains all, and the former do not move and the latter diverge.
- The weights of L1 and L2 (1.0e-6) are ours: the paper does not give them. Tune them on dev.
- Averages are as printed. A few do not match their conditions: in Table III the means over dev of
  lines 37, 38 and 42 are 24.5, 24.6 and 24.5.
"""
SECTIONS = {
    1: "AMI: numbers of draws and seeds",
    3: "AMI: LSTM-RNN LMs",
    4: "AMI: Transformer LMs",
    6: "LRS2: LSTM-RNN and Transformer LMs",
}


@dataclass(frozen=True)
class Line:
    """An LM line of a table of the paper; the fields are `lines.txt`'s columns."""

    table: int
    number: int
    lm: str
    kind: str
    where: str
    options: Dict[str, str]
    ppl: str
    wer: str

    @property
    def stem(self) -> str:
        """The name of its file without `.yaml`; without commas, which ESPnet's options split at."""
        where = "" if self.where == "-" else f"_{self.where}"
        name = f"table{self.table}_line{self.number:02d}_{self.kind}_{self.lm}{where}"
        for option, value in self.options.items():
            name += "_nas" if option == "nas" else f"_{option}{value}"
        return name.replace("@", "_").replace(",", "_")


def read_lines() -> List[Line]:
    """Return the lines of `lines.txt`."""
    lines = []
    for row in (FOLDER / "lines.txt").read_text().splitlines():
        if not row.startswith("#"):
            table, number, lm, kind, where, options, ppl, wer = row.split()
            pairs = dict(o.split("=") for o in options.split(",")) if options != "-" else {}
            lines.append(Line(int(table), int(number), lm, kind, where, pairs, ppl, wer))
    return lines


def find_base(line: Line, lines: List[Line]) -> int:
    """Return the line of the same table that is the point-estimate LM of the same type."""
    return next(
        o.number for o in lines if (o.table, o.lm, o.kind) == (line.table, line.lm, "point")
    )


def make_comment(line: Line, base: int) -> str:
    """Return the file's first comment: which line it is, and how it starts."""
    position = line.where.partition("@")[0]
    where = line.where + (f" ({PAPER_NAMES[position]})" if position in PAPER_NAMES else "")
    text = TITLES[line.kind].format(lm=LM_NAMES[line.lm], where=where) + ":\n"
    corpus = " (LRS2)" if line.table == 6 else ""
    text += f"line {line.number} of Table {ROMAN[line.table]}{corpus}, Xue et al. 2022.\n"
    if "nas" in line.options:
        text += f"The paper's architecture search found where (top {line.options['nas']}).\n"
    text += STARTS[line.kind].format(base=base)
    return "".join(f"# {row}\n" for row in text.splitlines())


def make_lm(line: Line) -> str:
    """Return `lm` and `lm_conf`."""
    text = f"lm: bayes_{line.lm}\nlm_conf:\n{LM_CONF[line.lm]}"
    if line.kind in UNCERTAIN:
        text += f"    uncertainty:\n        {line.where}: {line.kind}\n"
    else:
        text += "    uncertainty: {}\n"
    if line.kind in ("bayes", "gp", "map"):
        text += f"    prior_variance: {PRIOR_VARIANCE[line.lm]}\n"
    return text + "\n"


def make_model(line: Line) -> str:
    """Return `model`, `model_conf` and `seed`, as far as the line needs them."""
    if line.kind == "point":
        return ""
    text = "model: bayes_lm\n"
    if line.kind not in UNCERTAIN:
        text += f"model_conf:\n    regularizer: {line.kind}\n"
        text += REGULARIZER_WEIGHT if line.kind != "map" else ""
    if "samples" in line.options:
        text += f"model_conf:\n    num_samples: {line.options['samples']}\n"
    if "seed" in line.options:
        text += f"\nseed: {line.options['seed']}\n"
    return text + "\n"


def make_optimizer(line: Line) -> str:
    """Return `optim`, `optim_conf` and `grad_clip`."""
    uncertain = line.kind in UNCERTAIN
    text = "optim: sgd\noptim_conf:\n" + (UNCERTAIN_LEARNING_RATE if uncertain else "")
    text += f"    lr: {LEARNING_RATES[line.lm][uncertain]}\n"
    return text + (GRAD_CLIP if line.lm == "lstm" and not uncertain else "")


def make_readme(lines: List[Line]) -> str:
    """Return the page that lists the files."""
    text = README
    for table, title in SECTIONS.items():
        sets = "test" if table == 6 else "dev/eval"
        text += f"\n## Table {ROMAN[table]}: {title}\n\n"
        text += f"| line | file | paper's PPL ({sets}) | paper's average WER % ({sets}) |\n"
        text += "|---:|---|---|---|\n"
        for line in lines:
            if line.table == table:
                link = f"[{line.stem}]({line.stem}.yaml)"
                text += f"| {line.number} | {link} | {line.ppl} | {line.wer} |\n"
    return text


def generate() -> Dict[str, str]:
    """Return the content of each file by its name."""
    lines = read_lines()
    files = {
        f"{line.stem}.yaml": make_comment(line, find_base(line, lines))
        + make_lm(line)
        + make_model(line)
        + make_optimizer(line)
        + TRUNK
        for line in lines
    }
    return {**files, "README.md": make_readme(lines)}


def find_differences() -> List[str]:
    """Return the names of files here that are not as generated, are missing or are too many."""
    expected = generate()
    present = {path.name for path in FOLDER.glob("*.yaml")} | {"README.md"}
    return [
        name
        for name in sorted(present | set(expected))
        if name not in expected
        or not (FOLDER / name).exists()
        or (FOLDER / name).read_text() != expected[name]
    ]


def main() -> None:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="Write nothing")
    if parser.parse_args().check:
        sys.exit("\n".join(find_differences()) or 0)
    for name, content in generate().items():
        (FOLDER / name).write_text(content)


if __name__ == "__main__":
    main()
