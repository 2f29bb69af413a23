"""Threads or processes: which of them a step's devices are, chosen by what whole steps take with each."""

from dataclasses import dataclass
from statistics import median

from dlplacer.core.errors import InputError
from dlplacer.core.trimmed_mean import trimmed_mean
from dlplacer.core.units import format_seconds

WANTED = ("auto", "on", "off")


def require_wanted(wanted: object) -> None:
    """Return if this is a value of ``processes``; raises InputError otherwise."""
    if wanted not in WANTED:
        raise InputError(f"processes is {wanted!r}; use one of {', '.join(WANTED)}")


@dataclass(frozen=True)
class ProcessChoice:
    """Whether devices are processes, and why.

    Attributes
    ----------
    wanted
        ``auto``, ``on`` or ``off``.
    used
        None while it is tried.
    reason
        In words.
    threads_s, processes_s
        Mean seconds of a step of the trial; None without one.
    """

    wanted: str
    used: bool | None
    reason: str
    threads_s: float | None = None
    processes_s: float | None = None

    def __str__(self) -> str:
        return f"{ {True: 'processes', False: 'threads', None: 'not chosen yet'}[self.used] }: {self.reason}"


@dataclass(frozen=True)
class TrialParameters:
    """How a trial goes.

    Attributes
    ----------
    first
        Steps with threads before anything is forked. Who takes a few steps pays nothing, they warm up the heap, and the
        first six are a trial of their own (`dlplacer.runtime.executor.turns`).
    untimed
        How many of them are not timed.
    warmup
        First steps with processes, which compile and touch memory for the first time.
    pairs, most_pairs
        Fewest and most timed steps of each, alternating.
    timed_s
        Short steps alternate for that long: cores that share their machine are slower for a second at times, with one
        thread more than with two busy ones or the other way about.
    large_op_s
        Above this time per op of the busiest device, threads lose nothing that matters to the interpreter, which hands
        its lock over in 10 to 40 µs.
    gain
        Processes must take less than this share of what threads take: they cost memory.
    """

    first: int = 7
    untimed: int = 3
    warmup: int = 2
    pairs: int = 5
    most_pairs: int = 150
    timed_s: float = 2.0
    large_op_s: float = 200e-6
    gain: float = 0.95


class ProcessTrial:
    """Decides after some steps of the user's, which take part as they come: their numbers are the same either way.

    Parameters
    ----------
    wanted
        ``auto`` or ``on``.
    ops
        Number of calls on the busiest device.
    """

    def __init__(self, wanted: str, ops: int, parameters: TrialParameters = TrialParameters()) -> None:
        self._parameters = parameters
        self._ops = max(1, ops)
        self._threads_s: list[float] = []
        self._processes_s: list[float] = []
        reason = "asked for" if wanted == "on" else f"the first {parameters.first} steps run with threads"
        self.choice = ProcessChoice(wanted, True if wanted == "on" else None, reason)

    @property
    def wants_processes(self) -> bool:
        """Whether the next step is to run with processes."""
        if self.choice.used is not None:
            return self.choice.used
        if len(self._threads_s) < self._parameters.first:
            return False
        threads, processes = self._taken
        return processes < self._parameters.warmup or processes - self._parameters.warmup <= threads

    def took(self, processes: bool, seconds: float) -> None:
        """Note a whole step."""
        if self.choice.used is not None:
            return
        (self._processes_s if processes else self._threads_s).append(seconds)
        parameters, (threads, with_processes) = self._parameters, self._taken
        if not processes and len(self._threads_s) == parameters.first:
            self._look_at_ops()
        elif threads >= parameters.pairs and threads == with_processes - parameters.warmup:
            timed_s = sum(self._timed_threads_s) + sum(self._timed_processes_s)
            if threads >= parameters.most_pairs or timed_s >= parameters.timed_s:
                self._decide()

    def give_up(self, reason: str) -> None:
        """Processes cannot be had."""
        self.choice = ProcessChoice(self.choice.wanted, False, reason)

    @property
    def _taken(self) -> tuple[int, int]:
        """Steps with threads since the first ones, and with processes."""
        return len(self._threads_s) - self._parameters.first, len(self._processes_s)

    @property
    def _timed_threads_s(self) -> list[float]:
        return self._threads_s[self._parameters.first :]

    @property
    def _timed_processes_s(self) -> list[float]:
        return self._processes_s[self._parameters.warmup :]

    def _look_at_ops(self) -> None:
        seconds = median(self._threads_s[self._parameters.untimed :])
        per_op_s = seconds / self._ops
        if per_op_s > self._parameters.large_op_s:
            self.give_up(f"with {format_seconds(per_op_s)} per op the interpreter is not in the way")
        else:
            self.choice = ProcessChoice("auto", None, "steps with threads and with processes take turns")

    def _decide(self) -> None:
        # On average, as training will go: two chains of short ops are 1.6 to 1.8 times as fast with processes. While
        # cores changed their speed by half within a second they got threads in 8 of 12 runs by first deciles (for
        # threads that take turns one quick core is enough), in 2 by medians, in none by means.
        threads_s, processes_s = trimmed_mean(self._timed_threads_s), trimmed_mean(self._timed_processes_s)
        used = processes_s < self._parameters.gain * threads_s
        reason = f"a step took {format_seconds(processes_s)} with processes, {format_seconds(threads_s)} with threads"
        self.choice = ProcessChoice("auto", used, reason, threads_s, processes_s)
