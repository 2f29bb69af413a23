"""The settings of asynchronous training, and recorded orders of its events: ``dlplacer.events/1``."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dlplacer.core.errors import InputError
from dlplacer.files.fields import Count, FileModel, Table, load_model
from dlplacer.files.text import write_json

_VERSION = 1
Event = tuple[str, int]
"""``("exchange", worker)`` under a lock; without one ``("read", worker)`` and ``("write", worker)``."""


@dataclass(frozen=True)
class AsyncSettings:
    """Everything that decides the numbers of asynchronous training besides the order of events; see `run_async`."""

    workers: int
    rule: str = "async"
    momentum: float = 0.0
    pull: float = 0.1
    sync_every: int = 1
    lock: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rule not in ("async", "round_robin"):
            raise InputError(f"rule is {self.rule!r}; use 'async' or 'round_robin'")
        if self.rule == "round_robin" and not self.lock:
            raise InputError("round_robin takes workers one after the other, so it has a lock; use rule='async'")
        if self.workers < 1 or self.sync_every < 1:
            raise InputError(f"workers is {self.workers} and sync_every {self.sync_every}; both must be at least 1")
        if not 0 <= self.momentum < 1 or not 0 <= self.pull < float("inf"):
            raise InputError(
                f"momentum is {self.momentum:g} and pull {self.pull:g}; they must be in [0, 1) and at least 0"
            )


class _EventsFile(FileModel):
    format: str
    meta: Table
    workers: Annotated[int, Field(ge=1)]
    rule: Literal["async", "round_robin"]
    momentum: float
    pull: float
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
    write_json(path, {"format": f"dlplacer.events/{_VERSION}", **asdict(settings), "events": named})


def read_events(path: str | PathLike[str], settings: AsyncSettings) -> tuple[Event, ...]:
    """The order in a file."""
    content = load_model(Path(path), _EventsFile, "events", _VERSION)
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
