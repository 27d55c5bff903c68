"""From plain text to the input of ESPnet's LM task: keyed text, token list, statistics."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import yaml

from espnet_bayeslm.evaluation.transcripts import check_no_ids, without_marks
from espnet_bayeslm.loading.experiment import (
    UNKNOWN_WORDS,
)
from espnet_bayeslm.scoring.unknown_words import unknown_words
from espnet_bayeslm.training.options import TokenOptions
from espnet_bayeslm.training.tokens import (
    BPE_MODEL,
    TOKEN_LIST,
    Tokens,
    made_tokens,
    write_once,
    write_token_list,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    atomic_write,
    keyed_lines,
    read_lines,
    read_yaml_mapping,
    sha256,
)

PARTS = ("train", "valid")
COUNTS = ("train.shape", "valid.shape", UNKNOWN_WORDS.name)
MADE_OF = "made_of.yaml"


def check_plain(train_text: Path, valid_text: Path) -> None:
    """Check that lines do not begin with utterance ids, as in Kaldi's `text`."""
    known = {word for _, line in read_lines(train_text) for word in line.split()}
    sentences = [line.split() for _, line in read_lines(valid_text)]
    remedy = "If they are utterance ids, give the texts without them: cut -d' ' -f2- FILE."
    check_no_ids(sentences, known, path=valid_text, remedy=remedy)


def write_keyed_text(source: Path, target: Path) -> None:
    """Write plain text, a sentence a line, as Kaldi text; blank lines are left out."""
    name = target.stem
    lines = []
    for number, line in read_lines(source):
        words = without_marks(line.split(), path=source, line=number)
        for token in {"<blank>", "<sos/eos>"}.intersection(words):
            raise InputError(f"holds the special token {token}", path=source, line=number)
        lines.append(" ".join(words))
    sentences = [line for line in lines if line]
    if not sentences:
        raise InputError("holds no sentence", path=source)
    text = "".join(f"{name}-{n:09d} {s}\n" for n, s in enumerate(sentences, 1))
    write_once(target, text, f"was made from other text than {source} is now")
    logging.info(f"{source}: {len(sentences)} sentences, {len(lines) - len(sentences)} blank lines")


def write_counts(folder: Path, tokens: Tokens, reading: Mapping[str, Optional[str]]) -> None:
    """Write each sentence's number of tokens, as ESPnet's `--collect_stats` does, beside its text.

    Of an LM of words also how many words `<unk>` stands for.

    Where the training text has no unknown token, validation sentences that have one get no number,
    and ESPnet leaves them out (unless all have): the longer a point-estimate LM is trained the less
    it expects `<unk>`, and its best epoch would be chosen by that.
    """
    text2tokens, known = tokens.cutter(reading), set(tokens.tokens) - {"<unk>"}

    def shapes(part: str) -> Iterator[Tuple[str, bool]]:
        """Line of each sentence, and whether all of its tokens are known."""
        for _, utt, sentence in keyed_lines(folder / f"{part}.txt"):
            cut = text2tokens(sentence)
            yield f"{utt} {len(cut)},{len(tokens.tokens)}\n", known.issuperset(cut)

    is_trained = False  # <unk>
    with atomic_write(folder / "train.shape") as f:
        for line, is_known in shapes("train"):
            f.write(line)
            is_trained |= not is_known
    valid = [*shapes("valid")]
    kept = [line for line, is_known in valid if is_known or is_trained]
    kept = kept or [line for line, _ in valid]
    with atomic_write(folder / "valid.shape") as f:
        f.writelines(kept)
    if len(kept) < len(valid):
        logging.warning(
            f"{folder}/valid.txt: {len(valid) - len(kept)} of {len(valid)} sentences have tokens"
            " that the training text has not: left out of the validation"
        )
    if tokens.token_type == "word":
        counts: Counter[str] = Counter()
        for _, _, sentence in keyed_lines(folder / "train.txt"):
            counts.update(text2tokens(sentence))
        with atomic_write(folder / UNKNOWN_WORDS.name) as f:
            yaml.safe_dump(unknown_words(counts, set(tokens.tokens)), f, sort_keys=False)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()


def prepare(
    texts: Sequence[Path],
    folder: Path,
    *,
    wanted: TokenOptions,
    given: Optional[Tokens],
    reading: Mapping[str, Optional[str]],
) -> List[str]:
    """ESPnet's options for text, tokens and shapes, which are made where they are not there yet.

    What was made from the same text with the same options is kept, and that of `wanted.source` is
    taken. `given` are the tokens that `given_tokens` found, `reading` ESPnet's options that change
    how text is read.
    """
    before = _made_of(folder)
    if not before:
        check_plain(*texts)
    for part, text in zip(PARTS, texts, strict=True):
        write_keyed_text(text, folder / f"{part}.txt")
    digests = [sha256(folder / f"{part}.txt") for part in PARTS]
    made = {"tokens": _digest(digests[0], wanted.token_type, wanted.vocab_size, reading)}
    token_list = folder / TOKEN_LIST
    if given is not None:
        write_token_list(token_list, given.tokens)
        tokens = given
        # so that without the options that give them they are not taken for words of the text
        made["tokens"] = "given"
    elif made["tokens"] == before.get("tokens"):
        model = str(folder / BPE_MODEL) if wanted.token_type == "bpe" else None
        lines = [token for _, token in read_lines(token_list)]
        tokens = Tokens(wanted.token_type or "word", lines, model)
    else:
        tokens = made_tokens(folder, wanted, reading)
    model_digest = tokens.bpemodel and sha256(tokens.bpemodel)
    form = tokens.reader and str(tokens.reader.form)
    cut = (tokens.token_type, sha256(token_list), model_digest, reading, *([form] if form else []))
    made["counts"] = _digest(*digests, *cut)
    if made["counts"] == before.get("counts"):
        logging.info(f"{folder}: the same text and tokens as before; statistics are kept")
    elif not _take_counts(wanted.source, folder, made["counts"]):
        write_counts(folder, tokens, reading)
    with atomic_write(folder / MADE_OF) as f:
        yaml.safe_dump(made, f)
    options = ["--token_type", tokens.token_type, "--token_list", str(token_list)]
    options += ["--bpemodel", tokens.bpemodel] if tokens.bpemodel else []
    for part in PARTS:
        options += [f"--{part}_data_path_and_name_and_type", f"{folder}/{part}.txt,text,text"]
        options += [f"--{part}_shape_file", f"{folder}/{part}.shape"]
    return options


def _made_of(folder: Path) -> Dict[str, str]:
    """Digests of what the files of a folder were made of; empty where one is missing."""
    needed = [folder / name for name in (MADE_OF, TOKEN_LIST, *COUNTS[:2])]
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
