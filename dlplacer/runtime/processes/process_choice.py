"""Threads or processes: which of them a step's devices are, chosen by what whole steps take with each."""

from dataclasses import dataclass

from dlplacer.core.errors import InputError
from dlplacer.core.units import format_seconds
from dlplacer.runtime.executor.alternating_trial import AlternatingTrial, TrialRules

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


PROCESSES = TrialRules(
    first=7,
    untimed=3,
    large_op_s=200e-6,
    warmup=2,
    pairs=5,
    most_pairs=150,
    timed_s=2.0,
    # They cost memory.
    share=0.95,
)
"""Of devices that are threads, and of processes as the other way."""


class ProcessTrial:
    """Decides after some steps of the user's, which take part as they come: their numbers are the same either way.

    Parameters
    ----------
    wanted
        ``auto`` or ``on``.
    ops
        Number of calls on the busiest device.
    """

    def __init__(self, wanted: str, ops: int, rules: TrialRules = PROCESSES) -> None:
        self._trial = AlternatingTrial(ops, rules)
        reason = "asked for" if wanted == "on" else f"the first {rules.first} steps run with threads"
        self.choice = ProcessChoice(wanted, True if wanted == "on" else None, reason)

    @property
    def wants_processes(self) -> bool:
        """Whether the next step is to run with processes."""
        return self._trial.wants_other if self.choice.used is None else self.choice.used

    def took(self, processes: bool, seconds: float) -> None:
        """Note a whole step."""
        if self.choice.used is not None:
            return
        before, trial = self.choice, self._trial
        trial.took(processes, seconds)
        if self.choice is not before:  # another thread has decided
            return
        if trial.chosen is None:
            if trial.has_begun:
                self.choice = ProcessChoice("auto", None, "steps with threads and with processes take turns")
        elif trial.seconds is None:
            self.give_up(f"with {format_seconds(trial.per_op_s)} per op the interpreter is not in the way")
        else:
            threads_s, processes_s = trial.seconds
            took = f"a step took {format_seconds(processes_s)} with processes, {format_seconds(threads_s)} with threads"
            self.choice = ProcessChoice("auto", trial.chosen, took, threads_s, processes_s)

    def give_up(self, reason: str) -> None:
        """Processes cannot be had."""
        self.choice = ProcessChoice(self.choice.wanted, False, reason)
