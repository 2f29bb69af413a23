"""The cuts that an op allows, by axis."""

import torch
from torch import fx

from dlplacer.frontend.torch.nodes import is_folded, is_random
from dlplacer.frontend.torch.splitting import dense, elementwise, spatial
from dlplacer.frontend.torch.splitting.pattern import Pattern

_RULES = {**spatial.RULES, **dense.RULES, **elementwise.RULES}


def patterns_of(node: fx.Node) -> dict[str, Pattern]:
    """Axis → how the op is cut along it; empty for an op that cannot be cut.

    ``batch`` is dimension 0 and ``channel`` dimension 1 of the data, ``dim2`` the next; ``inner`` is what a matrix
    product sums over. A weight gradient cut along ``batch`` is a sum of parts, one cut along ``channel`` is exact. An
    op that draws random numbers, overwrites an argument, or mixes elements of different parts is never cut.
    """
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return {}
    rule = _RULES.get(node.target)
    if is_folded(node) or node.target._schema.is_mutable or is_random(node):
        return {}
    if rule is None and (torch.Tag.pointwise in node.target.tags or node.target in elementwise.POINTWISE):
        rule = elementwise.pointwise
    return {} if rule is None else {axis: pattern for axis, pattern in rule(node) if pattern.extent(node) > 1}
