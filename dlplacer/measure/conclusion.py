"""One sentence about a run: what was gained or lost over plain PyTorch, and why."""

from collections.abc import Mapping
from dataclasses import dataclass

from dlplacer.core.units import format_seconds

NOISY = 0.1
"""Noise above which a machine is called noisy: quiet ones stay below 5 %."""
_NO_LOSS = 0.03


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The figures that a conclusion is drawn from; seconds per step, losses as in `RunReport`.

    `rivals`: how plain PyTorch or ``torch.compile`` ran → its seconds for the batch of all replicas. `baseline_s` is
    plain PyTorch's on one device, for the batch of one replica; None where it does not fit. `noise` and `plan_noise`
    are third less first quartile ÷ median of the baseline and of the plan's own steps; `devices` those of all replicas.
    """

    measured_s: float
    baseline_s: float | None
    rivals: Mapping[str, float]
    losses: Mapping[str, float]
    noise: float
    plan_noise: float
    devices: int
    replicas: int = 1

    @property
    def spread(self) -> float:
        """The share below which a difference of the two says nothing."""
        return max(self.noise, self.plan_noise)


def losses_of(
    baseline_s: float, alone_s: float, busy_s: float, makespan_s: float, host_s: float, share: float
) -> dict[str, float]:
    """Cause → seconds by which a predicted step exceeds an even share of the baseline on every device.

    A negative one is a gain. With `share` = replicas ÷ devices:

    - runtime: the ops cost more, placed on one device, than plain PyTorch's own step;
    - contention: they take longer while the other devices work;
    - waiting: devices wait for tensors or for each other, or have nothing left to do;
    - host: before the devices start, and after they end.
    """
    return {
        "runtime": share * (alone_s - baseline_s),
        "contention": share * (busy_s - alone_s),
        "waiting": makespan_s - share * busy_s,
        "host": host_s,
    }


def conclusion(outcome: RunOutcome) -> str:
    """One sentence: what is faster, by how much, and the largest cause of what the plan loses.

    If plain PyTorch or torch.compile is faster, it comes first. A difference below the noise is said to be none, and
    one device recommended.
    """
    parts = [_rival(outcome), _plan(outcome), _reason(outcome), _noise(outcome)]
    text = "; ".join(part for part in parts if part)
    return text[0].upper() + text[1:] + "."


def _rival(outcome: RunOutcome) -> str | None:
    """The quickest of the rivals, if it is quicker than the plan."""
    seconds, how = min(((seconds, how) for how, seconds in outcome.rivals.items()), default=(outcome.measured_s, ""))
    if seconds >= outcome.measured_s:
        return None
    times = f"{format_seconds(seconds)} per step against {format_seconds(outcome.measured_s)} of the plan"
    if outcome.measured_s - seconds <= outcome.spread * seconds:
        return f"{how} is faster by less than the noise of {100 * outcome.spread:.0f} %: {times}"
    return f"{how} is {outcome.measured_s / seconds:.2f}x as fast: {times}"


def _plan(outcome: RunOutcome) -> str | None:
    where = "on one device" if outcome.devices == 1 else f"on {outcome.devices} devices"
    if outcome.baseline_s is None:
        return f"the plan {where} takes {format_seconds(outcome.measured_s)} per step; the model fits on no single one"
    speedup = outcome.replicas * outcome.baseline_s / outcome.measured_s
    if abs(speedup - 1) <= outcome.spread:
        advice = "" if outcome.devices == 1 else ", so use one device"
        return (
            f"the plan {where} neither gains nor loses over plain PyTorch on one device: its {speedup:.2f}x is within "
            f"the noise of {100 * outcome.spread:.0f} %{advice}"
        )
    if speedup < 1:
        return f"the plan {where} loses: {speedup:.2f}x the speed of plain PyTorch on one device, so use one device"
    return f"the plan {where} gains: {speedup:.2f}x the speed of plain PyTorch on one device"


def _reason(outcome: RunOutcome) -> str | None:
    """The largest cause of the loss, if there is a loss that noise cannot be."""
    if outcome.baseline_s is None:
        return None
    ideal_s = outcome.replicas * outcome.baseline_s / outcome.devices
    if sum(outcome.losses.values()) <= max(_NO_LOSS, outcome.spread) * ideal_s:
        return None if outcome.devices == 1 else f"that is what {outcome.devices} devices can give"
    cause = max(outcome.losses, key=lambda name: outcome.losses[name])
    lost_s = sum(seconds for seconds in outcome.losses.values() if seconds > 0)
    best = f"{outcome.devices}x" if outcome.devices > 1 else "plain PyTorch's speed"
    share = f"{100 * outcome.losses[cause] / lost_s:.0f} % of what it misses of {best}"
    return f"most is lost to {_CAUSES[cause]} ({share})"


_CAUSES = {
    "runtime": "the runtime, whose ops cost more than those of plain PyTorch",
    "contention": "contention: ops take longer while the other devices work",
    "waiting": "idle devices, which wait for tensors and for each other",
    "host": "the host, before the devices start and after they end",
}


def _noise(outcome: RunOutcome) -> str | None:
    if outcome.noise > NOISY:
        share = f"{100 * outcome.noise:.0f} % of their length"
        return f"this machine is noisy: half of plain PyTorch's steps spread over {share}"
    if outcome.plan_noise > NOISY:
        return f"the plan's steps are noisy: half of them spread over {100 * outcome.plan_noise:.0f} % of their length"
    return None
