"""ONNX files: read, planned, profiled, and run cut by device."""

from dlplacer.onnx_model.build import onnx_graph
from dlplacer.onnx_model.load import OnnxFile, read_onnx

__all__ = ["OnnxFile", "onnx_graph", "read_onnx"]
