"""The scripts of examples/ in the form that sphinx-gallery reads: the first line of the docstring as a heading."""

import ast
from pathlib import Path

_HEADER = """Whole jobs
==========

The scripts of ``examples/``: they capture, profile, train and reproduce papers, and take seconds to minutes. They are
shown here, not run; the tests run each of them.
"""


_PICTURES = {"01_main_job.py": "inception_gantt.png", "04_pipeline.py": "inception_pipeline.png"}
"""Script → what it draws, beside conf.py."""


def write_example_pages(source: Path, target: Path) -> None:
    """Copies every public script of a folder; a changed one only, as sphinx-gallery compares their hashes."""
    target.mkdir(parents=True, exist_ok=True)
    _write(target / "GALLERY_HEADER.rst", _HEADER)
    for path in sorted(source.glob("[!_]*.py")):
        text = path.read_text(encoding="utf-8")
        first = ast.parse(text).body[0]
        if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
            raise ValueError(f"{path} begins with no docstring; the gallery shows it above the code")
        title, _, rest = str(first.value.value).strip().partition("\n")
        title = title.rstrip(".")
        below = "\n".join(text.splitlines()[first.end_lineno :])
        picture = f"# sphinx_gallery_thumbnail_path = {_PICTURES[path.name]!r}\n" if path.name in _PICTURES else ""
        _write(target / path.name, f'r"""\n{title}\n{"=" * len(title)}\n{rest}\n"""\n{picture}{below}\n')


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
