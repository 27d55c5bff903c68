"""How Sphinx builds these pages: `make docs`."""

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
# the browser's own: nothing is fetched
html_math_renderer = "mathml"


def visit_math(self, node):
    """Write an equation as MathML."""
    display = "block" if isinstance(node, math_block) else "inline"
    self.body.append(latex2mathml.converter.convert(node.astext(), display=display))
    raise SkipNode


def setup(app):
    """Fill in what is made of parsers and docstrings."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("source-read", generated.fill)
