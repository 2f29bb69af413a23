"""Whatever stands in a file: every reader returns, or says what is wrong with it; no other error, no endless work."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import dlplacer as dp
from dlplacer.check import check_plan
from dlplacer.core.errors import CheckError, InputError
from dlplacer.files.formats import plan_to_dict, read_graph, read_plan, read_topology
from dlplacer.files.load import locate
from dlplacer.machines.costs.calibration import read_calibration
from dlplacer.machines.importers.any_format import import_topology
from dlplacer.planning.hybrid.epochs import read_epochs

COUNT = 40

GRAPH = {
    "format": "dlplacer.graph/1",
    "name": "small",
    "nodes": [
        {"id": "x", "kind": "input", "time_s": 0, "outputs": [{"shape": [2, 3], "dtype": "float32", "bytes": 24}]},
        {"id": "w", "kind": "parameter", "weight_bytes": 100, "gradient_bytes": "100 B", "colocate": "w"},
        {
            "id": "a",
            "kind": "aten.mm",
            "time_s": {"gpu": "1 us", "cpu-core": 2e-6},
            "flops": 10,
            "bytes_accessed": 20,
            "devices": ["cpu0", "cpu-core"],
            "attrs": {"target": "t", "args": [{"tensor": "x"}]},
            "module": "m",
            "origin": ["q"],
            "phase": "forward",
        },
        {"id": "b", "kind": "aten.relu", "time_s": 1e-6, "phase": "backward", "workspace_bytes": 3, "meta": {"k": 1}},
    ],
    "edges": [
        {"source": "x", "target": "a", "bytes": 24, "tensor": "x"},
        {"source": "w", "target": "a", "bytes": 100},
        {"source": "a", "target": "b", "bytes": 8, "output": 0, "meta": {}},
    ],
    "capture": {"entry": "m:f", "mode": "train", "rewrites": ["drop-detach", "split:a:batch:2"], "args": []},
    "known": {"makespan_s": 1},
}
CALIBRATION = {
    "format": "dlplacer.calibration/1",
    "device_type": "cpu",
    "versions": {"torch": "2"},
    "overhead_s": 1e-6,
    "copy_line": {"latency_s": 1e-6, "bytes_per_s": 1e9},
    "ops": {"a|b": {"time_s": 1e-3, "count": 3}},
}
EPOCHS = {
    "format": "dlplacer.epochs/1",
    "epochs": {"32": 4, "64": 7},
    "mini_batch": 32,
    "codec_factor": {"a": 1.5},
    "period_factor": {"4": 1.2},
}
NODE_LINK = {
    "directed": False,
    "graph": {"name": "n"},
    "nodes": [
        {"id": 0, "kind": "device", "memory_bytes": "8 GiB", "meta": {}},
        {"id": "s", "kind": "switch"},
        {"id": 1},
    ],
    "links": [
        {"source": 0, "target": "s", "bandwidth": "10 GB/s", "latency": "1 us", "key": 0},
        {"source": 1, "target": "s", "bw": 1e9, "count": 2},
    ],
}


def plan() -> dict[str, Any]:
    found = dp.place(read_graph(GRAPH, "small"), dp.load_topology("cpu-2core"), method="heft")
    return plan_to_dict(found.plan)


def checked(path: Path) -> None:
    found = read_plan(path)
    try:
        check_plan(found)
    except CheckError:
        return


JUNK: list[Any] = [None, True, -1, 1.5, 1e308, 10**400, "", "\x00", "5 GB", "1e400 GB", "²", "x" * 3000, [], [[]]]
JUNK += [{}, {"id": "a"}, {"": ""}]


def of_value(value: Any, draw: Random) -> Any:
    """Entries replaced by junk or others, put in, or taken out."""
    for _ in range(draw.randint(1, 3)):
        places = []
        waiting = [value]
        while waiting:
            holder = waiting.pop()
            keys = range(len(holder)) if isinstance(holder, list) else holder if isinstance(holder, dict) else ()
            places += [(holder, key) for key in keys]
            waiting += [holder[key] for key in keys]
        if not places:
            break
        (holder, key), (other, other_key) = draw.choice(places), draw.choice(places)
        chance = draw.random()
        if chance < 0.6:
            holder[key] = draw.choice((*JUNK, *[copy.deepcopy(other[other_key])] * 5))
        elif chance < 0.8 and isinstance(holder, dict):
            holder[draw.choice(("zz", "id", "", "time_s"))] = draw.choice(JUNK)
        else:
            del holder[key]
    return value


READERS: dict[str, tuple[Callable[[], Any], Callable[[Path], Any]]] = {
    "graph": (lambda: GRAPH, read_graph),
    "topology": (lambda: json.loads(locate("dgx1-v100-2gpu", "topology").read_text()), read_topology),
    "plan": (plan, checked),
    "calibration": (lambda: CALIBRATION, read_calibration),
    "epochs": (lambda: EPOCHS, read_epochs),
    "node-link": (lambda: NODE_LINK, import_topology),
}


@pytest.mark.parametrize("name", READERS)
def test_mutated_files_are_read_or_refused(tmp_path: Path, name: str) -> None:
    make, read = READERS[name]
    path, draw, refused = tmp_path / "file", Random(len(name)), 0
    path.write_text(json.dumps(make()))
    read(path)
    for _ in range(COUNT):
        path.write_text(json.dumps(of_value(copy.deepcopy(make()), draw)))
        try:
            read(path)
        except InputError:
            refused += 1
    assert refused > COUNT / 2
