"""Other batch sizes, lengths and numbers than those of the plan: the same placement, the results of plain PyTorch."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from frontend.torch.small_models import CLASSES, build, build_with, dropout, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random, require_same_step
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from dlplacer.core.errors import DlplacerError
from dlplacer.frontend import Job
from dlplacer.runtime import PlacedModule
from dlplacer.runtime.placed import placed_module as variants

pytestmark = needs_two_cores

SLOW, LARGER = pytest.mark.slow, ("convolutions", "recurrent", "transformer")
EXACT = {"rtol": 1e-5, "atol": 1e-6}


def resized(job: Job, batch: int) -> Job:
    """The job with another number of examples, which repeat those that it has."""

    def sized(leaf: torch.Tensor) -> torch.Tensor:
        return leaf if leaf.dim() == 0 else leaf[torch.arange(batch) % len(leaf)]

    given = job.args, dict(job.kwargs), job.targets
    args, kwargs, targets = pytree.tree_map_only(torch.Tensor, sized, given)
    return replace(job, args=args, kwargs=kwargs, targets=targets)


@pytest.mark.parametrize("name", ["attention", *(pytest.param(name, marks=SLOW) for name in LARGER)])
def test_any_batch_size(name: str) -> None:
    job, plain = build(name), build(name).module.train()
    with placed_at_random(job, graph=graph_of(name)) as placed:
        for batch in (1, 5):
            require_same_step(placed, resized(job, batch), plain, tolerance=1e-5)
        for variant in placed._variants._found.values():
            kept = {op: device for op, device in placed.plan.placement.items() if op in variant.home}
            assert kept.items() <= variant.home.items()
            assert len(kept) > 0.8 * len(placed.plan.placement)


@pytest.mark.parametrize("length", [1, pytest.param(5, marks=SLOW)])
def test_another_length_of_a_recurrent_network(length: int) -> None:
    """Every step of the sequence is ops of its own: as many appear or vanish."""
    job, plain = build("recurrent"), build("recurrent").module
    with placed_at_random(job, graph=graph_of("recurrent"), seed=1) as placed:
        longer = replace(job, args=(torch.randn(4, length, 8),))
        require_same_step(placed, longer, plain, tolerance=1e-5)
        placed.eval()
        torch.testing.assert_close(placed(*longer.args), plain.eval()(*longer.args), **EXACT)


def from_threads(count: int, work: Any) -> list[Any]:
    """What `work(number)` returns or raises, called from as many threads at once."""
    found: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            found[number] = work(number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_the_first_evaluation_may_come_from_several_threads() -> None:
    job, plain = build("convolutions"), build("convolutions").module.eval()
    with placed_at_random(job, graph=graph_of("convolutions")) as placed:
        placed.eval()
        inputs = [job.args[0][: 1 + number % 3] for number in range(6)]
        for found, given in zip(from_threads(6, lambda number: placed(inputs[number])), inputs, strict=True):
            torch.testing.assert_close(found, plain(given), **EXACT)
        assert len(placed._variants._found) == 1 + 3


class Factor(nn.Module):
    """Reads Python numbers in its forward pass."""

    def __init__(self, uses: Any) -> None:
        super().__init__()
        self.fc, self.uses = nn.Linear(8, CLASSES), uses

    def forward(self, x: torch.Tensor, factor: Any) -> torch.Tensor:
        return self.uses(self.fc(x), factor)


USES = {
    "a factor": lambda x, factor: x * factor + 1,
    "a branch": lambda x, factor: x * factor if factor > 3 else x + factor,
    "a count": lambda x, factor: sum((x * step for step in range(int(factor))), x),
    "a size": lambda x, factor: functional.pad(x, (0, int(factor)))[:, :CLASSES] + int(factor),
}


@pytest.mark.parametrize("name", USES)
def test_other_numbers_give_what_plain_pytorch_gives(name: str) -> None:
    """Whatever the forward pass does with a number."""
    job = build_with(lambda: Job(Factor(USES[name]), (torch.randn(4, 8), 2.0), mode="infer"))
    with placed_at_random(job) as placed:
        for given in (2.0, 5.25, 1.25, 5.25):
            torch.testing.assert_close(placed(job.args[0], given), job.module(job.args[0], given), **EXACT)


def dropped(placed: PlacedModule, job: Job, steps: int) -> list[float]:
    return [placed.step(*job.args, *job.targets).item() for _ in range(steps)]


def test_a_resumed_run_draws_the_same(tmp_path: Any) -> None:
    job = build_with(dropout)
    with placed_at_random(job) as placed:
        dropped(placed, job, 2)
        torch.save((placed.state_dict(), torch.get_rng_state()), tmp_path / "state.pt")
        expected = dropped(placed, job, 3)
    assert len(set(expected)) == 3
    again = build_with(dropout)
    with placed_at_random(again, seed=1) as placed:
        state, generator = torch.load(tmp_path / "state.pt")
        placed.load_state_dict(state)
        torch.set_rng_state(generator)
        assert dropped(placed, again, 3) == expected


def test_shapes_that_cannot_be_captured_leave_the_others_usable() -> None:
    job = build("linear")
    with placed_at_random(job, graph=graph_of("linear")) as placed:
        for _ in range(2):
            with pytest.raises(DlplacerError, match="cannot be captured"):
                placed.step(torch.randn(4, 9), *job.targets)
            require_same_step(placed, job, build("linear").module, tolerance=1e-5)


def test_variants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "MOST_VARIANTS", 4)
    job = build("linear")
    with placed_at_random(job, graph=graph_of("linear")) as placed:
        for batch in range(1, 6):
            placed.step(*resized(job, batch).args, *resized(job, batch).targets)
        assert len(placed._variants._found) == 4
        require_same_step(placed, job, build("linear").module, tolerance=1e-5)


def test_manual_seed_reaches_dropout() -> None:
    job = build_with(dropout)
    with placed_at_random(job) as placed:
        torch.manual_seed(5)
        first = dropped(placed, job, 3)
        torch.manual_seed(5)
        assert dropped(placed, job, 3) == first
        torch.manual_seed(6)
        assert dropped(placed, job, 3) != first
