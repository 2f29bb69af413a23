"""Store or recompute on a hand-made step, and the mini-batch of least training time."""

from itertools import product
from random import Random

import pytest

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.files.load import load_graph
from dlplacer.planning.hybrid.advise.layer_alternatives import Alternative
from dlplacer.planning.hybrid.advise.minibatch import plan_batches
from dlplacer.planning.hybrid.advise.recompute import StepChoices, step_choices

# Two blocks of two ops each; the backward of a block reads both of its activations.
FORWARD = [Op(name, "aten.relu", 1.0, phase="forward", module=f"{name[0]}.{name}") for name in ("a1", "a2", "b1", "b2")]
BACKWARD = [
    Op(f"{block}_back", "aten.relu_backward", 2.0, phase="backward", module=f"{block}.{block}1") for block in "ab"
]
WEIGHT = Op("w", "parameter", 0.0, phase="forward", module="a.a1", weight_bytes=10, gradient_bytes=10)
INPUT = Op("x", "input", 0.0, phase="forward")
GRAPH = OpGraph(
    (INPUT, WEIGHT, *FORWARD, *BACKWARD),
    (
        Edge("x", "a1", 5, tensor="x"),
        Edge("w", "a1", 10, tensor="w"),
        Edge("w", "a_back", 10, tensor="w"),
        Edge("a1", "a2", 100, tensor="a1"),
        Edge("a2", "b1", 40, tensor="a2"),
        Edge("b1", "b2", 300, tensor="b1"),
        Edge("b2", "b_back", 7, tensor="b2"),
        Edge("b1", "b_back", 300, tensor="b1"),
        Edge("b_back", "a_back", 40),
        Edge("a1", "a_back", 100, tensor="a1"),
        Edge("a2", "a_back", 40, tensor="a2"),
        Edge("x", "a_back", 5, tensor="x"),
    ),
)


def test_choices_of_a_step() -> None:
    step = step_choices(GRAPH, "any")
    assert step.fixed_s == 8.0
    # Weight and gradient 20, the input 5, a2 (read by the other block) 40, room for the larger block 307.
    assert step.fixed_bytes == 20 + 5 + 40 + 307
    assert step.alternatives["a"] == (Alternative("store", 0.0, 100), Alternative("recompute", 1.0, 0))
    assert step.alternatives["b"] == (Alternative("store", 0.0, 307), Alternative("recompute", 2.0, 0))


def test_recomputes_what_costs_least() -> None:
    # Held 65, blocks of 100 and 307: all stored 472; one computed again needs as much room as it saves; both 65 + 307.
    step = step_choices(GRAPH, "any")
    plans = {size: plan_batches({8: step}, size)[0] for size in (472, 471, 372)}
    assert [plan.step_s for plan in plans.values()] == [8.0, 11.0, 11.0]
    assert [plan.recomputed for plan in plans.values()] == [(), ("a", "b"), ("a", "b")]
    assert [plan.memory_bytes for plan in plans.values()] == [472, 372, 372]
    assert plan_batches({8: step}, 371)[0].step_s is None


def test_what_is_stored_for_another_module_is_not_computed_again() -> None:
    """c2 alone is inner to c; c1 is stored, for d reads it: computing c2 again takes 4 s, not 3 + 4."""
    ops = [
        Op(name, "aten.mm", time_s, phase="forward", module=f"{name[0]}.{name}")
        for name, time_s in (("c1", 3.0), ("c2", 4.0), ("d1", 1.0))
    ]
    back = Op("back", "aten.mm_backward", 1.0, phase="backward", module="c.c1")
    edges = (
        Edge("c1", "c2", 10, tensor="c1"),
        Edge("c1", "d1", 10, tensor="c1"),
        Edge("c1", "back", 10, tensor="c1"),
        Edge("c2", "back", 20, tensor="c2"),
    )
    step = step_choices(OpGraph((*ops, back), edges), "any")
    assert step.alternatives == {"c": (Alternative("store", 0.0, 20), Alternative("recompute", 4.0, 0))}
    assert (step.fixed_bytes, step.room_bytes) == (10 + 20, 20)


def test_the_least_time_is_that_of_all_choices() -> None:
    """Brute force over what is computed again: held + what is stored + the largest that is computed again."""
    draw = Random(5)
    for _ in range(150):
        inner = [draw.randint(1, 40) for _ in range(draw.randint(1, 6))]
        again_s = [float(draw.randint(1, 9)) for _ in inner]
        alternatives = {
            str(at): (Alternative("store", 0.0, size), Alternative("recompute", time_s, 0))
            for at, (size, time_s) in enumerate(zip(inner, again_s, strict=True))
        }
        step = StepChoices(10.0, 100 + max(inner), alternatives, max(inner))
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
    assert plans[0].samples_per_s == pytest.approx(5.0)
    assert "need 10000 bytes; the device has 5000" in plans[-1].reason
    slow = plan_batches(steps, 5_000, 1000, epochs=lambda batch: 1.0 if batch == 1 else 8.0)
    assert slow[0].batch == 1


def test_without_a_data_set_the_time_per_sample_ranks() -> None:
    """Steps of 1.1, 2 and 11 s for 1, 10 and 100 samples: the larger the batch, the less a sample takes."""
    steps = {batch: StepChoices(1.0 + batch / 10, 100 * batch, {}) for batch in (1, 10, 100)}
    plans = plan_batches(steps, 10**6)
    assert [plan.batch for plan in plans] == [100, 10, 1]
    assert all(plan.training_s is None for plan in plans)
    weighed = plan_batches(steps, 10**6, epochs=lambda batch: 4.0 if batch == 100 else 1.0)
    assert [plan.batch for plan in weighed] == [10, 100, 1]


def test_inception_trades_time_for_memory() -> None:
    step = step_choices(load_graph("inception_v3-train"), "V100")
    everything = sum(
        alternative.memory_bytes for alternatives in step.alternatives.values() for alternative in alternatives
    )
    held = step.fixed_bytes - step.room_bytes
    roomy = plan_batches({32: step}, held + everything)[0]
    tight = plan_batches({32: step}, held + everything // 2)[0]
    assert not roomy.recomputed
    assert roomy.step_s == pytest.approx(step.fixed_s)
    assert tight.recomputed
    assert step.fixed_s < tight.step_s < 1.34 * step.fixed_s
    assert tight.memory_bytes <= held + everything // 2


def test_mistakes() -> None:
    with pytest.raises(InputError, match="no backward pass"):
        step_choices(OpGraph((FORWARD[0],)), "any")
    with pytest.raises(InputError, match="op 'b' has no time on a 'T'"):
        step_choices(OpGraph((Op("b", "k", phase="backward"),)), "T")
    with pytest.raises(InputError, match="no mini-batch sizes"):
        plan_batches({}, 5)
    with pytest.raises(InputError, match="0 samples"):
        plan_batches({1: StepChoices(1, 1, {})}, 5, dataset_size=0)
