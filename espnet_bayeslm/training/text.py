"""From plain text to what ESPnet's LM task reads: keyed text, token list, statistics."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import yaml

from espnet_bayeslm.scoring.unknown_words import unknown_words
from espnet_bayeslm.training.build import text_reader
from espnet_bayeslm.training.experiment import (
    SPECIAL_TOKENS,
    UNKNOWN_WORDS,
    check_token_list,
    find_files,
    read_config,
    read_yaml_mapping,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, keyed_lines, read_lines, sha256

PARTS = ("train", "valid")
COUNTS = ("train.shape", "valid.shape", UNKNOWN_WORDS.name)
MADE_OF, BPE_MODEL = "made_of.yaml", "bpe.model"


class TokenOptions(NamedTuple):
    """Where an LM's tokens come from: a trained LM, a recogniser, files, or the training text.

    Attributes:
        token_type: `word`, `bpe` or `char`; None: `word`, or what comes with the tokens.
        vocab_size: At most so many tokens.
        source: A trained LM.
        asr_exp: A recogniser's experiment folder.
        token_list: A token list.
        bpemodel: Its sentencepiece model.
    """

    token_type: Optional[str] = None
    vocab_size: Optional[int] = None
    source: Optional[Path] = None
    asr_exp: Optional[Path] = None
    token_list: Optional[Path] = None
    bpemodel: Optional[Path] = None

    def check(self) -> None:
        """Raise an InputError where options contradict each other."""
        given = [f"--{name}" for name, value in self._asdict().items() if value is not None]
        given = ["--from" if word == "--source" else word for word in given]
        for owner in ("--from", "--asr_exp"):
            if owner in given and len(given) > 1:
                others = " and ".join(word for word in given if word != owner)
                raise InputError(f"{owner} brings its own tokens", remedy=f"Leave out {others}.")
        if self.bpemodel is not None and self.token_list is None:
            raise InputError(
                "--bpemodel without --token_list",
                remedy="Give both, or --asr_exp DIR, which takes both from a recogniser.",
            )
        if self.token_list is not None and self.vocab_size is not None:
            raise InputError("--token_list has its own size", remedy="Leave out --vocab_size.")
        if self.token_list is not None and (self.token_type == "bpe") > (self.bpemodel is not None):
            raise InputError("--token_type bpe needs the list's model", remedy="Give --bpemodel.")
        if self.bpemodel is not None and self.token_type not in (None, "bpe"):
            raise InputError(f"--bpemodel with --token_type {self.token_type}")


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
        """Options of ESPnet that say the same."""
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
    if not target.exists():
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
    if not path.exists():
        with atomic_write(path) as f:
            f.writelines(lines)


def made_tokens(
    text: Path,
    folder: Path,
    *,
    token_type: str,
    vocab_size: Optional[int],
    reading: Mapping[str, Optional[str]],
) -> Tokens:
    """Token list of keyed text, the most frequent first (sentencepiece's order for `bpe`).

    Args:
        text: Kaldi text.
        folder: Where the list goes.
        token_type: `word`, `bpe` or `char`.
        vocab_size: At most so many tokens, the three special ones included (bpe: about).
        reading: ESPnet's options that change how text is read.
    """
    token_list = folder / "tokens.txt"
    if token_type == "bpe":
        return Tokens("bpe", token_list, _train_bpe(text, token_list, vocab_size or 5000))
    text2tokens, _ = text_reader(_namespace(token_type, SPECIAL_TOKENS, None, reading))
    counts: Counter[str] = Counter()
    for _, _, sentence in keyed_lines(text):
        counts.update(text2tokens(sentence))
    if vocab_size is not None and vocab_size <= len(SPECIAL_TOKENS):
        raise InputError(f"--vocab_size {vocab_size}: leaves no token beside the special ones")
    most = None if vocab_size is None else vocab_size - len(SPECIAL_TOKENS)
    tokens = [token for token, _ in counts.most_common(most)]
    write_token_list(token_list, ["<blank>", "<unk>", *tokens, "<sos/eos>"])
    return Tokens(token_type, token_list)


def _namespace(
    token_type: str,
    token_list: Sequence[str],
    bpemodel: Optional[str],
    reading: Mapping[str, Optional[str]],
) -> argparse.Namespace:
    """ESPnet's options that say how text becomes tokens."""
    tokens = dict(token_type=token_type, token_list=list(token_list), bpemodel=bpemodel)
    return argparse.Namespace(use_preprocessor=True, **tokens, **reading)


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
    path = token_list.with_name(BPE_MODEL)
    with atomic_write(path, "wb") as f:
        f.write(content.getvalue())
    return str(path)


class GivenTokens(NamedTuple):
    """Tokens that need not be made from the training text; attributes as those of `Tokens`."""

    token_type: str
    tokens: Sequence[str]
    bpemodel: Optional[str]


def given_tokens(wanted: TokenOptions) -> Optional[GivenTokens]:
    """Tokens of a trained LM, a recogniser or files; None where there are none.

    Raises:
        InputError: They lack what they need, or the list is not the BPE model's.
    """
    wanted.check()
    token_type = wanted.token_type or "word"
    bpemodel: Optional[PathLike] = wanted.bpemodel
    if wanted.source is not None:
        args = read_config(find_files(wanted.source)[0])
        tokens, path = args.token_list, Path(wanted.source)
        token_type, bpemodel = args.token_type, args.bpemodel
    elif wanted.asr_exp is not None:
        token_type, tokens, bpemodel = recogniser_tokens(wanted.asr_exp)
        path = wanted.asr_exp
    elif wanted.token_list is not None:
        tokens = [line.rstrip() for _, line in read_lines(wanted.token_list)]
        path, token_type = wanted.token_list, "bpe" if bpemodel else token_type
    else:
        return None
    check_token_list(tokens, path=str(path))
    if token_type == "bpe":
        check_pieces(tokens, str(bpemodel), path=path)
    return GivenTokens(token_type, tokens, str(bpemodel) if bpemodel else None)


def recogniser_tokens(experiment: Path) -> GivenTokens:
    """Tokens of a recogniser that ESPnet has trained.

    Raises:
        InputError: Its config.yaml is missing or has none.
    """
    config = experiment / "config.yaml" if experiment.is_dir() else experiment
    content = read_yaml_mapping(config)
    tokens, token_type = content.get("token_list"), content.get("token_type")
    if not isinstance(tokens, list) or token_type not in ("word", "char", "bpe"):
        raise InputError(
            f"no token list of words, characters or word pieces in it (token_type: {token_type})",
            path=config,
            remedy="Give the experiment of an ESPnet recogniser (its config.yaml), or"
            " --token_list and --bpemodel.",
        )
    if token_type != "bpe":
        return GivenTokens(token_type, tokens, None)
    model = content.get("bpemodel")
    # a recipe's paths are relative to the recipe's folder, some levels above
    places = [Path(), *config.absolute().parents]
    found = [place / str(model) for place in places if (place / str(model)).is_file()]
    if not found:
        raise InputError(
            f"its BPE model {model} is not there",
            path=config,
            remedy="Give it by --bpemodel, with --token_list.",
        )
    return GivenTokens(token_type, tokens, str(found[0]))


def check_pieces(tokens: Sequence[str], bpemodel: str, *, path: Path) -> None:
    """Check that a token list is a sentencepiece model's.

    Raises:
        InputError: It is another's, or the model cannot be read.
    """
    import sentencepiece

    try:
        model = sentencepiece.SentencePieceProcessor(model_file=bpemodel)
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot be read as a BPE model ({error})", path=bpemodel) from error
    pieces = {model.id_to_piece(i) for i in range(len(model)) if not _is_control(model, i)}
    missing = sorted(pieces.difference(tokens))
    extra = sorted(t for t in set(tokens) - pieces if not re.fullmatch("<.*>", t))
    if missing or extra:
        raise InputError(
            f"the token list is not that of {bpemodel}: {len(missing)} of its {len(pieces)} pieces"
            f" are not in the list ({', '.join(missing[:3])}), and {len(extra)} tokens of the list"
            f" are no pieces of it ({', '.join(extra[:3])})",
            path=path,
            remedy="Give the list that was written with the model.",
        )


def _is_control(model: Any, number: int) -> bool:
    return model.is_control(number) or model.is_unknown(number) or model.is_unused(number)


def data_options(folder: Path) -> List[str]:
    """ESPnet's options for the keyed text in a folder."""
    words: List[str] = []
    for part in PARTS:
        words += [f"--{part}_data_path_and_name_and_type", f"{folder}/{part}.txt,text,text"]
    return words


def count_tokens(folder: Path, tokens: Tokens, reading: Mapping[str, Optional[str]]) -> None:
    """Write each sentence's number of tokens, as ESPnet's `--collect_stats` does.

    Of an LM of words also how many words `<unk>` stands for.

    Args:
        folder: The keyed text; train.shape, valid.shape and unknown_words.yaml go there.
        tokens: Its tokens.
        reading: ESPnet's options that change how text is read.
    """
    token_list = [token for _, token in read_lines(tokens.token_list)]
    args = _namespace(tokens.token_type, token_list, tokens.bpemodel, reading)
    text2tokens, _ = text_reader(args)
    for part in PARTS:
        with atomic_write(folder / f"{part}.shape") as f:
            for _, utt, sentence in keyed_lines(folder / f"{part}.txt"):
                f.write(f"{utt} {len(text2tokens(sentence))},{len(token_list)}\n")
    if tokens.token_type == "word":
        target = folder / UNKNOWN_WORDS.name
        count_unknown_words(folder / "train.txt", tokens.token_list, target)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()


def prepare(
    texts: Sequence[Path],
    folder: Path,
    *,
    wanted: TokenOptions,
    given: Optional[GivenTokens],
    reading: Mapping[str, Optional[str]],
) -> List[str]:
    """ESPnet's options for text, tokens and shapes, which are made where they are not there yet.

    What was made from the same text with the same options is kept, and that of `wanted.source`
    is taken.

    Args:
        texts: Training and validation text, a sentence a line.
        folder: Where the results go.
        wanted: The tokens.
        given: What `given_tokens` says of them.
        reading: ESPnet's options that change how text is read.

    Raises:
        InputError: A text or the tokens cannot be used.
    """
    for part, text in zip(PARTS, texts, strict=True):
        write_keyed_text(text, folder / f"{part}.txt")
    digests = [sha256(folder / f"{part}.txt") for part in PARTS]
    made = {"tokens": _digest(digests[0], wanted.token_type, wanted.vocab_size, reading)}
    before = _made_of(folder)
    token_type, token_list = wanted.token_type or "word", folder / "tokens.txt"
    if given is not None:
        write_token_list(token_list, given.tokens)
        tokens = Tokens(given.token_type, token_list, given.bpemodel)
    elif made["tokens"] == before.get("tokens"):
        tokens = Tokens(
            token_type, token_list, str(folder / BPE_MODEL) if token_type == "bpe" else None
        )
    else:
        size = wanted.vocab_size
        tokens = made_tokens(
            folder / "train.txt", folder, token_type=token_type, vocab_size=size, reading=reading
        )
    model_digest = tokens.bpemodel and sha256(tokens.bpemodel)
    cut = (tokens.token_type, sha256(tokens.token_list), model_digest, reading)
    made["counts"] = _digest(*digests, *cut)
    if made["counts"] == before.get("counts"):
        logging.info(f"{folder}: the same text and tokens as before; statistics are kept")
    elif not _take_counts(wanted.source, folder, made["counts"]):
        count_tokens(folder, tokens, reading)
    with atomic_write(folder / MADE_OF) as f:
        yaml.safe_dump(made, f)
    shapes = [w for part in PARTS for w in (f"--{part}_shape_file", f"{folder}/{part}.shape")]
    return [*tokens.options(), *data_options(folder), *shapes]


def _made_of(folder: Path) -> Dict[str, str]:
    """Digests of what the files of a folder were made of; empty where one is missing."""
    needed = [folder / name for name in (MADE_OF, "tokens.txt", *COUNTS[:2])]
    return read_yaml_mapping(needed[0]) if all(path.is_file() for path in needed) else {}


def _take_counts(source: Optional[Path], folder: Path, digest: str) -> bool:
    """Copy a trained LM's statistics where they are of the same text and tokens."""
    if source is None:
        return False
    theirs = (source if source.is_dir() else source.parent) / folder.name
    if _made_of(theirs).get("counts") != digest:
        return False
    for name in COUNTS:
        if (theirs / name).is_file():
            with atomic_write(folder / name, "wb") as f:
                f.write((theirs / name).read_bytes())
    logging.info(f"{folder}: statistics of {theirs}, which has the same text and tokens")
    return True


def count_unknown_words(text: Path, token_list: Path, target: Path) -> None:
    """Write how many words `<unk>` stands for, from keyed training text and the token list."""
    counts: Counter[str] = Counter()
    for _, line in read_lines(text):
        counts.update(line.split()[1:])
    known = {token for _, token in read_lines(token_list)}
    with atomic_write(target) as f:
        yaml.safe_dump(unknown_words(counts, known), f, sort_keys=False)
