"""Which ranks still answer, once a sum over all of them has failed."""

import time
from datetime import timedelta

import torch.distributed as dist

_POLL_S = 0.05
_STORE_S = 5.0
_KEY = "dlplacer/elastic/roll_call"


class RollCall:
    """Marks in the group's store by which the ranks that are left find out who is not.

    The backend's own errors say at most which connection broke; gloo's monitored barrier names a rank only on the
    first one, and only while all connections to the others are whole.
    """

    def __init__(self, group: dist.ProcessGroup | None, rank: int, size: int) -> None:
        whole = dist.group.WORLD if group is None else group
        assert whole is not None
        store = whole.get_group_store()
        # A store of its own time limit: the default one waits for half an hour.
        self._store = store.clone()  # type: ignore[attr-defined]
        self._store.set_timeout(timedelta(seconds=_STORE_S))
        self._rank = rank
        self._size = size

    def is_called(self) -> bool:
        """Whether some rank has seen a failure."""
        try:
            return bool(self._store.check([_KEY]))
        except RuntimeError:
            return True

    def lost_ranks(self, patience_s: float) -> list[int]:
        """The ranks that do not answer within so many seconds; all answer that meet the failure or look out for one."""
        try:
            self._store.set(_KEY, "")
            self._store.set(f"{_KEY}/{self._rank}", "")
            missing = set(range(self._size)) - {self._rank}
            deadline = time.monotonic() + patience_s
            while missing and time.monotonic() < deadline:
                missing = {rank for rank in missing if not self._store.check([f"{_KEY}/{rank}"])}
                time.sleep(_POLL_S)
        except RuntimeError:
            # The first rank of the default group holds the store, unless a launcher does.
            return [0]
        if self._rank == 0:
            # The others' last look at the store, which may end with this process.
            time.sleep(4 * _POLL_S)
        return sorted(missing)
