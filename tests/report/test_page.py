"""The page itself: what comes from data is text, and nothing outside is asked for."""

import base64
import configparser
import hashlib
import json
import re
from pathlib import Path
from urllib.parse import unquote

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from oracles.html_reader import Page

from espnet_bayeslm.report.page import PARTS, Section, environment, page
from espnet_bayeslm.report.plots import plain_name, svg
from espnet_bayeslm.report.table import Cell, Table

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;"


def macro(name, *values):
    return getattr(environment().get_template(PARTS).module, name)(*values)


def lines(text):
    """Return a text without space around it, as a parser turns all ends of lines into one."""
    return re.sub(r"\r\n?", "\n", text).strip()


@given(st.text(), st.text())
def test_any_text_comes_back(text, address):
    found = Page(macro("table", Table(text, [text], [[Cell(text, href=f"#{address}")]])))
    assert [lines(cell) for cell in found.cells] == [lines(text)] * 2
    assert lines(found.addresses[0]) == lines(f"#{address}")
    tags = {"div", "span", "table", "caption", "thead", "tbody", "tr", "th", "td", "a"}
    assert set(found.tags) <= tags


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner)))
def test_any_data_comes_back_and_cannot_end_its_element(content):
    found = Page(macro("data", "data", content))
    assert found.tags == ["script"]
    assert json.loads(found.scripts[0][1]) == content
    assert not set("<>&\u2028\u2029") & set(found.scripts[0][1])


def test_page_is_whole_and_asks_for_nothing():
    table = Table(EVIL, ["", EVIL], [[EVIL, Cell(EVIL, "†")]])
    values = {"date": EVIL, "command": EVIL, "versions": EVIL, "tables": [table]}
    html = page(EVIL, [Section("provenance", EVIL, values)])
    found = Page(html)
    assert html.startswith("<!DOCTYPE html>") and found.handlers == []
    assert found.addresses[:2] == ["#content", "#provenance"]
    assert all(address.startswith("data:application/json;") for address in found.addresses[2:])
    assert {"content", "provenance"} <= set(found.ids) and len(set(found.ids)) == len(found.ids)
    assert [key for key, _ in found.scripts] == [None]
    assert "img" not in found.tags and found.tags.count("h1") == found.tags.count("h2") == 1
    html = page("t", [])
    (program,) = [text for key, text in Page(html).scripts if key is None]
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src 'none'" in policy and f"sha256-{digest}" in policy
    assert policy.count("script-src") == 1 and "script-src 'unsafe" not in policy
    assert not re.findall(r"(?:https?:)?//[a-z]|url\(|@import|fetch\(|XMLHttp|innerHTML", html)


def test_packaged_files_are_declared_and_templates_checked():
    # an installed package has them, not just a checkout
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[2] / "setup.cfg")
    assert config["options.package_data"]["espnet_bayeslm.report"] == "templates/*"
    assert "jinja2" in config["options"]["install_requires"].split()
    with pytest.raises(jinja2.UndefinedError):
        assert Section("learning", "Learning curves", {"figure": ""}).body


def test_all_tables_are_one_download():
    rows = [["a_1", "−1.50", Cell("10.00", "†")], ['"b",~<', "–", Cell("∞", "‡")]]
    table = Table("50 % of: {all}", ["system", "change", "WER\u00a0%"], rows)
    values = {"figure": "", "epochs": table}
    html = page("t", [Section("learning", "Curves", values), Section("learning", "More", values)])
    (link,) = [a for a in Page(html).addresses if a.startswith("data:")]
    first, second = json.loads(unquote(link.partition(",")[2]))
    assert first == {
        "section": "Curves",
        "caption": "50 % of: {all}",
        "columns": ["system", "change", "WER\u00a0%", "WER\u00a0% significance"],
        "rows": [["a_1", "-1.50", "10.00", "†"], ['"b",~<', "", "inf", "‡"]],
    }
    assert second == {**first, "section": "More"}
    assert "data:" not in Page(page("t", [])).addresses


def draw(title):
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4], label=plain_name(title))
    axes.set_title(plain_name(title))
    axes.legend()
    return figure


@pytest.mark.parametrize("title", [EVIL, "-->", "$x^", "a$b$c", "_hidden", "日本語"])
def test_figures_are_part_of_the_page(title, recwarn):
    found = Page(svg(draw(title), title))
    assert found.tags[:2] == ["figure", "svg"] and "script" not in found.tags
    assert found.handlers == [] and all(a.startswith("#") for a in found.addresses)
    # as title and in the legend; a dollar sign is one
    assert found.text.count(title) == 2
