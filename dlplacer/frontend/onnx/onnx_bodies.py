"""Work of ONNX nodes, of those too that run others: If, Loop, Scan, and calls of functions that the file defines."""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import onnx
from onnx import inliner, numpy_helper

from dlplacer.core.op import TensorSpec
from dlplacer.frontend.onnx.onnx_values import element_of, specs_of
from dlplacer.frontend.onnx.onnx_work import Specs, attribute, bytes_of, flops_of, is_standard

_ENDLESS = 2**31
"""Exporters of ``while`` give the greatest number there is as the most rounds of a loop."""


@dataclass(frozen=True, slots=True)
class NodeWork:
    """Arithmetic and memory traffic of a node, and the bytes of the tensors that only its bodies hold."""

    flops: float = 0.0
    bytes: int = 0
    held_bytes: int = 0

    def times(self, rounds: int) -> "NodeWork":
        """The work of as many runs, which hold their tensors once."""
        return NodeWork(self.flops * rounds, self.bytes * rounds, self.held_bytes)


@dataclass(frozen=True)
class WorkCounter:
    """Counts the work of nodes.

    Of the branches of an If the most work of any counts. A loop runs as often as what it stacks is long, else as often
    as it may, if that is a constant of the file; else it counts once, as nothing tells.

    Attributes
    ----------
    model
        With the shapes of its values, those of its subgraphs included, as shape inference leaves it.
    """

    model: Any

    def work_of(self, node: Any, specs: Mapping[str, TensorSpec]) -> NodeWork:
        """The work of a node of the model, or of one of its subgraphs.

        Parameters
        ----------
        specs
            Value name → shape, dtype and bytes, of the values that are visible where the node stands.
        """
        inputs = [specs.get(name) if name else None for name in node.input]
        outputs = [specs.get(name) if name else None for name in node.output]
        own_bytes = bytes_of(node, inputs, outputs)
        if (node.domain, node.op_type) in self._functions:
            inner = self._work_of_call(node, specs)
        elif is_standard(node) and node.op_type == "If":
            branches = [self.work_of_body(entry.g, specs) for entry in node.attribute if entry.HasField("g")]
            inner = NodeWork(
                max(branch.flops for branch in branches),
                max(branch.bytes for branch in branches),
                sum(branch.held_bytes for branch in branches),
            )
        elif is_standard(node) and node.op_type in ("Loop", "Scan"):
            rounds = self._rounds_of_scan(node, inputs) if node.op_type == "Scan" else self._rounds(node, outputs)
            inner = self.work_of_body(attribute(node, "body", None), specs).times(rounds)
        else:
            return NodeWork(flops_of(node, inputs, outputs), own_bytes)
        return NodeWork(inner.flops, max(own_bytes, inner.bytes), inner.held_bytes)

    def work_of_body(self, body: Any, around: Mapping[str, TensorSpec]) -> NodeWork:
        """The work of one run of a graph that sees the values around it."""
        specs = ChainMap(specs_of(body), dict(around))
        works = [self.work_of(node, specs) for node in body.node if node.op_type != "Constant"]
        constants = [name for node in body.node if node.op_type == "Constant" for name in node.output]
        constants += [tensor.name for tensor in body.initializer]
        held = sum(specs[name].bytes for name in constants if name in specs and name not in around)
        return NodeWork(
            sum(work.flops for work in works),
            sum(work.bytes for work in works),
            held + sum(work.held_bytes for work in works),
        )

    def _rounds(self, loop: Any, outputs: Specs) -> int:
        # Inputs are how often at most, whether at all, and the carried values, which are outputs before the stacked.
        stacked = [spec.shape[0] for spec in outputs[max(0, len(loop.input) - 2) :] if spec is not None and spec.shape]
        if stacked:
            return stacked[0]
        most = self._numbers.get(loop.input[0], _ENDLESS) if loop.input else _ENDLESS
        return most if 0 <= most < _ENDLESS else 1

    def _rounds_of_scan(self, scan: Any, inputs: Specs) -> int:
        count = attribute(scan, "num_scan_inputs", 0)
        first = inputs[len(inputs) - count] if 0 < count <= len(inputs) else None
        if first is None or not first.shape:
            return 1
        # Before opset 9 the body runs for every sample of a batch, whose axis comes first.
        if self._opset < 9:
            return prod(first.shape[:2])
        axis = next(iter(attribute(scan, "scan_input_axes", [])), 0)
        return first.shape[axis] if -len(first.shape) <= axis < len(first.shape) else 1

    def _work_of_call(self, call: Any, specs: Mapping[str, TensorSpec]) -> NodeWork:
        """The work of a function's body with the shapes of one call."""
        given = tuple(specs.get(name) for name in call.input)
        settings = tuple(entry.SerializeToString(deterministic=True) for entry in call.attribute)
        key = call.domain, call.op_type, given, settings
        if key not in self._calls:
            self._calls[key] = self._work_unfolded(call, specs)
        return self._calls[key]

    def _work_unfolded(self, call: Any, specs: Mapping[str, TensorSpec]) -> NodeWork:
        known = {name: specs[name] for name in call.input if name in specs}
        given = [
            onnx.helper.make_tensor_value_info(name, element_of(spec.dtype), spec.shape) for name, spec in known.items()
        ]
        made = [onnx.helper.make_empty_tensor_value_info(name) for name in call.output if name]
        weights = [tensor for tensor in self.model.graph.initializer if tensor.name in known]
        graph = onnx.helper.make_graph([call], "call", given, made, weights)
        model = onnx.helper.make_model(graph, opset_imports=self.model.opset_import, functions=self.model.functions)
        try:
            unfolded: Any = inliner.inline_local_functions(model, convert_version=True)
            unfolded = onnx.shape_inference.infer_shapes(unfolded, data_prop=True)
        except (RuntimeError, ValueError):
            return NodeWork()
        # A body for another opset that cannot be converted stays folded: the tensors that go in and out still count.
        return NodeWork() if unfolded.functions else WorkCounter(unfolded).work_of_body(unfolded.graph, known)

    @cached_property
    def _functions(self) -> frozenset[tuple[str, str]]:
        return frozenset((function.domain, function.name) for function in self.model.functions)

    @cached_property
    def _calls(self) -> dict[tuple[Any, ...], NodeWork]:
        return {}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return dict(_numbers(self.model.graph))

    @cached_property
    def _opset(self) -> int:
        return next((entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")), 9)


def _numbers(graph: Any) -> Iterator[tuple[str, int]]:
    """Whole numbers that a graph and its subgraphs hold, by name."""
    held: list[tuple[str, Any]] = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant" and is_standard(node):
            held += [(name, attribute(node, "value", None)) for name in node.output]
        for entry in node.attribute:
            for inner in (entry.g, *entry.graphs):
                yield from _numbers(inner)
    for name, tensor in held:
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        if tensor.data_type == onnx.TensorProto.INT64 and prod(tensor.dims) == 1:
            yield name, int(numpy_helper.to_array(tensor).reshape(()))
