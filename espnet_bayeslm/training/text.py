"""From plain text to the input of ESPnet's LM task: keyed text, token list, statistics."""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import re
from collections import Counter
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.loading.experiment import (
    SPECIAL_TOKENS,
    UNKNOWN_WORDS,
    check_token_list,
    find_files,
    trained_tokens,
)
from espnet_bayeslm.loading.trained_lm import text_reader
from espnet_bayeslm.pretrained.adapted import vocabulary
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm, load_tokenizer
from espnet_bayeslm.pretrained.names import TOKEN_TYPE
from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer
from espnet_bayeslm.pretrained.text_forms import Reader, training_reader, training_readers
from espnet_bayeslm.scoring.perplexity import check_no_ids
from espnet_bayeslm.scoring.scorer import check_is_plain
from espnet_bayeslm.scoring.unknown_words import unknown_words
from espnet_bayeslm.training.train_options import TokenOptions
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.espnet_versions import text_cleaner
from espnet_bayeslm.utils.files import (
    PathLike,
    atomic_write,
    read_entries,
    read_lines,
    sha256,
    without_marks,
    write_text,
    write_yaml,
)
from espnet_bayeslm.utils.imports import quiet_imports
from espnet_bayeslm.utils.log import LOG

with quiet_imports():
    from espnet2.train.preprocessor import AbsPreprocessor

PARTS = ("train", "valid")
BETWEEN = "\t"
"""Between the sentences of a line of keyed text."""
HEAD = 100
"""Lines of a training text that are searched for utterance ids, or tokens."""
TOKEN_LIST, BPE_MODEL, MADE_OF = "tokens.txt", "bpe.model", "made_of"
Reading = Mapping[str, Optional[str]]
"""ESPnet's options that change how text is read."""


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

    def cutter(self, reading: Reading) -> Callable[[str], List[str]]:
        """Function that cuts a sentence into tokens."""
        if self.reader is not None:
            return lambda text: [self.tokens[i] for i in self.reader.text_ids(sentences_in(text))]
        options = {**self._asdict(), "token_list": list(self.tokens), "use_preprocessor": True}
        return text_reader(argparse.Namespace(**options, **reading))[0]


def sentences_in(text: str) -> List[List[str]]:
    """Words of each sentence of a line of keyed text."""
    return [sentence.split() for sentence in text.split(BETWEEN)]


def joined_sentences(lines: Iterable[Sequence[str]], reader: Reader, most: int) -> Iterator[str]:
    """Yield runs of consecutive sentences of at most so many tokens, each a line of keyed text.

    A blank line ends a run. A longer sentence is a run by itself.
    """
    run: List[str] = []
    size = 0
    for words in lines:
        count = len(reader.encode(words).ids)
        if run and (not words or size + count > most):
            yield BETWEEN.join(run)
            run, size = [], 0
        if words:
            run.append(" ".join(words))
            size += count
    if run:
        yield BETWEEN.join(run)


def write_once(path: Path, text: str, problem: str) -> None:
    """Write a file, or raise an InputError where it is there with another content."""
    if not path.exists():
        write_text(path, text)
    elif path.read_text(encoding="utf-8") != text:
        raise InputError(problem, path=path, remedy="Give a new --exp folder.")


def write_token_list(path: Path, tokens: Sequence[str]) -> None:
    """Write a token list, each token once."""
    lines = "".join(f"{token}\n" for token in dict.fromkeys(tokens))
    write_once(path, lines, "holds other tokens than those asked for now")


def check_plain_texts(train_text: Path, valid_text: Path) -> None:
    """Check that lines do not begin with utterance ids, as in Kaldi's `text`."""
    known = {word for _, line in read_lines(train_text) for word in line.split()}
    sentences = [line.split() for _, line in read_lines(valid_text)]
    remedy = "If they are utterance ids, give the texts without them: cut -d' ' -f2- FILE."
    check_no_ids(sentences, known.__contains__, path=valid_text, remedy=remedy)
    # a text's own ids are no later words of it; of a few lines that can be chance
    head = [line.split() for _, line in itertools.islice(read_lines(train_text), HEAD)]
    if len(head) == HEAD:
        later = {word for words in head for word in words[1:]}
        check_no_ids(head, later.__contains__, path=train_text, remedy=remedy)


def check_words(texts: Sequence[Path], tokens: Tokens) -> None:
    """Check that texts hold words and not word pieces, which would be cut again."""
    for text in texts:
        head = (line.split() for _, line in itertools.islice(read_lines(text), HEAD))
        check_is_plain(head, tokens.tokens.__contains__, name=str(text))


def write_keyed_text(
    source: Path, target: Path, reader: Optional[Reader] = None, context: int = 0
) -> None:
    """Write plain text, a sentence a line, as Kaldi text; blank lines are left out.

    With a context consecutive sentences are one line, of so many of the reader's tokens at most.
    """
    lines: List[Sequence[str]] = []
    blank = 0
    for number, line in read_lines(source):
        words = without_marks(line.split(), path=source, line=number)
        for token in {"<blank>", "<sos/eos>"}.intersection(words):
            raise InputError(f"holds the special token {token}", path=source, line=number)
        lines.append(words)
        blank += not words
    if blank == len(lines):
        raise InputError("holds no sentence", path=source)
    rows: Iterable[str] = (" ".join(words) for words in lines if words)
    if reader is not None and context:
        rows = joined_sentences(lines, reader, context)
    text = "".join(f"{target.stem}-{n:09d} {row}\n" for n, row in enumerate(rows, 1))
    write_once(target, text, f"was made from other text than {source} is now, or another --context")
    LOG.info(f"{source}: {len(lines) - blank} sentences, {blank} blank lines")


def write_counts(folder: Path, tokens: Tokens, reading: Reading) -> None:
    """Write each sentence's number of tokens, as ESPnet's `--collect_stats` does, beside its text.

    Of an LM of words also how many words `<unk>` stands for.

    Where the training text has no unknown token, validation sentences that have one get no number,
    and ESPnet leaves them out (unless all have): the longer a point-estimate LM is trained the less
    it expects `<unk>`, and its best epoch would be chosen by that.
    """
    text2tokens, known = tokens.cutter(reading), set(tokens.tokens) - {"<unk>"}
    counts: Counter[str] = Counter()
    unk_is_trained = False
    for part in PARTS:
        lines, of_known = [], []
        for utt, (_, _, sentence) in read_entries([folder / f"{part}.txt"]):
            cut = text2tokens(sentence)
            lines.append(f"{utt} {len(cut)},{len(tokens.tokens)}\n")
            if known.issuperset(cut):
                of_known.append(lines[-1])
            if part == "train":
                counts.update(cut)
        left_out = len(lines) - len(of_known)
        if part == "train":
            unk_is_trained = left_out > 0
        elif left_out and not unk_is_trained:
            effect = "left out of the validation"
            if not of_known:
                effect = "the best epoch is chosen by <unk>. Give a --valid_text that is written"
                effect += " like the training text"
            LOG.warning(
                f"{folder}/valid.txt: {left_out} of {len(lines)} sentences have tokens that the"
                f" training text has not: {effect}"
            )
            lines = of_known or lines
        write_text(folder / f"{part}.shape", "".join(lines))
    if tokens.token_type == "word":
        write_yaml(folder / UNKNOWN_WORDS.name, unknown_words(counts, set(tokens.tokens)))


def prepare(
    texts: Sequence[Path],
    folder: Path,
    *,
    wanted: TokenOptions,
    given: Optional[Tokens],
    reading: Reading,
    context: int = 0,
) -> Dict[str, Any]:
    """Make keyed text, tokens and shapes where they are missing; return ESPnet's options for them.

    What was made from the same text with the same options is kept. `given` are the tokens that
    `given_tokens` found. With a `context` consecutive sentences are read as one, of so many tokens.
    """
    made_of = folder / MADE_OF
    if not made_of.exists():
        check_plain_texts(*texts)
        if given is not None and given.token_type != "word":
            check_words(texts, given)
    for part, text in zip(PARTS, texts, strict=True):
        write_keyed_text(text, folder / f"{part}.txt", given and given.reader, context)
    parts: List[object] = [*(sha256(folder / f"{part}.txt") for part in PARTS), reading]
    if given is None:
        parts += [wanted.token_type, wanted.vocab_size]
    else:
        model = given.bpemodel and sha256(given.bpemodel)
        parts += [given.token_type, given.tokens, model, given.reader and given.reader.form]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    if made_of.exists() and made_of.read_text(encoding="utf-8") == digest:
        LOG.info(f"{folder}: the same text and tokens as before; statistics are kept")
        model = str(folder / BPE_MODEL) if wanted.token_type == "bpe" else None
        tokens = given or Tokens(wanted.token_type or "word", (), model)
    else:
        tokens = given or made_tokens(folder, wanted, reading)
        write_token_list(folder / TOKEN_LIST, tokens.tokens)
        write_counts(folder, tokens, reading)
        write_text(made_of, digest)
    options: Dict[str, Any] = {"bpemodel": tokens.bpemodel} if tokens.bpemodel else {}
    options.update(token_type=tokens.token_type, token_list=str(folder / TOKEN_LIST))
    for part in PARTS:
        options[f"{part}_data_path_and_name_and_type"] = [(f"{folder}/{part}.txt", "text", "text")]
        options[f"{part}_shape_file"] = [f"{folder}/{part}.shape"]
    return options


def made_tokens(folder: Path, wanted: TokenOptions, reading: Reading) -> Tokens:
    """Tokens of the keyed training text in a folder, where their list goes too.

    The most frequent come first; those of `bpe` in sentencepiece's order. A `vocab_size` counts the
    three special ones (bpe: about so many).
    """
    token_type, vocab_size = wanted.token_type or "word", wanted.vocab_size
    text, model = folder / "train.txt", b""
    if token_type == "bpe":
        pieces, model = _trained_pieces(text, vocab_size or 5000)
    else:
        text2tokens = Tokens(token_type, SPECIAL_TOKENS).cutter(reading)
        counts: Counter[str] = Counter()
        for _, (_, _, sentence) in read_entries([text]):
            counts.update(text2tokens(sentence))
        if vocab_size is not None and vocab_size <= len(SPECIAL_TOKENS):
            raise InputError(f"--vocab_size {vocab_size}: leaves no token beside the special ones")
        most = None if vocab_size is None else vocab_size - len(SPECIAL_TOKENS)
        pieces = [token for token, _ in counts.most_common(most)]
    tokens = list(dict.fromkeys(["<blank>", "<unk>", *pieces, "<sos/eos>"]))
    write_token_list(folder / TOKEN_LIST, tokens)
    if model:
        with atomic_write(folder / BPE_MODEL, "wb") as f:
            f.write(model)
    return Tokens(token_type, tokens, str(folder / BPE_MODEL) if model else None)


def _trained_pieces(text: Path, vocab_size: int) -> Tuple[List[str], bytes]:
    """Pieces, and content, of a sentencepiece model that is trained on keyed text."""
    import sentencepiece

    content = io.BytesIO()
    sentences = [sentence for _, (_, _, sentence) in read_entries([text])]
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
    return [model.id_to_piece(i) for i in range(3, len(model))], content.getvalue()


def given_tokens(wanted: TokenOptions) -> Optional[Tokens]:
    """Tokens of a trained LM, a recogniser or files; None where there are none."""
    wanted.check()
    path = wanted.source or wanted.asr_exp or wanted.token_list
    if path is None:
        return None
    if wanted.token_list is not None:
        tokens = [line.rstrip() for _, line in read_lines(path)]
        token_type, model = wanted.token_type or "word", wanted.bpemodel
        token_type = "bpe" if model else token_type
    else:
        config = path / "config.yaml" if path.is_dir() else path
        config = find_files(path)[0] if wanted.source else config
        token_type, tokens, model = trained_tokens(config)
    check_token_list(tokens, path=str(path))
    if token_type == "bpe":
        check_pieces(tokens, str(model), path=path)
    return Tokens(token_type, tokens, str(model) if model else None)


def check_pieces(tokens: Sequence[str], bpemodel: str, *, path: Path) -> None:
    """Check that a token list is a sentencepiece model's."""
    import sentencepiece

    try:
        model = sentencepiece.SentencePieceProcessor(model_file=bpemodel)
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot be read as a BPE model ({error})", path=bpemodel) from error
    marks = (model.is_control, model.is_unknown, model.is_unused)
    ids = (i for i in range(len(model)) if not any(is_mark(i) for is_mark in marks))
    pieces = set(map(model.id_to_piece, ids))
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


def base_model(lm_conf: Mapping[str, Any]) -> str:
    """Base model of an LM `pretrained`, as `--from` names it."""
    if not lm_conf.get("model"):
        raise InputError("lm pretrained: lm_conf has no `model`", remedy="Give --from hf:NAME.")
    return str(lm_conf["model"])


def reader_of(lm_conf: Mapping[str, Any]) -> Reader:
    """Reader of the sentences of an LM `pretrained`."""
    tokenizer = load_tokenizer(base_model(lm_conf))
    return training_reader(tokenizer, lm_conf.get("text_form", "as_is"))


def chosen_form(model: PathLike, text: Path, **options: Any) -> str:
    """Form of the lowest perplexity of a text under a pretrained LM, of those for training.

    The LM is loaded with the options of `load_causal_lm`.
    """
    lm = load_causal_lm(model, **options)
    sentences = [line.split() for _, line in read_lines(text)]
    return str(PretrainedScorer(lm).choose(sentences, training_readers(lm.tokenizer)).form)


def pretrained_tokens(lm_conf: Mapping[str, Any]) -> Tokens:
    """Tokens of the base model of an LM `pretrained`."""
    reader = reader_of(lm_conf)
    return Tokens(TOKEN_TYPE, vocabulary(reader.tokenizer), reader=reader)


class SentencePreprocessor(AbsPreprocessor):
    """Reads sentences by a pretrained LM's tokenizer, after ESPnet's text cleaner."""

    def __init__(self, args: argparse.Namespace, *, train: bool):
        super().__init__(train)
        self.reader, self.clean = reader_of(args.lm_conf), text_cleaner(args.cleaner)
        self.joins = bool(args.lm_conf.get("context"))

    def __call__(self, uid: str, data: Dict[str, Any]) -> Dict[str, np.ndarray]:
        """Replace the sentence `text` by its token ids, without those of its end."""
        if isinstance(data.get("text"), str):
            sentences = data["text"].split(BETWEEN) if self.joins else [data["text"]]
            ids = self.reader.text_ids(self.clean(sentence).split() for sentence in sentences)
            data["text"] = np.array(ids, dtype=np.int64)
        return data
