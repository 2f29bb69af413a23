"""Several processes for one test: forked, joined by gloo, ended after a time limit."""

import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection, get_context
from typing import Any

import torch

LIMIT_S = 60.0


def run_ranks(count: int, work: Callable[[int], Any], limit_s: float = LIMIT_S) -> list[Any]:
    """What `work(rank)` returns on every rank of a new group, or ("error", type name, message), or ("ended",).

    Raises
    ------
    TimeoutError
        If a process is still running after the limit; all are killed then.
    """
    context = get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        context.Process(target=_child, args=(rank, count, port, pipes[rank][1], work), daemon=True)
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + limit_s
    try:
        return [_result(rank, processes[rank], pipes[rank][0], deadline) for rank in range(count)]
    finally:
        for process in processes:
            process.join(max(0.1, min(5.0, deadline - time.monotonic())))
            if process.is_alive():
                process.kill()
                process.join()


def _result(rank: int, process: Any, reader: Any, deadline: float) -> Any:
    ready = connection.wait([reader, process.sentinel], max(0.0, deadline - time.monotonic()))
    if not ready:
        raise TimeoutError(f"rank {rank} is still running at the time limit")
    return pickle.loads(reader.recv_bytes()) if reader.poll() else ("ended",)


def _child(rank: int, count: int, port: int, writer: Any, work: Callable[[int], Any]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        writer.send_bytes(pickle.dumps(work(rank)))
    except BaseException as error:
        if os.environ.get("DLPLACER_DEBUG"):
            traceback.print_exc()
        writer.send_bytes(pickle.dumps(("error", type(error).__name__, str(error))))
    writer.close()
    os._exit(0)
