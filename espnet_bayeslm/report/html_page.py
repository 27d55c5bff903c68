"""The page of the HTML report: templates for its parts, all of it in one file."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any, Mapping, Sequence

import jinja2
from markupsafe import Markup

PARTS = "parts.html"
TEMPLATES = Path(__file__).with_name("templates")


@functools.lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Templates beside this module: what comes from data is escaped, unknown names are errors."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # JSON as the page's program reads it: in order, and without NaN
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return found


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        key: Its id, which links lead to, and the name of its template.
        title: Its heading.
        values: What the template shows.
    """

    key: str
    title: str
    values: Mapping[str, Any]

    @functools.cached_property
    def body(self) -> Markup:
        """Markup below the heading."""
        return Markup(environment().get_template(f"{self.key}.html").render(self.values))


def page(title: str, sections: Sequence[Section]) -> str:
    """HTML file that asks for nothing outside itself.

    Args:
        title: Its heading.
        sections: Its parts.
    """
    style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "page.js"))
    return environment().get_template("page.html").render(
        title=title,
        sections=sections,
        style=Markup(style),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
    )  # fmt: skip
