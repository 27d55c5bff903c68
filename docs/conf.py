"""How Sphinx builds these pages: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generated  # noqa: E402

from espnet_bayeslm import __version__  # noqa: E402

project, author = "espnet_bayeslm", "the authors of espnet_bayeslm"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["amsmath", "dollarmath"]
# headings can be linked as PAGE.md#heading
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
html_theme = "furo"
html_title = "espnet_bayeslm"
html_copy_source = False


def setup(app):
    """Fill in what is made of parsers and docstrings."""
    app.connect("source-read", generated.fill)
