"""Processes that are killed, orphaned, spoken to by strangers or called differently: what ends, and whom it blames."""

import ast
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import run_ranks
from runtime.random_plans import needs_two_cores, random_plan

import dlplacer
from dlplacer.core.errors import DlplacerError, InputError, RunError
from dlplacer.frontend import capture
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.measure.run_plan import OverRanks, run_over_ranks
from dlplacer.models import mlp
from dlplacer.runtime.distributed import apply_ranks, replicated_plan
from dlplacer.runtime.distributed.launch import launch, results_of
from dlplacer.runtime.distributed.loopback import is_loopback, own_store

pytestmark = needs_two_cores

NAMES = "rank0/cpu:0,rank1/cpu:1"
PARENT = """
import os, sys, time
from dlplacer.runtime.distributed.launch import launch

def work(rank):
    with open(f"{sys.argv[1]}/{rank}", "w") as stream:
        stream.write(str(os.getpid()))
    if sys.argv[2] == "python":
        while True:
            time.sleep(1)
    import torch
    while True:
        torch.randn(2000, 2000) @ torch.randn(2000, 2000)

launch(2, work, 600)
"""


@pytest.fixture(scope="module")
def plan():
    return random_plan(capture(mlp(batch_size=4)), 2, seed=1)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether something comes true within a time limit."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


@contextlib.contextmanager
def ranks_of_a_parent(folder: Path, busy: str) -> Iterator[tuple["subprocess.Popen[bytes]", list[int]]]:
    """A process that has started two ranks, and their process ids; none is left behind."""
    command = [sys.executable, "-c", PARENT, str(folder), busy]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    pids: list[int] = []
    try:
        files = [folder / str(rank) for rank in range(2)]
        assert until(lambda: all(path.is_file() and path.read_text() for path in files), 60)
        pids += [int(path.read_text()) for path in files]
        yield parent, pids
    finally:
        for pid in (parent.pid, *pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        parent.wait(10)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc")
@pytest.mark.parametrize(
    ("number", "busy"),
    [
        (signal.SIGKILL, "torch"),
        pytest.param(signal.SIGTERM, "python", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, "python", marks=pytest.mark.slow),
    ],
)
def test_ranks_end_with_what_started_them(tmp_path: Path, number: signal.Signals, busy: str) -> None:
    with ranks_of_a_parent(tmp_path, busy) as (parent, pids):
        assert all(map(alive, pids))
        parent.send_signal(number)
        assert until(lambda: not any(map(alive, pids)), 5)


def listening() -> set[str]:
    """Addresses on which this process listens."""
    own = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in own:
                found.add(address.partition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("comes", [OSError(11, "Resource temporarily unavailable"), KeyboardInterrupt()])
def test_ranks_end_where_the_last_cannot_be_started(comes: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, made = os.fork, list[int]()

    def second_fails() -> int:
        if made:
            raise comes
        made.append(fork())
        return made[0]

    monkeypatch.setattr(os, "fork", second_fails)
    said = "no process can be made for rank 1: Resource" if isinstance(comes, OSError) else None
    with pytest.raises((RunError, KeyboardInterrupt), match=said):
        launch(2, lambda rank: time.sleep(60), 600)
    assert not alive(made[0])


def test_everything_listens_on_this_machine_alone(plan) -> None:
    def work(rank: int) -> list[str]:
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, NAMES, timeout_s=60)
        placed.step(*job.args, *job.targets)
        return sorted(listening())

    found = run_ranks(2, work)
    assert set().union(*found) == {"0100007F"}  # 127.0.0.1, as the kernel writes it
    assert found[0]


@pytest.mark.parametrize(
    ("host", "alone"), [("localhost", True), ("127.0.0.1", True), ("::1", True), ("node3", False), ("10.0.0.1", False)]
)
def test_a_host_that_is_named_is_where_torch_listens(host: str, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_loopback(host) == alone
    if not alone:
        monkeypatch.setenv("MASTER_ADDR", host)
        assert own_store(0, 2, 1.0) is None


def stranger(key: str) -> None:
    """Someone who reaches the store: writes where failures are posted, and rubbish."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    for rubbish in (b"\x00" * 64, b"GET / HTTP/1.0\r\n\r\n", os.urandom(256)):
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(rubbish)
    store = dist.TCPStore(host, port, None, False)
    message = '{"rank": 1, "message": "strangers end runs", "lost": false}'
    for name in ("dlplacer/failure", key):
        store.set(name, message)
        store.set(name, "0" * 64 + message)
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as connection:
        connection.sendall(os.urandom(4096))


def test_a_stranger_does_not_end_a_run(plan) -> None:
    def work(rank: int) -> list[float]:
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, NAMES, timeout_s=60)
        losses = []
        for step in range(6):
            if rank == 1 and step == 2:
                stranger(placed.group.failure._key)
            losses.append(placed.step(*job.args, *job.targets).item())
            time.sleep(0.1)  # the watch looks every tenth of a second
        if rank == 0:
            placed.group.failure.fail(RunError("our own"))
        with pytest.raises(RunError, match="our own"):
            placed.group.failure.wait(placed.group.failure.future(), "what the stranger cannot hide")
        return losses

    left, right = run_ranks(2, work)
    assert left == right
    assert len(left) == 6


def test_the_rank_that_is_killed_is_the_one_that_is_named(plan) -> None:
    def work(rank: int) -> None:
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, NAMES, timeout_s=60)
        placed.step(*job.args, *job.targets)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        placed.step(*job.args, *job.targets)

    with pytest.raises(RunError, match=r"^rank 1 was killed \(SIGKILL\)"):
        results_of(launch(2, work, 120))


def test_the_others_name_it_too(plan) -> None:
    """Each under torchrun on its own: also where the one that is gone held the store."""

    def dies(culprit: int) -> Callable[[int], str]:
        def work(rank: int) -> str:
            job = mlp(batch_size=4)
            placed = apply_ranks(job, plan, NAMES, timeout_s=60)
            placed.step(*job.args, *job.targets)
            if rank == culprit:
                os._exit(3)
            try:
                placed.step(*job.args, *job.targets)
            except DlplacerError as error:
                return str(error)
            return ""

        return work

    for culprit in (0, 1):
        found = run_ranks(2, dies(culprit), leaving=1)
        assert found[culprit] == ("ended",)
        assert found[1 - culprit].startswith(f"rank {culprit} ")
        assert "has ended or is out of reach" in found[1 - culprit]


def test_an_error_of_one_rank_is_told_before_the_end_of_another(plan) -> None:
    def work(rank: int) -> None:
        if rank == 1:
            raise InputError("no data on this rank")
        time.sleep(1)
        os._exit(9)

    with pytest.raises(InputError, match=r"^rank 1: no data on this rank$"):
        results_of(launch(2, work, 60))


@pytest.mark.parametrize("moment", [pytest.param("first step", marks=pytest.mark.slow), "later step"])
def test_ranks_with_other_batch_sizes_are_named_before_anything_is_sent(plan, moment: str) -> None:
    def work(rank: int) -> list[str]:
        job, other = mlp(batch_size=4), mlp(batch_size=3)
        placed = apply_ranks(job, plan, NAMES, timeout_s=60)
        if moment == "later step":
            placed.step(*job.args, *job.targets)
        told = []
        for called in (job, other) if rank else (other, job):
            with pytest.raises(InputError) as refused:
                placed.step(*called.args, *called.targets)
            told.append(str(refused.value))
        placed.step(*job.args, *job.targets)
        placed.step(*other.args, *other.targets)
        return told

    for found in run_ranks(2, work):
        assert all(re.match(r"rank [01] and rank [01] differ in inputs: .*\[[34], ", text) for text in found), found


def test_ranks_that_freeze_other_parameters_are_named(plan) -> None:
    def work(rank: int) -> str:
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, NAMES, timeout_s=60)
        placed.step(*job.args, *job.targets)
        if rank == 1:
            next(job.module.parameters()).requires_grad_(False)
        with pytest.raises(InputError) as refused:
            placed.step(*job.args, *job.targets)
        next(job.module.parameters()).requires_grad_(False)
        placed.step(*job.args, *job.targets)
        return str(refused.value)

    for text in run_ranks(2, work):
        assert "differ in trained parameters" in text


@pytest.mark.slow
def test_a_gradient_that_replicas_do_not_exchange_is_refused_by_name(plan) -> None:
    shared = replicated_plan(plan, 2, AlphaBeta(1e-4, 1e-9), 40_000)

    def work(rank: int) -> str:
        job = mlp(batch_size=4)
        placed = apply_ranks(job, shared, NAMES, replicas=2, timeout_s=60)
        name = next(name for name, _ in job.module.named_parameters())
        job.module.get_parameter(name).requires_grad_(False)
        with pytest.raises(InputError) as refused:
            placed.step(*job.args, *job.targets)
        return str(refused.value)

    for text in run_ranks(4, work):
        assert "was frozen after the plan was applied" in text


def test_runs_under_a_launcher_compare_their_plans_first(plan) -> None:
    """Each rank reads a plan file of its own: rank 0's is not used in silence."""
    other = replace(plan, method="another file")

    def work(rank: int) -> None:
        run_over_ranks(mlp(batch_size=4), (plan, other)[rank], NAMES, OverRanks(timeout_s=60), 1, 0)

    for kind, name, message in run_ranks(2, work):
        assert (kind, name) == ("error", "InputError")
        assert "differ in plan file" in message


@pytest.mark.slow
def test_other_versions_are_named_before_plans(plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(rank: int) -> None:
        if rank == 1:
            torch.__version__ = "1.0"  # type: ignore[assignment]
        apply_ranks(mlp(batch_size=4), plan, NAMES, timeout_s=60)

    for _, name, message in run_ranks(2, work):
        assert name == "InputError"
        assert "differ in version of torch" in message


def test_no_collective_pickles_objects() -> None:
    """A message from another process is never executed: it is JSON or a tensor."""
    for path in Path(dlplacer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert not node.attr.endswith(("_object", "_object_list")), f"{path}:{node.lineno}"
