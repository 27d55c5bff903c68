"""The report's N-best lists in a headless browser."""

import json
import random
import re

import pytest
from oracles.html_reader import Page, browser, opened

from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists
from espnet_bayeslm.report.nbest_section import nbest_section
from espnet_bayeslm.report.page import page

pytestmark = pytest.mark.skipif(browser() is None, reason="no chromium or google-chrome on PATH")

EVIL = "<script>document.title='hacked'</script>"
IMAGE = "<img/src=x/onerror=document.title='hacked'>"
LISTS = {
    "a-1": ["one two three", "one too three"],
    "a-2": ["one", "one two", ""],
    "b-3": [f"{EVIL} {IMAGE} four", "four"],
    "b-4": ["five six", "five"],
}
REFS = {"a-1": "one too three", "a-2": "one", "b-3": f"{IMAGE} four", "b-4": "five six seven"}
BEST = {"a-1": 1, "a-2": 1, "b-3": 0, "b-4": 0}
# Does one thing after another with the controls, and writes down what is then shown.
DRIVER = """
const seen = [];
const look = () => seen.push({
  utts: [...document.querySelectorAll("#nbest-rows h3")].map((node) => node.firstChild.data),
  status: document.querySelector("[role=status]").textContent,
});
const control = (name) => document.querySelector(`#nbest-browser [name=${name}]`);
const set = (name, value) => {
  control(name).value = value;
  control(name).dispatchEvent(new Event("input", { bubbles: true }));
  look();
};
const press = (text) => {
  [...document.querySelectorAll(".pager button")].find((b) => b.textContent.includes(text)).click();
  look();
};
look();
STEPS
const result = document.createElement("pre");
result.id = "result";
result.textContent = JSON.stringify(seen);
document.body.append(result);
"""


def text_of(dom):
    return re.sub(r"\s+", " ", Page(dom).text)


@pytest.fixture
def report(rescored, tmp_path):
    """Return a function that writes a report of lists."""

    def write(lists=LISTS, refs=REFS, best=BEST, bias=None, **options):
        items = [
            rescored(name, lists, best=places, **options)
            for name, places in ((EVIL, best), ("other", dict.fromkeys(lists, 0)))
        ]
        words = {utt: tuple(ref.split()) for utt, ref in refs.items()}
        section = nbest_section(items, words, bias)
        path = tmp_path / "report.html"
        path.write_text(page(EVIL, [section]), encoding="utf-8")
        return path

    return write


@pytest.fixture
def drive(tmp_path):
    """Return a function that opens a report, does steps, and returns what was seen after each."""

    def run(path, steps):
        # a test's own program is not the page's: the policy would not let it run
        html = re.sub(r'<meta http-equiv="Content[^>]*>', "", path.read_text(encoding="utf-8"))
        script = f"<script>(() => {{{DRIVER.replace('STEPS', steps)}}})()</script>"
        driven = tmp_path / "driven.html"
        driven.write_text(html.replace("</body>", f"{script}</body>"), encoding="utf-8")
        dom, console = opened(driven, tmp_path)
        assert console == []
        (result,) = re.findall(r'<pre id="result">(.*?)</pre>', dom, flags=re.DOTALL)
        return json.loads(Page(f"<p>{result}</p>").text), dom

    return run


def test_rows_are_shown_and_data_does_not_run(report, tmp_path):
    dom, console = opened(report(uncertain=True), tmp_path)
    assert console == []
    # a program in the data would have changed the title
    (title,) = re.findall(r"<title>(.*?)</title>", dom)
    assert title == EVIL.replace("<", "&lt;").replace(">", "&gt;")
    assert "<img" not in dom and dom.count("<article") == len(LISTS)
    text = text_of(dom)
    assert EVIL in text and IMAGE in text
    assert "3 hypotheses" in text and "1–4 of 4" in text
    assert text.count("−1 error") == 1 and text.count("+1 error") == 1
    # of a-1: the first pass' word is wrong, the new one is not
    assert re.search(r'<span class="s" title="another word[^"]*"[^>]*>two</span>', dom)
    assert re.search(r'<span class="" title="−ln p [^"]*entropy 2;[^"]*"[^>]*>too</span>', dom)
    assert re.search(r'<span class="d" title="missing">—</span>', dom)
    assert re.search(r'<span class="i" title="added[^"]*"[^>]*>two</span>', dom)
    assert "background-color: rgba(" in dom


def test_words_of_the_bias_list_are_marked(report, tmp_path):
    bias = BiasLists(shared=BiasList([("two", None), ("too", None)]))
    dom, console = opened(report(bias=bias), tmp_path)
    assert console == []
    assert re.search(r'<span class="s b" title="another word[^"]*"[^>]*>two</span>', dom)
    # of the reference and of the right hypothesis
    assert dom.count('<span class="b">too</span>') >= 2
    assert not re.search(r'<span class="b"[^>]*>(?!too|two|in the bias list)', dom)


def test_filters_orders_and_systems(report, drive):
    steps = """
set("filter", "changed"); set("filter", "worse"); set("filter", "better"); set("filter", "wrong");
set("filter", "all"); set("order", "worse"); set("order", "better"); set("order", "errors");
set("order", "file"); set("utt", "B-"); set("utt", "");
set("words", "SEVEN"); set("words", "nowhere"); set("words", "");
set("order", "mean:entropy"); set("order", "file");
set("filter", "changed"); set("system", "1");
const table = document.querySelector("table.sortable");
const press_head = (column) => {
  table.tHead.rows[0].cells[column].querySelector("button").click();
  seen.push([...table.tBodies[0].rows].map((row) => row.cells[column].textContent.trim()).join());
};
press_head(3); press_head(3);
"""
    seen, _ = drive(report(uncertain=True), steps)
    # numbers by value, and what is missing last in both directions
    assert seen[-2:] == ["−11.11,0.00,0.00,–", "0.00,0.00,−11.11,–"]
    seen = seen[:-2]
    shown = [" ".join(step["utts"]) for step in seen]
    assert shown == [
        "a-1 a-2 b-3 b-4",
        *("a-1 a-2", "a-2", "a-1", "a-2 b-3 b-4", "a-1 a-2 b-3 b-4"),
        *("a-2 b-3 b-4 a-1", "a-1 b-3 b-4 a-2", "a-2 b-3 b-4 a-1"),
        *("a-1 a-2 b-3 b-4", "b-3 b-4", "a-1 a-2 b-3 b-4"),
        *("b-4", "", "a-1 a-2 b-3 b-4"),
        *("a-1 b-3 a-2 b-4", "a-1 a-2 b-3 b-4"),
        *("a-1 a-2", ""),
    ]
    assert seen[1]["status"] == "1–2 of 2 (of 4 utterances)"
    assert seen[-1]["status"] == "none (of 4 utterances)"


def test_systems_side_by_side_and_a_link_to_an_utterance(report, drive):
    steps = """
set("beside", "all"); set("utt", "a-1");
const lines = document.querySelectorAll("#nbest-rows .names span");
seen.push([...lines].map((node) => node.textContent));
set("size", "20");
location.hash = document.querySelector("#nbest-rows .link").hash.replace("a-1", "b-3");
dispatchEvent(new Event("hashchange"));
look();
seen.push(document.querySelector(".target h3").firstChild.data);
location.hash = "#utt=%zz%";
dispatchEvent(new Event("hashchange"));
look();
"""
    seen, dom = drive(report(), steps)
    # the second system keeps the first pass's best
    assert seen[3] == ["reference", "first pass, other", EVIL]
    assert " ".join(seen[5]["utts"]) == "a-1 a-2 b-3 b-4" and seen[6] == "b-3"
    assert seen[7] == seen[5]
    assert dom.count('<details open=""><summary>2 hypotheses') == 1


def test_hypotheses_are_made_on_demand(report, drive):
    steps = """
const more = document.querySelectorAll("article details")[1];
more.open = true;
more.dispatchEvent(new Event("toggle"));
"""
    _, dom = drive(report(uncertain=True), steps)
    assert dom.count('<table class="hyps"') == dom.count('<table class="values"') == 1
    text = text_of(dom)
    for part in ("errors", "acoustic", "new LM", "total", "(first pass, fewest errors)", "</s>"):
        assert part in text
    # of an empty hypothesis where the reference has a word, that word is missing
    cells = [cell.strip() for cell in Page(dom).cells]
    place = cells.index("−102.00")
    scores = ["−102.00", "−0.25", "−7.50", "−7.50", "−17.95"]
    assert cells[place - 3 : place + 5] == ["3", "1", "—", *scores]


def test_pages_of_many_lists_without_references(report, drive):
    rng = random.Random(0)
    lists = {f"u{n}": [f"w{rng.randrange(99)} x", "y"] for n in range(2000)}
    best = {utt: n % 2 for n, utt in enumerate(lists)}
    path = report(lists, {}, best)
    steps = """
press("Next"); press("Previous"); set("size", "200"); for (let n = 0; n < 9; n++) press("Next");
set("utt", "u1999");
"""
    seen, dom = drive(path, steps)
    assert [step["status"] for step in seen[:4]] == [
        *("1–20 of 2000", "21–40 of 2000", "1–20 of 2000", "1–200 of 2000")
    ]
    assert seen[1]["utts"][0] == "u20" and len(seen[3]["utts"]) == 200
    assert seen[-2]["status"] == "1801–2000 of 2000"
    # beyond the end of what is found there is no page
    assert seen[-1] == {"utts": ["u1999"], "status": "1–1 of 1 (of 2000 utterances)"}
    text = text_of(dom)
    assert "Compared with the first pass" in text and "only worse" not in text
