"""A page read by html.parser, and by a browser where there is one."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "path", "use", "rect", "circle", "line"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Page(HTMLParser):
    """What a page holds; an AssertionError where its tags are not balanced.

    Attributes:
        ids: All ids.
        addresses: Values of src, href and the like.
        scripts: The id (or None) and the text of each script.
        handlers: Attributes whose names begin with `on`.
        text: All text that is no script and no style.
    """

    def __init__(self, html):
        super().__init__()
        self.open, self.ids, self.addresses, self.scripts, self.handlers = [], [], [], [], []
        self.tags, self.cells, self.text = [], [], ""
        self.feed(str(html))
        self.close()
        assert self.open == [], f"without an end: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        attributes = dict(attrs)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        names = ("src", "href", "xlink:href", "action", "data", "poster", "srcset")
        self.addresses += [attributes[name] for name in names if name in attributes]
        self.handlers += [name for name in attributes if name.startswith("on")]
        if tag == "script":
            self.scripts.append([attributes.get("id"), ""])
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> within {self.open[-3:]}"
            self.open.pop()

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts[-1][1] += data
        elif inside != "style":
            self.text += data
            if self.cells and {"td", "th"} & set(self.open):
                self.cells[-1] += data


def browser():
    """Return a headless browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def opened(path, folder):
    """Return what a page has become in a browser, which may write to `folder`, and its console."""
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--enable-logging=stderr", f"--user-data-dir={folder}/profile", "--dump-dom"]
    command += ["--virtual-time-budget=10000", path.resolve().as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout, re.findall(r".*CONSOLE.*", result.stderr)
