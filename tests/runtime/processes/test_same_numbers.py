"""Devices as processes compute what threads compute, to the last bit, and the caller sees all of it."""

import contextlib
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from runtime.processes.small_jobs import LABELS, ROWS, Branches, job_of, placed, placed_branches, worker_of
from torch import nn

import dlplacer as dp
from dlplacer.runtime.placed.placed_module import PlacedModule


def trained(module: PlacedModule, take: Callable[[PlacedModule], torch.Tensor], steps: int = 5) -> list[torch.Tensor]:
    """Losses, state dict, gradients, the state of the step's optimizer and an evaluation after some steps."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    torch.manual_seed(5)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        found.append(take(module).detach())
        if module._job.update is None:
            optimizer.step()
    found += [tensor.clone() for tensor in module.state_dict().values()]
    found += [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    found += states_of(module)
    module.eval()
    return [*found, module(ROWS)]


def states_of(module: PlacedModule) -> list[torch.Tensor]:
    """The state of the step's optimizer, by the names of its parameters."""
    found = module.updater.state_dict()["state"]
    return [state for name in sorted(found) for state in found[name]]


def by_step(module: PlacedModule) -> torch.Tensor:
    return module.step(ROWS, LABELS)


def by_backward(module: PlacedModule) -> torch.Tensor:
    loss: torch.Tensor = module(ROWS, LABELS)
    loss.backward()
    return loss


def two_losses(module: PlacedModule) -> torch.Tensor:
    """Both forward passes before the backward passes, in the same order: what the first one keeps must outlive it."""
    one, other = module(ROWS, LABELS), module(ROWS.flip(0), LABELS)
    one.backward()
    other.backward()
    return one + other


@pytest.mark.parametrize(
    ("take", "optimizer", "seed"),
    [
        (by_step, None, 3),
        (by_backward, None, 4),
        (by_step, "adam", 3),
        pytest.param(two_losses, None, 3, marks=pytest.mark.slow),
        pytest.param(by_step, "sgd", 3, marks=pytest.mark.slow),
        pytest.param(by_step, "momentum", 4, marks=pytest.mark.slow),
    ],
)
def test_training_is_the_same_to_the_last_bit(take, optimizer, seed):
    results = []
    for processes in ("off", "on"):
        module = placed_branches(processes, seed, optimizer)
        results.append(trained(module, take))
        assert module.processes.used is (processes == "on")
        module.close()
    assert len(results[0]) == len(results[1])
    for index, (threads, with_processes) in enumerate(zip(*results, strict=True)):
        assert torch.equal(threads, with_processes), f"value {index}"


def test_modes_alternate_within_one_training_and_optimizer():
    """Steps by threads and by processes share parameters and the optimizer's state, whoever has made it."""
    results = []
    for processes in ("off", "on"):
        module = placed_branches(processes, optimizer="adam")
        torch.manual_seed(5)
        for _ in range(2):
            module.step(ROWS, LABELS)
        # Memory of its own for one parameter: its step is taken by threads.
        kept = module.left.weight.data
        module.left.weight.data = kept.clone()
        module.step(ROWS, LABELS)
        if processes == "on":
            assert module.processes.used is False
            assert "p.data" in str(module.processes)
        kept.copy_(module.left.weight.data)
        module.left.weight.data = kept
        module.step(ROWS, LABELS)
        assert module.processes.used is (processes == "on")
        results.append([*module.state_dict().values(), *states_of(module)])
        module.close()
    assert all(map(torch.equal, *results))


class Large(nn.Module):
    """A parameter that takes shared memory of its own, beside two small layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(12, 3), nn.Linear(12, 3)
        self.large = nn.Parameter(torch.randn(200, 100) / 50)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.first(rows) * self.large.square().sum() + torch.tanh(self.other(rows))


def steps_with_replaced_memory(module: PlacedModule, model: Large) -> list[torch.Tensor]:
    """Losses of steps before which a parameter gets other memory, and parts are frozen for a while."""
    found = []

    def step() -> None:
        found.append(module.step(ROWS, LABELS))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)

    for layer in (model.first, model.other):
        model.large.data = model.large.data.clone()
        step()
        step()
        # Captured again, which moves all parameters to where processes see them: perhaps to where it was before.
        layer.bias.requires_grad_(False)
        step()
        layer.bias.requires_grad_(True)
        step()
        step()
    return found


def test_memory_of_a_parameter_that_was_replaced_is_not_read_by_a_worker_any_more():
    results = []
    for processes in ("off", "on"):
        torch.manual_seed(1)
        model = Large()
        module = placed(job_of(model), processes, seed=0)
        assert module.plan.placement["large"] == module.plan.topology.devices[1].id
        results.append(steps_with_replaced_memory(module, model))
        module.close()
    assert all(map(torch.equal, *results))


def test_what_a_step_returns_is_not_overwritten_by_the_next():
    module = placed_branches("on")
    first = module.step(ROWS, LABELS)
    gradient = module.last.weight.grad
    before = first.clone(), gradient.clone()
    module.zero_grad()
    module.step(ROWS.flip(0), LABELS)
    assert torch.equal(first, before[0])
    assert torch.equal(gradient, before[1])
    module.eval()
    outputs = module(ROWS)
    kept = outputs.clone()
    module(2 * ROWS)
    assert torch.equal(outputs, kept)
    module.close()


def test_edits_other_sizes_and_copies():
    """Frozen parts, another batch size and a deep copy run as with threads."""
    results = []
    for processes in ("off", "on"):
        module = placed_branches(processes)
        torch.manual_seed(5)
        found = [module.step(ROWS, LABELS)]
        module._job.module.left.weight.requires_grad_(False)
        module.drop.p = 0.6
        found.append(module.step(ROWS, LABELS))
        found.append(module.step(ROWS[:5], LABELS[:5]))
        copied = copy.deepcopy(module)
        assert copied.processes.wanted == processes
        torch.optim.SGD(copied.parameters(), lr=0.1).step()
        found += [copied.step(ROWS, LABELS), module.step(ROWS, LABELS)]
        results.append([*found, *module.state_dict().values(), *copied.state_dict().values()])
        copied.close()
        module.close()
    assert all(map(torch.equal, *results))


def test_parameters_stay_the_callers_objects_and_keep_what_they_share():
    """Optimizers made before `apply` go on; tensors that share memory still do; a saved parameter is no larger."""
    torch.manual_seed(1)
    module = Branches()
    both = torch.randn(2, 16)
    module.left.bias.data, module.right.bias.data = both[0], both[1]
    del both
    before = dict(module.named_parameters())
    made = placed(job_of(module), "on")
    after = dict(made.named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    assert after["left.bias"].untyped_storage().data_ptr() == after["right.bias"].untyped_storage().data_ptr()
    assert after["left.weight"].untyped_storage().nbytes() == 12 * 16 * 4
    made.close()


def test_buffers_that_a_worker_changes_count_as_changed():
    module = placed_branches("on")
    versions = {name: buffer._version for name, buffer in module.named_buffers()}
    module.step(ROWS, LABELS)
    assert all(buffer._version > versions[name] for name, buffer in module.named_buffers())
    module.close()


def test_a_parameter_changed_between_forward_and_backward_is_refused():
    module = placed_branches("on")
    loss = module(ROWS, LABELS)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)
    with pytest.raises(dp.DlplacerError, match="was changed between forward and backward"):
        loss.backward()
    module.close()


def test_recorded_steps_have_the_ops_of_all_devices_on_one_clock():
    module = placed_branches("on")
    module.records = True
    module.step(ROWS, LABELS)
    assert module.processes.used
    spans = {name: module.timelines[name].spans(device) for name, device in module.devices.items()}
    for name, ops in module.plan.order.items():
        assert [span.op for span in spans[name]] == list(ops)
    # Every op of one device begins after what it reads has ended on the other.
    ends = {mark[0]: mark[2] for timeline in module.timelines.values() for mark in timeline.marks}
    edges = [
        edge
        for edge in module.plan.graph.edges
        if module.plan.placement[edge.source] != module.plan.placement[edge.target]
    ]
    assert edges
    assert all(ends[edge.source] <= ends[edge.target] for edge in edges)
    module.close()


def test_numbers_and_strided_tensors_reach_the_workers():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 12))

        def forward(self, rows: torch.Tensor, scale: float) -> tuple[torch.Tensor, ...]:
            turned = (rows @ self.weight).t()
            wide = turned[:, :1].expand(12, 7)
            return turned * scale, wide.sum(0), turned[:, 2:5] + scale, rows.to(torch.bfloat16) + 1, turned > 0

    results = []
    for processes in ("off", "on"):
        torch.manual_seed(1)
        job = dp.Job(Odd(), args=(ROWS, 2.5), mode="infer")
        found = []
        for seed in (1, 2):
            module = placed(job, processes, seed)
            found += [*module(ROWS, 2.5), *module(ROWS, -1.25)]
            module.close()
        results.append(found)
    assert all(map(torch.equal, *results))
    assert all(one.stride() == other.stride() for one, other in zip(*results, strict=True))


def test_a_worker_belongs_to_its_module():
    module = placed_branches("on")
    module.step(ROWS, LABELS)
    assert worker_of(module) > 0
    module.close()
    assert module.worker_pids == ()


def test_several_threads_may_call_one_module():
    module, threads = placed_branches("on"), placed_branches("off")
    module.eval()
    threads.eval()
    inputs = [ROWS * number for number in range(6)]
    expected = [threads(rows) for rows in inputs]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            assert all(map(torch.equal, pool.map(module, inputs), expected))
    # Who has forked the workers is gone, and they go on.
    assert torch.equal(module(ROWS), expected[1])
    module.close()
    threads.close()


class Gained(nn.Module):
    """Two branches, of which each reads a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.gains = [torch.ones(8), torch.ones(8)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.one(x) * self.gains[0]).square().mean() + (self.other(x) * self.gains[1]).square().mean()


def test_workers_see_what_is_written_into_a_tensor_that_is_no_buffer():
    module = Gained()
    job = dp.Job(module, (torch.randn(4, 8),), loss=lambda loss: loss)
    with contextlib.closing(placed(job, "on", seed=3)) as by_processes:
        for gain in (1.0, 3.0, 0.5):
            for tensor in module.gains:
                tensor.fill_(gain)
            assert torch.equal(by_processes.step(*job.args), module(*job.args))
        assert by_processes.processes.used


class Viewing(nn.Module):
    """Reads a buffer also through a view of it that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("gains", torch.ones(8))
        self.first = self.gains[:4]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.one(x) * torch.cat([self.first, self.first]) + self.other(x) * self.gains).square().mean()


def test_a_view_of_a_buffer_that_is_no_buffer_stays_one():
    module = Viewing()
    plain = copy.deepcopy(module)
    job = dp.Job(module, (torch.randn(4, 8),), loss=lambda loss: loss)
    with contextlib.closing(placed(job, "on")) as by_processes:
        for gain in (1.0, 3.0, 0.5):
            module.gains.fill_(gain)
            plain.gains.fill_(gain)
            assert torch.equal(by_processes.step(*job.args), plain(*job.args))
        assert by_processes.processes.used


@pytest.mark.parametrize("optimizer", [None, "momentum"])
def test_weights_that_cross_are_not_copied(optimizer):
    crossed = 0
    for seed in range(4):
        with contextlib.closing(placed_branches("on", seed, optimizer)) as module:
            for _ in range(2):
                module.step(ROWS, LABELS)
            weights = {
                value for code in module.captured.executable.of_role("parameter", "buffer") for value in code.results
            }
            for tensor, slot in module._use._last._processes._forked._slots.crossing.items():
                if tensor in weights:
                    assert module._use.tensors.holds(slot._view)
                    crossed += 1
    assert crossed > 3
