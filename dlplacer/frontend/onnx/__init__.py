"""ONNX files: read, planned, profiled, and run cut by device."""

from dlplacer.frontend.onnx.onnx_values import OnnxFile, read_onnx
from dlplacer.frontend.onnx.op_graph_of_onnx import onnx_graph

__all__ = ["OnnxFile", "onnx_graph", "read_onnx"]
