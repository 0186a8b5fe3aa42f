"""The site: python -m sphinx -W docs docs/_build/html.

Nothing is fetched, neither when it is built nor when it is read.
"""

import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import public_names  # noqa: E402

import p2pjax  # noqa: E402

project = "p2pjax"
author = "the p2pjax authors"
copyright = "2026, the p2pjax authors"
release = version = p2pjax.__version__

extensions = [
    "mathml",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # outputs are stored
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "p2pjax"
html_static_path = ["_static"]
html_css_files = ["wide_tables.css"]

public_names.write_pages(HERE / "api")
(HERE / "notebooks").mkdir(exist_ok=True)
for notebook in (HERE.parent / "colab").glob("*.ipynb"):
    shutil.copy2(notebook, HERE / "notebooks")  # with its time: what is read stays read
for page in public_names.pages():  # as users find them: p2pjax.split is a name only
    if page not in public_names.TITLES:
        room = p2pjax
        for part in page.split("."):
            room = getattr(room, part)
        sys.modules.setdefault(f"p2pjax.{page}", room)


REPOSITORY = "https://github.com/p2pjax/p2pjax/blob/main/"


def link_to_repository(app, docname, source):
    """Links that leave docs/, which work in the repository, go there from the site.

    Those to notebooks go to their pages.
    """
    up = "../" * (docname.count("/") + 1)
    notebook = re.compile(rf"\]\({re.escape(up)}colab/(\w+\.ipynb)\)")
    source[0] = notebook.sub(rf"]({up[3:]}notebooks/\1)", source[0])
    source[0] = source[0].replace(f"]({up}", f"]({REPOSITORY}")


def skip_fields(app, what, name, thing, skip, options):
    return skip or type(thing).__name__ == "_tuplegetter"


def setup(app):
    app.connect("source-read", link_to_repository)
    app.connect("autodoc-skip-member", skip_fields)
