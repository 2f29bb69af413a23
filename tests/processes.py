"""Several processes for one test: forked, joined by gloo, ended after a time limit that only a hang exceeds."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any


def run_ranks(count: int, work: Callable[[int], Any], limit_s: float = 240.0, leaving: int = 0) -> list[Any]:
    """What `work(rank)` returns on every rank of a new group, or ("error", type name, message), or ("ended",).

    The store is the parent's, as under torchrun. No process ends before all are done: its end would be an error for
    those that are slower.

    Parameters
    ----------
    leaving
        How many processes end without a word, so that nobody must wait for them.
    """
    from torch.distributed import TCPStore

    context = multiprocessing.get_context("fork")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    done = context.Barrier(count - leaving)

    def child(rank: int) -> None:
        import torch

        torch.set_num_threads(1)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", GLOO_SOCKET_IFNAME="lo")
        for other, (_, writer) in enumerate(pipes):
            if other != rank:
                writer.close()
        try:
            said = pickle.dumps(work(rank))
        except BaseException as error:
            said = pickle.dumps(("error", type(error).__name__, str(error)))
        with contextlib.suppress(threading.BrokenBarrierError):
            done.wait(limit_s / 4)
        pipes[rank][1].send_bytes(said)
        os._exit(0)

    processes = [context.Process(target=child, args=(rank,), daemon=True) for rank in range(count)]
    for process in processes:
        process.start()
    found: list[Any] = []
    try:
        for reader, writer in pipes:
            writer.close()
            assert reader.poll(limit_s), f"a rank is still running after {limit_s:g} s"
            try:
                found.append(pickle.loads(reader.recv_bytes()))
            except EOFError:
                found.append(("ended",))
    finally:
        for process in processes:
            process.join(1.0 if len(found) == count else 0.0)
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
                process.join()
    return found
