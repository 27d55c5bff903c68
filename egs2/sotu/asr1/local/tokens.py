#!/usr/bin/env python3
"""A BPE model of a Kaldi text, and its token list as ESPnet has it."""

from __future__ import annotations

import sys
from pathlib import Path

import sentencepiece


def main(text: str, prefix: str, size: str) -> None:
    """Write PREFIX.model, PREFIX.vocab and tokens.txt beside them."""
    sentences = [line.split(maxsplit=1)[1] for line in Path(text).read_text("utf-8").splitlines()]
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(sentences), model_prefix=prefix, vocab_size=int(size)
    )
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    pieces = sorted({piece for words in sentences for piece in model.EncodeAsPieces(words)})
    tokens = ["<blank>", "<unk>", *pieces, "<sos/eos>"]
    (Path(prefix).parent / "tokens.txt").write_text("\n".join(tokens) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
