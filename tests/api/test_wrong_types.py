"""Wrong types anywhere on the public surface end in the tool's own errors: whose value it is, and what to give.

Every public function, class and method is called once for each of its parameters and each of `WRONG`.
"""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dlplacer as dp

WRONG = (
    *(None, True, 3, -1, 2.5, float("nan"), float("inf"), "abacus", "", b"x", [], [1], ["a"], {}, {"a": 1}, (), (1,)),
    *({1, 2}, object(), int, range(3), Path("nowhere.json"), 1j),
)

GRAPH = dp.OpGraph(
    [dp.Op("a", "mm", 1e-3, weight_bytes=8), dp.Op("b", "mm", 2e-3), dp.Op("c", "mm", 2e-3)],
    [dp.Edge("a", "b", 64), dp.Edge("a", "c", 64)],
    name="tiny",
)
PAIR = dp.Topology([dp.Device("d0"), dp.Device("d1")], links=[dp.Link("d0", "d1", 1e9, 1e-6)], name="pair")
RESULT = dp.place(GRAPH, PAIR, method="heft")
PLAN = RESULT.plan
JOB = dp.Job(torch.nn.Linear(2, 2), args=(torch.zeros(1, 2),), mode="infer")
COMPARISON = dp.compare(GRAPH, PAIR, methods="heft, single")

SOLVING = {"method": "heft", "time_limit_s": 1.0, "seed": 0, "workers": 1}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "place": (dp.place, {"graph": GRAPH, "topology": PAIR, **SOLVING}),
    "compare": (dp.compare, {"graph": GRAPH, "topology": PAIR, "methods": "heft", "time_limit_s": 1.0}),
    "pipeline": (dp.pipeline, {"graph": GRAPH, "topology": PAIR}),
    "hybrid": (
        dp.hybrid,
        {"graph": GRAPH, "topology": PAIR, "devices": 2, "epochs": {1: 4}, "speedups": {2: 1.5}, **SOLVING},
    ),
    "place_with_splits": (
        dp.place_with_splits,
        {"job": JOB, "topology": "cpu-2core", "devices": "abacus:0", **SOLVING},
    ),
    "capture": (dp.capture, {"job": JOB}),
    "apply": (dp.apply, {"job": JOB, "plan": PLAN}),
    "profile": (dp.profile, {"job": JOB, "devices": "abacus:0"}),
    "run": (dp.run, {"job": JOB, "plan": PLAN, "steps": 1, "warmup": 0}),
    "explain": (dp.explain, {"plan": PLAN}),
    "show": (dp.show, {"subject": PLAN}),
    "check_plan": (dp.check_plan, {"plan": PLAN}),
    "violations": (dp.violations, {"plan": PLAN}),
    "detect_topology": (dp.detect_topology, {"kind": "cpu"}),
    "import_topology": (dp.import_topology, {"path": "topo.txt", "device_type": None}),
    "load_graph": (dp.load_graph, {"name": "inception"}),
    "load_topology": (dp.load_topology, {"name": "cpu-2core"}),
    "load_plan": (dp.load_plan, {"path": "plan.json"}),
    "write_graph": (dp.write_graph, {"path": "out.json", "graph": GRAPH}),
    "write_topology": (dp.write_topology, {"path": "out.json", "topology": PAIR}),
    "write_plan": (dp.write_plan, {"path": "out.json", "plan": PLAN}),
    "Op": (dp.Op, {"id": "a", "kind": "mm"}),
    "Edge": (dp.Edge, {"source": "a", "target": "b", "bytes": 1}),
    "TensorSpec": (dp.TensorSpec, {"shape": (2,), "dtype": "float32", "bytes": 8}),
    "OpGraph": (dp.OpGraph, {"ops": GRAPH.ops, "edges": GRAPH.edges}),
    "Device": (dp.Device, {"id": "d"}),
    "Router": (dp.Router, {"id": "r"}),
    "Link": (dp.Link, {"source": "a", "target": "b", "bytes_per_s": 1.0}),
    "Topology": (dp.Topology, {"devices": PAIR.devices, "links": PAIR.links}),
    "Options": (dp.Options, {}),
    "Options.of_words": (dp.Options.of_words, {"text": "paper"}),
    "Plan": (dp.Plan, {name: getattr(PLAN, name) for name in inspect.signature(dp.Plan).parameters}),
    "Result": (dp.Result, {"plan": PLAN, "single_device_s": 1.0}),
    "Job": (dp.Job, {"module": JOB.module, "args": JOB.args, "mode": "infer"}),
    "Optimizer": (dp.Optimizer, {"kind": "sgd"}),
    "OpGraph.op": (GRAPH.op, {"op_id": "a"}),
    "OpGraph.save": (GRAPH.save, {"path": "out.json"}),
    "Topology.device": (PAIR.device, {"device_id": "d0"}),
    "Topology.save": (PAIR.save, {"path": "out.json"}),
    "Plan.save": (PLAN.save, {"path": "out.json"}),
    "Result.save": (RESULT.save, {"path": "out.json"}),
    "HtmlPage.save": (dp.show(PLAN).save, {"path": "out.html"}),
    "Comparison.speedup": (COMPARISON.speedup, {"row": COMPARISON.rows[0]}),
    "Comparison.gap": (COMPARISON.gap, {"row": COMPARISON.rows[0]}),
    **{f"plot.{name}": (getattr(dp.plot, name), {"plan": PLAN}) for name in ("gantt", "placement", "memory")},
    "plot.topology": (dp.plot.topology, {"machine": PAIR}),
    "plot.comparison": (dp.plot.comparison, {"found": COMPARISON}),
    "plot.pipeline": (dp.plot.pipeline, {"plan": None}),
    "plot.hybrid": (dp.plot.hybrid, {"plan": None}),
    "plot.run": (dp.plot.run, {"done": None}),
    "plot.save": (dp.plot.save, {"path": "out.png", "picture": "gantt", "subject": PLAN}),
}


def wrong_calls() -> Iterator[Any]:
    for name, (function, given) in CALLS.items():
        for parameter in inspect.signature(function).parameters:
            yield pytest.param(function, given, parameter, id=f"{name}-{parameter}")


@pytest.mark.parametrize(("function", "given", "parameter"), list(wrong_calls()))
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_type_is_refused_or_understood(
    function: Callable[..., Any],
    given: dict[str, Any],
    parameter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in WRONG:
        # A callback that fails is its owner's; and measuring pins threads to cores, which other tests must not.
        if (parameter in ("on_progress", "loss") and callable(value)) or (parameter == "measure" and value is True):
            continue
        error = raised_by(function, {**given, parameter: value})
        assert error is None or isinstance(error, dp.DlplacerError), f"{parameter}={value!r}: {error!r}"
        assert not isinstance(error, dp.InternalError), f"{parameter}={value!r}: {error}"
        assert len(str(error)) < 2000, str(error)
    close_figures()


def raised_by(function: Callable[..., Any], given: dict[str, Any]) -> Exception | None:
    try:
        function(**given)
    except Exception as error:
        return error
    return None


def close_figures() -> None:
    from matplotlib import pyplot

    pyplot.close("all")


def test_every_public_function_and_class_is_called() -> None:
    called = {name.split(".")[0] for name in CALLS}
    made_by_us = {"Comparison", "Explanation", "HybridPlan", "PipelinePlan", "PlacedModule", "Run", "RunReport"}
    made_by_us |= {"SplitResult", "Violation", "HtmlPage"}
    names = {name for name in dp.__all__ if callable(getattr(dp, name))}
    names -= {
        name for name in names if isinstance(getattr(dp, name), type) and issubclass(getattr(dp, name), Exception)
    }
    assert made_by_us <= names
    assert names - made_by_us <= called
    assert set(dir(dp.plot)) >= {name.split(".")[1] for name in CALLS if name.startswith("plot.")}
