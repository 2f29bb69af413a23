"""The sentence that ends a run: every branch from made figures, and the cause that it names is the largest."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.measure.fidelity.conclusion import RunOutcome, causes, conclusion
from dlplacer.measure.fidelity.loss import Loss

PHRASES = {
    "interpreter": ("ops too small", "the interpreter's work between ops"),
    "runtime": ("the runtime",),
    "contention": ("contention",),
    "idle": ("idle devices",),
    "hand-overs": ("handing tensors over",),
    "host": ("the host",),
}


def outcome(loss: Loss, baseline_s: float = 1.0, devices: int = 2, **others: object) -> RunOutcome:
    """Of a step whose measured time is what the loss leaves of an even share."""
    known = {"eager_all_cores_s": None, "noise": 0.02, "op_s": 1e-3}
    measured_s = loss.ideal_s + loss.total_s
    return RunOutcome(measured_s=measured_s, baseline_s=baseline_s, devices=devices, loss=loss, **{**known, **others})


def lost(ideal_s: float = 0.5, **seconds: float) -> Loss:
    return Loss(
        ideal_s, **{**dict.fromkeys(("runtime_s", "contention_s", "idle_s", "handover_s", "host_s"), 0.0), **seconds}
    )


def test_a_gain_says_how_much_and_what_is_missing() -> None:
    assert conclusion(outcome(lost(idle_s=0.09, contention_s=0.01))) == (
        "The plan on 2 devices gains: 1.67x the speed of plain PyTorch on one device; most is lost to idle devices, "
        "which wait for each other (90 % of what it misses of 2x)."
    )


def test_a_faster_plain_pytorch_comes_first() -> None:
    said = conclusion(outcome(lost(idle_s=0.1), eager_all_cores_s=0.5, all_cores=2))
    assert said.startswith(
        "Plain PyTorch with 2 threads is 1.20x as fast: 500 ms per step against 600 ms of the plan; "
    )
    assert "gains: 1.67x" in said
    said = conclusion(outcome(lost(idle_s=1.5)))
    assert said.startswith(
        "Plain PyTorch on one device is 2.00x as fast: 1 s per step against 2 s of the plan; most is "
    )
    said = conclusion(outcome(lost(idle_s=1.5), eager_all_cores_s=1.1, all_cores=2))  # slower than on one
    assert said.startswith("Plain PyTorch on one device is 2.00x as fast")


def test_a_slower_plain_pytorch_is_left_out() -> None:
    assert conclusion(outcome(lost(idle_s=0.1), eager_all_cores_s=0.7, all_cores=2)).startswith("The plan on 2 devices")


@pytest.mark.parametrize(
    ("seconds", "others", "phrase"),
    [
        ({"contention_s": 0.2}, {}, "contention"),
        ({"contention_s": 0.2}, {"op_s": 1e-5}, "ops too small, 10 us on average"),
        ({"runtime_s": 0.2}, {}, "the runtime, whose ops cost more"),
        ({"runtime_s": 0.2}, {"op_s": 1e-5}, "ops too small"),
        ({"handover_s": 0.2}, {}, "handing tensors over"),
        ({"host_s": 0.2}, {"op_s": 1e-5}, "the host"),
        ({"idle_s": 0.2}, {"replicas": 2}, "and for the exchange of gradients"),
    ],
)
def test_each_cause_has_its_words(seconds: dict[str, float], others: dict[str, float], phrase: str) -> None:
    assert phrase in conclusion(outcome(lost(**seconds, **({} if "idle_s" in seconds else {"idle_s": 0.1})), **others))


def test_one_device_has_nothing_to_contend_with() -> None:
    said = conclusion(outcome(lost(1.0, contention_s=0.3, runtime_s=0.1), devices=1))
    assert "the runtime" in said
    assert "100 % of what it misses of plain PyTorch's speed" in said
    small = conclusion(outcome(lost(1.0, contention_s=0.3), devices=1, op_s=1e-5))
    assert "the interpreter's work between ops, which are small, 10 us on average" in small


def test_what_is_within_the_noise_is_no_difference() -> None:
    faster = outcome(lost(idle_s=0.45), noise=0.08)
    assert conclusion(faster).startswith(
        "The plan on 2 devices neither gains nor loses over plain PyTorch on one device: its 1.05x is within the noise "
        "of 8 %; most is lost to idle devices"
    )
    slower = conclusion(outcome(lost(idle_s=0.55), noise=0.08))
    assert slower.startswith(
        "Plain PyTorch on one device is faster by less than the noise of 8 %: 1 s per step against"
    )
    noisy = conclusion(outcome(lost(idle_s=0.45), noise=2.0))
    assert "most is lost" not in noisy
    assert noisy.endswith("this machine is noisy: half of plain PyTorch's steps spread over 200 % of their length.")


def test_a_noisy_plan_beside_a_quiet_baseline_is_not_explained() -> None:
    noisy = outcome(lost(contention_s=0.06), plan_noise=0.2)
    assert conclusion(noisy) == (
        "The plan on 2 devices gains: 1.79x the speed of plain PyTorch on one device; that is what 2 devices can give; "
        "the plan's steps are noisy: half of them spread over 20 % of their length."
    )
    assert "most is lost to contention" in conclusion(outcome(lost(contention_s=0.06)))
    assert "most is lost to contention" in conclusion(outcome(lost(contention_s=0.3), plan_noise=0.2))
    close = conclusion(outcome(lost(contention_s=0.55), plan_noise=0.2))
    assert close.startswith("Plain PyTorch on one device is faster by less than the noise of 20 %")
    assert "half of plain PyTorch's steps" in conclusion(outcome(lost(), noise=0.3, plan_noise=0.4))


def test_a_plan_that_misses_nothing() -> None:
    assert conclusion(outcome(lost(idle_s=0.01))).endswith("; that is what 2 devices can give.")
    assert "lost" not in conclusion(outcome(lost(1.0, idle_s=0.01), devices=1))


SECONDS = st.floats(-0.2, 2.0)


@given(
    st.builds(Loss, st.just(0.5), SECONDS, SECONDS, SECONDS, SECONDS, SECONDS),
    st.integers(1, 4),
    st.floats(0, 0.3),
    st.floats(0, 0.3),
    st.sampled_from([1e-5, 1e-3]),
    st.one_of(st.none(), st.floats(0.1, 3)),
)
def test_the_cause_that_is_named_is_the_largest(
    loss: Loss, devices: int, noise: float, plan_noise: float, op_s: float, all_cores_s: float | None
) -> None:
    loss = replace(loss, ideal_s=1 / devices)
    if loss.ideal_s + loss.total_s <= 0.01:
        return
    noises = {"noise": noise, "plan_noise": plan_noise}
    found = outcome(loss, devices=devices, **noises, op_s=op_s, eager_all_cores_s=all_cores_s, all_cores=2)
    said = conclusion(found)
    assert said.count(".") - sum(part.count(".") for part in said.split() if part[-1] != ".") == 1  # one sentence
    _, _, reason = said.partition("most is lost to ")
    assert bool(reason) == (loss.total_s > max(0.03, noise, plan_noise) * loss.ideal_s)
    if reason:
        by_cause = causes(found)
        assert sum(by_cause.values()) == pytest.approx(loss.total_s)
        largest = max(by_cause.values())
        assert any(reason.startswith(PHRASES[name]) for name, seconds in by_cause.items() if seconds == largest)
    rivals = [seconds for seconds in (all_cores_s, 1.0) if seconds is not None and seconds < found.measured_s]
    assert said.startswith("Plain PyTorch") == bool(rivals)
