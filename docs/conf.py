"""How Sphinx builds these pages: `make docs`."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generated  # noqa: E402
import latex2mathml.converter  # noqa: E402
from docutils.nodes import SkipNode, math_block  # noqa: E402

from espnet_bayeslm import __version__  # noqa: E402

project, author = "espnet_bayeslm", "the authors of espnet_bayeslm"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["amsmath", "dollarmath"]
# headings can be linked as PAGE.md#heading
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
html_theme = "furo"
html_title = "espnet_bayeslm"
html_copy_source = False
html_show_copyright = False
html_static_path, html_css_files = ["static"], ["page.css"]
# -- is no dash
smartquotes = False
# `name` in a docstring
default_role = "code"
# the browser's own: nothing is fetched
html_math_renderer = "mathml"


# Browsers draw only letters that are script letters themselves
SCRIPT = dict(zip("DLNV", "\U0001d49f\u2112\U0001d4a9\U0001d4b1", strict=True))


def visit_math(self, node):
    """Write an equation as MathML."""
    display = "block" if isinstance(node, math_block) else "inline"
    text = re.sub(r"\\mathcal ?\{?([DLNV])\}?", lambda match: SCRIPT[match[1]], node.astext())
    self.body.append(latex2mathml.converter.convert(text, display=display))
    raise SkipNode


def keep_options(app, pagename, templatename, context, doctree):
    """Keep an option of a command in one piece: a line breaks before its hyphens, not after."""
    commands = re.compile(r'(?s)<div class="highlight-(?:bash|console).*?</div>')
    option = re.compile(r"(?<![\w-])--\w+")
    context["body"] = commands.sub(
        lambda block: option.sub(r'<span class="option">\g<0></span>', block[0]),
        context.get("body", ""),
    )


def setup(app):
    """Fill in what is made of parsers and docstrings."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("source-read", generated.fill)
    app.connect("html-page-context", keep_options)
