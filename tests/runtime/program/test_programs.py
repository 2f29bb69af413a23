"""Programs: their text, how orders are lowered to them, and what the dry run finds in broken ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.random_graphs import random_graph, random_order

from dlplacer.core.errors import InputError, InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.runtime.program.actions import (
    Action,
    Compute,
    Copy,
    Free,
    Hold,
    Record,
    Recv,
    Send,
    Sync,
    Wait,
    parse_action,
)
from dlplacer.runtime.program.dry_run import dry_run
from dlplacer.runtime.program.lower import lower, lower_stages
from dlplacer.runtime.program.program import Program

# a feeds b and c with tensor x; b and c feed d. Two devices: a and c here, b and d there.
DIAMOND = OpGraph(
    (Op("a", "test"), Op("b", "test"), Op("c", "test"), Op("d", "test", phase="backward")),
    (
        Edge("a", "b", 8, 0, "x"),
        Edge("a", "c", 8, 0, "x"),
        Edge("b", "d", 4, 0, "y"),
        Edge("c", "d", 4, 0, "z"),
        Edge("a", "d", 8, 0, "x"),
    ),
)
ORDER = {"here": ["a", "c"], "there": ["b", "d"]}

names = st.text(min_size=1, max_size=12)
actions = st.one_of(
    st.builds(Compute, names),
    st.builds(Send, names, names),
    st.builds(Recv, names, names),
    st.builds(Free, names),
    st.builds(Copy, names, names, names),
    st.builds(Record, names, names),
    st.builds(Wait, names, names),
    st.builds(Sync, names),
    st.builds(Hold, names, names),
)


@given(actions)
@settings(derandomize=True, deadline=None)
def test_actions_print_and_parse_back(action: Action) -> None:
    line = str(action)
    assert len(line.splitlines()) == 1
    assert parse_action(line) == action


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (Compute("conv_1"), "COMPUTE conv_1"),
        (Send("conv 1", "gpu:1"), 'SEND "conv 1" -> gpu:1'),
        (Recv('say "x"', "gpu0"), r'RECV "say \"x\"" <- gpu0'),
        (Free("args[0]"), "FREE args[0]"),
        (Copy("x", "gpu1", "copy:gpu1"), "COPY x -> gpu1 ON copy:gpu1"),
        (Record("gpu0.1", "compute"), "RECORD gpu0.1 ON compute"),
        (Wait("gpu 0.1", "compute"), 'WAIT "gpu 0.1" ON compute'),
        (Sync("gpu0.1"), "SYNC gpu0.1"),
        (Hold("x", "copy:gpu1"), "HOLD x FOR copy:gpu1"),
    ],
)
def test_text_of_actions(action: Action, line: str) -> None:
    assert str(action) == line


@pytest.mark.parametrize(
    "line", ["", "RUN a", "COMPUTE", "COMPUTE a b", "SEND a <- b", "RECV a -> b", 'FREE "a', "WAIT e", "HOLD a ON b"]
)
def test_other_lines_are_no_actions(line: str) -> None:
    with pytest.raises(InputError, match="is no action; write COMPUTE op, SEND t -> device"):
        parse_action(line)


@given(st.dictionaries(names, st.lists(actions, max_size=5), max_size=3))
@settings(derandomize=True, deadline=None)
def test_programs_print_and_parse_back(lists: Mapping[str, list[Action]]) -> None:
    program = Program({device: tuple(entries) for device, entries in lists.items()})
    assert Program.parse(str(program)) == program


def test_a_wrong_line_of_a_program_is_numbered() -> None:
    with pytest.raises(InputError, match="line 3: 'JUMP' is no action"):
        Program.parse("DEVICE d0\n  COMPUTE a\n  JUMP\n")
    with pytest.raises(InputError, match="line 1: 'COMPUTE a' stands before the first DEVICE line"):
        Program.parse("COMPUTE a\n")


# x goes there once, though two ops there read it, and is kept there until d has run; y never leaves.
def test_lowered_text_of_a_diamond() -> None:
    assert str(lower(DIAMOND, ORDER, keep=["y"])) == (
        "DEVICE here\n"
        "  COMPUTE a\n"
        "  SEND x -> there\n"
        "  COMPUTE c\n"
        "  SEND z -> there\n"
        "  FREE x\n"
        "  FREE z\n"
        "DEVICE there\n"
        "  RECV x <- here\n"
        "  COMPUTE b\n"
        "  RECV z <- here\n"
        "  COMPUTE d\n"
        "  FREE z\n"
        "  FREE x\n"
    )


# d is backward: z is received at the end of the forward program and stays for the backward one.
def test_lowered_text_of_two_stages() -> None:
    forward, backward = lower_stages(DIAMOND, [{"here": ["a", "c"], "there": ["b"]}, {"here": [], "there": ["d"]}])
    assert str(forward) == (
        "DEVICE here\n"
        "  COMPUTE a\n"
        "  SEND x -> there\n"
        "  COMPUTE c\n"
        "  SEND z -> there\n"
        "  FREE x\n"
        "  FREE z\n"
        "DEVICE there\n"
        "  RECV x <- here\n"
        "  COMPUTE b\n"
        "  RECV z <- here\n"
    )
    assert str(backward) == "DEVICE here\nDEVICE there\n  COMPUTE d\n  FREE y\n  FREE z\n  FREE x\n"
    dry_run(DIAMOND, [forward, backward])


@given(st.integers(0, 10**6))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_valid_orders_run_dry_and_free_everything(seed: int) -> None:
    graph = random_graph(seed)
    program = lower(graph, random_order(graph, seed + 1))
    dry_run(graph, [program])
    assert Program.parse(str(program)) == program
    for device, entries in program.actions.items():
        assert tensors_left(graph, entries) == set(), device


@given(st.integers(0, 10**6))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_stages_of_valid_orders_run_dry_and_free_everything(seed: int) -> None:
    graph = random_graph(seed)
    order = random_order(graph, seed + 1)
    stages = [
        {device: [op for op in ops if graph.op(op).phase == phase] for device, ops in order.items()}
        for phase in ("forward", "backward")
    ]
    programs = lower_stages(graph, stages)
    dry_run(graph, programs)
    for device in order:
        assert tensors_left(graph, [entry for program in programs for entry in program.actions[device]]) == set()


@given(st.integers(0, 10**6))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_a_tensor_goes_to_a_device_once(seed: int) -> None:
    graph = random_graph(seed)
    order = random_order(graph, seed + 1)
    home = {op: device for device, ops in order.items() for op in ops}
    sent = [
        (entry.tensor, entry.target)
        for entries in lower(graph, order).actions.values()
        for entry in entries
        if isinstance(entry, Send)
    ]
    crossing = {(edge.tensor, home[edge.target]) for edge in graph.edges if home[edge.source] != home[edge.target]}
    assert sorted(sent) == sorted(crossing)


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_program_without_one_of_its_actions_is_found_out(seed: int, chooser: object) -> None:
    graph = random_graph(seed)
    program = lower(graph, random_order(graph, seed + 1))
    needed = [
        (device, position)
        for device, entries in program.actions.items()
        for position, entry in enumerate(entries)
        if not isinstance(entry, Free)
    ]
    device, position = chooser.choice(needed)  # type: ignore[attr-defined]
    entries = program.actions[device]
    broken = Program({**program.actions, device: (*entries[:position], *entries[position + 1 :])})
    with pytest.raises(InternalError):
        dry_run(graph, [broken])


def changed(device: str, *lines: str) -> Program:
    """The diamond's program with other actions on one device."""
    program = lower(DIAMOND, ORDER)
    return replace(program, actions={**program.actions, device: tuple(map(parse_action, lines))})


# a → b → c → d, every second op on the other device, where d is to run before b.
def test_an_order_that_deadlocks_is_found_out() -> None:
    chain = OpGraph(
        tuple(Op(name, "test") for name in "abcd"), (Edge("a", "b", 1), Edge("b", "c", 1), Edge("c", "d", 1))
    )
    dry_run(chain, [lower(chain, {"here": ["a", "c"], "there": ["b", "d"]})])
    with pytest.raises(
        InternalError,
        match=r"would hang: here waits at RECV b:0->c <- there \(line 5\); there waits at RECV c:0->d",
    ):
        dry_run(chain, [lower(chain, {"here": ["a", "c"], "there": ["d", "b"]})])


BROKEN: dict[str, tuple[Program, str]] = {
    "swapped on one device": (
        lower(DIAMOND, {"here": ["a", "d", "c"], "there": ["b"]}),
        "here computes op 'd' without tensor 'z'",
    ),
    "devices wait for each other": (
        Program(
            {
                "here": tuple(map(parse_action, ["RECV y <- there", "COMPUTE a", "SEND x -> there"])),
                "there": tuple(map(parse_action, ["RECV x <- here", "COMPUTE b", "SEND y -> here"])),
            }
        ),
        r"the program would hang: here waits at RECV y <- there \(line 2\); there waits at RECV x <- here \(line 6\)",
    ),
    "receive is missing": (
        changed("there", "RECV x <- here", "COMPUTE b", "COMPUTE d"),
        "there computes op 'd' without tensor 'z'",
    ),
    "receive from the wrong device": (
        changed("there", "RECV x <- there", "COMPUTE b"),
        "the program would hang: there waits at RECV x <- there",
    ),
    "input comes later": (
        changed("there", "COMPUTE b", "RECV x <- here", "RECV z <- here", "COMPUTE d"),
        "there computes op 'b' without tensor 'x'",
    ),
    "op runs twice": (
        changed("there", "RECV x <- here", "COMPUTE b", "COMPUTE b", "RECV z <- here", "COMPUTE d"),
        r"there computes op 'b', which has run already \(line 11\)",
    ),
    "op is missing": (
        changed("there", "RECV x <- here", "COMPUTE b", "RECV z <- here"),
        r"computes 3 of 4 ops; missing: \['d'\]",
    ),
    "op is unknown": (changed("there", "COMPUTE e"), "computes op 'e', which the graph does not have"),
    "sent and not received": (
        changed("there", "RECV x <- here", "COMPUTE b"),
        r"tensors are sent but never received: \[\('z', 'there'\)\]",
    ),
    "sent before it is made": (
        changed("here", "SEND x -> there", "COMPUTE a"),
        "here, line 2: SEND x -> there: the tensor is not there",
    ),
    "sent twice": (
        changed("here", "COMPUTE a", "SEND x -> there", "SEND x -> there"),
        "here, line 4: SEND x -> there: the tensor is on its way already",
    ),
    "freed too early": (
        changed("here", "COMPUTE a", "SEND x -> there", "FREE x", "COMPUTE c", "SEND z -> there"),
        "here computes op 'c' without tensor 'x'",
    ),
    "freed twice": (
        changed("here", "COMPUTE a", "SEND x -> there", "COMPUTE c", "SEND z -> there", "FREE x", "FREE x"),
        "here, line 7: FREE x: the tensor is not there",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_programs_are_found_out(name: str) -> None:
    program, message = BROKEN[name]
    with pytest.raises(InternalError, match=message):
        dry_run(DIAMOND, [program])


def tensors_left(graph: OpGraph, entries: Sequence[Action]) -> set[str]:
    """What a device still holds after its actions."""
    held: set[str] = set()
    for entry in entries:
        if isinstance(entry, Compute):
            held.update(edge.tensor for edge in graph.edges_from[entry.op])
        elif isinstance(entry, Recv):
            held.add(entry.tensor)
        elif isinstance(entry, Free):
            held.remove(entry.tensor)
    return held
