"""The mini-batch of least training time: argmin over X of ⌈|D| ÷ X⌉ · T*(X) · E(X) (section 3.1.3)."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.planning.hybrid.advise.layer_alternatives import Alternative, LayerAlternatives, choose_alternatives
from dlplacer.planning.hybrid.advise.recompute import RECOMPUTE, StepChoices


@dataclass(frozen=True)
class BatchPlan:
    """How a mini-batch would be run.

    Attributes
    ----------
    step_s
        T*(X); None where the batch does not fit.
    memory_bytes
        What the step needs with the chosen alternatives.
    recomputed
        Modules that compute their inner activations again.
    epochs, training_s
        E(X), and the seconds of the whole training; these are None where the size of the data set is not known.
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

    @property
    def effort_s(self) -> float:
        """What ranks batches: T*·E per sample where the data set is not known; infinite where the batch does not fit.

        A data set of one sample would make every epoch one step, and the smallest batch the best.
        """
        if self.step_s is None or self.epochs is None:
            return math.inf
        return self.step_s / self.batch * self.epochs if self.training_s is None else self.training_s


def plan_batches(
    steps: Mapping[int, StepChoices],
    memory_bytes: int,
    dataset_size: int | None = None,
    epochs: Callable[[int], float | None] = lambda batch: 1.0,
) -> tuple[BatchPlan, ...]:
    """Every mini-batch with its best alternatives, by training time, those that do not fit last.

    Parameters
    ----------
    steps
        Mini-batch → its step.
    memory_bytes
        Of the device.
    dataset_size
        |D|: samples of an epoch; None ranks by time per sample.
    epochs
        E(X): epochs until the target accuracy; None where training does not get there.

    Raises
    ------
    InputError
        If there are no mini-batches or no samples.
    """
    if not steps:
        raise InputError("there are no mini-batch sizes to choose from; give at least one")
    if dataset_size is not None and dataset_size < 1:
        raise InputError(f"the data set has {dataset_size} samples; give at least 1")
    plans = [_planned(batch, step, memory_bytes, dataset_size, epochs(batch)) for batch, step in steps.items()]
    return tuple(sorted(plans, key=lambda plan: plan.effort_s))


def _planned(
    batch: int, step: StepChoices, memory_bytes: int, dataset_size: int | None, epochs: float | None
) -> BatchPlan:
    if epochs is None:
        return BatchPlan(batch, None, None, (), None, None, "nothing is known of training with so large a batch")
    if step.fixed_bytes > memory_bytes:
        reason = (
            f"weights, gradients, inputs and activations between modules need {step.fixed_bytes} bytes; the device has "
            f"{memory_bytes}"
        )
        return BatchPlan(batch, None, None, (), epochs, None, reason)
    chosen, room_bytes = _chosen(step, memory_bytes)
    step_s = step.fixed_s + chosen.time_s
    recomputed = tuple(
        module
        for module, alternative in zip(step.alternatives, chosen.alternatives, strict=True)
        if alternative.name == RECOMPUTE
    )
    training_s = None if dataset_size is None else math.ceil(dataset_size / batch) * step_s * epochs
    needed_bytes = step.fixed_bytes - step.room_bytes + room_bytes + chosen.memory_bytes
    return BatchPlan(batch, step_s, needed_bytes, recomputed, epochs, training_s)


def _chosen(step: StepChoices, memory_bytes: int) -> tuple[LayerAlternatives, int]:
    """The alternatives of least time, and the room for the largest module that is computed again.

    For each size of that room, modules that need more of it are stored; the rest is a knapsack.
    """
    held_bytes = step.fixed_bytes - step.room_bytes
    found: list[tuple[LayerAlternatives, int]] = []
    for room_bytes in sorted({0, *map(_stored_bytes, step.alternatives.values())}):
        layers = [
            [
                alternative
                for alternative in alternatives
                if alternative.name != RECOMPUTE or _stored_bytes(alternatives) <= room_bytes
            ]
            for alternatives in step.alternatives.values()
        ]
        with suppress(InfeasibleError):
            found.append((choose_alternatives(layers, memory_bytes - held_bytes - room_bytes), room_bytes))
            # Rooms grow and this one loses no time: larger ones only take memory.
            if not found[-1][0].time_s:
                break
    return min(found, key=lambda pair: (pair[0].time_s, pair[0].memory_bytes + pair[1]))


def _stored_bytes(alternatives: Sequence[Alternative]) -> int:
    return max(alternative.memory_bytes for alternative in alternatives)
