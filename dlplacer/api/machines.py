"""Machines, what ships, and decoders over unequal machines: `detect_topology`, `new_topology`, `fit` and others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlplacer.api.parameters import LISTS, checked
from dlplacer.api.subjects import PlanLike, TopologyLike, machine_of, names_of, note, plan_of, silent
from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.table import Column, Table
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_bytes_per_s

if TYPE_CHECKING:
    from dlplacer.measure.selftest import Build, Selftest
    from dlplacer.planning.fit.chain import ChainCosts
    from dlplacer.planning.fit.decoder import Decoder
    from dlplacer.planning.fit.fit import Fit
    from dlplacer.report.export.targets import Exported
    from dlplacer.runtime.devices.base import NamedDevice


@checked
def detect_topology(
    kind: str = "auto", *, measure: bool = False, on_progress: Callable[[str], None] = silent
) -> Topology:
    """This machine: its GPUs as NVML reports them or, without any, the CPU cores of this process.

    Examples
    --------
    >>> import dlplacer as dp
    >>> dp.detect_topology("cpu").device_types
    ('cpu-core',)
    """
    from dlplacer.machines.importers.nvml import detected_topology

    topology = detected_topology(kind)
    if not measure:
        return topology
    from dlplacer.machines.host_load import load_note
    from dlplacer.machines.importers.measured_links import doubts
    from dlplacer.runtime.profile.machine_times import with_timed_links

    load = load_note()
    if load is not None:
        note(load)
    timed = with_timed_links(topology, lambda source, target: on_progress(f"{source} to {target}"))
    for doubt in doubts(timed):
        note(doubt)
    return timed


@checked
def import_topology(path: str | PathLike[str], device_type: str | None = None) -> Topology:
    """The machine in an ``nvidia-smi topo -m`` text, an NCCL topology file, a node-link graph or a workload.

    Examples
    --------
    >>> import dlplacer as dp
    >>> dp.import_topology("topo.txt", "H100")  # doctest: +SKIP
    <Topology 'topo': 8 H100, 3 routers, 17 links>
    """
    from dlplacer.machines.importers.any_format import import_topology as import_file
    from dlplacer.machines.importers.products import import_notes

    topology = import_file(Path(path), device_type)
    for text in import_notes(topology, device_type):
        note(text)
    return topology


@checked
def import_graph(path: str | PathLike[str]) -> OpGraph:
    """The graph in a workload of msr-fiddle/dnn-partitioning; `import_topology` reads its machine.

    Examples
    --------
    >>> import dlplacer as dp
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
    seed: int = 0,
    on_progress: Callable[[str], None] = silent,
) -> "Selftest":
    """The checks of the runtime on devices of this machine: numbers, races, links, issue costs, steps of Inception-V3.

    Examples
    --------
    >>> import dlplacer as dp
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
    return try_runtime(small, {} if no_steps else timed, names, repeats=repeats, seed=seed, on_progress=on_progress)


def catalogue(what: str) -> Table:
    """A table of the graphs, machines, models, methods, devices or targets that dlplacer knows by name.

    Parameters
    ----------
    what
        ``graphs``, ``topologies``, ``models``, ``methods``, ``devices`` or ``targets``.

    Examples
    --------
    >>> import dlplacer as dp
    >>> dp.catalogue("topologies").to_frame()["name"][0]
    'cpu-2core'
    """
    if what not in LISTS:
        raise InputError(f"there is no list {what!r}; use one of {', '.join(LISTS)}")
    records = list(_LISTED[what]())
    return Table.of(records, [Column(name, format="list") for name in records[0]])


def _graphs() -> Iterator[dict[str, Any]]:
    from dlplacer.files.load import load_graph, shipped_names

    for name in shipped_names("graphs"):
        graph = load_graph(name)
        phases = list(dict.fromkeys(op.phase for op in graph.ops if op.phase))
        yield {"name": name, "ops": len(graph.ops), "edges": len(graph.edges), "phases": phases}


def _topologies() -> Iterator[dict[str, Any]]:
    from dlplacer.files.load import load_topology, shipped_names

    for name in shipped_names("topologies"):
        machine = load_topology(name)
        counts = {"devices": len(machine.devices), "types": list(machine.device_types), "links": len(machine.links)}
        yield {"name": name, **counts}


def _models() -> Iterator[dict[str, Any]]:
    from dlplacer.models.catalogue import builders

    return ({"name": f"dlplacer.models:{name}", "is": summary} for name, summary in builders().items())


def _methods() -> Iterator[dict[str, Any]]:
    from dlplacer.solvers.methods import METHODS, SUMMARIES

    return ({"name": name, "is": SUMMARIES[name]} for name in METHODS)


def _targets() -> Iterator[dict[str, Any]]:
    from dlplacer.report.export.targets import TARGETS

    return ({"name": name, "is": target.told} for name, target in TARGETS.items())


def _devices() -> Iterator[dict[str, Any]]:
    """Devices of this machine as ``--devices`` names them, then the types that the device table knows."""
    from dlplacer.machines.costs.device_table import DEVICE_TABLE, FLOAT32
    from dlplacer.machines.importers.host import host_topology
    from dlplacer.machines.importers.nvml import has_gpus, nvml_topology

    for kind, machine in [("cpu", host_topology()), *([("cuda", nvml_topology())] if has_gpus() else [])]:
        for number, device in enumerate(machine.devices):
            yield {"name": f"{kind}:{number}", "is": f"{device.type} of this machine"}
    for name, known in DEVICE_TABLE.items():
        rate, memory = known.flops_per_s[FLOAT32] / 1e12, format_bytes_per_s(known.memory_bytes_per_s)
        yield {"name": name, "is": f"type with known rates: {rate:.4g} TFLOP/s in float32, memory {memory}"}


_LISTED = {
    "graphs": _graphs,
    "topologies": _topologies,
    "models": _models,
    "methods": _methods,
    "devices": _devices,
    "targets": _targets,
}


@checked
def new_topology(
    description: str | PathLike[str],
    *,
    link: str | None = None,
    network: str | None = None,
    used: Sequence[str] | Mapping[str, str] = (),
) -> Topology:
    """The machine that a line of text or a TOML file describes, with memory and rates of the device table.

    Raises
    ------
    InputError
        If a device is not in the table, with the names most like it, or the text cannot be read.

    Examples
    --------
    >>> import dlplacer as dp
    >>> dp.new_topology("2x RTX3090, RTX3060, 64 GB DDR5-5600", link="pcie4")
    <Topology '2x RTX3090, RTX3060, 64 GB DDR5-5600': 2 RTX3090, 1 RTX3060, 1 2xDDR5-5600, 1 router, 4 links>
    """
    from dlplacer.machines.importers.described import described_topology, read_description

    text = str(description)
    if text.endswith(".toml"):
        if link or network or used:
            raise InputError(f"link, network and used stand in {text!r} itself; leave the options out")
        return read_description(Path(text))
    taken = used if isinstance(used, Mapping) else dict(map(_taken, used))
    return described_topology(text, link, network, taken)


def _taken(text: str) -> tuple[str, str]:
    """Device and size of ``gpu0=1 GiB``; a size alone is that of every device."""
    name, equals, size = text.partition("=")
    return (name, size) if equals else ("", text)


@checked
def fit(
    decoder: "Decoder | str | PathLike[str]",
    machine: TopologyLike,
    *,
    link: str | None = None,
    network: str | None = None,
    used: Sequence[str] | Mapping[str, str] = (),
    objective: str = "token",
    context: int = 4096,
    max_context: bool = False,
    batch: int = 1,
    weights: str | None = None,
    cache: str = "float16",
    prompt: int = 512,
    generated: int = 128,
    chunk: int = 512,
    reserve_bytes: int = 2**30,
    fine: str = "layers",
    stream: bool = False,
    prefer: Sequence[str] = (),
    last: Sequence[str] = (),
    split: Sequence[int] | None = None,
    map: str | PathLike[str] | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
    workers: int | None = None,
) -> "Fit":
    """The devices of a decoder's layers on a machine of unequal devices, with a bound and the changes that would help.

    Raises
    ------
    InputError
        If the model or the machine cannot be read.
    InfeasibleError
        If the model does not fit; the message says by how much.

    Examples
    --------
    >>> import dlplacer as dp
    >>> fit = dp.fit("config.json", "2x RTX3090, RTX3060", weights="4.89")  # doctest: +SKIP
    >>> fit.tokens_per_s  # doctest: +SKIP
    14.3
    """
    from dlplacer.frontend.configs.families import bits_of
    from dlplacer.frontend.configs.model_files import read_decoder
    from dlplacer.planning.fit.decoder import Decoder, Serving
    from dlplacer.planning.fit.fit import fit as fit_layers
    from dlplacer.planning.fit.splits import by_counts

    read = decoder if isinstance(decoder, Decoder) else read_decoder(decoder, weights)
    topology = _machine(machine, link, network, used)
    named = {*last, *(device.id for device in topology.devices if prefer and not {device.id, device.type} & {*prefer})}
    known = {device.id for device in topology.devices} | {*topology.device_types}
    for name in (*prefer, *last):
        if name not in known:
            raise InputError(f"there is no device {name!r} in the machine; it has {', '.join(sorted(known))}")
    own: dict[str, Callable[[ChainCosts], Sequence[int]]] = {}
    if split is not None:
        own["yours"] = partial(by_counts, counts=tuple(split))
    if map is not None:
        own["your map"] = _map_of(map)
    serving = Serving(context, batch, bits_of(cache), prompt, generated, chunk, objective)
    return fit_layers(
        read,
        topology,
        serving,
        reserve_bytes=reserve_bytes,
        whole=fine,
        stream=stream,
        longest=max_context,
        last=named,
        own=own,
        time_limit_s=time_limit_s,
        workers=workers,
        seed=seed,
    )


def _machine(
    machine: TopologyLike, link: str | None, network: str | None, used: Sequence[str] | Mapping[str, str]
) -> Topology:
    """The topology, its file, or a name that ships; else what a line of text describes."""
    from dlplacer.files.load import shipped_names

    if isinstance(machine, str) and (
        machine.endswith(".toml") or not (Path(machine).exists() or machine in shipped_names("topologies"))
    ):
        return new_topology(machine, link=link, network=network, used=used)
    if link or network or used:
        raise InputError("link, network and used go with a machine in words; change the topology file instead")
    return machine_of(machine, "machine")


def _map_of(path: str | PathLike[str]) -> "Callable[[ChainCosts], Sequence[int]]":
    from dlplacer.files.text import read_json
    from dlplacer.planning.fit.splits import by_map

    told: Any = read_json(Path(path))
    if not isinstance(told, Mapping):
        raise InputError(f"map {str(path)!r} is no JSON object of modules and devices; give accelerate's hf_device_map")
    return partial(by_map, device_map=told)


@checked
def export(plan: "PlanLike | Fit", to: str) -> "Exported":
    """The flags, variables or tables that make another runtime follow a plan of `fit`.

    Raises
    ------
    InputError
        If there is no such target, or it cannot express any split that fits.

    Examples
    --------
    >>> import dlplacer as dp
    >>> dp.export(fit, "vllm").text  # doctest: +SKIP
    'CUDA_VISIBLE_DEVICES=0,1 VLLM_PP_LAYER_PARTITION=41,39 vllm serve MODEL --pipeline-parallel-size 2'
    """
    from dlplacer.planning.fit.fit import Fit
    from dlplacer.report.export.targets import export as export_plan

    return export_plan(plan.plan if isinstance(plan, Fit) else plan_of(plan), to)


def exports(found: "Fit") -> dict[str, Any]:
    """Target → the text to paste, or ``{"cannot": reason}``."""
    from dlplacer.report.export.targets import TARGETS

    texts: dict[str, Any] = {}
    for name in TARGETS:
        try:
            texts[name] = export(found, name).text
        except InputError as error:
            texts[name] = {"cannot": str(error)}
    return texts
