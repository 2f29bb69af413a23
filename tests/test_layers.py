"""The direction of imports: every layer imports only from those above it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlplacer

PACKAGE = Path(dlplacer.__file__).parent

LAYERS = (
    {"errors", "units", "version"},
    {"graph", "topology"},
    {"options"},
    {"plan"},
    {"result"},
    {"check"},
    {"files"},
    {"structure", "load"},
    {"costs"},
    {"routes"},
    {"delays"},
    {"problem"},
    {"traffic", "network", "dispatch", "steps"},
    {"live"},
    {"simulate", "performance"},
    {"solvers"},
    {"assemble", "interrupt"},
    {"placement"},
    {"comparison"},
    {"rewrite"},
    {"link_use"},
    {"critical_path"},
    {"explanation"},
    {"trace"},
    {"pipeline"},
    {"dataparallel"},
    {"scaling"},
    {"plot"},
    {"export"},
    {"devices"},
    {"frontend"},
    {"onnx_model"},
    {"runtime"},
    {"profile"},
    {"machines"},
    {"splitting"},
    {"distributed"},
    {"fidelity", "dynamo"},
    {"models"},
    {"cli"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

FORBIDDEN = {
    "check": {"problem", "solvers", "assemble", "simulate", "routes"},
    "solvers": {"check", "assemble", "placement"},
}
ONLY_HERE = {
    "ortools": ("solvers/ilp/",),
    "torch": (
        "devices/",
        "frontend/",
        "runtime/",
        "profile/",
        "splitting/",
        "distributed/",
        "dataparallel/",
        "fidelity/",
        "dynamo/",
        "models/",
        "cli/model.py",
    ),
    "onnx": ("onnx_model/",),
    "onnxruntime": ("onnx_model/",),
    "pynvml": ("machines/",),
    "matplotlib": ("plot/",),
}


def modules() -> list[Path]:
    return sorted(
        path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem not in ("__init__", "__main__")
    )


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_upwards(path: Path) -> None:
    own = layer_of(path)
    assert own in RANK, f"name the layer of {own} in LAYERS"
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "dlplacer" and len(parts) > 1 and parts[1] in RANK:
            assert parts[1] == own or RANK[parts[1]] < RANK[own], f"{own} imports {name}"
            assert parts[1] not in FORBIDDEN.get(own, set()), f"{own} must not know {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_packages_stay_where_they_belong(path: Path) -> None:
    where = path.relative_to(PACKAGE).as_posix()
    for name in imported(path):
        for package, homes in ONLY_HERE.items():
            if name.split(".")[0] == package:
                assert where.startswith(homes), f"{where} imports {package}"
