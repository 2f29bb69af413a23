"""The mini-batch of least training time: argmin over X of ⌈|D| ÷ X⌉ · T*(X) · E(X) (section 3.1.3)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dlplacer.errors import InfeasibleError, InputError
from dlplacer.scaling.advise.choice import choose_ways
from dlplacer.scaling.advise.recompute import RECOMPUTE, StepChoices


@dataclass(frozen=True)
class BatchPlan:
    """How a mini-batch would be run.

    Attributes
    ----------
    step_s
        T*(X); None where the batch does not fit.
    memory_bytes
        What the step needs with the chosen ways.
    recomputed
        Modules that compute their inner activations again.
    epochs, training_s
        E(X), and the seconds of the whole training.
    reason
        Why the batch does not fit.
    """

    batch: int
    step_s: float | None
    memory_bytes: int | None
    recomputed: tuple[str, ...]
    epochs: float | None
    training_s: float | None
    reason: str = ""

    @property
    def samples_per_s(self) -> float | None:
        """Throughput."""
        return None if self.step_s is None else self.batch / self.step_s


def plan_batches(
    steps: Mapping[int, StepChoices],
    memory_bytes: int,
    dataset_size: int = 1,
    epochs: Callable[[int], float | None] = lambda batch: 1.0,
) -> tuple[BatchPlan, ...]:
    """Every mini-batch with its best ways, the one of least training time first, those that do not fit last.

    Parameters
    ----------
    steps
        Mini-batch → its step.
    memory_bytes
        Of the device.
    dataset_size
        |D|: samples of an epoch.
    epochs
        E(X): epochs until the target accuracy; None where training does not get there.

    Raises
    ------
    InputError
        If there are no mini-batches or no samples.
    """
    if not steps:
        raise InputError("there are no mini-batch sizes to choose from; give at least one")
    if dataset_size < 1:
        raise InputError(f"the data set has {dataset_size} samples; give at least 1")
    plans = [_planned(batch, step, memory_bytes, dataset_size, epochs(batch)) for batch, step in steps.items()]
    return tuple(sorted(plans, key=lambda plan: math.inf if plan.training_s is None else plan.training_s))


def _planned(batch: int, step: StepChoices, memory_bytes: int, dataset_size: int, epochs: float | None) -> BatchPlan:
    if epochs is None:
        return BatchPlan(batch, None, None, (), None, None, "nothing is known of training with so large a batch")
    bound_bytes = memory_bytes - step.fixed_bytes
    try:
        if bound_bytes < 0:
            raise InfeasibleError(
                f"weights, gradients, inputs and activations between modules need {step.fixed_bytes} bytes; the device "
                f"has {memory_bytes}"
            )
        chosen = choose_ways(list(step.ways.values()), bound_bytes)
    except InfeasibleError as error:
        return BatchPlan(batch, None, None, (), epochs, None, str(error))
    step_s = step.fixed_s + chosen.time_s
    recomputed = tuple(module for module, way in zip(step.ways, chosen.ways, strict=True) if way.name == RECOMPUTE)
    training_s = math.ceil(dataset_size / batch) * step_s * epochs
    return BatchPlan(batch, step_s, step.fixed_bytes + chosen.memory_bytes, recomputed, epochs, training_s)
