"""Does uncertainty find the wrong words of rescored lists? Areas under the ROC, with intervals.

    python bench/errors_found.py --bayes EXP --point EXP --pair HYP REF [--pair HYP REF ...]

HYP: a Kaldi text that the lists gave (`text` of `bayeslm rescore`), REF: its references. A word
is wrong where the alignment substitutes or inserts it. Each figure ranks the words by how doubtful
they are: an area of 0.5 is chance. 95 % intervals, of the areas and of their difference from that
of the point-estimate LM's -ln p and the entropy, are of a bootstrap over sentences.
"""

import argparse

import numpy as np

import espnet_bayeslm
from espnet_bayeslm.evaluation.calibration import auroc
from espnet_bayeslm.evaluation.wer import check_same_utterances, read_transcripts
from espnet_bayeslm.experiment.cells import markdown_table
from espnet_bayeslm.rescoring.bayes_risk import words_in_place
from espnet_bayeslm.scoring.neural import NeuralScorer

POINT, ENTROPY = "-ln p, point estimate", "entropy"
DRAWS = 1000


def doubts(bayes, point, hyps, num_samples):
    """Figure -> doubt of each word of each hypothesis, (n,) without that of `</s>`."""
    found = NeuralScorer(bayes, num_samples=num_samples).uncertainty(hyps)
    figures = {
        POINT: [-scores.log_probs for scores in point.word_scores(hyps)],
        "-ln p, Bayesian, mean weights": [-scores.log_probs for scores in bayes.word_scores(hyps)],
        "-ln p, Bayesian, average of the draws": [-each.log_probs for each in found],
        ENTROPY: [each.entropy for each in found],
        "mutual information": [each.mutual_information for each in found],
        "variance of ln p": [each.variance for each in found],
    }
    return {name: [values[:-1] for values in rows] for name, rows in figures.items()}


def areas(wrong, figures, chosen):
    """Figure -> area over some sentences."""
    positive = np.concatenate([wrong[n] for n in chosen])
    return {
        name: auroc(np.concatenate([rows[n] for n in chosen]), positive)
        for name, rows in figures.items()
    }


def interval(values):
    """95 % of the values of a bootstrap."""
    return "[{:.3f}, {:.3f}]".format(*np.quantile(values, (0.025, 0.975)))


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bayes", required=True, help="Experiment of the Bayesian LM")
    parser.add_argument("--point", required=True, help="Experiment of the point-estimate LM")
    parser.add_argument("--pair", nargs=2, action="append", required=True, metavar=("HYP", "REF"))
    parser.add_argument("--num_samples", type=int, default=10, help="Draws of the weights")
    args = parser.parse_args()
    bayes, point = espnet_bayeslm.load(args.bayes), espnet_bayeslm.load(args.point)
    hyps, wrong = [], []
    for hyp_path, ref_path in args.pair:
        found, refs = read_transcripts(hyp_path), read_transcripts(ref_path)
        check_same_utterances(refs, found, ref_path=ref_path, hyp_path=hyp_path)
        for utt, hyp in found.items():
            if hyp:
                hyps.append(hyp)
                wrong.append(~words_in_place(hyp, [refs[utt]])[0])
    figures = doubts(bayes, point, hyps, args.num_samples)
    whole = areas(wrong, figures, range(len(hyps)))
    rng = np.random.default_rng(0)
    drawn = [areas(wrong, figures, rng.integers(len(hyps), size=len(hyps))) for _ in range(DRAWS)]
    words, errors = sum(map(len, wrong)), int(sum(map(np.sum, wrong)))
    print(f"{len(hyps)} sentences, {words} words, {errors} wrong, {args.num_samples} draws\n")
    rows = []
    for name, area in whole.items():
        values = {n: np.array([each[n] for each in drawn]) for n in (name, POINT, ENTROPY)}
        against = [
            f"{area - whole[n]:+.3f} {interval(values[name] - values[n])}" if n != name else ""
            for n in (POINT, ENTROPY)
        ]
        rows.append([name, f"{area:.3f} {interval(values[name])}", *against])
    header = ["doubt of a word", "AUROC", f"against {POINT}", f"against {ENTROPY}"]
    print(markdown_table(header, rows), end="")


if __name__ == "__main__":
    main()
