"""Recorded orders of asynchronous training's events: ``dlplacer.events/1``."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dlplacer.core.errors import InputError
from dlplacer.files.fields import Count, FileModel, Table, load_model
from dlplacer.files.text import write_json

VERSION = 1
EXCHANGE, READ, WRITE = range(3)
_KINDS = {"read": READ, "write": WRITE}


@dataclass(frozen=True)
class AsyncSettings:
    """What decides the numbers of asynchronous training, besides the order of events.

    Attributes
    ----------
    rule
        ``"async"``: in the order of arrival. ``"round_robin"``: one worker after the other.
    momentum
        μ of the workers' own velocities (eq. 5 and 6).
    pull
        a = η·ρ: the share of their difference by which a worker and the centre move in an exchange.
    sync_every
        Optimizer steps from one exchange to the next.
    lock
        Whether an exchange is one event, or reading and writing are two (Hogwild).
    seed
        Worker r begins with torch's and Python's random numbers of seed + r.
    """

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


@dataclass(frozen=True)
class EventRecord:
    """The events of a run in their order.

    Attributes
    ----------
    events
        worker × 3 + EXCHANGE, READ or WRITE.
    lost
        The workers that were lost on the way.
    """

    settings: AsyncSettings
    events: tuple[int, ...]
    lost: tuple[int, ...] = ()

    def counts(self) -> Counter[int]:
        """How many events each worker has."""
        return Counter(event // 3 for event in self.events)


class EventsFile(FileModel):
    """What the file may say."""

    format: str
    meta: Table
    workers: Annotated[int, Field(ge=1)]
    rule: Literal["async", "round_robin"]
    momentum: float
    pull: float
    sync_every: Annotated[int, Field(ge=1)]
    lock: bool
    seed: int
    lost: list[Count]
    events: list[Count | str]

    def mistakes(self) -> Iterator[str]:
        """Events of workers that are not there, or of another kind than the lock allows; the first ten."""
        wrong = (
            f"events[{position}]: {event!r} is no event of {self.workers} workers "
            f"{'with' if self.lock else 'without'} a lock; give {'its number' if self.lock else 'read R or write R'}"
            for position, event in enumerate(self.events)
            if _code(event, self.workers, self.lock) is None
        )
        yield from (mistake for mistake, _ in zip(wrong, range(10), strict=False))


def write_events(path: str | PathLike[str], record: EventRecord) -> None:
    """Write a record, atomically."""
    names: list[int | str] = [
        worker if kind == EXCHANGE else f"{'read' if kind == READ else 'write'} {worker}"
        for worker, kind in (divmod(event, 3) for event in record.events)
    ]
    content = {"format": f"dlplacer.events/{VERSION}", **asdict(record.settings), "lost": list(record.lost)}
    write_json(path, {**content, "events": names})


def read_events(path: str | PathLike[str]) -> EventRecord:
    """The record in a file.

    Raises
    ------
    InputError
        If the file cannot be read.
    FileFormatError
        With every mistake and its path.
    """
    content = load_model(Path(path), EventsFile, "events", VERSION)
    settings = AsyncSettings(**{field.name: getattr(content, field.name) for field in fields(AsyncSettings)})
    codes = [_code(event, content.workers, content.lock) for event in content.events]
    return EventRecord(settings, tuple(code for code in codes if code is not None), tuple(content.lost))


def require_same(recorded: AsyncSettings, now: AsyncSettings, path: str | PathLike[str]) -> None:
    """Raise InputError unless a run has the settings of its record."""
    different = [
        f"{field.name} {getattr(recorded, field.name)!r} (now {getattr(now, field.name)!r})"
        for field in fields(AsyncSettings)
        if getattr(recorded, field.name) != getattr(now, field.name)
    ]
    if different:
        raise InputError(f"{path} was recorded with {', '.join(different)}; replay it with the same")


def _code(event: int | str, workers: int, lock: bool) -> int | None:
    if isinstance(event, int):
        return 3 * event + EXCHANGE if lock and event < workers else None
    kind, _, worker = event.partition(" ")
    if lock or kind not in _KINDS or not worker.isdecimal() or int(worker) >= workers:
        return None
    return 3 * int(worker) + _KINDS[kind]
