"""What `train` is given in each process of asynchronous training."""

from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from dlplacer.core.errors import InputError, RunError
from dlplacer.data_parallel.elastic.event_record import EXCHANGE, READ, WRITE, AsyncSettings, EventRecord
from dlplacer.data_parallel.elastic.packed_weights import PackedWeights
from dlplacer.data_parallel.elastic.shared_centre import DONE, LOST, RUNNING, STARTING, CentreFiles, SharedCentre

WRITE_CENTRE, BEGIN = "write centre", "begin"
"""What a worker that has joined is told."""


class LostAsRecordedError(Exception):
    """A replayed worker has come to where it was lost."""


@dataclass(frozen=True)
class JoinedModel:
    """What the process that started the workers must know of their model.

    Attributes
    ----------
    tensors
        (name, shape, dtype, start, stop) of every tensor in the vector.
    """

    layout: str
    count: int
    dtype: torch.dtype
    float_count: int
    tensors: tuple[tuple[str, tuple[int, ...], torch.dtype, int, int], ...]


class AsyncWorker:
    """One of several processes that train a model and exchange with a common centre.

    Attributes
    ----------
    rank, workers
        This worker's number, and how many there are.
    model
        What was given to `join`.
    settings
        Of the run.
    """

    def __init__(
        self,
        rank: int,
        settings: AsyncSettings,
        files: CentreFiles,
        pipe: Connection,
        recorded: EventRecord | None,
        keep_record: bool,
    ) -> None:
        self.rank = rank
        self.workers = settings.workers
        self.settings = settings
        self.steps = 0
        self.model: nn.Module | None = None
        self._pipe = pipe
        self._centre = SharedCentre(files)
        self._recorded = recorded
        self._left = Counter() if recorded is None else recorded.counts()
        self._in_order = settings.lock or keep_record or recorded is not None
        self._has_optimizer = False

    def join(self, model: nn.Module) -> nn.Module:
        """The model, with the centre's weights and buffers; the centre begins with those of the first worker.

        All parameters and the persistent float buffers take part in exchanges; of integer buffers the centre has the
        first worker's.
        """
        if self.model is not None:
            raise InputError(f"worker {self.rank} has joined already; a worker trains one model")
        self._packed = PackedWeights(model, torch.device("cpu"), frozen=True)
        packed = self._packed
        parts = [*packed.floats, *packed.integers]
        tensors = tuple((p.name, tuple(p.tensor.shape), p.tensor.dtype, p.start, p.stop) for p in parts)
        self._pipe.send(("join", JoinedModel(packed.layout, packed.count, packed.dtype, packed.float_count, tensors)))
        if self._pipe.recv() == WRITE_CENTRE:
            self._centre.map_values(packed.count, packed.dtype)
            packed.pack(self._centre.first, with_integers=True)
            self._centre.values.copy_(self._centre.first)
            self._pipe.send(("written", None))
            self._pipe.recv()
        self._centre.map_values(packed.count, packed.dtype)
        with torch.no_grad():
            packed.assign(self._centre.first)
            packed.set_integers(packed.integer_values(self._centre.first))
        self._own = packed.empty()
        self._centre.set_state(self.rank, RUNNING)
        self.model = model
        return model

    def optimizer(self, lr: float, **options: Any) -> torch.optim.SGD:
        """SGD of the joined model with the run's momentum, whose steps exchange with the centre every `sync_every`.

        The exchange comes before the update, so that gradient and difference are of the same weights: eq. 1 and 2,
        with momentum 5 and 6.
        """
        optimizer = torch.optim.SGD(self._joined().parameters(), lr=lr, momentum=self.settings.momentum, **options)
        optimizer.register_step_pre_hook(self._before_step)
        self._has_optimizer = True
        return optimizer

    @torch.no_grad()
    def exchange(self) -> None:
        """Pull this worker and the centre towards each other, once; call it between ``backward()`` and the update.

        Raises
        ------
        InputError
            If no model has joined, or the run's momentum has no optimizer to act in.
        """
        self._joined()
        if self.settings.momentum and not self._has_optimizer:
            raise InputError(
                f"momentum {self.settings.momentum:g} acts in worker.optimizer(lr); train with that, or leave it at 0 "
                "and give your own optimizer its momentum"
            )
        own = self._packed.pack(self._own, with_integers=self.rank == 0)
        floats = slice(self._packed.float_count)
        if not self._in_order:
            # Hogwild: no lock, so an element may be read between two others' writes, and a write may be lost.
            centre = self._centre.values
            own[floats] -= centre[floats]
            centre[floats].add_(own[floats], alpha=self.settings.pull)
            if self.rank == 0:
                centre[self._packed.float_count :] = own[self._packed.float_count :]
            self._centre.be_active(self.rank)
        elif self.settings.lock:
            with self._turn(EXCHANGE):
                own[floats] -= self._centre.values[floats]
                self._move_centre(own, EXCHANGE)
        else:
            # Orders of whole reads and writes can be recorded, between which others come; orders of elements cannot.
            with self._turn(READ):
                own[floats] -= self._centre.values[floats]
                self._centre.commit(3 * self.rank + READ, written=False)
            with self._turn(WRITE):
                self._move_centre(own, WRITE)
        self._packed.add(own, factor=-self.settings.pull)

    def centre_state_dict(self) -> dict[str, Tensor]:
        """The centre's parameters and float buffers by name, as they are now."""
        self._joined()
        return self._packed.named(self._centre.values)

    def finish(self, lost: bool = False) -> None:
        """No more events of this worker.

        Raises
        ------
        RunError
            If it has more of them in the record. Others notice that where they wait for one, which they need not.
        """
        if self._recorded is not None and self._left[self.rank] and not lost:
            own = [place for place, event in enumerate(self._recorded.events) if event // 3 == self.rank]
            raise _ended_early(self.rank, own[-self._left[self.rank]])
        self._centre.set_state(self.rank, LOST if lost else DONE)

    def _joined(self) -> nn.Module:
        if self.model is None:
            raise InputError(f"worker {self.rank} has no model; call worker.join(model) first")
        return self.model

    def _before_step(self, *_: Any) -> None:
        self.steps += 1
        if self.steps % self.settings.sync_every == 0:
            self.exchange()

    def _move_centre(self, difference: Tensor, kind: int) -> None:
        """Eq. 2 with this worker's term alone, into the other vector."""
        floats, integers = slice(self._packed.float_count), slice(self._packed.float_count, None)
        now, then = self._centre.values, self._centre.other
        torch.add(now[floats], difference[floats], alpha=self.settings.pull, out=then[floats])
        then[integers] = (difference if self.rank == 0 else now)[integers]
        self._centre.commit(3 * self.rank + kind, written=True)

    def _turn(self, kind: int) -> Any:
        if self._recorded is not None:
            if not self._left[self.rank]:
                if self.rank in self._recorded.lost:
                    raise LostAsRecordedError
                raise RunError(
                    f"worker {self.rank} exchanges more often than it was recorded to; replay the same training"
                )
            self._left[self.rank] -= 1
        return self._centre.turn(self.rank, lambda: self._is_my_turn(kind))

    def _is_my_turn(self, kind: int) -> bool:
        if self._recorded is not None:
            return self._is_next_recorded(3 * self.rank + kind)
        if self.settings.rule != "round_robin":
            return True
        last = self._centre.last_event()
        first = 0 if last is None else last // 3 + 1
        order = [(first + offset) % self.workers for offset in range(self.workers)]
        waiting = [rank for rank in order if self._centre.state(rank) in (STARTING, RUNNING)]
        return waiting[0] == self.rank

    def _is_next_recorded(self, event: int) -> bool:
        assert self._recorded is not None
        expected = self._recorded.events[self._centre.event_count]
        worker = expected // 3
        if expected != event and self._centre.state(worker) in (DONE, LOST):
            raise _ended_early(worker, self._centre.event_count)
        return expected == event


def _ended_early(worker: int, event: int) -> RunError:
    return RunError(f"worker {worker} ended before event {event} of the record, which is its; replay the same training")
