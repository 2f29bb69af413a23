"""Sums of vectors over the ranks of a process group, and the missing ranks if a sum fails."""

import time
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from dlplacer.core.errors import InputError, RunError

_LOOK_OUT_S = 1.0
_LEAST_PATIENCE_S = 5.0
_STORE_S = 5.0
_POLL_S = 0.05
_KEY = "dlplacer/elastic/failed"


class WorkerGroup:
    """The ranks that synchronise: a process group, or only this process without torch.distributed."""

    def __init__(self, process_group: dist.ProcessGroup | None, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise InputError(f"timeout_s is {timeout_s:g}; give more than 0 seconds")
        joined = dist.is_available() and dist.is_initialized()
        if process_group is not None and not joined:
            raise InputError("a process group needs torch.distributed.init_process_group first")
        self.group = process_group
        self.size = dist.get_world_size(process_group) if joined else 1
        self.rank = dist.get_rank(process_group) if joined else 0
        if self.rank < 0:
            raise InputError(f"rank {dist.get_rank()} is not in the given process group; give a group that contains it")
        self.sums_host_memory = self.size == 1 or dist.get_backend(process_group) != "nccl"
        self._timeout_s = timeout_s
        self._pending: dist.Work | None = None
        self._last_sum_s = time.monotonic()
        self._longest_gap_s = 0.0
        if self.size > 1:
            whole = process_group or dist.group.WORLD
            assert whole is not None
            # A store with its own time limit, because the default one waits for half an hour.
            self._store = whole.get_group_store().clone()  # type: ignore[attr-defined]
            self._store.set_timeout(timedelta(seconds=_STORE_S))

    def begin_sum(self, vector: Tensor) -> None:
        """Start to replace `vector` by the sum of all ranks' vectors."""
        if self.size > 1:
            self._pending = dist.all_reduce(vector, group=self.group, async_op=True)

    def end_sum(self, what: str) -> None:
        """Wait for the sum; raises RunError with the missing ranks if it fails."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        now = time.monotonic()
        self._longest_gap_s = max(self._longest_gap_s, now - self._last_sum_s)
        try:
            if self.sums_host_memory:
                self._wait(pending, now + self._timeout_s)
            else:
                # With nccl a wait only orders streams; with a time limit it would block this thread.
                pending.wait()
        except RuntimeError as error:
            missing = self._missing_ranks()
            who = f"rank {', '.join(map(str, missing))} was lost or is stuck" if missing else "no rank is missing"
            raise RunError(f"rank {self.rank} failed at {what}: {who} ({str(error).splitlines()[0]})") from None
        self._last_sum_s = time.monotonic()

    def forget(self) -> None:
        """Drop the pending sum without waiting for it."""
        self._pending = None

    def copy_from_first(self, vector: Tensor) -> None:
        """Copy the first rank's vector to every rank."""
        if self.size > 1:
            dist.broadcast(vector, group=self.group, group_src=0)

    def require_equal(self, name: str, text: str) -> None:
        """Raise InputError, with the first rank that differs, unless all ranks give the same text."""
        texts = [text] * self.size
        if self.size > 1:
            dist.all_gather_object(texts, text, group=self.group)
        other = next((rank for rank, said in enumerate(texts) if said != texts[0]), None)
        if other is not None:
            raise InputError(f"rank {other} has another {name} ({texts[other]}) than rank 0 ({texts[0]}); use the same")

    def _wait(self, pending: dist.Work, deadline: float) -> None:
        while True:
            left_s = deadline - time.monotonic()
            try:
                pending.wait(timedelta(seconds=min(_LOOK_OUT_S, max(left_s, 0.001))))
                return
            except RuntimeError:
                if pending.is_completed() or left_s <= _LOOK_OUT_S or self._store.check([_KEY]):
                    raise

    def _missing_ranks(self) -> list[int]:
        """The ranks that do not answer in the group's store; ranks that see the failure or poll the store answer.

        The backend's own errors name at most the broken connection.
        """
        # A live but busy rank answers at its next synchronisation, so the timeout depends on the longest gap.
        deadline = time.monotonic() + min(self._timeout_s, _LEAST_PATIENCE_S + 3 * self._longest_gap_s)
        missing = set(range(self.size)) - {self.rank}
        try:
            self._store.set(_KEY, "")
            self._store.set(f"{_KEY}/{self.rank}", "")
            while missing and time.monotonic() < deadline:
                missing = {rank for rank in missing if not self._store.check([f"{_KEY}/{rank}"])}
                time.sleep(_POLL_S)
        except RuntimeError:
            # Without a launcher the first rank of the default group holds the store.
            return [0]
        if self.rank == 0:
            time.sleep(4 * _POLL_S)  # The others still poll the store, which may end with this process.
        return sorted(missing)
