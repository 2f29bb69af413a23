"""What was measured takes the place of what the planner assumes; the file is data with a schema."""

import json
from pathlib import Path

import pytest

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.machines.costs.collectives_on_links import MachineCosts
from dlplacer.machines.costs.gradient_codecs import CodecSeconds, exchanges
from dlplacer.machines.costs.message_routes import Wiring
from dlplacer.planning.hybrid import (
    EpochsTable,
    MeasuredCollective,
    MeasuredNetwork,
    OnMachine,
    StatisticalEfficiency,
    Work,
    WorkerLayout,
    read_measurements,
)
from dlplacer.planning.hybrid.step_times import GradientLayer, Team
from dlplacer.planning.hybrid.workers import ALONE


def box(count: int) -> Topology:
    devices = tuple(Device(f"d{number}", "cpu-core", memory_bytes_per_s=1e10) for number in range(count))
    links = tuple(
        Link(f"d{first}", f"d{second}", 1e9, 1e-5) for first in range(count) for second in range(first + 1, count)
    )
    return Topology(devices, (), links, name="box")


def test_a_file_of_everything(tmp_path: Path) -> None:
    path = tmp_path / "measurements.json"
    content = {
        "format": "dlplacer.measurements/1",
        "source": "two cores",
        "codecs": {"ternary": {"encode_s_per_byte": 2e-10, "decode_s_per_byte": 4e-10, "workers": 4}},
        "codec_factor": {"ternary": 1.1},
        "period_factor": {"4": 1.2},
        "collectives": [{"collective": "all-reduce", "devices": 2, "bytes": 2**20, "seconds": 0.01}],
        "network": {"bytes_per_s": 1.25e8, "latency_s": 5e-5},
    }
    path.write_text(json.dumps(content))
    found = read_measurements(path)
    # 4e-10 s decoded the codes of four workers.
    assert found.codecs == {"ternary": CodecSeconds(2e-10, 1e-10)}
    assert found.collectives == (MeasuredCollective("all-reduce", 2, 2**20, 0.01),)
    assert found.network == MeasuredNetwork(1.25e8, 5e-5)
    table = StatisticalEfficiency(EpochsTable({1: 10.0, 8: 20.0}), {"ternary": 3.0, "fp16": 1.5})
    applied = found.applied_to(table)
    assert applied.epochs(8, "ternary") == pytest.approx(22)
    assert applied.epochs(8, "fp16") == pytest.approx(30)
    assert applied.epochs(8, period=4) == pytest.approx(24)


def test_a_measured_collective_scales_what_the_links_promise() -> None:
    topology, size = box(4), 2**22
    line = MachineCosts(Wiring(topology), (("d0", "d1"),)).collectives(size)["all-reduce"]
    work = Work(0.001, (GradientLayer(0.0005, size),))

    def exposed_s(*measured: MeasuredCollective) -> float:
        times = OnMachine(WorkerLayout(topology), exchanges(None, ("none",)), overlap=False, measured=measured)
        found = [step for step in times.step_times(work, Team(4, 1, ALONE), (1,)) if not step.servers]
        return min(step.exposed_s for step in found)

    as_promised = MeasuredCollective("all-reduce", 2, size, line.time_s(size))
    slower = MeasuredCollective("all-reduce", 2, size, 3 * line.time_s(size))
    assert exposed_s(as_promised) == pytest.approx(exposed_s())
    assert exposed_s(slower) == pytest.approx(3 * exposed_s())
    with pytest.raises(InputError, match="measured among 8 devices, and 'box' has 4"):
        exposed_s(MeasuredCollective("all-reduce", 8, size, 1.0))
    with pytest.raises(InputError, match="no collective 'gossip'"):
        MeasuredCollective("gossip", 2, size, 1.0)
