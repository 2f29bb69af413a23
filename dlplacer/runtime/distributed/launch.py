"""Processes on this machine for a plan over several ranks, where torchrun has not started them."""

import contextlib
import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from typing import Any

from dlplacer.core.errors import DlplacerError, InputError, RunError
from dlplacer.planning.interrupt import blocked_interrupts
from dlplacer.runtime.distributed.failure import LostRankError
from dlplacer.runtime.distributed.lifeline import Lifeline
from dlplacer.runtime.distributed.loopback import LOOPBACK, loopback_interface

_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """How a process ended.

    Attributes
    ----------
    result
        What its function returned.
    error
        (type, message) of what it raised; ("ended", …) if the process ended without a word, ("stopped", …) if it was
        ended because another had failed.
    exit_code
        Of a `DlplacerError` that it raised.
    """

    rank: int
    result: Any = None
    error: tuple[str, str] | None = None
    exit_code: int = 1


def under_launcher() -> bool:
    """Whether torchrun, or another launcher, has started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def launch(count: int, work: Callable[[int], Any], timeout_s: float) -> list[ProcessOutcome]:
    """Fork processes that run `work(rank)` each, as one group of torch.distributed, and wait for all of them.

    The caller must not have used CUDA, and its own torch threads are not there in the children, which run torch with
    one thread. When one process fails, the others have a few seconds to end by themselves; then they are killed. They
    end with the caller's process, however that ends.

    Raises
    ------
    InputError
        If this system cannot fork.
    RunError
        If a process is still running after the time limit, or the system makes none; all are killed then.
    """
    # Not by torch.multiprocessing: its start_processes returns no results, and of errors only the traceback of the
    # process that failed first, as text: the error's type, and with it our exit code, would be lost.
    if not hasattr(os, "fork"):
        raise InputError(f"this system cannot fork; start the {count} processes with torchrun --nproc-per-node {count}")
    context = get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    reserved = _reserved_port()
    port = int(reserved.getsockname()[1])
    lifeline = Lifeline()
    writers = [writer for _, writer in pipes]
    processes = [
        context.Process(target=_child, args=(rank, count, port, writers, lifeline, work), daemon=True)
        for rank in range(count)
    ]
    started: list[Any] = []
    found: dict[int, ProcessOutcome] = {}
    deadline = time.monotonic() + timeout_s
    try:
        _start(processes, started)
        # A process that is killed within its last words must be the only one that held their pipe open.
        for writer in writers:
            writer.close()
        while len(found) < count:
            waiting = [rank for rank in range(count) if rank not in found]
            left_s = deadline - time.monotonic()
            if left_s <= 0 and not any(outcome.error for outcome in found.values()):
                raise RunError(f"rank {waiting[0]} is still running after {timeout_s:g} s; all ranks were ended")
            if left_s <= 0:
                break
            ends = [end for rank in waiting for end in (pipes[rank][0], processes[rank].sentinel)]
            connection.wait(ends, min(left_s, 1.0))
            for rank in waiting:
                outcome = _outcome(rank, processes[rank], pipes[rank][0])
                if outcome is not None:
                    found[rank] = outcome
                    if outcome.error is not None:
                        deadline = min(deadline, time.monotonic() + _GRACE_S)
    except BaseException:
        for process in started:
            process.kill()
        raise
    finally:
        _end(started)
        lifeline.close()
        reserved.close()
    for rank in range(count):
        found.setdefault(
            rank, ProcessOutcome(rank, error=("stopped", f"rank {rank} was ended because another rank failed"))
        )
    return [found[rank] for rank in range(count)]


def _start(processes: Sequence[Any], started: list[Any]) -> None:
    """Start all; those that are running by now are in `started` whatever comes between."""
    # Blocked while forking: a Ctrl-C reaches the children too, before they can say that it is the parent's to answer.
    with blocked_interrupts():
        for rank, process in enumerate(processes):
            try:
                process.start()
            except OSError as error:
                raise RunError(
                    f"no process can be made for rank {rank}: {error.strerror}; end others, or plan fewer ranks"
                ) from error
            started.append(process)


def results_of(outcomes: Sequence[ProcessOutcome]) -> list[Any]:
    """What all processes returned.

    Raises
    ------
    RunError, InputError
        The error of the process where the trouble began.
    """
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if not failed:
        return [outcome.result for outcome in outcomes]
    origin = min(failed, key=_suspicion)
    assert origin.error is not None
    name, message = origin.error
    if name not in _WITHOUT_A_WORD and not message.startswith("rank "):
        message = f"rank {origin.rank}: {message}"
    if origin.exit_code == InputError.exit_code:
        raise InputError(message)
    raise RunError(message)


_WITHOUT_A_WORD = ("ended", "stopped")


def _suspicion(outcome: ProcessOutcome) -> tuple[int, int]:
    """Where the trouble began: with what was raised, else with a process that is gone, else with what misses one."""
    name = "" if outcome.error is None else outcome.error[0]
    return {"ended": 1, LostRankError.__name__: 2, "stopped": 3}.get(name, 0), outcome.rank


def _outcome(rank: int, process: Any, reader: Any) -> ProcessOutcome | None:
    running = process.is_alive()  # asked first: what a process says before it ends is there when it has ended
    if reader.poll():
        with contextlib.suppress(EOFError, OSError):
            outcome: ProcessOutcome = pickle.loads(reader.recv_bytes())
            return outcome
        process.join(_GRACE_S)
        running = process.is_alive()
    if running:
        return None
    return ProcessOutcome(rank, error=("ended", f"rank {rank} {_ending(process.exitcode)}"))


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL): by a user, or by the system, which was out of memory; see dmesg"
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"{how}, and without a word"


def _end(processes: Sequence[Any]) -> None:
    deadline = time.monotonic() + 1.0
    for process in processes:
        process.join(max(0.05, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _reserved_port() -> socket.socket:
    """A socket on a free port, which nobody else is given while it is open and on which rank 0 can listen."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((LOOPBACK, 0))
    return reserved


def _child(
    rank: int, count: int, port: int, writers: Sequence[Any], lifeline: Lifeline, work: Callable[[int], Any]
) -> None:
    # Ctrl-C is the parent's to answer: it ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    lifeline.hold_on()
    writer = writers[rank]
    for other in writers:
        if other is not writer:
            other.close()
    import torch

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR=LOOPBACK, MASTER_PORT=str(port))
    # Gloo listens where the host's name leads, in reach of others, unless it is given an interface.
    if (interface := loopback_interface()) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    try:
        outcome = ProcessOutcome(rank, work(rank))
        said = pickle.dumps(outcome)
    except BaseException as error:
        if os.environ.get("DLPLACER_DEBUG"):
            traceback.print_exc()
        code = error.exit_code if isinstance(error, DlplacerError) else 1
        outcome = ProcessOutcome(rank, error=(type(error).__name__, str(error)), exit_code=code)
        said = pickle.dumps(outcome)
    writer.send_bytes(said)
    writer.close()
    # Threads that wait on the network cannot be joined.
    os._exit(0 if outcome.error is None else 1)
