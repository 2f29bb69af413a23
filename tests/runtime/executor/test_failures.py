"""An op that fails while a plan runs, and the end of devices."""

import gc
import threading

import pytest
import torch
from frontend.torch.small_models import Calls, build, build_with, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random, plain_loss, random_plan
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError, RunError
from dlplacer.frontend import Job, capture
from dlplacer.runtime import apply
from dlplacer.runtime.devices.cpu import CpuDevice

pytestmark = needs_two_cores


def two_towers() -> Job:
    """An embedding and a linear layer that meet in the loss: whichever device fails, the other one waits for it."""
    module = Calls(
        lambda self, words, x: self.fc(self.words(words).mean(1) + self.body(x)),
        words=nn.Embedding(10, 8),
        body=nn.Linear(8, 8),
        fc=nn.Linear(8, 5),
    )
    words, x = torch.randint(10, (4, 6)), torch.randn(4, 8)
    return Job(module, (words, x), (torch.randint(5, (4,)),), functional.cross_entropy)


def new_threads(before: set[threading.Thread]) -> list[str]:
    """Names of the devices' threads that were not there before; those of other tests may still be ending."""
    return sorted(thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("cpu:"))


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


@pytest.mark.parametrize("seed", range(4))
def test_a_failing_op_is_named_and_the_module_works_afterwards(seed: int) -> None:
    job, plain = build_with(two_towers), build_with(two_towers)
    bad = torch.full_like(job.args[0], 99)
    with placed_at_random(job, seed=seed) as placed:
        for run in (placed, placed.step):
            with pytest.raises(
                RunError, match=r"op 'embedding' of module 'words' failed on cpu:[01]: index out of range"
            ):
                run(bad, job.args[1], *job.targets)
            assert torch.equal(placed.step(*job.args, *job.targets), plain_loss(plain, plain.module).detach())


def test_a_transfer_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    job = build("branches")
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        with monkeypatch.context() as patched:
            patched.setattr(CpuDevice, "receive", lambda self, tensor: 1 / 0)
            with pytest.raises(RunError, match=r"receiving tensor '.*' from d[01] on cpu:[01] failed: division"):
                placed.step(*job.args, *job.targets)
        placed.step(*job.args, *job.targets)


def test_close_ends_the_threads_and_a_closed_module_says_so() -> None:
    before = threads()
    job = build("linear")
    placed = apply(job, random_plan(capture(job)), ["cpu:0", "cpu:1"])
    assert new_threads(before) == ["cpu:0", "cpu:1"]
    placed.close()
    placed.close()
    assert new_threads(before) == []
    with pytest.raises(InputError, match="device 'cpu:0' is closed; apply the plan again"):
        placed.step(*job.args, *job.targets)


def live_tensors() -> int:
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
