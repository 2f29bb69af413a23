"""``dlplacer topology``: detect, show, import."""

import argparse
import json
import sys
from pathlib import Path

from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.picture_options import add_picture_options, save_pictures
from dlplacer.cli.output.progress import progress
from dlplacer.cli.output.tables import new_table, print_table
from dlplacer.core.topology import Link, Topology
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
    detect.add_argument("--measure", action="store_true", help="time copies over every link, and the issue of ops")
    show = actions.add_parser("show", help="a table, and a picture")
    show.add_argument("topology", metavar="T", help="a topology file, or the name of one that ships")
    add_picture_options(show, "topology")
    imported = actions.add_parser(
        "import", help="nvidia-smi topo -m text, topology XML of NCCL or RCCL, or networkx node-link JSON"
    )
    imported.add_argument("file", metavar="FILE", type=Path, help="what the other tool wrote")
    imported.add_argument(
        "--type",
        metavar="TYPE",
        help="type or product name of the devices, as RTX3090 or V100-32GB, for memory and rates of the device table; "
        "of several types, as 0-2=RTX3090,3=RTX3060",
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
    from dlplacer.machines.importers.detect import detected_topology

    topology = detected_topology(arguments.kind)
    return _with_timed_links(topology) if arguments.measure else topology


def _with_timed_links(topology: Topology) -> Topology:
    """The topology with its links timed; says if the machine is busy, and which links keep what was assumed."""
    from dlplacer.machines.host_load import load_note
    from dlplacer.machines.importers.measured_links import doubts
    from dlplacer.runtime.profile.link_times import with_timed_links

    note = load_note()
    if note is not None:
        print(f"dlplacer: {note}", file=sys.stderr)
    with progress("timing links") as show:
        timed = with_timed_links(topology, lambda source, target: show(f"{source} to {target}"))
    for doubt in doubts(timed):
        print(f"dlplacer: {doubt}", file=sys.stderr)
    return timed


def _show(arguments: argparse.Namespace) -> Topology:
    from dlplacer.files.load import load_topology

    return load_topology(arguments.topology)


def _import(arguments: argparse.Namespace) -> Topology:
    from dlplacer.machines.importers.any_format import import_topology
    from dlplacer.machines.importers.products import import_notes

    topology = import_topology(arguments.file, arguments.type)
    for note in import_notes(topology, arguments.type):
        print(f"dlplacer: {note}", file=sys.stderr)
    return topology


_ACTIONS = {"detect": _detect, "show": _show, "import": _import}


def _print(topology: Topology) -> None:
    issued = ["dispatch", "process"] if any(device.dispatch_s for device in topology.devices) else []
    columns = ("device", "type", "memory", "float32", "memory rate", *issued)
    devices = new_table(*columns, names=2, title=topology.name)
    for device in topology.devices:
        rates = device.flops_per_s
        flops = rates.get("float32") if not isinstance(rates, (int, float, type(None))) else rates
        devices.add_row(
            device.id,
            device.type,
            "unlimited" if device.memory_bytes is None else format_bytes(device.memory_bytes),
            "-" if flops is None else f"{flops / 1e12:.4g} TFLOP/s",
            "-" if device.memory_bytes_per_s is None else format_bytes_per_s(device.memory_bytes_per_s),
            *([format_seconds(device.dispatch_s or 0.0), device.process or "own"] if issued else []),
        )
    measured = any("measured" in link.meta or "refused" in link.meta for link in topology.links)
    links = new_table("link", "", "rate", "latency", "duplex", *(["copies off by"] if measured else []), names=2)
    for link in topology.links:
        count = f"{link.count} × " if link.count > 1 else ""
        links.add_row(
            link.source,
            link.target,
            f"{count}{format_bytes_per_s(link.bytes_per_s)}",
            format_seconds(link.latency_s),
            link.duplex,
            *([_fit_of(link)] if measured else []),
        )
    print_table(devices, *([links] if topology.links else []))
    if topology.source:
        print(topology.source)


def _fit_of(link: Link) -> str:
    """How far the copies over a link are from its figures: the largest difference."""
    if "measured" in link.meta:
        return f"{100 * float(link.meta['measured']['residual']):.0f} %"
    return "refused: assumed" if "refused" in link.meta else "assumed"
