"""Trainings that other processes import: they note every call in a file that the environment names."""

import os
import signal
from collections.abc import Iterator


def counted(workers: int, seed: int, codec: str | None = None, period: int = 1) -> Iterator[float]:
    """Reaches 0 after as many epochs as there are workers, and as many again with a codec or a period."""
    with open(os.environ["TRAININGS"], "a") as notes:
        notes.write(f"{workers} {seed} {codec} {period}\n")
    if os.environ.get("KILLED_AT") == f"{workers} {seed}":
        os.kill(os.getpid(), signal.SIGKILL)
    needed = (workers + seed) * (1 if codec is None else 2) * period
    for epoch in range(1, 1000):
        yield float(needed - epoch)
