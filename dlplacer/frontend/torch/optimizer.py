"""Update ops: the optimizer's step as part of the graph, one op per parameter."""

import math
from collections.abc import Mapping
from dataclasses import replace

from dlplacer.core.op import Edge, Op
from dlplacer.frontend.torch.executable import Executable, OpCode
from dlplacer.frontend.torch.job import Optimizer
from dlplacer.frontend.torch.tracing.hazards import write_after_read


def add_updates(
    ops: list[Op], edges: list[Edge], executable: Executable, optimizer: Optimizer
) -> tuple[list[Op], list[Edge], Executable]:
    """Append an op ``<parameter>.update`` for every parameter with a gradient.

    It reads the weight and the gradient, and runs where the parameter lives, since the group of the parameter holds it
    there. Its state stays all step.
    """
    codes: dict[str, OpCode] = dict(executable.codes)
    parameters = {code.name: code for code in codes.values() if code.role == "parameter"}
    by_id: Mapping[str, Op] = {op.id: op for op in ops}
    edges = list(edges)
    updates = []
    for code in executable.of_role("gradient"):
        parameter = parameters[code.name]
        weight = by_id[parameter.op]
        size = weight.weight_bytes
        update = Op(
            f"{code.name}.update",
            f"update.{optimizer.kind}",
            # Weight decay and step take two operations per element, each state tensor about four; reads and writes
            # likewise: weight and gradient in, weight out, each state in and out.
            flops=(2 + 4 * optimizer.states) * math.prod(weight.outputs[0].shape),
            bytes_accessed=(3 + 2 * optimizer.states) * size,
            dtype=weight.outputs[0].dtype,
            state_bytes=optimizer.states * size,
            phase="optimizer",
            module=weight.module,
            colocate=weight.colocate,
        )
        source = next(edge for edge in edges if edge.target == code.op)
        edges.append(Edge(parameter.op, update.id, size, 0, parameter.value))
        edges.append(replace(source, target=update.id))
        codes[update.id] = OpCode(update.id, "update", (parameter.value, code.reads[0]), name=code.name)
        updates.append(update)
    edges += write_after_read({name: code for name, code in codes.items() if code.role != "mutation"}, edges)
    return [*ops, *updates], edges, replace(executable, codes=codes)
