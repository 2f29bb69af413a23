"""Store or recompute on a hand-made step, and the mini-batch of least training time."""

from itertools import product
from random import Random

import pytest

from dlplacer.files.load import load_graph
from dlplacer.planning.hybrid.minibatch import Recomputation, StepChoices, plan_batches, step_choices


def test_the_least_time_is_that_of_all_choices() -> None:
    """Brute force over what is computed again: held + what is stored + the largest that is computed again."""
    draw = Random(5)
    for _ in range(150):
        inner = [draw.randint(1, 40) for _ in range(draw.randint(1, 6))]
        again_s = [float(draw.randint(1, 9)) for _ in inner]
        modules = {
            str(at): Recomputation(time_s, size) for at, (size, time_s) in enumerate(zip(inner, again_s, strict=True))
        }
        step = StepChoices(10.0, 100, modules)
        memory = 100 + draw.randint(max(inner), sum(inner) + 2)
        best = min(
            10.0 + sum(time_s for time_s, chosen in zip(again_s, choice, strict=True) if chosen)
            for choice in product([False, True], repeat=len(inner))
            if 100
            + sum(size for size, chosen in zip(inner, choice, strict=True) if not chosen)
            + max((size for size, chosen in zip(inner, choice, strict=True) if chosen), default=0)
            <= memory
        )
        (plan,) = plan_batches({1: step}, memory)
        assert plan.step_s == best
        assert plan.memory_bytes is not None
        assert plan.memory_bytes <= memory


def test_the_best_batch_weighs_steps_time_and_epochs() -> None:
    steps = {batch: StepChoices(1.0 + batch / 10, 100 * batch, {}) for batch in (1, 10, 100)}
    plans = plan_batches(steps, 5_000, dataset_size=1000)
    assert [plan.batch for plan in plans] == [10, 1, 100]
    assert plans[0].training_s == pytest.approx(100 * 2.0)
    assert "need 10000 bytes; the device has 5000" in plans[-1].reason
    slow = plan_batches(steps, 5_000, 1000, epochs=lambda batch: 1.0 if batch == 1 else 8.0)
    assert slow[0].batch == 1


def test_inception_trades_time_for_memory() -> None:
    step = step_choices(load_graph("inception_v3-train"), "V100")
    everything = sum(module.stored_bytes for module in step.modules.values())
    held = step.fixed_bytes
    roomy = plan_batches({32: step}, held + everything)[0]
    tight = plan_batches({32: step}, held + everything // 2)[0]
    assert not roomy.recomputed
    assert roomy.step_s == pytest.approx(step.fixed_s)
    assert tight.recomputed
    # M_bound: all activations stored, the largest workspace not counted.
    assert roomy.bound_bytes == step.workspace_bytes
    assert tight.bound_bytes == step.workspace_bytes - (everything - everything // 2)
    assert step.fixed_s < tight.step_s < 1.34 * step.fixed_s
    assert tight.memory_bytes <= held + everything // 2
