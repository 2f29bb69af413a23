"""``dlplacer epochs``."""

import argparse
import contextlib
import json
import math
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.named_training import Goal, NamedTraining
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.tables import new_table, print_table
from dlplacer.core.errors import InputError, RunError
from dlplacer.machines.costs.gradient_codecs import CODECS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from dlplacer.data_parallel import MeasuredEpochs

HELP = "Measure how many epochs every batch needs, workers emulated on one device: the file for `dlplacer hybrid`."
EXAMPLES = (
    ("epochs my_training:train --batches 1,2,4,8 --at-most 0.1 -o epochs.json", "until the loss is at most 0.1"),
    ("epochs my_training:train --batches 1,4 --at-least 0.9 --seeds 3 --codecs none,ternary --jobs 2", "side by side"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "training",
        metavar="MODULE:CALLABLE",
        help="takes (workers, seed) and yields a metric after every epoch; or returns something that does",
    )
    parser.add_argument(
        "--batches", required=True, metavar="N[,N…]", help="mini-batches per step: numbers of data-parallel workers"
    )
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument("--at-most", type=float, metavar="X", help="the goal: a metric of at most X, as a loss")
    goal.add_argument("--at-least", type=float, metavar="X", help="the goal: a metric of at least X, as an accuracy")
    parser.add_argument("--max-epochs", type=int, default=100, metavar="E", help="more count as not converging (100)")
    parser.add_argument("--seeds", type=int, default=1, metavar="S", help="trainings of every batch, for a median (1)")
    parser.add_argument("--codecs", metavar="C[,C…]", help=f"measure these too; of {', '.join(CODECS)}")
    parser.add_argument("--periods", metavar="P[,P…]", help="measure exchanges every P steps too")
    parser.add_argument("--jobs", type=int, metavar="J", help="train in so many processes side by side")
    parser.add_argument(
        "--checkpoint", type=output_file, metavar="FILE", help="keep finished trainings there, and go on from them"
    )
    parser.add_argument("--mini-batch", type=int, metavar="B", help="samples of a mini-batch, for the file")
    parser.add_argument("--samples", type=int, metavar="N", help="samples of the data set, for the file")
    parser.add_argument("-o", "--output", type=output_file, metavar="EPOCHS", help="epochs file to write")
    parser.add_argument("--json", action="store_true", help="print the content of the epochs file")


def execute(arguments: argparse.Namespace) -> int:
    """Train, count, and write the file."""
    from dlplacer.cli.output.progress import trainings_line
    from dlplacer.data_parallel.epochs.measured_epochs import measure_epochs, options_of
    from dlplacer.files.text import write_json

    training = NamedTraining(arguments.training)
    resolved = training.resolved()
    batches = _whole_numbers("--batches", arguments.batches)
    variants = list(_variants(arguments))
    for variant in variants:
        options_of(resolved, *variant)
    for option, count in (
        ("--seeds", arguments.seeds),
        ("--mini-batch", arguments.mini_batch),
        ("--samples", arguments.samples),
    ):
        if count is not None and count < 1:
            raise InputError(f"{option} is {count}; it must be at least 1")
    for option, value in (("--at-most", arguments.at_most), ("--at-least", arguments.at_least)):
        if value is not None and not math.isfinite(value):
            raise InputError(f"{option} is {value:g}, which no metric or every one reaches; give a finite number")
    goal = (
        None
        if arguments.at_most is None and arguments.at_least is None
        else Goal(arguments.at_most, arguments.at_least)
    )
    measured = []
    with _executor(arguments.jobs) as executor, trainings_line() as report:
        for codec, period in variants:
            measured.append(
                measure_epochs(
                    training,
                    batches,
                    reached=goal,
                    max_epochs=arguments.max_epochs,
                    seeds=range(arguments.seeds),
                    executor=executor,
                    checkpoint=arguments.checkpoint,
                    codec=codec,
                    period=period,
                    on_progress=report,
                )
            )
    exact, *others = measured
    if not any(exact.points().values()):
        raise InputError(
            f"no batch of {arguments.batches} reached the goal within {arguments.max_epochs} epochs; give an easier "
            "goal, smaller batches or more epochs"
        )
    content = exact.to_dict(arguments.training, arguments.mini_batch, arguments.samples, others)
    if arguments.output is not None:
        write_json(arguments.output, content)
        tell_written(arguments.output)
    if arguments.json:
        print(json.dumps(content))
    else:
        _print(measured)
    return 0


def _variants(arguments: argparse.Namespace) -> "Iterator[tuple[str | None, int]]":
    """(codec, period) of every measurement: exact gradients at every step first."""
    yield None, 1
    for codec in dict.fromkeys((arguments.codecs or "").split(",")):
        if codec and codec not in CODECS:
            raise InputError(f"--codecs has {codec!r}; use some of {', '.join(CODECS)}")
        if codec not in ("", "none"):
            yield codec, 1
    for period in dict.fromkeys(_whole_numbers("--periods", arguments.periods or "1")):
        if period > 1:
            yield None, period


def _whole_numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"{option} is {text!r}; write whole numbers of at least 1, as in 1,2,4")
    return found


@contextlib.contextmanager
def _executor(jobs: int | None) -> "Iterator[Executor | None]":
    """So many processes; none for None."""
    if jobs is None:
        yield None
        return
    if jobs < 1:
        raise InputError(f"--jobs is {jobs}; it must be at least 1")
    import multiprocessing
    import os
    import threading
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    from dlplacer.planning.interrupt import leave_signals_to_parent, stop_on_interrupt

    def end_all() -> None:
        for process in multiprocessing.active_children():
            process.kill()

    # Not forked: threads of the user's framework, which importing the training may have started, would be missing.
    spawned, stop = multiprocessing.get_context("spawn"), threading.Event()
    pool = ProcessPoolExecutor(jobs, spawned, leave_signals_to_parent, (os.getpid(),))
    try:
        # A training may go on for hours, so that Ctrl-C does not wait for those that run.
        with stop_on_interrupt(stop, end_all), pool as executor:
            yield executor
    except BrokenProcessPool:
        if stop.is_set():
            raise KeyboardInterrupt from None
        raise RunError(
            "a process that trained has ended without a word, as for want of memory; use fewer --jobs, and "
            "--checkpoint to go on from the trainings that have ended"
        ) from None


def _print(measured: "list[MeasuredEpochs]") -> None:
    table = new_table("mini-batches", *(each.label for each in measured), title="epochs to the goal")
    for count in measured[0].measurements:
        cells = [
            next((_shown(one.median) for one in each.measurements if one.workers == count.workers), "-")
            for each in measured
        ]
        table.add_row(str(count.workers), *cells)
    factors = [each.factor(measured[0]) for each in measured]
    table.add_row("÷ exact", *("-" if factor is None else f"{factor:.3g}" for factor in factors))
    print_table(table)


def _shown(epochs: float | None) -> str:
    return "not reached" if epochs is None else f"{epochs:g}"
