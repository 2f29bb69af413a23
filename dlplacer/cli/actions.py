"""What every sub-command does: call functions of `dlplacer` with the given arguments, write files, and print."""

import json
import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import dlplacer as dp
from dlplacer.api import parameters as the
from dlplacer.cli.parser import Given
from dlplacer.cli.progress import interruptible, note, progress, told_written
from dlplacer.core.errors import CheckError, DlplacerError, InputError, NoPlanError
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.table import Table
from dlplacer.core.units import format_seconds

if TYPE_CHECKING:
    from dlplacer.api.views import Block
    from dlplacer.core.graph import OpGraph

_WIDTH = 150
_WRITE_FACTOR = 0.8
"""Time to write a plan ÷ time to read its graph: 0.6 to 0.9 on 106,000 ops, which take seconds."""


def printed(given: Given, value: object, record: object = None, extra: "Iterable[Block]" = ()) -> None:
    """Print a result: its view, or with ``--json`` its object, or the record in place of that."""
    if given.json:
        print(json.dumps(value.to_dict() if record is None else record))  # type: ignore[attr-defined]
        return
    from dlplacer.api.views import blocks_of

    show_blocks([*blocks_of(value), *extra])


def show_blocks(blocks: "Iterable[Block]") -> None:
    """Print the parts of a view, as wide as the terminal or else a file; names are never markup."""
    from rich import table as rich_table
    from rich.console import Console

    console = Console(width=None if Console().is_terminal else _WIDTH, markup=False, emoji=False, highlight=False)
    for block in blocks:
        if isinstance(block, Table) and block.rows:
            shown = rich_table.Table(title=block.title or None)
            for head, side in zip(block.heads, block.sides, strict=True):
                shown.add_column(head, justify=side)  # type: ignore[arg-type]
            for row in block.cells:
                shown.add_row(*row)
            console.print(shown)
        elif isinstance(block, list):
            width = max(len(name) for name, _ in block)
            print("\n".join(f"{name:<{width}}  {value}" for name, value in block))
        elif isinstance(block, str) and block:
            print(block)


def write_files(given: Given, value: Any, subject: str = "") -> None:
    """Write the result, its pictures and its page where the command line asks for them."""
    pictures = [each for each in the.pictures(subject) if each.name in given] if subject else []
    if given.output is not None:
        value.save(given.output)
    for each in pictures:
        name = each.name if subject == "plan" else subject.split()[0]
        dp.plot.save(given[each.name], name, value, **given.take(*the.SHOWN[-1:]) if name == "gantt" else {})
    if given.html is not None and subject != "plan":
        dp.show(value, given.html)
    told_written(given.output, *(given[each.name] for each in pictures), given.html)


def options_of(given: Given) -> Options:
    """The options of the problem; raises InputError for one that contradicts ``--paper``."""
    chosen = {name: given[name] for name in CHOICES if name in given}
    if not given.paper:
        return Options(**chosen)
    paper = Options.paper().to_dict()
    for name, value in chosen.items():
        if value != paper[name]:
            raise InputError(
                f"--{name} {value} contradicts --paper, which means --{name} {paper[name]}; leave out one of the two"
            )
    return Options.paper()


def graph_of(given: Given) -> "OpGraph":
    """The graph that MODEL|GRAPH means: captured without allocating anything, or read from a file."""
    from dlplacer.planning.coarsen import coarsen

    options = given.take(the.STEP, the.RECORDED)
    if is_captured(given.model):
        with progress("capturing"):
            return dp.capture(given.model, **options)
    granularity = options.pop("granularity", "aten")
    for each in (*the.STEP, *the.RECORDED):
        if each.name in options:
            raise InputError(
                f"{each.spellings[0]} says how to capture a model, but {given.model!r} is a graph file; drop it or give "
                "module:callable"
            )
    return coarsen(dp.load_graph(given.model), granularity)


def is_captured(model: str) -> bool:
    """True for ``module:callable`` and ONNX files, false for graph files."""
    from dlplacer.api.jobs import is_entry, is_onnx

    return is_entry(model) or is_onnx(model)


def solve(given: Given) -> int:
    from dlplacer.planning.garbage import fewer_collections

    if given.split is not None:
        return _solve_with_splits(given)
    _refuse_without_split(given)
    options, limit_s, began = options_of(given), given.get("time_limit_s", 60.0), time.monotonic()
    with fewer_collections(), interruptible() as stop:
        graph = graph_of(given)
        # A capture does not count, as the user's code may take longer than the limit.
        read_s = 0.0 if is_captured(given.model) else time.monotonic() - began
        files_s = read_s * (1 + (_WRITE_FACTOR if given.output is not None else 0))
        limit_s = max(limit_s - files_s, limit_s / 2)
        solving = given.take(the.SOLVED, the.HELD, the.WARM_START, the.ISSUE, the.CALIBRATION)
        try:
            with progress("solving", limit_s) as show:
                solving |= {"time_limit_s": limit_s, "on_progress": show, "stop": stop}
                result = dp.place(graph, given.topology, options, **solving)
        except NoPlanError:
            if stop.is_set():
                raise KeyboardInterrupt from None
            raise
        # A Ctrl-C that comes now is too late to cost the plan.
        write_files(given, result)
    _tell_solved(given, result)
    return 0


def _tell_solved(given: Given, result: dp.Result) -> None:
    from dlplacer.planning.launch_bound import launch_note
    from dlplacer.planning.one_device import one_device_is_best
    from dlplacer.planning.pipeline.hint import pipeline_hint

    plan = result.plan
    if given.warm_start is not None:
        note(f"warm start: {plan.provenance['warm_start']}")
    launch = launch_note(result)
    if launch is not None:
        note(launch)
    hint = pipeline_hint(plan.graph, plan.topology, plan.makespan_s)
    printed(given, result, {**result.to_dict(), "pipeline": None if hint is None else hint.to_dict()})
    alone = one_device_is_best(plan, result.bounds.get("critical_path_s"))
    if alone is not None:
        note(alone)
    if hint is not None and hint.is_faster:
        note(str(hint))


def _solve_with_splits(given: Given) -> int:
    from dlplacer.api.jobs import fake_job
    from dlplacer.frontend.torch.capture import default_rewrites

    parts = _parts(given)
    job = fake_job(given.model, **given.take(the.JOB))
    with interruptible() as stop, progress("solving with splits", given.get("time_limit_s", 60.0)) as show:
        solving = {"time_limit_s": 60.0, **given.take(the.SOLVED), "on_progress": show, "stop": stop}
        found = dp.place_with_splits(
            job,
            given.topology,
            options_of(given),
            graph=given.times,
            parts=parts,
            rewrites=default_rewrites(bool(given.whole_backward)),
            **solving,
        )
    write_files(given, found.split)
    splits = [str(split) for split in found.splits]
    record = {**found.split.to_dict(), "speedup": found.speedup, "splits": splits}
    printed(given, found, {**record, "without_splits": found.whole.to_dict()})
    return 0


def _refuse_without_split(given: Given) -> None:
    for name in ("times", "search_s"):
        if name in given:
            raise InputError(f"--{name.removesuffix('_s')} is read by --split alone; add --split, or leave it out")


def _parts(given: Given) -> int | None:
    """The number that ``--split`` means, None for as many as there are devices; refuses options that exclude it."""
    from dlplacer.api.jobs import is_entry

    for each in (*the.HELD, the.WARM_START):
        if each.name in given:
            raise InputError(
                f"--split chooses splits and devices together and takes no {each.spellings[0]}; solve again with it"
            )
    excluded = {
        "calibration": "--split measures or estimates its own times and reads no --calibration",
        "micro_batches": "--split and --micro-batches both split the step's ops",
        "splits_of": "--split chooses splits and --splits-of takes those of a file",
        "colocate_backward": "--split and --colocate-backward exclude each other, which holds all parts together",
    }
    for name, reason in excluded.items():
        if name in given:
            raise InputError(f"{reason}; give one of them")
    if not is_entry(given.model):
        raise InputError(f"--split needs the model as module:callable, to rewrite its step; {given.model!r} is a file")
    if given.get("granularity", "aten") != "aten":
        raise InputError(f"--split works on ATen calls; drop --granularity {given.granularity}")
    if given.split == "auto":
        return None
    if not given.split.isdecimal() or int(given.split) < 2:
        raise InputError(f"--split is {given.split!r}; give auto or a number of parts from 2 on")
    return int(given.split)


def compare(given: Given) -> int:
    from dlplacer.planning.one_device import one_device_is_best

    options, graph = options_of(given), graph_of(given)
    with interruptible() as stop, progress("comparing", given.get("time_limit_s", 60.0)) as show:
        comparing = given.take(the.COMPARED, the.HELD, the.ISSUE, the.CALIBRATION)
        found = dp.compare(graph, given.topology, options, **comparing, on_progress=show, stop=stop)
    write_files(given, found, "comparison")
    printed(given, found)
    best = found.rows[0].plan
    alone = None if best is None else one_device_is_best(best)
    if alone is not None:
        note(alone)
    return 0


def check(given: Given) -> int:
    from dlplacer.api.views import stated

    plan = dp.load_plan(given.plan)
    found = dp.violations(plan)
    listed = [{"rule": violation.rule, "message": violation.message} for violation in found]
    if found and not given.json:
        raise CheckError([str(violation) for violation in found])
    kept = f"{given.plan}: {len(plan.ops)} ops and {len(plan.transfers)} transfers keep every rule"
    rows = [kept, f"as the file states, not proved again: {stated(plan)}"]
    print(json.dumps({"valid": not found, "violations": listed})) if given.json else show_blocks(rows)
    return CheckError.exit_code if found else 0


def show(given: Given) -> int:
    from dlplacer.files import write_json, write_text
    from dlplacer.report.whole_plan import require_whole

    for name, needed in (("against", "html"), ("color_by", "gantt"), ("device_map_rule", "device_map")):
        if name in given and needed not in given:
            option, target = name.replace("_", "-"), needed.replace("_", "-")
            raise InputError(f"--{option} {given[name]} is for --{target}; add it, or leave --{option} out")
    plan = dp.load_plan(given.plan)
    printed(given, plan)
    require_whole(plan, str(given.plan))
    write_files(given, plan, "plan")
    if given.trace is not None:
        from dlplacer.report.trace import chrome_trace

        write_json(given.trace, chrome_trace(plan))
    if given.device_map is not None:
        from dlplacer.report.export.device_map import device_map, overfull_devices, spread_modules

        write_json(given.device_map, device_map(plan, rule=given.get("device_map_rule", "majority")))
        spread = spread_modules(plan)
        if spread:
            note(f"{len(spread)} modules are spread over devices in the plan; the map names one")
        for text in overfull_devices(plan):
            note(text)
    if given.html is not None:
        from dlplacer.report.page.page import html_page

        other = None if given.against is None else dp.load_plan(given.against)
        if other is not None:
            require_whole(other, str(given.against))
        names = (given.plan.stem, "" if other is None else given.against.stem)
        write_text(given.html, html_page(plan, other, names if names[0] != names[1] else ("A", "B")))
    beside = None
    if given.csv is not None:
        from dlplacer.core import table

        beside = given.csv.with_name(f"{given.csv.stem}-transfers{given.csv.suffix}")
        write_text(given.csv, table.schedule(plan).to_csv())
        write_text(beside, table.transfers(plan).to_csv())
    told_written(given.csv, beside, given.trace, given.device_map)
    return 0


def explain(given: Given) -> int:
    from dlplacer.api.views import blocks_of, elsewhere_blocks
    from dlplacer.planning.constrain import matching
    from dlplacer.problem.simulate import replay_under_issue
    from dlplacer.report.whole_plan import require_whole

    held, budget_s = bool(given.pins or given.colocate), given.get("budget_s", 10.0)
    plan = dp.load_plan(given.plan)
    if held or given.why or budget_s:
        # Solving again begins with the plan, so it must keep the rules; the figures alone say what any plan does.
        dp.check_plan(plan)
    require_whole(plan, str(given.plan))
    times = {entry.op: entry.end_s - entry.start_s for entry in plan.ops}
    whys = [max(matching(plan.graph, pattern), key=times.__getitem__) for pattern in given.why or ()]
    if given.dispatch_s:
        # What would help is asked under it too.
        plan = replay_under_issue(plan, given.dispatch_s)
    found: dict[str, Any] = {}
    explanation = dp.explain(plan)
    if not given.json:
        show_blocks([[("makespan", format_seconds(plan.makespan_s))], *blocks_of(explanation)])
    blocks: list[Block] = []
    announcement = "stopping with the answers so far; once more to give up"
    with interruptible(announcement) as stop, progress("solving again", budget_s) as show:
        solving = {**given.take(the.WORKERS), "stop": stop}
        share_s = budget_s / (held + len(whys) or 1)
        if held:
            pinned = dp.pinned(plan, given.pins or (), given.colocate or (), share_s, **solving)
            found["pinned"], blocks = pinned.to_dict(), [*blocks_of(pinned)]
        if whys:
            moved = [one for op in whys for one in dp.elsewhere(plan, op, share_s, **solving)]
            found["elsewhere"] = [one.to_dict() for one in moved]
            alone = ["the machine has one device, so no op can be elsewhere"]
            blocks += elsewhere_blocks(plan, moved) if moved else alone
        if not held and not whys and budget_s:
            helping = dp.what_would_help(plan, budget_s, on_progress=show, **solving)
            found["what_would_help"], blocks = helping.to_dict(), [*blocks_of(helping)]
    print(json.dumps({**explanation.to_dict(), **found})) if given.json else show_blocks(blocks)
    return 0


def run(given: Given) -> int:
    from dlplacer.api.running import completed as completed_job
    from dlplacer.api.running import is_onnx_plan, over_ranks, replicas_of
    from dlplacer.machines.host_load import load_note
    from dlplacer.planning.one_device import one_device_note

    plan, devices, job = dp.load_plan(given.plan), given.devices, given.model
    running = given.take(the.RUN, the.JOB, the.DIMS)
    if is_onnx_plan(plan):
        for name in ("gantt", "trace", "html", "replicas"):
            if name in given:
                raise InputError(f"--{name} is for models in torch; leave it out, the plan is of an ONNX file")
    else:
        job, options = completed_job(job, plan, given.take(the.JOB))
        devices = _process_per_gpu(given, options.get("mode"))
        if over_ranks(plan, devices.split(","), given.replicas) and "RANK" not in os.environ:
            from dlplacer.runtime.distributed.launch import run_as_ranks
            from dlplacer.runtime.distributed.ranks import parse_ranks

            count = parse_ranks(plan, devices.split(","), given.replicas or replicas_of(plan)).count
            return run_as_ranks(count, [*given.words, "--devices", devices])
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first:
        for text in (load_note(), one_device_note(plan)):
            if text is not None:
                note(text)
    with progress("running") if is_first else _silence() as show:
        show("capturing and compiling")
        done = dp.run(job, plan, devices, on_progress=show, **running)
    if is_first:
        printed(given, done)
        _write_run(given, done)
    return 0


def _silence() -> Any:
    from contextlib import nullcontext

    return nullcontext(lambda *told: None)


def _process_per_gpu(given: Given, mode: str | None) -> str:
    """Devices with ranks for several GPUs, unless the user or a launcher has named them, or one process is asked for."""
    from dlplacer.runtime.distributed.ranks import rank_per_gpu

    devices: str = given.devices
    alone = given.one_process or given.replicas is not None or mode == "infer"
    if alone or int(os.environ.get("WORLD_SIZE", "1")) > 1 or "rank" in devices:
        return devices
    ranked = rank_per_gpu(devices.split(","))
    if ranked is None:
        return devices
    note(f"one process per GPU ({','.join(ranked)}); --one-process keeps one")
    return ",".join(ranked)


def _write_run(given: Given, done: Any) -> None:
    if given.gantt is not None:
        dp.plot.save(given.gantt, "run", done)
    if given.trace is not None:
        from dlplacer.files import write_json
        from dlplacer.report.trace import run_trace

        write_json(given.trace, run_trace(done.predicted, done.measured))
    if given.html is not None:
        dp.show(done, given.html)
    told_written(given.gantt, given.trace, given.html)


def profile(given: Given) -> int:
    profiling = given.take(the.PROFILED, the.JOB)
    if given.split is not None:
        profiling.pop("calibration", None)
        with interruptible() as stop, progress("choosing splits") as show:
            rest = {**given.take(the.WHOLE_BACKWARD), "graph": given.times, "parts": _parts(given), "stop": stop}
            choice = dp.profile_splits(given.model, given.devices, on_progress=show, **rest, **profiling)
        write_files(given, choice.graph)
        found = {"without_splits_s": choice.whole_s, "with_splits_s": choice.split_s}
        splits = [str(split) for split in choice.splits]
        printed(given, choice, {"ops": len(choice.graph.ops), **found, "splits": splits})
        return 0
    _refuse_without_split(given)
    with progress("profiling") as show:
        show("capturing")
        profiling |= given.take(the.STEP, the.RECORDED)
        graph = dp.profile(given.model, given.devices, on_progress=show, **profiling)
    write_files(given, graph)
    types = (graph.capture or {}).get("measured_on", ())
    serial = {kind: sum(op.time_on(kind) or 0.0 for op in graph.ops) for kind in types}
    printed(given, graph, {"ops": len(graph.ops), "serial_s": serial})
    return 0


def capture(given: Given) -> int:
    with progress("capturing"):
        graph = dp.capture(given.model, **given.take(the.STEP, the.ROOFLINE))
    write_files(given, graph)
    sums = {name: sum(getattr(op, name) for op in graph.ops) for name in ("flops", "weight_bytes")}
    counts = {"name": graph.name, "ops": len(graph.ops), "edges": len(graph.edges)}
    printed(given, graph, {**counts, **sums, "structure_sha256": graph.structure_sha256})
    return 0


def selftest(given: Given) -> int:
    from dlplacer.files import write_json

    with progress("trying the runtime") as show:
        done = dp.selftest(given.devices, on_progress=show, **given.take(the.SELFTEST))
    if given.output is not None:
        write_json(given.output, done.to_dict())
        told_written(given.output)
    printed(given, done)
    return 0 if done.passed else CheckError.exit_code


def topology(given: Given, found: dp.Topology) -> int:
    from dlplacer.files.topology_file import topology_to_dict

    write_files(given, found, "topology")
    printed(given, found, topology_to_dict(found) if given.json else None)
    return 0


def detect(given: Given) -> int:
    with progress("timing links") as show:
        found = dp.detect_topology(on_progress=show, **given.take(the.KIND, the.MEASURE))
    return topology(given, found)


def listed(given: Given) -> int:
    table = dp.catalogue(given.what)
    names = [column.name for column in table.columns]
    printed(given, table, {given.what: [dict(zip(names, row, strict=True)) for row in table.rows]})
    return 0


def groups(given: Given) -> int:
    named = is_captured(given.model)
    options = given.take(the.GROUPS, the.STEP if named else ())
    printed(given, dp.groups(given.model if named else graph_of(given), given.topology, **options))
    return 0


def epochs(given: Given) -> int:
    with progress("trainings") as show:
        found = dp.epochs(given.training, on_progress=show, **given.take(the.EPOCHS))
    write_files(given, found)
    printed(given, found)
    return 0


def hybrid(given: Given) -> int:
    if given.pins is not None:
        raise InputError("--pin: each worker of a hybrid gets devices of its own; use --colocate, or pin in `solve`")
    graph = graph_of(given)
    planning = given.take(the.HYBRID, the.SCALING, the.COLOCATE, the.EPOCHS_FILE)
    if planning.pop("no_overlap", False):
        planning["overlap"] = False
    # There is no plan before the end: after the first Ctrl-C nothing new is begun.
    announcement = "giving up after the solve at hand; once more to give up at once"
    with interruptible(announcement) as stop, progress("hybrids") as show:
        plan = dp.hybrid(graph, given.topology, options=options_of(given), **planning, on_progress=show, stop=stop)
    write_files(given, plan, "hybrid plan")
    printed(given, plan)
    for warning in plan.warnings:
        print(f"dlplacer: {warning}", file=sys.stderr)
    return 0


def pipeline(given: Given) -> int:
    from dlplacer.api.solving import held_graph, problem_of

    if given.plan_file is not None:
        _require_capturable(given)
    whole = Given({name: value for name, value in given.items() if name != "micro_batches"})
    graph, machine = problem_of(graph_of(whole), given.topology, given.calibration or ())
    graph = held_graph(graph, machine, given.pins or (), given.colocate or ())
    with progress("pipelines tried") as show:
        plan = dp.pipeline(graph, machine, on_progress=show, **given.take(the.STAGES))
    for warning in plan.warnings:
        print(f"dlplacer: {warning}", file=sys.stderr)
    if given.csv is not None:
        from dlplacer.files.disk import write_bytes
        from dlplacer.planning.pipeline.schedule.action import write_csv

        write_bytes(given.csv, write_csv(plan.order).encode())
    write_files(given, plan, "pipeline plan")
    if given.plan_file is not None:
        count = plan.micro_batches
        cut = {**given.take(the.STEP, the.OTHER_LOSS), "micro_batches": count if count > 1 else None}
        step = dp.capture(given.model, **cut)
        made = dp.plan_of_pipeline(plan, step, machine, held=graph.constraints, **given.take(the.CALIBRATION))
        made.save(given.plan_file)
    told_written(given.csv, given.plan_file)
    limit_s = given.get("time_limit_s", 10.0)
    placed = _op_placement(graph, machine, limit_s) if limit_s else None
    extra = []
    if placed is not None:
        ratio = placed["makespan_s"] / plan.step_s if plan.step_s else 0.0
        verdict = f"the pipeline is {ratio:.2f}x as fast" if ratio >= 1 else "faster than the pipeline"
        extra = [f"op placement takes {format_seconds(placed['makespan_s'])} ({placed['status']}); {verdict}"]
    printed(given, plan, {**plan.to_dict(), "op_placement": placed}, extra)
    return 0


def _require_capturable(given: Given) -> None:
    """A plan of micro-batches is one of another graph, which takes the model's code to make."""
    from dlplacer.api.jobs import is_entry

    if not is_entry(given.model):
        raise InputError(
            f"-o needs the model as module:callable, to capture its micro-batches; {given.model!r} is a file: drop -o, "
            "or name the model that it was captured from"
        )
    if given.get("granularity", "aten") != "aten":
        raise InputError(f"-o writes a plan of ATen calls; drop --granularity {given.granularity}")


def _op_placement(graph: "OpGraph", machine: dp.Topology, limit_s: float) -> dict[str, Any] | None:
    """Step time and speedup of a plan of op placement, or None if none was found."""
    try:
        with progress("op placement, to compare with", limit_s) as show:
            result = dp.place(graph, machine, time_limit_s=limit_s, on_progress=show)
    except DlplacerError as error:
        note(f"no op placement to compare with: {error}")
        return None
    return {"status": result.plan.status, "makespan_s": result.plan.makespan_s, "speedup": result.speedup}


def minibatch(given: Given) -> int:
    named = is_captured(given.model)
    graph, options = given.model if named else graph_of(given), given.take(the.MINIBATCH, the.STEP if named else ())
    with progress("mini-batches") as show:
        found = dp.advise_minibatch(graph, given.topology, on_progress=show, **options)
    printed(given, found)
    return 0


def figures(given: Given, found: dict[str, float]) -> int:
    # JSON has no infinity: no ceiling is null.
    printed(given, found, {name: None if value == float("inf") else value for name, value in found.items()})
    return 0
