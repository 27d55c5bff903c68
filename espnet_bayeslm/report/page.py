"""The page of the HTML report: templates for its parts, all of it in one file."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from markupsafe import Markup

from espnet_bayeslm.report.table import Table

PARTS = "parts.html"
TEMPLATES = Path(__file__).with_name("templates")


@functools.lru_cache(maxsize=1)
def environment() -> Any:
    """Templates beside this module: data are escaped, unknown names are errors."""
    import jinja2  # takes a while

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
    """A part of the page."""

    key: str
    title: str
    values: Mapping[str, Any]

    @functools.cached_property
    def body(self) -> Markup:
        """Markup below the heading."""
        return Markup(environment().get_template(f"{self.key}.html").render(self.values))


def tables_in(values: Any) -> Iterator[Table]:
    """Yield the tables among values that a template shows, in their order."""
    if isinstance(values, Table):
        yield values
    elif isinstance(values, (dict, list)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from tables_in(value)


def page(title: str, sections: Sequence[Section]) -> str:
    """HTML file that asks for nothing outside itself."""
    style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "page.js"))
    tables = [
        {"section": section.title, **table.data()}
        for section in sections
        for table in tables_in(section.values)
    ]
    return environment().get_template("page.html").render(
        title=title,
        sections=sections,
        tables=json.dumps(tables, ensure_ascii=False),
        style=Markup(style),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
    )  # fmt: skip
