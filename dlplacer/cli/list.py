"""``dlplacer list``: what ships, and what can be named."""

import argparse
import json
from typing import Any

from dlplacer.cli.output.tables import new_table, print_table

HELP = "List what ships and can be named: graphs, topologies, models, methods, devices."
EXAMPLES = (
    ("list graphs", "the graphs that solve and compare take by name"),
    ("list devices", "what --devices may name on this machine, and the types with known rates"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("what", choices=tuple(_LISTS), help="what to list")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Find and print."""
    rows = _LISTS[arguments.what]()
    if arguments.json:
        print(json.dumps({arguments.what: rows}))
        return 0
    heads = list(dict.fromkeys(name for row in rows for name in row))
    table = new_table(*heads, names=len(heads))
    for row in rows:
        table.add_row(*(_text(row.get(name)) for name in heads))
    print_table(table)
    return 0


def _text(value: Any) -> str:
    return "" if value is None else ", ".join(value) if isinstance(value, list) else str(value)


def _graphs() -> list[dict[str, Any]]:
    from dlplacer.files.load import load_graph
    from dlplacer.files.locate import shipped_names

    rows = []
    for name in shipped_names("graphs"):
        graph = load_graph(name)
        phases = list(dict.fromkeys(op.phase for op in graph.ops if op.phase))
        rows.append({"name": name, "ops": len(graph.ops), "edges": len(graph.edges), "phases": phases})
    return rows


def _topologies() -> list[dict[str, Any]]:
    from dlplacer.files.load import load_topology
    from dlplacer.files.locate import shipped_names

    rows = []
    for name in shipped_names("topologies"):
        topology = load_topology(name)
        types = list(topology.device_types)
        rows.append({"name": name, "devices": len(topology.devices), "types": types, "links": len(topology.links)})
    return rows


def _models() -> list[dict[str, Any]]:
    from dlplacer.models.catalogue import builders

    return [{"name": f"dlplacer.models:{name}", "is": summary} for name, summary in builders().items()]


def _methods() -> list[dict[str, Any]]:
    from dlplacer.solvers.methods import METHODS, SUMMARIES

    return [{"name": name, "is": SUMMARIES[name]} for name in METHODS]


def _devices() -> list[dict[str, Any]]:
    """Devices of this machine as ``--devices`` names them, then the types that the device table knows."""
    from dlplacer.core.units import format_bytes_per_s
    from dlplacer.machines.costs.device_table import DEVICE_TABLE, FLOAT32
    from dlplacer.machines.importers.host import host_topology
    from dlplacer.machines.importers.nvml import has_gpus, nvml_topology

    machines = [("cpu", host_topology()), *([("cuda", nvml_topology())] if has_gpus() else [])]
    rows: list[dict[str, Any]] = [
        {"name": f"{kind}:{number}", "is": f"{device.type} of this machine"}
        for kind, machine in machines
        for number, device in enumerate(machine.devices)
    ]
    for name, known in DEVICE_TABLE.items():
        rate = known.flops_per_s[FLOAT32] / 1e12
        memory = format_bytes_per_s(known.memory_bytes_per_s)
        rows.append({"name": name, "is": f"type with known rates: {rate:.4g} TFLOP/s in float32, memory {memory}"})
    return rows


_LISTS = {
    "graphs": _graphs,
    "topologies": _topologies,
    "models": _models,
    "methods": _methods,
    "devices": _devices,
}
