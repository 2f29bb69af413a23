"""What the package exports, and that importing it is cheap."""

import subprocess
import sys

import dlplacer

HEAVY = ("torch", "ortools", "onnx", "matplotlib", "pandas", "networkx", "pydantic", "numpy")


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sorted(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_nothing_heavy() -> None:
    assert not loaded_after("import dlplacer").intersection(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    statement = "from dlplacer.cli.main import build_parser; build_parser().format_help()"
    assert not loaded_after(statement).intersection(HEAVY)


def test_planning_a_graph_file_loads_no_torch() -> None:
    statement = "import dlplacer as dp; dp.place; dp.load_graph; dp.load_topology('cpu-2core')"
    assert not loaded_after(statement).intersection({"torch", "matplotlib", "onnx"})


def test_every_export_is_there() -> None:
    for name in dlplacer.__all__:
        assert getattr(dlplacer, name) is not None


def test_capture_is_the_function() -> None:
    """No sub-package may hide an exported function of the same name, whatever was imported before."""
    import dlplacer.frontend
    import dlplacer.runtime

    assert callable(dlplacer.capture)
    assert callable(dlplacer.apply)
