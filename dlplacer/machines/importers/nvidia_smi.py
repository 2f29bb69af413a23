"""The text of ``nvidia-smi topo -m`` as a matrix of how GPUs reach each other."""

import re
from dataclasses import dataclass

from dlplacer.core.errors import FileFormatError
from dlplacer.machines.importers.rates import HWLOC

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU\d+")
_CELL = re.compile(r"X|NV[0-9]{1,4}|PIX|PXB|PHB|NODE|SYS|SOC")
PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Routes over PCIe, nearest first."""


@dataclass(frozen=True)
class TopoMatrix:
    """The connection type of every pair of GPUs.

    Attributes
    ----------
    gpus
        Names in order.
    cells
        [gpu][gpu] → ``X`` on the diagonal, ``NV<n>``, or one of `PATHS`; old ``SOC`` is read as ``SYS``.
    numa
        NUMA node of each GPU as printed, or None.
    nics
        Names of the network devices, which are left out of the matrix.
    """

    gpus: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    numa: tuple[str | None, ...]
    nics: tuple[str, ...] = ()

    def nvlinks(self, one: int, other: int) -> int:
        """The number of links in the matrix for a pair; 0 if it has none."""
        cell = self.cells[one][other]
        return int(cell[2:]) if cell.startswith("NV") else 0


def parse_matrix(text: str, where: str) -> TopoMatrix:
    """The matrix in the output of ``nvidia-smi topo -m``; legends, network devices and colours are skipped.

    Raises
    ------
    FileFormatError
        Naming the line and column that cannot be read.
    """
    lines = [(number, _ANSI.sub("", line).rstrip()) for number, line in enumerate(text.splitlines(), start=1)]
    header = next(((number, line) for number, line in lines if _is_header(line)), None)
    if header is None and re.match(r"\s*Machine(\s|L#)", text):
        raise FileFormatError(where, [HWLOC])
    if header is None:
        raise FileFormatError(where, ["no line with the columns GPU0, GPU1, …; paste the output of nvidia-smi topo -m"])
    columns = _columns(header[1])
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in lines[header[0] :]:
        fields = line.split()
        if not fields:
            if rows:
                break
            continue
        if _GPU.fullmatch(fields[0]):
            rows[fields[0]] = (number, fields[1:])
        elif fields[0] not in columns:
            break
    gpus = tuple(name for name in columns if _GPU.fullmatch(name))
    mistakes = [f"no row for {name}, which has a column" for name in gpus if name not in rows]
    mistakes += [f"line {number}: {name} has no column" for name, (number, _) in rows.items() if name not in gpus]
    if mistakes:
        raise FileFormatError(where, mistakes)
    links = columns[: next((place for place, name in enumerate(columns) if " " in name), len(columns))]
    return _checked(where, gpus, links, rows, tuple(name for name in links if name not in gpus), columns)


def _checked(
    where: str,
    gpus: tuple[str, ...],
    links: list[str],
    rows: dict[str, tuple[int, list[str]]],
    nics: tuple[str, ...],
    columns: list[str],
) -> TopoMatrix:
    mistakes: list[str] = []
    cells: list[tuple[str, ...]] = []
    for name in gpus:
        number, fields = rows[name]
        if len(fields) < len(links):
            mistakes.append(f"line {number}: {name} has {len(fields)} entries for {len(links)} columns")
            continue
        row = {column: "SYS" if field == "SOC" else field for column, field in zip(links, fields, strict=False)}
        for column in gpus:
            if not _CELL.fullmatch(row[column]) or (row[column] == "X") != (column == name):
                mistakes.append(f"line {number}: {name} to {column} is {row[column]!r}; X, NV<n> or {', '.join(PATHS)}")
        cells.append(tuple(row[column] for column in gpus))
    if not mistakes:
        for one, name in enumerate(gpus):
            for other in range(one):
                if cells[one][other] != cells[other][one]:
                    back = f"{gpus[other]} to {name} is {cells[other][one]}"
                    mistakes.append(f"{name} to {gpus[other]} is {cells[one][other]}, but {back}")
    if mistakes:
        raise FileFormatError(where, mistakes)
    has_numa = any("numa" in column.lower() for column in columns)
    numa = tuple(_numa(rows[name][1][len(links) :]) if has_numa else None for name in gpus)
    return TopoMatrix(gpus, tuple(cells), numa, nics)


def _is_header(line: str) -> bool:
    fields = line.split()
    return bool(fields) and bool(_GPU.fullmatch(fields[0])) and not any(_CELL.fullmatch(field) for field in fields[1:])


def _columns(line: str) -> list[str]:
    """Names of the columns: GPUs, network devices of any name, and names of several words, as ``CPU Affinity``."""
    return re.findall(r"GPU NUMA ID|(?:CPU|NUMA) Affinity|\S+", line)


def _numa(rest: list[str]) -> str | None:
    """The NUMA node behind the cores' list: ``0-23,48-71  0  N/A``."""
    return rest[1] if len(rest) > 1 and re.fullmatch(r"[0-9,-]+", rest[1]) else None
