"""Programs with streams and events, by hand: what the lowering leaves out, and what is found in broken ones."""

import pytest

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.runtime.program.checks import races, require_no_races
from dlplacer.runtime.program.program import (
    Action,
    Compute,
    Copy,
    DeviceMemorySpace,
    Free,
    Hold,
    Program,
    RecordEvent,
    Recv,
    Send,
    Sync,
    Wait,
    lower,
    with_streams,
)

GPU0, GPU1, CORE = (
    DeviceMemorySpace("cuda:0", has_streams=True),
    DeviceMemorySpace("cuda:1", has_streams=True),
    DeviceMemorySpace(),
)
TWO = {"gpu0": GPU0, "gpu1": GPU1}

# a feeds b with x; two GPUs.
PAIR = OpGraph((Op("a", "test"), Op("b", "test")), (Edge("a", "b", 8, 0, "x"),))
COPIED = """\
DEVICE gpu0
  COMPUTE a
  RECORD gpu0.1 ON compute
  WAIT gpu0.1 ON copy:gpu1
  COPY x -> gpu1 ON copy:gpu1
  RECORD gpu0.2 ON copy:gpu1
  HOLD x FOR copy:gpu1
  SEND x -> gpu1
  FREE x
DEVICE gpu1
  RECV x <- gpu0
  WAIT gpu0.2 ON compute
  HOLD x FOR compute
  COMPUTE b
  FREE x
"""


def program_of(text: str) -> Program:
    """The program of a text without quoted names."""
    kinds = {kind.form.split()[0]: kind for kind in (Compute, Copy, Free, Hold, RecordEvent, Recv, Send, Sync, Wait)}
    actions: dict[str, tuple[Action, ...]] = {}
    for word, *rest in map(str.split, text.splitlines()):
        if word == "DEVICE":
            actions[device := rest[0]] = ()
        else:
            actions[device] += (kinds[word](*rest[::2]),)
    return Program(actions)


def lines(program: Program, device: str) -> list[str]:
    return list(map(str, program.actions[device]))


def without(text: str, line: str) -> Program:
    """The program of a text without one of its lines."""
    assert text.count(f"  {line}\n") == 1
    return program_of(text.replace(f"  {line}\n", ""))


def test_text_of_a_copy_between_two_gpus() -> None:
    (program,) = with_streams([lower(PAIR, {"gpu0": ["a"], "gpu1": ["b"]})], TWO)
    assert str(program) == COPIED


def test_programs_of_cores_stay_as_they_are() -> None:
    program = lower(PAIR, {"gpu0": ["a"], "gpu1": ["b"]})
    assert with_streams([program], dict.fromkeys(TWO, CORE)) == [program]


def test_an_edge_without_a_tensor_carries_an_order_and_no_copy() -> None:
    (program,) = with_streams([lower(PAIR, {"gpu0": ["a"], "gpu1": ["b"]})], TWO, empty=["x"])
    assert lines(program, "gpu0") == ["COMPUTE a", "RECORD gpu0.2 ON compute", "SEND x -> gpu1", "FREE x"]
    assert lines(program, "gpu1") == ["RECV x <- gpu0", "WAIT gpu0.2 ON compute", "COMPUTE b", "FREE x"]
    require_no_races(PAIR, [program], TWO, ["x"])


@pytest.mark.parametrize(
    ("away", "expected"),
    [
        (DeviceMemorySpace(away=True), ["COPY x -> gpu1 ON copy:gpu1", "RECORD gpu0.2 ON copy:gpu1", "SYNC gpu0.2"]),
        (DeviceMemorySpace("", away=True), []),
    ],
    ids=["through the host", "from GPU to GPU"],
)
def test_what_leaves_the_process_is_handed_to_its_transport(away: DeviceMemorySpace, expected: list[str]) -> None:
    spaces = {"gpu0": GPU0, "gpu1": away}
    (program,) = with_streams([lower(PAIR, {"gpu0": ["a"], "gpu1": ["b"]})], spaces)
    assert lines(program, "gpu0")[-2 - len(expected) : -2] == expected
    assert lines(program, "gpu0")[-2:] == ["SEND x -> gpu1", "FREE x"]
    assert lines(program, "gpu1") == ["RECV x <- gpu0", "COMPUTE b", "FREE x"]
    require_no_races(PAIR, [program], spaces)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("WAIT gpu0.1 ON copy:gpu1", "gpu0, line 4: COPY x -> gpu1 ON copy:gpu1 .* does not wait for gpu0, line 2"),
        ("WAIT gpu0.2 ON compute", "gpu1, line 13: COMPUTE b uses tensor 'x', and does not wait for gpu0, line 5"),
        ("HOLD x FOR copy:gpu1", "gpu0, line 8: FREE x gives back memory that gpu0, line 5: COPY x -> gpu1"),
        ("HOLD x FOR compute", "gpu1, line 14: FREE x gives back memory that gpu0, line 5: COPY x"),
        ("COPY x -> gpu1 ON copy:gpu1", "gpu0, line 7: SEND x -> gpu1: the tensor is in cuda:0, and there is no COPY"),
    ],
)
def test_a_race_is_named_with_devices_and_lines(line: str, named: str) -> None:
    with pytest.raises(InternalError, match=f"the program has a race: {named}"):
        require_no_races(PAIR, [without(COPIED, line)], TWO)


def test_what_a_transport_takes_from_the_host_must_be_there() -> None:
    spaces = {"gpu0": GPU0, "gpu1": DeviceMemorySpace(away=True)}
    (program,) = with_streams([lower(PAIR, {"gpu0": ["a"], "gpu1": ["b"]})], spaces)
    found = races(PAIR, [without(str(program), "SYNC gpu0.2")], spaces)
    assert found[0].startswith("gpu0, line 7: SEND x -> gpu1: the thread has not waited for gpu0, line 5: COPY x")


def test_a_tensor_that_is_copied_must_be_sent() -> None:
    text = COPIED.replace("  FREE x\nDEVICE", "  COPY x -> gpu1 ON copy:gpu1\n  FREE x\nDEVICE")
    with pytest.raises(InternalError, match=r"gpu0, line 9: COPY x .*: the tensor is copied but never sent"):
        races(PAIR, [program_of(text)])
