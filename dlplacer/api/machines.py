"""Machines and known names: `detect_topology`, `new_topology`, `import_topology`, `selftest`, `catalogue`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlplacer.api.parameters import checked
from dlplacer.api.subjects import names_of, note, silent
from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.table import Table
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_bytes_per_s
from dlplacer.files.load import load_graph, load_topology, shipped_names
from dlplacer.machines.cores import load_note
from dlplacer.machines.costs.device_table import DEVICE_TABLE, FLOAT32
from dlplacer.machines.importers.described import described_topology, read_description
from dlplacer.machines.importers.host import detected_topology, gpu_topology, has_gpus, host_topology
from dlplacer.machines.importers.measured_links import doubts
from dlplacer.machines.importers.products import import_notes
from dlplacer.models.catalogue import builders

if TYPE_CHECKING:
    from dlplacer.measure.selftest import Build, Selftest
    from dlplacer.runtime.devices.base import NamedDevice


@checked
def detect_topology(
    kind: str = "auto", *, measure: bool = False, on_progress: Callable[[str], None] = silent
) -> Topology:
    """The topology of this machine: its GPUs as nvidia-smi reports them or, without GPUs, the process's CPU cores.

    Examples
    --------
    >>> dp.detect_topology("cpu").device_types
    ('cpu-core',)
    """
    topology = detected_topology(kind)
    if not measure:
        return topology
    from dlplacer.runtime.profile.machine_times import with_timed_links

    note(load_note())
    timed = with_timed_links(topology, lambda source, target: on_progress(f"{source} to {target}"))
    note(*doubts(timed))
    return timed


@checked
def import_topology(path: str | PathLike[str], device_type: str | None = None) -> Topology:
    """The machine in an ``nvidia-smi topo -m`` text, an NCCL topology file, a node-link graph or a workload.

    Examples
    --------
    >>> dp.import_topology("topo.txt", "H100")  # doctest: +SKIP
    <Topology 'topo': 8 H100, 3 routers, 17 links>
    """
    from dlplacer.machines.importers.any_format import import_topology as import_file

    topology = import_file(Path(path), device_type)
    note(*import_notes(topology))
    return topology


@checked
def import_graph(path: str | PathLike[str]) -> OpGraph:
    """The graph in a workload of msr-fiddle/dnn-partitioning; `import_topology` reads its machine.

    Examples
    --------
    >>> dp.import_graph("bert24_inference.json")  # doctest: +SKIP
    <OpGraph 'bert24_inference': 32 ops, 55 edges>
    """
    from dlplacer.machines.importers.dnn_partitioning import import_graph as import_file

    return import_file(Path(path))


@checked
def selftest(
    devices: "str | Sequence[NamedDevice]",
    *,
    repeats: int = 5,
    no_steps: bool = False,
    on_progress: Callable[[str], None] = silent,
) -> "Selftest":
    """The runtime's self-test on devices of this machine: numbers, races, links, issue costs, steps of Inception-V3.

    Examples
    --------
    >>> dp.selftest("cpu:0,cpu:1", no_steps=True).passed  # doctest: +SKIP
    True
    """
    from dlplacer import models
    from dlplacer.measure.selftest import selftest as try_runtime

    names = names_of(devices)
    small: dict[str, Build] = {
        "branches": partial(models.branches, batch_size=4, image_size=16),
        "mlp": partial(models.mlp, batch_size=8),
    }
    timed: dict[str, Build] = {"branches, batch 1": partial(models.branches, batch_size=1, image_size=48, count=4)}
    if not all(name.startswith("cpu") for name in names):
        timed = {f"inception_v3, batch {size}": partial(models.inception_v3, batch_size=size) for size in (1, 32)}
    return try_runtime(small, {} if no_steps else timed, names, repeats=repeats, on_progress=on_progress)


@checked
def catalogue(what: str) -> Table:
    """A table of the graphs, machines, models, methods, devices or targets that have a name in dlplacer.

    Examples
    --------
    >>> dp.catalogue("topologies").to_frame()["name"][0]
    'cpu-2core'
    """
    return Table.of(list(_records(what)), title=what)


def _records(what: str) -> Iterator[dict[str, Any]]:
    """The entries of a list; ``devices`` lists this machine's, named as for ``--devices``, before the known types."""
    if what == "graphs":
        for name in shipped_names("graphs"):
            graph = load_graph(name)
            phases = list(dict.fromkeys(op.phase for op in graph.ops if op.phase))
            yield {"name": name, "ops": len(graph.ops), "edges": len(graph.edges), "phases": phases}
    elif what == "topologies":
        for name in shipped_names("topologies"):
            machine = load_topology(name)
            types, links = list(machine.device_types), len(machine.links)
            yield {"name": name, "devices": len(machine.devices), "types": types, "links": links}
    elif what == "models":
        yield from ({"name": f"dlplacer.models:{name}", "is": text} for name, text in builders().items())
    elif what == "methods":
        from dlplacer.solvers.methods import METHODS, SUMMARIES

        yield from ({"name": name, "is": SUMMARIES[name]} for name in METHODS)
    elif what == "targets":
        from dlplacer.report.export.targets import TARGETS

        yield from ({"name": name, "is": target.told} for name, target in TARGETS.items())
    else:
        for kind, machine in [("cpu", host_topology()), *([("cuda", gpu_topology())] if has_gpus() else [])]:
            for number, device in enumerate(machine.devices):
                yield {"name": f"{kind}:{number}", "is": f"{device.type} of this machine"}
        for name, known in DEVICE_TABLE.items():
            rate, memory = known.flops_per_s[FLOAT32] / 1e12, format_bytes_per_s(known.memory_bytes_per_s)
            yield {"name": name, "is": f"type with known rates: {rate:.4g} TFLOP/s in float32, memory {memory}"}


@checked
def new_topology(
    description: str | PathLike[str],
    *,
    link: str | None = None,
    network: str | None = None,
    used: Sequence[str] | Mapping[str, str] = (),
) -> Topology:
    """The machine that a line of text or a TOML file describes, with memory and rates of the device table.

    Raises InputError if the text cannot be read, or a device is not in the table (with suggestions of similar names).

    Examples
    --------
    >>> dp.new_topology("2x RTX3090, RTX3060, 64 GB DDR5-5600", link="pcie4")
    <Topology '2x RTX3090, RTX3060, 64 GB DDR5-5600': 2 RTX3090, 1 RTX3060, 1 2xDDR5-5600, 1 router, 4 links>
    """
    text = str(description)
    if text.endswith(".toml"):
        if link or network or used:
            raise InputError(f"link, network and used belong in {text!r} itself; leave the options out")
        return read_description(Path(text))
    # ``gpu0=1 GiB`` is the memory in use on one device; a size alone holds for every device.
    taken = used if isinstance(used, Mapping) else {part.rpartition("=")[0]: part.rpartition("=")[2] for part in used}
    return described_topology(text, link, network, taken)
