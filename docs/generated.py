"""What pages get when they are built: options, configuration keys, the recipes' results.

A page asks for it by `<!-- generated: NAME -->`, NAME a function of `PARTS`, or by
`<!-- include: FILE -->`, a file of the repository.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

HERE = Path(__file__).parent
ROOT = HERE.parent
GENERATED = re.compile(r"<!-- generated: (\w+) -->")
INCLUDED = re.compile(r"<!-- include: (\S+) -->")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")

# Whose keyword arguments a configuration sets: the key, its classes.
CONFIGURED = {
    "lm_conf": (
        "espnet_bayeslm.lm:BayesLSTMLM",
        "espnet_bayeslm.lm:BayesTransformerLM",
        "espnet_bayeslm.lm:BayesESPnetLM",
    ),
    "model_conf": ("espnet_bayeslm.training.model:BayesLanguageModel",),
    "optim_conf": ("espnet_bayeslm.training.ivon:IVON",),
}
NAMES = {"BayesLSTMLM": "bayes_lstm", "BayesTransformerLM": "bayes_transformer"}
NAMES |= {"BayesESPnetLM": "bayes_espnet", "BayesLanguageModel": "bayes_lm", "IVON": "ivon"}


def code_cell(text: Any) -> str:
    """Program text in a table's cell."""
    text = " ".join(str(text).split()).replace("|", r"\|")
    return f"`{text}`" if text else ""


def cell(text: str) -> str:
    """Text of a table's cell: of Markdown only what stands between backticks is read."""
    parts = re.split(r"`([^`]*)`", " ".join(text.split()))
    plain = [re.sub(r"([|<>*_\[\]$])", r"\\\1", part) for part in parts[::2]]
    program = [*map(code_cell, parts[1::2]), ""]
    return "".join(part for pair in zip(plain, program, strict=True) for part in pair)


def value_of(value: Any) -> str:
    """A value as yaml and command lines have it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_of, value))}]"
    named = value is None or isinstance(value, bool)
    return {None: "null", True: "true", False: "false"}[value] if named else str(value)


# Tools


def default_of(action: argparse.Action) -> str:
    """What an option is when it is not given, as a cell."""
    if action.required:
        return "*required*"
    value = action.default
    if value is None or value in ([], argparse.SUPPRESS, ""):
        return ""
    return code_cell(value_of(value))


def rows_of(actions: List[argparse.Action]) -> Iterator[str]:
    """A table's row of each option but --help."""
    for action in actions:
        if action.help == argparse.SUPPRESS or action.dest == "help":
            continue
        name = ", ".join(action.option_strings) or action.metavar or action.dest
        help_text = (action.help or "").replace("%(default)s", str(action.default))
        help_text = help_text.replace("%(names)s", str(getattr(action, "names", "")))
        if action.choices:
            help_text += f" ({', '.join(map(str, action.choices))})"
        yield f"| {code_cell(name)} | {default_of(action)} | {cell(help_text.replace('%%', '%'))} |"


def tool_parsers() -> Dict[str, argparse.ArgumentParser]:
    """Parsers of the tools but `lm_train`, whose options are ESPnet's."""
    from espnet_bayeslm.bin.bayeslm import TOOLS

    modules = {name: importlib.import_module(f"espnet_bayeslm.bin.{name}") for name in TOOLS}
    return {name: module.get_parser() for name, module in modules.items() if name != "lm_train"}


def tools() -> str:
    """A section for each tool, with a table for each group of its options."""
    lines = []
    for name, parser in tool_parsers().items():
        lines += [f"## `bayeslm {name}`", "", cell(parser.description or ""), ""]
        for group in parser._action_groups:
            rows = list(rows_of(group._group_actions))
            if rows:
                title = group.title if group.title not in ("options", "optional arguments") else ""
                lines += [f"**{cell(title)}**", ""] if title else []
                lines += ["| option | default | |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


# Configuration


def arguments(docstring: str) -> Dict[str, str]:
    """Descriptions below `Args:` of a docstring, by the arguments' names."""
    found: Dict[str, str] = {}
    below = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", inspect.cleandoc(docstring), re.MULTILINE)
    name = ""
    for line in below[1].splitlines() if below else ():
        start = re.match(r" {4}(\w+)(?: \(.*?\))?: (.*)", line)
        if start:
            name, found[start[1]] = start[1], start[2]
        elif name:
            found[name] += f" {line.strip()}"
    return found


def keys_of(cls: type) -> Iterator[str]:
    """A table's row of each key that a configuration can set for a class."""
    texts = arguments(cls.__doc__ or "")
    for name, parameter in inspect.signature(cls).parameters.items():
        # what ESPnet gives, and no configuration sets
        if name not in texts or name in ("lm", "vocab_size", "params"):
            continue
        value = parameter.default
        default = "*required*" if value is parameter.empty else code_cell(value_of(value))
        yield f"| {code_cell(name)} | {default} | {cell(texts[name])} |"


def configuration() -> str:
    """A section for each class that a configuration sets keyword arguments of."""
    lines = []
    for key, classes in CONFIGURED.items():
        for path in classes:
            module, _, name = path.partition(":")
            cls = getattr(importlib.import_module(module), name)
            known = f" of `{NAMES[name]}`" if name in NAMES else ""
            first = (cls.__doc__ or "").strip().splitlines()[0]
            lines += [f"## `{key}`{known}", "", first, "", "| key | default | |", "|---|---|---|"]
            lines += [*keys_of(cls), ""]
    return "\n".join(lines)


def kinds() -> str:
    """A section for each kind of uncertainty that has options, with a row for each option."""
    from espnet_bayeslm.bayes.base_kinds import KINDS
    from espnet_bayeslm.utils.options import described_fields

    lines = []
    for name, kind in KINDS.items():
        fields = described_fields(kind).values()
        if fields:
            first = (kind.__doc__ or "").strip().splitlines()[0]
            lines += [f"### `{name}`", "", first, "", "| option | default | |", "|---|---|---|"]
        for field in fields:
            default = "" if field.default is None else code_cell(value_of(field.default))
            lines.append(
                f"| {code_cell(field.name)} | {default} | {cell(field.metadata['help'])} |"
            )
        lines.append("")
    return "\n".join(lines)


def shipped_configurations() -> str:
    """A table of the configurations that `--config NAME` finds."""
    from espnet_bayeslm.configs import first_sentence, shipped

    rows = [f"| `{name}` | {cell(first_sentence(path))} |" for name, path in shipped().items()]
    return "\n".join(["| name | |", "|---|---|", *rows])


PARTS: Dict[str, Callable[[], str]] = {
    "tools": tools,
    "configuration": configuration,
    "kinds": kinds,
    "shipped_configurations": shipped_configurations,
}


# Links


def pages_of_files() -> Dict[Path, Path]:
    """Pages that hold files of the repository, by the files."""
    found = {}
    for page in sorted(HERE.glob("**/*.md")):
        for name in INCLUDED.findall(page.read_text(encoding="utf-8")):
            found[ROOT / name] = page
    return found


def relinked(text: str, folder: Path, page: Path, pages: Dict[Path, Path]) -> str:
    """Text whose links lead from a page to other pages; other files are only named.

    Args:
        text: Markdown.
        folder: The folder that its links start from.
        page: The page that it stands on.
        pages: Pages by the files that they hold.
    """

    def link(match: re.Match) -> str:
        image, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        path = Path(os.path.normpath(folder / target))
        if "://" in target or not path.exists():
            return match[0]
        path = pages.get(path, path)
        if image or HERE in path.parents:
            return f"{image}[{label}]({os.path.relpath(path, page.parent)}{anchor})"
        return f"{label} (`{path.relative_to(ROOT)}`)"

    return LINK.sub(link, text)


def fill(app: Any, docname: str, source: List[str]) -> None:
    """Put in the generated and included parts of a page (Sphinx's event `source-read`)."""
    page, pages = HERE / f"{docname}.md", pages_of_files()

    def include(match: re.Match) -> str:
        file = ROOT / match[1]
        text = relinked(file.read_text(encoding="utf-8"), file.parent, page, pages)
        # the page has a title of its own
        return re.sub(r"\A# .*\n+", "", text)

    text = GENERATED.sub(
        lambda match: PARTS[match[1]](), relinked(source[0], page.parent, page, pages)
    )
    source[0] = INCLUDED.sub(include, text)
