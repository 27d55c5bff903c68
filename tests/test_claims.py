"""Sentences with figures in the results say what the tables beside them say.

`claims.py` makes them from the tables. A figure that is in no table is marked in the document,
behind its sentence, with what gave it: `<!-- run: COMMAND -->`; right below a heading it holds for
the section. `<!-- from: SOURCE -->` marks a figure of others.
"""

import re

import pytest
from claims import CLAIMS, ROOT, section

DOCUMENTS = sorted({ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("egs2/**/*.md")})
# Sections with results, wherever they are; of RESULTS*.md all but what was not run.
TITLES = ("Results", "When it does not help", "What did help", "Speed")
MARK = re.compile(r"<!-- (?:run|from): .*? -->", re.DOTALL)
# Digits that are names and settings, or stand in what the program always writes.
NAMES = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\b\d+-(?:gram|best)\b|\bL[12]\b|\S+@\S+|et al\. \d+|p < 0\.05"
    r"|95 % bootstrap|^\d+\.$|\b(?:seeds?|(?:prior_)?variance|prior_mean|KL weights? of"
    r"|dropout(?:_rate)?|stages?|top|rank|Tables?|Fig\.) [\d.]+\b"
    r"(?:(?:,| and|,? to| /) \d[\d.]*\b)*"
)


def plain(text):
    """Text on one line, without marks, signs of lists and emphasis."""
    text = re.sub(r"^\s*- ", "", MARK.sub("", text), flags=re.MULTILINE)
    return " ".join(text.replace("**", "").split())


def unfounded(text, claims):
    """Sentences, and tables' rows in lists, with figures without claim and mark."""
    # neither program text nor tables at the margin, which the recipes made, nor their headers
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"^(\||    |!\[|#).*$|^ *\|.*\n *\| ---.*$", "", text, flags=re.MULTILINE)
    found = []
    for block in re.split(r"\n\s*\n|\n(?= *(?:- |\|))", text):
        # a mark explains the sentence before it, or its row
        *marked, rest = MARK.split(block)
        if block.lstrip().startswith("|"):
            marked, rest = (marked, "") if marked else ([], block)
        for part, whole in (*((part, False) for part in marked), (rest, True)):
            words = plain(part)
            for claim in sorted(claims, key=len, reverse=True):
                words = words.replace(claim, "Claimed." if claim.endswith(".") else "Claimed")
            sentences = re.split(r"(?<=[.?])\s+(?=[A-Z(*<])", words)
            found += sentences if whole else sentences[:-1]
    return [sentence for sentence in found if re.search(r"\d", NAMES.sub("", sentence))]


def results(document):
    """Texts of results of a document, those of a section that is marked as a whole left out."""
    text = document.read_text()
    if document.name.startswith("RESULTS"):
        missing = section(text, "Not run")
        return [text.replace(missing, "") if missing else text]
    parts = [section(text, title) for title in TITLES]
    return [part for part in parts if not re.match(r"\s*<!-- run: ", part)]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_sentences_say_what_the_tables_say(claim):
    documents = [plain(document.read_text()) for document in DOCUMENTS]
    for sentence in claim():
        assert any(sentence in text for text in documents), f"in no document: {sentence}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_figure_has_a_table_or_a_command(document):
    claims = [sentence for claim in CLAIMS for sentence in claim()]
    found = [sentence for text in results(document) for sentence in unfounded(text, claims)]
    assert not found, "neither in tests/claims.py nor marked with the run:\n" + "\n".join(found)


def test_a_figure_without_ground_is_found():
    table = "| | 1 |\n| --- | ---: |\n| a | 2 |\n"
    text = "It is 3 % lower. It is 4 %\n  lower at seed 1.\n\n- Is 5.\n"
    assert unfounded(table + text, ["It is 4 % lower"]) == ["It is 3 % lower.", "Is 5."]
    assert unfounded("Is 3. Is 4. <!-- run: a --> Is 5. <!-- run: b -->", []) == ["Is 3."]
    in_list = "- Is:\n\n  " + table.replace("\n", "\n  ") + "| b <!-- run: a --> | 3 |\n"
    assert unfounded(in_list, []) == ["| a | 2 |"]


def test_marks_name_commands_that_exist():
    from espnet_bayeslm.bin.bayeslm import TOOLS

    for document in DOCUMENTS:
        for command in re.findall(r"<!-- run: (.*?) -->", document.read_text()):
            first, second = [*command.split(), ""][:2]
            paths = [folder / first for folder in (ROOT, document.parent)]
            known = first == "make" or (first == "bayeslm" and second in TOOLS)
            assert known or any(path.exists() for path in paths), f"{document}: {command}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_follows_a_mark_that_begins_a_line(document):
    """Markdown takes such a line for HTML: code and emphasis in it would be shown as typed."""
    assert not re.findall(r"^ *<!-- .*? -->[ \t]*\S.*$", document.read_text(), re.MULTILINE)
