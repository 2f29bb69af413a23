"""Actions of the sub-commands: each calls a function of `dlplacer` with a command's arguments and prints the result."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import dlplacer as dp
from dlplacer.api.parameters import CaptureOptions, parameters_of
from dlplacer.cli.parser import Given
from dlplacer.cli.streams import interruptible, note, progress, say, told_written
from dlplacer.core.errors import CheckError, DlplacerError, InputError, NoPlanError
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.table import Table
from dlplacer.core.units import format_seconds
from dlplacer.files.text import write_json, write_text
from dlplacer.planning.tables import schedule, transfers
from dlplacer.report.plot.pictures import pictures_of

if TYPE_CHECKING:
    from dlplacer.api.views import Block

_WIDTH = 150
_LIMIT_S = 60.0
PARTIAL = "stopping with the answers so far; press Ctrl-C again to give up"


def called(given: Given, call: str = "", says: str = "", kept: str = "", **more: Any) -> Any:
    """Call the command's function, or `call`, with the command's arguments and `more`, and show its progress.

    While the result, or its attribute `kept`, is written, Ctrl-C only sets the stop event, so no result is lost.
    """
    function, says, doing = getattr(dp, call or given.spec.call), says or given.spec.says, given.spec.doing
    known, arguments = parameters_of(function), given.of(function)
    if "options" in known:
        arguments["options"] = options_of(given)
    with interruptible(says) if says else nullcontext() as stop:
        if stop is not None:
            arguments["stop"] = stop
        try:
            limit_s = arguments.get("time_limit_s", _LIMIT_S) if "time_limit_s" in known else None
            with progress(doing, limit_s) if doing else nullcontext() as show:
                if show is not None and "on_progress" in known:
                    arguments["on_progress"] = show
                value = function(**{**arguments, **more})
        except NoPlanError:
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt from None
            raise
        written(given, getattr(value, kept) if kept else value)
    return value


def answer(given: Given) -> int:
    """Call the command's function, write and print its result; exit code 5 if the result's `passed` is False."""
    value = called(given)
    shown(given, value)
    for warning in getattr(value, "warnings", ()):
        say(warning)
    return 0 if getattr(value, "passed", True) else CheckError.exit_code


def shown(given: Given, value: Any, record: object = None, extra: "Sequence[Block]" = ()) -> int:
    """Print a result's view or, with ``--json``, `record`; None prints the result's own object. Returns 0."""
    if given.json:
        print(json.dumps(_record_of(value) if record is None else record))
    else:
        from dlplacer.api.views import blocks_of

        show_blocks([*blocks_of(value), *extra])
    return 0


def _record_of(value: Any) -> object:
    """The JSON object of a value."""
    from dlplacer.api.views import summary
    from dlplacer.files.formats import topology_to_dict

    if isinstance(value, dict):
        # JSON has no infinity, so a missing ceiling is null.
        return {name: None if figure == float("inf") else figure for name, figure in value.items()}
    if isinstance(value, Table):
        return {value.title: value.records}
    own: Any = {dp.OpGraph: summary, dp.Topology: topology_to_dict}.get(type(value))
    return value.to_dict() if own is None else own(value)


def show_blocks(blocks: "Iterable[Block]") -> None:
    """Print the blocks of a view at the terminal's width, or at `_WIDTH` elsewhere; names are never read as markup."""
    from rich import table as rich_table
    from rich.console import Console

    from dlplacer.report.page.columns import visible

    console = Console(width=None if Console().is_terminal else _WIDTH, markup=False, emoji=False, highlight=False)
    for block in blocks:
        if isinstance(block, Table) and block.rows:
            grid = rich_table.Table(title=block.title or None)
            for head, side in zip(block.heads, block.sides, strict=True):
                grid.add_column(head, justify=side)  # type: ignore[arg-type]
            for row in block.cells:
                grid.add_row(*row)
            console.print(grid)
        elif isinstance(block, list) and block:
            width = max(len(name) for name, _ in block)
            print("\n".join(visible(f"{name:<{width}}  {value}") for name, value in block))
        elif isinstance(block, str) and block:
            print(block)


def written(given: Given, value: Any, **contents: Callable[[], Any]) -> None:
    """Write files that options name: result, pictures, page, and `contents` (option → maker of text or JSON)."""
    if given.output is not None:
        value.save(given.output)
    drawn = {each.option: each.name for each in pictures_of(given.spec.subject) if each.option in given}
    for option, name in drawn.items():
        colors = {"color_by": given.color_by} if name == "gantt" and given.color_by else {}
        dp.plot.save(given[option], name, value, **colors)
    if given.html is not None:
        dp.show(value if given.against is None else given.plan, given.html, against=given.against)
    for option, make in contents.items():
        if option in given:
            content = make()
            (write_text if isinstance(content, str) else write_json)(given[option], content)
    told_written(given.output, *(given[option] for option in drawn), given.html, *map(given.get, contents))


def options_of(given: Given) -> Options:
    """The options of the problem; raises InputError for an option that contradicts ``--paper``."""
    chosen = {name: given[name] for name in CHOICES if name in given}
    if not given.paper:
        return Options(**chosen)
    assumed = Options.paper()
    for name, value in chosen.items():
        if value != getattr(assumed, name):
            raise InputError(f"--{name} {value} contradicts --paper, which assumes {getattr(assumed, name)}; drop one")
    return assumed


def solve(given: Given) -> int:
    """Solve, write the plan, and print the result."""
    from dlplacer.planning.garbage import fewer_collections
    from dlplacer.planning.one_device import launch_note, one_device_is_best, one_device_note

    if (more := _splitting(given, "place_with_splits", "graph")) is not None:
        found = called(given, "place_with_splits", kept="split", job=given.graph, **more)
        record = {**found.split.to_dict(), "speedup": found.speedup, "splits": [str(split) for split in found.splits]}
        return shown(given, found, {**record, "without_splits": found.whole.to_dict()})
    if "work_s" in given and "time_limit_s" in given:
        raise InputError("work_s replaces time_limit_s; leave one of them out")
    with fewer_collections():
        result = called(given)
    plan, is_step = result.plan, result.plan.objective.is_makespan
    if is_step:
        start = None if given.warm_start is None else f"warm start: {plan.provenance['warm_start']}"
        note(start, launch_note(result))
    shown(given, result)
    note((one_device_is_best(plan, result.bounds.get("critical_path_s")) or one_device_note(plan)) if is_step else None)
    return 0


def _splitting(given: Given, call: str, model: str) -> dict[str, Any] | None:
    """Arguments for a function that splits ops, or None without ``--split``; raises InputError for unfit options."""
    if given.split is None:
        if unused := {"times", "search_s"} & given.keys():
            raise InputError(f"{min(unused)} takes effect only with --split; add --split, or leave it out")
        return None
    known = {model, "split", "times", "output", "json", "paper", *CHOICES, *parameters_of(getattr(dp, call))}
    if strange := [name for name in given.spelled if name in given and name not in known]:
        raise InputError(f"{strange[0]} does not go together with --split; drop one of them")
    return {"graph": given.times, "parts": None if given.split == "auto" else given.split}


def check(given: Given) -> int:
    """Print every violation; exit code 5 if there is one."""
    from dlplacer.api.views import stated

    plan = dp.load_plan(given.plan)
    found = dp.violations(plan)
    if found and not given.json:
        raise CheckError([str(violation) for violation in found])
    if given.json:
        print(json.dumps({"valid": not found, "violations": [asdict(violation) for violation in found]}))
        return CheckError.exit_code if found else 0
    kept = f"{given.plan}: {len(plan.ops)} ops and {len(plan.transfers)} transfers keep every rule"
    show_blocks([kept, f"as the file states, not proved again: {stated(plan)}"])
    return 0


def show(given: Given) -> int:
    """Print the plan's table and write the requested files."""
    from dlplacer.api.subjects import whole_plan_of
    from dlplacer.report.trace import chrome_trace

    for name, needed in (("against", "html"), ("color_by", "gantt")):
        if name in given and needed not in given:
            raise InputError(f"{name} {given[name]} takes effect only with --{needed}; add that, or leave this out")
    plan = whole_plan_of(given.plan)
    shown(given, plan)
    written(given, plan, csv=lambda: schedule(plan).to_csv(), trace=lambda: chrome_trace(plan))
    if given.csv is not None:
        beside = given.csv.with_name(f"{given.csv.stem}-transfers{given.csv.suffix}")
        write_text(beside, transfers(plan).to_csv())
        told_written(beside)
    return 0


def run(given: Given) -> int:
    """Run a plan and print its measurements; for a plan over ranks, start one process per rank."""
    from dlplacer.api.jobs import job_options
    from dlplacer.api.running import completed, is_onnx_plan, over_ranks, replicas_of
    from dlplacer.api.subjects import silent
    from dlplacer.machines.cores import load_note
    from dlplacer.planning.one_device import one_device_note

    plan, devices, job = dp.load_plan(given.plan), given.devices, given.job
    if not is_onnx_plan(plan):
        job, options = completed(job, plan, job_options(given))
        devices = _process_per_gpu(given, options.get("mode"))
        if over_ranks(plan, devices.split(","), given.replicas) and "RANK" not in os.environ:
            from dlplacer.runtime.distributed.group import parse_ranks, run_as_ranks

            count = parse_ranks(plan, devices.split(","), given.replicas or replicas_of(plan)).count
            return run_as_ranks(count, [*given.words, "--devices", devices])
    elif unused := {"gantt", "html", "replicas"} & given.keys():
        raise InputError(f"{min(unused)} is for PyTorch models; leave it out: the plan is of an ONNX file")
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first:
        note(load_note(), one_device_note(plan))
    with progress("running") if is_first else nullcontext(silent) as told:
        told("capturing and compiling")
        done: Any = dp.run(**{**given.of(dp.run), "job": job, "plan": plan, "devices": devices, "on_progress": told})
    if is_first:
        shown(given, done)
        written(given, done)
    return 0


def _process_per_gpu(given: Given, mode: str | None) -> str:
    """The command's devices; several GPUs get a rank each, except for inference or if options set the processes."""
    from dlplacer.runtime.distributed.group import rank_per_gpu

    alone = given.one_process or given.replicas is not None or mode == "infer" or "rank" in given.devices
    ranked = None if alone or int(os.environ.get("WORLD_SIZE", "1")) > 1 else rank_per_gpu(given.devices.split(","))
    note(None if ranked is None else f"one process per GPU ({','.join(ranked)}); --one-process keeps one")
    return str(given.devices) if ranked is None else ",".join(ranked)


def profile(given: Given) -> int:
    """Profile the model's ops, write the graph, and print the sum of the op times."""
    if (more := _splitting(given, "profile_splits", "job")) is not None:
        choice = called(given, "profile_splits", says=PARTIAL, kept="graph", **more)
        found = {"without_splits_s": choice.whole_s, "with_splits_s": choice.split_s}
        splits = [str(split) for split in choice.splits]
        return shown(given, choice, {"ops": len(choice.graph.ops), **found, "splits": splits})
    graph = called(given)
    kinds = (graph.capture or {}).get("measured_on", ())
    serial_s = {kind: sum(op.time_on(kind) or 0.0 for op in graph.ops) for kind in kinds}
    return shown(given, graph, {"ops": len(graph.ops), "serial_s": serial_s})


def pipeline(given: Given) -> int:
    """Plan the pipeline, compare it with op placement, and print both."""
    from dlplacer.api.solving import problem_of
    from dlplacer.planning.pipeline.schedules import write_csv

    calibration = given.calibration or ()
    step = {name: given[name] for name in CaptureOptions.__annotations__ if name in given}
    with progress("capturing"):
        graph, machine = problem_of(given.graph, given.topology, calibration, step)
    asked = {name: given[name] for name in ("stages", "micro_batches", "schedule") if name in given}
    with progress(given.spec.doing) as told:
        plan = dp.pipeline(graph, machine, **asked, on_progress=told)
    for warning in plan.warnings:
        say(warning)
    written(given, plan, csv=lambda: write_csv(plan.order))
    if given.plan_file is not None:
        count = plan.micro_batches if plan.micro_batches > 1 else None
        cut = dp.capture(given.graph, **step, allow_other_loss=bool(given.allow_other_loss), micro_batches=count)
        dp.plan_of_pipeline(plan, cut, given.topology, calibration=calibration).save(given.plan_file)
        told_written(given.plan_file)
    placed, extra, limit_s = None, [], given.get("time_limit_s", 10.0)
    try:
        with progress("op placement for comparison", limit_s) as told:
            result = dp.place(graph, machine, time_limit_s=limit_s, on_progress=told) if limit_s else None
    except DlplacerError as error:
        note(f"no op placement for comparison: {error}")
        result = None
    if result is not None:
        makespan_s, status = result.plan.makespan_s, result.plan.status
        placed = {"status": status, "makespan_s": makespan_s, "speedup": result.speedup}
        extra = [
            f"op placement ({status}) takes {format_seconds(makespan_s)}, the pipeline {format_seconds(plan.step_s)}"
        ]
    return shown(given, plan, {**plan.to_dict(), "op_placement": placed}, extra)


def fit(given: Given) -> int:
    """Plan the layers, write the plan, and print layers per device, other splits, and flags for other runtimes."""
    from dlplacer.api.fitting import exports
    from dlplacer.report.export.targets import TARGETS

    found = called(given)
    if given.json:
        return shown(given, found, {**found.to_dict(), "exports": exports(found, TARGETS)})
    told = {name: text if isinstance(text, str) else text["cannot"] for name, text in exports(found, given.to).items()}
    return shown(given, found, extra=[f"{name}:\n{text}" for name, text in told.items()])
