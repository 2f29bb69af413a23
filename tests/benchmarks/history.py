"""What benchmark runs found, one line of JSON for each: figures, versions and machine; and what changed since the last.

Bounds and makespans of runs on different machines are not the same thing: a faster one searches further in the same
time. So a run is compared with the last one of the same set on the same kind of machine (processor model and cores).
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_PACKAGES = ("torch", "ortools", "numpy")
_PLACES = 6


def machine() -> dict[str, Any]:
    """Processor model, cores that this process may use, memory in GiB."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": _cpu_model(), "cores": cores, "memory_gib": round(memory_bytes / 2**30, 1)}


def versions() -> dict[str, str | None]:
    """Of Python, the package, its commit and what the solver computes with; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("dlplacer", *_PACKAGES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return {**found, "commit": _commit()}


def entry(chosen: str, figures: Mapping[str, Any], load: float) -> dict[str, Any]:
    """A line of the history.

    Parameters
    ----------
    chosen
        Which set of instances was run.
    figures
        Name → number, or such a mapping itself.
    load
        Processes that were waiting for a core when the run began: above the cores, times and gaps are worse than on a
        quiet machine.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"date": now, "set": chosen, "load": round(load, 2), "machine": machine(), "versions": versions()}
    return {**about, "figures": {name: _rounded(value) for name, value in figures.items()}}


def entries(path: Path) -> list[dict[str, Any]]:
    """All lines of a history, the oldest first; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def append(path: Path, added: Mapping[str, Any]) -> None:
    """Add a line."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(added) + "\n")


def last_alike(earlier: Sequence[Mapping[str, Any]], new: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The last entry of the same set on the same kind of machine; None without one."""
    return next((other for other in reversed(earlier) if _kind(other) == _kind(new)), None)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """One line for every figure that both entries have: its value then and now, and the change in percent."""
    old, new = dict(_flat(before["figures"])), dict(_flat(now["figures"]))
    for name in (name for name in new if name in old):
        change = f"{new[name] / old[name] - 1:+.1%}" if old[name] else "-"
        yield f"{name:40} {old[name]:12.6g} {new[name]:12.6g} {change:>9}"


def report(path: Path, added: Mapping[str, Any]) -> str:
    """The change of an entry against the last one like it in the history."""
    before = last_alike(entries(path), added)
    if before is None:
        return f"\n{path.name} has no earlier run of this set on this kind of machine"
    head = f"since {before['date']} ({before['versions']['commit']})"
    return "\n".join([f"\n{head:40} {'then':>12} {'now':>12} {'change':>9}", *changes(before, added)])


def _kind(line: Mapping[str, Any]) -> tuple[object, ...]:
    return line["set"], line["machine"]["cpu"], line["machine"]["cores"]


def _flat(figures: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name} ")
        elif value is not None:
            yield f"{path}{name}", value


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, _PLACES) if isinstance(value, float) else value


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _commit() -> str | None:
    """What ``git describe`` calls the checkout; None outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--tags"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
