"""Values live as long as the program says, and steps leave nothing behind."""

import gc
import itertools
import resource
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from frontend.torch.small_models import build, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random

from dlplacer.frontend.torch.tracing.kernels import kernel_for

pytestmark = needs_two_cores


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


# Every intermediate tensor is watched from its birth on the device; after the step none of them may be alive.
def test_intermediate_tensors_die_when_they_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = build("branches")
    with placed_at_random(job, seed=2, graph=graph_of("branches")) as placed:
        variant = placed._primary
        born: dict[int, weakref.ref[Any]] = {}
        count = itertools.count()

        def watched(target: Callable[..., Any], device_type: str) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                result = kernel_for(target, device_type)(*args, **kwargs)
                for tensor in result if isinstance(result, (tuple, list)) else [result]:
                    if isinstance(tensor, torch.Tensor):
                        born[next(count)] = weakref.ref(tensor)
                return result

            return call

        monkeypatch.setattr("dlplacer.runtime.executor.segment_graph.kernel_for", watched)
        tensors = {**dict(placed.named_parameters()), **dict(placed.named_buffers())}
        bound = variant.with_tangent(variant.bind(tensors, [*job.args, *job.targets], 0), None)
        outside = {id(tensor) for tensor in bound.bound.values()}
        state = variant.joint.start(bound)
        variant.joint.run(state)
        alive = {name: seen() for name, seen in born.items() if seen() is not None and id(seen()) not in outside}
        returned = {
            name: tensor.untyped_storage().data_ptr()
            for values in state.values.values()
            for name, tensor in values.items()
        }
        assert returned.keys() == variant.captured.executable.returned
        # Others that live are bases of returned views.
        assert {tensor.untyped_storage().data_ptr() for tensor in alive.values()} == set(returned.values())
        assert len(born) > 2 * len(alive)


# Without the cycle collector: nothing that a forward pass keeps for its backward may hold itself.
def test_a_loss_that_is_dropped_takes_its_activations_along() -> None:
    job = build("branches")
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        placed(*job.args, *job.targets)
        before = live_tensors()
        gc.disable()
        try:
            for _ in range(5):
                placed(*job.args, *job.targets)
            tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        finally:
            gc.enable()
        assert tensors <= before
