"""What a run says, in one sentence: what was gained or lost over plain PyTorch, and why."""

from collections.abc import Callable
from dataclasses import dataclass

from dlplacer.core.units import format_seconds
from dlplacer.measure.fidelity.loss import Loss
from dlplacer.measure.fidelity.op_samples import SMALL_OP_S

NOISY = 0.1
"""Noise above which a machine is called noisy: quiet ones stay below 5 %."""
_NO_LOSS = 0.03
_ONE_DEVICE = "on one device"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The figures that a conclusion is drawn from; seconds per step, as in `RunReport`.

    Attributes
    ----------
    noise, plan_noise
        Third less first quartile ÷ mean between them: of the baseline, and of the plan's own steps. A plan may be
        disturbed where plain PyTorch, on one device, is not.
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
    plan_noise: float = 0.0

    @property
    def spread(self) -> float:
        """The share below which a difference of the two says nothing."""
        return max(self.noise, self.plan_noise)

    @property
    def speedup(self) -> float:
        """Samples per second over those of plain PyTorch on one device."""
        return self.replicas * self.baseline_s / self.measured_s

    @property
    def has_small_ops(self) -> bool:
        """Whether an op is too short on average for threads of one interpreter to gain from another device."""
        return self.op_s < SMALL_OP_S


def conclusion(outcome: RunOutcome) -> str:
    """One sentence: what is faster, by how much, and the largest cause of what the plan loses.

    If plain PyTorch on all cores or on one device is faster, it comes first. A difference below the noise of
    either is said to be none.
    """
    parts = [_plain_pytorch(outcome), _plan(outcome), _reason(outcome), _noise(outcome)]
    text = "; ".join(part for part in parts if part)
    return text[0].upper() + text[1:] + "."


def causes(outcome: RunOutcome) -> dict[str, float]:
    """Cause → seconds of loss.

    With small ops the interpreter has both what placing and what contention costs; on one device nothing contends.
    """
    loss = outcome.loss
    found = {"idle": loss.idle_s, "hand-overs": loss.handover_s, "host": loss.host_s}
    if outcome.has_small_ops:
        return {"interpreter": loss.runtime_s + loss.contention_s, **found}
    if outcome.devices == 1:
        return {"runtime": loss.runtime_s + loss.contention_s, **found}
    return {"runtime": loss.runtime_s, "contention": loss.contention_s, **found}


def _rival(outcome: RunOutcome) -> tuple[str, float] | None:
    """Plain PyTorch where it is faster than the plan: how it ran, and its seconds."""
    all_cores_s = outcome.eager_all_cores_s
    if all_cores_s is not None and outcome.all_cores > 1 and all_cores_s < min(outcome.measured_s, outcome.baseline_s):
        return f"with {outcome.all_cores} threads", all_cores_s
    if outcome.speedup < 1:
        return _ONE_DEVICE, outcome.baseline_s * outcome.replicas
    return None


def _plain_pytorch(outcome: RunOutcome) -> str | None:
    """That plain PyTorch is faster, if it is."""
    rival = _rival(outcome)
    if rival is None:
        return None
    how, seconds = rival
    times = f"{format_seconds(seconds)} per step against {format_seconds(outcome.measured_s)} of the plan"
    if outcome.measured_s - seconds <= outcome.spread * seconds:
        return f"plain PyTorch {how} is faster by less than the noise of {100 * outcome.spread:.0f} %: {times}"
    return f"plain PyTorch {how} is {outcome.measured_s / seconds:.2f}x as fast: {times}"


def _plan(outcome: RunOutcome) -> str | None:
    """What the plan gains or loses over plain PyTorch on one device, unless that has been said."""
    speedup, noise = outcome.speedup, outcome.spread
    rival = _rival(outcome)
    if rival is not None and rival[0] == _ONE_DEVICE:
        return None
    where = _ONE_DEVICE if outcome.devices == 1 else f"on {outcome.devices} devices"
    if abs(speedup - 1) <= noise:
        difference = f"its {speedup:.2f}x is within the noise of {100 * noise:.0f} %"
        return f"the plan {where} neither gains nor loses over plain PyTorch on one device: {difference}"
    verb = "gains" if speedup > 1 else "loses"
    return f"the plan {where} {verb}: {speedup:.2f}x the speed of plain PyTorch on one device"


def _reason(outcome: RunOutcome) -> str | None:
    """The largest cause of the loss, if there is a loss that noise cannot be."""
    loss, found = outcome.loss, causes(outcome)
    if loss.total_s <= max(_NO_LOSS, outcome.spread) * loss.ideal_s:
        return None if outcome.devices == 1 else f"that is what {outcome.devices} devices can give"
    cause = max(found, key=lambda name: found[name])
    lost_s = sum(seconds for seconds in found.values() if seconds > 0)
    best = f"{outcome.devices}x" if outcome.devices > 1 else "plain PyTorch's speed"
    return (
        f"most is lost to {_CAUSES[cause](outcome)} ({100 * found[cause] / lost_s:.0f} % of what it misses of {best})"
    )


def _interpreter(outcome: RunOutcome) -> str:
    mean = f"{format_seconds(outcome.op_s)} on average"
    if outcome.devices == 1:
        return f"the interpreter's work between ops, which are small, {mean}"
    return f"ops too small, {mean}: threads of one interpreter run them one after another"


def _contention(outcome: RunOutcome) -> str:
    return "contention: ops take longer while the other devices work"


def _idle(outcome: RunOutcome) -> str:
    exchange = " and for the exchange of gradients" if outcome.replicas > 1 else ""
    return f"idle devices, which wait for each other{exchange}"


def _handovers(outcome: RunOutcome) -> str:
    return "handing tensors over between devices"


def _host(outcome: RunOutcome) -> str:
    return "the host, before the devices start and after they end"


def _runtime(outcome: RunOutcome) -> str:
    return "the runtime, whose ops cost more than those of plain PyTorch"


_CAUSES: dict[str, Callable[[RunOutcome], str]] = {
    "interpreter": _interpreter,
    "runtime": _runtime,
    "contention": _contention,
    "idle": _idle,
    "hand-overs": _handovers,
    "host": _host,
}


def _noise(outcome: RunOutcome) -> str | None:
    if outcome.noise > NOISY:
        spread = f"plain PyTorch's steps spread over {100 * outcome.noise:.0f} % of their length"
        return f"this machine is noisy: half of {spread}"
    if outcome.plan_noise > NOISY:
        return f"the plan's steps are noisy: half of them spread over {100 * outcome.plan_noise:.0f} % of their length"
    return None
