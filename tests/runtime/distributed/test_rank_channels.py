"""Tensors cross processes as they were made: values, dtypes, strides; in whatever order they are read."""

import pytest
import torch
from processes import run_ranks
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.frontend import capture
from dlplacer.models import mlp
from dlplacer.runtime.devices.open import open_devices
from dlplacer.runtime.distributed.group import RankChannels, RankGroup, parse_ranks
from dlplacer.runtime.program.program import Program, Recv, Send

pytestmark = [needs_two_cores, pytest.mark.timeout(120)]

MADE = {
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "channels last": torch.arange(48.0).reshape(2, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "half": torch.tensor([1.5, -2.5], dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
    "bool": torch.tensor([True, False, True]),
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "empty": torch.zeros(0, 3),
    "order": None,
}
WITH_GAPS = {"gaps": torch.arange(12.0)[::3], "repeats": torch.ones(1, 3).expand(2, 3)}


def same(ours: torch.Tensor | None, theirs: torch.Tensor | None, strides: bool = True) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    alike = ours.dtype == theirs.dtype and (not strides or ours.stride() == theirs.stride())
    return alike and torch.equal(ours, theirs)


def test_tensors_arrive_as_they_left_and_in_the_order_in_which_they_are_read() -> None:
    """Read from the last to the first; in the third run they lie otherwise in memory, and arrive as before."""
    plan = random_plan(capture(mlp(batch_size=4)), 2)
    made = {**MADE, **WITH_GAPS}
    program = Program(
        {"d0": tuple(Send(name, "d1") for name in made), "d1": tuple(Recv(name, "d0") for name in reversed(made))}
    )

    def work(rank: int) -> list[dict[str, torch.Tensor | None]]:
        group = RankGroup(parse_ranks(plan, ["cpu:0", "cpu:1"]), timeout_s=30)
        home = f"d{rank}"
        links = RankChannels(program, group, {home: open_devices([f"cpu:{rank}"])[0]})
        found = []
        for run in range(3):
            links.begin(home)
            for name, value in made.items() if rank == 0 else ():
                again = value.resolve_conj().contiguous() if run == 2 and value is not None else value
                links.send(name, "d0", "d1", again)
            links.end(home)
            found.append({name: links.receive(name, "d0", home) for name in reversed(made)} if rank else {})
        return found

    _, runs = run_ranks(2, work)
    assert len(runs) == 3
    for found in runs:
        assert all(
            same(found[name], value.resolve_conj() if value is not None else None) for name, value in MADE.items()
        )
        assert all(same(found[name], value, strides=False) for name, value in WITH_GAPS.items())
