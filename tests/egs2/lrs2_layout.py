"""A small directory of LRS2's own layout, its text made up."""

from written_files import write

WORDS = (
    *("WE", "THINK", "IT'S", "A", "VERY", "GOOD", "THING"),
    *("THAT", "THE", "1960S", "HOUSE", "STANDS", "IN", "TOWN"),
)


def write_clip(path, words, starts=None):
    """A text file as the corpus has it; with `starts`, each word lasts 0.3 s."""
    lines = [f"Text:  {' '.join(words)}", "Conf:  4"]
    if starts is not None:
        rows = zip(words, starts, strict=True)
        lines += ["", "WORD START END ASDSCORE"]
        lines += [f"{word} {start:.2f} {start + 0.3:.2f} 5.1" for word, start in rows]
    write(path, "\n".join(lines) + "\n")


def sentence(number, length):
    return [WORDS[(number + i * i) % len(WORDS)] for i in range(length)]


def make_corpus(folder):
    """60 clips: 20 of pretrain, with a silence of 0.8 s after the sixth word; 20 train, 10, 10."""
    root = folder / "mvlrs_v1"
    lists = {"pretrain": [], "train": [], "val": [], "test": []}
    for number in range(20):
        clip = f"55{number % 3}0/{number:05d}"
        starts = [0.3 * i + 0.8 * (i > 5) for i in range(12)]
        write_clip(root / "pretrain" / f"{clip}.txt", sentence(number, 12), starts)
        lists["pretrain"].append(clip)
    for number in range(40):
        clip = f"62{number % 4}1/{number:05d}"
        words = sentence(number + 3, 3 + number % 5)
        name = ("train", "train", "val", "test")[number % 4]
        write_clip(root / "main" / f"{clip}.txt", [*words, "ZEBRA"] if name == "val" else words)
        lists[name].append(
            f"{clip} {'NF' if number % 8 == 3 else 'MV'}" if name == "test" else clip
        )
    for name, lines in lists.items():
        (root / f"{name}.txt").write_text("".join(line + "\n" for line in lines))
    return root
