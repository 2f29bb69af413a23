"""Seconds per node of an ONNX model, as onnxruntime reports them."""

import json
import tempfile
from collections import defaultdict
from pathlib import Path

from dlplacer.core.graph import OpGraph
from dlplacer.frontend.onnx.onnx_file import OnnxFile
from dlplacer.machines.importers.host import CORE
from dlplacer.runtime.onnx.run_cut_model import random_inputs
from dlplacer.runtime.onnx.session import open_session, run_session
from dlplacer.runtime.profile.statistic import typical


def profile_onnx(file: OnnxFile, graph: OpGraph, steps: int = 7, warmup: int = 2) -> dict[str, dict[str, float]]:
    """Device type → op id → seconds on one core, every node run by itself; see `typical`.

    Raises
    ------
    InputError
        If onnxruntime is not installed.
    RunError
        If it cannot run the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(file.model, Path(folder) / "profile", optimized=False)
        inputs = random_inputs(file)
        for _ in range(warmup + steps):
            run_session(session, None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    durations: dict[str, list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            durations[name.removesuffix("_kernel_time")].append(event["dur"] * 1e-6)
    by_op = {op.id: _per_step(durations.get(str(op.attrs.get("node", "")), []), warmup + steps) for op in graph.ops}
    samples = [{op: times[number] for op, times in by_op.items()} for number in range(warmup, warmup + steps)]
    return {CORE: typical(samples)}


def _per_step(times: list[float], count: int) -> list[float]:
    """[step] → seconds of a node that may run several times in a step; one that was removed or folded takes none."""
    runs = len(times) // count
    return [sum(times[number * runs : (number + 1) * runs]) for number in range(count)]
