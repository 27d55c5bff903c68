"""From plain text to what ESPnet's LM task reads: keyed text, token list, statistics."""

from __future__ import annotations

import dataclasses
import io
import logging
from collections import Counter
from pathlib import Path
from typing import List, Optional, Sequence

import yaml

from espnet_bayeslm.scoring.unknown_words import unknown_words
from espnet_bayeslm.training.experiment import (
    UNKNOWN_WORDS,
    check_token_list,
    find_files,
    read_config,
)
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_write, read_lines

PARTS = ("train", "valid")


@dataclasses.dataclass(frozen=True)
class Tokens:
    """How text is cut into tokens.

    Attributes:
        token_type: `word`, `bpe` or `char`.
        token_list: The file that lists them.
        bpemodel: The sentencepiece model, for `bpe`.
    """

    token_type: str
    token_list: Path
    bpemodel: Optional[str] = None

    def options(self) -> List[str]:
        """Return them as ESPnet's options."""
        words = ["--token_type", self.token_type, "--token_list", str(self.token_list)]
        return words + (["--bpemodel", self.bpemodel] if self.bpemodel else [])


def write_keyed_text(source: Path, target: Path) -> None:
    """Write plain text, a sentence a line, as Kaldi text; blank lines are left out.

    Raises:
        InputError: No sentence, or `target` was made from other text.
    """
    name = target.stem
    lines = []
    for number, line in read_lines(source):
        words = line.split()
        for token in {"<blank>", "<sos/eos>"}.intersection(words):
            raise InputError(f"holds the special token {token}", path=source, line=number)
        lines.append(" ".join(words))
    sentences = [line for line in lines if line]
    if not sentences:
        raise InputError("holds no sentence", path=source)
    text = "".join(f"{name}-{n:09d} {s}\n" for n, s in enumerate(sentences, 1))
    if target.exists() and target.read_text(encoding="utf-8") != text:
        raise InputError(
            f"was made from other text than {source} is now",
            path=target,
            remedy="Give a new --exp folder.",
        )
    with atomic_write(target) as f:
        f.write(text)
    logging.info(f"{source}: {len(sentences)} sentences, {len(lines) - len(sentences)} blank lines")


def write_token_list(path: Path, tokens: Sequence[str]) -> None:
    """Write a token list, each token once.

    Raises:
        InputError: There is another list already, which an LM may have been trained with.
    """
    lines = [f"{token}\n" for token in dict.fromkeys(tokens)]
    if path.exists() and path.read_text(encoding="utf-8") != "".join(lines):
        raise InputError(
            "holds other tokens than those asked for now",
            path=path,
            remedy="Give a new --exp folder.",
        )
    with atomic_write(path) as f:
        f.writelines(lines)


def make_tokens(text: Path, folder: Path, *, token_type: str, vocab_size: Optional[int]) -> Tokens:
    """Make a token list from keyed text with ESPnet's tools (sentencepiece for `bpe`).

    Args:
        text: Kaldi text.
        folder: Where the list goes.
        token_type: `word`, `bpe` or `char`.
        vocab_size: At most so many tokens, the three special ones included (bpe: about).
    """
    token_list = folder / "tokens.txt"
    if token_type == "bpe":
        return Tokens("bpe", token_list, _train_bpe(text, token_list, vocab_size or 5000))
    from espnet2.bin import tokenize_text

    partial = folder / ".tokens.txt"
    command = ["--token_type", token_type, "--input", str(text), "--field", "2-"]
    command += ["--output", str(partial), "--write_vocabulary", "true"]
    command += ["--vocabulary_size", str(vocab_size or 0)]
    for symbol in ("<blank>:0", "<unk>:1", "<sos/eos>:-1"):
        command += ["--add_symbol", symbol]
    tokenize_text.main(command)
    tokens = [token for _, token in read_lines(partial)]
    partial.unlink()
    write_token_list(token_list, tokens)
    return Tokens(token_type, token_list)


def _train_bpe(text: Path, token_list: Path, vocab_size: int) -> str:
    """Train a sentencepiece model, write its pieces as a token list, return the model's path."""
    import sentencepiece

    content = io.BytesIO()
    sentences = (line.split(maxsplit=1)[1] for _, line in read_lines(text))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=content,
            vocab_size=vocab_size,
            model_type="unigram",
            character_coverage=1.0,
            minloglevel=1,
        )
    except RuntimeError as error:
        raise InputError(
            f"sentencepiece: {error}", path=text, remedy="Change --vocab_size."
        ) from error
    model = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
    # sentencepiece's first three are <unk>, <s> and </s>
    pieces = [model.id_to_piece(i) for i in range(3, len(model))]
    write_token_list(token_list, ["<blank>", "<unk>", *pieces, "<sos/eos>"])
    path = token_list.with_name("bpe.model")
    with atomic_write(path, "wb") as f:
        f.write(content.getvalue())
    return str(path)


def tokens_of(experiment: Path, folder: Path) -> Tokens:
    """Return the tokens of a trained LM, its list written to `folder`."""
    args = read_config(find_files(experiment)[0])
    check_token_list(args.token_list, path=str(experiment))
    write_token_list(folder / "tokens.txt", args.token_list)
    return Tokens(args.token_type, folder / "tokens.txt", args.bpemodel)


def data_options(folder: Path) -> List[str]:
    """Return ESPnet's options for the keyed text in a folder."""
    words: List[str] = []
    for part in PARTS:
        words += [f"--{part}_data_path_and_name_and_type", f"{folder}/{part}.txt,text,text"]
    return words


def collect_stats(folder: Path, tokens: Tokens, reading: Sequence[str]) -> List[str]:
    """Count each sentence's tokens by ESPnet's `--collect_stats`.

    Args:
        folder: The keyed text.
        tokens: Its tokens.
        reading: ESPnet's options that change how text is read.

    Returns:
        ESPnet's options for the shape files.
    """
    vocab_size = sum(1 for _ in read_lines(tokens.token_list))
    command = [*tokens.options(), *data_options(folder), *reading, "--collect_stats", "true"]
    command += ["--output_dir", str(folder / "stats"), "--num_workers", "0"]
    # The model is built and not used: the smallest of ESPnet's
    command += ["--lm", "seq_rnn", "--lm_conf", "unit=1", "--lm_conf", "nlayers=1"]
    for part in PARTS:
        command += [f"--{part}_shape_file", f"{folder}/{part}.txt"]
    BayesLMTask.main(cmd=command)
    options: List[str] = []
    for part in PARTS:
        shapes = folder / f"{part}.shape"
        with atomic_write(shapes) as f:
            for _, line in read_lines(folder / "stats" / part / "text_shape"):
                f.write(f"{line},{vocab_size}\n")
        options += [f"--{part}_shape_file", str(shapes)]
    return options


def prepare(
    texts: Sequence[Path],
    folder: Path,
    *,
    token_type: str,
    vocab_size: Optional[int],
    source: Optional[Path],
    reading: Sequence[str] = (),
) -> List[str]:
    """Make all that training reads.

    Args:
        texts: Training and validation text, a sentence a line.
        folder: Where the results go.
        token_type: `word`, `bpe` or `char`.
        vocab_size: At most so many tokens.
        source: A trained LM whose tokens to take instead.
        reading: ESPnet's options that change how text is read.

    Returns:
        ESPnet's options for text, tokens and shapes.
    """
    for part, text in zip(PARTS, texts, strict=True):
        write_keyed_text(text, folder / f"{part}.txt")
    if source is not None:
        tokens = tokens_of(source, folder)
    else:
        tokens = make_tokens(
            folder / "train.txt", folder, token_type=token_type, vocab_size=vocab_size
        )
    if tokens.token_type == "word":
        count_unknown_words(folder / "train.txt", tokens.token_list, folder / UNKNOWN_WORDS.name)
    return [*tokens.options(), *data_options(folder), *collect_stats(folder, tokens, reading)]


def count_unknown_words(text: Path, token_list: Path, target: Path) -> None:
    """Write how many words `<unk>` stands for, from keyed training text and the token list."""
    counts: Counter[str] = Counter()
    for _, line in read_lines(text):
        counts.update(line.split()[1:])
    known = {token for _, token in read_lines(token_list)}
    with atomic_write(target) as f:
        yaml.safe_dump(unknown_words(counts, known), f, sort_keys=False)
