"""The object that `train` is given in each process of asynchronous training, and recorded orders of its events."""

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from multiprocessing.context import BaseContext
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dlplacer.core.errors import InputError, RunError
from dlplacer.core.record import Count
from dlplacer.data_parallel.elastic.packed_weights import PackedWeights
from dlplacer.data_parallel.elastic.stability import ElasticRecursion, require_stable
from dlplacer.files.fields import FileModel, Table
from dlplacer.files.text import write_json

_BEAT_S = 0.5
RULES = ("async", "round_robin", "one_at_a_time")
Event = tuple[str, int]
"""``("exchange", worker)`` under a lock; without one ``("read", worker)`` and ``("write", worker)``."""


@dataclass(frozen=True)
class AsyncSettings:
    """Everything that decides the numbers of asynchronous training besides the order of events; see `run_async`."""

    workers: int
    rule: str = "async"
    momentum: float = 0.0
    pull: float | None = 0.1
    sync_every: int = 1
    lock: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"rule is {self.rule!r}; use one of {', '.join(RULES)}")
        if self.rule != "async" and not self.lock:
            raise InputError(f"{self.rule} takes workers one after the other, so it has a lock; use rule='async'")
        if self.workers < 1 or self.sync_every < 1:
            raise InputError(f"workers is {self.workers} and sync_every {self.sync_every}; both must be at least 1")
        if not 0 <= self.momentum < 1 or not 0 <= (self.pull or 0.0) < float("inf"):
            raise InputError(f"momentum is {self.momentum} and pull {self.pull}; they must be in [0, 1) and at least 0")
        if self.pull is not None:
            turns = ElasticRecursion(self.pull, self.workers, self.momentum, self.sync_every, in_turn=True)
            require_stable(turns)


class SharedMemory:
    """The memory, locks and files that the processes of a run share.

    Attributes
    ----------
    folder
        The centre's vector, which all map; the layouts of models; results.
    changed
        Its lock makes an exchange one event; notified after every event.
    joined
        A barrier at which all workers wait until each has joined.
    last
        The number of events, and the worker of the last.
    done, active_s
        By worker: True once it has ended, and the time of its last activity on the monotonic clock.
    """

    def __init__(self, context: BaseContext, workers: int, folder: Path) -> None:
        self.folder = folder
        self.changed, self.joined = context.Condition(), context.Barrier(workers)
        self.last: Any = context.RawArray("q", [0, workers - 1])
        self.done: Any = context.RawArray("b", workers)
        self.active_s: Any = context.RawArray("d", [time.monotonic()] * workers)

    def state_dict(self) -> dict[str, Tensor]:
        """The centre as a state dict of the model; empty before workers have joined."""
        if not (self.folder / "layout").exists():
            return {}
        tensors, packed_dtype = pickle.loads((self.folder / "layout").read_bytes())
        vector = torch.from_file(str(self.folder / "centre"), shared=True, size=tensors[-1][-1], dtype=packed_dtype)
        values = {}
        for name, shape, dtype, start, stop in tensors:
            part = vector[start:stop]
            whole = part.to(dtype) if dtype.is_floating_point else part.to(torch.uint8).view(dtype)
            values[name] = whole.clone().view(shape)
        return values


class AsyncWorker:
    """One of several processes that train a model and exchange with a common centre.

    Attributes
    ----------
    rank, workers
        This worker's number, and how many there are.
    model
        The model that has joined.
    settings
        Of the run.
    events
        (number, kind) of this worker's events.
    """

    def __init__(
        self,
        rank: int,
        settings: AsyncSettings,
        shared: SharedMemory,
        recorded: tuple[Event, ...] | None,
        in_order: bool,
    ) -> None:
        self.rank = rank
        self.workers = settings.workers
        self.settings = settings
        self.steps = 0
        self.model: nn.Module | None = None
        self.events: list[tuple[int, str]] = []
        self._shared = shared
        self._recorded = recorded
        self._in_order = in_order
        self._has_optimizer = False

    def join(self, model: nn.Module) -> nn.Module:
        """The model, with the centre's weights and buffers; the centre begins with those of the first worker.

        All parameters and the persistent float buffers take part in exchanges; of integer buffers the centre has the
        first worker's.
        """
        if self.model is not None:
            raise InputError("has joined already; a worker trains one model")
        packed = self._packed = PackedWeights(model, torch.device("cpu"), frozen=True)
        folder, shared = self._shared.folder, self._shared
        (folder / f"model{self.rank}").write_text(packed.layout)
        if self.rank == 0:
            packed.pack(packed.mapped(folder / "centre"), with_integers=True)
            (folder / "layout").write_bytes(pickle.dumps((packed.tensors(), packed.dtype)))
        shared.joined.wait()
        if packed.layout != (folder / "model0").read_text():
            raise InputError("joins with another model than worker 0; all train the same")
        self._centre = packed.mapped(folder / "centre")
        self._own, self._taken = packed.empty(), self._centre.clone()
        self._velocity = packed.mapped(folder / "velocity")  # Of zeros: the first to map it makes it.
        with torch.no_grad():
            packed.assign(self._taken)
            packed.set_integers(self._taken)
        shared.joined.wait()  # Nobody moves the centre before all have read it.
        shared.active_s[self.rank] = time.monotonic()
        self.model = model
        self._begin_period()
        return model

    def optimizer(self, lr: float, **options: Any) -> torch.optim.SGD:
        """SGD of the joined model with the run's momentum, whose steps exchange with the centre every `sync_every`.

        The exchange comes before the update, so that gradient and difference are of the same weights: eq. 1 and 2,
        with momentum 5 and 6. Without a pull it comes after the update, which it carries, and the centre has the
        momentum.
        """
        elastic = self.settings.pull is not None
        momentum = self.settings.momentum if elastic else 0.0
        optimizer = torch.optim.SGD(self._joined().parameters(), lr=lr, momentum=momentum, **options)
        (optimizer.register_step_pre_hook if elastic else optimizer.register_step_post_hook)(self._at_step)
        self._has_optimizer = True
        return optimizer

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange with the centre, once: between ``backward()`` and the update, or without a pull after the update.

        Raises
        ------
        InputError
            If no model has joined, or the run's momentum has no optimizer to act in.
        """
        self._joined()
        pull = self.settings.pull
        if pull is not None and self.settings.momentum and not self._has_optimizer:
            raise InputError(
                f"momentum {self.settings.momentum:g} acts in worker.optimizer(lr); train with that, or leave it at 0 "
                "and give your own optimizer its momentum"
            )
        own = self._packed.pack(self._own, with_integers=self.rank == 0)
        floats = slice(self._packed.float_count)
        # Elastic averaging goes by differences to the centre as it is, all else by those to what this worker took.
        origin = self._taken if pull is None else self._centre
        if not self._in_order:
            # Hogwild: no lock, so an element may be read between two others' writes, and a write may be lost.
            own[floats] -= origin[floats]
            self._move_centre(own)
            self._shared.active_s[self.rank] = time.monotonic()
        elif self.settings.lock:
            with self._turn("exchange"):
                own[floats] -= origin[floats]
                self._move_centre(own)
        else:
            # Orders of whole reads and writes can be recorded, between which others come; orders of elements cannot.
            with self._turn("read"):
                own[floats] -= origin[floats]
            with self._turn("write"):
                self._move_centre(own)
        if pull is not None:
            self._packed.add(own, factor=-pull)
        self._begin_period()

    def finish(self) -> None:
        """No more events of this worker."""
        self._joined()
        if self._recorded is not None and len(self.events) < sum(rank == self.rank for _, rank in self._recorded):
            raise RunError(f"ended after {len(self.events)} events, and the record has more; replay the same training")
        with self._shared.changed:
            self._shared.done[self.rank] = True
            self._shared.changed.notify_all()

    def _joined(self) -> nn.Module:
        if self.model is None:
            raise InputError("has no model; call worker.join(model) first")
        return self.model

    def _at_step(self, *_: Any) -> None:
        self.steps += 1
        if self.steps % self.settings.sync_every == 0:
            self.exchange()

    @torch.no_grad()
    def _begin_period(self) -> None:
        """Wait for this worker's turn to compute, if it has one; without a pull, go on from the centre's values."""
        if self.settings.rule == "one_at_a_time":
            shared = self._shared
            with shared.changed:
                # Who waits is no less active than who computes.
                while not shared.changed.wait_for(self._is_next_in_the_round, _BEAT_S):
                    shared.active_s[self.rank] = time.monotonic()
            shared.active_s[self.rank] = time.monotonic()
            self._taken.copy_(self._centre)
        if self.settings.pull is None:
            self._packed.assign(self._taken)

    def _move_centre(self, difference: Tensor) -> None:
        """Eq. 2 with this worker's term alone; without a pull a step of SGD by what the worker has changed."""
        floats, integers = slice(self._packed.float_count), slice(self._packed.float_count, None)
        moved, share = difference, self.settings.pull
        if share is None:
            # Eq. 3 and 4 at the centre: what a worker changed is −η times its gradients.
            moved, share = self._velocity, 1.0
            moved[floats].mul_(self.settings.momentum).add_(difference[floats])
        self._centre[floats].add_(moved[floats], alpha=share)
        if self.rank == 0:
            self._centre[integers] = difference[integers]
        if self.settings.pull is None:
            self._taken.copy_(self._centre)

    @contextmanager
    def _turn(self, kind: str) -> Iterator[None]:
        """The lock, once an event of this kind is this worker's to cause."""
        shared = self._shared
        shared.active_s[self.rank] = time.monotonic()
        with shared.changed:
            shared.changed.wait_for(self._is_my_turn(kind))
            yield
            self.events.append((shared.last[0], kind))
            shared.last[:] = [shared.last[0] + 1, self.rank]
            shared.active_s[self.rank] = time.monotonic()
            shared.changed.notify_all()

    def _is_my_turn(self, kind: str) -> Callable[[], bool]:
        shared, recorded = self._shared, self._recorded

        def next_recorded() -> bool:
            assert recorded is not None
            if shared.last[0] == len(recorded):
                raise RunError("exchanges more often than it was recorded to; replay the same training")
            return recorded[shared.last[0]] == (kind, self.rank)

        if recorded is not None:
            return next_recorded
        return self._is_next_in_the_round if self.settings.rule != "async" else lambda: True

    def _is_next_in_the_round(self) -> bool:
        last = self._shared.last[1]
        order = [(last + 1 + offset) % self.workers for offset in range(self.workers)]
        return next(rank for rank in order if not self._shared.done[rank]) == self.rank


class _EventsFile(FileModel):
    FORMAT = "dlplacer.events/1"
    format: str
    meta: Table
    workers: Annotated[int, Field(ge=1)]
    rule: Literal["async", "round_robin", "one_at_a_time"]
    momentum: float
    pull: float | None
    sync_every: Annotated[int, Field(ge=1)]
    lock: bool
    seed: int
    events: list[Count | str]

    def mistakes(self) -> Iterator[str]:
        """Events of workers that are not there, or of another kind than the lock allows."""
        for position, event in enumerate(self.events):
            kind, worker = _event(event)
            if worker >= self.workers or kind not in (("exchange",) if self.lock else ("read", "write")):
                lock, way_out = ("with", "give its number") if self.lock else ("without", "give read R, write R")
                yield f"events[{position}]: {event!r} is no event of {self.workers} workers {lock} a lock: {way_out}"
                return


def write_events(path: str | PathLike[str], settings: AsyncSettings, events: tuple[Event, ...]) -> None:
    """Write the order of a run, atomically."""
    named = [worker if kind == "exchange" else f"{kind} {worker}" for kind, worker in events]
    write_json(path, {"format": _EventsFile.FORMAT, **asdict(settings), "events": named})


def read_events(path: str | PathLike[str], settings: AsyncSettings) -> tuple[Event, ...]:
    """The order in a file."""
    content = _EventsFile.load(Path(path))
    different = [
        f"{field.name} {recorded!r} (now {now!r})"
        for field in fields(AsyncSettings)
        if (recorded := getattr(content, field.name)) != (now := getattr(settings, field.name))
    ]
    if different:
        raise InputError(f"{path} was recorded with {', '.join(different)}; replay it with the same")
    return tuple(map(_event, content.events))


def _event(event: int | str) -> Event:
    if isinstance(event, int):
        return "exchange", event
    kind, _, worker = event.partition(" ")
    return (kind, int(worker)) if worker.isdecimal() else ("", 0)
