"""``dlplacer topology``: detect, show, import."""

import argparse
import json
from pathlib import Path

from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.picture_options import add_picture_options, save_pictures
from dlplacer.cli.output.progress import progress
from dlplacer.cli.output.tables import new_table, print_table
from dlplacer.core.errors import InputError
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_bytes, format_bytes_per_s, format_seconds

HELP = "Detect this machine, show a topology, or import one from another tool."
EXAMPLES = (
    ("topology detect --measure -o box.json", "this machine, with timed links"),
    ("topology show dgx1-v100-8gpu --picture dgx1.png", "a table and a picture"),
    ("topology import topo.txt --type V100 -o box.json", "what nvidia-smi topo -m printed"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    actions = parser.add_subparsers(dest="topology_action", required=True, metavar="ACTION")
    detect = actions.add_parser("detect", help="GPUs (NVML) or, without any, the CPU cores of this host")
    detect.add_argument("--kind", choices=("auto", "gpu", "cpu"), default="auto", help="which devices (auto)")
    detect.add_argument("--measure", action="store_true", help="fit latency and rate of every link to timed copies")
    show = actions.add_parser("show", help="a table, and a picture")
    show.add_argument("topology", metavar="T", help="a topology file, or the name of one that ships")
    add_picture_options(show, "topology")
    imported = actions.add_parser(
        "import", help="nvidia-smi topo -m text, NCCL topology XML, or networkx node-link JSON"
    )
    imported.add_argument("file", metavar="FILE", type=Path, help="what the other tool wrote")
    imported.add_argument(
        "--type", metavar="TYPE", help="device type where the file does not tell: V100, A100, H100, …"
    )
    for action in (detect, imported):
        action.add_argument("-o", "--output", metavar="T", type=output_file, help="topology file to write")
    for action in (detect, show, imported):
        action.add_argument("--json", action="store_true", help="print the topology file")


def execute(arguments: argparse.Namespace) -> int:
    """Find the topology, write it where asked, and print it."""
    topology = _ACTIONS[arguments.topology_action](arguments)
    if getattr(arguments, "output", None) is not None:
        from dlplacer.files import write_topology

        write_topology(arguments.output, topology)
    tell_written(getattr(arguments, "output", None), *save_pictures(arguments, "topology", topology))
    if arguments.json:
        from dlplacer.files.topology_file import topology_to_dict

        print(json.dumps(topology_to_dict(topology)))
    else:
        _print(topology)
    return 0


def _detect(arguments: argparse.Namespace) -> Topology:
    from dlplacer.machines.importers.host import host_topology
    from dlplacer.machines.importers.nvml import has_gpus, nvml_topology

    gpus = arguments.kind == "gpu" or (arguments.kind == "auto" and has_gpus())
    topology = nvml_topology() if gpus else host_topology()
    if not arguments.measure:
        return topology
    from dlplacer.machines.importers.measured_links import measured
    from dlplacer.runtime.devices import open_devices
    from dlplacer.runtime.profile.link_times import copy_timer

    runtime = {device.id: f"{'cuda' if gpus else 'cpu'}:{place}" for place, device in enumerate(topology.devices)}
    opened = dict(zip(runtime, open_devices(list(runtime.values())), strict=True))
    try:
        with progress("timing links") as show:
            copy_s = copy_timer(opened)

            def shown(source: str, target: str, size_bytes: int) -> float:
                show(f"{source} to {target}")
                return copy_s(source, target, size_bytes)

            return measured(topology, shown)
    finally:
        for device in opened.values():
            device.close()


def _show(arguments: argparse.Namespace) -> Topology:
    from dlplacer.files.load import load_topology

    return load_topology(arguments.topology)


def _import(arguments: argparse.Namespace) -> Topology:
    from dlplacer.machines.importers.any_format import import_topology

    if arguments.type is not None and not arguments.type.strip():
        raise InputError("--type is empty; write the type of the devices, as in V100")
    return import_topology(arguments.file, arguments.type)


_ACTIONS = {"detect": _detect, "show": _show, "import": _import}


def _print(topology: Topology) -> None:
    devices = new_table("device", "type", "memory", "float32", "memory rate", names=2, title=topology.name)
    for device in topology.devices:
        rates = device.flops_per_s
        flops = rates.get("float32") if not isinstance(rates, (int, float, type(None))) else rates
        devices.add_row(
            device.id,
            device.type,
            "unlimited" if device.memory_bytes is None else format_bytes(device.memory_bytes),
            "-" if flops is None else f"{flops / 1e12:.4g} TFLOP/s",
            "-" if device.memory_bytes_per_s is None else format_bytes_per_s(device.memory_bytes_per_s),
        )
    links = new_table("link", "", "rate", "latency", "duplex", names=2)
    for link in topology.links:
        count = f"{link.count} × " if link.count > 1 else ""
        links.add_row(
            link.source,
            link.target,
            f"{count}{format_bytes_per_s(link.bytes_per_s)}",
            format_seconds(link.latency_s),
            link.duplex,
        )
    print_table(devices, *([links] if topology.links else []))
    if topology.source:
        print(topology.source)
