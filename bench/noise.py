"""Variance of the gradient of posterior means, by what shares a draw of the weights' noise.

A small point-estimate LM is trained on the text that the package ships. Its weights then become
the means of a posterior, and the gradient of one batch's NLL is computed with many draws of the
noise. Printed is the trace of the covariance of the gradient of a location's means, over the
squared norm of its mean; and the same over many batches, with the weights at their means.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import logging
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
import torch.nn.functional as F

import espnet_bayeslm
from espnet_bayeslm.bayes import noise_generator
from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM

TEXT = Path(espnet_bayeslm.__file__).parent / "quickstart" / "data" / "train.txt.gz"
BATCH, LENGTH = 32, 35
CONF: Dict[type, Dict[str, Any]] = {
    BayesLSTMLM: dict(unit=128, nlayers=2, dropout_rate=0.0),
    BayesTransformerLM: dict(att_unit=128, head=4, unit=512, layer=2, dropout_rate=0.0),
}
# Where there is noise, and what can share it there.
PLACES: List[Tuple[type, str, Tuple[str, ...]]] = [
    (BayesLSTMLM, "cell_input@*", ("shared", "flipout")),
    (BayesLSTMLM, "all_gates@*", ("shared", "flipout")),
    (BayesLSTMLM, "embedding", ("shared", "sequence", "token")),
    (BayesTransformerLM, "ffn@*", ("shared", "flipout", "local")),
    (BayesTransformerLM, "attention@*", ("shared", "flipout", "local")),
    (BayesTransformerLM, "embedding", ("shared", "sequence", "token")),
]


def read_text(num_words: int) -> Tuple[torch.Tensor, int]:
    """Return the text's tokens (N,), `</s>` after each sentence, and the vocabulary's size."""
    text = gzip.decompress(TEXT.read_bytes()).decode().replace("\n", " </s> ").split()
    words = [word for word, _ in collections.Counter(text).most_common(num_words)]
    ids = {word: n for n, word in enumerate(words, start=2)}  # 0: padding, 1: unknown
    return torch.tensor([ids.get(word, 1) for word in text]), len(ids) + 2


def batches(tokens: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    """Yield batches of the text's pieces in a random order, (B, L + 1), without an end."""
    pieces = tokens.unfold(0, LENGTH + 1, LENGTH)
    generator = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(pieces), generator=generator).split(BATCH):
            if len(rows) == BATCH:
                yield pieces[rows]


def nll(lm: Any, batch: torch.Tensor) -> torch.Tensor:
    """Return the NLL per token of a batch, ()."""
    logits = lm(batch[:, :-1])[0]
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def trained(cls: type, tokens: torch.Tensor, vocab: int, steps: int) -> Dict[str, torch.Tensor]:
    """Return the weights of a point-estimate LM."""
    torch.manual_seed(0)
    lm = cls(vocab, **CONF[cls])
    optimizer = torch.optim.Adam(lm.parameters(), lr=2e-3)
    for _, batch in zip(range(steps), batches(tokens, 0), strict=False):
        optimizer.zero_grad()
        loss = nll(lm, batch)
        loss.backward()
        optimizer.step()
    print(f"{cls.__name__}: perplexity {float(loss.exp()):.0f} after {steps} steps", flush=True)
    return lm.state_dict()


def gradient(lm: Any, place: str, batch: torch.Tensor, seed: Optional[int]) -> torch.Tensor:
    """Return the gradient of a place's means with one draw, or with the means themselves (None)."""
    means = {f"{name}.{block.parameter}": None for name, _, block in lm.random_blocks()}
    leaves = [parameter for name, parameter in lm.named_parameters() if name in means]
    lm.train(seed is not None)
    with lm.drawn(None if seed is None else noise_generator(seed, 0, 0)):
        loss = nll(lm, batch)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])


def spread(gradients: List[torch.Tensor]) -> Tuple[float, float]:
    """Return the trace of the covariance and the squared norm of the mean, without their bias."""
    rows = torch.stack(gradients).double()
    trace = float(rows.var(0).sum())
    return trace, float(rows.mean(0).square().sum()) - trace / len(rows)


def main() -> None:
    """Print a line for each place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=48)
    parser.add_argument("--steps", type=int, default=400, help="of the LM's training")
    parser.add_argument("--num_words", type=int, default=3000)
    parser.add_argument("--init_std", type=float, nargs="+", default=[0.01, 0.05])
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # what a point-estimate checkpoint has not
    tokens, vocab = read_text(args.num_words)
    states = {cls: trained(cls, tokens, vocab, args.steps) for cls in CONF}
    source = batches(tokens, 1)
    text = [next(source) for _ in range(args.draws)]
    for cls, place, noises in PLACES:
        for std in args.init_std:
            found: Dict[str, Tuple[float, float]] = {}
            for noise in noises:
                kind = {"kind": "bayes", "noise": noise, "init_std": std}
                lm = cls(vocab, **CONF[cls], uncertainty={place: kind})
                lm.load_state_dict(states[cls])
                found[noise] = spread([gradient(lm, place, text[0], k) for k in range(args.draws)])
            found["other batches"] = spread([gradient(lm, place, batch, None) for batch in text])
            # of the estimates of the same mean that with the least variance
            norm = min(found[noise] for noise in noises)[1]
            cells = [f"{noise} {trace / norm:.3g}" for noise, (trace, _) in found.items()]
            print(f"{cls.__name__} {place}, std {std:g}: {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
