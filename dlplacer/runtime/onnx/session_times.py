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
from dlplacer.runtime.profile.op_times import typical


def profile_onnx(file: OnnxFile, graph: OpGraph, steps: int = 7, warmup: int = 2) -> dict[str, dict[str, float]]:
    """Device type → op id → seconds on one core, as `typical` steps have them, every node run alone.

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
    # A node that onnxruntime removed or folded has no events: it takes no time.
    found = {op.id: durations.get(str(op.attrs.get("node", "")), [0.0] * steps)[-steps:] for op in graph.ops}
    return {CORE: typical([{op: times[step] for op, times in found.items()} for step in range(steps)])}
