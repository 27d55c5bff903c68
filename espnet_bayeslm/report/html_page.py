"""The page of the HTML report: elements, tables, and all of it in one file."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
from importlib import resources
from typing import Any, Iterable, Optional, Sequence

import espnet_bayeslm

# Elements that have no end tag
VOID = ("meta", "input", "br")


class Html(str):
    """Markup, which `element` takes as it is; any other string is text and is escaped."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        key: Its id, which links lead to.
        title: Its heading.
        body: What stands below.
    """

    key: str
    title: str
    body: Html


def markup(*parts: str) -> Html:
    """Return parts one after the other; those that are not `Html` are escaped."""
    return Html("".join(p if isinstance(p, Html) else html.escape(p, quote=False) for p in parts))


def element(name: str, /, *children: str, **attributes: Optional[str]) -> Html:
    """Return an element.

    Args:
        name: Its name.
        *children: What is in it; strings that are not `Html` are escaped.
        **attributes: `class_` is `class`, `aria_label` is `aria-label`; "" stands for itself, None
            leaves an attribute out.
    """
    names = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    given = "".join(f' {key}="{html.escape(v)}"' for key, v in names if v is not None)
    end = "" if name in VOID else f"</{name}>"
    return Html(f"<{name}{given}>{markup(*children)}{end}")


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, words: Sequence[int] = ()
) -> Html:
    """Return a table whose first column names the rows; it scrolls where the screen is narrow.

    Args:
        header: The columns' names.
        rows: The cells.
        caption: What it shows.
        words: Columns (from 0) that hold words: they are aligned to the left.
    """

    def cell(column: int, text: str) -> Html:
        if column == 0:
            return element("th", text, scope="row")
        return element("td", text, class_="words" if column in words else None)

    heads = [
        element("th", text, scope="col", class_="words" if n in (0, *words) else None)
        for n, text in enumerate(header)
    ]
    body = [element("tr", *(cell(n, text) for n, text in enumerate(row))) for row in rows]
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *heads)),
        element("tbody", *body),
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def details(summary: str, *children: str) -> Html:
    """Return what is shown only where it is asked for."""
    return element("details", element("summary", summary), *children)


def paragraph(*children: str) -> Html:
    """Return a paragraph of explanation."""
    return element("p", *children)


def data_block(key: str, content: Any) -> Html:
    """Return data for the page's program; no text in it can end the element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        # only within strings do these occur
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Html(text), type="application/json", id=key)


def page(title: str, sections: Sequence[Section]) -> Html:
    """Return the file: it asks for nothing outside itself.

    Args:
        title: Its heading.
        sections: Its parts.
    """
    style = _packaged("page.css")
    script = _packaged("page_parts.js") + _packaged("page.js")
    links = [element("li", element("a", s.title, href=f"#{s.key}")) for s in sections]
    parts = [
        element(
            "section",
            element("h2", section.title, id=f"{section.key}-title"),
            section.body,
            id=section.key,
            aria_labelledby=f"{section.key}-title",
        )
        for section in sections
    ]
    version = f"bayeslm report, espnet_bayeslm {espnet_bayeslm.__version__}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(style)),
    )
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        element("header", element("h1", title), class_="top"),
        element("nav", element("ul", *links), aria_label="Parts of the report", class_="parts"),
        element("main", *parts, id="content"),
        element("footer", element("p", version)),
        element("script", Html(script)),
    )
    return Html(f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n")


def _packaged(name: str) -> str:
    """Return a file that stands beside this module."""
    return resources.files("espnet_bayeslm.report").joinpath(name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Return the page's security policy: of all programs only the page's own may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:;"
        f" style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
