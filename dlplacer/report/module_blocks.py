"""The blocks of a model: the parts of its module tree that a picture can show one by one."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from dlplacer.core.plan import Plan

_STORAGE = frozenset({"parameter", "buffer", "input", "constant", "tangent", "gradient", "mutation"})
"""Kinds of ops that only hold a tensor; even so, they may have a small measured time."""
_SHORT = {
    "convolution": "conv",
    "max_pool2d_with_indices": "maxpool",
    "native_batch_norm_legit_functional": "bn",
    "native_batch_norm": "bn",
    "threshold": "relu",
    "native_layer_norm": "ln",
}

Path = tuple[str, ...]


def blocks_of(plan: Plan) -> Mapping[str, str]:
    """Op id → path of its block, or ``""`` without a module; blocks come in the order in which their forward ops run.

    Blocks are the top-level modules (``Mixed_5b``). A module that holds more than half of all ops is replaced by the
    modules below it (``encoder.layer.0``).
    """
    paths: dict[str, Path] = {op.id: tuple(op.module.split(".")) if op.module else () for op in plan.graph.ops}
    block = outermost(paths.values(), len(paths) / 2)
    blocks = {op_id: block(path) for op_id, path in paths.items()}
    moment_s = _moments(plan, blocks)
    in_order = sorted(blocks, key=lambda op_id: moment_s[blocks[op_id]])
    return {op_id: ".".join(blocks[op_id]) for op_id in in_order}


def outermost(paths: Iterable[Path], most: float) -> Callable[[Path], Path]:
    """Path → its outermost enclosing module that holds at most `most` of the paths, or has no modules below it."""
    held = Counter(path[:length] for path in paths for length in range(len(path) + 1))
    below = {path[:-1] for path in held if path}
    apart = {path for path, count in held.items() if count > most and path in below} | {()}
    return lambda path: next((path[:length] for length in range(len(path) + 1) if path[:length] not in apart), path)


def short_names(blocks: Iterable[str]) -> dict[str, str]:
    """Block → the shortest unique end of its path that begins with no number, in the order of `blocks`.

    ``encoder.layer.0`` becomes ``layer.0``, or keeps its full name if there is a ``decoder.layer.0``.
    """
    distinct = [block for block in dict.fromkeys(blocks) if block]
    shared = Counter(end for block in distinct for end in _ends(block))
    fitting = {block: [end for end in _ends(block) if shared[end] == 1 and not end[0].isdigit()] for block in distinct}
    return {block: min(fitting[block], key=len, default=block) for block in distinct}


def _ends(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[begin:]) for begin in range(len(parts))]


def _moments(plan: Plan, blocks: Mapping[str, Path]) -> Mapping[Path, float]:
    """Block → the mean start of its forward ops, weighted by duration; infinite for a block without forward ops."""
    weight: dict[Path, float] = defaultdict(float)
    moment: dict[Path, float] = defaultdict(float)
    for entry in plan.ops:
        op = plan.graph.op(entry.op)
        if op.phase in (None, "forward") and op.kind not in _STORAGE:
            weight[blocks[entry.op]] += entry.end_s - entry.start_s
            moment[blocks[entry.op]] += (entry.end_s - entry.start_s) * entry.start_s
    return {block: moment[block] / weight[block] if weight[block] else math.inf for block in set(blocks.values())}


def short_kind(kind: str) -> str:
    """``aten.convolution`` → ``conv``: the kind without its namespace, abbreviated if that is usual."""
    name = kind.rsplit(".", 1)[-1].strip("_")
    forward = name.removesuffix("_backward")
    return _SHORT.get(forward, forward) + (" bwd" if forward != name else "")
