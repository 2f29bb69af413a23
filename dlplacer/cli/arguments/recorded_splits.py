"""The splits that a file records: what ``--splits-of`` takes over."""

from pathlib import Path
from typing import TYPE_CHECKING

from dlplacer.core.errors import InputError

if TYPE_CHECKING:
    from dlplacer.frontend.torch.splitting.names import OpSplit


def splits_in(path: Path) -> "list[OpSplit]":
    """The splits that a graph file, or the graph of a plan file, records.

    Raises
    ------
    InputError
        If there are none.
    """
    from dlplacer.files.load import load_graph, load_plan
    from dlplacer.files.text import read_json
    from dlplacer.frontend.torch.splitting.names import parse_splits

    value = read_json(path)
    of_plan = isinstance(value, dict) and str(value.get("format", "")).startswith("dlplacer.plan")
    graph = load_plan(str(path)).graph if of_plan else load_graph(str(path))
    splits = list(parse_splits([str(name) for name in (graph.capture or {}).get("rewrites", ())]))
    if not splits:
        raise InputError(f"{str(path)!r} records no splits; write it with --split")
    return splits
