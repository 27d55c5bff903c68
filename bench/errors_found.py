"""Does uncertainty find the wrong words of rescored lists? Areas under the ROC, with intervals.

    python bench/errors_found.py --bayes EXP --point EXP --pair HYP REF [--pair HYP REF ...]

HYP: a Kaldi text that the lists gave (`text` of `bayeslm rescore`), REF: its references. A word
is wrong where the alignment substitutes or inserts it. Each figure ranks the words by how doubtful
they are: an area of 0.5 is chance. 95 % intervals, of the areas and of their difference from that
of the point-estimate LM's -ln p and the entropy, are of a bootstrap over sentences.
"""

import argparse

import kaldialign
import numpy as np

import espnet_bayeslm
from espnet_bayeslm.evaluation.calibration import auroc
from espnet_bayeslm.evaluation.wer import check_same_utterances, read_transcripts

GAP = "<gap>"
POINT, ENTROPY = "-ln p, point estimate", "entropy"
DRAWS = 1000


def wrong_words(ref, hyp):
    """Whether each word of a hypothesis is wrong, (n,)."""
    pairs = kaldialign.align(list(ref), list(hyp), GAP)
    return np.array([a != b for a, b in pairs if b != GAP], dtype=bool)


def doubts(bayes, point, hyp, num_samples):
    """Figure -> doubt of each word, (n,) without that of `</s>`."""
    found = bayes.uncertainty(hyp, num_samples=num_samples)
    figures = {
        POINT: -np.asarray(point.word_scores([hyp])[0].log_probs),
        "-ln p, Bayesian, mean weights": -np.asarray(bayes.word_scores([hyp])[0].log_probs),
        "-ln p, Bayesian, average of the draws": -found.log_probs,
        ENTROPY: found.entropy,
        "mutual information": found.mutual_information,
        "variance of ln p": found.variance,
    }
    return {name: values[: len(hyp)] for name, values in figures.items()}


def areas(sentences, chosen):
    """Figure -> area over some sentences."""
    wrong = np.concatenate([sentences[n][0] for n in chosen])
    return {
        name: auroc(np.concatenate([sentences[n][1][name] for n in chosen]), wrong)
        for name in sentences[0][1]
    }


def interval(values):
    """95 % of the values of a bootstrap."""
    return "[{:.3f}, {:.3f}]".format(*np.quantile(values, (0.025, 0.975)))


def row(cells):
    """Row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bayes", required=True, help="Experiment of the Bayesian LM")
    parser.add_argument("--point", required=True, help="Experiment of the point-estimate LM")
    parser.add_argument("--pair", nargs=2, action="append", required=True, metavar=("HYP", "REF"))
    parser.add_argument("--num_samples", type=int, default=10, help="Draws of the weights")
    args = parser.parse_args()
    bayes, point = espnet_bayeslm.load(args.bayes), espnet_bayeslm.load(args.point)
    sentences = []
    for hyp_path, ref_path in args.pair:
        hyps, refs = read_transcripts(hyp_path), read_transcripts(ref_path)
        check_same_utterances(refs, hyps, ref_path=ref_path, hyp_path=hyp_path)
        for utt, hyp in hyps.items():
            if hyp:
                wrong = wrong_words(refs[utt], hyp)
                sentences.append((wrong, doubts(bayes, point, list(hyp), args.num_samples)))
    found = areas(sentences, range(len(sentences)))
    rng = np.random.default_rng(0)
    drawn = [
        areas(sentences, rng.integers(len(sentences), size=len(sentences))) for _ in range(DRAWS)
    ]
    words = sum(len(wrong) for wrong, _ in sentences)
    errors = sum(int(wrong.sum()) for wrong, _ in sentences)
    print(f"{len(sentences)} sentences, {words} words, {errors} wrong, {args.num_samples} draws\n")
    others = (POINT, ENTROPY)
    header = ["doubt of a word", "AUROC", *(f"against {other}" for other in others)]
    print(row(header), row(["---", *["---:"] * (len(header) - 1)]), sep="\n")
    for name, area in found.items():
        values = {n: np.array([each[n] for each in drawn]) for n in (name, *others)}
        against = [
            f"{area - found[other]:+.3f} {interval(values[name] - values[other])}"
            if other != name
            else ""
            for other in others
        ]
        print(row([name, f"{area:.3f} {interval(values[name])}", *against]))


if __name__ == "__main__":
    main()
