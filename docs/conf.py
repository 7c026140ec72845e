"""How the site is built: Sphinx, furo, MyST. Nothing is fetched; see generate.py for made pages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import symprompt

project = "symprompt"
copyright = "the symprompt maintainers, Apache-2.0"
version = release = symprompt.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generate"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"symprompt {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
smartquotes = False
highlight_language = "none"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
