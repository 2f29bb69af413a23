"""An ONNX model cut by device and run with onnxruntime."""
