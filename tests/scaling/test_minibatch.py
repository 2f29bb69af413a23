"""Store or recompute on a hand-made step, and the mini-batch of least training time."""

import pytest

from dlplacer.errors import InputError
from dlplacer.graph import Edge, Op, OpGraph
from dlplacer.load import load_graph
from dlplacer.scaling.advise.choice import Way
from dlplacer.scaling.advise.minibatch import plan_batches
from dlplacer.scaling.advise.recompute import StepChoices, step_choices

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
    assert step.ways["a"] == (Way("store", 0.0, 100), Way("recompute", 1.0, 0))
    assert step.ways["b"] == (Way("store", 0.0, 307), Way("recompute", 2.0, 0))


def test_recomputes_what_costs_least() -> None:
    step = step_choices(GRAPH, "any")
    plans = {extra: plan_batches({8: step}, step.fixed_bytes + extra)[0] for extra in (407, 400, 300, 0)}
    assert [plan.step_s for plan in plans.values()] == [8.0, 9.0, 10.0, 11.0]
    assert [plan.recomputed for plan in plans.values()] == [(), ("a",), ("b",), ("a", "b")]
    assert plan_batches({8: step}, step.fixed_bytes - 1)[0].step_s is None


def test_the_best_batch_weighs_steps_time_and_epochs() -> None:
    steps = {batch: StepChoices(1.0 + batch / 10, 100 * batch, {}) for batch in (1, 10, 100)}
    plans = plan_batches(steps, 5_000, dataset_size=1000)
    assert [plan.batch for plan in plans] == [10, 1, 100]
    assert plans[0].training_s == pytest.approx(100 * 2.0)
    assert plans[0].samples_per_s == pytest.approx(5.0)
    assert "need 10000 bytes; the device has 5000" in plans[-1].reason
    slow = plan_batches(steps, 5_000, 1000, epochs=lambda batch: 1.0 if batch == 1 else 8.0)
    assert slow[0].batch == 1


def test_inception_trades_time_for_memory() -> None:
    step = step_choices(load_graph("inception_v3-train"), "V100")
    everything = sum(way.memory_bytes for ways in step.ways.values() for way in ways)
    roomy = plan_batches({32: step}, step.fixed_bytes + everything)[0]
    tight = plan_batches({32: step}, step.fixed_bytes + everything // 2)[0]
    assert not roomy.recomputed
    assert roomy.step_s == pytest.approx(step.fixed_s)
    assert tight.recomputed
    assert step.fixed_s < tight.step_s < 1.34 * step.fixed_s
    assert tight.memory_bytes <= step.fixed_bytes + everything // 2


def test_mistakes() -> None:
    with pytest.raises(InputError, match="no backward pass"):
        step_choices(OpGraph((FORWARD[0],)), "any")
    with pytest.raises(InputError, match="op 'b' has no time on device type 'T'"):
        step_choices(OpGraph((Op("b", "k", phase="backward"),)), "T")
    with pytest.raises(InputError, match="no mini-batch sizes"):
        plan_batches({}, 5)
    with pytest.raises(InputError, match="0 samples"):
        plan_batches({1: StepChoices(1, 1, {})}, 5, dataset_size=0)
