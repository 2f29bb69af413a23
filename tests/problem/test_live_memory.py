"""Memory over time, in ticks and in seconds, against levels reckoned by hand."""

from dlplacer.check.memory import used_bytes
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Transfer, TransferSegment
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place
from dlplacer.problem.live_memory import may_bind, peaks
from dlplacer.problem.problem import Problem, build_problem


def problem(capacity: int | None = 100) -> Problem:
    graph = OpGraph(
        (
            Op("a", "test", 2, weight_bytes=1, output_bytes=10, workspace_bytes=4),
            Op("b", "test", 3, output_bytes=20),
            Op("c", "test", 1, state_bytes=2),
        ),
        (Edge("a", "b", 8, tensor="a-b"), Edge("a", "c", 8, tensor="a-c"), Edge("b", "c", 5, tensor="b-c")),
    )
    machine = Topology((Device("x", memory_bytes=capacity), Device("y")), (), (Link("x", "y", 4),))
    return build_problem(graph, machine, Options())


def _sent(source: str, target: str, size: int, stops: list[tuple[str, str, float, float]]) -> Transfer:
    segments = tuple(TransferSegment(((one, other),), begin, end) for one, other, begin, end in stops)
    return Transfer({"a": "a-b", "b": "b-c"}[source], source, target, size, segments)


def test_on_one_device_outputs_last_until_their_last_reader() -> None:
    # Residents 3. 0–2: output 10 + workspace 4; 2–5: outputs 10 + 20; 5–6: the same, c reads both.
    assert peaks(problem(), [0, 0, 0], [0, 2, 5], [2, 5, 6]) == [33, 0]


def test_copies_live_on_the_target_and_originals_until_they_are_sent() -> None:
    # b on y: a's tensor travels 2–4, b 4–7, its output travels 7–8 (5 bytes), c 8–9 on x reads it and a.
    sent = [_sent("a", "y", 8, [("x", "y", 2, 4)]), _sent("b", "x", 5, [("y", "x", 7, 8)])]
    # x: 3 + 10 + 5 from 7 on; y: copy of 8 from 2 to 7, output of 20 from 4 to 8.
    assert peaks(problem(), [0, 1, 0], [0, 4, 8], [2, 7, 9], sent) == [3 + 10 + 5, 8 + 20]


def test_relays_hold_what_passes() -> None:
    sent = [_sent("a", "x", 8, [("x", "y", 2, 4), ("y", "x", 4, 6)])]
    assert peaks(problem(), [0, 0, 0], [0, 6, 9], [2, 9, 10], sent)[1] == 8


def test_memory_cannot_bind_where_there_is_room_for_everything() -> None:
    # 37 bytes of footprints and twice 21 of tensors.
    assert may_bind(problem(78))
    assert not may_bind(problem(79))
    assert not may_bind(problem(None))


def test_the_reported_peak_is_that_of_the_specification() -> None:
    given = problem(31)
    plan = place(given.graph, given.topology, workers=1).plan
    assert {name: memory.peak_bytes for name, memory in plan.memory.items()} == used_bytes(plan)
    assert plan.memory["x"].peak_bytes <= 31
    assert plan.status == "optimal"
