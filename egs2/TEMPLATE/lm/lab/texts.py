"""Training texts and their statistics: all of it and random parts."""

from __future__ import annotations

import logging
import random
from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import Container, List, Mapping, Sequence, Tuple, TypeVar

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, write_text
from espnet_bayeslm.utils.folders import staged
from lab.cells import markdown_table

T = TypeVar("T")
# (utterance, words)
Row = Tuple[str, Sequence[str]]


def is_older(output: PathLike, *inputs: Path) -> bool:
    """True if a file is missing, or older than a file of its inputs or in their folders."""
    if not Path(output).exists():
        return True
    files = [f for path in inputs for f in (path, *(path.rglob("*") if path.is_dir() else ()))]
    times = [file.stat().st_mtime for file in files if file.is_file()]
    return Path(output).stat().st_mtime < max(times, default=0.0)


def need(files: Mapping[Path, int], what: str = "file") -> None:
    """Raise an InputError where a file is missing, which names the stage that makes it.

    Args:
        files: {file: stage}.
        what: Name of the kind of file.
    """
    for path, stage in files.items():
        if not path.is_file():
            raise InputError(f"no such {what}", path=path, remedy=f"Run stage {stage} first.")


def read_conditions(lists: Path) -> List[str]:
    """Names of the conditions of the N-best lists in a folder; none where there are no lists."""
    names = lists / "conditions"
    return [row.strip() for _, row in read_lines(names) if row.strip()] if names.exists() else []


def token_list(data: Path) -> Path:
    """The LMs' token list."""
    return data / "token_list" / "word" / "tokens.txt"


def prepare_tokens(data: Path, train: Path, valid: Path, stats: Path) -> None:
    """Write the token list of the training text, and the statistics of both texts.

    Args:
        data: The corpus's data folder, for the token list.
        train: Kaldi text of the training set.
        valid: Kaldi text for validation.
        stats: Folder for the statistics.
    """
    need({train: 1, valid: 1})
    sets = {"train": read_text(train), "valid": read_text(valid)}
    # the most frequent first, as ESPnet orders them
    counts = Counter(word for _, words in sets["train"] for word in words)
    tokens = ["<blank>", "<unk>", *(word for word, _ in counts.most_common()), "<sos/eos>"]
    write_text(token_list(data), "".join(f"{token}\n" for token in dict.fromkeys(tokens)))
    write_stats(stats, sets, token_list(data))


def read_text(path: Path) -> List[Row]:
    """Utterances of a Kaldi text."""
    rows = (line.split() for _, line in read_lines(path))
    return [(row[0], row[1:]) for row in rows]


def write_stats(folder: Path, texts: Mapping[str, Sequence[Row]], tokens: Path) -> None:
    """Write FOLDER/NAME/text_shape.word of each text: the tokens of each utterance."""
    size = sum(1 for _ in read_lines(tokens))
    with staged(folder) as stats:
        for name, rows in texts.items():
            (stats / name).mkdir()
            shapes = (f"{utterance} {len(words)},{size}\n" for utterance, words in rows)
            (stats / name / "text_shape.word").write_text("".join(shapes), encoding="utf-8")


def write_texts(folder: Path, texts: Mapping[str, Sequence[Row]]) -> None:
    """Write FOLDER/NAME with utterances' ids, and FOLDER/NAME.plain without."""
    with staged(folder) as place:
        for name, rows in texts.items():
            for path, lines in (
                (place / name, (" ".join([utterance, *words]) for utterance, words in rows)),
                (place / f"{name}.plain", (" ".join(words) for _, words in rows)),
            ):
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_corpus(
    output: PathLike,
    sets: Mapping[str, Sequence[Row]],
    *,
    dev: str,
    note: str,
    parts: Mapping[str, Sequence[Row]] = MappingProxyType({}),
) -> None:
    """Write OUTPUT/SET/text and text.plain, lexicon_words.txt and statistics.txt.

    DEV/text.known, the sentences without words unknown in the training text, is what training is
    validated on: what an LM says of a word that it has never seen means nothing.

    Args:
        output: The folder.
        sets: {set: utterances}; one is `train`, whose words are the lexicon's.
        dev: The set for validation.
        note: Text below the table of statistics, which is logged too.
        parts: {name: utterances} of what stands in the table above the sets.
    """
    known = {word for _, words in sets["train"] for word in words}
    understood = (" ".join([utt, *words]) for utt, words in sets[dev] if known.issuperset(words))
    rows = [count_words(name, each, known) for name, each in {**parts, **sets}.items()]
    table = markdown_table(["set", "sentences", "words", "vocabulary", "OOV %"], rows)
    statistics = f"{table}\n{note} OOV: words that are not in train.\n"
    with staged(output) as folder:
        for name, utterances in sets.items():
            write_texts(folder / name, {"text": utterances})
        write_text(folder / dev / "text.known", "".join(f"{line}\n" for line in understood))
        write_text(folder / "lexicon_words.txt", "".join(f"{word}\n" for word in sorted(known)))
        write_text(folder / "statistics.txt", statistics)
    for line in statistics.splitlines():
        logging.info(line)


def count_words(name: str, utterances: Sequence[Row], known: Container[str]) -> List[str]:
    """A set's row of the table of statistics."""
    words = [word for _, sentence in utterances for word in sentence]
    oov_rate = 100 * sum(word not in known for word in words) / len(words)
    counts = len(utterances), len(words), len(set(words))
    return [name, *map(str, counts), f"{oov_rate:.2f}"]


def write_part(data: Path, valid: Path, percent: int, output: Path, stats: Path) -> None:
    """Write OUTPUT/text, OUTPUT/text.plain and the statistics of a part of the training text."""
    if not 0 < percent <= 100:
        raise InputError(f"--parts {percent}: expected 1 to 100")
    text = data / "train" / "text"
    need({text: 1, valid: 1, token_list(data): 2})
    rows = read_text(text)
    # the same at each call, and that of 5 % is in that of 10 %
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    part = [rows[n] for n in sorted(order[: max(1, round(len(rows) * percent / 100))])]
    write_texts(output, {"text": part})
    write_stats(stats, {"train": part, "valid": read_text(valid)}, token_list(data))


def read_sentences(path: Path) -> List[str]:
    """Lines of a text that are not blank."""
    return [line for _, line in read_lines(path) if line.strip()]


def keep_text(path: Path, lines: Sequence[str]) -> None:
    """Write the lines of a text; of a stopped run, whose trainings go on, it is there already.

    Raises:
        InputError: The file has another text.
    """
    text = "".join(f"{line}\n" for line in lines)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise InputError(
            "has another text than this run needs: it is of other options",
            path=path,
            remedy="Give another --exp, or the options of before.",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def evenly(items: Sequence[T], count: int) -> List[T]:
    """At most so many items, evenly from all."""
    count = min(count, len(items))
    return [items[n * len(items) // count] for n in range(count)]
