"""List the models that this package builds, from the builders' docstrings, without importing torch."""

import ast
from pathlib import Path

_FOLDER = Path(__file__).parent


def builders() -> dict[str, str]:
    """Name of a builder → the first paragraph of its docstring."""
    found = {}
    for node in ast.parse((_FOLDER / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            source = ast.parse((_FOLDER / f"{node.module}.py").read_text(encoding="utf-8"))
            functions = {part.name: part for part in source.body if isinstance(part, ast.FunctionDef)}
            for alias in node.names:
                text = ast.get_docstring(functions[alias.name]) or ""
                found[alias.name] = " ".join(text.split("\n\n")[0].split())
    return found
