"""How dense the prose of the pages is: numbers per 100 words and mean sentence length.

`python tools/prose.py [PAGE ...]` prints both for each page without its code, tables, formulas,
headings and comments. A hint for who writes: at most 3 numbers and 18 words read well.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import List, Tuple

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/**/*.md", "egs2/**/*.md")
NOT_PROSE = re.compile(r"```.*?```|<!--.*?-->|\$\$.*?\$\$", re.DOTALL)
# Tables, headings, figures and indented commands
NOT_PROSE_LINES = re.compile(r"^( *\||#|!\[| {4,}(\./|make |bayeslm ))")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# Not the digits of names, such as 3-gram, bfloat16 and n-best
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,.]*(?![\w-])")
SENTENCE_END = re.compile(r"[.?!]['\"*_)]*(?:\s+|$)")


def prose_of(text: str) -> List[str]:
    """Paragraphs and list items of a page, with commands and names as one word each."""
    text = re.sub(r"`[^`\n]*`", "code", NOT_PROSE.sub("", text))
    paragraphs = [""]
    for line in text.splitlines():
        if NOT_PROSE_LINES.match(line) or not line.strip():
            paragraphs.append("")
        elif re.match(r" *([-*]|\d+\.) ", line):
            paragraphs.append(re.sub(r"^ *([-*]|\d+\.) ", "", line))
        else:
            paragraphs[-1] += " " + line.strip()
    return [LINK.sub(r"\1", paragraph).strip() for paragraph in paragraphs if paragraph.strip()]


def measure(text: str) -> Tuple[int, float, float]:
    """Words of prose, numbers per 100 words, words per sentence."""
    paragraphs = prose_of(text)
    words = sum(len(re.findall(r"[^\W\d_]\S*", paragraph)) for paragraph in paragraphs)
    numbers = sum(len(NUMBER.findall(paragraph)) for paragraph in paragraphs)
    parts = [part for paragraph in paragraphs for part in SENTENCE_END.split(paragraph)]
    sentences = sum(bool(part.strip()) for part in parts)
    return words, 100 * numbers / max(words, 1), words / max(sentences, 1)


def main() -> None:
    """Print one line per page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path, help="default: README, docs and results")
    pages = parser.parse_args().pages or sorted(p for glob in PAGES for p in ROOT.glob(glob))
    print("words  numbers/100  words/sentence  page")
    for page in pages:
        words, numbers, length = measure(page.read_text())
        name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        print(f"{words:5d}  {numbers:11.1f}  {length:14.1f}  {name}")


if __name__ == "__main__":
    main()
