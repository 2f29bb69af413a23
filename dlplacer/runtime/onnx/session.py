"""onnxruntime sessions on one device each: a core, or a device of another execution provider."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlplacer.core.errors import InputError, RunError, first_line

_ENDING = "ExecutionProvider"
_CPU = "CPU" + _ENDING
_MEMORY = {
    "CUDA": "cuda",
    "Tensorrt": "cuda",
    "NvTensorRTRTX": "cuda",
    "ROCM": "cuda",
    "MIGraphX": "cuda",
    "Dml": "dml",
}
"""Provider → onnxruntime's name of the memory in which outputs can stay; those of others are in the host's."""


@dataclass(frozen=True)
class OnnxDevice:
    """A core by its number among those of this process, or a device of a provider by the provider's number.

    `provider`: as onnxruntime lists it; None for a core.
    """

    index: int = 0
    provider: str | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Name and number of the memory in which outputs stay."""
        memory = _MEMORY.get((self.provider or _CPU).removesuffix(_ENDING), "cpu")
        return memory, self.index if memory != "cpu" else 0

    @property
    def providers(self) -> list[Any]:
        """The ``providers`` of a session: the CPU runs the nodes for which the device has no kernel."""
        if self.provider is None:
            return [_CPU]
        # The first device is every provider's default.
        option = {"device_type": f"GPU.{self.index}"} if "OpenVINO" in self.provider else {"device_id": str(self.index)}
        return [(self.provider, option if self.index else {}), _CPU]


@dataclass(frozen=True)
class OnDevice:
    """An ``OrtValue``, and the memory in which it lies."""

    value: Any
    place: tuple[str, int]


def provider_named(name: str) -> str:
    """The provider of this name, with or without ``ExecutionProvider`` at its end, in any case of letters.

    Raises InputError if this onnxruntime has none; names those that it has.
    """
    listed = [str(one) for one in _onnxruntime().get_available_providers()]
    wanted = name.lower().removesuffix(_ENDING.lower())
    found = next((one for one in listed if one.removesuffix(_ENDING).lower() == wanted), None)
    if found is None:
        known = ", ".join(one.removesuffix(_ENDING) for one in listed)
        raise InputError(f"this onnxruntime has no provider {name!r}; it has {known}: install the package for {name}")
    return found


def open_session(
    model: Any, profile_prefix: Path | None = None, optimized: bool = True, device: OnnxDevice | None = None
) -> Any:
    """A session that computes with one thread of the host, by default on a core.

    Raises InputError if onnxruntime is not installed, and RunError if it cannot run the model.

    Parameters
    ----------
    profile_prefix
        Start of the name of the trace that the session writes when profiling ends; None: it writes none.
    optimized
        True if nodes may be fused and folded; otherwise every node of the file is executed separately.
    """
    onnxruntime = _onnxruntime()
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
    providers = (device or OnnxDevice()).providers
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    except Exception as error:
        raise RunError(f"onnxruntime cannot run the model: {first_line(error)}") from error


def run_session(session: Any, names: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[Any]:
    """The named outputs, or all; RunError if onnxruntime fails, or has no arrays of a type."""
    try:
        return list(session.run(names, inputs))
    except Exception as error:
        raise RunError(f"onnxruntime cannot run the model: {first_line(error)}") from error


def run_bound(session: Any, names: Sequence[str], inputs: Mapping[str, Any], device: OnnxDevice) -> list[Any]:
    """The named outputs, left in the device's memory; inputs are arrays, or outputs of another session.

    Those of a core are arrays.
    """
    if device.provider is None:
        return list(session.run(names, {name: as_array(value) for name, value in inputs.items()}))
    binding = session.io_binding()
    for name, value in inputs.items():
        if isinstance(value, OnDevice) and value.place == device.place:
            binding.bind_ortvalue_input(name, value.value)
        else:
            binding.bind_cpu_input(name, as_array(value))
    for name in names:
        binding.bind_output(name, *device.place)
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return [OnDevice(value, device.place) for value in binding.get_outputs()]


def as_array(value: Any) -> Any:
    """The array of a value that may be in a device's memory."""
    return value.value.numpy() if isinstance(value, OnDevice) else value


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError("running ONNX models needs onnxruntime: pip install 'dlplacer[onnx]'") from error
    return onnxruntime
