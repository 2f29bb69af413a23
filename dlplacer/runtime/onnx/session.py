"""onnxruntime sessions of one thread each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlplacer.core.errors import InputError, RunError, first_line


def open_session(model: Any, profile_prefix: Path | None = None, optimized: bool = True) -> Any:
    """A session on the CPU that computes with one thread.

    Parameters
    ----------
    profile_prefix
        Start of the name of the trace that the session writes when profiling ends; None: it writes none.
    optimized
        Whether nodes may be fused and folded; otherwise every node of the file is executed separately.

    Raises
    ------
    InputError
        If onnxruntime is not installed.
    RunError
        If it cannot run the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError("running ONNX models needs onnxruntime: pip install 'dlplacer[onnx]'") from error
    options = onnxruntime.SessionOptions()
    # One core per device: by default each session starts a pool of as many threads as there are cores.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimized:
        # Fused nodes have other names in the profile than in the file, and no times of their own.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RunError(f"onnxruntime cannot run the model: {first_line(error)}") from error


def run_session(session: Any, names: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[Any]:
    """The named outputs, or all.

    Raises
    ------
    RunError
        If onnxruntime fails, or has no arrays of a type.
    """
    try:
        return list(session.run(names, inputs))
    except Exception as error:
        raise RunError(f"onnxruntime cannot run the model: {first_line(error)}") from error
