"""N-best lists of all sets and conditions, in one form, from Kaldi's archives or lattices.

Reads the folders {SET}_{CONDITION} or decode_{SET}_{CONDITION} of --nbest: Kaldi N-best archives
(words_text, acwt, lmwt.nolm, lmwt.withlm, there or in archives.1 ...), or lattices as text, *.lats.
Writes OUTPUT/{SET}_{CONDITION}/ with one archive of words in lower case and the references as
`text`, and OUTPUT/conditions.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path
from typing import Dict, Iterator, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.folders import staged

CONDITION = r"[A-Za-z0-9][A-Za-z0-9_.+-]*"
CONDITIONS = "conditions"
Folders = Dict[Tuple[str, str], Path]
"""{(set, condition): folder}."""


def find_folders(nbest: Path, sets: Sequence[str]) -> Folders:
    """Folders of lists: each set's, the same conditions for each, sorted."""
    if not nbest.is_dir():
        raise InputError("no such folder", path=nbest, remedy=_looked_for(sets))
    # a longer name first: dev_other_x is of dev_other where that is a set too
    names = "|".join(map(re.escape, sorted(sets, key=len, reverse=True)))
    pattern = re.compile(f"(?:decode_)?({names})_({CONDITION})", re.ASCII)
    found: Folders = {}
    for path in sorted(nbest.iterdir()):
        match = pattern.fullmatch(path.name)
        if not match or not path.is_dir():
            logging.info(f"{path}: not the name of a list's folder, left out")
            continue
        other = found.setdefault((match[1], match[2]), path)
        if other is not path:
            raise InputError(
                f"{other.name} is there too", path=path, remedy="Give one of the two only."
            )
    if not found:
        raise InputError("no lists of these sets", path=nbest, remedy=_looked_for(sets))
    conditions = sorted({condition for _, condition in found})
    missing = [f"{s}_{c}" for c in conditions for s in sets if (s, c) not in found]
    if missing:
        there = ", ".join(path.name for path in found.values())
        raise InputError(
            f"{', '.join(missing)} missing: the sets must have the same conditions; {there} found",
            path=nbest,
            remedy="Scales are tuned on one set and applied to the other, condition by condition.",
        )
    return {(s, c): found[s, c] for c in conditions for s in sets}


def _looked_for(sets: Sequence[str]) -> str:
    """Names of the folders that are expected."""
    names = " and ".join(f"{name}_CONDITION" for name in sets)
    return f"Looked for folders {names}, or the same after decode_; NBEST or --nbest says where."


def find_references(folder: Path, references: Optional[Path], name: str, condition: str) -> Path:
    """File of a list's references: in its folder, or below `references`."""
    candidates = [folder / "text"]
    if references is not None:
        candidates += [references / f"{name}_{condition}" / "text", references / name / "text"]
    for path in candidates:
        if path.is_file():
            return path
    raise InputError(
        f"no references; looked for {', '.join(map(str, candidates))}",
        path=folder,
        remedy="Put `text` (lines `utterance words`) there, or give --references (NBEST_TEXT).",
    )


def read_lists(folder: Path, num_best: int) -> Iterator[NBest]:
    """Lists of a folder: an archive, or the best `num_best` hypotheses of lattices."""
    if any((folder / name).exists() for name in ("words_text", "words_text.gz", "archives.1")):
        return read_nbest(folder, "kaldi")
    if any(folder.glob("*.lats*")):
        return read_nbest(folder, "kaldi_lattice", size=num_best)
    raise InputError(
        "neither an N-best archive (words_text, acwt, ..., there or in archives.1, ...) nor"
        " lattices as text (*.lats)",
        path=folder,
        remedy="Kaldi's `lattice-copy 'ark:gunzip -c lat.*.gz |' ark,t:all.lats` makes them; put"
        " words.txt beside it.",
    )


def lower(nbest: NBest) -> NBest:
    """List whose words are in lower case, as those of the LMs are."""
    hypotheses = tuple(
        dataclasses.replace(hyp, words=tuple(word.lower() for word in hyp.words))
        for hyp in nbest.hypotheses
    )
    return dataclasses.replace(nbest, hypotheses=hypotheses)


def write_lists(
    output: Path, nbests: Iterator[NBest], references: Mapping[str, Sequence[str]], path: Path
) -> None:
    """Write an archive and its references as `text`.

    References without a list are left out, and counted in the log.

    Args:
        output: The folder.
        nbests: The lists.
        references: {utterance: words}.
        path: Where they come from.
    """
    sizes: Dict[str, int] = {}

    def known() -> Iterator[NBest]:
        for nbest in nbests:
            if nbest.utt not in references:
                raise InputError(
                    f"no reference of the utterance {nbest.utt!r}, which has an N-best list",
                    path=path,
                    remedy="Each list needs one: is the text that of another set?",
                )
            sizes[nbest.utt] = len(nbest.hypotheses)
            yield lower(nbest)

    write_nbest(known(), output)
    lines = [
        " ".join([utt, *(word.lower() for word in words)])
        for utt, words in references.items()
        if utt in sizes
    ]
    (output / "text").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    mean_size = sum(sizes.values()) / len(sizes)
    logging.info(f"{output.name}: {len(sizes)} lists, {mean_size:.1f} hypotheses")
    if len(lines) < len(references):
        logging.warning(f"{path}: {len(references) - len(lines)} utterances have no list, left out")


def make_lists(
    nbest: str,
    output: str,
    sets: str,
    references: str,
    num_best: int,
) -> None:
    """Write the lists and OUTPUT/conditions."""
    names = sets.split()
    if not names or len(set(names)) < len(names):
        raise InputError(f"--sets {sets!r}: expected names, each once, such as 'dev eval'")
    if num_best < 1:
        raise InputError(f"--num_best {num_best}: expected a number from 1 on")
    if not nbest:
        raise InputError("no N-best lists given", remedy=f"{_looked_for(names)} (see db.sh)")
    check_output(Path(output))
    folders = find_folders(Path(nbest), names)
    text = Path(references) if references else None
    texts = {key: find_references(path, text, *key) for key, path in folders.items()}
    with staged(output) as folder:
        for (name, condition), path in folders.items():
            target = folder / f"{name}_{condition}"
            file = texts[name, condition]
            write_lists(target, read_lists(path, num_best), read_transcripts(file), file)
        conditions = dict.fromkeys(condition for _, condition in folders)  # in order
        (folder / CONDITIONS).write_text("".join(f"{name}\n" for name in conditions))


def check_output(output: Path) -> None:
    """Check that a folder may be replaced: it is missing, empty, or one that was written here."""
    replaceable = output.is_dir() and ((output / CONDITIONS).is_file() or not any(output.iterdir()))
    if output.exists() and not replaceable:
        raise InputError(
            "is there, and does not hold lists that were written here",
            path=output,
            remedy="Give a new folder as --output, or delete this one.",
        )


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Make the lists."""
    tool = Tool("nbest", __doc__.splitlines()[0], make_lists)
    parser = tool.parser()
    parser.prog = "local/nbest.sh"
    parser.add_argument("--nbest", default="", help="Folder of {SET}_{CONDITION} folders")
    parser.add_argument("--output", default="data/nbest", help="Folder of the lists")
    parser.add_argument("--sets", default="dev eval", help="The sets, in one word")
    parser.add_argument(
        "--references", default="", help="Folder of SET_CONDITION/text or SET/text, if not beside"
    )
    parser.add_argument("--num_best", type=int, default=20, help="Hypotheses of a lattice, at most")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
