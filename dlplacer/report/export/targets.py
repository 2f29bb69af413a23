"""Layers over devices in the formats of other runtimes: flags, variables and tables to paste."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device
from dlplacer.machines.costs.device_table import DEVICE_TABLE
from dlplacer.planning.coarsen.contract import contract, members_of
from dlplacer.planning.fit.chain import ChainCosts, chain_of
from dlplacer.planning.fit.layer_flow import best_placement, is_experts
from dlplacer.report.export.device_map import device_map, overfull_devices

_SECONDS = 10.0
"""Time limit in seconds for solving again, the default of `fit`."""


@dataclass(frozen=True, eq=False)
class Layout:
    """A chain of ops and the device of each op."""

    ops: tuple[Op, ...]
    devices: tuple[Device, ...]
    placement: tuple[int, ...]

    @property
    def gpus(self) -> list[int]:
        """Positions in `devices` of the GPUs of all hosts in use, in the order in which a host numbers its GPUs."""
        hosts = {_host(self.devices[place]) for place in self.placement}
        return [place for place, device in enumerate(self.devices) if device.asynchronous and _host(device) in hosts]

    @property
    def stages(self) -> list[tuple[Device, list[int]]]:
        """(device, layers that begin there) for each run of ops on one device, in order."""
        seen: set[int] = set()
        found = []
        for place, group in groupby(range(len(self.ops)), self.placement.__getitem__):
            layers = [self.ops[number].meta["layer"] for number in group]
            new = [layer for layer in dict.fromkeys(layers) if layer is not None and layer not in seen]
            seen.update(new)
            found.append((self.devices[place], new))
        return found

    @property
    def without_experts(self) -> "Layout":
        """The layout without expert ops."""
        kept = [number for number, op in enumerate(self.ops) if not is_experts(op)]
        return Layout(tuple(self.ops[n] for n in kept), self.devices, tuple(self.placement[n] for n in kept))

    @property
    def experts_apart(self) -> dict[int, list[int]]:
        """Device → layers of which it holds the experts but not the other ops."""
        rest = self.without_experts
        homes = {op.meta["layer"]: place for op, place in zip(rest.ops, rest.placement, strict=True)}
        apart: dict[int, list[int]] = {}
        for op, place in zip(self.ops, self.placement, strict=True):
            if is_experts(op) and homes[op.meta["layer"]] != place:
                apart.setdefault(place, []).append(op.meta["layer"])
        return apart


def _host(device: Device) -> str:
    return str(device.meta.get("host", ""))


@dataclass(frozen=True)
class Exported:
    """The text to paste; `loss` is (time of the exported plan ÷ time of the original plan) − 1."""

    text: str
    loss: float = 0.0
    note: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The note, with the loss if it is not 0; empty without a note."""
        slower = f": {100 * self.loss:.2f} % slower" if self.loss else ""
        return (f"{self.note}{slower}",) if self.note else ()


_BACKENDS = {
    "NVIDIA": ("CUDA{}", "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES"),
    "AMD": ("ROCm{}", "HIP_VISIBLE_DEVICES"),
    "Apple": ("Metal", ""),
}
"""Vendor → name of a device in llama.cpp, and the variable that selects devices."""


def _vendor(device: Device) -> str:
    """The vendor in the device table; NVIDIA, the vendor of most GPUs, for an unknown type."""
    entry = DEVICE_TABLE.get(device.type)
    vendor = entry.source.split()[0] if entry is not None else ""
    return vendor if vendor in _BACKENDS else "NVIDIA"


def _accelerate(layout: Layout) -> str:
    names = {place: number for number, place in enumerate(layout.gpus)}
    mapped: dict[str, int | str] = {}
    for op, place in zip(layout.ops, layout.placement, strict=True):
        for module in op.meta["modules"]:
            mapped[module] = names.get(place, "cpu")
    # A module inside another on the same device is redundant.
    short = {
        path: home
        for path, home in mapped.items()
        if not any(path.startswith(f"{other}.") and mapped[other] == home for other in mapped)
    }
    return json.dumps(short, indent=1)


def _vllm(layout: Layout) -> str:
    first = layout.stages[0][0]
    if "members" in first.meta:
        _, vendor, numbers = _members(first)
        settings, flag = "", "--tensor-parallel-size"
    else:
        vendor, numbers = _vendor(first), [layout.gpus.index(layout.devices.index(one)) for one, _ in layout.stages]
        counts = ",".join(str(len(layers)) for _, layers in layout.stages)
        settings, flag = f"VLLM_PP_LAYER_PARTITION={counts} ", "--pipeline-parallel-size"
    visible = _BACKENDS[vendor][1]
    order = f"{visible}={','.join(map(str, numbers))} " if visible else ""
    return f"{order}{settings}vllm serve MODEL {flag} {len(numbers)}"


def _llama_cpp_rows(layout: Layout, one: Device) -> str:
    """The command for one stage of GPUs that divide every matrix, after layers in RAM."""
    _, vendor, numbers = _members(one)
    backend = _BACKENDS[vendor][0]
    names = ",".join(backend.format(number) for number in numbers)
    layers = sum(len(layers) for device, layers in layout.without_experts.stages if device is one)
    parts = ",".join(f"{100 * share:.0f}" for share in one.meta["shares"])
    order = "CUDA_DEVICE_ORDER=PCI_BUS_ID " if vendor == "NVIDIA" else ""
    flags = f"--device {names} --split-mode row --tensor-split {parts} --main-gpu 0"
    return f"{order}llama-server -m MODEL.gguf --n-gpu-layers {layers + 1} {flags}"


def _members(one: Device) -> tuple[str, str, list[int]]:
    """Host, vendor and numbers of GPUs that divide matrices; empty if they differ in host or vendor."""
    gpus = [(str(host), _vendor(replace(one, type=kind))) for host, kind in one.meta["gpus"]]
    mine = [gpus[number] for number in one.meta["members"]]
    if len({*mine}) > 1:
        return "", "", []
    return *mine[0], [gpus[:number].count(mine[0]) for number in one.meta["members"]]


def _llama_cpp(layout: Layout) -> str:
    used = {place: layout.devices[place] for place in layout.placement if layout.devices[place].asynchronous}
    if any("members" in device.meta for device in used.values()):
        return _llama_cpp_rows(layout, next(iter(used.values())))
    names, others = _llama_cpp_devices(layout)
    stages = [(layout.devices.index(device), len(layers)) for device, layers in layout.without_experts.stages]
    stages = [(place, count) for place, count in stages if place in names]
    offloaded = sum(count for _, count in stages)
    flags = [f"--n-gpu-layers {offloaded + 1 if stages else 0}"]
    if stages:
        # The output counts as one more layer, after all others.
        counts = [count for _, count in stages]
        counts[-1] += 1
        shares = ",".join(map(str, counts))
        # Devices that hold only experts have no share, but must be named.
        only = [place for place in layout.experts_apart if place in names and place not in dict(stages)]
        shares = ",".join([shares, *("0" for _ in only)])
        flags.append(f"--device {','.join(names[place] for place in (*dict(stages), *only))}")
        flags += ["--split-mode layer", f"--tensor-split {shares}", "--main-gpu 0"]
    for place, layers in layout.experts_apart.items():
        pattern = f"blk\\.({'|'.join(map(str, layers))})\\.ffn_.*_exps\\."
        flags.append(f"--override-tensor '{pattern}={names.get(place, 'CPU')}'")
    if others:
        # Each of these hosts runs `rpc-server -H 0.0.0.0 -p 50052`, on a trusted network.
        flags.append(f"--rpc {','.join(f'{host}:50052' for host in others)}")
    order = ["CUDA_DEVICE_ORDER=PCI_BUS_ID"] if any(name.startswith("CUDA") for name in names.values()) else []
    return " ".join([*order, "llama-server -m MODEL.gguf", *flags])


def _llama_cpp_devices(layout: Layout) -> tuple[dict[int, str], list[str]]:
    """GPU → its name in llama.cpp; and the hosts that need an RPC server: not the one with RAM or the first layer."""
    ram = [place for place in layout.placement if not layout.devices[place].asynchronous]
    home = _host(layout.devices[(ram or layout.placement)[0]])
    backends = {place: _BACKENDS[_vendor(layout.devices[place])][0] for place in layout.gpus}
    local = [place for place in layout.gpus if _host(layout.devices[place]) == home]
    remote = [place for place in layout.gpus if place not in local]
    alike = {place: [each for each in local if backends[each] == backends[place]] for place in local}
    names = {place: backends[place].format(alike[place].index(place)) for place in local}
    names |= {place: f"RPC{number}" for number, place in enumerate(remote)}
    return names, list(dict.fromkeys(_host(layout.devices[place]) for place in remote))


def _megatron(layout: Layout) -> str:
    parts = [[f"t*{len(layers)}"] if layers else [] for _, layers in layout.stages]
    parts[0].insert(0, "E")
    parts[-1].append("L")
    text = "|".join(map(",".join, parts))
    return f"--pipeline-model-parallel-size {len(parts)} --pipeline-model-parallel-layout '{text}'"


def _torchtitan(layout: Layout) -> str:
    stages = [[f"layers.{layer}" for layer in layers] for _, layers in layout.stages]
    stages[0] = ["tok_embeddings", *stages[0]]
    stages[-1] = [*stages[-1], "norm", "output"]
    return json.dumps({"module_fqns_per_model_part": stages, "pipeline_parallel_degree": len(stages)})


def _pipelining(layout: Layout) -> str:
    begins = [next(run) for _, run in groupby(range(len(layout.ops)), layout.placement.__getitem__)]
    splits = {str(layout.ops[number].module): "SplitPoint.BEGINNING" for number in begins[1:]}
    count = len(splits) + 1
    # In steady state, as many micro-batches are in flight as there are stages.
    rows = [",".join(f"{stage}F{number}" for number in range(count)) for stage in range(count)]
    return json.dumps({"split_spec": splits, "schedule_csv": "\n".join(rows)})


def _onnxruntime(layout: Layout) -> str:
    patterns: dict[str, list[str]] = {}
    for op, place in zip(layout.ops, layout.placement, strict=True):
        device = layout.devices[place]
        name = f"gpu:{layout.gpus.index(place)}" if device.asynchronous else "cpu"
        # Node names have a slash for a dot of the module's path, except before the number of a list entry.
        paths = [op.module] if op.meta["layer"] is not None else op.meta["modules"]
        patterns.setdefault(name, []).extend(f"/{re.sub(r'[.](?![0-9])', '/', str(path))}/" for path in paths)
    text = "; ".join(f"{name}({', '.join(dict.fromkeys(found))})" for name, found in patterns.items())
    return f"session.name_based_layer_assignment={text}"


def _exo(layout: Layout) -> str:
    stages, begin, rows = layout.stages, 0, []
    count = sum(len(layers) for _, layers in stages)
    for rank, (device, layers) in enumerate(stages):
        row = {"node": device.id, "device_rank": rank, "world_size": len(stages), "n_layers": count}
        rows.append({**row, "start_layer": begin, "end_layer": begin + len(layers)})
        begin += len(layers)
    return json.dumps(rows, indent=1)


@dataclass(frozen=True)
class Target:
    """A runtime and the plans that it can express.

    `contiguous`: each device must have one run of layers. `ram`: which layers may be in RAM: ``no``, ``first`` (only
    the first) or ``anywhere``. `experts`: experts may be apart from their layers. `hosts`: several hosts are allowed.
    """

    text: Callable[[Layout], str]
    told: str
    contiguous: bool = True
    ram: str = "no"
    experts: bool = False
    hosts: bool = False


TARGETS: Mapping[str, Target] = {
    "accelerate": Target(_accelerate, "device_map of transformers (JSON)", False, "anywhere", True),
    "exo": Target(_exo, "table of shards (JSON)", ram="anywhere", hosts=True),
    "llama.cpp": Target(
        _llama_cpp, "--n-gpu-layers, --tensor-split, --override-tensor, --rpc", True, "first", True, True
    ),
    "megatron": Target(_megatron, "--pipeline-model-parallel-layout", hosts=True),
    "onnxruntime": Target(_onnxruntime, "session.name_based_layer_assignment", False, "anywhere"),
    "torch.distributed.pipelining": Target(
        _pipelining, "split points and a schedule (JSON)", ram="anywhere", hosts=True
    ),
    "torchtitan": Target(_torchtitan, "module_fqns_per_model_part (JSON)", hosts=True),
    "vllm": Target(_vllm, "VLLM_PP_LAYER_PARTITION"),
}
"""Name of a runtime → its target; a new one is a function and a row here."""


def export(plan: Plan, target: str) -> Exported:
    """The text that makes a runtime follow a plan of `dlplacer fit`, or the best plan that the runtime can express.

    Accelerate follows the placement of other plans too (`device_map`).

    Raises InputError if there is no such target, the plan is not for a decoder, or no plan that the target can express
    fits into memory.
    """
    if target not in TARGETS:
        raise InputError(f"there is no target {target!r}; use one of {', '.join(TARGETS)}")
    if target == "accelerate" and not any("layer" in op.meta for op in plan.graph.ops):
        return Exported(json.dumps(device_map(plan), indent=1), note="; ".join(overfull_devices(plan)))
    if any("layer" not in op.meta for op in plan.graph.ops):
        raise InputError(f"the plan of {plan.graph.name!r} has no layers; export a plan of `dlplacer fit -o PLAN`")
    _require_told(plan, target)
    rule, largest = TARGETS[target], plan.meta.get("objective") == "throughput"
    chain = chain_of(plan.graph if rule.experts else whole_layers(plan.graph), plan.topology)
    unit = attrgetter("id") if rule.experts else _unit
    homes: dict[object, set[int]] = {}
    for op in plan.graph.ops:
        homes.setdefault(unit(op), set()).add(plan.topology.device_index[plan.placement[op.id]])
    # A target of whole layers cannot express a layer on several devices, which has several places here.
    known = tuple(place for op in chain.ops for place in homes[unit(op)])
    if len(known) == len(chain.ops) and _allowed(chain, known, rule):
        return Exported(rule.text(Layout(chain.ops, chain.devices, known)))
    split = _solved_again(chain, rule, largest)
    if split is None:
        raise InputError(
            f"no split that {target} can express was found in {_SECONDS:g} s: it takes only {_limits(rule)}; "
            "use another target, or more memory"
        )
    whole = chain_of(plan.graph, plan.topology)
    planned = [plan.topology.device_index[plan.placement[op.id]] for op in whole.ops]
    loss = chain.value_s(split, largest) / whole.value_s(planned, largest) - 1
    text = rule.text(Layout(chain.ops, chain.devices, tuple(split)))
    return Exported(text, max(0.0, loss), f"solved again, because {target} takes only {_limits(rule)}")


def _require_told(plan: Plan, target: str) -> None:
    """Raise InputError if a plan divides matrices over GPUs in a way that the target cannot."""
    used = [plan.topology.device(name) for name in sorted({*plan.placement.values()})]
    gpus = [device for device in used if device.asynchronous]
    sets = [gpu for gpu in gpus if "members" in gpu.meta]
    if not sets:
        return
    shares, alone = sets[0].meta["shares"], len(gpus) == 1 and not any(is_experts(op) for op in plan.graph.ops)
    told = {"llama.cpp": _members(sets[0])[1] in ("NVIDIA", "AMD")}
    # vLLM divides the heads of attention evenly.
    even, count = max(shares) - min(shares) < 1e-6, len(shares)
    told["vllm"] = told["llama.cpp"] and even and count & (count - 1) == 0 and len(used) == 1
    if not (alone and told.get(target)):
        raise InputError(
            f"{target} cannot divide matrices over {', '.join(gpu.id for gpu in sets)}; llama.cpp can over all GPUs in "
            "use, of one host and vendor, with whole layers, and vllm over 2, 4 or 8 of these with equal shares; fit "
            "without tensor_parallel"
        )


def _solved_again(chain: ChainCosts, rule: Target, largest: bool) -> tuple[int, ...] | None:
    """The best placement that a target can express, solved for each host if it may use only one; None if none fits."""
    # If RAM comes first, all RAM is that of one host, whose process reaches the GPUs of other hosts.
    hosts = np.array(["" if rule.hosts and rule.ram != "first" else _host(device) for device in chain.devices])
    reached = np.array([rule.hosts and device.asynchronous for device in chain.devices])
    found = []
    for host in np.unique(hosts):
        usable = ((hosts == host) | reached) & _may_hold(chain, rule)
        limited = replace(chain, time_s=np.where(usable, chain.time_s, np.inf))
        follows = _follows(chain, rule) if rule.contiguous else None
        placement = best_placement(limited, _SECONDS, largest=largest, follows=follows).placement
        found += [] if placement is None else [placement]
    return min(found, key=lambda each: chain.value_s(each, largest), default=None)


def _limits(rule: Target) -> str:
    told = (
        "" if rule.hosts else "one host",
        "one run of layers per device" if rule.contiguous else "",
        {"no": "no weights in RAM", "first": "RAM of one host before GPUs", "anywhere": ""}[rule.ram],
        "" if rule.experts else "whole layers",
    )
    return ", ".join(filter(None, told))


def _unit(op: Op) -> object:
    return op.id if op.meta["layer"] is None else op.meta["layer"]


def _may_hold(chain: ChainCosts, rule: Target) -> NDArray[np.bool_]:
    """[device] → True if a target can put weights there."""
    return np.array([rule.ram != "no" or device.asynchronous for device in chain.devices])


def _follows(chain: ChainCosts, rule: Target) -> NDArray[np.bool_]:
    """[from][to] → True if a run of ops on `to` may follow a run on `from`."""
    gpus = np.array([device.asynchronous for device in chain.devices])
    return ~(gpus[:, None] & ~gpus[None, :]) if rule.ram == "first" else np.ones((len(gpus), len(gpus)), dtype=bool)


def _allowed(chain: ChainCosts, placement: tuple[int, ...], rule: Target) -> bool:
    used = sorted({*placement})
    tied = {
        _host(chain.devices[place])
        for place in used
        if not rule.hosts or (rule.ram == "first" and not chain.devices[place].asynchronous)
    }
    if not _may_hold(chain, rule)[used].all() or not chain.fits(placement) or len(tied) > 1:
        return False
    # Experts may be apart; the other ops of a layer decide the order of devices.
    runs = [place for place, _ in groupby(Layout(chain.ops, chain.devices, placement).without_experts.placement)]
    ordered = all(_follows(chain, rule)[pair] for pair in pairwise(runs))
    return not rule.contiguous or (len({*runs}) == len(runs) and ordered)


def whole_layers(graph: OpGraph) -> OpGraph:
    """The graph of a chain with one op per layer."""
    layers: dict[object, list[str]] = {}
    for op in graph.ops:
        layers.setdefault(_unit(op), []).append(op.id)
    whole = contract(graph, {f"layer {layer}": ids for layer, ids in layers.items() if len(ids) > 1}, "layer")

    def described(op: Op) -> Op:
        members = [graph.op(name) for name in members_of(op)]
        told = {key: [each for one in members for each in one.meta[key]] for key in ("kinds", "modules")}
        return replace(op, meta={"layer": members[0].meta["layer"], **told})

    return replace(whole, ops=tuple(map(described, whole.ops)))
