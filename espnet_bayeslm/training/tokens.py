"""Tokens of an LM: those of a trained LM, of a recogniser or of files, or made of the text."""

from __future__ import annotations

import argparse
import io
import re
from collections import Counter
from pathlib import Path
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.loading.build import text_reader
from espnet_bayeslm.loading.experiment import (
    SPECIAL_TOKENS,
    check_token_list,
    find_bpemodel,
    find_files,
    read_config,
)
from espnet_bayeslm.training.options import TokenOptions
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    PathLike,
    atomic_write,
    keyed_lines,
    read_lines,
    read_yaml_mapping,
)

TOKEN_LIST, BPE_MODEL = "tokens.txt", "bpe.model"


class Tokens(NamedTuple):
    """Tokens of an LM, with the model that cuts text into them.

    Attributes:
        token_type: `word`, `bpe` or `char`.
        tokens: All of them, in the order of their ids.
        bpemodel: The sentencepiece model, for `bpe`.
        reader: Cuts the sentences of a pretrained LM, for `hugging_face`.
    """

    token_type: str
    tokens: Sequence[str]
    bpemodel: Optional[str] = None
    reader: Any = None

    def cutter(self, reading: Mapping[str, Optional[str]]) -> Callable[[str], List[str]]:
        """Function that cuts a sentence into tokens, under ESPnet's options `reading`."""
        if self.reader is not None:
            return lambda text: [self.tokens[i] for i in self.reader.sentence_ids(text.split())]
        args = argparse.Namespace(
            use_preprocessor=True,
            token_type=self.token_type,
            token_list=list(self.tokens),
            bpemodel=self.bpemodel,
            **reading,
        )
        return text_reader(args)[0]


def write_once(path: Path, text: str, problem: str) -> None:
    """Write a file, or raise an InputError where it is there with another content."""
    if not path.exists():
        with atomic_write(path) as f:
            f.write(text)
    elif path.read_text(encoding="utf-8") != text:
        raise InputError(problem, path=path, remedy="Give a new --exp folder.")


def write_token_list(path: Path, tokens: Sequence[str]) -> None:
    """Write a token list, each token once."""
    lines = "".join(f"{token}\n" for token in dict.fromkeys(tokens))
    write_once(path, lines, "holds other tokens than those asked for now")


def made_tokens(folder: Path, wanted: TokenOptions, reading: Mapping[str, Optional[str]]) -> Tokens:
    """Tokens of the keyed training text in a folder, where their list goes too.

    The most frequent come first; those of `bpe` in sentencepiece's order. A `vocab_size` counts the
    three special ones (bpe: about so many).
    """
    token_type, vocab_size = wanted.token_type or "word", wanted.vocab_size
    if token_type == "bpe":
        return _train_bpe(folder, vocab_size or 5000)
    text2tokens = Tokens(token_type, SPECIAL_TOKENS).cutter(reading)
    counts: Counter[str] = Counter()
    for _, _, sentence in keyed_lines(folder / "train.txt"):
        counts.update(text2tokens(sentence))
    if vocab_size is not None and vocab_size <= len(SPECIAL_TOKENS):
        raise InputError(f"--vocab_size {vocab_size}: leaves no token beside the special ones")
    most = None if vocab_size is None else vocab_size - len(SPECIAL_TOKENS)
    tokens = ["<blank>", "<unk>", *(token for token, _ in counts.most_common(most)), "<sos/eos>"]
    write_token_list(folder / TOKEN_LIST, tokens)
    return Tokens(token_type, list(dict.fromkeys(tokens)))


def _train_bpe(folder: Path, vocab_size: int) -> Tokens:
    """Train a sentencepiece model on the text in a folder, and write it and its pieces there."""
    import sentencepiece

    content, text = io.BytesIO(), folder / "train.txt"
    sentences = [sentence for _, _, sentence in keyed_lines(text)]
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=content,
            vocab_size=vocab_size,
            model_type="unigram",
            character_coverage=1.0,
            # or it leaves out lines of more than 4192 bytes
            max_sentence_length=max(len(sentence.encode()) for sentence in sentences) + 1,
            minloglevel=1,
        )
    except RuntimeError as error:
        raise InputError(
            f"sentencepiece: {error}", path=text, remedy="Change --vocab_size."
        ) from error
    model = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
    # sentencepiece's first three are <unk>, <s> and </s>
    pieces = [model.id_to_piece(i) for i in range(3, len(model))]
    tokens = ["<blank>", "<unk>", *pieces, "<sos/eos>"]
    write_token_list(folder / TOKEN_LIST, tokens)
    with atomic_write(folder / BPE_MODEL, "wb") as f:
        f.write(content.getvalue())
    return Tokens("bpe", tokens, str(folder / BPE_MODEL))


def given_tokens(wanted: TokenOptions) -> Optional[Tokens]:
    """Tokens of a trained LM, a recogniser or files; None where there are none."""
    wanted.check()
    token_type = wanted.token_type or "word"
    bpemodel: Optional[PathLike] = wanted.bpemodel
    if wanted.source is not None:
        args = read_config(find_files(wanted.source)[0])
        tokens, path = args.token_list, Path(wanted.source)
        token_type, bpemodel = args.token_type, args.bpemodel
    elif wanted.asr_exp is not None:
        token_type, tokens, bpemodel, _ = recogniser_tokens(wanted.asr_exp)
        path = wanted.asr_exp
    elif wanted.token_list is not None:
        tokens = [line.rstrip() for _, line in read_lines(wanted.token_list)]
        path, token_type = wanted.token_list, "bpe" if bpemodel else token_type
    else:
        return None
    tokens = [str(token) for token in tokens]  # a list written by hand may have numbers
    check_token_list(tokens, path=str(path))
    if token_type == "bpe":
        check_pieces(tokens, str(bpemodel), path=path)
    return Tokens(token_type, tokens, str(bpemodel) if bpemodel else None)


def recogniser_tokens(experiment: Path) -> Tokens:
    """Tokens of a recogniser that ESPnet has trained."""
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
        return Tokens(token_type, tokens, None)
    model = content.get("bpemodel")
    found = find_bpemodel(str(model), config)
    if found is None:
        raise InputError(
            f"its BPE model {model} is not there",
            path=config,
            remedy="Give it by --bpemodel, with --token_list.",
        )
    return Tokens(token_type, tokens, str(found))


def check_pieces(tokens: Sequence[str], bpemodel: str, *, path: Path) -> None:
    """Check that a token list is a sentencepiece model's."""
    import sentencepiece

    try:
        model = sentencepiece.SentencePieceProcessor(model_file=bpemodel)
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot be read as a BPE model ({error})", path=bpemodel) from error
    pieces = {
        model.id_to_piece(i)
        for i in range(len(model))
        if not (model.is_control(i) or model.is_unknown(i) or model.is_unused(i))
    }
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
