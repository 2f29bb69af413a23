"""``--split``: plans and profiles of a step whose ops are split where that shortens it."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.model_argument import build_fake_job, build_job
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.arguments.problem_options import given_options, options_of
from dlplacer.cli.arguments.topology_argument import topology_to_plan_for
from dlplacer.cli.output.output_files import tell_written
from dlplacer.cli.output.progress import interruptible, progress
from dlplacer.cli.output.tables import print_pairs, print_result
from dlplacer.core.errors import InputError
from dlplacer.core.result import FITS_NONE
from dlplacer.core.units import format_seconds

if TYPE_CHECKING:
    from dlplacer.measure.splitting.choose_splits import Prospect

_AUTO = "auto"
_SEARCH_S = 30.0


def add_split_options(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that choose splits."""
    group = parser.add_argument_group("splitting (for MODEL as module:callable)")
    group.add_argument(
        "--split",
        nargs="?",
        const=_AUTO,
        metavar="auto|N",
        help="split ops into N parts (auto: as many as there are devices) where that shortens the step",
    )
    group.add_argument(
        "--splits-of", type=Path, metavar="GRAPH|PLAN", help="apply the splits that this file records, choose none"
    )
    group.add_argument(
        "--micro-batches", type=int, metavar="N", help="run the step as N micro-batches with gradient accumulation"
    )
    add_other_loss_option(group)
    group.add_argument(
        "--times", type=Path, metavar="GRAPH", help="the model's graph without splits, with times from dlplacer profile"
    )


def add_other_loss_option(group: argparse._ActionsContainer) -> None:
    """The option that accepts micro-batches whose loss is not that of the batch."""
    group.add_argument(
        "--allow-other-loss", action="store_true", help="accept micro-batches whose loss differs from the whole batch's"
    )


def solve_with_splits(arguments: argparse.Namespace) -> int:
    """Solve without and with splits, write the better plan, and print both."""
    from dlplacer.files import write_plan
    from dlplacer.files.load import load_graph
    from dlplacer.frontend.torch.capture import default_rewrites
    from dlplacer.measure.splitting.place_with_splits import place_with_splits

    _require_alone(arguments)
    options, topology = options_of(arguments), topology_to_plan_for(arguments.topology)
    times = None if arguments.times is None else load_graph(arguments.times)
    with interruptible() as stop, progress("solving with splits", arguments.time_limit):
        result = place_with_splits(
            build_fake_job(arguments),
            topology,
            options,
            graph=times,
            parts=parts_of(arguments.split),
            rewrites=default_rewrites(arguments.whole_backward),
            method=arguments.method,
            time_limit_s=arguments.time_limit,
            gap=arguments.gap,
            seed=arguments.seed,
            workers=arguments.workers,
            stop=stop,
        )
    if arguments.output is not None:
        write_plan(arguments.output, result.split.plan)
        tell_written(arguments.output)
    if arguments.json:
        splits = [str(split) for split in result.splits]
        whole, split = result.whole.to_dict(), result.split.to_dict()
        print(json.dumps({**split, "speedup": result.speedup, "splits": splits, "without_splits": whole}))
        return 0
    print_result(result.split)
    speedup = FITS_NONE if result.speedup is None else f"{result.speedup:.3f}x"
    print_pairs(
        [
            ("ops split", f"{len(result.splits)}, of {result.evaluated} sets tried"),
            ("without splits", format_seconds(result.whole.plan.makespan_s)),
            ("speedup over the best single device, ops whole", speedup),
        ]
    )
    return 0


def profile_with_splits(arguments: argparse.Namespace) -> int:
    """Choose splits for the devices by measurement, write the graph that has them, and print what they bring."""
    from dlplacer.core.options import Options
    from dlplacer.files import write_graph
    from dlplacer.files.load import load_graph
    from dlplacer.frontend.torch.capture import default_rewrites
    from dlplacer.measure.splitting.place_with_splits import chosen, evaluator, whole_graph
    from dlplacer.measure.splitting.traced_step import TracedStep
    from dlplacer.runtime.devices import open_devices
    from dlplacer.runtime.profile.link_times import measured_topology

    _require_alone(arguments)
    search_s = _SEARCH_S if arguments.search is None else arguments.search
    if not 0 < search_s < float("inf"):
        raise InputError(f"--search is {search_s:g} s; it must be positive and finite")
    devices = open_devices(arguments.device.split(","))
    try:
        with interruptible() as stop, progress("choosing splits") as show:
            show("profiling the step without splits")
            step = TracedStep.of(build_job(arguments), default_rewrites(arguments.whole_backward))
            times = None if arguments.times is None else load_graph(arguments.times)
            whole = whole_graph(step, times, devices, arguments.steps, arguments.warmup)
            evaluate = evaluator(step, whole, measured_topology(devices), Options(), parts_of(arguments.split))
            choice = chosen(evaluate, devices, search_s, stop, lambda found: show(_text(found)))
    finally:
        for device in devices:
            device.close()
    if arguments.output is not None:
        write_graph(arguments.output, choice.graph)
        tell_written(arguments.output)
    splits = [str(split) for split in choice.splits]
    if arguments.json:
        found = {"without_splits_s": choice.whole_s, "with_splits_s": choice.split_s, "splits": splits}
        print(json.dumps({"ops": len(choice.graph.ops), **found}))
    else:
        print(
            f"{whole.name}: {len(splits)} ops split, {len(choice.graph.ops)} ops; a list schedule takes "
            f"{format_seconds(choice.split_s)} instead of {format_seconds(choice.whole_s)}"
        )
    return 0


def refuse_without_split(arguments: argparse.Namespace) -> None:
    """Raise an InputError for an option that only ``--split`` reads: without it, the option would change nothing."""
    for option in given_options(arguments, ("times", "search")):
        raise InputError(f"{option} is read by --split alone; add --split, or leave {option} out")


def parts_of(split: str) -> int | None:
    """The number that ``--split`` means; None for as many as there are devices."""
    if split == _AUTO:
        return None
    if not split.isdecimal() or int(split) < 2:
        raise InputError(f"--split is {split!r}; give auto or a number of parts from 2 on")
    return int(split)


def _require_alone(arguments: argparse.Namespace) -> None:
    for option in given_options(arguments, ("pin", "colocate", "warm_start")):
        raise InputError(f"--split chooses splits and devices together and takes no {option}; solve again with it")
    if arguments.calibration:
        raise InputError("--split measures or estimates its own times and reads no --calibration; give one of them")
    if arguments.micro_batches is not None:
        raise InputError("--split and --micro-batches both split the step's ops; give one of them")
    if arguments.splits_of is not None:
        raise InputError("--split chooses splits and --splits-of takes those of a file; give one of them")
    if not is_entry(arguments.model):
        raise InputError(
            f"--split needs the model as module:callable, to rewrite its step; {arguments.model!r} is a file"
        )
    if arguments.colocate_backward:
        raise InputError("--split and --colocate-backward exclude each other: the second would hold all parts together")
    if getattr(arguments, "granularity", "aten") != "aten":
        raise InputError(f"--split works on ATen calls; drop --granularity {arguments.granularity}")


def _text(prospect: "Prospect") -> str:
    return f"{len(prospect.ops)} ops split: {format_seconds(prospect.makespan_s)}"
