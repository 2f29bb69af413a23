"""What a run says, in one sentence: what was gained or lost over plain PyTorch, and why."""

from collections.abc import Callable
from dataclasses import dataclass

from dlplacer.core.units import format_seconds
from dlplacer.measure.fidelity.loss import Loss

NOISY = 0.1
"""Noise above which a machine is called noisy: quiet ones stay below 5 %."""
# Threads of one interpreter gain nothing from ops shorter than this: each holds the interpreter's lock for a part of
# its time, and what is left to run beside others is no longer than handing the lock over.
_SMALL_OP_S = 5e-5
_NO_LOSS = 0.03


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures that a conclusion is drawn from; seconds per step, as in `RunReport`.

    Attributes
    ----------
    devices
        How many the plan uses, of all replicas.
    op_s
        Mean time of an op that takes time, on one device.
    all_cores
        How many threads plain PyTorch had for `eager_all_cores_s`.
    """

    measured_s: float
    baseline_s: float
    eager_all_cores_s: float | None
    noise: float
    devices: int
    op_s: float
    loss: Loss
    replicas: int = 1
    all_cores: int = 1

    @property
    def speedup(self) -> float:
        """Samples per second over those of plain PyTorch on one device."""
        return self.replicas * self.baseline_s / self.measured_s

    @property
    def has_small_ops(self) -> bool:
        """Whether an op is too short on average for threads of one interpreter to gain from another device."""
        return self.op_s < _SMALL_OP_S


def conclusion(outcome: Outcome) -> str:
    """One sentence: what is faster, by how much, and the largest cause of what the plan loses.

    A difference that is smaller than the noise of the baseline is called none. If plain PyTorch on all cores or on one
    device is faster, it comes first.
    """
    parts = [part for part in (_plain_pytorch(outcome), _plan(outcome), _reason(outcome), _noise(outcome)) if part]
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def causes(outcome: Outcome) -> dict[str, float]:
    """Cause → seconds of loss. With small ops the interpreter has both what placing costs and what contention costs."""
    loss = outcome.loss
    found = {"idle": loss.idle_s, "hand-overs": loss.handover_s, "host": loss.host_s}
    if outcome.has_small_ops:
        return {"interpreter": loss.runtime_s + loss.contention_s, **found}
    return {"runtime": loss.runtime_s, "contention": loss.contention_s, **found}


def _plain_pytorch(outcome: Outcome) -> str | None:
    """That plain PyTorch is faster, if it is."""
    all_cores_s = outcome.eager_all_cores_s
    if all_cores_s is not None and all_cores_s < min(outcome.measured_s, outcome.baseline_s) and outcome.all_cores > 1:
        return _faster(f"plain PyTorch with {outcome.all_cores} threads", all_cores_s, outcome.measured_s)
    if outcome.replicas == 1 and outcome.baseline_s < outcome.measured_s:
        return _faster("plain PyTorch on one device", outcome.baseline_s, outcome.measured_s)
    return None


def _faster(who: str, seconds: float, measured_s: float) -> str:
    times = f"{format_seconds(seconds)} per step against {format_seconds(measured_s)} of the plan"
    return f"{who} is {measured_s / seconds:.2f}x as fast: {times}"


def _plan(outcome: Outcome) -> str:
    speedup, noise = outcome.speedup, outcome.noise
    where = "on one device" if outcome.devices == 1 else f"on {outcome.devices} devices"
    if abs(speedup - 1) <= noise:
        difference = f"its {speedup:.2f}x is within the noise of {100 * noise:.0f} %"
        return f"the plan {where} neither gains nor loses over plain PyTorch on one device: {difference}"
    verb = "gains" if speedup > 1 else "loses"
    return f"the plan {where} {verb}: {speedup:.2f}x the speed of plain PyTorch on one device"


def _reason(outcome: Outcome) -> str | None:
    loss, found = outcome.loss, causes(outcome)
    ideal_s = loss.ideal_s
    most = f"{outcome.devices:g}x" if outcome.devices > 1 else "plain PyTorch's own speed"
    if loss.total_s <= _NO_LOSS * ideal_s:
        return None if outcome.devices == 1 else f"that is all that {outcome.devices} devices can give"
    cause = max(found, key=lambda name: found[name])
    lost = sum(seconds for seconds in found.values() if seconds > 0)
    share = f"{100 * found[cause] / lost:.0f} % of what it misses of {most}"
    return f"most is lost to {_CAUSES[cause](outcome)} ({share})"


def _interpreter(outcome: Outcome) -> str:
    return (
        f"ops too small for the interpreter, {format_seconds(outcome.op_s)} on average, which threads of one process "
        "run one after another"
        if outcome.devices > 1
        else f"the runtime's own work between ops too small for it, {format_seconds(outcome.op_s)} on average"
    )


def _contention(outcome: Outcome) -> str:
    return "contention: ops take longer while the other devices work"


def _idle(outcome: Outcome) -> str:
    exchange = " and for the exchange of gradients" if outcome.replicas > 1 else ""
    return f"idle devices, which wait for each other{exchange}"


def _handovers(outcome: Outcome) -> str:
    return "handing tensors over between devices"


def _host(outcome: Outcome) -> str:
    return "the host, before the devices start and after they end"


def _runtime(outcome: Outcome) -> str:
    return "the runtime, whose ops cost more than those of plain PyTorch"


_CAUSES: dict[str, Callable[[Outcome], str]] = {
    "interpreter": _interpreter,
    "runtime": _runtime,
    "contention": _contention,
    "idle": _idle,
    "hand-overs": _handovers,
    "host": _host,
}


def _noise(outcome: Outcome) -> str | None:
    if outcome.noise <= NOISY:
        return None
    return (
        f"the machine is noisy, half of the baseline's steps are spread over {100 * outcome.noise:.0f} % of its length"
    )
