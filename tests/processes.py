"""Several processes for one test: forked where no thread runs, joined by gloo, ended after a time limit of a hang."""

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle

_CLEAN = multiprocessing.get_context("forkserver")
_CLEAN.set_forkserver_preload(
    [
        *("pytest", "hypothesis", "torch._dynamo", "torch.distributed.fsdp", "functorch.compile", "torch.onnx"),
        *(
            "dlplacer.models.classifiers",
            "dlplacer.frontend.torch.capture",
            "dlplacer.runtime.distributed.rank_module",
        ),
    ]
)
"""Modules that ranks would load for seconds each."""


def run_ranks(count: int, work: Callable[[int], Any], limit_s: float = 240.0, leaving: int = 0) -> list[Any]:
    """Return the values of `work(rank)` on every rank of a new group, or ("error", type name, message), or ("ended",).

    The store is the parent's, as under torchrun. No process ends before all are done: its end would be an error for
    those that are slower. One that is ended by the time limit prints where it is. Processes are forked from one that
    has only imported: a fork of this one, with all its threads, may inherit a lock that nobody opens.

    Parameters
    ----------
    leaving
        How many processes end without a word, so that nobody must wait for them.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [_CLEAN.Pipe(duplex=False) for _ in range(count)]
    done = _CLEAN.Barrier(count - leaving)
    told = cloudpickle.dumps(work)
    environment = dict(os.environ, WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
    environment |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}
    processes = []
    for rank, (_, writer) in enumerate(pipes):
        arguments = (told, rank, environment, writer, done, limit_s / 4)
        processes.append(_CLEAN.Process(target=_rank, args=arguments, daemon=True))
        processes[-1].start()
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
                os.kill(process.pid, signal.SIGUSR1)
                process.join(1.0)
                process.kill()
                process.join()
    return found


def _rank(told: bytes, rank: int, environment: dict[str, str], writer: Any, done: Any, patience_s: float) -> None:
    import torch

    gc.freeze()  # what was imported lasts; a collection goes through it for a quarter of a second
    faulthandler.register(signal.SIGUSR1, sys.__stderr__)
    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(environment, RANK=str(rank))
    try:
        said = pickle.dumps(pickle.loads(told)(rank))
    except BaseException as error:
        said = pickle.dumps(("error", type(error).__name__, str(error)))
    with contextlib.suppress(threading.BrokenBarrierError):
        done.wait(patience_s)
    writer.send_bytes(said)
    os._exit(0)
