"""ONNX files: read them, and turn them into graphs to plan."""

from dlplacer.frontend.onnx.onnx_values import OnnxFile, read_onnx
from dlplacer.frontend.onnx.op_graph_of_onnx import onnx_graph

__all__ = ["OnnxFile", "onnx_graph", "read_onnx"]
