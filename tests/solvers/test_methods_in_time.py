"""Every method ends when its time is up or somebody asks to stop, with what it has by then."""

import signal

import pytest
from solvers.helpers import make_graph, make_machine

from dlplacer.planning.place import place


def test_an_interrupt_while_a_plan_is_checked_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module = importlib.import_module("dlplacer.planning.under_dispatch")
    assemble = module.assemble

    def interrupted(*arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return assemble(*arguments)

    monkeypatch.setattr(module, "assemble", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = place(make_graph({"a": 1.0, "b": 1.0}), make_machine(2), method="list")
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.plan.makespan_s == 1.0
