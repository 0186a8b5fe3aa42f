"""Formulas as MathML, made at build: nothing is fetched when they are read."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

logger = logging.getLogger(__name__)


def mathml(node, display: str) -> str:
    """MathML of a formula; a command that is unknown is a warning of the build."""
    formula = node.astext().strip()
    made = convert(formula, display=display)
    if "\\" in made:
        logger.warning(
            f"a command in this formula has no MathML: {formula}", location=node
        )
    return made


def show_inline(self, node):
    made = mathml(node, "inline")
    self.body.append(f'<span class="math notranslate nohighlight">{made}</span>')
    raise nodes.SkipNode


def show_block(self, node):
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})</span>')
    self.body.append(f"{mathml(node, 'block')}</div>\n")
    raise nodes.SkipNode


def setup(app):
    """Name the renderer `mathml`, for `html_math_renderer`."""
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(show_inline, None),
        block_renderers=(show_block, None),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
