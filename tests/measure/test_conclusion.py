"""The sentence that ends a run: every branch from made figures, and the cause that it names is the largest."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.measure import run_report
from dlplacer.measure.run_report import RunReport, conclusion, losses_of

CAUSES = ("runtime", "contention", "waiting", "host")


def said(lost: dict[str, float], devices: int = 2, noise: float = 0.02, plan_noise: float = 0.0, **others: Any) -> str:
    """Of a step as long as an even share of a baseline of a second, and what is lost."""
    losses = {**dict.fromkeys(CAUSES, 0.0), **lost}
    measured_s = 1 / devices + sum(losses.values())
    report = RunReport(
        *(1.0, measured_s, 1.0, (), 1),
        measured_speedup=1 / measured_s,
        measured_quartiles_s=(0.0, plan_noise * measured_s),
        baseline_s=1.0,
        noise=noise,
        losses=losses,
        **others,
    )
    return conclusion(report, devices)


@pytest.mark.parametrize(
    ("lost_s", "cores_s", "beginning"),
    [
        (0.1, 0.5, "Plain PyTorch with 2 threads is 1.20x as fast: 500 ms per step"),
        (0.1, 0.7, "The plan on 2 devices gains"),
        (1.5, 1.1, "Plain PyTorch on one device is 2.00x as fast: 1 s per step"),
    ],
)
def test_the_quickest_rival_comes_first(
    lost_s: float, cores_s: float, beginning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_report, "usable_cores", lambda: [0, 1])
    assert said({"waiting": lost_s}, eager_all_cores_s=cores_s).startswith(beginning)


def test_a_difference_within_the_noise_is_none_and_one_device_is_advised() -> None:
    faster = said({"waiting": 0.45}, noise=0.08)
    assert "neither gains nor loses" in faster
    assert "use one device" in faster
    assert "faster by less than the noise of 8 %" in said({"waiting": 0.55}, plan_noise=0.08)
    noisy = said({"waiting": 0.45}, noise=2.0)
    assert "most is lost" not in noisy
    assert "this machine is noisy" in noisy
    assert "the plan's steps are noisy" in said({}, plan_noise=0.2)


def test_a_model_that_fits_on_no_device_has_no_rival() -> None:
    text = conclusion(RunReport(0.5, 0.5, 0.5, devices=(), steps=1), 2)
    assert text == "The plan on 2 devices takes 500 ms per step; the model fits on no single one."


# Two replicas on two devices each: B = 1, S = 1.2 alone, 1.4 busy, a makespan of 0.9 and 0.1 on the host.
def test_losses_add_up_to_what_the_step_exceeds_an_even_share_by() -> None:
    losses = losses_of(1.0, 1.2, 1.4, 0.9, 0.1, share=2 / 4)
    assert losses == pytest.approx({"runtime": 0.1, "contention": 0.1, "waiting": 0.2, "host": 0.1})
    assert sum(losses.values()) == pytest.approx(0.9 + 0.1 - 0.5)


SECONDS = st.floats(-0.1, 2.0)


@given(st.fixed_dictionaries(dict.fromkeys(CAUSES, SECONDS)), st.integers(1, 4), st.floats(0, 0.3))
def test_the_cause_that_is_named_is_the_largest(lost: dict[str, float], devices: int, noise: float) -> None:
    if 1 / devices + sum(lost.values()) <= 0.01:
        return
    _, _, reason = said(lost, devices, noise=noise).partition("most is lost to ")
    assert bool(reason) == (sum(lost.values()) > max(0.03, noise) / devices)
    first = {"runtime": "the runtime", "contention": "contention", "waiting": "idle devices", "host": "the host"}
    largest = tuple(first[name] for name, seconds in lost.items() if seconds == max(lost.values()))
    assert not reason or reason.startswith(largest)
