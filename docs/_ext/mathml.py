"""Formulas as MathML, which browsers draw by themselves: pages need no script and no network."""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, pick_math_environment
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

_LOGGER = getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_mathml(node, node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    code = node.astext()
    environment = pick_math_environment(code)
    whole = code if environment.startswith("equation") else rf"\begin{{{environment}}}{code}\end{{{environment}}}"
    translator.body.append(f'<div class="math">{_mathml(node, whole, as_block=True)}</div>')
    raise nodes.SkipNode


def _mathml(node: nodes.Node, code: str, as_block: bool = False) -> str:
    try:
        return str(tex2mathml(code, as_block))
    except MathError as error:
        _LOGGER.warning("formula %s: %s", code, error, location=node)
        return ""
