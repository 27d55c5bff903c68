#!/usr/bin/env python3
"""Kaldi data folders of dev and test, and text for LMs, of speechocean762 or any Kaldi data.

Writes OUTPUT/{dev,test}/{wav.scp,text}, and OUTPUT/train.txt, a sentence a line. Texts are
normalised. Paths of a wav.scp may be relative to the source; of a command that decodes a file, as
LibriSpeech's `flac -c -d -s FILE |`, the file is taken. No sentence of test is in dev, and none of
either in train.txt.

Speechocean762 itself has no dev: every fifth speaker of its `train` is taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_keyed_lines, read_lines, write_text

SPEAKERS = 5  # one of so many speakers of the corpus' `train` is of dev


class Utterance(NamedTuple):
    """A recording, and the words that were said."""

    path: Path
    words: Tuple[str, ...]


Utterances = Dict[str, Utterance]


def read_set(source: Path, name: str, normalization: Normalization) -> Utterances:
    """Utterances of a set; those without words or without a recording are left out."""
    folder, found = source / name, {}
    texts = read_keyed_lines(folder / "text")
    for utt, (line, value) in read_keyed_lines(folder / "wav.scp").items():
        words = tuple(normalization.words(texts[utt][1].split())) if utt in texts else ()
        if words:
            path = recording(value, (source, folder, Path()))
            if path is None:
                problem = f"no audio file in {value[:80]!r}, seen from {source}"
                remedy = "Give a wav.scp of files, or run this where its paths lead to files."
                raise InputError(problem, path=folder / "wav.scp", line=line, remedy=remedy)
            found[utt] = Utterance(path.resolve(), words)
    if not found:
        raise InputError("no utterance with a recording and words", path=folder)
    return found


def recording(value: str, folders: Sequence[Path]) -> Optional[Path]:
    """File of an entry of a wav.scp, which may be a command that reads it."""
    names = value.rstrip("|").split() if value.endswith("|") else [value]
    paths = (folder / name for name in reversed(names) for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def split_train(source: Path, train: Utterances) -> Tuple[Utterances, Utterances]:
    """Utterances of the corpus' `train`: of every fifth speaker, and of the others."""
    speakers = {
        utt: value for utt, (_, value) in read_keyed_lines(source / "train/utt2spk").items()
    }
    held = {*sorted({*speakers.values()})[::SPEAKERS]}
    dev = {utt: item for utt, item in train.items() if speakers[utt] in held}
    return dev, {utt: item for utt, item in train.items() if utt not in dev}


def train_sentences(source: Path, normalization: Normalization) -> Iterator[Tuple[str, ...]]:
    """Yield the sentences of SOURCE/train.txt and SOURCE/train/text, where there are such files."""
    if (source / "train.txt").is_file():
        for _, line in read_lines(source / "train.txt"):
            yield tuple(normalization.words(line.split()))
    if (source / "train" / "text").is_file():
        for _, value in read_keyed_lines(source / "train" / "text").values():
            yield tuple(normalization.words(value.split()))


def spread(utterances: Utterances, count: int) -> Utterances:
    """So many utterances of a set, spread over it; 0: all."""
    step = max(len(utterances) // count, 1) if count else 1
    return dict([*sorted(utterances.items())][::step][: count or None])


def write_set(folder: Path, utterances: Mapping[str, Utterance]) -> None:
    """Write wav.scp and text."""
    rows = sorted(utterances.items())
    write_text(folder / "wav.scp", "".join(f"{utt} {item.path}\n" for utt, item in rows))
    write_text(folder / "text", "".join(f"{utt} {' '.join(item.words)}\n" for utt, item in rows))


def prepare(
    *, source: Path, output: Path, normalize: str, dev: str, test: str, num_dev: int, num_test: int
) -> None:
    """Write the data."""
    normalization = Normalization(normalize)
    tested = spread(read_set(source, test, normalization), num_test)
    if (source / "WAVE").is_dir():
        tuned, train = split_train(source, read_set(source, "train", normalization))
        sentences = [item.words for item in train.values()]
    else:
        tuned = read_set(source, dev, normalization)
        sentences = [*train_sentences(source, normalization)]
    unseen = {item.words for item in tested.values()}
    tuned = spread({u: item for u, item in tuned.items() if item.words not in unseen}, num_dev)
    heard = unseen | {item.words for item in tuned.values()}
    kept = [*dict.fromkeys(words for words in sentences if words and words not in heard)]
    write_set(output / "dev", tuned)
    write_set(output / "test", tested)
    write_text(output / "train.txt", "".join(f"{' '.join(words)}\n" for words in kept))
    sizes = f"{len(tuned)} utterances of dev, {len(tested)} of test, {len(kept)} sentences of train"
    print(f"{output}: {sizes}")


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Prepare the data."""
    tool = Tool("data", __doc__.splitlines()[0], prepare)
    parser = tool.parser()
    parser.prog = "local/data.py"
    parser.add_argument("--source", type=Path, required=True, help="The corpus or Kaldi's data")
    parser.add_argument("--output", type=Path, required=True, help="The folder to write")
    parser.add_argument("--normalize", default="lower,punct", help="What is done to texts")
    for name in ("dev", "test"):
        parser.add_argument(f"--{name}", default=name, help="Name of the set's folder")
        parser.add_argument(f"--num_{name}", type=int, default=0, help="Utterances; 0: all")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
