"""Decoders on unequal devices, and plans for other runtimes: `fit` and `export`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlplacer.api.machines import new_topology
from dlplacer.api.parameters import checked
from dlplacer.api.subjects import PlanLike, TopologyLike, machine_of, plan_of
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect, unknown
from dlplacer.core.topology import Topology
from dlplacer.files.load import shipped_names
from dlplacer.files.text import read_json
from dlplacer.planning.fit.decoder import Decoder, Serving

if TYPE_CHECKING:
    from dlplacer.planning.fit.chain import ChainCosts
    from dlplacer.planning.fit.fit import Fit
    from dlplacer.report.export.targets import Exported


@checked
def fit(
    decoder: Decoder | str | PathLike[str],
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
    tensor_parallel: Sequence[str] = (),
    split: Sequence[int] | None = None,
    map: str | PathLike[str] | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
    workers: int | None = None,
) -> "Fit":
    """The assignment of a decoder's layers to unequal devices, with a bound and the changes that would help.

    Raises InputError if the model or the machine cannot be read; InfeasibleError if the model does not fit, with the
    missing bytes.

    Examples
    --------
    >>> fit = dp.fit("config.json", "2x RTX3090, RTX3060", weights="4.89")  # doctest: +SKIP
    >>> fit.tokens_per_s  # doctest: +SKIP
    14.3
    """
    from dlplacer.frontend.configs import bits_of, read_decoder
    from dlplacer.planning.fit.fit import fit as fit_layers
    from dlplacer.planning.fit.splits import by_counts, by_map

    expect("", "decoder", decoder, (Decoder, str, PathLike), "a Decoder, or the path of a config.json or a GGUF file")
    read = decoder if isinstance(decoder, Decoder) else read_decoder(decoder, weights)
    topology = _machine(machine, link, network, used)
    named = {*last, *(device.id for device in topology.devices if prefer and not {device.id, device.type} & {*prefer})}
    known = (*topology.device_index, *topology.device_types)
    for name in {*prefer, *last} - {*known}:
        raise unknown("device", name, known, "the machine")
    if tensor_parallel and (prefer or last):
        raise InputError("tensor_parallel is given with prefer or last; name the GPUs to use in tensor_parallel alone")
    own: dict[str, Callable[[ChainCosts], Sequence[int]]] = {}
    if split is not None:
        own["yours"] = partial(by_counts, counts=tuple(split))
    if map is not None:
        told: Any = read_json(Path(map))
        if not isinstance(told, Mapping):
            raise InputError(f"map {str(map)!r} is not a JSON object from modules to devices; give an hf_device_map")
        own["your map"] = partial(by_map, device_map=told)
    serving = Serving(context, batch, bits_of(cache), prompt, generated, chunk, objective)
    chosen: dict[str, Any] = {"reserve_bytes": reserve_bytes, "whole": fine, "stream": stream, "longest": max_context}
    chosen |= {"last": named, "tensor_parallel": [names.split("+") for names in tensor_parallel], "own": own}
    return fit_layers(read, topology, serving, **chosen, time_limit_s=time_limit_s, workers=workers, seed=seed)


def _machine(
    machine: TopologyLike, link: str | None, network: str | None, used: Sequence[str] | Mapping[str, str]
) -> Topology:
    """The topology of `machine`: itself, a file, a shipped name, or a description (a line of text or a TOML file)."""
    if isinstance(machine, str) and (
        machine.endswith(".toml") or not (Path(machine).exists() or machine in shipped_names("topologies"))
    ):
        return new_topology(machine, link=link, network=network, used=used)
    if link or network or used:
        raise InputError("link, network and used are only for a machine in words; change the topology file instead")
    return machine_of(machine, "machine")


@checked
def export(plan: "PlanLike | Fit", to: str) -> "Exported":
    """The flags, variables or tables that make another runtime follow a plan of `fit`.

    Raises InputError if there is no such target, or the target can express no split that fits.

    Examples
    --------
    >>> dp.export(fit, "vllm").text  # doctest: +SKIP
    'CUDA_VISIBLE_DEVICES=0,1 VLLM_PP_LAYER_PARTITION=41,39 vllm serve MODEL --pipeline-parallel-size 2'
    """
    from dlplacer.planning.fit.fit import Fit
    from dlplacer.report.export.targets import export as export_plan

    return export_plan(plan.plan if isinstance(plan, Fit) else plan_of(plan), to)


def exports(found: "Fit", targets: Iterable[str] | None) -> dict[str, Any]:
    """Target → the text to paste, or ``{"cannot": reason}``."""
    texts: dict[str, Any] = {}
    for name in targets or ():
        try:
            texts[name] = export(found, name).text
        except InputError as error:
            texts[name] = {"cannot": str(error)}
    return texts
