"""What the type checker of a user sees: `py.typed` is there, and lazy exports have their types."""

import re
from pathlib import Path

import pytest

PROGRAM = """\
from pathlib import Path

import dlplacer as dp

result = dp.place(dp.load_graph(Path("graph.json")), dp.load_topology("cpu-2core"))
reveal_type(result)
reveal_type(result.plan.makespan_s)
reveal_type(dp.capture)
reveal_type(dp.apply)
number: int = dp.place
result.save("plan.json").suffix.upper()
reveal_type(result.plan.to_frame)
reveal_type(dp.run)
reveal_type(dp.show("plan.json").save)
reveal_type(dp.explain(result).limits_s)
reveal_type(dp.compare("inception_v3-infer", Path("box.json"), "paper").rows)
reveal_type(dp.plot.gantt)
reveal_type(dp.hybrid("graph.json", "box.json", 8, {1: 4}).at(8).devices)
reveal_type(dp.pipeline("graph.json", "box.json").stages)
reveal_type(dp.profile)
dp.place(3, "cpu-2core")
result.plan.save(3)
dp.plot.memory(result, color_by="phase")
"""

EXPECTED = (
    *("def () -> ", "measure.run_report.Run", "pathlib.Path", "Mapping[str, float]", "compare.MethodResult"),
    *("def (plan:", "int", "pipeline_plan.Stage", "OpGraph"),
)
"""Parts of the types that the lines from 12 on reveal."""

# What the package itself uses is skipped: it says nothing about the package's types, and takes most of the time.
SETTINGS = """\
[mypy]
strict = True
[mypy-torch.*,numpy.*,networkx.*,ortools.*,pandas.*,scipy.*,matplotlib.*,pydantic.*,rich.*,onnx.*]
follow_imports = skip
ignore_missing_imports = True
"""


def test_a_strict_type_checker_sees_the_types_of_lazy_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "user.py").write_text(PROGRAM)
    (tmp_path / "settings.ini").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    told, mistakes, status = api.run(["--config-file=settings.ini", "--no-incremental", "user.py"])
    assert mistakes == ""
    revealed = re.findall(r'note: Revealed type is "(.*)"', told)
    assert revealed[:2] == ["dlplacer.planning.result.Result", "float"]
    assert revealed[2].endswith("-> dlplacer.core.graph.OpGraph")
    assert revealed[3].endswith("-> dlplacer.runtime.placed.placed_module.PlacedModule")
    errors = re.findall(r"user.py:(\d+): error: .*\[([a-z-]+)\]", told)
    assert all(each in revealed[number] for number, each in enumerate(EXPECTED, 4)), revealed[4:]
    mistaken = [("10", "assignment"), ("21", "arg-type"), ("22", "arg-type"), ("23", "call-arg")]
    assert (errors, status) == (mistaken, 1), told
