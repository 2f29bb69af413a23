"""Who is busy for how long with tensors that cross processes."""

from types import SimpleNamespace
from typing import Any

import pytest
from report.plot.plans import diamond

from dlplacer.measure.fidelity.slot_copies import slot_copies


def _executable(outputs: tuple[str, ...] = (), gradients: tuple[tuple[str, str], ...] = ()) -> Any:
    """What the copies ask of a step: outputs, gradients as (tensor, op at which it ends), and who makes a tensor."""
    producer = {edge.tensor: edge.source for edge in diamond().graph.edges}
    codes = [SimpleNamespace(op=op, reads=(tensor,)) for tensor, op in gradients]
    return SimpleNamespace(outputs=outputs, producer=producer, of_role=lambda role: codes if role == "gradient" else [])


# x (4 B) goes from a to b, whose y reads it; y (2 B) goes to a, whose w reads it.
def test_the_writer_pays_for_what_is_read_elsewhere() -> None:
    assert slot_copies(diamond(), _executable(), "a", (), 1.0) == {"x": 4.0, "y": 2.0}


def test_what_all_processes_see_is_not_copied() -> None:
    assert slot_copies(diamond(), _executable(), "a", ("x",), 1.0) == {"y": 2.0}


@pytest.mark.parametrize(("caller", "more"), [("a", 0.0), ("b", 4.0)])
def test_other_devices_write_what_the_caller_gets(caller: str, more: float) -> None:
    tensor = next(edge.tensor for edge in diamond().graph.edges if (edge.source, edge.target) == ("x", "z"))
    sent = slot_copies(diamond(), _executable(), caller, ("x", "y"), 1.0)
    assert sent == {}
    found = slot_copies(diamond(), _executable(outputs=(tensor,)), caller, ("x", "y"), 1.0)
    assert found.get("x", 0.0) == more
    found = slot_copies(diamond(), _executable(gradients=((tensor, "z"),)), caller, ("x", "y"), 1.0)
    assert found.get("x", 0.0) == more
