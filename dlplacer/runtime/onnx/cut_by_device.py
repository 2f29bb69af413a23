"""A planned ONNX model cut into sub-models, each to be run by one session on one device."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import onnx

from dlplacer.core.errors import MismatchError
from dlplacer.core.plan import Plan
from dlplacer.frontend.onnx.onnx_file import OnnxFile, data_inputs
from dlplacer.frontend.onnx.onnx_values import reads, values_of


@dataclass(frozen=True)
class Part:
    """A sub-model: names of its device in the plan, of its nodes in the planned order, and of its values.

    `inputs` come from other parts or the caller; `outputs` are read by them.
    """

    device: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def parts_of(file: OnnxFile, plan: Plan) -> tuple[Part, ...]:
    """The parts in an order in which they can run, every device's in the planned order.

    A part ends where its device has to wait for another: an op's level is the largest of its sources', one more if a
    source is on another device, and never below that of the op before it on its device. Ops of one device and level
    make a part, so parts wait only for parts of lower levels.

    Raises MismatchError if the plan's ops are not the file's.
    """
    values = values_of(file)
    by_name = {node.name: node for node in file.model.graph.node}
    node_of = {op.id: str(op.attrs["node"]) for op in plan.graph.ops if "node" in op.attrs}
    wanted = {
        node.name for node in file.model.graph.node if not all(name in values.constant for name in node.output if name)
    }
    if set(node_of.values()) != wanted:
        odd = sorted(set(node_of.values()) ^ wanted)[0]
        raise MismatchError(f"the plan is of another model than {file.path}: they differ in node {odd!r}; solve again")
    levels = _levels(plan, node_of)
    grouped: dict[tuple[int, str], list[str]] = defaultdict(list)
    for entry in sorted(plan.ops, key=lambda entry: (entry.start_s, entry.end_s)):
        if entry.op in node_of:
            grouped[levels[entry.op], entry.device].append(node_of[entry.op])
    made_in = {name: key for key, nodes in grouped.items() for node in nodes for name in by_name[node].output if name}
    returned = {value.name for value in file.model.graph.output}
    read_by: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for key, nodes in grouped.items():
        for node in nodes:
            for name in reads(by_name[node]):
                read_by[name].add(key)
    given = {value.name for value in data_inputs(file.model)}
    order = {node.name: place for place, node in enumerate(file.model.graph.node)}
    parts = []
    for key in sorted(grouped):
        nodes = _in_order(grouped[key], by_name, order)
        inputs = dict.fromkeys(
            name for node in nodes for name in reads(by_name[node]) if name in given or made_in.get(name, key) != key
        )
        outputs = [
            name
            for node in nodes
            for name in by_name[node].output
            if name and (name in returned or read_by[name] - {key})
        ]
        # What nobody reads is not run: a session must be asked for something.
        if outputs:
            parts.append(Part(key[1], tuple(nodes), tuple(inputs), tuple(outputs)))
    return tuple(parts)


def sub_model(file: OnnxFile, part: Part) -> onnx.ModelProto:
    """The ModelProto of a part, with the constants that its nodes read."""
    by_name = {node.name: node for node in file.model.graph.node}
    nodes = [by_name[name] for name in part.nodes]
    return _model(file, f"on {part.device}", nodes, part.inputs, [(name, name) for name in part.outputs])


def _model(
    file: OnnxFile,
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[tuple[str, str]],
) -> onnx.ModelProto:
    """A ModelProto of some nodes and the constants that they read; outputs are the file's values, newly named."""
    infos = _value_infos(file)
    constants, initializers = _constants(file, nodes)
    made = onnx.helper.make_graph(
        [*constants, *nodes],
        f"{file.model.graph.name or 'model'} {name}",
        [infos[value] for value in inputs],
        [onnx.ValueInfoProto(name=new, type=infos[value].type) for value, new in outputs],
        initializers,
    )
    # Initializers that are not inputs need version 4 of the representation.
    return onnx.helper.make_model(
        made,
        opset_imports=file.model.opset_import,
        functions=file.model.functions,
        ir_version=max(4, file.model.ir_version),
    )


def constant_model(file: OnnxFile) -> onnx.ModelProto | None:
    """The ModelProto of the outputs that depend on no input, which no part makes; None if there are none."""
    constant = values_of(file).constant
    names = [value.name for value in file.model.graph.output if value.name in constant]
    if not names:
        return None
    renamed = [onnx.helper.make_node("Identity", [name], [f"{name} out"]) for name in names]
    return _model(file, "constants", renamed, [], [(name, f"{name} out") for name in names])


def _levels(plan: Plan, node_of: Mapping[str, str]) -> dict[str, int]:
    """Op id → level."""
    levels: dict[str, int] = {}
    reached: dict[str, int] = defaultdict(int)
    rank = {name: place for place, name in enumerate(plan.graph.topological_order)}
    for entry in sorted(plan.ops, key=lambda entry: (entry.start_s, rank[entry.op])):
        if entry.op not in node_of:
            continue
        level = reached[entry.device]
        for edge in plan.graph.edges_into[entry.op]:
            if edge.source in levels:
                level = max(level, levels[edge.source] + (plan.placement[edge.source] != entry.device))
        levels[entry.op] = reached[entry.device] = level
    return levels


def _in_order(nodes: Sequence[str], by_name: Mapping[str, onnx.NodeProto], order: Mapping[str, int]) -> list[str]:
    """The planned order, with ops of equal start after what they read: a file lists sources first."""
    place = {name: number for number, name in enumerate(nodes)}
    maker = {value: name for name in nodes for value in by_name[name].output if value}
    graph = nx.DiGraph((maker[value], name) for name in nodes for value in reads(by_name[name]) if value in maker)
    graph.add_nodes_from(nodes)
    return list(nx.lexicographical_topological_sort(graph, key=lambda name: (place[name], order[name])))


def _constants(file: OnnxFile, nodes: Iterable[onnx.NodeProto]) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Constant nodes and initializers that these nodes need, in the file's order."""
    graph = file.model.graph
    maker = {name: node for node in graph.node for name in node.output if name}
    held = {tensor.name: tensor for tensor in graph.initializer}
    own = {name for node in nodes for name in node.output}
    constant = values_of(file).constant
    needed_nodes: dict[str, onnx.NodeProto] = {}
    needed: dict[str, onnx.TensorProto] = {}
    waiting = [name for node in nodes for name in reads(node)]
    while waiting:
        name = waiting.pop()
        if name in own or name not in constant:
            continue
        if name in held:
            needed[name] = held[name]
        elif maker[name].name not in needed_nodes:
            needed_nodes[maker[name].name] = maker[name]
            waiting += reads(maker[name])
    return [node for node in graph.node if node.name in needed_nodes], list(needed.values())


def _value_infos(file: OnnxFile) -> dict[str, onnx.ValueInfoProto]:
    inferred = onnx.shape_inference.infer_shapes(file.model, strict_mode=True, data_prop=True).graph
    return {value.name: value for value in (*inferred.value_info, *inferred.input, *inferred.output)}
