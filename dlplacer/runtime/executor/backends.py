"""The ways to call segments, by name."""

from collections.abc import Callable

from dlplacer.core.errors import InputError
from dlplacer.runtime.executor.cuda_graphs import CudaGraphs
from dlplacer.runtime.executor.segment_backend import Eager, Inductor, SegmentBackend

BACKENDS: dict[str, Callable[[], SegmentBackend]] = {
    "eager": Eager,
    "inductor": Inductor,
    "cuda_graph": CudaGraphs,
}


def segment_backend(name: str) -> SegmentBackend:
    """A new backend for one program.

    Raises
    ------
    InputError
        If there is none of this name.
    """
    if name not in BACKENDS:
        *others, last = BACKENDS
        raise InputError(f"segments is {name!r}; use {', '.join(others)} or {last}")
    return BACKENDS[name]()
