"""The direction of imports: every room imports only from the rooms before it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dlplacer

PACKAGE = Path(dlplacer.__file__).parent

ROOMS = (
    "core",
    "files",
    "check",
    "machines",
    "problem",
    "solvers",
    "data_parallel",
    "planning",
    "frontend",
    "models",
    "report",
    "runtime",
    "measure",
    "api",
    "cli",
)
INNER_ROOMS = {
    "solvers": (
        "instance",
        "decode",
        "bounds",
        "ilp",
        "feasibility",
        "heuristics",
        "local_search",
        "decomposition",
        "starts",
        "load_objectives",
        "phases",
        "methods",
    ),
    "planning": (
        "tables",
        "result",
        "interrupt",
        "garbage",
        "constrain",
        "one_device",
        "assemble",
        "under_dispatch",
        "warm_start",
        "place",
        "compare",
        "coarsen",
        "fit",
        "pipeline",
        "hybrid",
        "what_if",
    ),
    "frontend": ("torch", "onnx", "configs"),
    "runtime": (
        "devices",
        "program",
        "executor",
        "placed",
        "profile",
        "distributed",
        "onnx",
    ),
}
FORBIDDEN = {"check": {"problem", "solvers", "planning"}, "solvers": {"check"}}
"""Rules are said twice, by the solvers and by `check`; neither may read the other's."""

ONLY_HERE = {
    "ortools": (
        "solvers/ilp/",
        "solvers/load_objectives.py",
        "solvers/decomposition/",
        "planning/fit/layer_flow.py",
    ),
    "torch": (
        "data_parallel/",
        "frontend/torch/",
        "models/",
        "runtime/",
        "measure/",
        "api/jobs.py",
    ),
    "numba": ("data_parallel/ternary/", "solvers/decode/machine_code.py"),
    "onnx": ("frontend/onnx/", "runtime/onnx/"),
    "onnxruntime": ("runtime/onnx/", "frontend/onnx/onnx_values.py"),
    "gguf": ("frontend/configs.py",),
    "matplotlib": ("report/plot/", "api/plot.py"),
    "jinja2": ("report/page/",),
}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


@cache
def imported(path: Path) -> tuple[str, ...]:
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_of(path: Path) -> tuple[str, str]:
    parts = (*path.relative_to(PACKAGE).parts, "")
    return parts[0], parts[1].removesuffix(".py")


def test_the_house_has_these_rooms() -> None:
    assert {rooms_of(path)[0] for path in modules()} == set(ROOMS)
    for room, inner in INNER_ROOMS.items():
        assert {own[1] for path in modules() if (own := rooms_of(path))[0] == room} - {"__init__"} == set(inner)


def test_imports_point_upwards() -> None:
    wrong = []
    for path in modules():
        own = rooms_of(path)[0]
        for name in imported(path):
            parts = name.split(".")
            if parts[0] != "dlplacer" or len(parts) < 2 or parts[1] not in ROOMS or parts[1] == own:
                continue
            if ROOMS.index(parts[1]) > ROOMS.index(own) or parts[1] in FORBIDDEN.get(own, set()):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


@pytest.mark.parametrize("room", INNER_ROOMS)
def test_imports_inside_a_room_point_upwards(room: str) -> None:
    order, wrong = INNER_ROOMS[room], []
    for path in modules():
        own = rooms_of(path)
        for name in imported(path):
            parts = name.split(".")
            inside = own[0] == room and own[1] in order and parts[:2] == ["dlplacer", room] and len(parts) > 2
            if inside and parts[2] in order and order.index(parts[2]) > order.index(own[1]):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


def test_heavy_packages_stay_where_they_belong() -> None:
    wrong = []
    for path in modules():
        where = path.relative_to(PACKAGE).as_posix()
        packages = {name.split(".")[0] for name in imported(path)}
        wrong += [
            f"{where} imports {package}"
            for package, homes in ONLY_HERE.items()
            if package in packages and not where.startswith(homes)
        ]
    assert not wrong
