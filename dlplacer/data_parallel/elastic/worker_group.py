"""Sums of vectors over the ranks of a process group."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dlplacer.core.errors import InputError, RunError
from dlplacer.data_parallel.elastic.roll_call import RollCall

_LOOK_OUT_S = 1.0
_LEAST_PATIENCE_S = 5.0
_TEXT_BYTES = 64


class WorkerGroup:
    """The ranks that synchronise: a process group, or this process alone where none was made.

    Parameters
    ----------
    process_group
        None for the default group.
    timeout_s
        How long a sum may take until a rank counts as lost.
    """

    def __init__(self, process_group: dist.ProcessGroup | None, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise InputError(f"timeout_s is {timeout_s:g}; give more than 0 seconds")
        joined = dist.is_available() and dist.is_initialized()
        if process_group is not None and not joined:
            raise InputError("a process group needs torch.distributed.init_process_group first")
        self.timeout_s = timeout_s
        self.group = process_group
        self.size = dist.get_world_size(process_group) if joined else 1
        self.rank = dist.get_rank(process_group) if joined else 0
        if self.rank < 0:
            raise InputError(f"rank {dist.get_rank()} is not of the given process group; give it the group it is in")
        self._blocks = self.size > 1 and dist.get_backend(process_group) != "nccl"
        self._roll_call = RollCall(process_group, self.rank, self.size) if self.size > 1 else None
        self._pending: dist.Work | None = None
        self._last_sum_s = time.monotonic()
        self._longest_gap_s = 0.0

    @property
    def sums_host_memory(self) -> bool:
        """Whether the group can sum what is in the host's memory."""
        return self.size == 1 or self._blocks

    def begin_sum(self, vector: Tensor) -> None:
        """Begin to replace `vector` by the sum of all ranks' vectors."""
        if self.size > 1:
            self._pending = dist.all_reduce(vector, group=self.group, async_op=True)

    def end_sum(self, what: str) -> None:
        """Wait until the sum is there.

        Raises
        ------
        RunError
            If a rank is lost, or does not answer within the time limit; names it.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        now = time.monotonic()
        self._longest_gap_s = max(self._longest_gap_s, now - self._last_sum_s)
        try:
            if self._blocks:
                self._wait(pending, now + self.timeout_s)
            else:
                # With nccl a wait orders streams and returns; a time limit would stop this thread until the end.
                pending.wait()
        except RuntimeError as error:
            raise self._lost(what, error) from None
        self._last_sum_s = time.monotonic()

    def forget(self) -> None:
        """Wait for nothing any more."""
        self._pending = None

    def copy_from_first(self, vector: Tensor) -> None:
        """Give every rank the first rank's vector."""
        if self.size > 1:
            source = 0 if self.group is None else dist.get_global_rank(self.group, 0)
            dist.broadcast(vector, source, group=self.group)

    def require_equal(self, values: dict[str, str], device: torch.device) -> None:
        """Raise InputError unless all ranks give the same texts, naming the first that differs."""
        for name, text in values.items():
            rank, texts = self._first_other(text, device)
            if rank:
                raise InputError(
                    f"rank {rank} has another {name} ({texts[rank]}) than rank 0 ({texts[0]}); give all ranks the same"
                )

    def are_equal(self, text: str, device: torch.device) -> bool:
        """Whether all ranks give the same text."""
        return not self._first_other(text, device)[0]

    def _first_other(self, text: str, device: torch.device) -> tuple[int, list[str]]:
        """The first rank whose text is not rank 0's, else 0; and all texts."""
        if self.size == 1:
            return 0, [text]
        padded = bytearray(text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES))
        own = torch.frombuffer(padded, dtype=torch.uint8).to(device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self.group)
        texts = [bytes(each.tolist()).decode(errors="replace").strip() for each in found]
        return next((rank for rank, other in enumerate(texts) if other != texts[0]), 0), texts

    def _wait(self, pending: dist.Work, deadline: float) -> None:
        assert self._roll_call is not None
        while True:
            left_s = deadline - time.monotonic()
            try:
                pending.wait(timedelta(seconds=min(_LOOK_OUT_S, max(left_s, 0.001))))
                return
            except RuntimeError:
                if pending.is_completed() or left_s <= _LOOK_OUT_S or self._roll_call.is_called():
                    raise

    def _lost(self, what: str, error: RuntimeError) -> RunError:
        # Who is alive but busy answers at the next synchronisation, so patience is a matter of how far they are apart.
        patience_s = min(self.timeout_s, _LEAST_PATIENCE_S + 3 * self._longest_gap_s)
        missing = self._roll_call.lost_ranks(patience_s) if self._roll_call else []
        who = f"rank {', '.join(map(str, missing))} was lost or is stuck" if missing else "no rank is missing"
        reason = str(error).partition("\n")[0].partition(". This is typ")[0] or type(error).__name__
        return RunError(f"rank {self.rank} failed at {what}: {who} ({reason.rpartition('] ')[2] or reason})")
