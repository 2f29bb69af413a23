"""How long a tensor takes from one process to another through shared memory."""

import time
from multiprocessing.connection import Connection
from statistics import median

import torch

from dlplacer.core.errors import RunError
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.processes.fork import fork_worker
from dlplacer.runtime.processes.inline_device import on_core
from dlplacer.runtime.processes.shared_memory import SharedMemory
from dlplacer.runtime.processes.slot import TensorSlot
from dlplacer.runtime.processes.worker_handle import WorkerHandle, end_workers

_SIDE = 8
_UNTIMED = 50


def process_handover_s(here: CpuDevice, there: CpuDevice, rounds: int = 300) -> float:
    """Seconds from handing over an 8 × 8 tensor to its being there: half a round trip between two processes, median.

    Both write and wait as the workers of a plan do, spinning.
    """
    tensor = torch.zeros(_SIDE, _SIDE)
    capacity = tensor.nbytes
    memory = SharedMemory(2 * TensorSlot.size_bytes(capacity))
    going, coming = TensorSlot("going", memory, capacity), TensorSlot("coming", memory, capacity)
    total = _UNTIMED + rounds

    def answer(connection: Connection) -> None:
        connection.send_bytes(b"{}")
        for number in range(1, total + 1):
            coming.put(going.get(number, lambda: None), number)

    worker = WorkerHandle(there.name, *fork_worker(here, there.core, answer))

    def watch() -> None:
        if worker.has_ended:
            raise RunError(f"the process of device {there.name!r} {worker.ending}")

    try:
        worker.await_ready()
        times = []
        with on_core(here.core), torch.no_grad():
            for number in range(1, total + 1):
                begin = time.perf_counter()
                going.put(tensor, number)
                coming.get(number, watch)
                times.append(time.perf_counter() - begin)
    finally:
        end_workers([worker])
    return 0.5 * median(times[_UNTIMED:])
