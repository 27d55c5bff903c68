"""The page itself: what comes from data is text, and nothing outside is asked for."""

import base64
import configparser
import hashlib
import json
import re
from pathlib import Path

import pytest
from html_reader import Page
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from espnet_bayeslm.report.html_figure import plain, svg
from espnet_bayeslm.report.html_page import (
    Html,
    Section,
    data_block,
    details,
    element,
    markup,
    page,
    table,
)

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;"


def test_text_is_escaped_and_markup_is_not():
    inner = element("b", "a < b")
    assert inner == "<b>a &lt; b</b>" and isinstance(inner, Html)
    assert markup(inner, "<i>") == "<b>a &lt; b</b>&lt;i&gt;"
    assert (
        element("p", class_="x", title='"<', hidden=None) == '<p class="x" title="&quot;&lt;"></p>'
    )
    assert element("meta", name="n") == '<meta name="n">'


@given(st.text(), st.text())
def test_any_text_comes_back(text, attribute):
    found = Page(element("p", text, data=attribute))
    assert found.tags == ["p"]
    # a parser turns all ends of lines into one
    assert re.sub(r"\r\n?", "\n", found.text) == re.sub(r"\r\n?", "\n", text)


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner)))
def test_any_data_comes_back_and_cannot_end_its_element(content):
    found = Page(data_block("data", content))
    assert found.tags == ["script"]
    assert json.loads(found.scripts[0][1]) == content
    assert not set("<>&\u2028\u2029") & set(found.scripts[0][1])


def test_page_is_whole_and_asks_for_nothing():
    cells = table(["", EVIL], [[EVIL, EVIL]], caption=EVIL)
    sections = [
        Section("first", EVIL, markup(cells, details(EVIL, "more"))),
        Section("second", "Other", data_block("d", [EVIL])),
    ]
    html = page(EVIL, sections)
    found = Page(html)
    assert html.startswith("<!DOCTYPE html>") and found.handlers == []
    assert found.addresses == ["#content", "#first", "#second"]
    assert {"content", "first", "second"} <= set(found.ids)
    assert len(set(found.ids)) == len(found.ids)
    assert [key for key, _ in found.scripts] == ["d", None]
    assert "img" not in found.tags and found.tags.count("h1") == 1 and found.tags.count("h2") == 2


def test_only_the_pages_own_program_may_run():
    html = page("t", [])
    (program,) = [text for key, text in Page(html).scripts if key is None]
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src &#x27;none&#x27;" in policy and f"sha256-{digest}" in policy
    assert policy.count("script-src") == 1 and "script-src &#x27;unsafe" not in policy


def test_the_pages_files_ask_for_nothing():
    html = page("t", [])
    assert not re.findall(r"(?:https?:)?//[a-z]|url\(|@import|fetch\(|XMLHttp|innerHTML", html)


def test_packaged_files_are_declared():
    # an installed package has them, not just a checkout
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[2] / "setup.cfg")
    declared = config["options.package_data"]["espnet_bayeslm.report"]
    assert {"*.css", "*.js"} <= set(declared.replace(",", " ").split())


def draw(title):
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4], label=plain(title))
    axes.set_title(plain(title))
    axes.legend()
    return figure


@pytest.mark.parametrize("title", [EVIL, "-->", "$x^", "a$b$c", "_hidden", "日本語"])
def test_figures_are_part_of_the_page(title, recwarn):
    found = Page(svg(draw(title), title))
    assert found.tags[:2] == ["figure", "svg"] and "script" not in found.tags
    assert found.handlers == [] and all(a.startswith("#") for a in found.addresses)
    # as title and in the legend; a dollar sign is one
    assert found.text.count(title) == 2


def test_figures_have_the_pages_colours_and_no_ids_in_common():
    one, other = (svg(draw("t"), label) for label in ("one", "other"))
    assert "currentColor" in one and "#000000" not in one and "#ffffff" not in one
    assert "<style" not in one and "<metadata" not in one
    ids = [set(Page(figure).ids) for figure in (one, other)]
    assert ids[0] and not ids[0] & ids[1]
    assert svg(draw("t"), "one") == one
