"""What a snapshot of a module follows, and what it leaves alone: edits of the former are edits of the step."""

import functools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from dlplacer.runtime.placed.module_snapshot import ModuleSnapshot


class Rates:
    """A configuration of a class that a user wrote."""

    def __init__(self) -> None:
        self.drop, self.inner = 0.1, SimpleNamespace(heads=[4, 8])


@dataclass(slots=True)
class WithSlots:
    """A configuration without a dictionary of attributes."""

    drop: float = 0.1


class Criterion:
    """A loss that is no module."""

    def __init__(self) -> None:
        self.weight, self.classes = 0.5, torch.ones(3)

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        return output.sum() * self.weight

    def doubled(self, output: torch.Tensor) -> torch.Tensor:
        return 2 * self(output)


class Trainer:
    """Refers to the model that it trains, as trainers do."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.history, self.loop = model, [0.0], SimpleNamespace(step=0)

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return output.sum()


class Holder(nn.Module):
    """Holds values of many sorts."""

    rate = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.nested, self.listed, self.fixed = {"deep": {"k": 1.0}}, [1.0, [2.0]], (1.0, {"z": 2.0})
        self.rates, self.slots, self.by_name = Rates(), WithSlots(), {"x": Rates()}
        self.queue, self.ordered = deque([1.0]), OrderedDict(a=1.0)
        self.act = functools.partial(functional.leaky_relu, negative_slope=0.1)
        self.mask, self.masks = torch.ones(4), [torch.ones(4)]
        self.trainer, self.log = Trainer(self), logging.getLogger(__name__)
        self.round = self.nested
        self.nested["back"] = {"again": self.nested}


EDITS: dict[str, Callable[[Any], object]] = {
    "nested.deep.k": lambda holder: holder.nested["deep"].update(k=2.0),
    "listed.1": lambda holder: holder.listed[1].append(3.0),
    "fixed.1.z": lambda holder: holder.fixed[1].update(z=3.0),
    "rates.drop": lambda holder: setattr(holder.rates, "drop", 0.5),
    "rates.inner.heads": lambda holder: holder.rates.inner.heads.append(1),
    "slots": lambda holder: setattr(holder.slots, "drop", 0.5),
    "by_name.x.inner.heads": lambda holder: holder.by_name["x"].inner.heads.clear(),
    "queue": lambda holder: holder.queue.append(2.0),
    "ordered.a": lambda holder: holder.ordered.update(a=2.0),
    "act.keywords.negative_slope": lambda holder: holder.act.keywords.update(negative_slope=0.5),
    "fc.weight.strides": lambda holder: setattr(holder.fc.weight, "data", holder.fc.weight.data.t()),
    "(loss).weight": lambda holder: setattr(CRITERION, "weight", 2.0),
}
CRITERION = Criterion()


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_seen_and_named(name: str) -> None:
    holder = Holder()
    before = ModuleSnapshot({"": holder}, {"(loss)": CRITERION})
    assert before.holds()
    EDITS[name](holder)
    assert not before.holds()
    after = ModuleSnapshot({"": holder}, {"(loss)": CRITERION})
    assert after.holds()
    assert after.difference(before).startswith(f"{name}")


def test_a_tensor_that_is_replaced_by_an_equal_one_is_another() -> None:
    holder = Holder()
    for edit in (
        lambda: setattr(holder, "mask", torch.ones(4)),
        lambda: holder.masks.__setitem__(0, torch.ones(4)),
        lambda: setattr(holder, "mask", torch.ones(1)),
        lambda: setattr(holder, "mask", torch.ones(1)),
    ):
        before = ModuleSnapshot({"": holder})
        edit()
        assert not before.holds()
        assert ModuleSnapshot({"": holder}).holds()


def test_what_is_in_a_tensor_is_no_edit() -> None:
    holder = Holder()
    before = ModuleSnapshot({"": holder})
    holder.mask.mul_(2)
    holder.masks[0].zero_()
    assert before.holds()


def test_the_work_of_a_trainer_and_of_a_logger_is_no_edit() -> None:
    holder = Holder()
    before = ModuleSnapshot({"": holder}, {"(loss)": holder.trainer.loss})
    holder.trainer.history.append(1.0)
    holder.trainer.loop.step += 1
    logging.getLogger("another").isEnabledFor(logging.DEBUG)
    assert before.holds()


def test_a_method_of_a_loss_is_followed_to_what_it_belongs_to() -> None:
    criterion = Criterion()
    before = ModuleSnapshot({"": nn.Linear(2, 2)}, {"(loss)": criterion.doubled})
    criterion.weight = 9.0
    assert not before.holds()


@pytest.fixture
def restored_class() -> Iterator[None]:
    forward = Holder.forward
    yield
    Holder.forward, Holder.rate = forward, 1.0  # type: ignore[method-assign]


@pytest.mark.usefixtures("restored_class")
def test_what_is_set_on_a_class_is_seen() -> None:
    holder = Holder()
    for name, value in (("forward", lambda self, x: x), ("rate", 2.0)):
        before = ModuleSnapshot({"": holder})
        setattr(Holder, name, value)
        assert not before.holds()
        assert ModuleSnapshot({"": holder}).difference(before).startswith(f"class Holder.{name}")


@pytest.mark.parametrize("register", [register_module_forward_hook, register_module_forward_pre_hook])
def test_a_hook_for_every_module_is_seen(register: Callable[..., Any]) -> None:
    module = nn.Linear(2, 2)
    before = ModuleSnapshot({"": module})
    handle = register(lambda *given: None)
    try:
        assert not before.holds()
    finally:
        handle.remove()
    assert before.holds()


FACTOR, UNREAD, SETTINGS = 1.0, 1.0, {"share": 0.5}
WORDS = [str(number) for number in range(3000)]


def helper(output: torch.Tensor) -> torch.Tensor:
    return output * SETTINGS["share"] if WORDS else output


def with_globals(output: torch.Tensor) -> torch.Tensor:
    return helper(output).sum() * FACTOR


def with_attribute(output: torch.Tensor) -> torch.Tensor:
    return output.sum() * with_attribute.factor  # type: ignore[attr-defined]


with_attribute.factor = 1.0  # type: ignore[attr-defined]


class Scaled(nn.Module):
    """Computes with a global, in a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = np.ones(3)

    @property
    def factor(self) -> float:
        return FACTOR

    @torch.autocast("cpu", enabled=False)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def closure() -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[float], None]]:
    factor = 1.0

    def loss(output: torch.Tensor) -> torch.Tensor:
        return output.sum() * factor

    def change(value: float) -> None:
        nonlocal factor
        factor = value

    return loss, change


@pytest.fixture
def restored_globals() -> Iterator[None]:
    yield
    globals().update(FACTOR=1.0, UNREAD=1.0, SETTINGS={"share": 0.5})
    with_attribute.factor = 1.0  # type: ignore[attr-defined]


@pytest.mark.usefixtures("restored_globals")
def test_what_a_function_reads_is_followed() -> None:
    loss, change = closure()
    module = Scaled()
    edits: list[tuple[Any, Callable[[], object], str]] = [
        (with_globals, lambda: globals().update(FACTOR=2.0), "(loss).FACTOR: 1.0, now 2.0"),
        (torch.sum, lambda: globals().update(FACTOR=3.0), "Scaled.factor.FACTOR: 2.0, now 3.0"),
        (with_globals, lambda: SETTINGS.update(share=0.1), "(loss).helper.SETTINGS.share: 0.5, now 0.1"),
        (with_attribute, lambda: setattr(with_attribute, "factor", 3.0), "(loss).factor: 1.0, now 3.0"),
        (loss, lambda: change(4.0), "(loss).factor: 1.0, now 4.0"),
        (functools.partial(loss), lambda: change(5.0), "(loss).func.factor: 4.0, now 5.0"),
        (loss, lambda: module.table.__imul__(2), "table.elements"),
        (loss, lambda: setattr(module, "table", np.ones(3)), "table: "),
    ]
    for criterion, edit, told in edits:
        before = ModuleSnapshot({"": module}, {"(loss)": criterion})
        assert before.holds()
        edit()
        assert not before.holds(), told
        after = ModuleSnapshot({"": module}, {"(loss)": criterion})
        assert after.holds()
        assert after.difference(before).startswith(told)


@pytest.mark.usefixtures("restored_globals")
def test_what_a_function_does_not_read_is_no_edit() -> None:
    before = ModuleSnapshot({"": Scaled()}, {"(loss)": with_globals})
    globals().update(UNREAD=2.0, sum=3.0)
    WORDS.append("a vocabulary, which would take long to compare")
    try:
        assert before.holds()
    finally:
        del globals()["sum"]


@pytest.mark.parametrize(("before", "after"), [(2, 2.0), (1, True), (0.0, False)])
def test_equal_numbers_of_other_types_are_others(before: Any, after: Any) -> None:
    module = Scaled()
    module.gain = before
    taken = ModuleSnapshot({"": module})
    assert taken.holds()
    module.gain = after
    assert not taken.holds()
    assert "gain" in ModuleSnapshot({"": module}).difference(taken)


@pytest.mark.parametrize(("table", "key"), [([1], 0), ({"k": 1}, "k")])
def test_equal_numbers_of_other_types_are_others_in_tables(table: Any, key: Any) -> None:
    module = Scaled()
    module.gains = table
    taken = ModuleSnapshot({"": module})
    table[key] = 1.0
    assert not taken.holds()


def test_a_large_array_that_is_written_is_seen() -> None:
    module = Scaled()
    module.table = np.ones((700, 3), np.float32)
    taken = ModuleSnapshot({"": module})
    assert taken.holds()
    module.table *= 3
    assert not taken.holds()
