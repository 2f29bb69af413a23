"""The direction of imports: every layer imports only from those above it."""

import ast
from collections.abc import Iterator
from pathlib import Path

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
        "cli/entry.py",
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


def test_every_module_has_a_layer() -> None:
    assert {layer_of(path) for path in modules()} <= RANK.keys(), "name the layer in LAYERS"


def test_imports_point_upwards() -> None:
    wrong = []
    for path in modules():
        own = layer_of(path)
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "dlplacer" and len(parts) > 1 and parts[1] in RANK:
                upwards = parts[1] == own or RANK[parts[1]] < RANK[own]
                if not upwards or parts[1] in FORBIDDEN.get(own, set()):
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
