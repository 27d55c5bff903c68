"""What the README and docs/ say: commands run as they stand, links lead somewhere, names exist."""

import argparse
import ast
import dataclasses
import importlib
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from pretrained.tiny_models import write_model
from written_files import write

from espnet_bayeslm.kernels import KERNELS
from espnet_bayeslm.workflows.quickstart import SHIPPED, Demo, unpack

ROOT = Path(__file__).parent.parent
README, DOCS = ROOT / "README.md", ROOT / "docs"
# Pages whose commands make what the others use; then the others.
FIRST = [DOCS / "howto" / name for name in ("train.md", "rescore.md")]
PAGES = [*FIRST, *sorted({*DOCS.glob("**/*.md")} - {*FIRST})]
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *PAGES]
GUIDES = [README, DOCS / "quickstart.md", *sorted((DOCS / "howto").glob("*.md"))]
PACKAGE = ROOT / "espnet_bayeslm"
TINY = {
    "bayes_lstm": {"unit": 8, "dropout_rate": 0.0},
    "bayes_transformer": {"att_unit": 8, "head": 2, "unit": 16, "layer": 2, "dropout_rate": 0.0},
}
# Of ESPnet's programs, not of ours
ESPNETS = {"--python", "--lm_config", "--lm_args", "--lm_tag", "--inference_args"}


def name(path):
    return str(path.relative_to(ROOT))


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def write_lists(path, sentences, *, format, num_scores=1, with_refs=True):
    """Write lists of three hypotheses per sentence, the second one right."""
    from espnet_bayeslm.nbest import Hypothesis, NBest, write_nbest

    lists = []
    for n, words in enumerate(map(tuple, sentences)):
        hyps = (
            # of acoustics, LM and graph
            Hypothesis(text, *(-100.0 - rank, -3.0 * len(text), 0.0)[:num_scores])
            for rank, text in enumerate(((*words, "a"), words, words[:-1]), 1)
        )
        lists.append(NBest(f"u{n:03d}", tuple(hyps), ref=words if with_refs else None))
    write_nbest(lists, path, format=format)


def write_foreign_lists(folder, sentences):
    """Write such lists as the Hypotheses Paradise's, NeMo's and Vosk's."""
    texts = [[" ".join(words) for words in ((*s, "a"), s, s[:-1])] for s in map(tuple, sentences)]
    whisper = [{"input": hyps, "output": hyps[1]} for hyps in texts]
    write(folder / "hyporadise.json", json.dumps(whisper))
    scores = (-101.0, -102.0, -103.0)
    beams, manifest = [], []
    for n, hyps in enumerate(texts):
        beams += [f"{hyp}\t{score}\n" for hyp, score in zip(hyps, scores, strict=True)]
        entry = {"audio_filepath": f"u{n:03d}.wav", "text": hyps[1], "num_hypotheses": len(hyps)}
        manifest.append(json.dumps(entry) + "\n")
        pairs = zip(hyps, scores, strict=True)
        vosk = {"alternatives": [{"confidence": score, "text": hyp} for hyp, score in pairs]}
        write(folder / "vosk" / f"u{n:03d}.json", json.dumps(vosk))
    write(folder / "nemo" / "preds_out.tsv", "".join(beams))
    write(folder / "nemo" / "manifest.json", "".join(manifest))


def write_logits(folder, sentences):
    """Write CTC logits in which each letter leads by a little, with tokens and hotwords."""
    rng, tokens = np.random.default_rng(0), ["<blank>", "<space>", *"abcdefghij"]
    logits = {}
    for n, words in enumerate(sentences):
        text = " ".join(words).replace(" ", "-")
        path = [0] * (2 * len(text) + 1)
        path[1::2] = [1 if letter == "-" else tokens.index(letter) for letter in text]
        logits[f"u{n:03d}"] = rng.normal(0, 1, (len(path), len(tokens)))
        logits[f"u{n:03d}"][np.arange(len(path)), path] += 3
    np.savez(folder / "ctc.npz", **logits)
    write(folder / "tokens.txt", "".join(f"{token}\n" for token in tokens))
    write(folder / "hotwords.txt", "a b :2\nc\n")


def write_refs(path, sentences):
    path.write_text("".join(f"u{n:03d} {' '.join(s)}\n" for n, s in enumerate(sentences)))


@pytest.fixture
def workplace(corpus, tmp_path):
    sentences = {
        part: [line.split()[1:] for line in (corpus / f"{part}.txt").read_text().splitlines()]
        for part in ("train", "valid")
    }
    texts = dict.fromkeys(("train", "source", "monday", "tuesday"), "train")
    for file, part in {**texts, "dev": "valid"}.items():
        (tmp_path / f"{file}.txt").write_text("".join(" ".join(s) + "\n" for s in sentences[part]))
    for folder, part in (("dev", sentences["valid"]), ("eval", sentences["train"][:40])):
        kaldi = tmp_path / "nbest" / folder
        write_lists(kaldi, part, format="kaldi", num_scores=3, with_refs=False)
        write_refs(kaldi / "text", part)
    lists = tmp_path / "lists"
    write_foreign_lists(lists, sentences["valid"])
    write_logits(lists, sentences["valid"])
    write_lists(lists / "k2.jsonl", sentences["valid"], format="jsonl")
    write_refs(lists / "text", sentences["valid"])
    write_model(tmp_path / "models" / "SmolLM2-135M")
    for path in (PACKAGE / "configs").glob("*.yaml"):
        config = yaml.safe_load(path.read_text())
        if isinstance(config, dict) and config.get("lm") in TINY:
            config["lm_conf"].update(TINY[config["lm"]])
            config.update(max_epoch=2, num_workers=0, use_matplotlib=False)
            # a pass each: 256 batches of these few sentences take seconds
            config["model_conf"] = {**config.get("model_conf", {}), "min_iters_per_epoch": 0}
        elif isinstance(config, dict) and config.get("lm") == "pretrained":
            config.update(max_epoch=1, num_workers=0, use_matplotlib=False)
        else:
            continue
        write(tmp_path / "conf" / path.name, yaml.safe_dump(config))
    return tmp_path


def run(python, folder, *words, input=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [python, *words], cwd=folder, env=environment, input=input, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


RUN_ALL = """
import shlex, sys
from espnet_bayeslm.bin import bayeslm
for words in (shlex.split(line, comments=True) for line in sys.stdin):
    if words:
        assert words[0] == "bayeslm", words
        bayeslm.main(words[1:])
"""


def run_pages(python, folder, pages, before=""):
    """Run the pages' commands, and what they do in Python; what was printed."""
    # in one process, forked from one that has ESPnet loaded
    commands = before + "\n".join(block for page in pages for block in blocks(page, "bash"))
    commands = commands.replace("\\\n", " ")
    # a configuration's name means a tiny one here
    commands = re.sub(r"--config (\w+)( --size small)?", r"--config conf/\1.yaml", commands)
    (folder / "commands.py").write_text(RUN_ALL)
    printed = run(python, folder, "commands.py", input=commands)
    programs = [block for page in pages for block in blocks(page, "python")]
    (folder / "program.py").write_text("\n".join(programs))
    return printed + run(python, folder, "program.py")


DEMO = "exp/quickstart"
DEMO_LMS = """
bayeslm train --train_text train.txt --valid_text dev.txt --config bayes_transformer \
    --exp exp/quickstart/bayes
bayeslm ngram --text train.txt --order 3 --discount_fallback true --arpa exp/quickstart/3gram.arpa
bayeslm interpolate --text dev.txt --lm exp/quickstart/bayes --ngram exp/quickstart/3gram.arpa \
    --output exp/quickstart/weights/bayes_3gram.yaml
"""


def test_commands_of_the_readme_run_on_files_of_the_demo(workplace, corpus, python, monkeypatch):
    """In their place are small ones, of the same names; the demo makes all of these."""
    named = set(re.findall(rf"{DEMO}/[\w./]+", README.read_text()))
    monkeypatch.chdir(workplace)
    unpack(SHIPPED, Path(DEMO))
    stages = Demo(Path(DEMO), 0, Path("SmolLM2.gguf")).stages()
    steps = [step for _, stage in stages for step in stage]
    made = {str(path) for step in steps for path in step.outputs()}
    assert len(named) == 6 and all(path in made or Path(path).is_file() for path in named)
    for part, text in (("dev", "valid"), ("eval", "train")):
        lines = (corpus / f"{text}.txt").read_text().splitlines()[:40]
        sentences = [line.split()[1:] for line in lines]
        write_lists(workplace / DEMO / "data" / f"{part}.jsonl", sentences, format="jsonl")
    printed = run_pages(python, workplace, [README], DEMO_LMS)
    assert (workplace / "exp" / "eval" / "text").read_text().count("\n") == 40
    assert printed.count("\nrescored ") == 2


def test_commands_of_the_pages_run(workplace, python):
    run_pages(python, workplace, PAGES)
    exp = workplace / "exp"
    assert (exp / "search" / "top2" / "valid.loss.ave.pth").exists()
    # one process and two
    assert (exp / "eval" / "lmwt.nn").read_text().count("\n") == 3 * 40
    for file in ("lmwt.nn", "text"):
        assert (exp / "eval" / file).read_text() == (exp / "by_two" / file).read_text()
    for lists in ("hyporadise", "nemo", "vosk", "k2", "ctc"):
        assert (exp / lists / "text").read_text().count("\n") == 30


def test_readme_is_short_and_has_the_table_of_the_quick_start():
    text = re.sub(r"<!--.*?-->", "", README.read_text(), flags=re.DOTALL)
    assert len(text.split()) <= 700
    found = [rows_of(page, "eval") for page in (README, DOCS / "quickstart.md")]
    assert found[0] == found[1] and len(found[0]) == 5


def prose(page):
    """Sentences of a page, without code, tables, headings and the targets of links."""
    text = re.sub(r"<!--.*?-->|```.*?```|\$\$.*?\$\$", "", page.read_text(), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||#|!\[|    )", line)]
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(lines))
    text = re.sub(r"`[^`]*`", "CODE", text)
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:- |\d+\. )", text)
    for paragraph in map(" ".join, map(str.split, paragraphs)):
        yield from filter(None, re.split(r"(?<=[.!?:])\s+(?=[A-Z*`\[(\"_])", paragraph))


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_guides_have_short_sentences_and_few_figures(page):
    sentences = [sentence.split() for sentence in prose(page)]
    num_words = sum(map(len, sentences))
    figures = [re.search(r"(?<![\w.])\d", word) for words in sentences for word in words]
    assert num_words / len(sentences) <= 18
    assert 100 * sum(map(bool, figures)) / num_words <= 3


def rows_of(page, first):
    """Rows of a page's table whose header begins with a cell, as {name: other cells}."""
    pattern = rf"^\| {first} \|.*\n\|[-:|]+\n((?:\|.*\n)+)"
    lines = re.search(pattern, page.read_text(), flags=re.MULTILINE)[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: cells for name, *cells in rows}


def test_the_table_of_the_readme_is_the_mean_over_the_cpus():
    """No CPU is further from it than its rounding and what another seed changes."""
    table, runs = rows_of(README, "eval"), rows_of(DOCS / "quickstart.md", "CPU").values()
    assert len(runs) > 1
    first = float(table["first pass"][1])
    for n, name in enumerate(("point-estimate + 3-gram", "Bayesian + 3-gram")):
        perplexities, wers = ([float(run[m + n]) for run in runs] for m in (0, 2))
        mean, rate = sum(perplexities) / len(runs), sum(wers) / len(runs)
        assert table[name] == [f"{mean:.0f}", f"{rate:.1f}", f"{rate - first:.1f} †"]
        assert all(abs(value - mean) < 1 for value in perplexities)
        assert all(abs(value - rate) < 0.3 for value in wers)
    assert all(float(run[1]) < float(run[0]) for run in runs)


@pytest.mark.parametrize("page", DOCUMENTS, ids=name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|\$\$.*?\$\$", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_the_release_is_dated_and_typed():
    from espnet_bayeslm import __version__

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version, date = re.search(
        r"^## (\S+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    ).groups()
    assert (version, date) == (citation["version"], str(citation["date-released"]))
    assert version == __version__
    assert (ROOT / "espnet_bayeslm" / "py.typed").is_file()
    assert "espnet_bayeslm = py.typed" in (ROOT / "setup.cfg").read_text()


def test_each_page_is_in_the_contents():
    entries = "\n".join(blocks(DOCS / "index.md", "{toctree}"))
    listed = {line for line in entries.splitlines() if line and not line.startswith(":")}
    assert listed == {str(page.relative_to(DOCS))[:-3] for page in PAGES} - {"index"}


@pytest.fixture
def program(monkeypatch):
    """Return a function: name of a program of docs/ -> its module."""
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module


def test_options_are_those_of_the_tools(program):
    from espnet_bayeslm.training.task import BayesLMTask

    parsers = program("generated").tool_parsers()
    known = {tool: set(parser._option_string_actions) for tool, parser in parsers.items()}
    trainings = set(BayesLMTask.get_parser()._option_string_actions)
    known |= {tool: known.get(tool, set()) | trainings for tool in ("lm_train", "train", "search")}
    anywhere = set.union(*known.values()) | ESPNETS
    checked = 0
    for page in DOCUMENTS[:1] + PAGES:
        text = page.read_text()
        for line in re.findall(r"^ *bayeslm .*$|`bayeslm [^`]*`", text, flags=re.MULTILINE):
            tool = line.strip("` ").split()[1]
            for option in re.findall(r"(?<= )--\w+", line) if tool in known else ():
                assert option in known[tool], f"{name(page)}: {option} of {tool}"
                checked += 1
        for option in re.findall(r"`(--\w+)", text):
            assert option in anywhere or "espnet2" in text, f"{name(page)}: {option}"
    assert checked > 100


def test_equations_name_what_computes_them():
    page = DOCS / "concepts" / "equations.md"
    named = re.findall(r"`(\w+/\w+\.py)`: `([\w.]+)`", page.read_text())
    assert len(named) > 20
    for file, function in named:
        body = ast.parse((PACKAGE / file).read_text()).body
        for part in function.split("."):
            found = [node for node in body if getattr(node, "name", None) == part]
            assert found, f"{file} has no {function}"
            body = getattr(found[0], "body", [])


def test_the_page_of_kernels_lists_the_kernels():
    for path in PACKAGE.rglob("*.py"):
        if "@has_kernel" in path.read_text() and path.stem != "__init__":
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    page = (DOCS / "kernels.md").read_text()
    rows = re.search(r"\| kernel \|.*?\n\n", page, flags=re.DOTALL)[0].splitlines()[2:-1]
    assert {re.match(r"\| `(\w+)` \(", row)[1] for row in rows} == KERNELS.keys()


# Of ESPnet, dask-jobqueue, icefall, pyctcdecode and others
NAMES_OF_OTHERS = {
    "asr_inference_streaming",
    "asr_transducer_inference",
    "batchify_nll",
    "compute_am_scores",
    "compute_lm_scores",
    "create_dataset",
    "ctc_output",
    "exp_dir",
    "job_script_prologue",
    "keep_nbest_models",
    "lm_calc_perplexity",
    "prune_history",
    "sym_eos",
    "sym_sos",
    "train_tokenizer",
}


def exists(dotted):
    """True if a module has a name, such as `espnet_bayeslm.lm.BayesLSTMLM`."""
    module, _, rest = dotted.rpartition(".")
    try:
        importlib.import_module(dotted)
    except ImportError:
        return bool(module) and exists(module) and hasattr(importlib.import_module(module), rest)
    return True


def test_names_of_modules_and_functions_exist():
    pages = [README, ROOT / "CONTRIBUTING.md", *PAGES]
    text = "\n".join(page.read_text() for page in pages)
    text = re.sub(r'entry-points\."[\w.]+"', "", text)  # groups are no modules
    dotted = set(re.findall(r"\bespnet_bayeslm(?:\.[a-z]\w*)+(?:\.[A-Z][a-z]\w*)?", text))
    assert len(dotted) > 20 and [name for name in dotted if not exists(name)] == []
    files = set(re.findall(r"`((?:[a-z_]+/)+\w+\.py)`", text)) - {"bin/NAME.py", "src/decoding.py"}
    roots = ROOT, PACKAGE, ROOT / "egs2/TEMPLATE/lm"
    assert [file for file in files if not any((root / file).exists() for root in roots)] == []
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    known = {*re.findall(r"\w+", source), *NAMES_OF_OTHERS}
    known |= {path.stem for path in (PACKAGE / "configs").glob("*.yaml")}
    named = set(re.findall(r"`([a-z]+_[a-z_]+)(?:\([^`]*\))?`", text))
    assert len(named) > 100 and sorted(named - known) == []


def test_names_that_pages_import_are_public():
    """They stand on the page of public names, whose names and members have docstrings."""
    page = (DOCS / "reference" / "python.md").read_text()
    public = re.findall(r"auto\w+:: espnet_bayeslm\.([\w.]+)(?:\n   :members: (.*))?", page)

    def named(dotted):
        module, _, name = f"espnet_bayeslm.{dotted}".rpartition(".")
        return getattr(importlib.import_module(module), name)

    for dotted, members in public:
        for member in filter(None, members.split(", ")):
            assert hasattr(named(dotted), member) or member in named(dotted).__doc__, dotted
    blocks = [
        b for p in [README, *PAGES] for b in re.findall(r"```python\n(.*?)```", p.read_text(), re.S)
    ]
    imports = [n for b in blocks for n in ast.walk(ast.parse(b)) if isinstance(n, ast.ImportFrom)]
    used = {f"{n.module}.{a.name}" for n in imports for a in n.names if n.module}
    ours = {name.removeprefix("espnet_bayeslm.") for name in used if name.startswith("espnet_b")}
    known = {id(named(dotted)) for dotted, _ in public}
    assert len(ours) > 10 and [name for name in ours if id(named(name)) not in known] == []


def test_errors_of_the_troubleshooting_are_in_the_program():
    # a message may be cut into several strings
    source = " ".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in PACKAGE.rglob("*.py")
    )
    page = (DOCS / "troubleshooting.md").read_text()
    entries = re.findall(r"^### `(.*)`\n\n(.*)\n(.*)$", page, flags=re.MULTILINE)
    assert len(entries) == page.count("\n### ") > 50
    for message, cause, fix in entries:
        assert cause.endswith("\\") and fix.startswith("**Fix:** "), message
        for fragment in message.split("..."):
            assert fragment.strip() in source, message


def test_the_page_of_random_weights():
    from espnet_bayeslm.lm import BayesESPnetLM, BayesTransformerLM, lstm, transformer
    from espnet_bayeslm.lm.espnet import BACKBONES

    page = DOCS / "concepts" / "random_weights.md"
    (block,) = blocks(page, "yaml")
    config = yaml.safe_load(block)
    assert config["lm"] == "bayes_transformer"
    lm = BayesTransformerLM(50, **config["lm_conf"])
    assert lm.locations() == ["ffn@1", "ffn@2", "attention@6"]
    positions = [*lstm.POSITIONS, *transformer.POSITIONS]
    for backbone, conf in (
        ("seq_rnn", {"rnn_type": "lstm"}),
        ("seq_rnn", {"rnn_type": "gru"}),
        ("transformer", {"att_unit": 4, "head": 1}),
    ):
        lm = BayesESPnetLM(10, backbone=backbone, backbone_conf={"unit": 4, **conf})
        positions += BACKBONES[backbone].positions(lm)
    assert all(f"`{position}`" in page.read_text() for position in positions)


def test_figures_show_their_tables(program):
    figure = program("figure")
    bars = [bar for bars in figure.read_bars() for bar in bars if bar]
    assert len(bars) == 10
    assert all(bar.low <= bar.wer <= bar.high for bar in bars)
    shown = sorted(re.findall(r">([-+−]\d\.\d\d)<", figure.OUTPUT.read_text()))
    assert shown == sorted(f"{value:+.2f}" for bar in bars for value in bar[:2])
    gains = figure.read_gains()
    assert len(gains) == 10 and all(gain.words > 0 for gain in gains)
    shown = [re.search(r"\(([\d,]+)\)", gain.name)[1] for gain in gains for _ in (0, 1)]
    for gain in gains:
        if gain.mixture is None:
            shown.remove(re.search(r"\(([\d,]+)\)", gain.name)[1])
    drawn = re.findall(r">(\d+,\d+)<", figure.GAIN_OUTPUT.read_text())
    assert sorted(drawn) == sorted(shown)
    names, speeds = figure.read_speeds()
    assert len(names) == 4 and len(speeds) == 5
    drawn = figure.SPEED_OUTPUT.read_text()
    assert all(f">{name}<" in drawn for name in (*names, *speeds))
    changes = figure.read_changes()
    drawn = figure.ADAPTERS_OUTPUT.read_text()
    assert len(changes) == 2 and all(f">{text}: perplexity" in drawn for text in changes)
    lora, ivon = (
        json.loads(figure.ADAPTERS.read_text())["books"]["systems"][name]["250"]["test"]
        for name in ("lora_r64", "ivon_r64")
    )
    expected = [100 * (a - b) / b for a, b in zip(ivon, lora, strict=True)]
    assert changes["books"]["IVON"][250] == pytest.approx(expected)
    assert all(f">{label}<" in drawn for label in changes["books"])
    adapted, names = figure.read_adapted(), figure.read_names()
    assert len(adapted) == 4 and all(low < change < high for change, low, high in adapted.values())
    assert [len(by_size) for by_size in names.values()] == [4, 4, 4]
    drawn = figure.GALLERY_OUTPUT.read_text()
    assert all(f">{rate:.1f}<" in drawn for rate in figure.read_searches().values())
    assert all(f">{name}<" in drawn for name in (*adapted, *names))


def test_generated_parts_name_every_option_and_key(program):
    from espnet_bayeslm.bayes.base_kinds import KINDS

    generated = program("generated")
    tools = generated.tools()
    for tool, parser in generated.tool_parsers().items():
        assert f"## `bayeslm {tool}`" in tools
        for action in parser._actions:
            named = ", ".join(action.option_strings) or action.dest
            hidden = action.dest == "help" or action.help == argparse.SUPPRESS
            assert hidden or f"| `{named}` |" in tools
    keys = generated.configuration()
    for key in ("uncertainty", "prior_variance", "kl_weight", "posterior_lr", "beta2", "backbone"):
        assert f"| `{key}` |" in keys
    sections = generated.kinds().split("### ")[1:]
    found = {
        part.split("`")[1]: set(re.findall(r"^\| `(\w+)` \|", part, re.M)) for part in sections
    }
    fields = {name: {f.name for f in dataclasses.fields(kind)} for name, kind in KINDS.items()}
    assert found == {name: options for name, options in fields.items() if options}


@pytest.mark.slow
def test_pages_are_built_without_warnings(tmp_path):
    pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install -e '.[docs]'")
    pytest.importorskip("myst_parser", reason="MyST is not installed: pip install -e '.[docs]'")
    pytest.importorskip("furo", reason="furo is not installed: pip install -e '.[docs]'")
    import sys

    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    run(sys.executable, ROOT, *words)
    tools = (tmp_path / "reference" / "tools.html").read_text()
    assert "--max_oov_rate" in tools and "bayeslm rescore" in tools
    assert "TrainedLM" in (tmp_path / "reference" / "python.html").read_text()


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs_cell_by_cell_and_holds_no_outputs(path, capsys):
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert cells and not any(cell["outputs"] for cell in cells)
    names: dict = {}
    for number, cell in enumerate(cells, 1):
        exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), names)
    shown = capsys.readouterr().out
    right, wrong = (float(x) for x in shown.splitlines()[0].split())
    assert wrong < right < 0
    # the second best of the recogniser, which the LM finds likely
    assert shown.splitlines()[-1] == "utt1 ann likes tea"
