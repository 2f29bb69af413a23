"""What crosses processes, in which order, and that nothing which would hang gets started."""

import random
from collections.abc import Callable

import pytest
from frontend.torch.small_models import graph_of
from runtime.random_plans import random_plan

from dlplacer.core.errors import InternalError
from dlplacer.runtime.distributed.messages.dry_run_ranks import dry_run_ranks
from dlplacer.runtime.distributed.messages.messages import Message, by_channel, messages_of
from dlplacer.runtime.program.actions import Recv, Send
from dlplacer.runtime.program.lower import lower, lower_stages
from dlplacer.runtime.program.program import Program

RANK = {"a": 0, "b": 1, "c": 1}

# a makes x and y; b reads y first, then x; c, on b's process, reads z, which b makes of both.
TWO_RANKS = """
DEVICE a
  COMPUTE x
  SEND x -> b
  COMPUTE y
  SEND y -> b
  RECV w <- c
  COMPUTE end
DEVICE b
  RECV y <- a
  RECV x <- a
  COMPUTE z
  SEND z -> c
DEVICE c
  RECV z <- b
  COMPUTE w
  SEND w -> a
"""


def test_messages_in_the_order_of_a_possible_run() -> None:
    found = messages_of(Program.parse(TWO_RANKS), RANK.__getitem__)
    assert list(map(str, found)) == ["x a -> b", "y a -> b", "w c -> a"]


def test_channels_by_device_and_direction_or_by_process() -> None:
    found = messages_of(Program.parse(TWO_RANKS), RANK.__getitem__)
    by_devices = by_channel(found, RANK.__getitem__, ordered_pairs=True)
    assert {key: [message.tensor for message in entries] for key, entries in by_devices.items()} == {
        ("a", "b"): ["x", "y"],
        ("c", "a"): ["w"],
    }
    by_ranks = by_channel(found, RANK.__getitem__, ordered_pairs=False)
    assert {key: [message.tensor for message in entries] for key, entries in by_ranks.items()} == {
        ("rank0", "rank1"): ["x", "y", "w"]
    }


def test_a_program_that_hangs_is_refused() -> None:
    crossed = Program.parse("DEVICE a\n  RECV y <- b\n  SEND x -> b\nDEVICE b\n  RECV x <- a\n  SEND y -> a\n")
    with pytest.raises(
        InternalError, match=r"would hang: a waits at RECV y <- b \(line 2\); b waits at RECV x <- a \(line 5\)"
    ):
        messages_of(crossed, RANK.__getitem__)
    with pytest.raises(InternalError, match="would hang across processes: a waits at RECV y <- b; b waits at RECV x"):
        dry_run_ranks(crossed, {})


def test_a_channel_whose_order_would_hang_is_refused() -> None:
    program = Program.parse(TWO_RANKS)
    good = by_channel(messages_of(program, RANK.__getitem__), RANK.__getitem__, ordered_pairs=False)
    dry_run_ranks(program, good)
    bad = {("rank0", "rank1"): (Message("w", "c", "a"), Message("x", "a", "b"), Message("y", "a", "b"))}
    with pytest.raises(InternalError, match="channel rank0 – rank1 waits for w c -> a"):
        dry_run_ranks(program, bad)


def test_a_message_that_nobody_sends_is_refused() -> None:
    program = Program.parse(TWO_RANKS)
    bad = {("a", "b"): (Message("x", "a", "b"), Message("y", "a", "b"), Message("v", "a", "b"))}
    with pytest.raises(InternalError, match="channel a – b waits for v a -> b"):
        dry_run_ranks(program, bad)


@pytest.mark.parametrize("ordered_pairs", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_no_random_plan_hangs_on_any_distribution_of_its_devices(seed: int, ordered_pairs: bool) -> None:
    graph = graph_of(("branches", "linear", "convolutions")[seed % 3])
    plan = random_plan(graph, 4, seed)
    chooser = random.Random(seed)
    rank = {device.id: chooser.randrange(3) for device in plan.topology.devices}
    backward = {op.id for op in graph.ops if op.phase != "forward"}
    halves = [
        {device: [op for op in ops if (op in backward) == later] for device, ops in plan.order.items()}
        for later in (False, True)
    ]
    for program in (lower(graph, plan.order), *lower_stages(graph, halves)):
        messages = messages_of(program, rank.__getitem__)
        assert set(messages) == crossing(program, rank.__getitem__)
        assert len(messages) == len(set(messages))
        dry_run_ranks(program, by_channel(messages, rank.__getitem__, ordered_pairs))


def crossing(program: Program, rank_of: Callable[[str], int]) -> set[Message]:
    sent = {
        Message(action.tensor, device, action.target)
        for device, actions in program.actions.items()
        for action in actions
        if isinstance(action, Send) and rank_of(device) != rank_of(action.target)
    }
    received = {
        Message(action.tensor, action.source, device)
        for device, actions in program.actions.items()
        for action in actions
        if isinstance(action, Recv) and rank_of(device) != rank_of(action.source)
    }
    assert sent == received
    return sent
