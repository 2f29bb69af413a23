"""Mutation tests: each mutant of ``mutants.txt`` is a small mistake that the tests nearest to it must notice.

From the repository's root, with the environment's Python::

    python tests/benchmarks/mutants.py
    python tests/benchmarks/mutants.py --only bounds --workers 1

An entry of the file is a comment that names the mistake, a path within the package, paths within ``tests``, and the
lines before (-) and after it (+), which need not be whole. Every worker makes its mutants one at a time in its own copy
of the package; the working tree stays as it is. Tests that take more than ten minutes count as failed, so that a mutant
that waits for ever is noticed. Exit status 1: a mutant survived, its text is not in its file exactly once, or the tests
fail without any mutant.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("dlplacer", "graphs", "topologies", "tests", "docs", "examples", "README.md", "pyproject.toml")
_LIMIT_S = 600.0


@dataclass(frozen=True)
class Mutant:
    """A mistake: what stands in a file of the package once, what takes its place, and the tests nearest to it."""

    name: str
    file: str
    tests: tuple[str, ...]
    text: str
    replacement: str


def mutants() -> list[Mutant]:
    """All mutants."""
    found = []
    for entry in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("\n\n"):
        name, file, tests, *lines = entry.strip("\n").split("\n")
        before, after = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        found.append(Mutant(name.removeprefix("# "), file, tuple(tests.split()), before, after))
    return found


def tests_pass(tree: Path, tests: Sequence[str]) -> bool:
    """True if the tests pass on the package of a tree; False also where they take too long."""
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def outcome(tree: Path, mutant: Mutant) -> str:
    """``killed``, ``SURVIVED``, or ``GONE`` where the text is not there once; the tree is as before afterwards."""
    path = tree / "dlplacer" / mutant.file
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before.count(mutant.text) != 1:
        return "GONE"
    path.write_text(before.replace(mutant.text, mutant.replacement), encoding="utf-8")
    try:
        return "SURVIVED" if tests_pass(tree, mutant.tests) else "killed"
    finally:
        path.write_text(before, encoding="utf-8")


def copy_of_tree(folder: Path) -> Path:
    """A folder with what the tests need."""
    for source in (ROOT / name for name in _COPIED):
        if source.is_dir():
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy2(source, folder / source.name)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mutants, a printed line for each; 1 if one is not killed, else 0."""
    parser = argparse.ArgumentParser(description="Runs the nearest tests on every mutant of the package.")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose file or name holds this text")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="mutants at a time (2)")
    given = parser.parse_args(arguments)
    chosen = [mutant for mutant in mutants() if given.only in f"{mutant.file}: {mutant.name}"]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.workers):
            trees.put(copy_of_tree(Path(folder) / str(number)))
        tree = trees.get()
        if not tests_pass(tree, sorted({test for mutant in chosen for test in mutant.tests})):
            print("the tests fail without any mutant")
            return 1
        trees.put(tree)

        def on_some_tree(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                return outcome(tree, mutant)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(given.workers) as pool:
            counts: Counter[str] = Counter()
            for mutant, found in zip(chosen, pool.map(on_some_tree, chosen), strict=True):
                print(f"{found:8}  {mutant.file}: {mutant.name}", flush=True)
                counts[found] += 1
    print(f"\n{len(chosen)} mutants: " + ", ".join(f"{count} {found}" for found, count in counts.items()))
    return 1 if counts["SURVIVED"] or counts["GONE"] else 0


if __name__ == "__main__":
    sys.exit(main())
