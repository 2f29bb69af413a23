"""torch.compile with plans, against plain PyTorch."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from runtime.random_plans import needs_two_cores
from torch import nn
from torch.nn import functional

import dlplacer.runtime.torch_compile
from dlplacer.core.errors import InputError, MismatchError, RunError
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.runtime.placed.variant import copy_on
from dlplacer.runtime.torch_compile import CompileOptions, backend

pytestmark = needs_two_cores
CPUS = {"devices": "cpu:0,cpu:1", "method": "heft"}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(before)
    for devices in backend._OPENED.values():
        for device in devices:
            device.close()
    backend._OPENED.clear()


class Branching(nn.Module):
    """Two branches with batch norm, joined."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(12, 16), nn.Linear(12, 16)
        self.norm, self.drop, self.head = nn.BatchNorm1d(32), nn.Dropout(dropout), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.left(x).relu(), self.right(x).tanh()], 1)
        logits: torch.Tensor = self.head(self.drop(self.norm(joined)))
        return logits


def compiled(module: nn.Module, **options: Any) -> Any:
    return torch.compile(module, backend="dlplacer", dynamic=False, options={**CPUS, **options})


def losses(call: Any, module: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x, y = torch.randn(8, 12), torch.randint(5, (8,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return found


def test_training_equals_plain_pytorch() -> None:
    torch.manual_seed(0)
    module = Branching()
    plain = copy.deepcopy(module)
    placed = compiled(module)
    torch.testing.assert_close(losses(placed, module), losses(plain, plain))
    torch.testing.assert_close(dict(module.named_buffers()), dict(plain.named_buffers()))
    module.eval()
    plain.eval()
    x = torch.randn(4, 12)
    with torch.no_grad():
        torch.testing.assert_close(placed(x), plain(x))


def test_another_shape_gets_a_plan_of_its_own() -> None:
    module = Branching()
    placed = compiled(module)
    for count in (3, 7, 3):
        x = torch.randn(count, 12)
        torch.testing.assert_close(placed(x), copy.deepcopy(module)(x))


# Dynamo itself looks at .grad of what crosses a break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_graphs_between_breaks_are_placed_one_by_one() -> None:
    class Broken(Branching):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.left(x)
            torch._dynamo.graph_break()
            return x.relu().sum(1)

    module = Broken()
    x = torch.randn(4, 12)
    torch.testing.assert_close(compiled(module)(x), module(x))


def test_dropout_follows_the_global_seed() -> None:
    torch.manual_seed(0)
    module = Branching(dropout=0.5)
    placed, x = compiled(module), torch.randn(8, 12)
    placed(x)
    drawn = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        drawn.append(placed(x))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_weight_is_sent_again_only_when_it_was_written_to() -> None:
    there, weight = torch.device("meta"), nn.Parameter(torch.ones(3))
    first = copy_on(there, weight)
    assert first.device == there
    assert copy_on(there, weight) is first
    with torch.no_grad():
        weight.mul_(2)
    assert copy_on(there, weight) is not first
    assert copy_on(torch.device("cpu"), weight) is weight


def test_a_topology_may_be_given() -> None:
    module, x = Branching(), torch.randn(4, 12)
    topology = Topology((Device("a", "cpu-core"), Device("b", "cpu-core")), (), (Link("a", "b", 1e9),))
    torch.testing.assert_close(compiled(module, topology=topology)(x), copy.deepcopy(module)(x))
    torch._dynamo.reset()
    with pytest.raises(MismatchError, match="the topology has 2 devices, but 1 are used; name one device for each"):
        compiled(Branching(), topology=topology, devices=["cpu:0"])(x)


def test_the_name_is_known_to_dynamo() -> None:
    assert "dlplacer" in torch._dynamo.list_backends()
    assert dlplacer.runtime.torch_compile.dlplacer is backend.dlplacer


def test_what_is_refused() -> None:
    x = torch.randn(4, 12)
    with pytest.raises(Exception, match="option 'speed' is not known; dlplacer has devices, topology, method"):
        compiled(Branching(), speed=3)(x)
    with pytest.raises(Exception, match="mode 'max-autotune' means nothing to dlplacer"):
        torch.compile(Branching(), backend="dlplacer", mode="max-autotune")(x)
    with pytest.raises(Exception, match="a shape of this graph is not fixed"):
        torch.compile(Branching(), backend="dlplacer", dynamic=True)(x)
    with pytest.raises(InputError, match="option 'x' is not known"):
        CompileOptions.of({"x": 1})


def test_a_failing_op_is_named() -> None:
    module = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    placed = compiled(module)
    placed(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(RunError, match=r"op 'embedding' .*failed on cpu:[01]: index out of range"):
        placed(torch.full((2, 3), 99))
